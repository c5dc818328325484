//! Merging of free blocks with their neighbours.

use crate::memory::arena::ArenaState;
use crate::memory::arena::block::{Block, State};
use crate::memory::config::size::UNIT;

impl ArenaState {
    /// Makes a block free and merges it with free neighbours. Returns the merged block.
    pub(in crate::memory) fn release(&mut self, id: u32) -> u32 {
        self.forget_best();
        let Block { units, previous, next, .. } = self.blocks[id];
        self.free_blocks += 1;
        self.free_bytes += i64::from(units) * UNIT as i64;
        let mut id = id;
        self.blocks[id].state = State::Free;
        // The wilderness is in no bin.
        if self.blocks[next].state == State::Free {
            if next != self.wilderness {
                self.bins.remove(&mut self.blocks, next);
            }
            self.absorb(id, next);
        }
        if self.blocks[previous].state == State::Free {
            if previous != self.wilderness {
                self.bins.remove(&mut self.blocks, previous);
            }
            self.absorb(previous, id);
            id = previous;
        }
        if self.last == id {
            // Holes at the end are trimmed, so the last block ends where the memory does.
            self.wilderness = id;
            if self.first == id {
                self.reset_cursor();
            }
        } else {
            self.bins.insert(&mut self.blocks, id);
        }
        id
    }

    /// Merges two neighbouring free blocks that are in no bin.
    pub(in crate::memory) fn absorb(&mut self, id: u32, next: u32) {
        self.blocks[id].units += self.blocks[next].units;
        self.blocks.unlink(next);
        if self.last == next {
            self.last = id;
        }
        self.blocks.give(next);
        self.free_blocks -= 1;
    }
}
