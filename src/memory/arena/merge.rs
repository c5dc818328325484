//! Merging of free blocks with their neighbours.

use crate::memory::arena::ArenaState;
use crate::memory::arena::block::Block;
use crate::memory::arena::foreign_free::Owner;

impl ArenaState {
    /// Makes a block free for the arena's stream and merges it with free neighbours. Returns the
    /// merged block.
    pub(in crate::memory) fn release(&mut self, id: u32) -> u32 {
        self.release_to(Owner::ARENA, id)
    }

    /// Makes a block free for an owner and merges it with that owner's free neighbours.
    #[inline(always)]
    pub(in crate::memory) fn release_to(&mut self, owner: Owner, id: u32) -> u32 {
        self.forget_best();
        let Block { previous, next, .. } = self.blocks[id];
        let mut id = id;
        (self.blocks[id].state, self.blocks[id].uses) = (owner.free_state(), owner.end());
        if self.is_free_for(owner, next) {
            self.take_out(owner, next);
            self.absorb(id, next);
        }
        if self.is_free_for(owner, previous) {
            self.take_out(owner, previous);
            self.absorb(previous, id);
            id = previous;
        }
        self.free_blocks += 1;
        self.free_bytes += self.blocks[id].bytes();
        if owner == Owner::ARENA && self.last == id {
            // Holes at the end are trimmed, so the last block ends where the memory does.
            self.wilderness = id;
            if self.first == id {
                self.reset_cursor();
            }
        } else {
            let (bins, blocks) = self.bins_of(owner);
            bins.insert(blocks, id);
        }
        id
    }

    #[inline(always)]
    fn is_free_for(&self, owner: Owner, id: u32) -> bool {
        let block = &self.blocks[id];
        block.state == owner.free_state() && (owner == Owner::ARENA || block.uses == owner.end())
    }

    /// Adds a block, which is in no bin and not counted, to its neighbour below.
    pub(in crate::memory) fn absorb(&mut self, id: u32, next: u32) {
        self.blocks.absorb(id, next);
        if self.last == next {
            self.last = id;
        }
    }
}
