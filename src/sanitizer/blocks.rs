//! Blocks of memory that are given out: whose they are, who uses them besides, and where that was.

use super::clock::{Stamp, push};
use super::ranges::{Entry, Ranges};
use super::world::Who;
use crate::error::Result;

/// A block that somebody has.
pub(super) struct Block {
    /// The stream in whose order it is; none: pinned memory of the host.
    pub(super) owner: Option<Who>,
    /// The world in which it was given out.
    pub(super) world: u64,
    pub(super) frames: u32,
    /// Streams for which the allocator waits besides, by their keys.
    pub(super) users: Vec<u64>,
}

/// All of them.
pub(super) struct Blocks {
    ranges: Ranges,
    blocks: Vec<Block>,
    free: Vec<u32>,
}

impl Blocks {
    pub(super) const fn new() -> Blocks {
        Blocks { ranges: Ranges::new(), blocks: Vec::new(), free: Vec::new() }
    }

    /// The block that has an address, and its range.
    pub(super) fn find(&self, address: u64) -> Option<((u64, u64), &Block)> {
        let entry = self.ranges.find(address)?;
        Some(((entry.start, entry.end), &self.blocks[entry.value as usize]))
    }

    /// A block is given out. What was there is gone: its end was not told.
    pub(super) fn add(&mut self, (start, end): (u64, u64), block: Block) -> Result<()> {
        let place = match self.free.pop() {
            Some(place) => {
                self.blocks[place as usize] = block;
                place
            }
            None => {
                let more = (self.blocks.len() + 1).saturating_sub(self.free.len());
                self.free.try_reserve(more).map_err(|_| super::clock::NO_MEMORY)?;
                push(&mut self.blocks, block)?;
                (self.blocks.len() - 1) as u32
            }
        };
        let mut old = Vec::new();
        self.ranges.overlapping(start, end, &mut old)?;
        for entry in &old {
            self.ranges.remove(entry.start);
            self.free.push(entry.value);
        }
        self.ranges.replace(start, end, &[Entry { start, end, value: place }])
    }

    /// A block is given back.
    pub(super) fn remove(&mut self, start: u64) -> Option<((u64, u64), Block)> {
        let entry = self.ranges.remove(start)?;
        self.free.push(entry.value);
        let block = &mut self.blocks[entry.value as usize];
        let users = std::mem::take(&mut block.users);
        Some(((entry.start, entry.end), Block { users, ..*block }))
    }

    /// A stream uses the block that has an address.
    pub(super) fn used(&mut self, address: u64, key: u64) -> Result<()> {
        let Some(entry) = self.ranges.find(address) else { return Ok(()) };
        let block = &mut self.blocks[entry.value as usize];
        if block.owner.is_some_and(|who| who.key == key) || block.users.contains(&key) {
            return Ok(());
        }
        push(&mut block.users, key)
    }
}

/// What the allocator waits for before a block serves again.
#[derive(Default)]
pub(super) struct Promise {
    /// What its streams hold.
    pub(super) held: Vec<Stamp>,
    /// What the next work of the legacy stream comes after besides.
    pub(super) implied: Option<Stamp>,
}

impl Promise {
    pub(super) fn holds(&self, slot: u32, time: u64) -> bool {
        self.held.iter().any(|stamp| stamp.covers(slot, time))
    }

    pub(super) fn implies(&self, slot: u32, time: u64) -> bool {
        self.implied.as_ref().is_some_and(|stamp| stamp.covers(slot, time))
    }
}
