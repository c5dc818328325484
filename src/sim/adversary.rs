//! The adversarial schedule. Operations run on threads of the host, when a wait requires them or
//! when the seed decides, in any order that streams, events and the default stream's rules allow.
//!
//! One lock protects all queues. Callbacks of the host run on threads of their own
//! ([`helper`](super::helper)).

use super::ConfigError;
use super::copy;
use super::helper::Helpers;
use super::lanes::{Callback, Pending, ScheduleState};
use super::queue::{Action, Point, Stream};
use super::sync::lock;
use super::trace::Trace;
use super::{Machine, schedule};
use crate::sim::adversary_policy::{Plan, Strategy, Tear};
use crate::sim::thread_scheduler::{Reason, ThreadScheduler};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The schedule of a machine.
pub(super) struct Adversary {
    strategy: Strategy,
    /// Numbers of the only operations that may be delayed; `None`: all.
    late: Option<Vec<u64>>,
    pub(super) state: Mutex<ScheduleState>,
    /// Signals that a callback or an operation on another thread has finished.
    pub(super) progress: Condvar,
    pub(super) helpers: Helpers,
    pub(super) scheduler: ThreadScheduler,
}

impl Adversary {
    /// `seed`: `None` if the machine uses another schedule.
    pub(super) fn new(
        seed: Option<u64>,
        late: Option<Vec<u64>>,
        trace: Option<&str>,
    ) -> Result<Adversary, ConfigError> {
        let trace = trace.map(Trace::open).transpose().map_err(ConfigError::Trace)?;
        Ok(Adversary {
            strategy: Strategy::new(seed.unwrap_or(0)),
            late,
            state: Mutex::new(ScheduleState::new(trace)),
            progress: Condvar::new(),
            helpers: Helpers::default(),
            scheduler: ThreadScheduler::new(seed.is_some()),
        })
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
        &self,
        machine: &Arc<Machine>,
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
        if lane.pending.len() == 1 {
            state.active.push(index);
            if std::mem::take(&mut state.unwatched) {
                self.helpers.watch.unpark();
            }
        }
        state.current = number;
        while let Some(index) = state.due() {
            state = self.step(machine, state, index);
        }
        state.current = 0;
        position
    }

    /// Runs the operations that some points wait for, and no others.
    pub(super) fn reach(&self, machine: &Arc<Machine>, points: &[Point]) {
        if points.iter().all(Point::is_reached) {
            return;
        }
        let mut state = self.enter();
        while !points.iter().all(Point::is_reached) {
            state = match state.needed(points) {
                Some(index) => self.step(machine, state, index),
                // The missing operation is running on another thread.
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
    pub(super) fn poll(&self, machine: &Arc<Machine>, point: &Point) {
        let mut state = self.enter();
        let needed = state.needed(std::slice::from_ref(point));
        let Some(index) = needed.or_else(|| state.any()) else { return };
        let Some(front) = state.lanes[index].pending.front_mut() else { return };
        match front.plan.patience.checked_sub(1) {
            Some(patience) => front.plan.patience = patience,
            None => drop(self.step(machine, state, index)),
        }
    }

    /// Runs the operation at the front of a lane, or the first step of it.
    pub(super) fn step<'a>(
        &'a self,
        machine: &Arc<Machine>,
        mut state: MutexGuard<'a, ScheduleState>,
        index: usize,
    ) -> MutexGuard<'a, ScheduleState> {
        let (submitted, offered) = (state.submitted, state.offered.is_some());
        if state.trace.is_some() {
            state.overtake(index);
        }
        let lane = &mut state.lanes[index];
        let Some(front) = lane.pending.front_mut() else { return state };
        if let (Action::HostFunction(_), true) = (&front.action, offered) {
            // Another thread has already offered a callback.
            return self.settle(state);
        }
        let mut action = std::mem::replace(&mut front.action, Action::Nothing);
        if let Action::HostFunction(_) = action {
            lane.running = true;
            let stream = Arc::clone(&lane.stream);
            state.offered = Some(Callback { lane: index, stream, action });
            state.callbacks += 1;
            return self.run_offered_callback(machine, state);
        }
        if let Some(rest) = front.rest.take() {
            schedule::run(machine, &lane.stream, action);
            front.defer_rest(submitted, rest);
            return state;
        }
        if let Action::Copy(copy) = &mut action
            && front.plan.tear == Tear::ReadsEarly
            && copy::read_now(&machine.memory, lane.stream.device, copy)
        {
            front.plan.tear = Tear::Whole;
            front.defer_rest(submitted, action);
            return state;
        }
        let journal = match &mut action {
            Action::Kernel(launch) if front.plan.tear != Tear::Whole => Some(launch.keep_journal()),
            _ => None,
        };
        schedule::run(machine, &lane.stream, action);
        if let Some(writes) = journal.and_then(|journal| journal.undo()) {
            front.defer_rest(submitted, Action::Writes(writes));
            return state;
        }
        state.finish(index);
        state
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
