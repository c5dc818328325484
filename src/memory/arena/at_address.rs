//! Allocation at an address: takes a range out of the free block that contains it. Free memory
//! below and above the range stays free, as blocks of their own.

use crate::base::error::Result;
use crate::memory::arena::ArenaState;
use crate::memory::arena::block::{Block, NONE, State};
use crate::memory::config::segment_rules::Rules;
use crate::memory::config::size::{Request, UNIT};

/// At most so many blocks are new: one below the range, and one above.
const NEW_BLOCKS: u32 = 2;

impl ArenaState {
    /// Reserves what `count` allocations at addresses need, so that they cannot fail.
    pub(in crate::memory) fn prepare_at(&mut self, count: u32) -> Result<()> {
        let new = count.saturating_mul(NEW_BLOCKS);
        self.blocks.prepare(new)?;
        self.block_index.prepare_many(&mut self.blocks, count as usize)?;
        match &mut self.segments {
            Some(segments) => segments.prepare_fits(new as usize),
            None => Ok(()),
        }
    }

    /// Takes the units of a request that begin at `start`, and the rest of the free block if
    /// `rules` do not split it off. Returns the block. `None`: the units are not in one free block,
    /// or the rules do not split it there. The caller counts the free blocks, which may have been
    /// merged.
    pub(in crate::memory) fn take_at(
        &mut self,
        start: u32,
        request: Request,
        rules: Option<&Rules>,
        now: u64,
    ) -> Result<Option<u32>> {
        self.prepare_at(1)?;
        self.forget_best();
        self.merge_quick();
        let id = self.blocks.holding(self.first, start, |block| block.state != State::Vacant);
        if id == NONE || self.blocks[id].state != State::Free {
            return Ok(None);
        }
        let end = u64::from(start) + u64::from(request.units);
        if start < self.blocks[id].start || end > u64::from(self.blocks[id].end()) {
            return Ok(None);
        }
        let mut units = request.units;
        if let Some(rules) = rules {
            let bytes = |units: u32| u64::from(units) * UNIT;
            let rest = self.blocks[id].end() - start - units;
            let splits = rules.splits(self.class, bytes(units), bytes(rest));
            units += if splits { 0 } else { rest };
            if rules.whole && start > self.blocks[id].start {
                return Ok(None);
            }
        }
        // From here on nothing fails.
        self.take_out_free(id);
        self.cut(id, start, units, now);
        self.note_start(id);
        self.blocks[id].set_allocated(request);
        self.blocks[id].uses = 0;
        self.active_blocks += 1;
        Ok(Some(id))
    }

    /// Takes a free block out of its list, and out of the counts.
    fn take_out_free(&mut self, id: u32) {
        if self.segments.is_some() {
            self.remove_fit(id);
            if !self.is_split(id) {
                return;
            }
        } else if id == self.wilderness {
            self.wilderness = NONE;
        } else {
            self.bins.remove(&mut self.blocks, id);
        }
        self.free_blocks -= 1;
        self.free_bytes -= self.blocks[id].bytes();
    }

    /// Shortens a block that is in no list to a range of it; what is left on both sides is free.
    fn cut(&mut self, id: u32, start: u32, units: u32, now: u64) {
        let Block { start: first, previous, .. } = self.blocks[id];
        let (end, above) = (self.blocks[id].end(), start + units);
        (self.blocks[id].start, self.blocks[id].units) = (start, units);
        if start > first {
            let lower = self.new_block(first, start - first, State::Free);
            self.blocks.link(lower, previous, id);
            if self.first == id {
                self.first = lower;
            }
            self.add_free(id, lower, now);
        }
        if end > above {
            let upper = self.new_block(above, end - above, State::Free);
            let next = self.blocks[id].next;
            self.blocks.link(upper, id, next);
            if self.last == id {
                self.last = upper;
            }
            self.add_free(id, upper, now);
        }
    }

    /// Adds a block that was cut off `id` to the free blocks.
    fn add_free(&mut self, id: u32, part: u32, now: u64) {
        self.free_blocks += 1;
        self.free_bytes += self.blocks[part].bytes();
        if let Some(segments) = &mut self.segments {
            segments.count_part();
            self.blocks[part].bin_next = self.blocks[id].bin_next;
            self.insert_fit(part, now);
        } else if self.last == part {
            self.wilderness = part;
        } else {
            self.bins.insert(&mut self.blocks, part);
        }
    }

    /// Would a range be free if the blocks were free for which `is_freed` holds?
    pub(in crate::memory) fn would_be_free(
        &self,
        start: u32,
        units: u32,
        is_freed: impl Fn(u32) -> bool,
    ) -> bool {
        let mut id = self.blocks.holding(self.first, start, |block| block.state != State::Vacant);
        let end = u64::from(start) + u64::from(units);
        while id != NONE {
            let block = &self.blocks[id];
            let is_free = matches!(block.state, State::Free | State::Quick) || is_freed(id);
            if !is_free {
                return false;
            }
            if u64::from(block.end()) >= end {
                return true;
            }
            id = block.next;
        }
        false
    }

    /// The unit that begins at an address, which is at `offset` in an arena whose units begin at
    /// `base`. `None`: none does, or there is no memory any more.
    pub(in crate::memory) fn unit_at(&self, base: u64, offset: u64, address: u64) -> Option<u32> {
        let unit = u32::try_from(offset / UNIT).ok()?;
        if !offset.is_multiple_of(UNIT) {
            return None;
        }
        let id = self.blocks.holding(self.first, unit, |block| block.state != State::Vacant);
        if id == NONE || matches!(self.blocks[id].state, State::Hole | State::Gap) {
            return None;
        }
        let block = &self.blocks[id];
        let is_here = unit >= block.start
            && self.address(base, id) + u64::from(unit - block.start) * UNIT == address;
        is_here.then_some(unit)
    }
}
