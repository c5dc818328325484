//! The segments of a pool, divided into blocks. A free block records the points of streams that
//! must be reached before it is reused.

use super::queue::{Point, Stream};
use super::unit::Block;
use crate::base::code;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

/// Minimum size of a segment, and the unit of blocks.
pub(super) const SEGMENT: usize = 32 << 20;
pub(super) const BLOCK: usize = 512;
/// Indices of the reuse flags.
const OPPORTUNISTIC: usize = 1;
const INTERNAL_DEPENDENCIES: usize = 2;

/// The memory and counters of a pool.
pub(super) struct PoolState {
    /// Segments by address; a block never crosses the end of its segment.
    pub(super) segments: BTreeMap<usize, usize>,
    pub(super) free: BTreeMap<usize, Free>,
    pub(super) used_blocks: BTreeMap<usize, (usize, Block)>,
    pub(super) threshold: u64,
    /// Follow event dependencies, allow opportunistic reuse, allow internal dependencies. The first
    /// has no effect: for a stream that already waited for an event, the internal wait costs
    /// nothing.
    pub(super) reuse: [c_int; 3],
    pub(super) reserved: [u64; 2],
    pub(super) used: [u64; 2],
}

/// A free block, and the points that must be reached before its reuse.
pub(super) struct Free {
    pub(super) bytes: usize,
    pub(super) after: Vec<Point>,
}

impl Free {
    /// Removes the points that are reached.
    pub(super) fn settle(&mut self) {
        self.after.retain(|point| !point.is_reached());
    }
}

/// Adds to a counter and its high-water mark.
pub(super) fn count(counter: &mut [u64; 2], bytes: usize) {
    counter[0] += bytes as u64;
    counter[1] = counter[1].max(counter[0]);
}

impl PoolState {
    pub(super) fn new() -> PoolState {
        PoolState {
            segments: BTreeMap::new(),
            free: BTreeMap::new(),
            used_blocks: BTreeMap::new(),
            threshold: 0,
            reuse: [1; 3],
            reserved: [0; 2],
            used: [0; 2],
        }
    }

    /// The block that contains an address.
    pub(super) fn block(&self, address: usize) -> Option<(usize, Block)> {
        let (start, (_, found)) = self.used_blocks.range(..=address).next_back()?;
        (address - start < found.bytes).then_some((*start, *found))
    }

    /// The lowest free block that fits and that `stream` may use. Blocks that need no wait come
    /// first.
    pub(super) fn fit(&mut self, bytes: usize, stream: &Arc<Stream>) -> Option<usize> {
        let mut with_wait = None;
        for (start, block) in &mut self.free {
            if block.bytes < bytes {
                continue;
            }
            if self.reuse[OPPORTUNISTIC] != 0 {
                block.settle();
            }
            if block.after.iter().all(|point| Arc::ptr_eq(&point.stream, stream)) {
                return Some(*start);
            }
            with_wait = with_wait.or(Some(*start));
        }
        with_wait.filter(|_| self.reuse[INTERNAL_DEPENDENCIES] != 0)
    }

    pub(super) fn take(
        &mut self,
        start: usize,
        bytes: usize,
        requested: usize,
    ) -> Option<Vec<Point>> {
        let block = self.free.remove(&start)?;
        if block.bytes > bytes {
            let rest = Free { bytes: block.bytes - bytes, after: block.after.clone() };
            self.free.insert(start + bytes, rest);
        }
        self.used_blocks.insert(start, (bytes, Block::new(requested)));
        // The used counter counts requested bytes, not rounded bytes (580.159).
        count(&mut self.used, requested);
        Some(block.after)
    }

    pub(super) fn give_back(&mut self, start: usize, after: Vec<Point>) -> Result<(), i32> {
        let (bytes, block) = self.used_blocks.remove(&start).ok_or(code::INVALID_VALUE)?;
        self.used[0] -= block.bytes as u64;
        let mut merged = (start, Free { bytes, after });
        let is_edge = |address: &usize| self.segments.contains_key(address);
        if !is_edge(&start)
            && let Some((before, room)) = self.free.range(..start).next_back()
            && before + room.bytes == start
        {
            let before = *before;
            let mut block = self.free.remove(&before).ok_or(code::UNKNOWN)?;
            block.bytes += merged.1.bytes;
            block.after.append(&mut merged.1.after);
            merged = (before, block);
        }
        let end = merged.0 + merged.1.bytes;
        if !is_edge(&end)
            && let Some(mut block) = self.free.remove(&end)
        {
            merged.1.bytes += block.bytes;
            merged.1.after.append(&mut block.after);
        }
        self.free.insert(merged.0, merged.1);
        Ok(())
    }

    /// Removes whole free segments until at most `keep` bytes are reserved.
    pub(super) fn trim(&mut self, keep: u64) -> Vec<(usize, usize)> {
        let mut removed = Vec::new();
        for (start, bytes) in &self.segments {
            if self.reserved[0] <= keep {
                break;
            }
            let whole = self.free.get_mut(start).is_some_and(|block| {
                block.settle();
                block.bytes == *bytes && block.after.is_empty()
            });
            if whole {
                self.free.remove(start);
                self.reserved[0] -= *bytes as u64;
                removed.push((*start, *bytes));
            }
        }
        for (start, _) in &removed {
            self.segments.remove(start);
        }
        removed
    }
}
