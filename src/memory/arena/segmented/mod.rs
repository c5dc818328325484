//! Arenas whose memory comes in whole segments, from cuMemAlloc or from an allocator of the host,
//! instead of being mapped. They serve IPC and RDMA, drivers without virtual memory, and pools that
//! do not split blocks. Allocation, splitting, merging and release match PyTorch to the byte.
//!
//! Blocks, locks, deferred frees, history and accounts are the same as in other arenas. A segment
//! has a range of the arena's units for itself, which does not depend on its addresses, and a hole
//! on each side, so that no block merges across its edge. A block's `bin_next` is the index of its
//! segment. Free blocks are in `fits` instead of bins.

pub(in crate::memory) mod fits;
pub(in crate::memory) mod table;

pub use table::{arena_of, device_of, segment_of};

use crate::base::error::{Error, Result};
use crate::memory::arena::ArenaState;
use crate::memory::arena::block::{Block, NONE, State};
use crate::memory::backing::pluggable::Pluggable;
use crate::memory::config::segment_rules::Rules;
use crate::memory::config::size::{Request, UNIT};
use crate::profiling::nvtx::memory::Heap;
use fits::{Fit, Fits};

/// A segment: one allocation of the source.
pub struct Allocation {
    /// First address.
    pub address: u64,
    /// Length; 0: a vacant entry.
    pub bytes: u64,
    /// First unit.
    pub start: u32,
    /// Is it counted as oversize?
    pub oversize: bool,
    /// The allocator that it came from; `None`: the driver.
    pub source: Option<Pluggable>,
    /// The profiler's name of its heap, if a profiler records allocations.
    pub heap: Option<Heap>,
}

impl Allocation {
    const NONE: Allocation =
        Allocation { address: 0, bytes: 0, start: 0, oversize: false, source: None, heap: None };
}

/// The segments of an arena.
pub struct Segments {
    list: Vec<Allocation>,
    fits: Fits,
    /// Bytes of all segments.
    bytes: u64,
    count: usize,
    /// Blocks in all segments.
    blocks: usize,
}

impl Segments {
    /// No segments.
    pub fn new() -> Segments {
        Segments { list: Vec::new(), fits: Fits::new(), bytes: 0, count: 0, blocks: 0 }
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of segments.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Number of blocks in them.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Counts a block that was cut off another.
    pub(in crate::memory) fn count_part(&mut self) {
        self.blocks += 1;
    }

    /// Reserves room for `count` more free blocks.
    pub(in crate::memory) fn prepare_fits(&mut self, count: usize) -> Result<()> {
        self.fits.prepare(self.blocks + count)
    }

    /// All segments.
    pub fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.list.iter().filter(|allocation| allocation.bytes != 0)
    }

    /// The segment of a block.
    pub fn of(&self, block: &Block) -> &Allocation {
        &self.list[block.bin_next as usize]
    }

    /// The address of a block.
    pub fn address(&self, block: &Block) -> u64 {
        let segment = self.of(block);
        segment.address + u64::from(block.start - segment.start) * UNIT
    }
}

impl Segments {
    /// Removes any segment, even one in use.
    pub(in crate::memory) fn take_any(&mut self) -> Option<Allocation> {
        loop {
            let last = self.list.pop()?;
            if last.bytes != 0 {
                return Some(last);
            }
        }
    }
}

/// The base and length in bytes of the units of such an arena, where an arena in a slot has
/// `slot_bytes` of addresses. The holes between segments need more units than the memory itself.
pub fn units_for(slot_bytes: u64) -> (u64, u64) {
    (0, slot_bytes.saturating_mul(4).min(u64::from(u32::MAX) * UNIT))
}

/// A new segment: its only block, free and in no list, and its first unit.
pub struct Attached {
    /// The block.
    pub id: u32,
    /// The unit.
    pub start: u32,
}

impl ArenaState {
    /// Is it a block of the same segment as its neighbour, not a hole?
    fn is_in_segment(&self, id: u32) -> bool {
        id != NONE && self.blocks[id].state != State::Hole
    }

    /// Does a block share its segment with others?
    pub(in crate::memory) fn is_split(&self, id: u32) -> bool {
        let Block { previous, next, .. } = self.blocks[id];
        self.is_in_segment(previous) || self.is_in_segment(next)
    }

    fn fit_of(&self, segments: &Segments, id: u32, since: u64) -> Fit {
        let block = &self.blocks[id];
        Fit { units: block.units, id, address: segments.address(block), since }
    }

    /// Adds a free block to `fits`. Room was reserved.
    pub(in crate::memory) fn insert_fit(&mut self, id: u32, since: u64) {
        let Some(mut segments) = self.segments.take() else { return };
        let fit = self.fit_of(&segments, id, since);
        segments.fits.insert(fit);
        self.segments = Some(segments);
    }

    /// Is a free block in `fits`, at the right place?
    #[cfg(test)]
    pub(in crate::memory) fn has_fit(&self, id: u32) -> bool {
        let Some(segments) = &self.segments else { return false };
        let block = &self.blocks[id];
        let address = segments.address(block);
        let is_it = |fit: &&Fit| (fit.units, fit.address) == (block.units, address);
        let found: Vec<&Fit> = segments.fits.as_slice().iter().filter(is_it).collect();
        found.len() == 1
            && found[0].id == id
            && segments.fits.as_slice().is_sorted_by_key(fits::key)
    }

    /// The number of blocks in `fits`.
    #[cfg(test)]
    pub(in crate::memory) fn fit_count(&self) -> usize {
        self.segments.as_ref().map_or(0, |segments| segments.fits.as_slice().len())
    }

    /// Removes a free block from `fits`.
    pub(in crate::memory) fn remove_fit(&mut self, id: u32) {
        let Some(segments) = &mut self.segments else { return };
        let block = &self.blocks[id];
        let address = segments.address(block);
        segments.fits.remove(block.units, address);
    }

    /// Adds a segment at units below `limit`. On failure nothing changes. On success the allocation
    /// is taken, and [`ArenaState::occupy`] of its block, which is in no list yet, cannot fail.
    pub(in crate::memory) fn attach(
        &mut self,
        allocation: &mut Option<Allocation>,
        limit: u64,
    ) -> Result<Attached> {
        let bytes = allocation.as_ref().map_or(0, |allocation| allocation.bytes);
        let units = (bytes / UNIT) as u32;
        let (index, hole, start) = self.prepare_attach(units, limit)?;
        let id = self.new_block(start, units, State::Free);
        self.blocks[id].bin_next = index as u32;
        self.link_between_holes(id, hole);
        if let (Some(segments), Some(allocation)) = (&mut self.segments, allocation.take()) {
            let allocation = Allocation { start, ..allocation };
            match segments.list.get_mut(index) {
                Some(place) => *place = allocation,
                None => segments.list.push(allocation),
            }
            segments.bytes += bytes;
            segments.count += 1;
            segments.blocks += 1;
        }
        Ok(Attached { id, start })
    }

    /// Makes room for a segment: its index, the hole that it goes into, and its first unit.
    fn prepare_attach(&mut self, units: u32, limit: u64) -> Result<(usize, u32, u32)> {
        const NO_ROOM: Error = Error::OutOfHostMemory("the list of segments");
        self.blocks.prepare(4)?;
        let (hole, start) = self.place(units, limit).ok_or(NO_ROOM)?;
        self.prepare_start()?;
        let Some(segments) = &mut self.segments else { return Err(NO_ROOM) };
        segments.fits.prepare(segments.blocks + 2)?;
        segments.list.try_reserve(1).map_err(|_| NO_ROOM)?;
        let vacant = segments.list.iter().position(|allocation| allocation.bytes == 0);
        Ok((vacant.unwrap_or(segments.list.len()), hole, start))
    }

    /// The place of a segment of `units`: the lowest hole with room for it and a hole on each side,
    /// or [`NONE`] for the end; and its first unit.
    fn place(&self, units: u32, limit: u64) -> Option<(u32, u32)> {
        let wanted = units.checked_add(2)?;
        let mut id = self.first;
        while id != NONE {
            let block = &self.blocks[id];
            if block.state == State::Hole && block.units >= wanted {
                return Some((id, block.start + 1));
            }
            id = block.next;
        }
        let start = if self.last == NONE { 0 } else { self.end() + 1 };
        (u64::from(start) + u64::from(units) < limit).then_some((NONE, start))
    }

    /// Links a new segment's block into a hole, of which a part stays on each side. At the end,
    /// adds a hole below it instead.
    fn link_between_holes(&mut self, id: u32, hole: u32) {
        let Block { start, units, .. } = self.blocks[id];
        if hole == NONE {
            if self.last != NONE {
                let gap = self.new_block(start - 1, 1, State::Hole);
                self.blocks.link(gap, self.last, NONE);
                self.last = gap;
            }
            self.blocks.link(id, self.last, NONE);
            self.last = id;
            if self.first == NONE {
                self.first = id;
            }
            return;
        }
        let below = self.blocks[hole].previous;
        let gap = self.new_block(start - 1, 1, State::Hole);
        let end = self.blocks[hole].end();
        let upper = &mut self.blocks[hole];
        (upper.start, upper.units) = (start + units, end - start - units);
        self.blocks.link(gap, below, id);
        self.blocks.link(id, gap, hole);
        if self.first == hole {
            self.first = gap;
        }
    }

    /// Detaches a segment whose only block is free and in no list.
    pub(in crate::memory) fn detach(&mut self, id: u32) -> Allocation {
        let Some(segments) = &mut self.segments else { return Allocation::NONE };
        let place = &mut segments.list[self.blocks[id].bin_next as usize];
        let gone = std::mem::replace(place, Allocation::NONE);
        segments.bytes -= gone.bytes;
        segments.count -= 1;
        segments.blocks -= 1;
        self.blocks[id].state = State::Hole;
        self.join_holes(id);
        self.drop_holes_at_end();
        gone
    }

    /// The best fit for a request, if the rules allow it.
    pub(in crate::memory) fn best_fit(&self, request: Request, rules: &Rules) -> Option<u32> {
        let fit = self.segments.as_ref()?.fits.best(request.units)?;
        let bytes = |units: u32| u64::from(units) * UNIT;
        rules.suits(bytes(request.units), bytes(fit.units)).then_some(fit.id)
    }

    /// Reserves what `occupy` needs, so that it cannot fail.
    pub(in crate::memory) fn prepare_occupy(&mut self) -> Result<()> {
        self.blocks.prepare(1)?;
        self.prepare_start()?;
        let Some(segments) = &mut self.segments else { return Ok(()) };
        segments.fits.prepare(segments.blocks + 1)
    }

    /// Allocates a free block that is in no list, or its lower part. `prepare_occupy` was called.
    pub(in crate::memory) fn occupy(&mut self, id: u32, request: Request, rules: &Rules, now: u64) {
        let Request { units, bytes: requested, .. } = request;
        let Block { start, units: whole, next, .. } = self.blocks[id];
        if self.is_split(id) {
            self.free_blocks -= 1;
            self.free_bytes -= self.blocks[id].bytes();
        }
        let rest = whole - units;
        let bytes = |units: u32| u64::from(units) * UNIT;
        if rest > 0 && rules.splits(self.class, bytes(units), bytes(rest)) {
            let rest = self.new_block(start + units, rest, State::Free);
            self.blocks[rest].bin_next = self.blocks[id].bin_next;
            self.blocks[id].units = units;
            self.blocks.link(rest, id, next);
            if self.last == id {
                self.last = rest;
            }
            self.free_blocks += 1;
            self.free_bytes += self.blocks[rest].bytes();
            if let Some(segments) = &mut self.segments {
                segments.blocks += 1;
            }
            self.insert_fit(rest, now);
        }
        self.note_start(id);
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = requested;
        block.set_stack(0);
        block.uses = 0;
        block.oversize = rules.is_oversize(block.bytes() as u64);
        self.active_blocks += 1;
    }

    /// Makes a block free and merges it with the free neighbours in its segment.
    pub(in crate::memory) fn release_in_segment(&mut self, id: u32, now: u64) {
        let Block { previous, next, .. } = self.blocks[id];
        let is_free = |state: &ArenaState, id| id != NONE && state.blocks[id].state == State::Free;
        let mut id = id;
        self.forget_start(id);
        if is_free(self, next) {
            self.merge_with(id, next, next);
        }
        if is_free(self, previous) {
            self.merge_with(previous, id, previous);
            id = previous;
        }
        self.blocks[id].state = State::Free;
        if self.is_split(id) {
            self.free_blocks += 1;
            self.free_bytes += self.blocks[id].bytes();
        }
        self.insert_fit(id, now);
    }

    /// Merges two neighbours; `free` is the one that is in `fits`.
    fn merge_with(&mut self, id: u32, next: u32, free: u32) {
        self.remove_fit(free);
        self.free_blocks -= 1;
        self.free_bytes -= self.blocks[free].bytes();
        self.absorb(id, next);
        if let Some(segments) = &mut self.segments {
            segments.blocks -= 1;
        }
    }

    /// The free blocks that are whole segments, the smallest first.
    pub(in crate::memory) fn idle(&self) -> impl DoubleEndedIterator<Item = Fit> {
        let fits = self.segments.as_ref().map_or(&[][..], |segments| segments.fits.as_slice());
        fits.iter().copied().filter(|fit| !self.is_split(fit.id))
    }

    /// The profiler's name of the heap of a block's segment.
    pub(in crate::memory) fn heap(&self, id: u32) -> Option<Heap> {
        self.segments.as_ref()?.of(&self.blocks[id]).heap
    }

    /// The address of a block in an arena with this base.
    pub(in crate::memory) fn address(&self, base: u64, id: u32) -> u64 {
        let block = &self.blocks[id];
        match &self.segments {
            None => base + u64::from(block.start) * UNIT,
            Some(segments) => segments.address(block),
        }
    }

    /// Bytes from the driver, and the number of contiguous ranges or segments that hold them.
    pub(in crate::memory) fn reserved(&self) -> (i64, i64) {
        match &self.segments {
            None => (self.segment.bytes() as i64, self.segment.ranges()),
            Some(segments) => (segments.bytes() as i64, segments.count() as i64),
        }
    }

    /// Bytes of the largest free block, whole segments included.
    pub(in crate::memory) fn largest_free(&self) -> u64 {
        let is_free = |state| matches!(state, State::Free | State::Quick | State::ForeignFree);
        let blocks = self.blocks.all().map(|id| &self.blocks[id]);
        let free = blocks.filter(|block| is_free(block.state)).map(|block| block.units);
        let largest = free.chain(self.idle().map(|fit| fit.units)).max();
        u64::from(largest.unwrap_or(0)) * UNIT
    }

    /// Bytes of free blocks, whole segments included.
    pub(in crate::memory) fn unused(&self) -> u64 {
        let idle: u64 = self.idle().map(|fit| u64::from(fit.units) * UNIT).sum();
        self.free_bytes.max(0) as u64 + idle
    }

    /// The number of blocks except holes.
    pub(in crate::memory) fn listed(&self) -> usize {
        match &self.segments {
            None => (self.active_blocks + self.free_blocks) as usize,
            Some(segments) => segments.blocks(),
        }
    }
}
