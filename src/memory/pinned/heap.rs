//! Pinned blocks of one size class: segments of the driver's memory, cut into blocks that merge again.
//!
//! Invariants, checked by `Heap::check` of the tests: the blocks of a segment partition it, and two free
//! ones are never neighbours; every free block is in its bin, unless its segment is leaving; exactly
//! the blocks that the host holds are marked. Positions are units of the heap, of which each segment has
//! whole windows of its own, so that a position leads to its segment.

use super::marks::Marks;
use super::past;
use super::source::Origin;
use crate::base::error::{Error, Result};
use crate::base::place::{try_box_at, write_fields};
use crate::gpu::waits::Stamp;
use crate::memory::arena::bins::Bins;
use crate::memory::arena::block::{Block, Blocks, NONE, State};
use crate::memory::arena::deferred_free::DeferredFrees;
use crate::memory::arena::stream_uses::Uses;
use crate::memory::backing::region::Region;

/// Units of a window.
const WINDOW_SHIFT: u32 = 12;
/// Windows that there can be.
const MOST_WINDOWS: usize = 1 << (32 - WINDOW_SHIFT);
/// Blocks that there can be.
const MOST_BLOCKS: usize = 8 << 20;
/// Stands for the streams that a block waits for while a graph uses it, or for ever.
pub const KEPT: u16 = u16::MAX;

/// Memory from the driver.
pub struct Segment {
    pub base: usize,
    pub bytes: usize,
    pub origin: Origin,
    /// Goes back as soon as it is free.
    pub once: bool,
    /// The driver is being asked to take it back.
    leaving: bool,
    /// Its first position.
    first: u32,
    /// Its first block, whose name never changes: who merges takes the lower one's.
    block: u32,
    /// Block that starts at a unit of it, where there is a mark.
    starts: Region<u32>,
    marks: Marks,
}

/// Memory that is on its way back to the driver.
#[derive(Clone, Copy)]
pub struct Leaving {
    pub segment: u32,
    pub base: usize,
    pub bytes: usize,
    pub origin: Origin,
}

/// The blocks of a size class, as one lock guards them.
pub struct Heap {
    shift: u32,
    pub blocks: Blocks,
    bins: Bins,
    /// Segment of a window, counted from 1; 0: unowned.
    windows: Vec<u32>,
    pub segments: Vec<Option<Segment>>,
    pub uses: Uses,
    pub deferred: DeferredFrees,
    /// Memory from the driver.
    pub bytes: u64,
    /// What of it is free.
    pub free_bytes: u64,
    /// Segments that are to go back, and for which the driver has not been asked.
    pub unwanted: u32,
    /// Blocks that were given out, and their bytes, since the last reset.
    pub allocated: [i64; 2],
    /// Those that came back.
    pub freed: [i64; 2],
}

impl Heap {
    /// No memory, in units of `1 << shift` bytes.
    pub fn new(shift: u32) -> Result<Box<Heap>> {
        let write = |place| {
            let blocks = Blocks::new(MOST_BLOCKS);
            write_fields!(place, Heap {
                shift: shift,
                blocks: blocks,
                windows: Vec::new(),
                segments: Vec::new(),
                uses: Uses::new(),
                deferred: DeferredFrees::new(),
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

    /// Bytes of a block.
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

    /// The segment of that number, if it is the one at that address.
    #[inline]
    fn segment(&self, index: u32, base: usize) -> Option<&Segment> {
        self.segments.get(index as usize)?.as_ref().filter(|segment| segment.base == base)
    }

    /// Takes a block out of what is free; none if nothing fits.
    #[inline]
    pub fn allocate(&mut self, units: u32, requested: u64, walk: usize) -> Result<Option<usize>> {
        self.blocks.prepare(1)?;
        let id = self.bins.find(&self.blocks, units, walk);
        if id == NONE {
            return Ok(None);
        }
        Ok(Some(self.occupy(id, units, requested)))
    }

    /// The same out of one segment, which is wholly free.
    pub fn allocate_in(&mut self, index: u32, units: u32, requested: u64) -> Result<usize> {
        self.blocks.prepare(1)?;
        let segment = self.segments[index as usize].as_ref();
        let id = segment.map_or(NONE, |segment| segment.block);
        Ok(self.occupy(id, units, requested))
    }

    /// Makes a free block the host's, but for what it has too much. Room for one more was prepared.
    #[inline]
    fn occupy(&mut self, id: u32, units: u32, requested: u64) -> usize {
        self.bins.remove(&mut self.blocks, id);
        let Block { start, units: whole, next, .. } = self.blocks[id];
        if whole > units {
            let rest = self.blocks.take(free_block(start + units, whole - units));
            self.blocks[id].units = units;
            self.blocks.link(rest, id, next);
            self.bins.insert(&mut self.blocks, rest);
        }
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = requested;
        block.uses = 0;
        block.waits = 0;
        // What the bin left there is no stack.
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
        past::allocated(self, id);
        address
    }

    /// First address of a block.
    pub fn address_of(&self, id: u32) -> usize {
        let start = self.blocks[id].start;
        let index = self.segment_at(start).map(|index| index as usize);
        let segment = index.and_then(|index| self.segments.get(index)?.as_ref());
        segment
            .map_or(0, |segment| segment.base + (((start - segment.first) as usize) << self.shift))
    }

    /// The block that the host holds at just this address of a segment.
    #[inline]
    pub fn find(&self, index: u32, base: usize, address: usize) -> Option<u32> {
        let segment = self.segment(index, base)?;
        let unit = (address - base) >> self.shift;
        let exact = address - base == unit << self.shift && segment.marks.has(unit);
        exact.then(|| segment.starts.as_slice()[unit])
    }

    /// The block that the host holds around an address of a segment.
    #[inline]
    pub fn find_around(&self, index: u32, base: usize, address: usize) -> Option<u32> {
        let segment = self.segment(index, base)?;
        let offset = address - base;
        let unit = segment.marks.last_up_to(offset >> self.shift)?;
        let id = segment.starts.as_slice()[unit];
        let inside = (offset - (unit << self.shift)) as u64;
        (inside < self.blocks[id].requested).then_some(id)
    }

    /// The block at this address of a segment, which is kept, whether the host holds it or not.
    pub fn find_kept(&self, index: u32, base: usize, address: usize) -> Option<u32> {
        let segment = self.segment(index, base)?;
        let id = *segment.starts.as_slice().get((address - base) >> self.shift)?;
        (self.blocks[id].waits == KEPT && self.address_of(id) == address).then_some(id)
    }

    /// The host lets go of a block: nobody finds it any more.
    #[inline]
    pub fn unmark(&mut self, id: u32) {
        let start = self.blocks[id].start;
        if let Some(segment) = self.segment_mut(start) {
            segment.marks.clear((start - segment.first) as usize);
        }
    }

    /// Makes a block free and merges it with free neighbours. Gives its bytes.
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
            self.absorb(id, next);
        }
        let mut id = id;
        if previous != NONE && self.blocks[previous].state == State::Free {
            self.bins.remove(&mut self.blocks, previous);
            self.absorb(previous, id);
            id = previous;
        }
        let start = self.blocks[id].start;
        if let Some(segment) = self.segment_mut(start)
            && segment.once
        {
            // It has this one block.
            self.blocks[id].state = State::Hole;
            self.unwanted += 1;
        } else {
            self.bins.insert(&mut self.blocks, id);
        }
        bytes
    }

    fn absorb(&mut self, id: u32, next: u32) {
        self.blocks[id].units += self.blocks[next].units;
        self.blocks.unlink(next);
        self.blocks.give(next);
    }

    /// Windows in a row that are unowned.
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

    /// Adds memory, free; gives the segment's number.
    pub fn add(&mut self, base: usize, bytes: usize, origin: Origin, once: bool) -> Result<u32> {
        let units = bytes >> self.shift;
        let marks = Marks::new(units)?;
        let mut starts = Region::new(units);
        starts.grow(units)?;
        self.blocks.prepare(1)?;
        self.segments.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a segment"))?;
        let count = units.div_ceil(1 << WINDOW_SHIFT);
        let window = self.take_windows(count)?;
        // From here on nothing fails.
        let index = match self.segments.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.segments.push(None);
                self.segments.len() - 1
            }
        };
        self.windows[window..window + count].fill(index as u32 + 1);
        let first = (window << WINDOW_SHIFT) as u32;
        let block = self.blocks.take(free_block(first, units as u32));
        self.bins.insert(&mut self.blocks, block);
        self.segments[index] = Some(Segment {
            base,
            bytes,
            origin,
            once,
            leaving: false,
            first,
            block,
            starts,
            marks,
        });
        self.bytes += bytes as u64;
        self.free_bytes += bytes as u64;
        past::segment_came(base, bytes);
        Ok(index as u32)
    }

    /// The next segment, from `from` on, that nobody uses and that can go back; it is not used any
    /// more until `stays` or `gone`.
    pub fn leave(&mut self, from: usize, only_unwanted: bool) -> Option<Leaving> {
        for index in from..self.segments.len() {
            let Some(segment) = self.segments[index].as_mut().filter(|segment| !segment.leaving)
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
            segment.leaving = true;
            let Segment { base, bytes, origin, .. } = *segment;
            past::segment_goes(base, bytes);
            return Some(Leaving { segment: index as u32, base, bytes, origin });
        }
        None
    }

    /// The driver did not take a segment: it is in the cache again.
    pub fn stays(&mut self, index: u32) {
        if let Some(segment) = self.segments[index as usize].as_mut() {
            segment.leaving = false;
            segment.once = false;
            past::segment_came(segment.base, segment.bytes);
            self.blocks[segment.block].state = State::Free;
            self.bins.insert(&mut self.blocks, segment.block);
        }
    }

    /// Takes a segment out that was just added, and of which nothing was taken.
    pub fn withdraw(&mut self, index: u32) {
        if let Some(segment) = self.segments[index as usize].as_ref() {
            self.bins.remove(&mut self.blocks, segment.block);
            past::segment_goes(segment.base, segment.bytes);
            self.gone(index);
        }
    }

    /// The driver took it.
    pub fn gone(&mut self, index: u32) {
        if let Some(segment) = self.segments[index as usize].take() {
            self.blocks.give(segment.block);
            self.bytes -= segment.bytes as u64;
            self.free_bytes -= segment.bytes as u64;
            for window in self.windows.iter_mut().filter(|window| **window == index + 1) {
                *window = 0;
            }
        }
    }

    /// Puts a block that is freed in line for each of the streams that use it; false: not for all,
    /// since there is no host memory.
    pub fn enqueue(&mut self, id: u32) -> bool {
        let block = &mut self.blocks[id];
        let (waits, rest) = self.uses.enqueue(&mut self.deferred, Stamp::NOBODY, block.uses);
        let is_whole = !self.uses.has(rest);
        block.waits += waits;
        block.uses = if is_whole { 0 } else { rest };
        is_whole
    }

    /// The same for those for which there was no host memory, where there is some now.
    pub fn enqueue_overflow(&mut self) {
        for index in 0..self.segments.len() {
            let mut id = self.segments[index].as_ref().map_or(NONE, |segment| segment.block);
            while self.deferred.overflow > 0 && id != NONE {
                let block = &self.blocks[id];
                let next = block.next;
                if block.state == State::Pending && block.uses != 0 && block.waits != KEPT {
                    if !self.enqueue(id) {
                        return;
                    }
                    self.deferred.overflow -= 1;
                }
                id = next;
            }
        }
    }
}

/// A free block of the given range, not linked.
fn free_block(start: u32, units: u32) -> Block {
    Block {
        requested: 0,
        start,
        units,
        previous: NONE,
        next: NONE,
        bin_previous: NONE,
        bin_next: NONE,
        later: NONE,
        uses: 0,
        waits: 0,
        oversize: false,
        state: State::Free,
    }
}

#[cfg(test)]
impl Heap {
    /// The first invariant that does not hold.
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

    /// Blocks that are not free, and their bytes.
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
