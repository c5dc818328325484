//! The threads of an adversarial schedule: callback threads, and the watcher, which runs queued
//! work while the host makes no calls. What they do is in [`adversary`](super::adversary).

use super::thread_state;
use super::worker::{Parker, Worker};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A callback that computes for more ticks than this (10 ms each) is no longer waited for.
const LONG_TICKS: u64 = 10;
/// Time without a call after which the watcher runs queued work.
const QUIET_TIME: Duration = Duration::from_millis(200);
/// The same time if events are shared: the host may make no call because it waits for another
/// process, which waits for this work.
const SHARED_QUIET_TIME: Duration = Duration::from_millis(5);

/// The helper threads of a schedule.
#[derive(Default)]
pub(super) struct Helpers {
    pub(super) threads: Mutex<Vec<Worker>>,
    /// True if a callback thread exists.
    pub(super) exists: Mutex<bool>,
    /// Number of callback threads that have taken a callback and are not yet inside the host's
    /// function. They count as on their way even if they sleep until a lock is free.
    pub(super) on_the_way: AtomicUsize,
    /// Wakes the watcher: there is queued work, or the machine is powered off.
    pub(super) watch: Parker,
    /// True if events are shared with another process, in either direction.
    has_shared_events: AtomicBool,
}

impl Helpers {
    /// Notes that events are shared with another process.
    pub(super) fn share_events(&self) {
        self.has_shared_events.store(true, Ordering::Relaxed);
    }

    pub(super) fn quiet_time(&self) -> Duration {
        if self.has_shared_events.load(Ordering::Relaxed) { SHARED_QUIET_TIME } else { QUIET_TIME }
    }
}

/// The state of a callback thread.
pub(super) struct Helper {
    /// Wakes the thread: there is a callback, or the machine is powered off.
    pub(super) parker: Arc<Parker>,
    /// The system's thread id.
    id: i32,
    pub(super) busy: bool,
    /// CPU ticks it had used when it was first seen running.
    ticks: Option<u64>,
    /// True if it has computed too long; calls no longer wait for it.
    pub(super) is_ignored: bool,
}

impl Helper {
    pub(super) fn new(id: i32, parker: &Arc<Parker>) -> Helper {
        Helper { parker: Arc::clone(parker), id, busy: false, ticks: None, is_ignored: false }
    }

    /// True if a call must wait for it before continuing.
    pub(super) fn is_awaited(&mut self) -> bool {
        if !self.busy || self.is_ignored {
            return false;
        }
        let Some(ticks) = thread_state::running(self.id) else { return false };
        self.is_ignored = ticks - *self.ticks.get_or_insert(ticks) >= LONG_TICKS;
        !self.is_ignored
    }
}
