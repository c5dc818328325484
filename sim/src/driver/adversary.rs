//! The adversarial schedule. Operations run on threads of the host, when a wait requires them or
//! when the seed decides, in any order that streams, events and the default stream's rules allow.
//!
//! One lock protects all queues. Callbacks of the host run on threads of their own
//! ([`helper`](super::helper)): they cannot run on the thread of a call, which may hold a lock of
//! the host that the callback takes. The call continues when the callback has finished or sleeps,
//! so runs are reproducible. A host may also wait for a callback, or for a word in pinned memory,
//! without making a call. If no call comes for a while, the watcher runs queued operations one by
//! one.

use super::adversary_policy::{Plan, Strategy, Tear};
use super::arguments::require;
use super::copy;
use super::hardware::Hardware;
use super::helper::{Helper, Helpers};
use super::host_calls::thread_id;
use super::lanes::{Callback, Pending, ScheduleState};
use super::queue::{Action, Point, Stream};
use super::sync::lock;
use super::thread_scheduler::{Reason, ThreadScheduler};
use super::thread_state;
use super::trace::Trace;
use super::worker::{Parker, Worker};
use crate::base::code;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of operations that may be delayed at a time, less than a GPU's queue holds. A host that
/// never waits would otherwise fill its memory with them.
const MOST_PENDING: usize = 256;
/// Interval between two checks of an unfinished callback.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);
/// Time without a call after which the watcher checks again if a thread was still running.
const RECHECK_TIME: Duration = Duration::from_millis(10);
/// Interval at which the watcher runs one operation if no call comes.
const STEP_INTERVAL: Duration = Duration::from_millis(1);

/// An adversarial schedule.
pub(super) struct Adversary {
    hardware: Arc<Hardware>,
    strategy: Strategy,
    /// Numbers of the only operations that may be delayed; `None`: all.
    late: Option<Vec<u64>>,
    pub(super) state: Mutex<ScheduleState>,
    /// Signals that a callback or an operation on another thread has finished.
    progress: Condvar,
    pub(super) helpers: Helpers,
    pub(super) scheduler: ThreadScheduler,
}

impl Adversary {
    /// `is_used` is false if the machine uses another schedule.
    pub(super) fn new(
        hardware: Arc<Hardware>,
        strategy: Strategy,
        late: Option<Vec<u64>>,
        trace: Option<Trace>,
        is_used: bool,
    ) -> Adversary {
        Adversary {
            hardware,
            strategy,
            late,
            state: Mutex::new(ScheduleState::new(trace)),
            progress: Condvar::new(),
            helpers: Helpers::default(),
            scheduler: ThreadScheduler::new(is_used),
        }
    }

    /// The byte that fills memory which was never written, or 0.
    pub(super) fn poison(&self) -> u8 {
        self.strategy.poison
    }

    /// Begins a call of the host: returns when the scheduler selects this thread.
    #[inline]
    pub(super) fn call(&self) {
        self.scheduler.call(&self.strategy);
    }

    /// Lets other threads run first. Returns `false` if the calling thread is not scheduled.
    pub(super) fn give_way(&self) -> bool {
        self.scheduler.wait_for_progress(&self.strategy)
    }

    /// Takes the lock for a call of the host.
    fn enter(&self) -> MutexGuard<'_, ScheduleState> {
        let mut state = lock(&self.state);
        state.calls += 1;
        if state.callbacks == 0 { state } else { self.settle(state) }
    }

    fn plan(&self, number: u64, order: u64, action: &Action) -> Plan {
        match &self.late {
            Some(late) if late.binary_search(&number).is_err() => Strategy::undelayed(number),
            _ => self.strategy.plan(number, order, action),
        }
    }

    /// Queues an operation and runs the operations that are due. Returns its position in the
    /// stream.
    pub(super) fn submit(
        self: &Arc<Self>,
        stream: &Arc<Stream>,
        waits: Vec<Point>,
        action: Action,
    ) -> u64 {
        let mut state = self.enter();
        let index = state.lane_of(stream);
        state.submitted += 1;
        let number = state.submitted;
        let plan = self.plan(number, state.lanes[index].order, &action);
        let position = stream.next_position(&action);
        let order = state.lanes[index].order;
        let record = state.trace.as_mut().map(|trace| {
            let point = Point { stream: Arc::clone(stream), position };
            let thread = self.scheduler.rank();
            trace.submit(number, thread, order, &point, &waits, &action)
        });
        let (action, rest) = tear(plan.tear, action);
        let due = number + plan.delay;
        let deviates = plan.delay > 0 || plan.tear != Tear::Whole;
        let operation = Pending { position, due, plan, deviates, waits, action, rest, record };
        let lane = &mut state.lanes[index];
        lane.pending.push_back(operation);
        state.pending += 1;
        let lane = &state.lanes[index];
        if lane.pending.len() == 1 {
            state.active.push(index);
            if std::mem::take(&mut state.unwatched) {
                self.helpers.watch.unpark();
            }
        }
        state.current = number;
        while let Some(index) = state.due(&self.hardware) {
            state = self.step(state, index);
        }
        while state.pending > MOST_PENDING
            && let Some(index) = state.any(&self.hardware)
        {
            state = self.step(state, index);
        }
        state.current = 0;
        position
    }

    /// Runs the operations that some points wait for, and no others.
    pub(super) fn reach(self: &Arc<Self>, points: &[Point]) {
        if points.iter().all(Point::is_reached) {
            return;
        }
        let mut state = self.enter();
        while !points.iter().all(Point::is_reached) {
            let mut next = state.needed(&self.hardware, points);
            if next.is_none() && state.lacks_value {
                // Any operation may write the value.
                next = state.any(&self.hardware);
            }
            state = match next {
                Some(index) => self.step(state, index),
                // The missing operation is running on another thread, or the host writes the value.
                None => self.await_progress(state),
            };
        }
    }

    /// Notes progress of another process, which a wait may need.
    pub(super) fn note_remote_progress(&self) {
        lock(&self.state).finished += 1;
        self.progress.notify_all();
    }

    /// Waits for an operation that is running on another thread.
    fn await_progress<'a>(
        &'a self,
        state: MutexGuard<'a, ScheduleState>,
    ) -> MutexGuard<'a, ScheduleState> {
        let finished = state.finished;
        drop(state);
        let took_turn = self.scheduler.pass(&self.strategy, Reason::Wait);
        let mut state = lock(&self.state);
        while !took_turn && state.finished == finished {
            state = self.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// The host has queried a point that is not reached. Every few queries, runs an operation that
    /// the point waits for, so that a polling loop of the host ends. If that operation is a
    /// sleeping callback, runs any other one, since the callback may wait for it.
    pub(super) fn poll(self: &Arc<Self>, point: &Point) {
        let mut state = self.enter();
        let needed = state.needed(&self.hardware, std::slice::from_ref(point));
        let Some(index) = needed.or_else(|| state.any(&self.hardware)) else { return };
        let Some(front) = state.lanes[index].pending.front_mut() else { return };
        match front.plan.patience.checked_sub(1) {
            Some(patience) => front.plan.patience = patience,
            None => drop(self.step(state, index)),
        }
    }

    /// Runs the operation at the front of a lane, or the first step of it.
    fn step<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, ScheduleState>,
        index: usize,
    ) -> MutexGuard<'a, ScheduleState> {
        let (submitted, offered) = (state.submitted, state.offered.is_some());
        if state.trace.is_some() {
            state.overtake(index);
        }
        let lane = &mut state.lanes[index];
        let Some(front) = lane.pending.front_mut() else { return state };
        if front.action.is_of_host() && offered {
            // Another thread has already offered a callback.
            return self.settle(state);
        }
        let mut action = std::mem::replace(&mut front.action, Action::Nothing);
        if action.is_of_host() {
            lane.running = true;
            let stream = Arc::clone(&lane.stream);
            state.offered = Some(Callback { lane: index, stream, action });
            state.callbacks += 1;
            return self.run_offered_callback(state);
        }
        if let Some(rest) = front.rest.take() {
            self.hardware.run(&lane.stream, action);
            front.defer_rest(submitted, rest);
            return state;
        }
        if let Action::Copy(copy) = &mut action
            && front.plan.tear == Tear::ReadsEarly
            && copy::read_now(&self.hardware.memory, lane.stream.device, copy)
        {
            front.plan.tear = Tear::Whole;
            front.defer_rest(submitted, action);
            return state;
        }
        let journal = match &mut action {
            Action::Kernel(launch) if front.plan.tear != Tear::Whole => launch.keep_journal(),
            _ => None,
        };
        self.hardware.run(&lane.stream, action);
        if let Some(writes) = journal.and_then(|journal| journal.undo()) {
            front.defer_rest(submitted, Action::Writes(writes));
            return state;
        }
        state.finish(index);
        state
    }

    /// Starts a thread of the schedule; false if the system refuses.
    fn start(self: &Arc<Self>, name: &str, body: fn(&Arc<Adversary>)) -> bool {
        let own = Arc::clone(self);
        let body = move || body(&own);
        self.scheduler.begin_short_sleep();
        let thread = Worker::start(String::from(name), body);
        if thread.is_none() {
            self.scheduler.end_short_sleep();
        }
        thread.map(|thread| lock(&self.helpers.threads).push(thread)).is_some()
    }

    /// Starts the watcher if there is none.
    pub(super) fn start_watcher(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if !state.watched {
            state.watched = self.start("sim watcher", Adversary::watch);
        }
    }

    /// Starts a callback thread if there is none. It must exist before a callback is queued, since
    /// no other thread may run one.
    pub(super) fn require_helper(self: &Arc<Self>) -> Result<(), i32> {
        let mut exists = lock(&self.helpers.exists);
        *exists = *exists || self.start("sim callbacks", Adversary::help);
        require(*exists, code::OUT_OF_MEMORY)
    }

    /// Has a callback thread run the offered callback; returns when the callback has finished or
    /// sleeps.
    fn run_offered_callback<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, ScheduleState>,
    ) -> MutexGuard<'a, ScheduleState> {
        if !state.watched {
            state.watched = self.start("sim watcher", Adversary::watch);
        }
        if state.helpers.iter().all(|helper| helper.busy) {
            // If no further thread can be started, the callback waits for an existing one.
            let _ = self.start("sim callbacks", Adversary::help);
        }
        if let Some(helper) = state.helpers.iter().find(|helper| !helper.busy) {
            helper.parker.unpark();
        }
        self.settle(state)
    }

    /// Waits until every callback has finished or sleeps.
    fn settle<'a>(
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
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, ScheduleState>,
    ) -> MutexGuard<'a, ScheduleState> {
        let Some(Callback { lane, stream, action }) = state.offered.take() else { return state };
        self.helpers.on_the_way.fetch_add(1, Ordering::SeqCst);
        drop(state);
        self.helpers.on_the_way.fetch_sub(1, Ordering::SeqCst);
        self.hardware.run(&stream, action);
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
    fn help(self: &Arc<Self>) {
        let id = thread_id();
        let parker = Arc::new(Parker::default());
        let mut state = lock(&self.state);
        let own = state.helpers.len();
        state.helpers.push(Helper::new(id, &parker));
        self.scheduler.end_short_sleep();
        while !state.closed {
            if state.offered.is_some() {
                state.helpers[own].busy = true;
                state = self.run_callback(state);
                state.helpers[own] = Helper::new(id, &parker);
            } else {
                drop(state);
                self.scheduler.park(id, &parker, None);
                state = lock(&self.state);
            }
        }
    }

    /// The body of the watcher.
    fn watch(self: &Arc<Self>) {
        let id = thread_id();
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
            } else if timed_out && let Some(index) = state.any(&self.hardware) {
                quiet_time = STEP_INTERVAL;
                state = self.step(state, index);
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

/// Cuts an operation into two steps.
fn tear(tear: Tear, mut action: Action) -> (Action, Option<Action>) {
    let backwards = match tear {
        Tear::Halves => false,
        Tear::Backwards => true,
        Tear::Whole | Tear::ReadsEarly => return (action, None),
    };
    let second = match &mut action {
        Action::Copy(copy) => copy.split().map(|half| Action::Copy(Box::new(half))),
        Action::Fill(fill) => fill.split().map(Action::Fill),
        _ => None,
    };
    match second {
        Some(second) if backwards => (second, Some(action)),
        second => (action, second),
    }
}
