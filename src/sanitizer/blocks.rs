//! Allocated blocks: their owner stream, the streams that use them, and the host's frames at the
//! allocation.

use super::clock::{NO_MEMORY, push};
use super::domain::StreamInfo;
use super::ranges::{Entry, Ranges};
use crate::base::error::Result;

/// Freed blocks that may stay in the table: at most the number of live blocks + `EXTRA_FREED`.
const EXTRA_FREED: usize = 64;

/// An allocated block, or a freed one whose place is not yet reused.
pub(super) struct Block {
    /// The stream in whose order the block is allocated. `None`: pinned host memory.
    pub(super) owner: Option<StreamInfo>,
    /// The ordering domain in which the block was allocated.
    pub(super) domain: u64,
    pub(super) frames: u32,
    /// The block is not freed yet.
    is_live: bool,
    /// Keys of the other streams for which the allocator waits before it reuses the block.
    pub(super) users: Vec<u64>,
}

/// All known blocks. A freed block keeps its place for a while, because the next allocation mostly
/// has the same address.
pub(super) struct Blocks {
    ranges: Ranges,
    blocks: Vec<Block>,
    free: Vec<u32>,
    live: usize,
}

impl Blocks {
    pub(super) const fn new() -> Blocks {
        Blocks { ranges: Ranges::new(), blocks: Vec::new(), free: Vec::new(), live: 0 }
    }

    /// Returns the live block that contains `address`, and its range.
    pub(super) fn find(&self, address: u64) -> Option<((u64, u64), &Block)> {
        let entry = self.ranges.find(address)?;
        let block = &self.blocks[entry.value as usize];
        block.is_live.then_some(((entry.start, entry.end), block))
    }

    /// The frames of all blocks; 0 for freed blocks.
    pub(super) fn frames(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter().map(|block| if block.is_live { block.frames } else { 0 })
    }

    pub(super) fn at(&self, place: u32) -> &Block {
        &self.blocks[place as usize]
    }

    /// Records an allocated block. Blocks that overlap it are removed: their free was not recorded.
    pub(super) fn add(
        &mut self,
        (start, end): (u64, u64),
        (owner, domain, frames): (Option<StreamInfo>, u64, u32),
    ) -> Result<()> {
        let place = match self.ranges.take_over(start, end) {
            Some(place) => place,
            None => self.make_room(start, end)?,
        };
        let block = &mut self.blocks[place as usize];
        self.live += usize::from(!block.is_live);
        block.users.clear();
        (block.owner, block.domain, block.frames, block.is_live) = (owner, domain, frames, true);
        Ok(())
    }

    /// Returns a place for a block whose range does not match exactly one known block.
    fn make_room(&mut self, start: u64, end: u64) -> Result<u32> {
        let mut old = Vec::new();
        self.ranges.overlapping(start, end, &mut old)?;
        for entry in &old {
            self.ranges.remove(entry.start);
            self.live -= usize::from(self.blocks[entry.value as usize].is_live);
            self.leave(entry.value);
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                // `free` has room for every place, so that `leave` cannot fail.
                let more = (self.blocks.len() + 1).saturating_sub(self.free.len());
                self.free.try_reserve(more).map_err(|_| NO_MEMORY)?;
                let (owner, users) = (None, Vec::new());
                let block = Block { owner, domain: 0, frames: 0, is_live: false, users };
                push(&mut self.blocks, block)?;
                (self.blocks.len() - 1) as u32
            }
        };
        self.ranges.replace(start, end, &[Entry { start, end, value: place }])?;
        Ok(place)
    }

    /// Marks a place as unused.
    fn leave(&mut self, place: u32) {
        let block = &mut self.blocks[place as usize];
        (block.is_live, block.users) = (false, Vec::new());
        self.free.push(place);
    }

    /// Marks a block as freed. Returns its range, and its place, which is valid until the next
    /// allocation.
    pub(super) fn remove(&mut self, start: u64) -> Option<((u64, u64), u32)> {
        let entry = self.ranges.find(start).filter(|entry| entry.start == start)?;
        let block = &mut self.blocks[entry.value as usize];
        if !std::mem::replace(&mut block.is_live, false) {
            return None;
        }
        self.live -= 1;
        Some(((entry.start, entry.end), entry.value))
    }

    /// Removes the freed blocks when there are many.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.ranges.len() > 2 * self.live + EXTRA_FREED {
            self.forget_gone();
        }
    }

    #[cold]
    fn forget_gone(&mut self) {
        let (blocks, free) = (&mut self.blocks, &mut self.free);
        self.ranges.retain(|entry| {
            let block = &mut blocks[entry.value as usize];
            if !block.is_live {
                block.users = Vec::new();
                free.push(entry.value);
            }
            block.is_live
        });
    }

    /// Records that a stream uses the block that contains `address`.
    pub(super) fn used(&mut self, address: u64, key: u64) -> Result<()> {
        let Some(entry) = self.ranges.find(address) else { return Ok(()) };
        let block = &mut self.blocks[entry.value as usize];
        let is_owner = block.owner.is_some_and(|stream| stream.key == key);
        if !block.is_live || is_owner || block.users.contains(&key) {
            return Ok(());
        }
        push(&mut block.users, key)
    }

    /// Changes the owner of the live block at an address, if it is known.
    pub(super) fn set_owner(&mut self, address: u64, stream: StreamInfo) {
        if let Some(entry) = self.ranges.find(address) {
            let block = &mut self.blocks[entry.value as usize];
            block.owner = block.owner.map(|_| stream);
            block.users.retain(|key| *key != stream.key);
        }
    }

    /// Checks that all counts agree with the contents.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let is_live = |entry: &&Entry| self.blocks[entry.value as usize].is_live;
        assert_eq!(self.ranges.iter().filter(is_live).count(), self.live);
        assert_eq!(self.ranges.len() + self.free.len(), self.blocks.len());
        assert!(self.ranges.len() <= 2 * self.live + EXTRA_FREED + 1);
    }
}
