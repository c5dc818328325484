//! The threads of an adversarial schedule: callback threads, and the watcher, which runs queued
//! work while the host makes no calls.
//!
//! Callbacks cannot run on the thread of a call, which may hold a lock of the host that the
//! callback takes. The call continues when the callback has finished or sleeps, so runs are
//! reproducible. A host may also wait for a callback, or for a word in pinned memory, without
//! making a call. If no call comes for a while, the watcher runs queued operations one by one.

use super::adversary::Adversary;
use super::arguments::require;
use super::lanes::{Callback, ScheduleState};
use super::sync::lock;
use super::worker::{Parker, Worker};
use super::{Machine, schedule};
use crate::driver::code;
use crate::sim::thread_state;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval between two checks of an unfinished callback.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);
/// A callback that computes for more ticks than this (10 ms each) is no longer waited for.
const LONG_TICKS: u64 = 10;
/// Time without a call after which the watcher runs queued work.
const QUIET_TIME: Duration = Duration::from_millis(200);
/// The same time if events are shared: the host may make no call because it waits for another
/// process, which waits for this work.
const SHARED_QUIET_TIME: Duration = Duration::from_millis(5);
/// The same time after a check that found a thread still running.
const RECHECK_TIME: Duration = Duration::from_millis(10);
/// Interval at which the watcher then runs one operation, until a call comes.
const STEP_INTERVAL: Duration = Duration::from_millis(1);

/// The helper threads of a machine.
#[derive(Default)]
pub(super) struct Helpers {
    threads: Mutex<Vec<Worker>>,
    /// True if a callback thread exists.
    exists: Mutex<bool>,
    /// Number of callback threads that have taken a callback and are not yet inside the host's
    /// function. They count as on their way even if they sleep until a lock is free.
    on_the_way: AtomicUsize,
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

    fn quiet_time(&self) -> Duration {
        if self.has_shared_events.load(Ordering::Relaxed) { SHARED_QUIET_TIME } else { QUIET_TIME }
    }
}

/// The state of a callback thread.
pub(super) struct Helper {
    /// Wakes the thread: there is a callback, or the machine is powered off.
    parker: Arc<Parker>,
    /// The system's thread id.
    id: i32,
    busy: bool,
    /// CPU ticks it had used when it was first seen running.
    ticks: Option<u64>,
    /// True if it has computed too long; calls no longer wait for it.
    is_ignored: bool,
}

impl Helper {
    fn new(id: i32, parker: &Arc<Parker>) -> Helper {
        Helper { parker: Arc::clone(parker), id, busy: false, ticks: None, is_ignored: false }
    }

    /// True if a call must wait for it before continuing.
    fn is_awaited(&mut self) -> bool {
        if !self.busy || self.is_ignored {
            return false;
        }
        let Some(ticks) = thread_state::running(self.id) else { return false };
        self.is_ignored = ticks - *self.ticks.get_or_insert(ticks) >= LONG_TICKS;
        !self.is_ignored
    }
}

impl Adversary {
    fn start(
        &self,
        machine: &Arc<Machine>,
        name: &str,
        body: fn(&Adversary, &Arc<Machine>),
    ) -> bool {
        let machine = Arc::clone(machine);
        let body = move || body(&machine.adversary, &machine);
        self.scheduler.begin_short_sleep();
        let thread = Worker::start(String::from(name), body);
        if thread.is_none() {
            self.scheduler.end_short_sleep();
        }
        thread.map(|thread| lock(&self.helpers.threads).push(thread)).is_some()
    }

    /// Starts the watcher if there is none.
    pub(super) fn start_watcher(&self, machine: &Arc<Machine>) {
        let mut state = lock(&self.state);
        if !state.watched {
            state.watched = self.start(machine, "sim watcher", Adversary::watch);
        }
    }

    /// Starts a callback thread if there is none. It must exist before a callback is queued, since
    /// no other thread may run one.
    pub(super) fn require_helper(&self, machine: &Arc<Machine>) -> Result<(), i32> {
        let mut exists = lock(&self.helpers.exists);
        *exists = *exists || self.start(machine, "sim callbacks", Adversary::help);
        require(*exists, code::OUT_OF_MEMORY)
    }

    /// Has a callback thread run the offered callback; returns when the callback has finished or
    /// sleeps.
    pub(super) fn run_offered_callback<'a>(
        &'a self,
        machine: &Arc<Machine>,
        mut state: MutexGuard<'a, ScheduleState>,
    ) -> MutexGuard<'a, ScheduleState> {
        if !state.watched {
            state.watched = self.start(machine, "sim watcher", Adversary::watch);
        }
        if state.helpers.iter().all(|helper| helper.busy) {
            // If no further thread can be started, the callback waits for an existing one.
            let _ = self.start(machine, "sim callbacks", Adversary::help);
        }
        if let Some(helper) = state.helpers.iter().find(|helper| !helper.busy) {
            helper.parker.unpark();
        }
        self.settle(state)
    }

    /// Waits until every callback has finished or sleeps.
    pub(super) fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, ScheduleState>,
    ) -> MutexGuard<'a, ScheduleState> {
        let start = Instant::now();
        let mut idle_checks = 0;
        self.scheduler.begin_short_sleep();
        while state.callbacks > 0 && idle_checks < 2 {
            let waited = self.progress.wait_timeout(state, CHECK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if start.elapsed() > thread_state::LONGEST {
                state.helpers.iter_mut().for_each(|helper| helper.is_ignored = helper.busy);
            }
            let awaited = state.offered.is_some()
                || self.helpers.on_the_way.load(Ordering::SeqCst) > 0
                || self
                    .scheduler
                    .with_scheduler_locked(|| state.helpers.iter_mut().any(Helper::is_awaited));
            idle_checks = if awaited { 0 } else { idle_checks + 1 };
        }
        self.scheduler.end_short_sleep();
        state
    }

    /// Runs the callback that is offered, without the lock.
    fn run_callback<'a>(
        &'a self,
        machine: &Arc<Machine>,
        mut state: MutexGuard<'a, ScheduleState>,
    ) -> MutexGuard<'a, ScheduleState> {
        let Some(Callback { lane, stream, action }) = state.offered.take() else { return state };
        self.helpers.on_the_way.fetch_add(1, Ordering::SeqCst);
        drop(state);
        self.helpers.on_the_way.fetch_sub(1, Ordering::SeqCst);
        schedule::run(machine, &stream, action);
        self.helpers.on_the_way.fetch_add(1, Ordering::SeqCst);
        state = lock(&self.state);
        self.helpers.on_the_way.fetch_sub(1, Ordering::SeqCst);
        state.callbacks -= 1;
        state.finish(lane);
        self.scheduler.note_activity();
        self.progress.notify_all();
        state
    }

    /// The body of a callback thread.
    fn help(&self, machine: &Arc<Machine>) {
        // SAFETY: gettid has no preconditions.
        let id = unsafe { libc::gettid() };
        let parker = Arc::new(Parker::default());
        let mut state = lock(&self.state);
        let own = state.helpers.len();
        state.helpers.push(Helper::new(id, &parker));
        self.scheduler.end_short_sleep();
        while !state.closed {
            if state.offered.is_some() {
                state.helpers[own].busy = true;
                state = self.run_callback(machine, state);
                state.helpers[own] = Helper::new(id, &parker);
            } else {
                drop(state);
                self.scheduler.park(id, &parker, None);
                state = lock(&self.state);
            }
        }
    }

    /// The body of the watcher.
    fn watch(&self, machine: &Arc<Machine>) {
        // SAFETY: gettid has no preconditions.
        let id = unsafe { libc::gettid() };
        self.scheduler.end_short_sleep();
        let mut state = lock(&self.state);
        let (mut calls, mut quiet_time) = (state.calls, self.helpers.quiet_time());
        while !state.closed {
            if !state.is_busy() {
                state.unwatched = true;
                drop(state);
                self.scheduler.park(id, &self.helpers.watch, None);
                state = lock(&self.state);
                continue;
            }
            drop(state);
            let start = Instant::now();
            self.scheduler.park(id, &self.helpers.watch, Some(quiet_time));
            let timed_out = start.elapsed() >= quiet_time;
            // Not under the lock: a calling thread that waits for it would look asleep.
            let quiet = if timed_out { self.scheduler.quiet_stamp(id) } else { None };
            state = lock(&self.state);
            let is_quiet = quiet.is_some_and(|stamp| self.scheduler.is_unchanged(stamp));
            if state.calls != calls || self.scheduler.has_callers() {
                (calls, quiet_time) = (state.calls, self.helpers.quiet_time());
            } else if timed_out && !is_quiet {
                quiet_time = quiet_time.min(RECHECK_TIME);
            } else if timed_out && let Some(index) = state.any() {
                quiet_time = STEP_INTERVAL;
                state = self.step(machine, state, index);
                self.scheduler.note_activity();
                self.progress.notify_all();
            }
        }
    }

    /// Ends the threads, after all queued work has finished.
    pub(super) fn close(&self) {
        self.scheduler.close();
        let mut state = lock(&self.state);
        state.closed = true;
        state.helpers.iter().for_each(|helper| helper.parker.unpark());
        drop(state);
        self.helpers.watch.unpark();
        let threads = std::mem::take(&mut *lock(&self.helpers.threads));
        threads.into_iter().for_each(Worker::join);
    }
}
