//! Where the blocks of an arena start: from an address to its block by one look, most times.
//!
//! A table of lists, scattered by a hash of the first unit and linked through the blocks ([`Block::later`]):
//! 2 to 3 places of 4 bytes for each block that is noted, whether blocks are long or lie apart. Noted is what
//! is in use, and what was freed and is not joined yet ([`State::is_noted`]): so a block that comes and goes
//! changes nothing here.

use super::block::{Block, Blocks, NONE, State, UNIT};
use crate::base::error::{Error, Result};
use crate::memory::arena::ArenaState;
use crate::memory::backing::region::Region;

/// Places of a table at first: a page.
const FEWEST: usize = 1024;
/// What the hash multiplies by: 2^32 divided by the golden ratio.
const FACTOR: u32 = 0x9e37_79b1;
/// Bits that are folded before, so that blocks of one size, whichever, do not meet in few places.
const FOLD: u32 = 15;

/// The lists of an arena.
pub struct BlockIndex {
    /// First block of each list, the newest.
    table: Region<u32>,
    /// How many more blocks may be noted.
    room: usize,
}

impl BlockIndex {
    /// None yet.
    pub fn new() -> Result<BlockIndex> {
        BlockIndex::of(FEWEST)
    }

    /// Empty lists.
    fn of(length: usize) -> Result<BlockIndex> {
        if length > u32::MAX as usize {
            return Err(Error::OutOfHostMemory("an allocator's tables: they are full"));
        }
        let mut table = Region::new(length);
        table.grow(length)?;
        Ok(BlockIndex { table, room: length / 2 })
    }

    /// The place of a unit.
    #[inline(always)]
    fn place(&self, start: u32) -> usize {
        let mixed = (start ^ start >> FOLD).wrapping_mul(FACTOR);
        ((u64::from(mixed) * self.table.as_slice().len() as u64) >> 32) as usize
    }

    /// The newest block of a unit's list.
    #[inline(always)]
    fn newest(&self, start: u32) -> u32 {
        let place = self.place(start);
        // SAFETY: a product of the length and a number below 2^32, divided by 2^32.
        unsafe { *self.table.as_slice().get_unchecked(place) }
    }

    /// The same to change.
    #[inline(always)]
    fn newest_mut(&mut self, start: u32) -> &mut u32 {
        let place = self.place(start);
        // SAFETY: as above.
        unsafe { self.table.as_mut_slice().get_unchecked_mut(place) }
    }

    /// Makes sure that one more block can be noted.
    #[inline]
    pub fn prepare(&mut self, blocks: &mut Blocks) -> Result<()> {
        if self.room > 0 { Ok(()) } else { self.enlarge(blocks) }
    }

    /// Half as many places again.
    #[cold]
    fn enlarge(&mut self, blocks: &mut Blocks) -> Result<()> {
        let length = self.table.as_slice().len();
        *self = BlockIndex::of(length + length / 2)?;
        for id in blocks.all() {
            if blocks[id].state.is_noted() {
                self.note(&mut blocks[id], id);
            }
        }
        Ok(())
    }

    /// Notes a block where it starts, which was prepared and is not noted.
    #[inline]
    pub fn note(&mut self, block: &mut Block, id: u32) {
        block.later = std::mem::replace(self.newest_mut(block.start), id);
        self.room -= 1;
    }

    /// Forgets a noted block.
    #[inline]
    fn forget(&mut self, blocks: &mut Blocks, id: u32) {
        self.room += 1;
        let Block { start, later, .. } = blocks[id];
        let newest = self.newest_mut(start);
        if *newest == id {
            *newest = later;
            return;
        }
        let mut at = *newest;
        while blocks[at].later != id {
            at = blocks[at].later;
        }
        blocks[at].later = later;
    }

    /// Bytes of host memory that they have.
    #[cfg(test)]
    pub fn resident(&self) -> usize {
        self.table.resident()
    }

    /// What is noted.
    #[cfg(test)]
    pub fn all(&self, blocks: &Blocks) -> Vec<u32> {
        let mut all = Vec::new();
        for first in self.table.as_slice() {
            let mut id = *first;
            while id != NONE {
                all.push(id);
                id = blocks[id].later;
            }
        }
        all
    }
}

/// The unit that begins at so many bytes from the base; where none does, a number that no unit has.
#[inline(always)]
pub fn unit_of(offset: u64) -> u64 {
    offset.rotate_right(UNIT.trailing_zeros())
}

/// The longest list where so many blocks of a size lie side by side.
#[cfg(test)]
pub fn longest_of_stride(units: u32, count: u32) -> usize {
    let starts = BlockIndex::of(2 * count as usize).map_err(drop);
    let mut lengths = std::collections::HashMap::new();
    let places = starts.iter().flat_map(|starts| (0..count).map(|n| starts.place(n * units)));
    places.for_each(|place| *lengths.entry(place).or_default() += 1);
    lengths.into_values().max().unwrap_or(usize::MAX)
}

impl ArenaState {
    /// Makes sure that a block can be noted where it starts.
    #[inline]
    pub(in crate::memory) fn prepare_start(&mut self) -> Result<()> {
        self.block_index.prepare(&mut self.blocks)
    }

    /// Notes where a block starts that is about to be handed out.
    #[inline]
    pub(in crate::memory) fn note_start(&mut self, id: u32) {
        self.block_index.note(&mut self.blocks[id], id);
    }

    /// Forgets where a block starts that is about to be free, and may be joined.
    #[inline]
    pub(in crate::memory) fn forget_start(&mut self, id: u32) {
        self.block_index.forget(&mut self.blocks, id);
    }

    /// The block, in use or not, that is noted at `offset` bytes from the base.
    #[inline(always)]
    fn noted(&self, offset: u64) -> Option<(u32, &Block)> {
        let wanted = unit_of(offset);
        let mut id = self.block_index.newest(wanted as u32);
        loop {
            // Index 0, which is none, exists only once there were blocks, and is vacant.
            let block = self.blocks.get(id)?;
            if u64::from(block.start) == wanted {
                return Some((id, block));
            }
            if id == NONE {
                return None;
            }
            id = block.later;
        }
    }

    /// The allocated block that starts at `offset` bytes from the base.
    #[inline(always)]
    pub(in crate::memory) fn find(&self, offset: u64, ptr: usize) -> Result<u32> {
        self.find_quickly(offset).ok_or_else(|| self.refuse(offset, ptr))
    }

    /// The same, without a reason where there is none.
    #[inline(always)]
    pub(in crate::memory) fn find_quickly(&self, offset: u64) -> Option<u32> {
        let (id, block) = self.noted(offset)?;
        let is_allocated = block.state == State::Allocated;
        // SAFETY: it was found there; so nobody need ask again.
        unsafe { std::hint::assert_unchecked((id as usize) < self.blocks.indices()) };
        is_allocated.then_some(id)
    }

    /// The allocated block that holds a unit.
    pub(in crate::memory) fn find_around(&self, unit: u32) -> Option<u32> {
        let id = match self.noted(u64::from(unit) * UNIT) {
            Some((id, _)) => id,
            None => match self.segment.views.holding(unit) {
                NONE => self.holding(unit),
                id => id,
            },
        };
        let block = self.blocks.get(id)?;
        let is_it = unit.wrapping_sub(block.start) < block.units && block.state == State::Allocated;
        is_it.then_some(id)
    }

    /// The block, in use or not, that holds a unit below the end: a walk from the one of a sample that starts
    /// nearest below.
    fn holding(&self, unit: u32) -> u32 {
        let below =
            |id: &u32| self.blocks[*id].state != State::Vacant && self.blocks[*id].start <= unit;
        let all = self.blocks.all();
        let every = all.len().isqrt().max(1);
        let sample = all.step_by(every).filter(below);
        let mut id = sample.max_by_key(|id| self.blocks[*id].start).unwrap_or(self.first);
        while id != NONE && self.blocks[id].end() <= unit {
            id = self.blocks[id].next;
        }
        id
    }

    /// Of a block of which nothing else is to be known: its length, and what was asked for.
    #[inline(always)]
    pub(in crate::memory) fn plain(&self, id: u32) -> Option<(u32, i64)> {
        let block = &self.blocks[id];
        let is_plain = block.uses == 0 && !block.oversize;
        is_plain.then_some((block.units, block.requested as i64))
    }

    #[cold]
    fn refuse(&self, offset: u64, ptr: usize) -> Error {
        let why = match self.noted(offset) {
            Some((id, _)) if id != NONE => "was freed already",
            _ if self.is_free_at(offset) => {
                "was freed already, or is not the start of a block that tcuda allocated"
            }
            _ => "is not the start of a block that tcuda allocated: pass what tcuda_malloc gave",
        };
        Error::InvalidPointer { ptr, why }
    }

    /// Can a block have started here that is joined with others since?
    fn is_free_at(&self, offset: u64) -> bool {
        let unit = (offset / UNIT) as u32;
        offset.is_multiple_of(UNIT) && unit < self.end() && self.find_around(unit).is_none()
    }
}
