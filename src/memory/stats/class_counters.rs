//! The counters of one class in an account.

use super::account::Split;
use crate::memory::stats::headroom::Headroom;
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, COUNTERS, Counters, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, REQUESTED_BYTES,
};

/// The counters of one class.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ClassCounters {
    /// How much they may grow below the peaks of their class.
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

    /// The headroom of free memory, if these blocks are free.
    #[inline(always)]
    pub(in crate::memory) fn free_left(&self, split: Split) -> [i64; 2] {
        [self.most[INACTIVE_SPLIT] - split.blocks, self.most[INACTIVE_SPLIT_BYTES] - split.bytes]
    }

    /// Counts increases of free memory, whose headroom was taken already.
    #[inline(always)]
    pub(in crate::memory) fn note_free(&mut self, [blocks, bytes]: [i64; 2]) {
        self.increased[INACTIVE_SPLIT] += blocks;
        self.increased[INACTIVE_SPLIT_BYTES] += bytes;
    }

    /// Counts an allocated block, whose headroom was taken already.
    #[inline(always)]
    pub(in crate::memory) fn note_alloc(&mut self, bytes: i64, requested: i64) {
        self.allocs += 1;
        self.alloc_bytes += bytes;
        self.increased[REQUESTED_BYTES] += requested;
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
