//! How much the quantities of an account may grow before somebody has to be asked.

use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, Lanes, REQUESTED_BYTES,
};

/// What a block needs as it comes: a block, its bytes, and those that were asked for.
pub const PARTS: usize = 3;

/// Slack for each lane.
///
/// A block that comes is allocated and active, and so is one that nobody else uses when it goes: each of
/// these two lanes has its own slack, and what they have in common is in one number, which is all that the
/// hot path reads and writes.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Slack {
    /// Blocks that may come. What the hot path writes does not lie side by side: a compiler would read two
    /// words as a vector, and a processor then waits until what the last call wrote word by word is in its
    /// cache.
    pub blocks: i64,
    /// By lane: the first four beyond `blocks` and `bytes`, one of each two by nothing.
    pub beyond: Lanes,
    /// Bytes of blocks that may come.
    pub bytes: i64,
}

impl Slack {
    /// So much for each lane.
    pub fn new(lanes: Lanes) -> Slack {
        let mut slack = Slack { blocks: 0, beyond: lanes, bytes: 0 };
        slack.share();
        slack
    }

    /// That of a lane.
    #[inline]
    pub fn of(&self, lane: usize) -> i64 {
        let common = match lane {
            ALLOCATION | ACTIVE => self.blocks,
            ALLOCATED_BYTES | ACTIVE_BYTES => self.bytes,
            _ => 0,
        };
        self.beyond[lane] + common
    }

    /// What two lanes have beyond what they have in common becomes common.
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

    /// Is there as much of each lane?
    pub fn allows(&self, lanes: &Lanes) -> bool {
        lanes.iter().enumerate().all(|(lane, wanted)| self.of(lane) >= *wanted)
    }

    /// Takes as much of each lane, or gives it back where it is negative.
    pub fn take(&mut self, lanes: &Lanes) {
        self.beyond.iter_mut().zip(lanes).for_each(|(slack, lane)| *slack -= lane);
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
    pub fn left(&self, bytes: i64, requested: i64) -> Left {
        Left {
            blocks: self.blocks - 1,
            bytes: self.bytes - bytes,
            requested: self.beyond[REQUESTED_BYTES] - requested,
        }
    }

    /// A block came.
    #[inline(always)]
    pub fn set(&mut self, left: Left) {
        self.blocks = left.blocks;
        self.bytes = left.bytes;
        self.beyond[REQUESTED_BYTES] = left.requested;
    }
}

/// What is left of each of [`PARTS`].
#[derive(Clone, Copy)]
pub struct Left {
    blocks: i64,
    bytes: i64,
    requested: i64,
}

impl Left {
    /// Negative if one of them is.
    #[inline(always)]
    pub fn lowest(self) -> i64 {
        self.blocks | self.bytes | self.requested
    }
}
