//! The threads of an adversarial schedule: some run callbacks of the host, one runs work when the host
//! has forgotten it.
//!
//! Callbacks cannot run on the thread of a call: that may hold a lock of the host which the callback
//! wants. The call goes on when the callback is over, or when it sleeps, so that the run is the same
//! each time. A host may also wait for a callback, or for a word in pinned memory, without a call:
//! when none has come for a while, the watcher runs what is queued, one operation after the other.

use super::adversary::Adversary;
use super::lanes::{Callback, State};
use super::{Machine, code, lock, require, schedule};
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks at a callback that is not over.
const LOOK: Duration = Duration::from_micros(100);
/// A callback that computes for so long is left alone.
const LONG: Duration = Duration::from_millis(100);
/// Work is forgotten when no call has come for so long.
const FORGOTTEN: Duration = Duration::from_millis(200);
/// From then on, an operation runs this often until a call comes.
const STEP: Duration = Duration::from_millis(1);

/// The threads.
#[derive(Default)]
pub(super) struct Helpers {
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Is there one for callbacks?
    exists: Mutex<bool>,
    /// There is a callback to run, or the machine goes off.
    offer: Condvar,
    /// There is work to watch over, or the machine goes off.
    pub(super) watch: Condvar,
}

/// What a thread that runs callbacks is at.
pub(super) struct Helper {
    /// The thread, as the system knows it.
    id: i32,
    busy: bool,
    /// It computes for long, and nobody waits for it any more.
    left_alone: bool,
}

impl Helper {
    /// Is it to be waited for before a call goes on?
    fn is_awaited(&self) -> bool {
        self.busy && !self.left_alone && !is_asleep(self.id)
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
        let body = move || {
            let _reserve = crate::reserve::hold();
            body(&machine.adversary, &machine);
        };
        let thread = std::thread::Builder::new().name(String::from(name)).spawn(body);
        thread.map(|thread| lock(&self.helpers.threads).push(thread)).is_ok()
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
        self.helpers.offer.notify_one();
        self.settle(state)
    }

    /// Waits until every callback is over or sleeps.
    pub(super) fn settle<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let start = Instant::now();
        let mut looks = 0;
        while state.callbacks > 0 && looks < 2 {
            let waited = self.progress.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if start.elapsed() > LONG {
                state.helpers.iter_mut().for_each(|helper| helper.left_alone = helper.busy);
            }
            let awaited = state.offered.is_some() || state.helpers.iter().any(Helper::is_awaited);
            looks = if awaited { 0 } else { looks + 1 };
        }
        state
    }

    /// Runs the callback that is offered, without the lock.
    fn take_up<'a>(
        &'a self,
        machine: &Arc<Machine>,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        let Some(Callback { lane, stream, action }) = state.offered.take() else { return state };
        drop(state);
        schedule::run(machine, &stream, action);
        state = lock(&self.state);
        state.callbacks -= 1;
        state.finish(lane);
        self.progress.notify_all();
        state
    }

    /// The body of a thread that runs callbacks.
    fn help(&self, machine: &Arc<Machine>) {
        let mut state = lock(&self.state);
        let own = state.helpers.len();
        // SAFETY: gettid has no preconditions.
        let id = unsafe { libc::gettid() };
        state.helpers.push(Helper { id, busy: false, left_alone: false });
        while !state.closed {
            if state.offered.is_some() {
                state.helpers[own].busy = true;
                state = self.take_up(machine, state);
                state.helpers[own] = Helper { id, busy: false, left_alone: false };
            } else {
                state = self.helpers.offer.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// The body of the watcher.
    fn watch(&self, machine: &Arc<Machine>) {
        let mut state = lock(&self.state);
        let (mut calls, mut patience) = (state.calls, FORGOTTEN);
        while !state.closed {
            if !state.is_busy() {
                state.unwatched = true;
                let waited = self.helpers.watch.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.helpers.watch.wait_timeout(state, patience);
            let (guard, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if state.calls != calls {
                (calls, patience) = (state.calls, FORGOTTEN);
            } else if outcome.timed_out()
                && let Some(index) = state.any()
            {
                patience = STEP;
                state = self.step(machine, state, index);
                self.progress.notify_all();
            }
        }
    }

    /// Ends the threads; everything queued is over.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.helpers.offer.notify_all();
        self.helpers.watch.notify_all();
        let threads = std::mem::take(&mut *lock(&self.helpers.threads));
        for thread in threads {
            // What callbacks throw is caught.
            let _ = thread.join();
        }
    }
}

/// Does a thread of this process wait for something?
pub(super) fn is_asleep(id: i32) -> bool {
    let mut text = [0; 128];
    let path = format!("/proc/self/task/{id}/stat");
    let length = File::open(path).and_then(|mut file| file.read(&mut text)).unwrap_or(0);
    // The state follows the name, which is in parentheses.
    let name = text[..length].iter().rposition(|byte| *byte == b')');
    name.and_then(|end| text.get(end + 2)).is_some_and(|state| *state == b'S')
}
