//! The slots after a device's memory in its file: each describes one allocation to other processes.
//! Entries of events follow the slots. A process holds a read lock on the first byte of a slot
//! while it uses the allocation. The system drops the lock when the last duplicate of the
//! descriptor is closed, so a process that dies keeps no memory.

use std::ptr;

/// Bytes of a slot, and the number of slots.
pub(super) const SLOT: usize = 4096;
pub(super) const SLOTS: usize = 4096;
/// Bytes of an event's entry, and the number of entries; CUDA has about 22000.
pub(super) const EVENT: usize = 64;
const EVENTS: usize = 32_768;
/// Bytes after the memory in the file.
pub(super) const META: usize = SLOT * SLOTS + EVENT * EVENTS;

/// The used slots and event entries.
#[derive(Default)]
pub(super) struct Slots {
    used: Vec<bool>,
    events: Vec<bool>,
}

fn take(used: &mut Vec<bool>, most: usize) -> Option<usize> {
    let index = used.iter().position(|used| !used).unwrap_or(used.len());
    match used.get_mut(index) {
        Some(place) => *place = true,
        None if index < most => used.push(true),
        None => return None,
    }
    Some(index)
}

impl Slots {
    /// Allocates a slot.
    pub(super) fn take(&mut self) -> Option<usize> {
        take(&mut self.used, SLOTS)
    }

    /// Frees a slot, unless another process still uses its allocation. `file` is the device's file,
    /// with `bytes` of memory; `alias` is its host address.
    pub(super) fn give(
        &mut self,
        slot: usize,
        file: i32,
        bytes: usize,
        alias: Option<usize>,
    ) -> bool {
        let offset = bytes + slot * SLOT;
        if !lock_slot(file, offset, libc::F_WRLCK) {
            return false;
        }
        if let Some(alias) = alias {
            let magic = ptr::with_exposed_provenance_mut::<u64>(alias + offset);
            // SAFETY: the slot lies in the file and no other process uses it.
            unsafe { magic.write(0) };
        }
        lock_slot(file, offset, libc::F_UNLCK);
        if let Some(used) = self.used.get_mut(slot) {
            *used = false;
        }
        true
    }

    /// Allocates an event entry; returns its offset after the memory.
    pub(super) fn take_event(&mut self) -> Option<usize> {
        take(&mut self.events, EVENTS).map(|index| SLOT * SLOTS + index * EVENT)
    }

    /// Frees an event entry.
    pub(super) fn give_event(&mut self, offset: usize) {
        if let Some(used) = self.events.get_mut((offset - SLOT * SLOTS) / EVENT) {
            *used = false;
        }
    }
}

/// Locks a slot's first byte for this open file description; false if another holds a conflicting
/// lock.
pub(super) fn lock_slot(file: i32, offset: usize, kind: i32) -> bool {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: offset as i64,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: all fields of the lock are set.
    unsafe { libc::fcntl(file, libc::F_OFD_SETLK, &raw const lock) == 0 }
}
