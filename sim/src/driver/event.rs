//! Events: points in streams of this process or, for shared events, of another.

use super::context::Context;
use super::queue::{Kind, Mark, Point, Stream};
use super::schedule::Schedule;
use super::shared_event::SharedEvent;
use super::sync::lock;
use super::worker::Worker;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An event: the point of its last record.
pub(super) struct Event {
    pub(super) device: usize,
    /// The number of its context.
    pub(super) context: usize,
    pub(super) is_timed: bool,
    recorded: Mutex<Recorded>,
    /// The part that is shared with other processes.
    pub(super) shared: Option<Arc<RemoteRecords>>,
}

/// The last record of an event.
#[derive(Clone, Default)]
pub(super) enum Recorded {
    #[default]
    Never,
    At(Arc<Mark>),
    /// The end of what was recorded on a stream of a capture.
    Captured(Arc<Captured>),
}

/// A capture, and numbers of nodes of its graph.
pub(super) struct Captured {
    pub(super) capture: u64,
    pub(super) ends: Vec<usize>,
}

impl Event {
    pub(super) fn new(context: &Context, is_timed: bool, shared: Option<SharedEvent>) -> Event {
        let shared = shared.map(|shared| Arc::new(RemoteRecords::of(shared)));
        let (device, context) = (context.device, context.number);
        Event { device, context, is_timed, recorded: Mutex::default(), shared }
    }

    /// The last record, of this process or another.
    pub(super) fn recorded(&self, schedule: &Arc<Schedule>) -> Recorded {
        let own = lock(&self.recorded).clone();
        let Some(shared) = &self.shared else { return own };
        let number = match &own {
            Recorded::Captured(_) => return own,
            Recorded::At(mark) => mark.shared.as_ref().map_or(0, |(_, number)| *number),
            Recorded::Never => 0,
        };
        let last = shared.event.recorded();
        if last <= number {
            return own;
        }
        // Another process recorded it last.
        Recorded::At(Arc::new(Mark {
            stream: shared.follow(schedule, last),
            position: AtomicU64::new(last),
            time: AtomicU64::new(0),
            timed: false,
            shared: None,
        }))
    }

    /// The mark of a record that is to be queued on a stream.
    pub(super) fn new_mark(&self, stream: &Arc<Stream>) -> Arc<Mark> {
        let record = |shared: &Arc<RemoteRecords>| {
            let event = Arc::clone(&shared.event);
            let number = event.record();
            (event, number)
        };
        Arc::new(Mark {
            stream: Arc::clone(stream),
            position: AtomicU64::new(u64::MAX),
            time: AtomicU64::new(0),
            timed: self.is_timed,
            shared: self.shared.as_ref().map(record),
        })
    }

    pub(super) fn set(&self, recorded: Recorded) {
        *lock(&self.recorded) = recorded;
    }

    /// The recorded point; `None` if it was never recorded or recorded in a capture.
    pub(super) fn point(&self) -> Option<Point> {
        match &*lock(&self.recorded) {
            Recorded::At(mark) => Some(mark.point()),
            Recorded::Never | Recorded::Captured(_) => None,
        }
    }
}

/// The records that other processes make of a shared event.
pub(super) struct RemoteRecords {
    pub(super) event: Arc<SharedEvent>,
    /// A stream whose positions are the numbers of the records.
    stream: Arc<Stream>,
    is_watched: Mutex<bool>,
}

impl RemoteRecords {
    fn of(event: SharedEvent) -> RemoteRecords {
        let stream = Stream::new(event.device(), Kind::NonBlocking, 0);
        RemoteRecords { event: Arc::new(event), stream, is_watched: Mutex::new(false) }
    }

    /// Returns the stream on which a record of another process has its number as position. A thread
    /// of the machine polls until the record is reached.
    fn follow(self: &Arc<Self>, schedule: &Arc<Schedule>, record: u64) -> Arc<Stream> {
        let mut is_watched = lock(&self.is_watched);
        if self.update(schedule) < record && !*is_watched {
            let (records, schedule_of_worker) = (Arc::clone(self), Arc::downgrade(schedule));
            let worker = Worker::start(String::from("sim shared event"), move || {
                while let Some(schedule) = schedule_of_worker.upgrade() {
                    let mut is_watched = lock(&records.is_watched);
                    if records.update(&schedule) >= records.event.recorded() {
                        *is_watched = false;
                        return;
                    }
                    drop((is_watched, schedule));
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            if let Some(worker) = worker {
                *is_watched = true;
                schedule.keep(worker);
            }
        }
        Arc::clone(&self.stream)
    }

    /// Reads the last reached record and completes the stream up to it. The caller holds the lock.
    fn update(&self, schedule: &Schedule) -> u64 {
        let reached = self.event.reached();
        if reached > self.stream.completed() {
            self.stream.finish(reached);
            schedule.note_remote_progress();
        }
        self.stream.completed()
    }
}
