//! Scheduling of threads by a backend. The system decides which thread runs next, unless a backend
//! has installed a scheduler, so that a run is repeatable: then each thread calls it at every call,
//! and where it waits for another thread.

use crate::observe::flags::{self, Watcher};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The functions of a thread scheduler.
pub struct Scheduler {
    /// A call begins; returns when it is this thread's turn.
    pub call: fn(),
    /// This thread cannot continue before another has made progress; returns when that may have
    /// happened. `false`: the thread is not scheduled, and has to wait by itself.
    pub yield_turn: fn() -> bool,
}

static SCHEDULER: AtomicPtr<Scheduler> = AtomicPtr::new(std::ptr::null_mut());

/// Installs a scheduler, or (`None`) leaves the order to the system again.
pub fn install(scheduler: Option<&'static Scheduler>) {
    let is_installed = scheduler.is_some();
    let scheduler = scheduler.map_or(std::ptr::null(), std::ptr::from_ref);
    let before = SCHEDULER.swap(scheduler.cast_mut(), Ordering::Release);
    flags::change(Watcher::Turns, !before.is_null(), is_installed);
}

#[inline]
fn scheduler() -> Option<&'static Scheduler> {
    // A relaxed load would be enough for constants, and costs the same here.
    let scheduler = SCHEDULER.load(Ordering::Acquire);
    // SAFETY: NULL, or from a reference that lives for ever.
    unsafe { scheduler.as_ref() }
}

/// Is a scheduler installed?
#[inline]
pub fn is_installed() -> bool {
    scheduler().is_some()
}

/// Calls the scheduler before a thread enters the library.
#[inline]
pub fn call() {
    if let Some(scheduler) = scheduler() {
        (scheduler.call)();
    }
}

/// Lets other threads run; `false`: no scheduler handles this thread.
#[inline]
pub fn yield_turn() -> bool {
    scheduler().is_some_and(|scheduler| (scheduler.yield_turn)())
}
