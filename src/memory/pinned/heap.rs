//! Pinned blocks of one size class: segments of the driver's memory, split into blocks that merge
//! again. Blocks, bins, stream uses and deferred frees are those of the arenas.
//!
//! Invariants, checked by `Heap::check` in tests: the blocks of a segment partition it. Two free
//! blocks are never adjacent. Every free block is in its bin. Positions are units from the start of
//! the segment, whose index is in the block's field `later`. A block of which `oversize` is set is
//! a whole segment that returns to the driver as soon as it is free: it becomes a [`State::Hole`],
//! which is in no bin, until a thread is about to call the driver.

use super::directory::Place;
use super::events;
use super::source::{Memory, Origin};
use crate::base::error::{Error, Result};
use crate::base::region::Region;
use crate::memory::arena::bins::Bins;
use crate::memory::arena::block::{Block, Blocks, NONE, State};
use crate::memory::arena::stream_uses::{Awaited, Uses};
use crate::memory::config::size::Request;
use crate::memory::trace::ring::Action;
use std::mem::take;

/// The largest number of blocks.
const MOST_BLOCKS: usize = 8 << 20;
/// The value of `waits` of a block that a graph uses, or that is kept forever.
pub const KEPT: u16 = u16::MAX;

/// A segment of memory from the driver.
pub struct Segment {
    pub memory: Memory,
    /// Its first block. The id never changes: a merge keeps the id of the lower block.
    first: u32,
    /// The block that was last allocated at each unit.
    starts: Region<u32>,
}

/// The blocks of a size class, protected by one lock; apart from the cache lines of others.
#[repr(align(128))]
pub struct Heap {
    pub index: usize,
    shift: u32,
    pub blocks: Blocks,
    /// `None` until the first segment.
    bins: Option<Box<Bins>>,
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
    pub fn new(index: usize, shift: u32) -> Heap {
        Heap {
            index,
            shift,
            blocks: Blocks::new(MOST_BLOCKS),
            bins: None,
            segments: Vec::new(),
            uses: Uses::new(),
            bytes: 0,
            free_bytes: 0,
            unwanted: 0,
            allocated: [0; 2],
            freed: [0; 2],
        }
    }

    /// Takes the awaited streams and the segments, at a shutdown.
    pub fn take_all(&mut self) -> (Vec<Awaited>, Vec<Option<Segment>>) {
        (take(&mut self.uses.awaited), take(&mut self.segments))
    }

    /// The bytes of so many units.
    #[inline]
    pub fn bytes_of_units(&self, units: u32) -> i64 {
        i64::from(units) << self.shift
    }

    /// The bytes of a block.
    #[inline]
    pub fn bytes_of(&self, id: u32) -> i64 {
        self.bytes_of_units(self.blocks[id].units)
    }

    /// The first address of a block.
    #[inline]
    pub fn address_of(&self, id: u32) -> usize {
        let Block { start, later, .. } = self.blocks[id];
        let base = self.segments[later as usize].as_ref().map_or(0, |segment| segment.memory.base);
        base + ((start as usize) << self.shift)
    }

    fn insert(&mut self, id: u32) {
        if let Some(bins) = &mut self.bins {
            bins.insert(&mut self.blocks, id);
        }
    }

    fn remove(&mut self, id: u32) {
        if let Some(bins) = &mut self.bins {
            bins.remove(&mut self.blocks, id);
        }
    }

    /// Allocates a block and returns its address; `None`: no free block fits.
    #[inline]
    pub fn allocate(&mut self, request: Request, walk: usize) -> Result<Option<usize>> {
        let Some(bins) = &self.bins else { return Ok(None) };
        self.blocks.prepare(1)?;
        match bins.find(&self.blocks, request.units, walk) {
            NONE => Ok(None),
            id => Ok(Some(self.occupy(id, request))),
        }
    }

    /// Allocates a free block and splits the rest off. One block was prepared.
    #[inline]
    pub fn occupy(&mut self, id: u32, request: Request) -> usize {
        self.remove(id);
        let Block { start, units: whole, next, later, .. } = self.blocks[id];
        let units = request.units;
        if whole > units {
            let rest = Block::new(start + units, whole - units, State::Free);
            let rest = self.blocks.take(Block { later, ..rest });
            self.blocks[id].units = units;
            self.blocks.link(rest, id, next);
            self.insert(rest);
        }
        let block = &mut self.blocks[id];
        block.set_allocated(request);
        (block.uses, block.waits) = (0, 0);
        let bytes = self.bytes_of(id);
        self.free_bytes -= bytes as u64;
        self.allocated[0] += 1;
        self.allocated[1] += bytes;
        if let Some(segment) = &mut self.segments[later as usize] {
            segment.starts.as_mut_slice()[start as usize] = id;
        }
        events::of_block(self, id, &[Action::Alloc]);
        self.address_of(id)
    }

    /// The block, in use or not, that contains an address of a segment, and the offset in it;
    /// `None` if the segment is not there any more.
    #[inline]
    pub fn find(&self, place: Place, address: usize) -> Option<(u32, u64)> {
        let Place { memory: Memory { base, .. }, segment: index, .. } = place;
        let segment = self.segments.get(index as usize)?.as_ref();
        let segment = segment.filter(|segment| segment.memory.base == base)?;
        let unit = ((address - base) >> self.shift) as u32;
        let mut id = *segment.starts.as_slice().get(unit as usize)?;
        let is_in_segment = |block: &Block| block.later == index && block.state != State::Vacant;
        if self.blocks[id].start != unit || !is_in_segment(&self.blocks[id]) {
            id = self.blocks.holding(segment.first, unit, is_in_segment);
        }
        let offset = address - base - ((self.blocks[id].start as usize) << self.shift);
        (id != NONE).then_some((id, offset as u64))
    }

    /// Makes a block free and merges it with free neighbours. Returns its bytes.
    #[inline]
    pub fn release(&mut self, id: u32) -> i64 {
        let bytes = self.bytes_of(id);
        self.free_bytes += bytes as u64;
        self.freed[0] += 1;
        self.freed[1] += bytes;
        let Block { previous, next, oversize, .. } = self.blocks[id];
        if oversize {
            self.blocks[id].state = State::Hole;
            self.unwanted += 1;
            return bytes;
        }
        self.blocks[id].state = State::Free;
        let mut id = id;
        if next != NONE && self.blocks[next].state == State::Free {
            self.remove(next);
            self.blocks.absorb(id, next);
        }
        if previous != NONE && self.blocks[previous].state == State::Free {
            self.remove(previous);
            self.blocks.absorb(previous, id);
            id = previous;
        }
        self.insert(id);
        bytes
    }

    /// Makes sure that a segment of so many bytes can be added, and a block of it allocated.
    /// Returns the segment's index, and its table of blocks.
    pub fn prepare(&mut self, bytes: usize) -> Result<(usize, Region<u32>)> {
        if self.bins.is_none() {
            self.bins = Some(Bins::boxed("a heap of pinned memory")?);
        }
        let mut starts = Region::new(bytes >> self.shift);
        starts.grow(bytes >> self.shift)?;
        self.blocks.prepare(2)?;
        self.segments.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a segment"))?;
        let vacant = self.segments.iter().position(Option::is_none);
        Ok((vacant.unwrap_or(self.segments.len()), starts))
    }

    /// Adds a segment, for which room was prepared. Returns its only block, which is free.
    pub fn add(&mut self, memory: Memory, index: usize, starts: Region<u32>) -> u32 {
        let block = Block::new(0, (memory.bytes >> self.shift) as u32, State::Free);
        let first = self.blocks.take(Block { later: index as u32, ..block });
        self.insert(first);
        if index == self.segments.len() {
            self.segments.push(None);
        }
        self.segments[index] = Some(Segment { memory, first, starts });
        self.bytes += memory.bytes as u64;
        self.free_bytes += memory.bytes as u64;
        events::of_segment(Action::SegmentAlloc, memory);
        first
    }

    /// Removes the next unused segment, from index `from` on, that can be freed to the driver.
    pub fn detach(&mut self, from: usize, only_unwanted: bool) -> Option<(usize, Memory)> {
        for index in from..self.segments.len() {
            let Some(Segment { first, memory, .. }) = self.segments[index] else { continue };
            let Block { state, next, .. } = self.blocks[first];
            let is_idle = state == State::Free && next == NONE && memory.origin != Origin::Reserve;
            if state == State::Hole {
                self.unwanted -= 1;
            } else if is_idle && !only_unwanted {
                self.remove(first);
            } else {
                continue;
            }
            self.blocks.give(first);
            self.segments[index] = None;
            self.bytes -= memory.bytes as u64;
            self.free_bytes -= memory.bytes as u64;
            events::of_segment(Action::SegmentFree, memory);
            return Some((index, memory));
        }
        None
    }
}

#[cfg(test)]
impl Heap {
    /// Returns the first violated invariant.
    pub fn check(&self) -> std::result::Result<(), String> {
        let (mut bytes, mut free) = (0, 0);
        for segment in self.segments.iter().flatten() {
            let memory = segment.memory;
            bytes += memory.bytes as u64;
            let (mut id, mut at, mut was_free) = (segment.first, 0, false);
            while id != NONE {
                let block = &self.blocks[id];
                let name = format!("block at unit {at} of the segment at {:#x}", memory.base);
                if block.start != at {
                    return Err(format!("{name} says {}", block.start));
                }
                let is_free = block.state == State::Free;
                if is_free && was_free {
                    return Err(format!("{name} and the one below are free"));
                }
                let bins = self.bins.as_ref();
                if is_free != bins.is_some_and(|bins| bins.contains(&self.blocks, id)) {
                    return Err(format!("{name} is {:?}, and its bin says otherwise", block.state));
                }
                let address = memory.base + ((at as usize) << self.shift);
                let last = address + self.bytes_of(id) as usize - 1;
                for inside in [address, last] {
                    let place = Place { memory, heap: 0, segment: block.later };
                    if self.find(place, inside).map(|found| found.0) != Some(id) {
                        return Err(format!("{name} is not found"));
                    }
                }
                if matches!(block.state, State::Free | State::Hole) {
                    free += self.bytes_of(id) as u64;
                }
                was_free = is_free;
                at = block.end();
                id = block.next;
            }
            if at as usize != memory.bytes >> self.shift {
                return Err(format!("the segment at {:#x} has a gap at its end", memory.base));
            }
        }
        let counted = (self.bytes, self.free_bytes);
        if counted == (bytes, free) { Ok(()) } else { Err(format!("{counted:?} counted")) }
    }

    /// The allocated and pending blocks, and their bytes.
    pub fn held(&self) -> [i64; 2] {
        let mut held = [0; 2];
        for segment in self.segments.iter().flatten() {
            let mut id = segment.first;
            while id != NONE {
                if matches!(self.blocks[id].state, State::Allocated | State::Pending) {
                    held = [held[0] + 1, held[1] + self.bytes_of(id)];
                }
                id = self.blocks[id].next;
            }
        }
        held
    }
}
