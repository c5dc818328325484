//! Pinned blocks of one size class: segments of the driver's memory, split into blocks that merge
//! again.
//!
//! Invariants, checked by `Heap::check` in tests: the blocks of a segment partition it. Two free
//! blocks are never adjacent. Every free block is in its bin, unless its segment is being freed.
//! The marked blocks are exactly the allocated ones. Positions are units of the heap; each segment
//! has whole windows of positions of its own, so that a position determines its segment.

use super::events;
use super::marks::Marks;
use super::source::Origin;
use crate::base::error::{Error, Result};
use crate::base::place::{try_box_at, write_fields};
use crate::base::region::Region;
use crate::memory::arena::bins::Bins;
use crate::memory::arena::block::{Block, Blocks, NONE, State};
use crate::memory::arena::stream_uses::Uses;

/// The number of units of a window, as a shift.
const WINDOW_SHIFT: u32 = 12;
/// The largest number of windows.
const MOST_WINDOWS: usize = 1 << (32 - WINDOW_SHIFT);
/// The largest number of blocks.
const MOST_BLOCKS: usize = 8 << 20;
/// The value of `waits` of a block that a graph uses, or that is kept forever.
pub const KEPT: u16 = u16::MAX;

/// A segment of memory from the driver.
pub struct Segment {
    pub base: usize,
    pub bytes: usize,
    pub origin: Origin,
    /// Is it freed to the driver as soon as its block is free?
    pub once: bool,
    /// Is a thread about to free it to the driver?
    detached: bool,
    /// Its first position.
    first: u32,
    /// Its first block. The id never changes: a merge keeps the id of the lower block.
    block: u32,
    /// The block that starts at each unit; valid where there is a mark.
    starts: Region<u32>,
    marks: Marks,
}

/// A segment that is about to be freed to the driver.
#[derive(Clone, Copy)]
pub struct Detached {
    pub segment: u32,
    pub base: usize,
    pub bytes: usize,
    pub origin: Origin,
}

/// The blocks of a size class, protected by one lock.
pub struct Heap {
    shift: u32,
    pub blocks: Blocks,
    bins: Bins,
    /// The index of each window's segment, plus 1; 0: vacant.
    windows: Vec<u32>,
    pub segments: Vec<Option<Segment>>,
    pub uses: Uses,
    /// Bytes from the driver.
    pub bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Segments to be freed for which the driver has not been called yet.
    pub unwanted: u32,
    /// Blocks allocated since the last reset, and their bytes.
    pub allocated: [i64; 2],
    /// Blocks freed since the last reset, and their bytes.
    pub freed: [i64; 2],
}

impl Heap {
    /// An empty heap with units of `1 << shift` bytes.
    pub fn new(shift: u32) -> Result<Box<Heap>> {
        let write = |place| {
            let blocks = Blocks::new(MOST_BLOCKS);
            write_fields!(place, Heap {
                shift: shift,
                blocks: blocks,
                windows: Vec::new(),
                segments: Vec::new(),
                uses: Uses::new(),
                bytes: 0,
                free_bytes: 0,
                unwanted: 0,
                allocated: [0; 2],
                freed: [0; 2],
                @ bins: Bins::write_new,
            });
            Ok(())
        };
        // SAFETY: that writes all fields.
        unsafe { try_box_at("a heap of pinned memory", write) }
    }

    /// The bytes of a block.
    #[inline]
    pub fn bytes_of(&self, id: u32) -> u64 {
        u64::from(self.blocks[id].units) << self.shift
    }

    #[inline]
    fn segment_at(&self, start: u32) -> Option<u32> {
        self.windows.get((start >> WINDOW_SHIFT) as usize)?.checked_sub(1)
    }

    #[inline]
    fn segment_mut(&mut self, start: u32) -> Option<&mut Segment> {
        let index = self.segment_at(start)?;
        self.segments.get_mut(index as usize)?.as_mut()
    }

    /// The segment of an index, if it has this base address.
    #[inline]
    fn segment(&self, index: u32, base: usize) -> Option<&Segment> {
        self.segments.get(index as usize)?.as_ref().filter(|segment| segment.base == base)
    }

    /// Allocates a block; `None`: no free block fits.
    #[inline]
    pub fn allocate(&mut self, units: u32, requested: u64, walk: usize) -> Result<Option<usize>> {
        self.blocks.prepare(1)?;
        let id = self.bins.find(&self.blocks, units, walk);
        if id == NONE {
            return Ok(None);
        }
        Ok(Some(self.occupy(id, units, requested)))
    }

    /// Allocates from a segment that is entirely free.
    pub fn allocate_in(&mut self, index: u32, units: u32, requested: u64) -> Result<usize> {
        self.blocks.prepare(1)?;
        let segment = self.segments[index as usize].as_ref();
        let id = segment.map_or(NONE, |segment| segment.block);
        Ok(self.occupy(id, units, requested))
    }

    /// Allocates a free block and splits the rest off. One block was prepared.
    #[inline]
    fn occupy(&mut self, id: u32, units: u32, requested: u64) -> usize {
        self.bins.remove(&mut self.blocks, id);
        let Block { start, units: whole, next, .. } = self.blocks[id];
        if whole > units {
            let rest = self.blocks.take(Block::new(start + units, whole - units, State::Free));
            self.blocks[id].units = units;
            self.blocks.link(rest, id, next);
            self.bins.insert(&mut self.blocks, rest);
        }
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = requested;
        block.uses = 0;
        block.waits = 0;
        // The bin used the same field.
        block.set_stack(0);
        let bytes = self.bytes_of(id);
        self.free_bytes -= bytes;
        self.allocated[0] += 1;
        self.allocated[1] += bytes as i64;
        let shift = self.shift;
        let Some(segment) = self.segment_mut(start) else { return 0 };
        let unit = (start - segment.first) as usize;
        segment.starts.as_mut_slice()[unit] = id;
        segment.marks.set(unit);
        let address = segment.base + (unit << shift);
        events::allocated(self, id);
        address
    }

    /// The first address of a block.
    pub fn address_of(&self, id: u32) -> usize {
        let start = self.blocks[id].start;
        let index = self.segment_at(start).map(|index| index as usize);
        let segment = index.and_then(|index| self.segments.get(index)?.as_ref());
        segment
            .map_or(0, |segment| segment.base + (((start - segment.first) as usize) << self.shift))
    }

    /// The allocated block that starts at an address of a segment.
    #[inline]
    pub fn find(&self, index: u32, base: usize, address: usize) -> Option<u32> {
        let segment = self.segment(index, base)?;
        let unit = (address - base) >> self.shift;
        let exact = address - base == unit << self.shift && segment.marks.has(unit);
        exact.then(|| segment.starts.as_slice()[unit])
    }

    /// The allocated block that contains an address of a segment.
    #[inline]
    pub fn find_around(&self, index: u32, base: usize, address: usize) -> Option<u32> {
        let segment = self.segment(index, base)?;
        let offset = address - base;
        let unit = segment.marks.last_up_to(offset >> self.shift)?;
        let id = segment.starts.as_slice()[unit];
        let inside = (offset - (unit << self.shift)) as u64;
        (inside < self.blocks[id].requested).then_some(id)
    }

    /// The kept block that starts at an address of a segment, allocated or not.
    pub fn find_kept(&self, index: u32, base: usize, address: usize) -> Option<u32> {
        let segment = self.segment(index, base)?;
        let id = *segment.starts.as_slice().get((address - base) >> self.shift)?;
        (self.blocks[id].waits == KEPT && self.address_of(id) == address).then_some(id)
    }

    /// Removes the mark of a block that the host frees, so that it is no longer found.
    #[inline]
    pub fn unmark(&mut self, id: u32) {
        let start = self.blocks[id].start;
        if let Some(segment) = self.segment_mut(start) {
            segment.marks.clear((start - segment.first) as usize);
        }
    }

    /// Makes a block free and merges it with free neighbours. Returns its bytes.
    #[inline]
    pub fn release(&mut self, id: u32) -> u64 {
        let bytes = self.bytes_of(id);
        self.free_bytes += bytes;
        self.freed[0] += 1;
        self.freed[1] += bytes as i64;
        let Block { previous, next, .. } = self.blocks[id];
        self.blocks[id].state = State::Free;
        if next != NONE && self.blocks[next].state == State::Free {
            self.bins.remove(&mut self.blocks, next);
            self.merge_with(id, next);
        }
        let mut id = id;
        if previous != NONE && self.blocks[previous].state == State::Free {
            self.bins.remove(&mut self.blocks, previous);
            self.merge_with(previous, id);
            id = previous;
        }
        let start = self.blocks[id].start;
        if let Some(segment) = self.segment_mut(start)
            && segment.once
        {
            // This block is the whole segment.
            self.blocks[id].state = State::Hole;
            self.unwanted += 1;
        } else {
            self.bins.insert(&mut self.blocks, id);
        }
        bytes
    }

    fn merge_with(&mut self, id: u32, next: u32) {
        self.blocks[id].units += self.blocks[next].units;
        self.blocks.unlink(next);
        self.blocks.give(next);
    }

    /// Finds `count` adjacent vacant windows; returns the first.
    fn take_windows(&mut self, count: usize) -> Result<usize> {
        let mut row = 0;
        for (index, window) in self.windows.iter().enumerate() {
            row = if *window == 0 { row + 1 } else { 0 };
            if row == count {
                return Ok(index + 1 - count);
            }
        }
        let start = self.windows.len() - row;
        let full = Error::OutOfHostMemory("one more segment of pinned memory: the table is full");
        if start + count > MOST_WINDOWS {
            return Err(full);
        }
        self.windows.try_reserve(count - row).map_err(|_| full)?;
        self.windows.resize(start + count, 0);
        Ok(start)
    }

    /// Adds a free segment; returns its index.
    pub fn add(&mut self, base: usize, bytes: usize, origin: Origin, once: bool) -> Result<u32> {
        let units = bytes >> self.shift;
        let marks = Marks::new(units)?;
        let mut starts = Region::new(units);
        starts.grow(units)?;
        self.blocks.prepare(1)?;
        self.segments.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a segment"))?;
        let count = units.div_ceil(1 << WINDOW_SHIFT);
        let window = self.take_windows(count)?;
        // Nothing below can fail.
        let index = match self.segments.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.segments.push(None);
                self.segments.len() - 1
            }
        };
        self.windows[window..window + count].fill(index as u32 + 1);
        let first = (window << WINDOW_SHIFT) as u32;
        let block = self.blocks.take(Block::new(first, units as u32, State::Free));
        self.bins.insert(&mut self.blocks, block);
        self.segments[index] = Some(Segment {
            base,
            bytes,
            origin,
            once,
            detached: false,
            first,
            block,
            starts,
            marks,
        });
        self.bytes += bytes as u64;
        self.free_bytes += bytes as u64;
        events::segment_added(base, bytes);
        Ok(index as u32)
    }

    /// Chooses the next unused segment, from index `from` on, that can be freed to the driver. It
    /// is not used until `reattach` or `remove` is called.
    pub fn detach(&mut self, from: usize, only_unwanted: bool) -> Option<Detached> {
        for index in from..self.segments.len() {
            let Some(segment) = self.segments[index].as_mut().filter(|segment| !segment.detached)
            else {
                continue;
            };
            let block = &self.blocks[segment.block];
            let is_whole = block.next == NONE;
            let unwanted = block.state == State::Hole;
            if unwanted {
                self.unwanted -= 1;
            } else if !only_unwanted
                && block.state == State::Free
                && is_whole
                && segment.origin != Origin::Reserve
            {
                self.bins.remove(&mut self.blocks, segment.block);
                self.blocks[segment.block].state = State::Hole;
            } else {
                continue;
            }
            segment.detached = true;
            let Segment { base, bytes, origin, .. } = *segment;
            events::segment_removed(base, bytes);
            return Some(Detached { segment: index as u32, base, bytes, origin });
        }
        None
    }

    /// Puts a segment back in the cache after the driver failed to free it.
    pub fn reattach(&mut self, index: u32) {
        if let Some(segment) = self.segments[index as usize].as_mut() {
            segment.detached = false;
            segment.once = false;
            events::segment_added(segment.base, segment.bytes);
            self.blocks[segment.block].state = State::Free;
            self.bins.insert(&mut self.blocks, segment.block);
        }
    }

    /// Removes a segment that was just added, and from which nothing was allocated.
    pub fn withdraw(&mut self, index: u32) {
        if let Some(segment) = self.segments[index as usize].as_ref() {
            self.bins.remove(&mut self.blocks, segment.block);
            events::segment_removed(segment.base, segment.bytes);
            self.remove(index);
        }
    }

    /// Makes a freed block wait for the streams that use it.
    pub fn enqueue(&mut self, id: u32) {
        self.blocks[id].uses = self.uses.enqueue(self.blocks[id].uses, id);
    }

    /// Removes a segment that was freed to the driver.
    pub fn remove(&mut self, index: u32) {
        if let Some(segment) = self.segments[index as usize].take() {
            self.blocks.give(segment.block);
            self.bytes -= segment.bytes as u64;
            self.free_bytes -= segment.bytes as u64;
            for window in self.windows.iter_mut().filter(|window| **window == index + 1) {
                *window = 0;
            }
        }
    }
}

#[cfg(test)]
impl Heap {
    /// Returns the first violated invariant.
    pub fn check(&self) -> std::result::Result<(), String> {
        let (mut bytes, mut free) = (0, 0);
        for segment in self.segments.iter().flatten() {
            bytes += segment.bytes as u64;
            let (mut id, mut at, mut was_free) = (segment.block, segment.first, false);
            while id != NONE {
                let block = &self.blocks[id];
                let name = format!("block at unit {at} of the segment at {:#x}", segment.base);
                if block.start != at {
                    return Err(format!("{name} says {}", block.start));
                }
                let is_free = block.state == State::Free;
                if is_free && was_free {
                    return Err(format!("{name} and the one below are free"));
                }
                if is_free != self.bins.contains(&self.blocks, id) {
                    return Err(format!("{name} is {:?}, and its bin says otherwise", block.state));
                }
                let unit = (at - segment.first) as usize;
                if (block.state == State::Allocated) != segment.marks.has(unit) {
                    return Err(format!("{name} is {:?}, and its mark is not", block.state));
                }
                if matches!(block.state, State::Free | State::Hole) {
                    free += self.bytes_of(id);
                }
                was_free = is_free;
                at = block.end();
                id = block.next;
            }
            if (at - segment.first) as usize != segment.bytes >> self.shift {
                return Err(format!("the segment at {:#x} has a gap at its end", segment.base));
            }
        }
        let counted = (self.bytes, self.free_bytes);
        if counted == (bytes, free) { Ok(()) } else { Err(format!("{counted:?} counted")) }
    }

    /// The allocated and pending blocks, and their bytes.
    pub fn held(&self) -> [i64; 2] {
        let mut held = [0; 2];
        for segment in self.segments.iter().flatten() {
            let mut id = segment.block;
            while id != NONE {
                if matches!(self.blocks[id].state, State::Allocated | State::Pending) {
                    held = [held[0] + 1, held[1] + self.bytes_of(id) as i64];
                }
                id = self.blocks[id].next;
            }
        }
        held
    }
}
