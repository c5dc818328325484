//! The block index of an arena: finds the block that starts at an address, most times with one
//! lookup.
//!
//! It is a hash table of lists. The hash is that of a block's first unit, and the lists are linked
//! through the blocks ([`Block::later`]). The table has 2 to 3 entries of 4 bytes for each block in
//! it, whatever the lengths and distances of the blocks. It contains the blocks in use, and the
//! freed ones that are not yet merged ([`State::is_noted`]). So a block that is allocated and freed
//! again and again changes nothing here.

use crate::base::error::{Error, Result};
use crate::base::region::Region;
use crate::memory::arena::ArenaState;
use crate::memory::arena::block::{Block, Blocks, NONE, State};
use crate::memory::config::size::UNIT;

/// Entries of a new table: one page.
const FEWEST: usize = 1024;
/// The factor of the hash: 2^32 divided by the golden ratio.
const FACTOR: u32 = 0x9e37_79b1;
/// The shift by which the hash folds a unit first. It keeps blocks of one size from meeting in few
/// entries, whatever the size.
const FOLD: u32 = 15;

/// The block index of an arena.
pub struct BlockIndex {
    /// The newest block of each list.
    table: Region<u32>,
    /// How many more blocks may be added before the table grows.
    room: usize,
}

impl BlockIndex {
    /// An empty index.
    pub fn new() -> Result<BlockIndex> {
        BlockIndex::of(FEWEST)
    }

    /// An empty index of so many entries.
    fn of(length: usize) -> Result<BlockIndex> {
        if length > u32::MAX as usize {
            return Err(Error::OutOfHostMemory("an allocator's tables: they are full"));
        }
        let mut table = Region::new(length);
        table.grow(length)?;
        Ok(BlockIndex { table, room: length / 2 })
    }

    /// The table entry of a unit.
    #[inline(always)]
    fn place(&self, start: u32) -> usize {
        let mixed = (start ^ start >> FOLD).wrapping_mul(FACTOR);
        ((u64::from(mixed) * self.table.as_slice().len() as u64) >> 32) as usize
    }

    /// The newest block of a unit's list.
    #[inline(always)]
    fn newest(&self, start: u32) -> u32 {
        let place = self.place(start);
        // SAFETY: the length times a number below 2^32, divided by 2^32, is below the length.
        unsafe { *self.table.as_slice().get_unchecked(place) }
    }

    /// [`BlockIndex::newest`], mutable.
    #[inline(always)]
    fn newest_mut(&mut self, start: u32) -> &mut u32 {
        let place = self.place(start);
        // SAFETY: as above.
        unsafe { self.table.as_mut_slice().get_unchecked_mut(place) }
    }

    /// Makes sure that one more block can be added.
    #[inline]
    pub fn prepare(&mut self, blocks: &mut Blocks) -> Result<()> {
        if self.room > 0 { Ok(()) } else { self.enlarge(blocks) }
    }

    /// Makes sure that `count` more blocks can be added.
    pub fn prepare_many(&mut self, blocks: &mut Blocks, count: usize) -> Result<()> {
        while self.room < count {
            self.enlarge(blocks)?;
        }
        Ok(())
    }

    /// Makes the table half as long again.
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

    /// Adds a block that is not in the index. [`BlockIndex::prepare`] was called before.
    #[inline]
    pub fn note(&mut self, block: &mut Block, id: u32) {
        block.later = std::mem::replace(self.newest_mut(block.start), id);
        self.room -= 1;
    }

    /// Removes a block that is in the index.
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

    /// Bytes of host memory of the table.
    #[cfg(test)]
    pub fn resident(&self) -> usize {
        self.table.resident()
    }

    /// All blocks in the index.
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

/// The unit that begins at so many bytes from the base. An offset at which no unit begins gives a
/// number that no unit has.
#[inline(always)]
pub fn unit_of(offset: u64) -> u64 {
    offset.rotate_right(UNIT.trailing_zeros())
}

/// The longest list for so many adjacent blocks of one size.
#[cfg(test)]
pub fn longest_of_stride(units: u32, count: u32) -> usize {
    let starts = BlockIndex::of(2 * count as usize).map_err(drop);
    let mut lengths = std::collections::HashMap::new();
    let places = starts.iter().flat_map(|starts| (0..count).map(|n| starts.place(n * units)));
    places.for_each(|place| *lengths.entry(place).or_default() += 1);
    lengths.into_values().max().unwrap_or(usize::MAX)
}

impl ArenaState {
    /// Makes sure that one more block can be added to the block index.
    #[inline]
    pub(in crate::memory) fn prepare_start(&mut self) -> Result<()> {
        self.block_index.prepare(&mut self.blocks)
    }

    /// Adds a block to the block index that is about to be allocated.
    #[inline]
    pub(in crate::memory) fn note_start(&mut self, id: u32) {
        self.block_index.note(&mut self.blocks[id], id);
    }

    /// Removes a block from the block index that is about to be free, and may be merged.
    #[inline]
    pub(in crate::memory) fn forget_start(&mut self, id: u32) {
        self.block_index.forget(&mut self.blocks, id);
    }

    /// The block in the index, in use or not, that starts at `offset` bytes from the base.
    #[inline(always)]
    fn noted(&self, offset: u64) -> Option<(u32, &Block)> {
        let wanted = unit_of(offset);
        let mut id = self.block_index.newest(wanted as u32);
        loop {
            // Index 0, which is no block, exists only after there were blocks, and is vacant.
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

    /// [`ArenaState::find`] without a reason for a failure.
    #[inline(always)]
    pub(in crate::memory) fn find_quickly(&self, offset: u64) -> Option<u32> {
        let (id, block) = self.noted(offset)?;
        let is_allocated = block.state == State::Allocated;
        // SAFETY: `noted` has read the block of this index.
        unsafe { std::hint::assert_unchecked((id as usize) < self.blocks.indices()) };
        is_allocated.then_some(id)
    }

    /// The allocated block that contains a unit.
    pub(in crate::memory) fn find_around(&self, unit: u32) -> Option<u32> {
        let id = match self.noted(u64::from(unit) * UNIT) {
            Some((id, _)) => id,
            None => match self.segment.views.holding(unit) {
                NONE => self.blocks.holding(self.first, unit, |block| block.state != State::Vacant),
                id => id,
            },
        };
        let block = self.blocks.get(id)?;
        let is_it = unit.wrapping_sub(block.start) < block.units && block.state == State::Allocated;
        is_it.then_some(id)
    }

    /// The length and the requested bytes of a block that no other stream uses and that is not
    /// oversize.
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

    /// May a block have started here that was merged with others since?
    fn is_free_at(&self, offset: u64) -> bool {
        let unit = (offset / UNIT) as u32;
        offset.is_multiple_of(UNIT) && unit < self.end() && self.find_around(unit).is_none()
    }
}
