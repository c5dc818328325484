//! Events shared between processes: the number of records and the last reached record are in the
//! file of a device's memory.

use super::physical::{Physical, next_id};
use super::shared;
use super::sync::lock;
use crate::base::code;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An event shared between processes.
pub(super) struct SharedEvent {
    memory: Arc<Physical>,
    /// The host address of its words.
    address: usize,
    /// Its offset after the memory.
    pub(super) offset: usize,
    /// A pidfd of the process that created it; `None`: this process.
    creator: Option<libc::c_int>,
}

impl SharedEvent {
    /// Creates an event of a device.
    pub(super) fn create(memory: &Arc<Physical>) -> Result<SharedEvent, i32> {
        let offset = lock(&memory.slots).take_event().ok_or(code::OUT_OF_MEMORY)?;
        let shared = SharedEvent::at(memory, offset, None)?;
        shared.word(0).store(next_id(), Ordering::Relaxed);
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
            creator.into_iter().for_each(shared::close);
            return Err(code::OUT_OF_MEMORY);
        };
        Ok(SharedEvent {
            memory: Arc::clone(memory),
            address: alias + memory.bytes() + offset,
            offset,
            creator,
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

    /// The number of the last reached record. If the process that created the event has ended,
    /// every record counts as reached.
    pub(super) fn reached(&self) -> u64 {
        if self.is_lost() { self.recorded() } else { self.word(2).load(Ordering::Acquire) }
    }

    /// The device of its memory.
    pub(super) fn device(&self) -> usize {
        self.memory.device
    }

    /// True if the process that created it has ended.
    fn is_lost(&self) -> bool {
        let Some(creator) = self.creator else { return false };
        let mut pidfd = libc::pollfd { fd: creator, events: libc::POLLIN, revents: 0 };
        // SAFETY: one initialised pollfd.
        unsafe { libc::poll(&mut pidfd, 1, 0) > 0 }
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        match self.creator {
            Some(creator) => shared::close(creator),
            None => {
                // Waiters of other processes end: every record counts as reached.
                self.word(2).store(u64::MAX, Ordering::Release);
                lock(&self.memory.slots).give_event(self.offset);
            }
        }
    }
}
