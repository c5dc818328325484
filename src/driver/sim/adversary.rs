//! The adversarial schedule: operations run on the threads of the host, when they must or when the
//! seed says, in any order that streams, events and the default stream's rules allow.
//!
//! One lock holds all queues. Callbacks of the host run on a thread of their own ([`helper`](super::helper)).

use super::copy;
use super::helper::Helper;
use super::hostility::{Plan, Strategy, Tear};
use super::queue::{Action, Point, Stream};
use super::{Machine, lock, schedule};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The schedule of a machine.
pub(super) struct Adversary {
    strategy: Strategy,
    /// The only operations that may be late.
    late: Option<Vec<u64>>,
    pub(super) state: Mutex<State>,
    /// A callback is over, or an operation that ran on another thread.
    pub(super) progress: Condvar,
    pub(super) helper: Helper,
}

/// All that is queued.
#[derive(Default)]
pub(super) struct State {
    /// Calls of the host that came here.
    pub(super) calls: u64,
    /// The callback that runs, and its lane.
    pub(super) callback: Callback,
    /// The callback computes for long, and nobody waits for it any more.
    pub(super) left_alone: bool,
    /// The helper waits for work to watch over.
    pub(super) unwatched: bool,
    /// The machine is going off.
    pub(super) closed: bool,
    /// Operations queued so far.
    submitted: u64,
    /// Streams used so far.
    streams: u64,
    lanes: Vec<Lane>,
    /// Lanes in which something is queued.
    active: Vec<usize>,
    /// Lanes of streams that are gone.
    vacant: Vec<usize>,
    /// Counts searches, each of which looks at a lane once.
    search: u64,
    /// Of a search: lanes still to be looked at.
    ahead: Vec<usize>,
}

/// The one callback that runs at a time; CUDA promises no more.
#[derive(Default)]
pub(super) enum Callback {
    #[default]
    None,
    /// To be taken up by the helper.
    Waiting(usize, Arc<Stream>, Action),
    Running,
}

/// What is queued on a stream.
struct Lane {
    stream: Arc<Stream>,
    /// How many streams were used before this one.
    order: u64,
    pending: VecDeque<Pending>,
    /// A callback at the front is running.
    running: bool,
    searched: u64,
}

/// An operation that is not over.
struct Pending {
    position: u64,
    /// It runs of itself when so many operations are queued.
    due: u64,
    plan: Plan,
    waits: Vec<Point>,
    action: Action,
    /// The second step, if it is torn.
    rest: Option<Action>,
}

impl Adversary {
    pub(super) fn new(seed: u64, late: Option<Vec<u64>>) -> Adversary {
        Adversary {
            strategy: Strategy::new(seed),
            late,
            state: Mutex::default(),
            progress: Condvar::new(),
            helper: Helper::default(),
        }
    }

    /// Takes the lock for a call of the host.
    fn enter(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        state.calls += 1;
        if let Callback::None = state.callback { state } else { self.settle(state) }
    }

    fn plan(&self, number: u64, order: u64, action: &Action) -> Plan {
        match &self.late {
            Some(late) if late.binary_search(&number).is_err() => Strategy::friendly(number),
            _ => self.strategy.plan(number, order, action),
        }
    }

    /// Queues an operation, and runs what is due; gives its position in the stream.
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
        let (action, rest) = tear(plan.tear, action);
        let due = number + plan.delay;
        let operation = Pending { position, due, plan, waits, action, rest };
        let lane = &mut state.lanes[index];
        lane.pending.push_back(operation);
        if lane.pending.len() == 1 {
            state.active.push(index);
            if std::mem::take(&mut state.unwatched) {
                self.helper.wake.notify_one();
            }
        }
        while let Some(index) = state.due() {
            state = self.step(machine, state, index);
        }
        position
    }

    /// Runs what some points wait for, and nothing else.
    pub(super) fn reach(&self, machine: &Arc<Machine>, points: &[Point]) {
        if points.iter().all(Point::is_reached) {
            return;
        }
        let mut state = self.enter();
        while !points.iter().all(Point::is_reached) {
            state = match state.needed(points) {
                Some(index) => self.step(machine, state, index),
                // What is missing is running on another thread.
                None => self.progress.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// The host has asked whether a point is reached, and it is not: every few questions run
    /// something that it waits for, so that a host that asks again and again comes to an end.
    pub(super) fn poll(&self, machine: &Arc<Machine>, point: &Point) {
        let mut state = self.enter();
        let Some(index) = state.needed(std::slice::from_ref(point)) else { return };
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
        mut state: MutexGuard<'a, State>,
        index: usize,
    ) -> MutexGuard<'a, State> {
        let submitted = state.submitted;
        let lane = &mut state.lanes[index];
        let Some(front) = lane.pending.front_mut() else { return state };
        let mut action = std::mem::replace(&mut front.action, Action::Nothing);
        if let Action::HostFunction(_) = action {
            lane.running = true;
            state.callback = Callback::Waiting(index, Arc::clone(&lane.stream), action);
            return self.call_back(machine, state);
        }
        if let Some(rest) = front.rest.take() {
            schedule::run(machine, &lane.stream, action);
            front.put_off(submitted, rest);
            return state;
        }
        if let Action::Copy(copy) = &mut action
            && front.plan.tear == Tear::ReadsEarly
            && copy::read_now(machine, lane.stream.device, copy)
        {
            front.plan.tear = Tear::Whole;
            front.put_off(submitted, action);
            return state;
        }
        schedule::run(machine, &lane.stream, action);
        state.finish(index);
        state
    }
}

impl State {
    /// The lane of a stream, made at its first use.
    fn lane_of(&mut self, stream: &Arc<Stream>) -> usize {
        let lane = stream.lane.load(Ordering::Relaxed);
        if lane != usize::MAX {
            return lane;
        }
        // Streams that are gone leave their lanes to those that come.
        for (index, lane) in self.lanes.iter().enumerate() {
            if lane.pending.is_empty()
                && lane.stream.lane.load(Ordering::Relaxed) == index
                && lane.stream.destroyed.load(Ordering::Relaxed)
            {
                lane.stream.lane.store(usize::MAX, Ordering::Relaxed);
                self.vacant.push(index);
            }
        }
        let fresh = Lane {
            stream: Arc::clone(stream),
            order: self.streams,
            pending: VecDeque::new(),
            running: false,
            searched: 0,
        };
        self.streams += 1;
        let index = match self.vacant.pop() {
            Some(index) => {
                self.lanes[index] = fresh;
                index
            }
            None => {
                self.lanes.push(fresh);
                self.lanes.len() - 1
            }
        };
        stream.lane.store(index, Ordering::Relaxed);
        index
    }

    /// Of the operations that may run and that nothing holds back any more, the first.
    fn due(&mut self) -> Option<usize> {
        let mut best = None;
        for index in &self.active {
            let lane = &mut self.lanes[*index];
            let Some(front) = lane.pending.front_mut() else { continue };
            if lane.running || front.must_wait_for(&self.callback) {
                continue;
            }
            if front.due <= self.submitted && front.is_ready() {
                best = better(best, (front.plan.key, front.position, *index));
            }
        }
        best.map(|(_, _, index)| index)
    }

    /// Of the operations that may run and that the points wait for, the first: those that are late
    /// come after those that are not.
    fn needed(&mut self, points: &[Point]) -> Option<usize> {
        self.search += 1;
        let lane_of = |point: &Point| point.stream.lane.load(Ordering::Relaxed);
        self.ahead.clear();
        self.ahead.extend(points.iter().filter(|point| !point.is_reached()).map(lane_of));
        let mut best = None;
        while let Some(index) = self.ahead.pop() {
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            if lane.running || lane.searched == self.search {
                continue;
            }
            lane.searched = self.search;
            let Some(front) = lane.pending.front_mut() else { continue };
            if front.is_ready() {
                if front.must_wait_for(&self.callback) {
                    continue;
                }
                let late = u64::from(front.due > self.submitted);
                best = better(best, (late << 63 | front.plan.key >> 1, front.position, index));
            } else {
                self.ahead.extend(front.waits.iter().map(lane_of));
            }
        }
        best.map(|(_, _, index)| index)
    }

    /// Is anything queued?
    pub(super) fn is_busy(&self) -> bool {
        !self.active.is_empty()
    }

    /// An operation that may run now, whether or not something holds it back.
    pub(super) fn any(&mut self) -> Option<usize> {
        let mut best = None;
        for index in &self.active {
            let lane = &mut self.lanes[*index];
            let Some(front) = lane.pending.front_mut() else { continue };
            if !lane.running && !front.must_wait_for(&self.callback) && front.is_ready() {
                best = better(best, (front.plan.key, front.position, *index));
            }
        }
        best.map(|(_, _, index)| index)
    }

    /// The operation at the front of a lane is over.
    pub(super) fn finish(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        lane.running = false;
        if let Some(done) = lane.pending.pop_front() {
            lane.stream.complete(done.position);
        }
        if lane.pending.is_empty() {
            self.active.retain(|active| *active != index);
        }
    }
}

impl Pending {
    /// The first step is done; the second lets others go first.
    fn put_off(&mut self, submitted: u64, rest: Action) {
        self.action = rest;
        self.due = submitted + self.plan.delay.max(1 + self.plan.key % 8);
        self.plan.key = !self.plan.key;
    }

    fn must_wait_for(&self, callback: &Callback) -> bool {
        !matches!(callback, Callback::None) && matches!(self.action, Action::HostFunction(_))
    }

    /// Is everything reached that it waits for?
    fn is_ready(&mut self) -> bool {
        self.waits.retain(|point| !point.is_reached());
        self.waits.is_empty()
    }
}

/// The lower of two candidates: key, position, lane.
fn better(
    best: Option<(u64, u64, usize)>,
    candidate: (u64, u64, usize),
) -> Option<(u64, u64, usize)> {
    Some(best.map_or(candidate, |best| best.min(candidate)))
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
