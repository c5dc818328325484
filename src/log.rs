//! The log: one line at a time to whoever asked for it; silence by default.

use crate::thread;
use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

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

static LEVEL: AtomicI32 = AtomicI32::new(0);
static SINK: AtomicPtr<Sink> = AtomicPtr::new(std::ptr::null_mut());

/// Sends lines up to a level to a sink, which replaces the last; `None`: silence.
pub fn set_sink(level: i32, sink: Option<Box<Sink>>) {
    let level = if sink.is_some() { level } else { 0 };
    let new = sink.map_or(std::ptr::null_mut(), Box::into_raw);
    LEVEL.store(0, Ordering::Release);
    let old = SINK.swap(new, Ordering::AcqRel);
    LEVEL.store(level, Ordering::Release);
    if !old.is_null() {
        // SAFETY: from Box::into_raw, and no longer reachable; threads that use it are waited for.
        thread::retire(unsafe { Box::from_raw(old) });
    }
}

/// Writes a line; the caller is inside the library.
pub fn write(level: Level, line: fmt::Arguments<'_>) {
    if level as i32 > LEVEL.load(Ordering::Acquire) {
        return;
    }
    let sink = SINK.load(Ordering::Acquire);
    // SAFETY: a sink that was replaced lives until the threads that were inside have left.
    if let Some(sink) = unsafe { sink.as_ref() } {
        sink.take(level, line);
    }
}
