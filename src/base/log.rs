//! The log: each line goes to the host's callback; before the host has set one, to `stderr`.

use crate::base::published::Published;
use crate::base::retired::Reclaimable;
use crate::base::stderr;
use crate::base::sync::{self, Ordering};
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
    static LISTENER: Published<Listener> = Published::new();
}

/// Has the host set a listener, or silence?
static IS_CHOSEN: AtomicBool = AtomicBool::new(false);

/// Sends lines to a listener, which replaces the previous one; `None`: silence.
pub fn set_listener(listener: Option<Box<Reclaimable<Listener>>>) {
    IS_CHOSEN.store(true, Ordering::Relaxed);
    LISTENER.set(listener);
}

/// Are lines of this level written? The caller is inside the library.
pub fn is_enabled(level: Level) -> bool {
    match LISTENER.get() {
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
    match LISTENER.get() {
        Some(listener) if level as i32 <= listener.level => listener.sink.take(level, line),
        None if goes_to_stderr(level, otherwise) => stderr::log(level as i32, line),
        _ => (),
    }
}
