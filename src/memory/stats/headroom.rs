//! How much the quantities of an account may grow before somebody has to be asked.

use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, Counters, REQUESTED_BYTES,
};

/// What a block needs as it comes: a block, its bytes, and those that were asked for.
pub const PARTS: usize = 3;

/// Headroom for each counter.
///
/// A block that comes is allocated and active, and so is one that nobody else uses when it goes: each of
/// these two counters has its own headroom, and what they have in common is in one number, which is all that the
/// hot path reads and writes.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Headroom {
    /// Blocks that may come. What the hot path writes does not lie side by side: a compiler would read two
    /// words as a vector, and a processor then waits until what the last call wrote word by word is in its
    /// cache.
    pub blocks: i64,
    /// By counter: the first four beyond `blocks` and `bytes`, one of each two by nothing.
    pub beyond: Counters,
    /// Bytes of blocks that may come.
    pub bytes: i64,
}

impl Headroom {
    /// So much for each counter.
    pub fn new(counters: Counters) -> Headroom {
        let mut headroom = Headroom { blocks: 0, beyond: counters, bytes: 0 };
        headroom.share();
        headroom
    }

    /// That of a counter.
    #[inline]
    pub fn of(&self, counter: usize) -> i64 {
        let common = match counter {
            ALLOCATION | ACTIVE => self.blocks,
            ALLOCATED_BYTES | ACTIVE_BYTES => self.bytes,
            _ => 0,
        };
        self.beyond[counter] + common
    }

    /// What two counters have beyond what they have in common becomes common.
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

    /// Is there as much of each counter?
    pub fn allows(&self, counters: &Counters) -> bool {
        counters.iter().enumerate().all(|(counter, wanted)| self.of(counter) >= *wanted)
    }

    /// Takes as much of each counter, or gives it back where it is negative.
    pub fn take(&mut self, counters: &Counters) {
        self.beyond.iter_mut().zip(counters).for_each(|(headroom, counter)| *headroom -= counter);
        self.share();
    }

    /// What there is of each of [`PARTS`].
    #[inline(always)]
    pub fn parts(&self) -> [i64; PARTS] {
        [self.blocks, self.bytes, self.beyond[REQUESTED_BYTES]]
    }

    /// More of each of [`PARTS`].
    #[inline(always)]
    pub fn gain(&mut self, [blocks, bytes, requested]: [i64; PARTS]) {
        self.blocks += blocks;
        self.bytes += bytes;
        self.beyond[REQUESTED_BYTES] += requested;
    }

    /// What is left when a block came.
    #[inline(always)]
    pub fn left(&self, bytes: i64, requested: i64) -> Remaining {
        Remaining {
            blocks: self.blocks - 1,
            bytes: self.bytes - bytes,
            requested: self.beyond[REQUESTED_BYTES] - requested,
        }
    }

    /// A block came.
    #[inline(always)]
    pub fn set(&mut self, left: Remaining) {
        self.blocks = left.blocks;
        self.bytes = left.bytes;
        self.beyond[REQUESTED_BYTES] = left.requested;
    }
}

/// What is left of each of [`PARTS`].
#[derive(Clone, Copy)]
pub struct Remaining {
    blocks: i64,
    bytes: i64,
    requested: i64,
}

impl Remaining {
    /// Negative if one of them is.
    #[inline(always)]
    pub fn lowest(self) -> i64 {
        self.blocks | self.bytes | self.requested
    }
}
