//! The log: each line goes to the host's callback; before the host has set one, to `stderr`.

use crate::base::retired::Reclaimable;
use crate::base::sync::{self, AtomicPtr, Ordering};
use crate::base::{stderr, thread, waiting};
use std::fmt;
use std::sync::atomic::AtomicBool;

/// The severity of a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(i32)]
pub enum Level {
    /// Something failed.
    Error = 1,
    /// Something is likely wrong.
    Warning = 2,
    /// Something rare happened.
    Info = 3,
    /// Details for debugging.
    Debug = 4,
}

/// A sink of log lines; called on any thread, with no lock held.
pub trait LogSink: Send + Sync {
    /// Receives one line, without its newline.
    fn take(&self, level: Level, line: fmt::Arguments<'_>);
}

/// A boxed sink.
pub type Sink = Box<dyn LogSink>;

/// A sink and its level. They are one object, so that while it is replaced no line is checked
/// against one level and sent to the sink of another.
pub struct Listener {
    /// The highest level whose lines it gets.
    pub level: i32,
    /// The sink.
    pub sink: Sink,
}

sync::state! {
    static LISTENER: AtomicPtr<Listener> = AtomicPtr::new(std::ptr::null_mut());
}

/// Has the host set a listener, or silence?
static IS_CHOSEN: AtomicBool = AtomicBool::new(false);

/// Sends lines to a listener, which replaces the previous one; `None`: silence.
pub fn set_listener(listener: Option<Box<Reclaimable<Listener>>>) {
    IS_CHOSEN.store(true, Ordering::Relaxed);
    let new = listener.map_or(std::ptr::null_mut(), Reclaimable::into_value);
    let old = LISTENER.swap(new, Ordering::AcqRel);
    if !old.is_null() {
        // SAFETY: from `into_value`, and no longer reachable; it is dropped after the threads that
        // use it.
        thread::retire(unsafe { Reclaimable::from_value(old) });
    }
}

/// Are lines of this level written? The caller is inside the library.
pub fn is_enabled(level: Level) -> bool {
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

/// Writes a warning of a tool that the host has turned on: it is shown even if no log is set up.
/// The caller is inside the library.
pub fn warn_as_asked(line: fmt::Arguments<'_>) {
    send(Level::Warning, Level::Warning as i32, line);
}

/// Below all levels.
const OFF: i32 = 0;

fn goes_to_stderr(level: Level, otherwise: i32) -> bool {
    !IS_CHOSEN.load(Ordering::Relaxed) && stderr::takes(level as i32, otherwise)
}

fn send(level: Level, otherwise: i32, line: fmt::Arguments<'_>) {
    waiting::assert_awake();
    let listener = LISTENER.load(Ordering::Acquire);
    // SAFETY: a replaced listener lives until the threads that were inside have left.
    match unsafe { listener.as_ref() } {
        Some(listener) if level as i32 <= listener.level => listener.sink.take(level, line),
        None if goes_to_stderr(level, otherwise) => stderr::log(level as i32, line),
        _ => (),
    }
}
