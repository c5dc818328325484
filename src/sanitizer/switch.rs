//! Turns the sanitizer on and off, and delivers frames and reports between it and the host.

use super::IS_ON;
use super::report::{DEFAULT_MAX_REPORTS, Report};
use super::state::State;
use super::text::TextBuffer;
use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::frames::Source;
use crate::base::lock::{Held, Mutex};
use crate::base::log;
use crate::base::published::Published;
use crate::base::rank::Rank;
use crate::base::text::Text;
use crate::base::thread;
use crate::base::waiting;
use crate::observe::flags::{self, Watcher};
use std::sync::atomic::{AtomicBool, Ordering};

static STATE: Mutex<State> = Mutex::new(Rank::LEAF, State::new());

/// The host's listener.
static LISTENER: Published<Box<dyn Listener>> = Published::new();

/// The host's functions for frames and reports. They are called with no lock held.
pub trait Listener: Source {
    /// Returns whether it captures frames.
    fn has_frames(&self) -> bool;
    /// Returns whether it takes reports; otherwise they are logged.
    fn takes_reports(&self) -> bool;
    /// Takes a report, on the thread of the later access.
    fn take(&self, report: &Report);
}

fn listener<'a>() -> Option<&'a dyn Listener> {
    LISTENER.get().map(|listener| &**listener)
}

/// Returns whether TCUDA_SANITIZER turns the sanitizer on.
pub(crate) fn is_wanted() -> Result<bool> {
    match environment::text(c"TCUDA_SANITIZER")? {
        "" | "0" => Ok(false),
        "1" => Ok(true),
        other => Err(Error::BadText {
            name: "TCUDA_SANITIZER",
            value: Text::new(other),
            allowed: "use 1, or 0 as when it is not set",
        }),
    }
}

/// The host has turned the sanitizer on or off since the last shutdown.
static IS_SET_BY_HOST: AtomicBool = AtomicBool::new(false);

/// At initialisation: turns the sanitizer on if the environment says so and the host has not
/// decided itself.
pub(crate) fn begin(is_wanted: bool) {
    if is_wanted && !IS_SET_BY_HOST.load(Ordering::Relaxed) {
        start(DEFAULT_MAX_REPORTS);
    }
}

/// Turns the sanitizer on, or restarts it. `most` reports are kept; 0: the default number.
pub fn enable(listener: Option<Box<dyn Listener>>, most: usize) -> Result<()> {
    let boxed = |listener| thread::reclaimable(listener, "the stream sanitizer");
    let new = listener.map(boxed).transpose()?;
    new.iter().for_each(|listener| listener.is_taken());
    IS_SET_BY_HOST.store(true, Ordering::Relaxed);
    LISTENER.set(new);
    start(if most == 0 { DEFAULT_MAX_REPORTS } else { most });
    thread::collect();
    Ok(())
}

fn start(most: usize) {
    let mut state = STATE.lock();
    state.start_anew();
    state.reports.start_anew(most);
    (state.lost, state.unchecked, state.is_loss_logged) = (0, 0, false);
    if !state.is_on {
        state.is_on = true;
        flags::begin(Watcher::Sanitizer);
    }
    IS_ON.store(true, Ordering::Release);
}

/// Turns the sanitizer off and drops its reports.
pub fn disable() {
    IS_SET_BY_HOST.store(true, Ordering::Relaxed);
    stop();
    thread::collect();
}

/// Turns the sanitizer off, at the beginning of a shutdown.
pub(crate) fn stop() {
    IS_ON.store(false, Ordering::Relaxed);
    let mut state = STATE.lock();
    if state.is_on {
        state.is_on = false;
        flags::end(Watcher::Sanitizer);
    }
    state.start_anew();
    state.reports.start_anew(DEFAULT_MAX_REPORTS);
    drop(state);
    LISTENER.set(None);
}

/// Resets everything, at the end of a shutdown: no stream is valid any more.
pub(crate) fn forget() {
    IS_SET_BY_HOST.store(false, Ordering::Relaxed);
    let mut state = STATE.lock();
    let generation = state.generation + 1;
    let is_on = state.is_on;
    let old = std::mem::replace(&mut *state, State::new());
    (state.generation, state.is_on) = (generation, is_on);
    drop(state);
    drop(old);
}

/// Turns the sanitizer off in the child of a fork.
pub(crate) fn in_child() {
    IS_ON.store(false, Ordering::Relaxed);
}

/// Changes the state if the sanitizer is on. Without host memory everything is forgotten: an order
/// that could not be recorded concerns only forgotten accesses.
pub(super) fn with<R: Default>(change: impl FnOnce(&mut State) -> Result<R>) -> R {
    let mut state = STATE.lock();
    if !state.is_on {
        return R::default();
    }
    match change(&mut state) {
        Ok(outcome) => outcome,
        Err(_) => {
            forget_all(state);
            R::default()
        }
    }
}

/// Notes that an operation could not be recorded, and forgets everything.
pub fn note_loss() {
    forget_all(STATE.lock());
}

fn forget_all(mut state: Held<'_, State>) {
    state.start_anew();
    state.lost += 1;
}

/// Returns whether the host captures frames.
#[inline]
pub(super) fn has_frames() -> bool {
    listener().is_some_and(|listener| listener.has_frames())
}

/// Captures the host's frames. Returns their number and the lower half of the library's generation;
/// they stay pinned until [`unpin`].
pub(super) fn frames() -> (u32, u32) {
    let Some(source) = listener().filter(|listener| listener.has_frames()) else { return (0, 0) };
    let mut pinned = (0, 0);
    let _waiting = waiting::in_host_function();
    source.capture(&mut |named| {
        let mut state = STATE.lock();
        pinned = (state.keep_frames(named), state.generation as u32);
    });
    pinned
}

/// Unpins frames of [`frames`].
pub(super) fn unpin((frames, generation): (u32, u32)) {
    if frames != 0 {
        let mut state = STATE.lock();
        if state.generation as u32 == generation {
            state.stacks.unpin(frames);
        }
    }
}

/// Delivers the reports that are pending for this thread.
pub(super) fn deliver() {
    let takes = listener().filter(|listener| listener.takes_reports());
    loop {
        let taken = {
            let state = &mut *STATE.lock();
            state.reports.take(&state.texts, takes.is_none())
        };
        match (taken, takes) {
            (None, _) => return log_loss_once(),
            (Some((report, _)), Some(takes)) => {
                let _waiting = waiting::in_host_function();
                takes.take(&report);
            }
            (Some((_, TextBuffer(text))), None) => {
                for line in text.lines() {
                    log::warn_as_asked(format_args!("{line}"));
                }
            }
        }
    }
}

/// Logs once that accesses were not checked.
fn log_loss_once() {
    let mut state = STATE.lock();
    let (lost, unchecked) = (state.lost, state.unchecked);
    let is_loss_logged = std::mem::replace(&mut state.is_loss_logged, lost + unchecked > 0);
    drop(state);
    if is_loss_logged || lost + unchecked == 0 {
        return;
    }
    let what = match lost > 0 {
        true => "found no host memory, or could not query a stream, and starts over",
        false => "does not know all bytes of an access, which is left out",
    };
    log::warn_as_asked(format_args!("the stream sanitizer {what}"));
}

/// Returns the number of reports so far.
pub fn count() -> usize {
    STATE.lock().reports.count
}

fn no_report(index: usize) -> Error {
    Error::OutOfRange {
        name: "index",
        value: i64::try_from(index).unwrap_or(i64::MAX),
        allowed: "it must be below tcuda_sanitizer_report_count, and below max_reports",
    }
}

/// Returns a stored report; 0 is the oldest.
pub fn report(index: usize) -> Result<Report> {
    let state = STATE.lock();
    state.reports.get(index).ok_or_else(|| no_report(index))
}

/// Returns the text of a stored report.
pub fn report_text(index: usize) -> Result<String> {
    let state = STATE.lock();
    match state.reports.text(index, &state.texts) {
        Some(text) => text.map(|TextBuffer(text)| text),
        None => Err(no_report(index)),
    }
}
