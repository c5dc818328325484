//! The queue of a stream, the points in it, and what is queued.

use super::copy::{Copy, Fill};
use super::journal::Write;
use super::kernel::Launch;
use super::lock;
use super::shared_event::SharedEvent;
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, PoisonError, atomic};

/// How a stream relates to the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The legacy default stream itself.
    Legacy,
    /// Waits for it and is waited for by it.
    Blocking,
    /// Has nothing to do with it.
    NonBlocking,
}

/// A stream: operations that run one after the other.
pub(super) struct Stream {
    /// Never recycled, unlike the handle.
    pub(super) id: u64,
    pub(super) device: usize,
    pub(super) kind: Kind,
    pub(super) priority: i32,
    pub(super) destroyed: AtomicBool,
    /// Where an adversarial schedule keeps its queue; `usize::MAX` before its first use.
    pub(super) lane: AtomicUsize,
    /// Position of the last operation that was queued, and of the last that is over.
    submitted: AtomicU64,
    completed: AtomicU64,
    state: Mutex<State>,
    /// An operation is over.
    progress: Condvar,
    /// There is work for an idle worker, or the queue is closed.
    work: Condvar,
}

#[derive(Default)]
struct State {
    pending: VecDeque<Operation>,
    /// An operation is running on the thread that queued it.
    running: bool,
    /// A worker thread serves this queue.
    worker: bool,
    /// It waits for `work`.
    idle: bool,
    closed: bool,
    /// The first position that a thread waits for; nobody is woken before.
    awaited: Option<u64>,
}

/// A point in a stream: everything up to and with the operation at `position`.
#[derive(Clone)]
pub(super) struct Point {
    pub(super) stream: Arc<Stream>,
    pub(super) position: u64,
}

/// The point at which an event was recorded, and when it was reached.
pub(super) struct Mark {
    pub(super) stream: Arc<Stream>,
    pub(super) position: AtomicU64,
    /// Monotonic nanoseconds; 0 where timing is disabled.
    pub(super) time: AtomicU64,
    pub(super) timed: bool,
    /// Where other processes see it, and the number of this record there.
    pub(super) shared: Option<(Arc<SharedEvent>, u64)>,
}

/// What an operation does once it may run.
pub(super) enum Action {
    Nothing,
    Record(Arc<Mark>),
    Copy(Box<Copy>),
    Fill(Fill),
    HostFunction(HostFunction),
    Kernel(Box<Launch>),
    /// What a kernel has written in its first step.
    Writes(Vec<Write>),
}

/// A callback of the host.
#[derive(Clone, Copy)]
pub(super) struct HostFunction {
    pub(super) function: unsafe extern "C" fn(*mut c_void),
    pub(super) user_data: *mut c_void,
}

// SAFETY: the host passed the pointer to be used on a thread of the driver's choice.
unsafe impl Send for HostFunction {}
// SAFETY: it is only copied.
unsafe impl Sync for HostFunction {}

/// An entry of a queue; it may run when the entries before it are over and `waits` are reached.
pub(super) struct Operation {
    pub(super) position: u64,
    pub(super) waits: Vec<Point>,
    pub(super) action: Action,
}

impl Action {
    /// The same for another launch of a graph.
    pub(super) fn again(&self) -> Action {
        match self {
            Action::Copy(copy) => Action::Copy(copy.clone()),
            Action::Fill(fill) => Action::Fill(*fill),
            Action::HostFunction(host) => Action::HostFunction(*host),
            Action::Kernel(launch) => Action::Kernel(Box::new(launch.again())),
            // They are made as others run, and never recorded.
            Action::Nothing | Action::Record(_) | Action::Writes(_) => Action::Nothing,
        }
    }
}

impl Point {
    #[inline]
    pub(super) fn is_reached(&self) -> bool {
        self.stream.completed() >= self.position
    }

    pub(super) fn wait(&self) {
        self.stream.wait_until(self.position);
    }
}

impl Mark {
    /// Shows other processes that it is reached.
    pub(super) fn show(&self) {
        if let Some((shared, number)) = &self.shared {
            shared.reach(*number);
        }
    }

    #[inline]
    pub(super) fn is_reached(&self) -> bool {
        self.stream.completed() >= self.position.load(Ordering::Relaxed)
    }

    pub(super) fn point(&self) -> Point {
        Point { stream: Arc::clone(&self.stream), position: self.position.load(Ordering::Relaxed) }
    }
}

impl Stream {
    pub(super) fn new(device: usize, kind: Kind, priority: i32) -> Arc<Stream> {
        static NEXT: atomic::AtomicU64 = atomic::AtomicU64::new(1);
        Arc::new(Stream {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            device,
            kind,
            priority,
            destroyed: AtomicBool::new(false),
            lane: AtomicUsize::new(usize::MAX),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            state: Mutex::new(State::default()),
            progress: Condvar::new(),
            work: Condvar::new(),
        })
    }

    #[inline]
    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.completed() >= self.submitted.load(Ordering::Acquire)
    }

    /// Everything queued so far.
    pub(super) fn tail(self: &Arc<Self>) -> Point {
        Point { stream: Arc::clone(self), position: self.submitted.load(Ordering::Acquire) }
    }

    pub(super) fn wait_until(&self, position: u64) {
        if self.completed() >= position {
            return;
        }
        let mut state = lock(&self.state);
        while self.completed() < position {
            state = self.await_progress(state, position);
        }
    }

    /// Waits for a while, at most until the operation at `position` is over.
    fn await_progress<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        position: u64,
    ) -> MutexGuard<'a, State> {
        state.awaited = Some(state.awaited.map_or(position, |first| first.min(position)));
        self.progress.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The position of an operation that is being queued; only under the lock of its queue.
    pub(super) fn next_position(&self, action: &Action) -> u64 {
        let position = self.submitted.load(Ordering::Relaxed) + 1;
        if let Action::Record(mark) = action {
            mark.position.store(position, Ordering::Relaxed);
        }
        self.submitted.store(position, Ordering::Release);
        position
    }

    /// Takes the turn to run one operation on this thread; ends with [`finish`](Self::finish).
    pub(super) fn begin(&self, action: &Action) -> u64 {
        let mut state = lock(&self.state);
        while state.running {
            state = self.await_progress(state, 0);
        }
        state.running = true;
        self.next_position(action)
    }

    /// The operation at `position` is over, in a queue that is kept elsewhere.
    pub(super) fn complete(&self, position: u64) {
        self.completed.store(position, Ordering::Release);
    }

    /// The operation at `position` is over.
    pub(super) fn finish(&self, position: u64) {
        let mut state = lock(&self.state);
        state.running = false;
        self.completed.store(position, Ordering::Release);
        // Those who wait for later positions note them again.
        let wake = state.awaited.take_if(|first| *first <= position).is_some();
        drop(state);
        if wake {
            self.progress.notify_all();
        }
    }

    /// Queues an operation for the worker, which `spawn` starts if there is none.
    pub(super) fn push(
        &self,
        waits: Vec<Point>,
        action: Action,
        spawn: impl FnOnce() -> Result<(), i32>,
    ) -> Result<u64, i32> {
        let mut state = lock(&self.state);
        if !state.worker {
            spawn()?;
            state.worker = true;
        }
        let position = self.next_position(&action);
        state.pending.push_back(Operation { position, waits, action });
        let idle = state.idle;
        drop(state);
        if idle {
            self.work.notify_one();
        }
        Ok(position)
    }

    /// The next operation, when there is one; `None` when the queue is closed and empty.
    pub(super) fn pop(&self) -> Option<Operation> {
        let mut state = lock(&self.state);
        loop {
            if let Some(operation) = state.pending.pop_front() {
                return Some(operation);
            }
            if state.closed {
                state.worker = false;
                return None;
            }
            state.idle = true;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle = false;
        }
    }

    /// The host has no use for the stream any more; what is queued still runs.
    pub(super) fn destroy(&self) {
        self.destroyed.store(true, Ordering::Relaxed);
        self.close();
    }

    /// Lets the worker end when it has done what is queued. Another may be started later.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.work.notify_one();
    }
}
