//! Scheduling of threads by a backend. The system decides which thread runs next, unless a backend
//! has installed a scheduler, so that a run is repeatable: then each thread calls it at every call,
//! and where it waits for another thread.

use crate::observe::flags::{self, Watcher};
use crate::observe::table::Table;

/// The functions of a thread scheduler.
pub struct Scheduler {
    /// A call begins; returns when it is this thread's turn.
    pub call: fn(),
    /// This thread cannot continue before another has made progress; returns when that may have
    /// happened. `false`: the thread is not scheduled, and has to wait by itself.
    pub yield_turn: fn() -> bool,
}

static SCHEDULER: Table<Scheduler> = Table::new();

/// Installs a scheduler, or (`None`) leaves the order to the system again.
pub fn install(scheduler: Option<&'static Scheduler>) {
    let is_installed = scheduler.is_some();
    let was_installed = SCHEDULER.install(scheduler);
    flags::change(Watcher::Turns, was_installed, is_installed);
}

/// Is a scheduler installed?
#[inline]
pub fn is_installed() -> bool {
    SCHEDULER.get().is_some()
}

/// Calls the scheduler before a thread enters the library.
#[inline]
pub fn call() {
    if let Some(scheduler) = SCHEDULER.get() {
        (scheduler.call)();
    }
}

/// Lets other threads run; `false`: no scheduler handles this thread.
#[inline]
pub fn yield_turn() -> bool {
    SCHEDULER.get().is_some_and(|scheduler| (scheduler.yield_turn)())
}
