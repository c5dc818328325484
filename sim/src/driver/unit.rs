//! The blocks of `cuMemAlloc`. Small blocks share units of 2 MiB, as on a GPU.

use super::config::GRANULARITY;
use super::physical::{insert_merged, next_id};
use crate::base::code;
use std::collections::BTreeMap;

/// Alignment of blocks.
const ALIGNMENT: usize = 512;
/// Maximum size of a block that shares a unit.
pub(super) const LARGEST_SHARED: usize = GRANULARITY / 2;

/// An allocated block.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// The requested size; bytes after it are not part of the block.
    pub(super) bytes: usize,
    pub(super) id: u64,
}

impl Block {
    pub(super) fn new(bytes: usize) -> Block {
        Block { bytes, id: next_id() }
    }
}

/// A reservation that blocks are cut from.
struct Unit {
    /// The number of the context.
    owner: usize,
    bytes: usize,
    free: BTreeMap<usize, usize>,
}

/// The blocks of `cuMemAlloc` and their units, by address.
#[derive(Default)]
pub(super) struct Blocks {
    live: BTreeMap<usize, Block>,
    units: BTreeMap<usize, Unit>,
}

fn rounded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

impl Blocks {
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// The block that contains an address.
    pub(super) fn around(&self, address: usize) -> Option<(usize, Block)> {
        let (start, found) = self.live.range(..=address).next_back()?;
        (address - start < found.bytes).then_some((*start, *found))
    }

    /// Allocates from the first gap in a context's units that is large enough.
    pub(super) fn take(&mut self, owner: usize, bytes: usize) -> Option<usize> {
        let size = rounded(bytes)?;
        let mut units = self.units.values_mut().filter(|unit| unit.owner == owner);
        let (unit, start) = units.find_map(|unit| {
            let gap = unit.free.iter().find(|(_, room)| **room >= size);
            let start = gap.map(|(start, _)| *start)?;
            Some((unit, start))
        })?;
        let room = unit.free.remove(&start)?;
        if room > size {
            unit.free.insert(start + size, room - size);
        }
        self.live.insert(start, Block::new(bytes));
        Some(start)
    }

    /// Adds a unit and allocates one block from it.
    pub(super) fn add(&mut self, owner: usize, start: usize, unit: usize, bytes: usize) {
        let size = rounded(bytes).map_or(unit, |size| size.min(unit));
        let mut free = BTreeMap::new();
        // The rest of a large block's unit stays unused.
        if size <= LARGEST_SHARED {
            free.insert(start + size, unit - size);
        }
        self.units.insert(start, Unit { owner, bytes: unit, free });
        self.live.insert(start, Block::new(bytes));
    }

    /// Frees a block; returns its unit if that is now empty.
    pub(super) fn remove(&mut self, address: usize) -> Result<Option<(usize, usize)>, i32> {
        let block = self.live.remove(&address).ok_or(code::INVALID_VALUE)?;
        let found = self.units.range_mut(..=address).next_back();
        let (start, unit) = found.map(|(start, unit)| (*start, unit)).ok_or(code::UNKNOWN)?;
        let size = rounded(block.bytes).ok_or(code::UNKNOWN)?;
        if size <= LARGEST_SHARED {
            insert_merged(&mut unit.free, address, size);
            if unit.free.get(&start) != Some(&unit.bytes) {
                return Ok(None);
            }
        }
        let bytes = unit.bytes;
        self.units.remove(&start);
        Ok(Some((start, bytes)))
    }

    /// Removes the blocks of a device's context.
    pub(super) fn forget(&mut self, owner: usize) {
        for (start, unit) in self.units.extract_if(.., |_, unit| unit.owner == owner) {
            self.live.extract_if(start..start + unit.bytes, |_, _| true).for_each(drop);
        }
    }
}
