//! The numbers of private pools.

/// The bits of a pool's number that hold the index of its entry in the table of pools.
pub(in crate::memory) const PLACE_BITS: u32 = 24;
/// Set in the number of a pool that a capture made.
pub(in crate::memory) const OF_GRAPH: u64 = 1 << 63;
/// Set in the number of a pool that the host has given.
pub(in crate::memory) const GIVEN: u64 = 1 << 62;
/// The largest number that the host may give; those of the library are larger.
pub const MOST_GIVEN: u64 = (1 << 30) - 1;

/// The identity of a pool, unique within the process. A pool with a number that the host has given
/// may get the identity of an earlier one with this number, whose memory it then has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolId(u64);

impl PoolId {
    /// Memory in no private pool.
    pub const DEFAULT: PoolId = PoolId(0);

    /// PyTorch's pair: (0, n) for pools of the host, (n, 0) for pools of captures.
    pub fn pair(self) -> (u64, u64) {
        let number = (self.0 & !(OF_GRAPH | GIVEN)) >> PLACE_BITS;
        if self.0 & OF_GRAPH == 0 { (0, number) } else { (number, 0) }
    }

    /// The number as a word, for an atomic.
    #[inline]
    pub(in crate::memory) fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub(in crate::memory) fn of_word(word: u64) -> PoolId {
        PoolId(word)
    }
}
