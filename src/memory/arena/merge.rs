//! Merging of free blocks with their neighbours.

use crate::memory::arena::ArenaState;
use crate::memory::arena::block::{Block, NONE, State};
use crate::memory::config::size::UNIT;

impl ArenaState {
    /// Makes a block free and merges it with free neighbours. Returns the merged block.
    pub(in crate::memory) fn release(&mut self, id: u32) -> u32 {
        self.forget_best();
        let Block { units, previous, next, .. } = self.blocks[id];
        let end = self.wilderness;
        if id == self.last || next == end || previous == end {
            return self.release_at_end(id);
        }
        // Whether a neighbour is free is as random as the program, so no branch depends on it. In
        // place of a neighbour that is not free stands the block of index 0, which has no length
        // and is in no bin.
        let below = self.blocks.if_free(previous);
        let above = self.blocks.if_free(next);
        self.bins.remove(&mut self.blocks, above);
        self.bins.remove(&mut self.blocks, below);
        let after = if above == NONE { next } else { self.blocks[above].next };
        let whole = units + self.blocks[above].units + self.blocks[below].units;
        let (kept, other) = if below == NONE { (id, NONE) } else { (below, id) };
        let block = &mut self.blocks[kept];
        block.state = State::Free;
        block.units = whole;
        block.next = after;
        self.blocks[after].previous = kept;
        self.blocks.give(above);
        self.blocks.give(other);
        self.free_blocks += 1 - i64::from(above != NONE) - i64::from(below != NONE);
        self.free_bytes += i64::from(units) * UNIT as i64;
        self.bins.insert(&mut self.blocks, kept);
        kept
    }

    /// Does the work of [`ArenaState::release`] next to the mapped end.
    #[inline(never)]
    fn release_at_end(&mut self, id: u32) -> u32 {
        let Block { units, previous, next, .. } = self.blocks[id];
        self.free_blocks += 1;
        self.free_bytes += i64::from(units) * UNIT as i64;
        let mut id = id;
        self.blocks[id].state = State::Free;
        if self.blocks.if_free(next) != NONE {
            let is_wilderness = next == self.wilderness;
            if !is_wilderness {
                self.bins.remove(&mut self.blocks, next);
            }
            self.absorb(id, next);
            if is_wilderness {
                self.wilderness = id;
            }
        }
        if self.blocks.if_free(previous) != NONE {
            // Memory that is added at the end meets the wilderness, which is in no bin.
            let is_wilderness = id == self.wilderness || previous == self.wilderness;
            if previous != self.wilderness {
                self.bins.remove(&mut self.blocks, previous);
            }
            self.absorb(previous, id);
            id = previous;
            if is_wilderness {
                self.wilderness = id;
            }
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
