//! Events that several processes have: how often they were recorded, and up to which record they are
//! reached, in the file of a device's memory.

use super::physical::Physical;
use super::queue::{Kind, Stream};
use super::worker::Worker;
use super::{Machine, code, lock, schedule};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An event that several processes have.
pub(in crate::sim) struct SharedEvent {
    memory: Arc<Physical>,
    /// Where its words are seen.
    address: usize,
    /// Behind the memory.
    pub(super) offset: usize,
    /// A descriptor of the process that made it; none: this one did.
    maker: Option<libc::c_int>,
    /// Stands for the records of other processes.
    theirs: Arc<Stream>,
    is_watched: Mutex<bool>,
}

impl SharedEvent {
    /// A new one of a device.
    pub(super) fn create(memory: &Arc<Physical>) -> Result<SharedEvent, i32> {
        let offset = lock(&memory.slots).take_event().ok_or(code::OUT_OF_MEMORY)?;
        let shared = SharedEvent::at(memory, offset, None)?;
        shared.word(0).store(super::physical::next_id(), Ordering::Relaxed);
        shared.word(1).store(0, Ordering::Relaxed);
        shared.word(2).store(0, Ordering::Relaxed);
        Ok(shared)
    }

    /// The one of another process at a place of its memory.
    pub(super) fn at(
        memory: &Arc<Physical>,
        offset: usize,
        maker: Option<libc::c_int>,
    ) -> Result<SharedEvent, i32> {
        let Some(alias) = memory.alias() else {
            maker.into_iter().for_each(super::shared::close);
            return Err(code::OUT_OF_MEMORY);
        };
        Ok(SharedEvent {
            memory: Arc::clone(memory),
            address: alias + memory.bytes() + offset,
            offset,
            maker,
            theirs: Stream::new(memory.device, Kind::NonBlocking, 0),
            is_watched: Mutex::new(false),
        })
    }

    /// Its number, how often it was recorded, the record that is reached.
    fn word(&self, index: usize) -> &AtomicU64 {
        let word = ptr::with_exposed_provenance::<AtomicU64>(self.address + index * 8);
        // SAFETY: in the mapping of the file, which this keeps, and aligned.
        unsafe { &*word }
    }

    /// What tells it from others in the same place.
    pub(super) fn number(&self) -> u64 {
        self.word(0).load(Ordering::Relaxed)
    }

    /// One more record.
    pub(super) fn record(&self) -> u64 {
        self.word(1).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// A record that failed. One that came after it, in another process, reaches both.
    pub(super) fn forget(&self, record: u64) {
        let (word, before) = (self.word(1), record.wrapping_sub(1));
        let _ = word.compare_exchange(record, before, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The last record; 0: none.
    pub(super) fn recorded(&self) -> u64 {
        self.word(1).load(Ordering::Acquire)
    }

    /// A record is reached.
    pub(super) fn reach(&self, record: u64) {
        self.word(2).fetch_max(record, Ordering::AcqRel);
    }

    /// Has the process ended that made it?
    fn is_lost(&self) -> bool {
        let Some(maker) = self.maker else { return false };
        let mut asked = libc::pollfd { fd: maker, events: libc::POLLIN, revents: 0 };
        // SAFETY: one whole question.
        unsafe { libc::poll(&mut asked, 1, 0) > 0 }
    }

    /// The stream on which a record of another process stands at its number. A thread of the machine
    /// looks until it is reached.
    pub(super) fn follow(self: &Arc<Self>, machine: &Arc<Machine>, record: u64) -> Arc<Stream> {
        let mut is_watched = lock(&self.is_watched);
        if self.look(machine) < record && !*is_watched {
            let (shared, machine_of_worker) = (Arc::clone(self), Arc::downgrade(machine));
            let worker = Worker::start(String::from("sim shared event"), move || {
                while let Some(machine) = machine_of_worker.upgrade() {
                    let mut is_watched = lock(&shared.is_watched);
                    if shared.look(&machine) >= shared.recorded() {
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
        Arc::clone(&self.theirs)
    }

    /// Looks up to which record it is reached, and says so on our stream. The caller holds the lock.
    fn look(&self, machine: &Arc<Machine>) -> u64 {
        let lost = self.is_lost();
        let reached = if lost { self.recorded() } else { self.word(2).load(Ordering::Acquire) };
        if reached > self.theirs.completed() {
            self.theirs.finish(reached);
            schedule::passed_elsewhere(machine);
        }
        self.theirs.completed()
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        match self.maker {
            Some(maker) => super::shared::close(maker),
            None => {
                // Nobody waits for what is gone.
                self.word(2).store(u64::MAX, Ordering::Release);
                lock(&self.memory.slots).give_event(self.offset);
            }
        }
    }
}
