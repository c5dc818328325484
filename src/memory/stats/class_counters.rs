//! The counters of one class in an account.

use super::account::Split;
use crate::memory::stats::headroom::{Headroom, PARTS};
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, COUNTERS, Counters, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, REQUESTED_BYTES,
};

/// The counters of free memory, which is of one class. Their headroom is what is left below both
/// peaks.
pub const OF_MEMORY: [usize; 2] = [INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES];

/// The counters of one class.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ClassCounters {
    /// How much they may grow below the peaks of their own class; in `own`, also below those of
    /// all.
    pub(in crate::memory) headroom: Headroom,
    /// The values at the last reset.
    base: Counters,
    /// Blocks that `Account::count_alloc` counted since the last reset, and their bytes. Each is an
    /// increase of two counters.
    pub(in crate::memory) allocs: i64,
    /// All other increases since the last reset.
    pub(in crate::memory) increased: Counters,
    pub(in crate::memory) alloc_bytes: i64,
    /// The values when the headroom is used up: `most` = present value + headroom. So the hot path
    /// writes only the headroom.
    pub(in crate::memory) most: Counters,
    /// The values at the last request for this class, the requested changes included.
    pub(in crate::memory) at_request: Counters,
    /// What was granted of what is missing to these values, while headroom is distributed.
    pub(in crate::memory) granted: Counters,
    /// Blocks that became free before the last reset.
    freed_before: i64,
    /// If the headroom is the smaller of two: what is left below the peaks of the class beyond it.
    pub(in crate::memory) spare: Counters,
}

impl ClassCounters {
    /// The present value of a counter.
    #[inline]
    pub(in crate::memory) fn now(&self, counter: usize) -> i64 {
        self.most[counter] - self.headroom.of(counter)
    }

    /// Bytes that are active and not allocated. The headroom that the two counters have in common
    /// cancels out.
    #[inline(always)]
    pub(in crate::memory) fn waiting_bytes(&self) -> i64 {
        let active = self.most[ACTIVE_BYTES] - self.headroom.beyond[ACTIVE_BYTES];
        active - (self.most[ALLOCATED_BYTES] - self.headroom.beyond[ALLOCATED_BYTES])
    }

    /// The present values and the headroom, with what the headroom of another class below the peaks
    /// of all would allow.
    #[cfg(test)]
    pub fn most(&self) -> Counters {
        std::array::from_fn(|counter| self.most[counter] + self.spare[counter])
    }

    /// Present values.
    #[inline(always)]
    pub fn current(&self) -> Counters {
        std::array::from_fn(|counter| self.now(counter))
    }

    /// What each counter lacks to its value at the last request.
    #[inline]
    pub(in crate::memory) fn lacking(&self) -> Counters {
        std::array::from_fn(|counter| (self.at_request[counter] - self.now(counter)).max(0))
    }

    pub(in crate::memory) fn set_headroom(&mut self, headroom: Counters) {
        let current = self.current();
        self.most = std::array::from_fn(|counter| current[counter] + headroom[counter]);
        self.headroom = Headroom::new(headroom);
    }

    /// Sets the headroom that the free blocks leave, and counts the increases.
    #[inline(always)]
    pub(in crate::memory) fn set_split(&mut self, blocks: i64, bytes: i64) {
        let headroom = &mut self.headroom.beyond;
        self.increased[INACTIVE_SPLIT] += (headroom[INACTIVE_SPLIT] - blocks).max(0);
        self.increased[INACTIVE_SPLIT_BYTES] += (headroom[INACTIVE_SPLIT_BYTES] - bytes).max(0);
        headroom[INACTIVE_SPLIT] = blocks;
        headroom[INACTIVE_SPLIT_BYTES] = bytes;
    }

    /// All increases since the last reset.
    #[inline(always)]
    pub fn increased(&self) -> Counters {
        let mut increased = self.increased;
        increased[ALLOCATION] += self.allocs;
        increased[ACTIVE] += self.allocs;
        increased[ALLOCATED_BYTES] += self.alloc_bytes;
        increased[ACTIVE_BYTES] += self.alloc_bytes;
        increased
    }

    /// The present values, all increases since the last reset, and the values at that time. All
    /// decreases since then are the sum of the last two, minus the first.
    #[inline(always)]
    pub fn counts(&self) -> [Counters; 3] {
        [self.current(), self.increased(), self.base]
    }

    /// The number of blocks that ever became free. A pending block counts when it is no longer
    /// pending.
    pub(in crate::memory) fn total_freed(&self) -> u64 {
        let freed = self.increased()[ACTIVE] + self.base[ACTIVE] - self.now(ACTIVE);
        (self.freed_before + freed).cast_unsigned()
    }

    pub(in crate::memory) fn reset_accumulated(&mut self) {
        self.freed_before = self.total_freed().cast_signed();
        (self.increased, self.allocs, self.alloc_bytes) = ([0; COUNTERS], 0, 0);
        self.base = self.current();
    }

    /// The headroom of free memory that these free blocks leave.
    #[inline(always)]
    pub(in crate::memory) fn headroom_after(&self, split: Split) -> (i64, i64) {
        (self.most[INACTIVE_SPLIT] - split.blocks, self.most[INACTIVE_SPLIT_BYTES] - split.bytes)
    }

    /// Counts an allocated block, whose headroom was taken already.
    #[inline(always)]
    pub(in crate::memory) fn note_alloc(&mut self, bytes: i64, requested: i64) {
        self.allocs += 1;
        self.alloc_bytes += bytes;
        self.increased[REQUESTED_BYTES] += requested;
    }

    /// Sets the headroom to the smaller of what is left below the peaks of all and of the class,
    /// plus what was granted.
    pub(in crate::memory) fn set_both(&mut self, of_all: Counters, of_class: Counters) {
        self.spare = std::array::from_fn(|counter| (of_class[counter] - of_all[counter]).max(0));
        let headroom =
            |counter: usize| of_all[counter].min(of_class[counter]) + self.granted[counter];
        self.set_headroom(std::array::from_fn(headroom));
    }

    /// Adds headroom.
    #[inline]
    pub(in crate::memory) fn gain(&mut self, gained: [i64; PARTS]) {
        self.headroom.gain(gained);
        add_to(&mut self.most, gained);
    }

    /// Adds headroom of free memory below the peaks of all. What is left below those of its class
    /// stays as it is.
    pub(in crate::memory) fn gain_split(&mut self, gained: [i64; 2]) {
        for (counter, gained) in OF_MEMORY.into_iter().zip(gained) {
            self.headroom.beyond[counter] += gained;
            self.most[counter] += gained;
            self.spare[counter] -= gained;
        }
    }

    /// Applies a change that the headroom allows.
    pub(in crate::memory) fn apply(&mut self, change: &Counters) {
        self.headroom.take(change);
        self.increased.iter_mut().zip(change).for_each(|(sum, change)| *sum += (*change).max(0));
    }

    /// Applies a change whatever the headroom is.
    pub(in crate::memory) fn add(&mut self, change: &Counters) {
        self.most.iter_mut().zip(change).for_each(|(most, change)| *most += change);
        self.increased.iter_mut().zip(change).for_each(|(sum, change)| *sum += (*change).max(0));
    }

    /// Undoes [`ClassCounters::add`].
    pub(in crate::memory) fn undo(&mut self, change: &Counters) {
        self.most.iter_mut().zip(change).for_each(|(most, change)| *most -= change);
        self.increased.iter_mut().zip(change).for_each(|(sum, change)| *sum -= (*change).max(0));
    }
}

/// These counters, with 0 for [`OF_MEMORY`].
pub(in crate::memory) fn without_memory(mut counters: Counters) -> Counters {
    OF_MEMORY.into_iter().for_each(|counter| counters[counter] = 0);
    counters
}

/// Adds each of [`PARTS`] to the counters that contain it.
#[inline(always)]
fn add_to(counters: &mut Counters, [blocks, bytes, requested]: [i64; PARTS]) {
    counters[ALLOCATION] += blocks;
    counters[ACTIVE] += blocks;
    counters[ALLOCATED_BYTES] += bytes;
    counters[ACTIVE_BYTES] += bytes;
    counters[REQUESTED_BYTES] += requested;
}
