//! The log: one line at a time to the host's function; before the host has chosen one, to `stderr`.

use crate::base::retired::Reclaimable;
use crate::base::sync::{self, AtomicPtr, Ordering};
use crate::base::{stderr, thread, waiting};
use std::fmt;
use std::sync::atomic::AtomicBool;

/// How much it matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(i32)]
pub enum Level {
    /// Something failed.
    Error = 1,
    /// Something is likely wrong.
    Warning = 2,
    /// Something rare happened.
    Info = 3,
    /// For those who look for a fault.
    Debug = 4,
}

/// Takes lines: any thread, no lock held.
pub trait TakesLines: Send + Sync {
    /// One line, without its newline.
    fn take(&self, level: Level, line: fmt::Arguments<'_>);
}

/// Where lines go.
pub type Sink = Box<dyn TakesLines>;

/// A sink with the level up to which it gets lines: one object, so that no line of one level goes to
/// the sink of another while it is replaced.
pub struct Listener {
    /// The highest level.
    pub level: i32,
    /// Where its lines go.
    pub sink: Sink,
}

sync::state! {
    static LISTENER: AtomicPtr<Listener> = AtomicPtr::new(std::ptr::null_mut());
}

/// Has the host chosen where lines go, be it nowhere?
static IS_CHOSEN: AtomicBool = AtomicBool::new(false);

/// Sends lines to a listener, which replaces the last; `None`: silence.
pub fn set_listener(listener: Option<Box<Reclaimable<Listener>>>) {
    IS_CHOSEN.store(true, Ordering::Relaxed);
    let new = listener.map_or(std::ptr::null_mut(), Reclaimable::into_value);
    let old = LISTENER.swap(new, Ordering::AcqRel);
    if !old.is_null() {
        // SAFETY: from `into_value`, and no longer reachable; threads that use it are waited for.
        thread::retire(unsafe { Reclaimable::from_value(old) });
    }
}

/// Does anybody get lines of this level? The caller is inside the library.
pub fn is_heard(level: Level) -> bool {
    waiting::assert_awake();
    let listener = LISTENER.load(Ordering::Acquire);
    // SAFETY: as in `send`.
    match unsafe { listener.as_ref() } {
        Some(listener) => level as i32 <= listener.level,
        None => goes_to_stderr(level, OFF),
    }
}

/// Writes a line; the caller is inside the library.
pub fn write(level: Level, line: fmt::Arguments<'_>) {
    send(level, OFF, line);
}

/// Writes a warning that the host has asked for, by turning on what finds it: it needs no more to be
/// seen. The caller is inside the library.
pub fn warn_as_asked(line: fmt::Arguments<'_>) {
    send(Level::Warning, Level::Warning as i32, line);
}

/// No level.
const OFF: i32 = 0;

fn goes_to_stderr(level: Level, otherwise: i32) -> bool {
    !IS_CHOSEN.load(Ordering::Relaxed) && stderr::takes(level as i32, otherwise)
}

fn send(level: Level, otherwise: i32, line: fmt::Arguments<'_>) {
    waiting::assert_awake();
    let listener = LISTENER.load(Ordering::Acquire);
    // SAFETY: one that was replaced lives until the threads that were inside have left.
    match unsafe { listener.as_ref() } {
        Some(listener) if level as i32 <= listener.level => listener.sink.take(level, line),
        None if goes_to_stderr(level, otherwise) => stderr::log(level as i32, line),
        _ => (),
    }
}
