//! Ranges of addresses, of which it is asked whether one meets any of them.

use crate::base::error::{Error, Result};

/// First byte, and one past the last.
pub type Range = (u64, u64);

/// Ranges, which may overlap, by where they begin.
pub struct Ranges {
    list: Vec<Range>,
    /// Bytes of the longest that there was since the list was empty.
    longest: u64,
}

impl Ranges {
    /// None.
    pub const fn new() -> Ranges {
        Ranges { list: Vec::new(), longest: 0 }
    }

    /// Adds one.
    pub fn insert(&mut self, range: Range) -> Result<()> {
        self.list.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a tensor"))?;
        let place = self.list.partition_point(|known| *known < range);
        self.list.insert(place, range);
        self.longest = self.longest.max(range.1 - range.0);
        Ok(())
    }

    /// Removes one that was added.
    pub fn remove(&mut self, range: Range) {
        if let Ok(place) = self.list.binary_search(&range) {
            self.list.remove(place);
        }
        if self.list.is_empty() {
            *self = Ranges::new();
        }
    }

    /// Is a byte of this range in one of them?
    pub fn meets(&self, (first, end): Range) -> bool {
        let beyond = self.list.partition_point(|(start, _)| *start < end);
        let lowest = first.saturating_sub(self.longest);
        let near = self.list[..beyond].iter().rev().take_while(|(start, _)| *start >= lowest);
        first < end && near.into_iter().any(|(start, stop)| first.max(*start) < end.min(*stop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_meets_what_it_shares_a_byte_with() {
        let mut ranges = Ranges::new();
        for range in [(10, 20), (0, 100), (50, 50), (30, 40), (30, 40)] {
            ranges.insert(range).unwrap();
        }
        assert!(ranges.meets((99, 101)) && ranges.meets((0, 1)) && ranges.meets((35, 36)));
        assert!(!ranges.meets((100, 101)) && !ranges.meets((60, 60)));
        ranges.remove((0, 100));
        assert!(!ranges.meets((20, 30)) && !ranges.meets((45, 55)) && ranges.meets((19, 21)));
        ranges.remove((30, 40));
        assert!(ranges.meets((39, 60)));
        ranges.remove((30, 40));
        assert!(!ranges.meets((21, 60)) && ranges.meets((0, 60)));
        ranges.remove((10, 20));
        ranges.remove((50, 50));
        assert!(ranges.list.capacity() == 0 && !ranges.meets((0, u64::MAX)));
    }
}
