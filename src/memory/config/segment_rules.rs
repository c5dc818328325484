//! How large segments are, and which blocks are split: PyTorch's rules for memory of cudaMalloc.

use crate::memory::config::size::{Class, SMALL};

const MIB: u64 = 1 << 20;
/// The size of a segment for small blocks.
const SMALL_SEGMENT: u64 = 2 * MIB;
/// Blocks of at least this size get a segment of their own.
const LARGE_ALONE: u64 = 10 * MIB;
/// The size of such a segment is a multiple of this.
const ROUND: u64 = 2 * MIB;

/// The sizes that the settings determine, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Blocks of at least this size are oversize: they are not split, and do not serve smaller
    /// requests.
    pub max_split: u64,
    /// The largest excess of an oversize block over its request.
    pub max_non_split_rounding: u64,
    /// The size of a segment for large blocks below 10 MiB.
    pub large_segment: u64,
    /// No block is split.
    pub whole: bool,
}

impl Rules {
    /// The size of the segment for a block of `bytes`.
    pub fn segment_bytes(&self, bytes: u64) -> u64 {
        if bytes <= SMALL {
            SMALL_SEGMENT
        } else if bytes < LARGE_ALONE {
            self.large_segment
        } else {
            bytes.checked_next_multiple_of(ROUND).unwrap_or(bytes)
        }
    }

    /// May the best fit, of `found` bytes, serve a block of `bytes`?
    pub fn suits(&self, bytes: u64, found: u64) -> bool {
        if bytes < self.max_split {
            found < self.max_split
        } else {
            found < bytes.saturating_add(self.max_non_split_rounding)
        }
    }

    /// Does the rest of a free block become a block, after `bytes` are taken from it?
    pub fn splits(&self, class: Class, bytes: u64, rest: u64) -> bool {
        let is_worth_it = match class {
            Class::Small => rest > 0,
            Class::Large => bytes < self.max_split && rest > SMALL,
        };
        is_worth_it && !self.whole
    }

    /// Does a block or a segment of this size count as oversize?
    pub fn is_oversize(&self, bytes: u64) -> bool {
        bytes >= self.max_split
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn rules() -> Rules {
        Rules {
            max_split: u64::MAX,
            max_non_split_rounding: 20 * MIB,
            large_segment: 20 * MIB,
            whole: false,
        }
    }

    #[test]
    fn segment_sizes_are_those_of_pytorch() {
        for (bytes, segment) in [
            (512, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 512, 12 * MIB),
            (21 * MIB, 22 * MIB),
        ] {
            assert_eq!(rules().segment_bytes(bytes), segment, "{bytes}");
        }
        let larger = Rules { large_segment: 32 * MIB, ..rules() };
        assert_eq!(larger.segment_bytes(2 * MIB), 32 * MIB);
    }

    #[test]
    fn blocks_are_split_as_in_pytorch() {
        assert!(rules().splits(Class::Small, 512, 512) && !rules().splits(Class::Small, 512, 0));
        assert!(!rules().splits(Class::Large, 2 * MIB, MIB));
        assert!(rules().splits(Class::Large, 2 * MIB, MIB + 512));
        let limited = Rules { max_split: 32 * MIB, ..rules() };
        assert!(limited.splits(Class::Large, 32 * MIB - 512, 2 * MIB));
        assert!(!limited.splits(Class::Large, 32 * MIB, 8 * MIB));
        assert!(!Rules { whole: true, ..rules() }.splits(Class::Small, 512, 512 * KIB));
    }

    #[test]
    fn oversize_blocks_serve_requests_of_nearly_their_size() {
        let limited = Rules { max_split: 32 * MIB, ..rules() };
        assert!(limited.suits(30 * MIB, 32 * MIB - 512) && !limited.suits(30 * MIB, 32 * MIB));
        assert!(limited.suits(32 * MIB, 52 * MIB - 512) && !limited.suits(32 * MIB, 52 * MIB));
        assert!(rules().suits(2 * MIB, 1 << 40));
        assert!(limited.is_oversize(32 * MIB) && !limited.is_oversize(32 * MIB - 512));
    }
}
