//! The growth cursor: the unit up to which an arena allocates from the free block at its end.
//!
//! A program that repeats a pass should find all the memory that it needs. It does for certain if
//! every block lies where it lay before. While an arena grows for the first time, a block that fits
//! nowhere gets a view or new memory at the end. In the next pass that memory exists from the
//! start. A block that had a view would then be placed at the end, later blocks would move as well,
//! and in the end some memory would be missing.
//!
//! Therefore an arena resets its cursor to 0 once it is empty, if it has views, or if its quick
//! lists (`quick.rs`) keep blocks unmerged until nothing else fits. From there the cursor advances
//! by whole growths, as the arena grew. It does not advance if a view fits that was made when the
//! arena was as large.

use crate::memory::arena::ArenaState;
use crate::memory::arena::block::NONE;
use crate::memory::config::size::Class;

/// No bound: all memory up to the end is used.
pub(in crate::memory) const ALL: u32 = u32::MAX;

impl ArenaState {
    /// Resets the cursor; called when all memory of the arena is one free block. Arenas with
    /// foreign free lists are excluded, because their use repeats less exactly.
    pub(in crate::memory) fn reset_cursor(&mut self) {
        let has_lists = self.class == Class::Small;
        if (has_lists || !self.segment.views.is_empty()) && self.foreign.is_empty() {
            self.growth_cursor = 0;
        }
    }

    /// Does a block of `units` fit at the end, below the cursor?
    pub(in crate::memory) fn fits_at_end(&self, units: u32) -> bool {
        // Block 0 has no length; it is the value of `wilderness` for "none".
        let end = &self.blocks[self.wilderness];
        end.units >= units && end.start + units <= self.growth_cursor
    }

    /// The end of a block of `units` that is placed at the arena's end.
    pub(in crate::memory) fn end_with(&self, units: u32) -> u32 {
        let start =
            if self.wilderness == NONE { self.end() } else { self.blocks[self.wilderness].start };
        start.saturating_add(units)
    }

    /// Advances the cursor as far as a block of `units` needs; false: there is not enough memory.
    pub(in crate::memory) fn advance_cursor(&mut self, units: u32) -> bool {
        let end = &self.blocks[self.wilderness];
        if end.units < units {
            return false;
        }
        let wanted = end.start + units;
        let mappings = self.segment.mappings();
        let first = mappings.partition_point(|mapping| mapping.end() < wanted);
        let growth = mappings[first..].iter().find(|mapping| mapping.ends_growth);
        // Before the first view was made, growth was not bounded.
        let cursor = growth.map_or(wanted, |last| last.end());
        self.growth_cursor = self.growth_cursor.max(cursor).max(self.segment.views.first_end());
        true
    }
}
