//! The ranks of locks, unchecked: threads of a model share one thread of the machine, and with it
//! the thread-local state that the library's own check keeps.

/// The place of a lock in the order of locks.
#[derive(Clone, Copy)]
pub struct Rank;

impl Rank {
    pub const LIFE: Rank = Rank;
    pub const ONCE: Rank = Rank;
    pub const ARENA: Rank = Rank;
    pub const PARKED: Rank = Rank;
    pub const LEDGER: Rank = Rank;
    pub const RETIRED: Rank = Rank;
    pub const LEAF: Rank = Rank;
    pub fn check(self) {}
    pub fn note_taken(self) {}
    pub fn note_released(self) {}
}
