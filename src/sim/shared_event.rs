//! Events shared between processes: the number of records and the last reached record are in the
//! file of a device's memory.

use super::physical::Physical;
use super::queue::{Kind, Stream};
use super::sync::lock;
use super::worker::Worker;
use super::{Machine, schedule};
use crate::driver::code;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An event shared between processes.
pub(in crate::sim) struct SharedEvent {
    memory: Arc<Physical>,
    /// The host address of its words.
    address: usize,
    /// Its offset after the memory.
    pub(super) offset: usize,
    /// A pidfd of the process that created it; `None`: this process.
    creator: Option<libc::c_int>,
    /// A stream whose positions are the records of other processes.
    remote_stream: Arc<Stream>,
    is_watched: Mutex<bool>,
}

impl SharedEvent {
    /// Creates an event of a device.
    pub(super) fn create(memory: &Arc<Physical>) -> Result<SharedEvent, i32> {
        let offset = lock(&memory.slots).take_event().ok_or(code::OUT_OF_MEMORY)?;
        let shared = SharedEvent::at(memory, offset, None)?;
        shared.word(0).store(super::physical::next_id(), Ordering::Relaxed);
        shared.word(1).store(0, Ordering::Relaxed);
        shared.word(2).store(0, Ordering::Relaxed);
        Ok(shared)
    }

    /// Opens the event of another process at an offset of its memory.
    pub(super) fn at(
        memory: &Arc<Physical>,
        offset: usize,
        creator: Option<libc::c_int>,
    ) -> Result<SharedEvent, i32> {
        let Some(alias) = memory.alias() else {
            creator.into_iter().for_each(super::shared::close);
            return Err(code::OUT_OF_MEMORY);
        };
        Ok(SharedEvent {
            memory: Arc::clone(memory),
            address: alias + memory.bytes() + offset,
            offset,
            creator,
            remote_stream: Stream::new(memory.device, Kind::NonBlocking, 0),
            is_watched: Mutex::new(false),
        })
    }

    /// Its words: 0 the event number, 1 the number of records, 2 the last reached record.
    fn word(&self, index: usize) -> &AtomicU64 {
        let word = ptr::with_exposed_provenance::<AtomicU64>(self.address + index * 8);
        // SAFETY: aligned, and in the file's mapping, which `memory` keeps.
        unsafe { &*word }
    }

    /// The number that distinguishes it from other events at the same offset.
    pub(super) fn number(&self) -> u64 {
        self.word(0).load(Ordering::Relaxed)
    }

    /// Counts a record and returns its number.
    pub(super) fn record(&self) -> u64 {
        self.word(1).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Takes a failed record back. If another process has recorded since, the later record reaches
    /// both.
    pub(super) fn forget(&self, record: u64) {
        let (word, before) = (self.word(1), record.wrapping_sub(1));
        let _ = word.compare_exchange(record, before, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The number of the last record; 0: none.
    pub(super) fn recorded(&self) -> u64 {
        self.word(1).load(Ordering::Acquire)
    }

    /// Marks a record reached.
    pub(super) fn reach(&self, record: u64) {
        self.word(2).fetch_max(record, Ordering::AcqRel);
    }

    /// True if the process that created it has ended.
    fn is_lost(&self) -> bool {
        let Some(creator) = self.creator else { return false };
        let mut pidfd = libc::pollfd { fd: creator, events: libc::POLLIN, revents: 0 };
        // SAFETY: one initialised pollfd.
        unsafe { libc::poll(&mut pidfd, 1, 0) > 0 }
    }

    /// Returns the stream on which a record of another process has its number as position. A thread
    /// of the machine polls until the record is reached.
    pub(super) fn follow(self: &Arc<Self>, machine: &Arc<Machine>, record: u64) -> Arc<Stream> {
        let mut is_watched = lock(&self.is_watched);
        if self.update(machine) < record && !*is_watched {
            let (shared, machine_of_worker) = (Arc::clone(self), Arc::downgrade(machine));
            let worker = Worker::start(String::from("sim shared event"), move || {
                while let Some(machine) = machine_of_worker.upgrade() {
                    let mut is_watched = lock(&shared.is_watched);
                    if shared.update(&machine) >= shared.recorded() {
                        *is_watched = false;
                        return;
                    }
                    drop((is_watched, machine));
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            if let Some(worker) = worker {
                *is_watched = true;
                let mut workers = lock(&machine.workers);
                workers.retain(|worker| !worker.is_over());
                workers.push(worker);
            }
        }
        Arc::clone(&self.remote_stream)
    }

    /// Reads the last reached record and completes the stream up to it. The caller holds the lock.
    fn update(&self, machine: &Arc<Machine>) -> u64 {
        let lost = self.is_lost();
        let reached = if lost { self.recorded() } else { self.word(2).load(Ordering::Acquire) };
        if reached > self.remote_stream.completed() {
            self.remote_stream.finish(reached);
            schedule::note_remote_progress(machine);
        }
        self.remote_stream.completed()
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        match self.creator {
            Some(creator) => super::shared::close(creator),
            None => {
                // Waiters of other processes end: every record counts as reached.
                self.word(2).store(u64::MAX, Ordering::Release);
                lock(&self.memory.slots).give_event(self.offset);
            }
        }
    }
}
