//! The blocks of `cuMemAlloc`. Small blocks share units of 2 MiB, as on a GPU.

use super::address_space::{Access, Purpose, Reservation};
use super::config::GRANULARITY;
use super::physical::{insert_merged, next_id};
use super::sync::{read, write};
use super::{Machine, graph_memory};
use crate::driver::code;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Alignment of blocks.
const ALIGNMENT: usize = 512;
/// Maximum size of a block that shares a unit.
const LARGEST_SHARED: usize = GRANULARITY / 2;

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
    device: usize,
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

    /// Allocates from the first gap in a device's units that is large enough.
    fn take(&mut self, device: usize, bytes: usize) -> Option<usize> {
        let size = rounded(bytes)?;
        let mut units = self.units.values_mut().filter(|unit| unit.device == device);
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
    fn add(&mut self, device: usize, start: usize, unit: usize, bytes: usize) {
        let size = rounded(bytes).map_or(unit, |size| size.min(unit));
        let mut free = BTreeMap::new();
        // The rest of a large block's unit stays unused.
        if size <= LARGEST_SHARED {
            free.insert(start + size, unit - size);
        }
        self.units.insert(start, Unit { device, bytes: unit, free });
        self.live.insert(start, Block::new(bytes));
    }

    /// Frees a block; returns its unit if that is now empty.
    fn remove(&mut self, address: usize) -> Result<Option<(usize, usize)>, i32> {
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
    pub(super) fn forget(&mut self, device: usize) {
        for (start, unit) in self.units.extract_if(.., |_, unit| unit.device == device) {
            self.live.extract_if(start..start + unit.bytes, |_, _| true).for_each(drop);
        }
    }
}

impl Machine {
    /// The reservation that contains an address, and the block of `cuMemAlloc` or of a pool there.
    pub(super) fn block(&self, address: usize) -> Option<(Reservation, Option<(usize, Block)>)> {
        let space = read(&self.space);
        let (_, reservation) = space.reservation(address)?;
        let block = match reservation.purpose {
            Purpose::Allocation(_) => space.blocks.around(address),
            Purpose::Virtual => None,
            Purpose::Imported(_, start, bytes) => {
                let (_, mapping) = space.mapping(address)?;
                let is_inside = address.wrapping_sub(start) < bytes;
                is_inside.then_some((start, Block { bytes, id: mapping.allocation.id }))
            }
            Purpose::Pool => {
                let (_, mapping) = space.mapping(address)?;
                let Access::Pool(pool) = &mapping.access else { return None };
                let (pool, id) = (Arc::clone(pool), mapping.allocation.id);
                // A growing pool takes these two locks in the opposite order.
                drop(space);
                let of_graph = || {
                    let (start, bytes) = graph_memory::around(self, address)?;
                    Some((start, Block { bytes, id }))
                };
                pool.block(address).or_else(of_graph)
            }
        };
        Some((reservation, block))
    }

    /// Allocates memory of a device.
    pub(super) fn allocate_block(&self, device: usize, bytes: usize) -> Result<usize, i32> {
        if bytes <= LARGEST_SHARED
            && let Some(start) = write(&self.space).blocks.take(device, bytes)
        {
            return Ok(start);
        }
        let purpose = Purpose::Allocation(device);
        let start = self.allocate_mapped(device, bytes, purpose, Access::Peers)?;
        let unit = bytes.next_multiple_of(GRANULARITY);
        write(&self.space).blocks.add(device, start, unit, bytes);
        Ok(start)
    }

    /// Frees the block that begins at an address.
    pub(super) fn free_block(&self, address: usize) -> Result<(), i32> {
        let empty = write(&self.space).blocks.remove(address)?;
        match empty {
            Some((start, bytes)) => self.free_mapped(start, bytes),
            None => Ok(()),
        }
    }
}
