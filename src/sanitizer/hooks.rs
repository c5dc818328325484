//! Translates the calls of the rest of the library into changes of the state. Streams and captures
//! become numbers; host functions are called with no lock held.

use super::clock::Stamp;
use super::domain::{Kind, StreamInfo};
use super::recording::Recorded;
use super::state::{Named, State};
use super::switch::{self, with};
use super::text::Label;
use super::{Touch, is_on};
use crate::base::error::Result;
use crate::base::shared::Shared;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{Order, Stream};
use crate::graph::active_captures;
use crate::memory::pools::route;
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

/// State of a thread for its current and last call.
struct ThreadState {
    depth: Cell<u32>,
    /// The frames of this call were captured, before it took locks.
    has_captured_frames: Cell<bool>,
    frames: Cell<u32>,
    /// The frames of the thread's last call, which are pinned, and the library's generation that
    /// knows them.
    pinned: Cell<(u32, u64)>,
    has_reports: Cell<bool>,
}

thread_local! {
    static THREAD_STATE: ThreadState = const {
        ThreadState {
            depth: Cell::new(0),
            has_captured_frames: Cell::new(false),
            frames: Cell::new(0),
            pinned: Cell::new((0, 0)),
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
        self.has_captured_frames.set(false);
        self.frames.set(0);
        if self.has_reports.replace(false) {
            switch::deliver();
        }
    }

    /// Captures the host's frames, once per call.
    fn capture_frames(&self) {
        if !self.has_captured_frames.replace(true) {
            // Calls that the host's frame function makes get no frames.
            self.frames.set(0);
            let pinned = switch::frames();
            self.frames.set(pinned.0);
            switch::unpin(self.pinned.replace(pinned));
        }
    }
}

/// Releases the frames of a thread that exits.
pub(crate) fn leave() {
    THREAD_STATE.with(|thread| switch::unpin(thread.pinned.replace((0, 0))));
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
    let frames = if has_frames { THREAD_STATE.with(|thread| thread.frames.get()) } else { 0 };
    let ((), has_reports) = change(|state| body(state, frames));
    if has_reports {
        let _call = THREAD_STATE.with(ThreadState::enter);
        THREAD_STATE.with(|thread| thread.has_reports.set(true));
    }
    drop(call);
}

/// Resolves a stream on the calling thread. Returns the number of its capture, or 0, and its
/// properties.
fn resolve<'a>(gpus: &'a Gpus, stream: &'a Stream) -> Option<(u64, StreamInfo)> {
    let stream = stream.on_this_thread(gpus).unwrap_or(stream);
    match capture(gpus, stream) {
        Ok(number) => Some((number, info_of(gpus, stream, number != 0))),
        Err(_) => {
            // The capture is unknown, so the operation cannot be recorded.
            switch::note_loss();
            None
        }
    }
}

/// As [`resolve`], for an allocation: the driver is queried for a capture only when the allocator
/// does so.
fn resolve_for_allocation<'a>(gpus: &'a Gpus, stream: &'a Stream) -> Option<(u64, StreamInfo)> {
    if gpus.has_captures() || route::is_routed() {
        return resolve(gpus, stream);
    }
    let stream = stream.on_this_thread(gpus).unwrap_or(stream);
    Some((0, info_of(gpus, stream, false)))
}

fn capture(gpus: &Gpus, stream: &Stream) -> Result<u64> {
    if stream.is_default() {
        // The default stream cannot be captured.
        return Ok(0);
    }
    let _context = stream.enter(gpus)?;
    Ok(active_captures::capture_of(gpus, stream.native())?.unwrap_or(0))
}

fn key(stream: &Stream) -> u64 {
    stream.serial
}

fn info_of(gpus: &Gpus, stream: &Stream, is_captured: bool) -> StreamInfo {
    let kind = match () {
        () if stream.is_default() => Kind::Legacy,
        () if stream.is_per_thread() => Kind::Blocking,
        () if !stream.is_external() => Kind::NonBlocking,
        // The kind is not used for captured streams.
        () if is_captured => Kind::NonBlocking,
        () => kind_of_external(gpus, stream),
    };
    StreamInfo { key: key(stream), id: stream.id(), device: stream.device(), kind }
}

fn kind_of_external(gpus: &Gpus, stream: &Stream) -> Kind {
    match stream.order(gpus) {
        Ok(Order::Free) => Kind::NonBlocking,
        Ok(Order::Blocking) => Kind::Blocking,
        // Unknown: too much order causes no false report.
        Err(_) => Kind::Blocking,
    }
}

#[cold]
pub(super) fn operation(gpus: &Gpus, stream: &Stream, label: &'static str, touches: &[Touch<'_>]) {
    let Some((capture, info)) = resolve(gpus, stream) else { return };
    let label = Label::Library(label);
    update_in_call(|state, frames| {
        state.operation(capture, info, Named { label, frames }, touches)
    });
}

#[cold]
pub(super) fn rest_of_block(address: u64) -> u64 {
    update(|state| Ok(state.rest_of_block(address)))
}

#[cold]
pub(super) fn named_operation(gpus: &Gpus, stream: &Stream, name: &str, touches: &[Touch<'_>]) {
    let Some((capture, info)) = resolve(gpus, stream) else { return };
    update_in_call(|state, frames| {
        let label = state.texts.label_of(name)?;
        state.operation(capture, info, Named { label, frames }, touches)
    });
}

#[cold]
pub(super) fn collective(gpus: &Gpus, label: &'static str, members: &[(&Stream, &[Touch<'_>])]) {
    let mut list = Vec::new();
    if list.try_reserve_exact(members.len()).is_err() {
        return switch::note_loss();
    }
    for (stream, touches) in members {
        let Some((capture, info)) = resolve(gpus, stream) else { return };
        list.push((capture, info, *touches));
    }
    let label = Label::Library(label);
    update_in_call(|state, frames| state.collective(Named { label, frames }, &list));
}

#[cold]
pub(super) fn event_recorded(gpus: &Gpus, event: u64, stream: &Stream) {
    if let Some((capture, info)) = resolve(gpus, stream) {
        update(|state| state.event_recorded(capture, event, info));
    }
}

#[cold]
pub(super) fn event_waited(gpus: &Gpus, event: u64, stream: &Stream) {
    if let Some((capture, info)) = resolve(gpus, stream) {
        update(|state| state.event_waited(capture, event, info));
    }
}

#[cold]
pub(super) fn event_outside(gpus: &Gpus, event: u64, stream: &Stream, records: bool) {
    if let Some((capture, _)) = resolve(gpus, stream) {
        update(|state| state.event_outside(capture, event, records));
    }
}

#[cold]
pub(super) fn event_gone(event: u64) {
    update(|state| {
        state.event_gone(event);
        Ok(())
    });
}

#[cold]
pub(super) fn stream_waits(gpus: &Gpus, stream: &Stream, other: &Stream) {
    let (Some((capture, info)), Some((_, other))) = (resolve(gpus, stream), resolve(gpus, other))
    else {
        return;
    };
    update(|state| state.stream_waits(capture, info, other));
}

#[cold]
pub(super) fn waits_for_everything(gpus: &Gpus, stream: &Stream) {
    if let Some((capture, info)) = resolve(gpus, stream) {
        update(|state| state.waits_for_everything(capture, info));
    }
}

#[cold]
pub(super) fn point_of_stream(gpus: &Gpus, stream: &Stream) -> Option<Point> {
    let (capture, info) = resolve(gpus, stream)?;
    if capture != 0 {
        return None;
    }
    update(|state| {
        let stamp = state.point_of_stream(info)?;
        Ok(stamp.map(|stamp| Point(stamp, state.generation)))
    })
}

#[cold]
pub(super) fn point_of_work(gpus: &Gpus, stream: &Stream) -> Option<Point> {
    let (capture, info) = resolve(gpus, stream)?;
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
pub(super) fn point_of_event(event: u64) -> Option<Point> {
    update(|state| Ok(state.point_of_event(event).map(|stamp| Point(stamp, state.generation))))
}

#[cold]
pub(super) fn point_of_all(device: Option<i32>) -> Option<Point> {
    update(|state| {
        let stamp = state.point_of_all(device)?;
        Ok(Some(Point(stamp, state.generation)))
    })
}

#[cold]
pub(super) fn reached(Point(stamp, generation): &Point) {
    if is_on() {
        update(|state| if *generation == state.generation { state.reached(stamp) } else { Ok(()) });
    }
}

#[cold]
pub(super) fn allocated(gpus: &Gpus, ptr: u64, bytes: u64, stream: &Stream) {
    let Some((capture, info)) = resolve_for_allocation(gpus, stream) else { return };
    update_in_call(|state, frames| state.allocated(capture, (ptr, bytes), Some(info), frames));
}

pub(super) fn allocated_uncaptured(ptr: u64, bytes: u64, stream: &Stream) {
    let kind = if stream.is_default() { Kind::Legacy } else { Kind::NonBlocking };
    let info = StreamInfo { key: key(stream), id: stream.id(), device: stream.device(), kind };
    update_in_call(|state, frames| state.allocated(0, (ptr, bytes), Some(info), frames));
}

#[cold]
pub(super) fn pinned(ptr: u64, bytes: u64) {
    update_in_call(|state, frames| state.allocated(0, (ptr, bytes), None, frames));
}

#[cold]
pub(super) fn freed(ptr: u64) {
    update(|state| state.freed(ptr));
}

#[cold]
pub(super) fn used_on(ptr: u64, stream: &Stream) {
    update(|state| state.used_on(ptr, key(stream)));
}

#[cold]
pub(super) fn capture_number(gpus: &Gpus, stream: &Stream) -> Option<u64> {
    resolve(gpus, stream).map(|(capture, _)| capture).filter(|capture| *capture != 0)
}

#[cold]
pub(super) fn capture_ended(capture: u64) -> Option<Recording> {
    update(|state| {
        let Some(recorded) = state.capture_ended(capture)? else { return Ok(None) };
        Ok(Some(Recording(Shared::new(recorded, "a recording")?, state.generation)))
    })
}

#[cold]
pub(super) fn graph_launched(
    gpus: &Gpus,
    stream: &Stream,
    executable: u64,
    recording: Option<&Recording>,
) {
    let Some((capture, info)) = resolve(gpus, stream) else { return };
    update_in_call(|state, frames| {
        let known = recording.filter(|recording| recording.1 == state.generation);
        let recorded = known.map(|recording| &*recording.0);
        state.launched(capture, info, executable, frames, recorded)
    });
}

#[cold]
pub(super) fn executable_gone(executable: u64) {
    update(|state| {
        state.executable_gone(executable);
        Ok(())
    });
}
