//! How far an arena's search for free memory reaches at its end.
//!
//! A pass of a program that is repeated should find all that it wants, and finds it for certain where every block
//! lies as it did before. While an arena grows for the first time, what fits nowhere gets an alias, or new memory at the end.
//! The next time that memory is there from the start, so that a block would lie at the end for which there is an alias;
//! what is wanted later would lie elsewhere as well, and something would be missing. So an arena that has aliases, or
//! whose quick lists (`quick.rs`) keep blocks apart until nothing else fits, forgets how far it has grown once it is
//! empty: what is free at its end is used up to where it *reaches*. From there it reaches
//! further by whole handles, as it has grown, unless an alias serves that was there when it had grown as far.

use crate::memory::arena::ArenaState;
use crate::memory::arena::block::NONE;
use crate::memory::stats::ledger::Class;

/// As far as there is memory.
pub(in crate::memory) const ALL: u32 = u32::MAX;

impl ArenaState {
    /// All of its memory is one free block: it begins again. What other streams use repeats itself less.
    pub(in crate::memory) fn begin_again(&mut self) {
        let has_lists = self.class == Class::Small;
        if (has_lists || !self.segment.aliases.is_empty()) && self.foreign.is_empty() {
            self.reach = 0;
        }
    }

    /// Does a block of so many units fit at the end, as far as it reaches?
    pub(in crate::memory) fn fits_at_end(&self, units: u32) -> bool {
        // The block of index 0 has no length.
        let end = &self.blocks[self.wilderness];
        end.units >= units && end.start + units <= self.reach
    }

    /// Where a block of so many units would end that lies at the end.
    pub(in crate::memory) fn end_with(&self, units: u32) -> u32 {
        let start =
            if self.wilderness == NONE { self.end() } else { self.blocks[self.wilderness].start };
        start.saturating_add(units)
    }

    /// Reaches as much further as a block of so many units needs; false: there is no such memory.
    pub(in crate::memory) fn reach_for(&mut self, units: u32) -> bool {
        let end = &self.blocks[self.wilderness];
        if end.units < units {
            return false;
        }
        let wanted = end.start + units;
        let mappings = self.segment.mappings();
        let handle = mappings.get(mappings.partition_point(|mapping| mapping.end() < wanted));
        // Before there was an alias none was looked for.
        let reach = handle.map_or(wanted, |handle| handle.end());
        self.reach = self.reach.max(reach).max(self.segment.aliases.first_reach());
        true
    }
}
