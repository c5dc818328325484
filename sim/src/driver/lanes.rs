//! The queues of an adversarial schedule: one lane for each stream, and the searches for the next
//! operation to run.

use super::adversary_policy::Plan;
use super::hardware::Hardware;
use super::helper::Helper;
use super::queue::{Action, Point, Stream};
use super::trace::{Record, Trace};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// All queued operations, and the counters of the schedule.
#[derive(Default)]
pub(super) struct ScheduleState {
    /// Number of calls of the host that took this lock.
    pub(super) calls: u64,
    /// Number of unfinished callbacks, and the callback that no thread has taken yet.
    pub(super) callbacks: usize,
    pub(super) offered: Option<Callback>,
    pub(super) helpers: Vec<Helper>,
    /// True if the watcher thread exists.
    pub(super) watched: bool,
    /// True if the watcher waits for queued work.
    pub(super) unwatched: bool,
    /// True when the machine is being powered off.
    pub(super) closed: bool,
    pub(super) trace: Option<Trace>,
    /// Number of finished operations.
    pub(super) finished: u64,
    /// Number of operations queued so far.
    pub(super) submitted: u64,
    /// Number of unfinished operations.
    pub(super) pending: usize,
    /// The operation that a call is queueing.
    pub(super) current: u64,
    /// Number of streams used so far.
    streams: u64,
    pub(super) lanes: Vec<Lane>,
    /// Lanes that are not empty.
    pub(super) active: Vec<usize>,
    /// Lanes of streams that no longer exist.
    vacant: Vec<usize>,
    /// Number of searches; each search visits a lane once.
    search: u64,
    /// Lanes that the current search has yet to visit.
    to_visit: Vec<usize>,
    /// True if the last search for what points need found a wait for a value.
    pub(super) lacks_value: bool,
}

/// A callback that may run.
pub(super) struct Callback {
    pub(super) lane: usize,
    pub(super) stream: Arc<Stream>,
    pub(super) action: Action,
}

/// The queue of one stream.
pub(super) struct Lane {
    pub(super) stream: Arc<Stream>,
    /// Number of streams that were used before this one.
    pub(super) order: u64,
    pub(super) pending: VecDeque<Pending>,
    /// True while the callback at the front is running.
    pub(super) running: bool,
    searched: u64,
}

/// An unfinished operation.
pub(super) struct Pending {
    pub(super) position: u64,
    /// It becomes due when this many operations have been queued.
    pub(super) due: u64,
    pub(super) plan: Plan,
    /// True if the seed delays it or splits it.
    pub(super) deviates: bool,
    pub(super) waits: Vec<Point>,
    pub(super) action: Action,
    /// The second step, if it is split.
    pub(super) rest: Option<Action>,
    pub(super) record: Option<Box<Record>>,
}

impl ScheduleState {
    pub(super) fn new(trace: Option<Trace>) -> ScheduleState {
        ScheduleState { trace, ..ScheduleState::default() }
    }

    /// The lane of a stream, created at its first use.
    pub(super) fn lane_of(&mut self, stream: &Arc<Stream>) -> usize {
        let lane = stream.lane.load(Ordering::Relaxed);
        if lane != usize::MAX {
            return lane;
        }
        // Lanes of streams that no longer exist are reused.
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

    /// The first of the runnable operations that are due.
    pub(super) fn due(&mut self, hardware: &Hardware) -> Option<usize> {
        let mut best = None;
        for index in &self.active {
            let lane = &mut self.lanes[*index];
            let Some(front) = lane.pending.front_mut() else { continue };
            if lane.running {
                continue;
            }
            if front.due <= self.submitted && front.is_ready(hardware, &lane.stream) {
                best = lower(best, (front.plan.key, front.position, *index));
            }
        }
        best.map(|(_, _, index)| index)
    }

    /// The first of the runnable operations that the points wait for. Operations without a delay
    /// come first.
    pub(super) fn needed(&mut self, hardware: &Hardware, points: &[Point]) -> Option<usize> {
        self.search += 1;
        self.lacks_value = false;
        let lane_of = |point: &Point| point.stream.lane.load(Ordering::Relaxed);
        self.to_visit.clear();
        self.to_visit.extend(points.iter().filter(|point| !point.is_reached()).map(lane_of));
        let mut best = None;
        while let Some(index) = self.to_visit.pop() {
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            if lane.running || lane.searched == self.search {
                continue;
            }
            lane.searched = self.search;
            let Some(front) = lane.pending.front_mut() else { continue };
            if front.is_ready(hardware, &lane.stream) {
                let late = u64::from(front.due > self.submitted);
                best = lower(best, (late << 63 | front.plan.key >> 1, front.position, index));
            } else {
                self.lacks_value |= front.waits.is_empty();
                self.to_visit.extend(front.waits.iter().map(lane_of));
            }
        }
        best.map(|(_, _, index)| index)
    }

    /// True if an operation is queued.
    pub(super) fn is_busy(&self) -> bool {
        !self.active.is_empty()
    }

    /// Any runnable operation, due or not.
    pub(super) fn any(&mut self, hardware: &Hardware) -> Option<usize> {
        let mut best = None;
        for index in &self.active {
            let lane = &mut self.lanes[*index];
            let Some(front) = lane.pending.front_mut() else { continue };
            if !lane.running && front.is_ready(hardware, &lane.stream) {
                best = lower(best, (front.plan.key, front.position, *index));
            }
        }
        best.map(|(_, _, index)| index)
    }

    /// For the trace: notes that the operation at the front of a lane runs before operations that
    /// were queued earlier.
    pub(super) fn overtake(&mut self, index: usize) {
        let record = self.lanes[index].pending.front_mut().and_then(|front| front.record.take());
        let (Some(record), Some(trace)) = (record, &mut self.trace) else { return };
        for active in &self.active {
            for pending in &mut self.lanes[*active].pending {
                let earlier = pending.record.as_mut().filter(|other| other.number < record.number);
                if let Some(other) = earlier {
                    trace.overtake(other, &record);
                }
            }
        }
        if let Some(front) = self.lanes[index].pending.front_mut() {
            front.record = Some(record);
        }
    }

    /// Removes the finished operation at the front of a lane.
    pub(super) fn finish(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        lane.running = false;
        self.finished += 1;
        if let Some(done) = lane.pending.pop_front() {
            self.pending -= 1;
            lane.stream.complete(done.position);
            if let (Some(trace), Some(record)) = (&mut self.trace, &done.record) {
                let number = record.number;
                let deviates = done.deviates && self.current != number;
                trace.finish(record, self.submitted, deviates);
            }
        }
        if lane.pending.is_empty() {
            self.active.retain(|active| *active != index);
        }
    }
}

impl Pending {
    /// Queues the second step after the first has run; other operations may run before it.
    pub(super) fn defer_rest(&mut self, submitted: u64, rest: Action) {
        self.action = rest;
        self.due = submitted + self.plan.delay.max(1 + self.plan.key % 8);
        self.plan.key = !self.plan.key;
    }

    /// True if all points that it waits for are reached, and its wait for a value is over.
    fn is_ready(&mut self, hardware: &Hardware, stream: &Stream) -> bool {
        self.waits.retain(|point| !point.is_reached());
        self.waits.is_empty() && hardware.can_run(stream, &self.action)
    }
}

/// The lower of two candidates: key, position, lane.
fn lower(
    best: Option<(u64, u64, usize)>,
    candidate: (u64, u64, usize),
) -> Option<(u64, u64, usize)> {
    Some(best.map_or(candidate, |best| best.min(candidate)))
}
