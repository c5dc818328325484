//! Headroom: how much the quantities of an account may grow before it makes a request to the
//! ledger.

use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, Counters, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, REQUESTED_BYTES,
};

/// The headroom that an allocated block needs: a block, its bytes, and its requested bytes.
pub const PARTS: usize = 3;

/// The headroom of each counter.
///
/// An allocation changes the counters of allocated and of active blocks alike, and so does the free
/// of a block that no other stream uses. The headroom that the two counters have in common is in
/// one number, which is all that the hot path reads and writes.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Headroom {
    /// The common headroom of allocated and active blocks. What the hot path writes is not
    /// adjacent. A compiler would read two adjacent words as a vector, and a processor would then
    /// wait until the words that the last call wrote are in its cache.
    pub blocks: i64,
    /// The headroom of each counter, less the common headroom. Invariant: `min(beyond[ALLOCATION],
    /// beyond[ACTIVE])` and `min(beyond[ALLOCATED_BYTES], beyond[ACTIVE_BYTES])` are 0.
    pub beyond: Counters,
    /// The common headroom of allocated and active bytes.
    pub bytes: i64,
}

impl Headroom {
    /// A headroom of so much for each counter.
    pub fn new(counters: Counters) -> Headroom {
        let mut headroom = Headroom { blocks: 0, beyond: counters, bytes: 0 };
        headroom.share();
        headroom
    }

    /// The headroom of a counter.
    #[inline]
    pub fn of(&self, counter: usize) -> i64 {
        let common = match counter {
            ALLOCATION | ACTIVE => self.blocks,
            ALLOCATED_BYTES | ACTIVE_BYTES => self.bytes,
            _ => 0,
        };
        self.beyond[counter] + common
    }

    /// Moves what two counters have in common to the common headroom, which establishes the
    /// invariant of `beyond`.
    #[inline]
    pub fn share(&mut self) {
        let blocks = self.beyond[ALLOCATION].min(self.beyond[ACTIVE]);
        self.blocks += blocks;
        self.beyond[ALLOCATION] -= blocks;
        self.beyond[ACTIVE] -= blocks;
        let bytes = self.beyond[ALLOCATED_BYTES].min(self.beyond[ACTIVE_BYTES]);
        self.bytes += bytes;
        self.beyond[ALLOCATED_BYTES] -= bytes;
        self.beyond[ACTIVE_BYTES] -= bytes;
    }

    /// Is there so much for each counter?
    pub fn allows(&self, counters: &Counters) -> bool {
        counters.iter().enumerate().all(|(counter, wanted)| self.of(counter) >= *wanted)
    }

    /// Takes so much of each counter, or adds it if negative.
    pub fn take(&mut self, counters: &Counters) {
        self.beyond.iter_mut().zip(counters).for_each(|(headroom, counter)| *headroom -= counter);
        self.share();
    }

    /// Adds to each of [`PARTS`].
    #[inline(always)]
    pub fn gain(&mut self, [blocks, bytes, requested]: [i64; PARTS]) {
        self.blocks += blocks;
        self.bytes += bytes;
        self.beyond[REQUESTED_BYTES] += requested;
    }

    /// The headroom of free memory: of its blocks and of their bytes.
    #[inline(always)]
    pub fn free(&self) -> [i64; 2] {
        [self.beyond[INACTIVE_SPLIT], self.beyond[INACTIVE_SPLIT_BYTES]]
    }

    /// Sets it.
    #[inline(always)]
    pub fn set_free(&mut self, [blocks, bytes]: [i64; 2]) {
        self.beyond[INACTIVE_SPLIT] = blocks;
        self.beyond[INACTIVE_SPLIT_BYTES] = bytes;
    }

    /// What remains after an allocation.
    #[inline(always)]
    pub fn left(&self, bytes: i64, requested: i64) -> Remaining {
        Remaining {
            blocks: self.blocks - 1,
            bytes: self.bytes - bytes,
            requested: self.beyond[REQUESTED_BYTES] - requested,
        }
    }

    /// Takes the headroom of an allocation, which leaves so much.
    #[inline(always)]
    pub fn set(&mut self, left: Remaining) {
        self.blocks = left.blocks;
        self.bytes = left.bytes;
        self.beyond[REQUESTED_BYTES] = left.requested;
    }
}

/// What remains of each of [`PARTS`].
#[derive(Clone, Copy)]
pub struct Remaining {
    blocks: i64,
    bytes: i64,
    requested: i64,
}

impl Remaining {
    /// Negative if any of them is.
    #[inline(always)]
    pub fn lowest(self) -> i64 {
        self.blocks | self.bytes | self.requested
    }
}
