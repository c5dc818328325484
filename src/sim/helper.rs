//! The threads of an adversarial schedule: some run callbacks of the host, one runs work when the host
//! has forgotten it.
//!
//! Callbacks cannot run on the thread of a call: that may hold a lock of the host which the callback
//! wants. The call goes on when the callback is over, or when it sleeps, so that the run is the same
//! each time. A host may also wait for a callback, or for a word in pinned memory, without a call:
//! when none has come for a while, the watcher runs what is queued, one operation after the other.

use super::adversary::Adversary;
use super::lanes::{Callback, State};
use super::worker::{Bell, Worker};
use super::{Machine, code, lock, require, schedule};
use crate::sim::thread_state;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks at a callback that is not over.
const LOOK: Duration = Duration::from_micros(100);
/// A callback that computes for so many ticks (10 ms) is left alone.
const LONG: u64 = 10;
/// Work is forgotten when no call has come for so long.
const FORGOTTEN: Duration = Duration::from_millis(200);
/// Where another process may wait for it: a host that waits for that one makes no call either.
const AWAITED: Duration = Duration::from_millis(5);
/// Unless a thread is on its way and only slow to get there: then it is asked again.
const AGAIN: Duration = Duration::from_millis(10);
/// From then on, an operation runs this often until a call comes.
const STEP: Duration = Duration::from_millis(1);

/// The threads.
#[derive(Default)]
pub(super) struct Helpers {
    threads: Mutex<Vec<Worker>>,
    /// Is there one for callbacks?
    exists: Mutex<bool>,
    /// Those that have a callback, but are not inside the host's function: they are on their way,
    /// even where they sleep until a lock is free.
    on_the_way: AtomicUsize,
    /// There is work to watch over, or the machine goes off.
    pub(super) watch: Bell,
    /// Another process has events of this one, or the other way round.
    has_partners: AtomicBool,
}

impl Helpers {
    /// Events are shared with another process.
    pub(super) fn share_events(&self) {
        self.has_partners.store(true, Ordering::Relaxed);
    }

    fn patience(&self) -> Duration {
        if self.has_partners.load(Ordering::Relaxed) { AWAITED } else { FORGOTTEN }
    }
}

/// What a thread that runs callbacks is at.
pub(super) struct Helper {
    /// There is a callback to run, or the machine goes off.
    bell: Arc<Bell>,
    /// The thread, as the system knows it.
    id: i32,
    busy: bool,
    /// What it had used when it was first seen to compute.
    ticks: Option<u64>,
    /// It computes for long, and nobody waits for it any more.
    left_alone: bool,
}

impl Helper {
    fn new(id: i32, bell: &Arc<Bell>) -> Helper {
        Helper { bell: Arc::clone(bell), id, busy: false, ticks: None, left_alone: false }
    }

    /// Is it to be waited for before a call goes on?
    fn is_awaited(&mut self) -> bool {
        if !self.busy || self.left_alone {
            return false;
        }
        let Some(ticks) = thread_state::running(self.id) else { return false };
        self.left_alone = ticks - *self.ticks.get_or_insert(ticks) >= LONG;
        !self.left_alone
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
        self.turnstile.begin_nap();
        let thread = Worker::start(String::from(name), body);
        if thread.is_none() {
            self.turnstile.end_nap();
        }
        thread.map(|thread| lock(&self.helpers.threads).push(thread)).is_some()
    }

    /// Starts the watcher, if there is none.
    pub(super) fn start_watcher(&self, machine: &Arc<Machine>) {
        let mut state = lock(&self.state);
        if !state.watched {
            state.watched = self.start(machine, "sim watcher", Adversary::watch);
        }
    }

    /// A thread for callbacks must be there before one is queued: no other may run them.
    pub(super) fn require_helper(&self, machine: &Arc<Machine>) -> Result<(), i32> {
        let mut exists = lock(&self.helpers.exists);
        *exists = *exists || self.start(machine, "sim callbacks", Adversary::help);
        require(*exists, code::OUT_OF_MEMORY)
    }

    /// Runs the callback that is offered, until it is over or sleeps.
    pub(super) fn call_back<'a>(
        &'a self,
        machine: &Arc<Machine>,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        if !state.watched {
            state.watched = self.start(machine, "sim watcher", Adversary::watch);
        }
        if state.helpers.iter().all(|helper| helper.busy) {
            // Where there are no more threads it waits for the first.
            let _ = self.start(machine, "sim callbacks", Adversary::help);
        }
        if let Some(helper) = state.helpers.iter().find(|helper| !helper.busy) {
            helper.bell.ring();
        }
        self.settle(state)
    }

    /// Waits until every callback is over or sleeps.
    pub(super) fn settle<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let start = Instant::now();
        let mut looks = 0;
        self.turnstile.begin_nap();
        while state.callbacks > 0 && looks < 2 {
            let waited = self.progress.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if start.elapsed() > thread_state::LONGEST {
                state.helpers.iter_mut().for_each(|helper| helper.left_alone = helper.busy);
            }
            let awaited = state.offered.is_some()
                || self.helpers.on_the_way.load(Ordering::SeqCst) > 0
                || self.turnstile.undisturbed(|| state.helpers.iter_mut().any(Helper::is_awaited));
            looks = if awaited { 0 } else { looks + 1 };
        }
        self.turnstile.end_nap();
        state
    }

    /// Runs the callback that is offered, without the lock.
    fn take_up<'a>(
        &'a self,
        machine: &Arc<Machine>,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
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
        self.turnstile.stir();
        self.progress.notify_all();
        state
    }

    /// The body of a thread that runs callbacks.
    fn help(&self, machine: &Arc<Machine>) {
        // SAFETY: gettid has no preconditions.
        let id = unsafe { libc::gettid() };
        let bell = Arc::new(Bell::default());
        let mut state = lock(&self.state);
        let own = state.helpers.len();
        state.helpers.push(Helper::new(id, &bell));
        self.turnstile.end_nap();
        while !state.closed {
            if state.offered.is_some() {
                state.helpers[own].busy = true;
                state = self.take_up(machine, state);
                state.helpers[own] = Helper::new(id, &bell);
            } else {
                drop(state);
                self.turnstile.sleep(id, &bell, None);
                state = lock(&self.state);
            }
        }
    }

    /// The body of the watcher.
    fn watch(&self, machine: &Arc<Machine>) {
        // SAFETY: gettid has no preconditions.
        let id = unsafe { libc::gettid() };
        self.turnstile.end_nap();
        let mut state = lock(&self.state);
        let (mut calls, mut patience) = (state.calls, self.helpers.patience());
        while !state.closed {
            if !state.is_busy() {
                state.unwatched = true;
                drop(state);
                self.turnstile.sleep(id, &self.helpers.watch, None);
                state = lock(&self.state);
                continue;
            }
            drop(state);
            let start = Instant::now();
            self.turnstile.sleep(id, &self.helpers.watch, Some(patience));
            let timed_out = start.elapsed() >= patience;
            // Not under the lock, for which a thread that makes a call would seem to sleep.
            let quiet = if timed_out { self.turnstile.quiet(id) } else { None };
            state = lock(&self.state);
            let is_quiet = quiet.is_some_and(|stamp| self.turnstile.is_still(stamp));
            if state.calls != calls || self.turnstile.has_callers() {
                (calls, patience) = (state.calls, self.helpers.patience());
            } else if timed_out && !is_quiet {
                patience = patience.min(AGAIN);
            } else if timed_out && let Some(index) = state.any() {
                patience = STEP;
                state = self.step(machine, state, index);
                self.turnstile.stir();
                self.progress.notify_all();
            }
        }
    }

    /// Ends the threads; everything queued is over.
    pub(super) fn close(&self) {
        self.turnstile.close();
        let mut state = lock(&self.state);
        state.closed = true;
        state.helpers.iter().for_each(|helper| helper.bell.ring());
        drop(state);
        self.helpers.watch.ring();
        let threads = std::mem::take(&mut *lock(&self.helpers.threads));
        threads.into_iter().for_each(Worker::join);
    }
}
