//! Turns calls of the rest of the library into changes of the state. Functions of the host are
//! called with no lock held.

use super::clock::Stamp;
use super::domain::StreamInfo;
use super::recording::Recorded;
use super::state::{Named, State};
pub use super::switch::note_loss;
use super::switch::{self, with};
use super::text::Label;
use super::{Touch, is_on};
use crate::base::error::Result;
use crate::base::shared::Shared;
use std::cell::Cell;

/// A point, and the library's generation in which it was taken. The host's clock joins it when the
/// work before it is complete.
pub struct Point(Stamp, u64);

impl Clone for Point {
    fn clone(&self) -> Point {
        Point(self.0.share(), self.1)
    }
}

/// The operations of a capture, for the launches of its graph, and the library's generation.
pub struct Recording(Shared<Recorded>, u64);

impl Clone for Recording {
    fn clone(&self) -> Recording {
        Recording(self.0.share(), self.1)
    }
}

/// A stream on the calling thread: the number of the capture that it is part of, or 0, and its
/// properties.
pub type StreamNow = (u64, StreamInfo);

/// Whether the frames of a call were captured, before it took locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Captured {
    No,
    /// Calls that the host's frame function makes get no frames.
    Now,
    Yes,
}

/// State of a thread for its current and last call.
struct ThreadState {
    /// The frames of the thread's last call, which are pinned, and half of the generation that
    /// knows them.
    frames: Cell<u32>,
    generation: Cell<u32>,
    depth: Cell<u16>,
    captured: Cell<Captured>,
    has_reports: Cell<bool>,
}

thread_local! {
    static THREAD_STATE: ThreadState = const {
        ThreadState {
            frames: Cell::new(0),
            generation: Cell::new(0),
            depth: Cell::new(0),
            captured: Cell::new(Captured::No),
            has_reports: Cell::new(false),
        }
    };
}

impl ThreadState {
    fn enter(&self) -> Call {
        self.depth.set(self.depth.get() + 1);
        Call(())
    }

    fn leave(&self) {
        let depth = self.depth.get().saturating_sub(1);
        self.depth.set(depth);
        if depth > 0 {
            return;
        }
        self.captured.set(Captured::No);
        if self.has_reports.replace(false) {
            switch::deliver();
        }
    }

    /// Captures the host's frames, once per call.
    fn capture_frames(&self) {
        if self.captured.get() == Captured::No {
            self.captured.set(Captured::Now);
            let pinned = switch::frames();
            self.replace_pinned(pinned);
            self.captured.set(Captured::Yes);
        }
    }

    fn replace_pinned(&self, (frames, generation): (u32, u32)) {
        switch::unpin((self.frames.replace(frames), self.generation.replace(generation)));
    }

    /// The frames of this call.
    fn frames(&self) -> u32 {
        if self.captured.get() == Captured::Yes { self.frames.get() } else { 0 }
    }
}

/// Releases the frames of a thread that exits.
pub(crate) fn leave() {
    THREAD_STATE.with(|thread| thread.replace_pinned((0, 0)));
}

/// A call that records several operations: reports wait until the outermost call ends.
pub struct Call(());

impl Call {
    /// Captures frames now, unless an enclosing call did.
    #[cold]
    pub(super) fn begin() -> Call {
        THREAD_STATE.with(|thread| {
            let call = thread.enter();
            thread.capture_frames();
            call
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        THREAD_STATE.with(ThreadState::leave);
    }
}

/// Changes the state; also returns whether reports for this thread are pending.
fn change<R: Default>(change: impl FnOnce(&mut State) -> Result<R>) -> (R, bool) {
    let mut has_reports = false;
    let outcome = with(|state| {
        let outcome = change(state);
        has_reports = state.has_output();
        outcome
    });
    (outcome, has_reports)
}

/// Changes the state. Reports stay pending until a call ends that delivers them.
fn update<R: Default>(body: impl FnOnce(&mut State) -> Result<R>) -> R {
    let (outcome, has_reports) = change(body);
    if has_reports {
        THREAD_STATE.with(|thread| thread.has_reports.set(true));
    }
    outcome
}

/// Changes the state for an operation of the host, with its frames, and delivers reports.
fn update_in_call(body: impl FnOnce(&mut State, u32) -> Result<()>) {
    let has_frames = switch::has_frames();
    let call = has_frames.then(Call::begin);
    let frames = if has_frames { THREAD_STATE.with(ThreadState::frames) } else { 0 };
    let ((), has_reports) = change(|state| body(state, frames));
    if has_reports {
        let _call = THREAD_STATE.with(ThreadState::enter);
        THREAD_STATE.with(|thread| thread.has_reports.set(true));
    }
    drop(call);
}

#[cold]
pub(crate) fn operation(at: StreamNow, label: &'static str, touches: &[Touch<'_>]) {
    let (capture, info) = at;
    let label = Label::Library(label);
    update_in_call(|state, frames| {
        state.operation(capture, info, Named { label, frames }, touches)
    });
}

#[cold]
pub(crate) fn rest_of_block(address: u64) -> u64 {
    update(|state| Ok(state.rest_of_block(address)))
}

#[cold]
pub(crate) fn named_operation(at: StreamNow, name: &str, touches: &[Touch<'_>]) {
    let (capture, info) = at;
    update_in_call(|state, frames| {
        let label = state.texts.label_of(name)?;
        state.operation(capture, info, Named { label, frames }, touches)
    });
}

#[cold]
pub(crate) fn collective(label: &'static str, members: &[(u64, StreamInfo, &[Touch<'_>])]) {
    let label = Label::Library(label);
    update_in_call(|state, frames| state.collective(Named { label, frames }, members));
}

#[cold]
pub(crate) fn event_recorded(at: StreamNow, event: u64) {
    let (capture, info) = at;
    update(|state| state.event_recorded(capture, event, info));
}

#[cold]
pub(crate) fn event_waited(at: StreamNow, event: u64) {
    let (capture, info) = at;
    update(|state| state.event_waited(capture, event, info));
}

#[cold]
pub(crate) fn event_outside(capture: u64, event: u64, records: bool) {
    update(|state| state.event_outside(capture, event, records));
}

#[cold]
pub(crate) fn event_gone(event: u64) {
    update(|state| {
        state.event_gone(event);
        Ok(())
    });
}

#[cold]
pub(crate) fn stream_waits(at: StreamNow, other: StreamInfo) {
    let (capture, info) = at;
    update(|state| state.stream_waits(capture, info, other));
}

#[cold]
pub(crate) fn waits_for_everything(at: StreamNow) {
    let (capture, info) = at;
    update(|state| state.waits_for_everything(capture, info));
}

#[cold]
pub(crate) fn point_of_stream(at: StreamNow) -> Option<Point> {
    let (capture, info) = at;
    if capture != 0 {
        return None;
    }
    update(|state| {
        let stamp = state.point_of_stream(info)?;
        Ok(stamp.map(|stamp| Point(stamp, state.generation)))
    })
}

#[cold]
pub(crate) fn point_of_work(at: StreamNow) -> Option<Point> {
    let (capture, info) = at;
    if capture != 0 {
        return None;
    }
    update(|state| {
        state.ready(0, &info)?;
        let stamp = state.point_of_stream(info)?;
        Ok(stamp.map(|stamp| Point(stamp, state.generation)))
    })
}

#[cold]
pub(crate) fn point_of_event(event: u64) -> Option<Point> {
    update(|state| Ok(state.point_of_event(event).map(|stamp| Point(stamp, state.generation))))
}

#[cold]
pub(crate) fn point_of_all(device: Option<i32>) -> Option<Point> {
    update(|state| {
        let stamp = state.point_of_all(device)?;
        Ok(Some(Point(stamp, state.generation)))
    })
}

#[cold]
pub(crate) fn reached(Point(stamp, generation): &Point) {
    if is_on() {
        update(|state| if *generation == state.generation { state.reached(stamp) } else { Ok(()) });
    }
}

#[cold]
pub(crate) fn allocated(at: StreamNow, ptr: u64, bytes: u64) {
    let (capture, info) = at;
    update_in_call(|state, frames| state.allocated(capture, (ptr, bytes), Some(info), frames));
}

#[cold]
pub(crate) fn pinned(ptr: u64, bytes: u64) {
    update_in_call(|state, frames| state.allocated(0, (ptr, bytes), None, frames));
}

#[cold]
pub(crate) fn freed(ptr: u64) {
    update(|state| state.freed(ptr));
}

#[cold]
pub(crate) fn used_on(ptr: u64, stream: u64) {
    update(|state| state.used_on(ptr, stream));
}

#[cold]
pub(crate) fn handed_over(ptr: u64, stream: StreamInfo) {
    update(|state| state.handed_over(ptr, stream));
}

#[cold]
pub(crate) fn capture_ended(capture: u64) -> Option<Recording> {
    update(|state| {
        let Some(recorded) = state.capture_ended(capture)? else { return Ok(None) };
        Ok(Some(Recording(Shared::new(recorded, "a recording")?, state.generation)))
    })
}

#[cold]
pub(crate) fn graph_launched(at: StreamNow, executable: u64, recording: Option<&Recording>) {
    let (capture, info) = at;
    update_in_call(|state, frames| {
        let known = recording.filter(|recording| recording.1 == state.generation);
        let recorded = known.map(|recording| &*recording.0);
        state.launched(capture, info, executable, frames, recorded)
    });
}

#[cold]
pub(crate) fn executable_gone(executable: u64) {
    update(|state| {
        state.executable_gone(executable);
        Ok(())
    });
}
