//! What a device counts when the account of an arena alone cannot.

use crate::memory::arena::{ArenaGuard, events};
use crate::memory::config::size::Class;
use crate::memory::device::DeviceMemory;
use crate::memory::stats::ledger::{COUNTERS, Counters, Split, change_of, only};

impl DeviceMemory {
    /// Counts a change of a block of a class, and the present free blocks, where the account alone
    /// could not.
    #[cold]
    pub(in crate::memory) fn count_slowly(
        &self,
        state: &mut ArenaGuard<'_>,
        class: Class,
        change: Counters,
        split: Split,
    ) {
        let mut changes = only(class, change);
        let arena = state.arena().class;
        state.account().change_split(arena, &mut changes, split);
        self.stats.count(&mut state.lock, &changes);
    }

    /// The same with the free blocks of the arena's state.
    pub(in crate::memory) fn count_with_split(
        &self,
        state: &mut ArenaGuard<'_>,
        class: Class,
        change: Counters,
    ) {
        let split = state.split();
        self.count_slowly(state, class, change, split);
    }

    /// Records and counts a block that was just allocated. Returns its address.
    pub(in crate::memory) fn count_allocated(&self, state: &mut ArenaGuard<'_>, id: u32) -> u64 {
        let arena = state.arena();
        events::allocated(arena, state, id);
        let block = state.blocks[id];
        let change = change_of(1, block.bytes(), block.requested as i64, block.oversize);
        self.count_with_split(state, arena.class_of(block.units), change);
        state.address(arena.base, id)
    }

    /// Counts the present free blocks.
    pub(in crate::memory) fn count_split(&self, state: &mut ArenaGuard<'_>) {
        let class = state.arena().class;
        self.count_with_split(state, class, [0; COUNTERS]);
    }
}
