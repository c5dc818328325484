//! A set of address ranges, with a query for overlap.

use crate::base::error::{Error, Result};

/// The first byte, and the byte after the last.
pub type Range = (u64, u64);

/// Ranges, sorted by their first byte; they may overlap.
pub struct Ranges {
    list: Vec<Range>,
    /// Bytes of the longest range since the set was last empty.
    longest: u64,
}

impl Ranges {
    /// An empty set.
    pub const fn new() -> Ranges {
        Ranges { list: Vec::new(), longest: 0 }
    }

    /// Adds a range; the same range may be added more than once.
    pub fn insert(&mut self, range: Range) -> Result<()> {
        self.list.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a tensor"))?;
        let place = self.list.partition_point(|known| *known < range);
        self.list.insert(place, range);
        self.longest = self.longest.max(range.1 - range.0);
        Ok(())
    }

    /// Removes one range that was added.
    pub fn remove(&mut self, range: Range) {
        if let Ok(place) = self.list.binary_search(&range) {
            self.list.remove(place);
        }
        if self.list.is_empty() {
            *self = Ranges::new();
        }
    }

    /// Does any range share a byte with this one?
    pub fn overlaps(&self, (first, end): Range) -> bool {
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
    fn ranges_overlap_where_they_share_a_byte() {
        let mut ranges = Ranges::new();
        for range in [(10, 20), (0, 100), (50, 50), (30, 40), (30, 40)] {
            ranges.insert(range).unwrap();
        }
        assert!(ranges.overlaps((99, 101)) && ranges.overlaps((0, 1)) && ranges.overlaps((35, 36)));
        assert!(!ranges.overlaps((100, 101)) && !ranges.overlaps((60, 60)));
        ranges.remove((0, 100));
        assert!(
            !ranges.overlaps((20, 30)) && !ranges.overlaps((45, 55)) && ranges.overlaps((19, 21))
        );
        ranges.remove((30, 40));
        assert!(ranges.overlaps((39, 60)));
        ranges.remove((30, 40));
        assert!(!ranges.overlaps((21, 60)) && ranges.overlaps((0, 60)));
        ranges.remove((10, 20));
        ranges.remove((50, 50));
        assert!(ranges.list.capacity() == 0 && !ranges.overlaps((0, u64::MAX)));
    }
}
