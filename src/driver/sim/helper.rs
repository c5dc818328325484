//! The thread that runs callbacks of the host under an adversarial schedule, and work when the host
//! has forgotten it.
//!
//! Callbacks cannot run on the thread of a call: that may hold a lock of the host which the callback
//! wants. The call goes on when the callback is over, or when it sleeps, so that the run is the same
//! each time. A host may also wait for a callback, or for a word in pinned memory, without a call:
//! when none has come for a while, this thread runs what is queued, one operation after the other.

use super::adversary::Adversary;
use super::lanes::{Callback, State};
use super::{Machine, lock, schedule};
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicI32, Ordering};
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

/// The thread.
#[derive(Default)]
pub(super) struct Helper {
    thread: Mutex<Option<JoinHandle<()>>>,
    /// As the system knows it; 0 before it runs.
    id: AtomicI32,
    /// There is a callback to run, work to watch, or the machine goes off.
    pub(super) wake: Condvar,
}

impl Adversary {
    /// Starts the thread, if it does not run; false where the system refuses.
    pub(super) fn start_helper(&self, machine: &Arc<Machine>) -> bool {
        let mut thread = lock(&self.helper.thread);
        if thread.is_none() {
            let machine = Arc::clone(machine);
            let body = move || machine.adversary.help(&machine);
            *thread =
                std::thread::Builder::new().name(String::from("sim callbacks")).spawn(body).ok();
        }
        thread.is_some()
    }

    /// Runs the callback that was handed over, until it is over or sleeps.
    pub(super) fn call_back<'a>(
        &'a self,
        machine: &Arc<Machine>,
        state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        if self.helper.is_this_thread() {
            return state;
        }
        if self.start_helper(machine) {
            self.helper.wake.notify_one();
            return self.settle(state);
        }
        self.take_up(machine, state)
    }

    /// Waits until the callback is over or sleeps.
    pub(super) fn settle<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let start = Instant::now();
        let mut asleep = 0;
        while !matches!(state.callback, Callback::None) && asleep < 2 && !state.left_alone {
            state.left_alone = start.elapsed() > LONG;
            let waited = self.progress.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let taken_up = matches!(state.callback, Callback::Running);
            asleep = if taken_up && self.helper.is_asleep() { asleep + 1 } else { 0 };
        }
        state
    }

    /// Runs the callback that waits, without the lock.
    fn take_up<'a>(
        &'a self,
        machine: &Arc<Machine>,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        let callback = std::mem::replace(&mut state.callback, Callback::Running);
        if let Callback::Waiting(lane, stream, action) = callback {
            drop(state);
            schedule::run(machine, &stream, action);
            state = lock(&self.state);
            state.callback = Callback::None;
            state.left_alone = false;
            state.finish(lane);
            self.progress.notify_all();
        }
        state
    }

    /// The thread's body.
    fn help(&self, machine: &Arc<Machine>) {
        // SAFETY: gettid has no preconditions.
        self.helper.id.store(unsafe { libc::gettid() }, Ordering::Release);
        let mut state = lock(&self.state);
        let (mut calls, mut patience) = (state.calls, FORGOTTEN);
        while !state.closed {
            if let Callback::Waiting(..) = state.callback {
                state = self.take_up(machine, state);
                continue;
            }
            if !state.is_busy() {
                state.unwatched = true;
                state = self.helper.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.helper.wake.wait_timeout(state, patience);
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

    /// Ends the thread; everything queued is over.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.helper.wake.notify_one();
        let thread = lock(&self.helper.thread).take();
        if let Some(thread) = thread {
            // What callbacks throw is caught.
            let _ = thread.join();
        }
    }
}

impl Helper {
    fn is_this_thread(&self) -> bool {
        // SAFETY: gettid has no preconditions.
        self.id.load(Ordering::Relaxed) == unsafe { libc::gettid() }
    }

    /// Does the thread wait for something?
    fn is_asleep(&self) -> bool {
        let mut text = [0; 128];
        let path = format!("/proc/self/task/{}/stat", self.id.load(Ordering::Acquire));
        let length = File::open(path).and_then(|mut file| file.read(&mut text)).unwrap_or(0);
        // The state follows the name, which is in parentheses.
        let name = text[..length].iter().rposition(|byte| *byte == b')');
        name.and_then(|end| text.get(end + 2)).is_some_and(|state| *state == b'S')
    }
}
