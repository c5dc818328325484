//! Growing and shrinking an arena's memory. An arena grows at its end or into holes. Giving back
//! free memory leaves holes: address ranges without memory between ranges with memory.

use crate::base::error::{Error, Result};
use crate::memory::arena::ArenaState;
use crate::memory::arena::block::{Block, NONE, State};
use crate::memory::arena::foreign_free::Owner;
use crate::memory::arena::segment::growth_cursor;
use crate::memory::backing::virtual_memory::VirtualMemory;
use crate::memory::config::size::UNIT;

impl ArenaState {
    /// Are there addresses without memory below the end?
    fn has_holes(&self) -> bool {
        u64::from(self.end() - self.gaps) * UNIT != self.segment.bytes()
    }

    /// Adds newly mapped units at the end, as a free block.
    pub(in crate::memory) fn extend(&mut self, units: u32) {
        let start = if self.last == NONE { 0 } else { self.blocks[self.last].end() };
        let id = self.new_block(start, units, State::Free);
        self.blocks.link(id, self.last, NONE);
        if self.last == NONE {
            self.first = id;
        }
        self.last = id;
        self.release(id);
        self.growth_cursor = growth_cursor::ALL;
    }

    /// One past the last mapped unit.
    pub(in crate::memory) fn end(&self) -> u32 {
        if self.last == NONE { 0 } else { self.blocks[self.last].end() }
    }

    /// Maps memory so that a block of `units` fits. Fills the lowest hole that is large enough
    /// together with its free neighbours; without one, grows at the end.
    pub(in crate::memory) fn grow(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        units: u32,
        limit: u64,
    ) -> Result<()> {
        let step = (memory.granularity() / UNIT) as u32;
        debug_assert!(self.quick.is_empty(), "a search came before");
        self.blocks.prepare(2)?;
        if self.has_holes()
            && let Some((hole, below)) = self.find_hole(units)
        {
            let room = self.blocks[hole].units;
            let wanted = (units - below.min(units)).next_multiple_of(step).max(step).min(room);
            match self.fill_hole(memory, base, hole, wanted) {
                Ok(()) => return Ok(()),
                Err(error @ (Error::DriverOutOfMemory { .. } | Error::OverLimit)) => {
                    return Err(error);
                }
                // The driver refuses to map these addresses; others may work.
                Err(_) => (),
            }
        }
        self.skip_to_slot()?;
        let grown = self.grow_beyond(memory, base, units, (step, limit));
        if grown.is_err() {
            self.trim();
        }
        grown
    }

    /// Maps memory at the end so that a block of `units` fits: more than is missing if that is less
    /// than a step of growth, and the driver has it.
    fn grow_beyond(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        units: u32,
        (step, limit): (u32, u64),
    ) -> Result<()> {
        let missing = self.missing_at_end(units, step);
        let more = (self.segment.growth_step(memory) / UNIT) as u32;
        if more > missing && self.grow_at_end(memory, base, more, limit).is_ok() {
            return Ok(());
        }
        self.grow_at_end(memory, base, missing, limit)
    }

    /// Does the mapped memory end below the slot in which the arena grows?
    pub(in crate::memory) fn is_below_slot(&self) -> bool {
        self.end() < self.segment.views.slot_start
    }

    /// Moves the end to the growth slot if it is below it, with a gap block in between.
    fn skip_to_slot(&mut self) -> Result<()> {
        if !self.is_below_slot() {
            return Ok(());
        }
        self.blocks.prepare(1)?;
        let (end, start) = (self.end(), self.segment.views.slot_start);
        let wilderness = std::mem::replace(&mut self.wilderness, NONE);
        if wilderness != NONE {
            self.bins.insert(&mut self.blocks, wilderness);
        }
        let id = self.new_block(end, start - end, State::Gap);
        self.blocks.link(id, self.last, NONE);
        if self.last == NONE {
            self.first = id;
        }
        self.last = id;
        self.gaps += start - end;
        Ok(())
    }

    /// Does the arena need a larger slot for a block of `units`? Its addresses go up to `limit`.
    pub(in crate::memory) fn outgrows(&self, units: u32, step: u32, limit: u64) -> bool {
        let (end, missing) = match self.is_below_slot() {
            true => (self.segment.views.slot_start, units.next_multiple_of(step)),
            false => (self.end(), self.missing_at_end(units, step)),
        };
        u64::from(end) + u64::from(missing) > self.segment.views.primary_limit(limit)
    }

    /// The units to map at the end so that a block of `units` fits there.
    pub(in crate::memory) fn missing_at_end(&self, units: u32, step: u32) -> u32 {
        let free = if self.wilderness == NONE { 0 } else { self.blocks[self.wilderness].units };
        (units - free.min(units)).next_multiple_of(step)
    }

    /// Maps `units`, a multiple of the granularity, at the end.
    pub(in crate::memory) fn grow_at_end(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        units: u32,
        limit: u64,
    ) -> Result<()> {
        self.blocks.prepare(1)?;
        let limit = self.segment.views.primary_limit(limit);
        if self.is_below_slot() || u64::from(self.end()) + u64::from(units) > limit {
            return Err(Error::DriverOutOfMemory { call: "cuMemMap" });
        }
        self.segment.map(memory, base, self.end(), u64::from(units) * UNIT)?;
        self.extend(units);
        Ok(())
    }

    /// Is there a hole in which a block of `units` fits, together with its free neighbours?
    pub(in crate::memory) fn has_hole_for(&self, units: u32) -> bool {
        self.has_holes() && self.find_hole(units).is_some()
    }

    /// The lowest hole in which a block of `units` fits together with its free neighbours, and the
    /// free units directly below it.
    fn find_hole(&self, units: u32) -> Option<(u32, u32)> {
        let free = |id: u32| match id {
            NONE => 0,
            id if self.blocks[id].state == State::Free => self.blocks[id].units,
            _ => 0,
        };
        let mut id = self.first;
        while id != NONE {
            let block = &self.blocks[id];
            if block.state == State::Hole {
                let below = free(block.previous);
                if u64::from(below) + u64::from(block.units) + u64::from(free(block.next))
                    >= u64::from(units)
                {
                    return Some((id, below));
                }
            }
            id = block.next;
        }
        None
    }

    fn fill_hole(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        hole: u32,
        units: u32,
    ) -> Result<()> {
        let start = self.blocks[hole].start;
        self.segment.map(memory, base, start, u64::from(units) * UNIT)?;
        let filled =
            if units == self.blocks[hole].units { hole } else { self.split_hole(hole, units) };
        self.release(filled);
        // `release` resets the cursor if nothing is in use; the new memory is for use now.
        self.growth_cursor = growth_cursor::ALL;
        Ok(())
    }

    /// Splits `units` off the lower end of a longer hole, as a free block.
    fn split_hole(&mut self, hole: u32, units: u32) -> u32 {
        let Block { start, previous: below, .. } = self.blocks[hole];
        let id = self.new_block(start, units, State::Free);
        self.blocks[hole].start += units;
        self.blocks[hole].units -= units;
        self.blocks.link(id, below, hole);
        if self.first == hole {
            self.first = id;
        }
        id
    }

    /// Does a free block contain a whole mapping?
    pub(in crate::memory) fn has_idle(&self) -> bool {
        let mut id = self.first;
        while id != NONE {
            let block = &self.blocks[id];
            if block.state == State::Free {
                let (from, to) = self.segment.whole_within(block.start, block.end());
                if from != to {
                    return true;
                }
            }
            id = block.next;
        }
        false
    }

    /// Unmaps whole mappings that are free and gives their memory back, until that is `wanted`
    /// bytes or more. No work on the device may still use free memory. Unused views are unmapped
    /// before, because the driver keeps memory as long as any address maps it.
    pub(in crate::memory) fn release_idle(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        wanted: u64,
    ) -> Result<()> {
        debug_assert!(self.quick.is_empty(), "quick lists are empty");
        self.growth_cursor = growth_cursor::ALL;
        self.segment.views.clear(memory, base, false)?;
        let before = self.segment.bytes();
        let mut id = self.first;
        while id != NONE && before - self.segment.bytes() < wanted {
            let next = self.blocks[id].next;
            if self.blocks[id].state == State::Free {
                self.make_hole(memory, base, id)?;
            }
            id = next;
        }
        self.trim();
        Ok(())
    }

    /// Turns the whole mappings inside a free block into a hole.
    fn make_hole(&mut self, memory: &VirtualMemory, base: u64, id: u32) -> Result<()> {
        let (start, end) = (self.blocks[id].start, self.blocks[id].end());
        let (from, to) = self.segment.whole_within(start, end);
        if from == to {
            return Ok(());
        }
        self.blocks.prepare(2)?;
        let (to, outcome) = self.segment.unmap(memory, base, from, to);
        if from == to {
            return outcome;
        }
        self.cut_out(id, from, to, State::Hole);
        self.join_holes(id);
        outcome
    }

    /// Gives a part of a free block another state; the rest on both sides stays free. The caller
    /// has prepared two blocks.
    pub(in crate::memory) fn cut_out(&mut self, id: u32, from: u32, to: u32, state: State) {
        let Block { start, previous: below, .. } = self.blocks[id];
        let end = self.blocks[id].end();
        let owner = self.owner_of_free(id).unwrap_or(Owner::ARENA);
        self.take_out(owner, id);
        let block = &mut self.blocks[id];
        (block.start, block.units, block.state) = (from, to - from, state);
        if start < from {
            let edge = self.new_block(start, from - start, State::Free);
            self.blocks.link(edge, below, id);
            if self.first == id {
                self.first = edge;
            }
            self.release_to(owner, edge);
        }
        if to < end {
            let above = self.blocks[id].next;
            let edge = self.new_block(to, end - to, State::Free);
            self.blocks.link(edge, id, above);
            if self.last == id {
                self.last = edge;
            }
            self.release_to(owner, edge);
        }
    }

    /// Merges a hole with adjacent holes. The upper one survives, so that a walk to higher
    /// addresses can continue.
    pub(in crate::memory) fn join_holes(&mut self, id: u32) {
        let Block { previous, next, .. } = self.blocks[id];
        for (below, above) in [(previous, id), (id, next)] {
            let is_hole = |id| id != NONE && self.blocks[id].state == State::Hole;
            if is_hole(below) && is_hole(above) {
                self.blocks[above].start = self.blocks[below].start;
                self.blocks[above].units += self.blocks[below].units;
                self.blocks.unlink(below);
                self.blocks.give(below);
                if self.first == below {
                    self.first = above;
                }
            }
        }
    }

    /// Drops holes at the end, so that the last block ends where the memory ends. A free last block
    /// becomes the wilderness.
    fn trim(&mut self) {
        self.drop_holes_at_end();
        if self.last != NONE
            && self.blocks[self.last].state == State::Free
            && self.wilderness != self.last
        {
            self.bins.remove(&mut self.blocks, self.last);
            self.wilderness = self.last;
        }
    }

    /// Drops holes at the end, in an arena without a wilderness.
    pub(in crate::memory) fn drop_holes_at_end(&mut self) {
        while self.last != NONE && matches!(self.blocks[self.last].state, State::Hole | State::Gap)
        {
            let hole = self.last;
            if self.blocks[hole].state == State::Gap {
                self.gaps -= self.blocks[hole].units;
            }
            self.last = self.blocks[hole].previous;
            self.blocks.unlink(hole);
            self.blocks.give(hole);
        }
        if self.last == NONE {
            self.first = NONE;
        }
    }
}
