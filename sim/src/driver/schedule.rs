//! Schedules: when operations run. All queued work goes through [`Schedule::submit`], and every
//! wait of the host through [`Schedule::reach`]. Another schedule needs another arm in these two
//! and in the queries.

use super::adversary::Adversary;
use super::config::ScheduleKind;
use super::context::Context;
use super::hardware::Hardware;
use super::hooks;
use super::queue::{Action, Kind, Point, Stream};
use super::sync::{lock, read};
use super::worker::{self, Worker};
use crate::base::code;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The schedule of a machine.
pub(super) struct Schedule {
    kind: ScheduleKind,
    hardware: Arc<Hardware>,
    pub(super) adversary: Arc<Adversary>,
    /// The threads of streams and of events shared with other processes.
    workers: Mutex<Vec<Worker>>,
}

impl Schedule {
    /// `adversary` is used only for an adversarial schedule.
    pub(super) fn new(
        kind: ScheduleKind,
        hardware: Arc<Hardware>,
        adversary: Adversary,
    ) -> Schedule {
        Schedule { kind, hardware, adversary: Arc::new(adversary), workers: Mutex::default() }
    }

    /// The byte that fills memory which was never written, or 0.
    pub(super) fn poison(&self) -> u8 {
        self.adversary.poison()
    }

    /// Begins a call of the host: under an adversarial schedule, returns when this thread is
    /// selected.
    #[inline]
    pub(super) fn call(&self) {
        if let ScheduleKind::Adversarial(_) = self.kind {
            self.adversary.call();
            hooks::notify_turn(worker::identity());
        }
    }

    /// Queues an operation. Returns its position in the stream.
    pub(super) fn submit(
        &self,
        stream: &Arc<Stream>,
        mut waits: Vec<Point>,
        action: Action,
    ) -> Result<Point, i32> {
        self.add_waits_of_context(stream, &mut waits);
        let position = match self.kind {
            ScheduleKind::Immediate => {
                let can_run = || self.hardware.can_run(stream, &action);
                let begun = match waits.iter().all(Point::wait_unless_deferred) {
                    true => stream.begin(&action, can_run),
                    false => None,
                };
                match begun {
                    Some(position) => {
                        self.hardware.run(stream, action);
                        stream.finish(position);
                        position
                    }
                    // It comes after a wait for a value, or is one.
                    None => self.push(stream, waits, action)?,
                }
            }
            ScheduleKind::Threads => self.push(stream, waits, action)?,
            ScheduleKind::Adversarial(_) => {
                if action.is_of_host() {
                    self.adversary.require_helper()?;
                }
                self.adversary.submit(stream, waits, action)
            }
        };
        Ok(Point { stream: Arc::clone(stream), position })
    }

    /// Queues an operation for the thread of a stream.
    fn push(
        &self,
        stream: &Arc<Stream>,
        mut waits: Vec<Point>,
        action: Action,
    ) -> Result<u64, i32> {
        waits.retain(|point| !point.is_reached());
        stream.push(waits, action, || self.spawn(stream))
    }

    /// True if an operation may run after the call that queues it.
    pub(super) fn may_defer(&self, stream: &Arc<Stream>) -> bool {
        if self.kind != ScheduleKind::Immediate || !stream.is_idle() {
            return true;
        }
        let mut waits = Vec::new();
        self.add_waits_of_context(stream, &mut waits);
        !waits.is_empty()
    }

    /// Waits on the host until some points are reached.
    pub(super) fn reach(&self, points: &[Point]) {
        match self.kind {
            // Other threads run the missing operations.
            ScheduleKind::Immediate | ScheduleKind::Threads => points.iter().for_each(Point::wait),
            ScheduleKind::Adversarial(_) => self.adversary.reach(points),
        }
    }

    /// Notes that the host queried a point that is not reached.
    pub(super) fn poll(&self, point: &Point) {
        if let ScheduleKind::Adversarial(_) = self.kind {
            self.adversary.poll(point);
        }
    }

    /// Notes that another process has reached a record.
    pub(super) fn note_remote_progress(&self) {
        if let ScheduleKind::Adversarial(_) = self.kind {
            self.adversary.note_remote_progress();
        }
    }

    /// Notes that the host can read what operations write.
    pub(super) fn share_memory(&self) {
        if let ScheduleKind::Adversarial(_) = self.kind {
            // Without the watcher, a host that waits for a word in memory would wait forever.
            self.adversary.start_watcher();
        }
    }

    /// Notes that another process may wait for queued work of the host, or the host for work of
    /// that process.
    pub(super) fn share_events(&self) {
        self.adversary.helpers.share_events();
        self.share_memory();
    }

    /// Waits until every stream of some contexts is idle.
    pub(super) fn drain<'a>(&self, contexts: impl IntoIterator<Item = &'a Context>) {
        let mut tails = Vec::new();
        for context in contexts {
            tails.extend(context.streams().iter().map(Stream::tail));
        }
        self.reach(&tails);
    }

    /// Waits until every stream of contexts that end is idle. A wait for a value that lasts longer
    /// than `patience` fails its context, so that its other work is dropped.
    pub(super) fn drain_at_end(&self, contexts: &[&Context], patience: Duration) {
        let gives_up = self.hardware.now().saturating_add(patience.as_nanos() as u64);
        for context in contexts {
            context.gives_up.store(gives_up, Ordering::Relaxed);
        }
        self.drain(contexts.iter().copied());
    }

    /// All streams wait for the barrier of their context. The legacy default stream and the
    /// blocking streams of its context wait for each other.
    fn add_waits_of_context(&self, stream: &Arc<Stream>, waits: &mut Vec<Point>) {
        let context = self.hardware.context_of(stream);
        context.barrier.add_to(waits, stream);
        match stream.kind {
            Kind::NonBlocking => {}
            Kind::Blocking => {
                if !context.legacy.is_idle() {
                    waits.push(context.legacy.tail());
                }
            }
            Kind::Legacy => {
                for other in read(&context.members).iter() {
                    if other.kind == Kind::Blocking && !other.is_idle() {
                        waits.push(other.tail());
                    }
                }
            }
        }
    }

    fn spawn(&self, stream: &Arc<Stream>) -> Result<(), i32> {
        let (hardware, stream) = (Arc::clone(&self.hardware), Arc::clone(stream));
        let worker = Worker::start(format!("sim stream {}", stream.id), move || {
            while let Some(operation) = stream.pop() {
                operation.waits.iter().for_each(Point::wait);
                hardware.wait_for_value(&stream, &operation.action);
                hardware.run(&stream, operation.action);
                stream.finish(operation.position);
            }
        });
        self.keep(worker.ok_or(code::OUT_OF_MEMORY)?);
        Ok(())
    }

    /// Keeps a thread until the machine is powered off.
    pub(super) fn keep(&self, worker: Worker) {
        let mut workers = lock(&self.workers);
        workers.retain(|worker| !worker.is_over());
        workers.push(worker);
    }

    /// Number of running threads, without those of an adversarial schedule.
    pub(super) fn workers(&self) -> usize {
        lock(&self.workers).iter().filter(|worker| !worker.is_over()).count()
    }

    /// Waits until all threads have ended. The streams are closed and have no work.
    pub(super) fn close(&self) {
        self.adversary.close();
        let workers = std::mem::take(&mut *lock(&self.workers));
        workers.into_iter().for_each(Worker::join);
    }
}
