//! The queue of a stream, its points, and its operations.

use super::condition::Condition;
use super::copy::{Copy, Fill};
use super::host_function::{Callback, HostFunction};
use super::journal::Write;
use super::kernel::Launch;
use super::partition::Partition;
use super::shared_event::SharedEvent;
use super::stream_attributes::Attributes;
use super::sync::lock;
use super::value::ValueOperation;
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};
use std::collections::VecDeque;
use std::mem::discriminant;
use std::sync::{Arc, PoisonError, atomic};

/// The relation of a stream to the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The legacy default stream itself.
    Legacy,
    /// It waits for the legacy stream and vice versa.
    Blocking,
    /// It is independent of the legacy stream.
    NonBlocking,
}

/// A stream: operations that run in order.
pub(super) struct Stream {
    /// Never reused, unlike the handle.
    pub(super) id: u64,
    pub(super) device: usize,
    /// The number of its context.
    pub(super) context: usize,
    /// Where its kernels run, if it is a stream of a green context.
    pub(super) partition: Option<Arc<Partition>>,
    pub(super) kind: Kind,
    pub(super) priority: i32,
    pub(super) attributes: Mutex<Attributes>,
    pub(super) destroyed: AtomicBool,
    /// Index of its lane in an adversarial schedule; `usize::MAX` before its first use.
    pub(super) lane: AtomicUsize,
    /// Position of the last queued operation; `completed` is that of the last finished one.
    submitted: AtomicU64,
    completed: AtomicU64,
    state: Mutex<StreamState>,
    /// Signals that an operation has finished.
    progress: Condvar,
    /// Wakes the idle worker: there is work, or the queue is closed.
    work: Condvar,
}

#[derive(Default)]
struct StreamState {
    pending: VecDeque<Operation>,
    /// True while an operation runs on the thread that queued it.
    running: bool,
    /// True if a worker thread serves this queue.
    worker: bool,
    /// True while the worker waits for `work`.
    idle: bool,
    closed: bool,
    /// The lowest position that a thread waits for; earlier positions wake no thread.
    awaited: Option<u64>,
}

/// A point in a stream: all operations up to and including `position`.
#[derive(Clone)]
pub(super) struct Point {
    pub(super) stream: Arc<Stream>,
    pub(super) position: u64,
}

/// The point at which an event was recorded, and the time when it was reached.
pub(super) struct Mark {
    pub(super) stream: Arc<Stream>,
    pub(super) position: AtomicU64,
    /// Monotonic nanoseconds; 0 where timing is disabled.
    pub(super) time: AtomicU64,
    pub(super) timed: bool,
    /// The event that is shared with other processes, and the number of this record in it.
    pub(super) shared: Option<(Arc<SharedEvent>, u64)>,
}

/// The work of an operation.
pub(super) enum Action {
    Nothing,
    Record(Arc<Mark>),
    Copy(Box<Copy>),
    Fill(Fill),
    /// Waits for a value or writes one.
    Value(ValueOperation),
    HostFunction(HostFunction),
    Callback(Callback),
    Kernel(Box<Launch>),
    /// The delayed writes of a kernel that ran in the first step.
    Writes(Vec<Write>),
    /// Sets conditions at the beginning of a graph's launch.
    Reset(Vec<Arc<Branch>>),
    /// Runs bodies of a conditional node.
    Branch(Arc<Branch>),
}

/// A conditional node of an executable graph.
pub(super) struct Branch {
    pub(super) condition: Arc<Condition>,
    pub(super) kind: BranchKind,
    /// The work of each body, in an order that its dependencies allow.
    pub(super) bodies: Vec<Vec<Action>>,
}

/// Which bodies run, by the value of the condition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BranchKind {
    /// The first one unless it is 0, else the second one.
    If,
    /// The first one, as long as it is not 0.
    While,
    /// The one with this number.
    Switch,
}

/// An entry of a queue. It may run when the entries before it have finished and `waits` are
/// reached.
pub(super) struct Operation {
    pub(super) position: u64,
    pub(super) waits: Vec<Point>,
    pub(super) action: Action,
}

impl Action {
    /// True if it calls a function of the host.
    pub(super) fn is_of_host(&self) -> bool {
        matches!(self, Action::HostFunction(_) | Action::Callback(_))
    }

    /// A copy for another launch of a graph.
    pub(super) fn for_next_launch(&self) -> Action {
        match self {
            Action::Copy(copy) => Action::Copy(copy.clone()),
            Action::Fill(fill) => Action::Fill(*fill),
            Action::Value(value) => Action::Value(*value),
            Action::HostFunction(host) => Action::HostFunction(*host),
            Action::Kernel(launch) => Action::Kernel(Box::new(launch.for_next_launch())),
            Action::Branch(branch) => Action::Branch(Arc::clone(branch)),
            // These are created while others run, and are never recorded in a graph.
            Action::Nothing
            | Action::Record(_)
            | Action::Writes(_)
            | Action::Callback(_)
            | Action::Reset(_) => Action::Nothing,
        }
    }
}

impl Branch {
    /// True if it can replace another one.
    pub(super) fn has_shape_of(&self, other: &Branch) -> bool {
        let is_alike = |(own, other): (&Action, &Action)| match (own, other) {
            (Action::Branch(own), Action::Branch(other)) => own.has_shape_of(other),
            _ => discriminant(own) == discriminant(other),
        };
        let same = |(own, other): (&Vec<Action>, &Vec<Action>)| {
            own.len() == other.len() && own.iter().zip(other).all(is_alike)
        };
        self.kind == other.kind
            && self.bodies.len() == other.bodies.len()
            && self.bodies.iter().zip(&other.bodies).all(same)
    }

    /// Sets its conditions to their values at the beginning of a launch.
    pub(super) fn reset(&self) {
        self.condition.reset();
        for action in self.bodies.iter().flatten() {
            if let Action::Branch(inner) = action {
                inner.reset();
            }
        }
    }

    /// Runs the bodies that the condition chooses, as long as `goes_on`.
    pub(super) fn run(
        &self,
        mut goes_on: impl FnMut() -> Result<(), i32>,
        mut perform: impl FnMut(Action) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let mut run = |place: usize| {
            let body = self.bodies.get(place).map_or(&[][..], Vec::as_slice);
            body.iter().try_for_each(|action| perform(action.for_next_launch()))
        };
        match self.kind {
            BranchKind::If => run(usize::from(self.condition.value() == 0)),
            BranchKind::Switch => run(self.condition.value() as usize),
            BranchKind::While => {
                while self.condition.value() != 0 {
                    run(0)?;
                    goes_on()?;
                }
                Ok(())
            }
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

    /// Waits while a thread runs the operation that it queued. Returns false if a worker is to run
    /// the operation.
    pub(super) fn wait_unless_deferred(&self) -> bool {
        self.is_reached() || self.stream.wait_unless_deferred(self.position)
    }
}

impl Mark {
    /// Publishes to other processes that it is reached.
    pub(super) fn publish(&self) {
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
    /// A stream of a device's primary context.
    pub(super) fn new(device: usize, kind: Kind, priority: i32) -> Arc<Stream> {
        Stream::of(device, device, kind, priority)
    }

    /// A stream of a context with a number.
    pub(super) fn of(context: usize, device: usize, kind: Kind, priority: i32) -> Arc<Stream> {
        Stream::within((context, device), None, kind, priority)
    }

    /// A stream of a context and a device, perhaps of a green context.
    pub(super) fn within(
        (context, device): (usize, usize),
        partition: Option<Arc<Partition>>,
        kind: Kind,
        priority: i32,
    ) -> Arc<Stream> {
        static NEXT: atomic::AtomicU64 = atomic::AtomicU64::new(1);
        Arc::new(Stream {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            device,
            context,
            partition,
            kind,
            priority,
            attributes: Mutex::new(Attributes::new()),
            destroyed: AtomicBool::new(false),
            lane: AtomicUsize::new(usize::MAX),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            state: Mutex::new(StreamState::default()),
            progress: Condvar::new(),
            work: Condvar::new(),
        })
    }

    /// The handle of its green context, or 0.
    pub(super) fn green(&self) -> usize {
        self.partition.as_ref().map_or(0, |partition| partition.green)
    }

    /// The ID of its green context.
    #[inline]
    pub(super) fn green_id(&self) -> Option<u64> {
        self.partition.as_ref().map(|partition| partition.id)
    }

    /// True if both are streams of one context, green or not.
    pub(super) fn is_beside(&self, other: &Stream) -> bool {
        self.context == other.context && self.green_id() == other.green_id()
    }

    #[inline]
    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.completed() >= self.submitted.load(Ordering::Acquire)
    }

    /// The point after all operations queued so far.
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

    /// See [`Point::wait_unless_deferred`].
    fn wait_unless_deferred(&self, position: u64) -> bool {
        let mut state = lock(&self.state);
        while state.running && self.completed() < position {
            state = self.await_progress(state, position);
        }
        self.completed() >= position
    }

    /// Waits for progress, at most until the operation at `position` has finished.
    fn await_progress<'a>(
        &'a self,
        mut state: MutexGuard<'a, StreamState>,
        position: u64,
    ) -> MutexGuard<'a, StreamState> {
        state.awaited = Some(state.awaited.map_or(position, |first| first.min(position)));
        self.progress.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns the position of a new operation. The caller holds the lock of the queue.
    pub(super) fn next_position(&self, action: &Action) -> u64 {
        let position = self.submitted.load(Ordering::Relaxed) + 1;
        if let Action::Record(mark) = action {
            mark.position.store(position, Ordering::Relaxed);
        }
        self.submitted.store(position, Ordering::Release);
        position
    }

    /// Waits until no other operation runs on the thread that queued it.
    fn lock_when_not_running(&self) -> MutexGuard<'_, StreamState> {
        let mut state = lock(&self.state);
        while state.running {
            state = self.await_progress(state, 0);
        }
        state
    }

    /// Begins an operation on this thread; ends with [`finish`](Self::finish). Returns `None` if
    /// the worker has operations that come first, or if it cannot run now.
    pub(super) fn begin(&self, action: &Action, can_run: impl FnOnce() -> bool) -> Option<u64> {
        let mut state = self.lock_when_not_running();
        if !self.is_idle() || !can_run() {
            return None;
        }
        state.running = true;
        Some(self.next_position(action))
    }

    /// Marks the operation at `position` finished, for a queue of the adversarial schedule.
    pub(super) fn complete(&self, position: u64) {
        self.completed.store(position, Ordering::Release);
    }

    /// Marks the operation at `position` finished and wakes waiters.
    pub(super) fn finish(&self, position: u64) {
        let mut state = lock(&self.state);
        state.running = false;
        self.completed.store(position, Ordering::Release);
        // Woken threads that wait for later positions set `awaited` again.
        let wake = state.awaited.take_if(|first| *first <= position).is_some();
        drop(state);
        if wake {
            self.progress.notify_all();
        }
    }

    /// Queues an operation for the worker; `spawn` starts the worker if there is none.
    pub(super) fn push(
        &self,
        waits: Vec<Point>,
        action: Action,
        spawn: impl FnOnce() -> Result<(), i32>,
    ) -> Result<u64, i32> {
        let mut state = self.lock_when_not_running();
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

    /// Waits for the next operation; `None` if the queue is closed and empty.
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

    /// Destroys the stream; queued operations still run.
    pub(super) fn destroy(&self) {
        self.destroyed.store(true, Ordering::Relaxed);
        self.close();
    }

    /// Makes a destroyed default stream, which is idle, that of a new context.
    pub(super) fn reopen(&self) {
        self.destroyed.store(false, Ordering::Relaxed);
        lock(&self.state).closed = false;
    }

    /// Ends the worker after the queued operations. Another may be started later.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.work.notify_one();
    }
}
