//! What a device counts when the account of an arena alone cannot.

use crate::memory::arena::Arena;
use crate::memory::config::size::Class;
use crate::memory::device::DeviceMemory;
use crate::memory::stats::ledger::{COUNTERS, Counters, Split, only};

impl DeviceMemory {
    /// Counts a change of a block of a class, and the present free blocks, where the account alone
    /// could not. The caller holds the arena's lock, and no reference to its state.
    #[cold]
    pub(in crate::memory) fn count_slowly(
        &self,
        arena: &Arena,
        class: Class,
        change: Counters,
        split: Split,
    ) {
        let mut changes = only(class, change);
        // SAFETY: the lock is held and we are not parked.
        unsafe { arena.account() }.change_split(&mut changes, split);
        self.stats.count(arena, &changes);
    }

    /// The same with the free blocks of the arena's state. The caller holds the arena's lock.
    pub(in crate::memory) fn count_with_split(
        &self,
        arena: &Arena,
        class: Class,
        change: Counters,
    ) {
        // SAFETY: the caller holds the lock, and this is the only reference.
        let split = unsafe { arena.state() }.split();
        self.count_slowly(arena, class, change, split);
    }

    /// Counts the present free blocks. The caller holds the arena's lock.
    pub(in crate::memory) fn count_split(&self, arena: &Arena) {
        self.count_with_split(arena, arena.class, [0; COUNTERS]);
    }
}
