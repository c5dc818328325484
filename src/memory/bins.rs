//! Free blocks by size: two levels of bitmaps over lists, so that a best fit costs a few instructions
//! however many blocks are free.
//!
//! A bin holds sizes that agree in their top seven bits: up to 127 units each size has its own, above
//! that bins are 1.6 % wide. A list is ordered by size, then address; a walk along one gives up after
//! [`SHORT_WALK`] blocks, which bounds the time. It may miss what fits: before memory is mapped
//! instead, the [`WHOLE_WALK`] is due.

use super::block::{Blocks, NONE};

const SUB_BITS: u32 = 6;
const SUBS: usize = 1 << SUB_BITS;
const LEVELS: usize = (32 - SUB_BITS) as usize + 1;
/// Blocks of one list that are looked at in steady state.
pub const SHORT_WALK: usize = 24;
/// All blocks of the list.
pub const WHOLE_WALK: usize = usize::MAX;

/// The lists of an arena.
pub struct Bins {
    levels: u32,
    subs: [u64; LEVELS],
    heads: [[u32; SUBS]; LEVELS],
}

/// Level and place in it of a size.
#[inline]
fn bin_of(units: u32) -> (usize, usize) {
    if units < SUBS as u32 {
        (0, units as usize)
    } else {
        let top = 31 - units.leading_zeros();
        let sub = (units >> (top - SUB_BITS)) as usize & (SUBS - 1);
        ((top - SUB_BITS) as usize + 1, sub)
    }
}

impl Bins {
    /// No blocks.
    pub fn new() -> Bins {
        Bins { levels: 0, subs: [0; LEVELS], heads: [[NONE; SUBS]; LEVELS] }
    }

    /// Adds a free block.
    #[inline]
    pub fn insert(&mut self, blocks: &mut Blocks, id: u32) {
        let key = (blocks[id].units, blocks[id].start);
        let (level, sub) = bin_of(key.0);
        let (mut below, mut above) = (NONE, self.heads[level][sub]);
        for _ in 0..SHORT_WALK {
            if above == NONE || (blocks[above].units, blocks[above].start) >= key {
                break;
            }
            below = above;
            above = blocks[above].bin_next;
        }
        blocks[id].bin_previous = below;
        blocks[id].bin_next = above;
        if above != NONE {
            blocks[above].bin_previous = id;
        }
        if below != NONE {
            blocks[below].bin_next = id;
        } else {
            self.heads[level][sub] = id;
            self.subs[level] |= 1 << sub;
            self.levels |= 1 << level;
        }
    }

    /// Takes a block out.
    #[inline]
    pub fn remove(&mut self, blocks: &mut Blocks, id: u32) {
        let block = blocks[id];
        if block.bin_next != NONE {
            blocks[block.bin_next].bin_previous = block.bin_previous;
        }
        if block.bin_previous != NONE {
            blocks[block.bin_previous].bin_next = block.bin_next;
            return;
        }
        let (level, sub) = bin_of(block.units);
        self.heads[level][sub] = block.bin_next;
        if block.bin_next == NONE {
            self.subs[level] &= !(1 << sub);
            if self.subs[level] == 0 {
                self.levels &= !(1 << level);
            }
        }
    }

    /// The smallest block of at least `units`, nearly always; none is [`NONE`]. Only after a
    /// [`WHOLE_WALK`] does that mean that there is none.
    #[inline]
    pub fn find(&self, blocks: &Blocks, units: u32, walk: usize) -> u32 {
        let (level, sub) = bin_of(units);
        let mut id = self.heads[level][sub];
        for _ in 0..walk {
            if id == NONE {
                break;
            }
            if blocks[id].units >= units {
                return id;
            }
            id = blocks[id].bin_next;
        }
        // Every block of a later bin is large enough; its first is its smallest.
        let later = self.subs[level] & (!1u64).checked_shl(sub as u32).unwrap_or(0);
        if later != 0 {
            return self.heads[level][later.trailing_zeros() as usize];
        }
        let levels = self.levels & (!1u32 << level);
        if levels == 0 {
            return NONE;
        }
        let level = levels.trailing_zeros() as usize;
        self.heads[level][self.subs[level].trailing_zeros() as usize]
    }

    /// Is a block in the list where it belongs?
    #[cfg(test)]
    pub fn contains(&self, blocks: &Blocks, id: u32) -> bool {
        let (level, sub) = bin_of(blocks[id].units);
        let mut next = self.heads[level][sub];
        while next != NONE && next != id {
            next = blocks[next].bin_next;
        }
        let listed = self.levels >> level & 1 == 1 && self.subs[level] >> sub & 1 == 1;
        next == id && listed
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::{Block, State};
    use super::*;

    fn block(start: u32, units: u32) -> Block {
        Block::new(start, units, State::Free)
    }

    #[test]
    fn every_size_has_a_bin_and_bins_are_in_order() {
        let mut last = (0, 0);
        for units in (1..10_000).chain((14..31).flat_map(|b| [(1 << b) - 1, 1 << b, (1 << b) + 9]))
        {
            let bin = bin_of(units);
            assert!(bin >= last, "{units}: {bin:?} after {last:?}");
            last = bin;
        }
        assert!(bin_of(u32::MAX).0 < LEVELS);
    }

    #[test]
    fn finds_the_best_fit_lowest_address_first() {
        let mut blocks = Blocks::new(100).unwrap();
        blocks.prepare(20).unwrap();
        let mut bins = Bins::new();
        let ids: Vec<u32> = [(50, 1000), (10, 1000), (90, 1003), (30, 5), (70, 1 << 20)]
            .iter()
            .map(|(start, units)| blocks.take(block(*start, *units)))
            .collect();
        for id in &ids {
            bins.insert(&mut blocks, *id);
        }
        assert_eq!(bins.find(&blocks, 1000, SHORT_WALK), ids[1]);
        assert_eq!(bins.find(&blocks, 1001, SHORT_WALK), ids[2]);
        assert_eq!(bins.find(&blocks, 1004, SHORT_WALK), ids[4]);
        assert_eq!(bins.find(&blocks, 6, SHORT_WALK), ids[1]);
        assert_eq!(bins.find(&blocks, (1 << 20) + 1, SHORT_WALK), NONE);
        bins.remove(&mut blocks, ids[1]);
        assert_eq!(bins.find(&blocks, 1000, SHORT_WALK), ids[0]);
        for id in [0, 2, 3, 4] {
            bins.remove(&mut blocks, ids[id]);
        }
        assert_eq!(bins.find(&blocks, 1, SHORT_WALK), NONE);
        assert_eq!(bins.levels, 0);
    }

    #[test]
    fn what_is_in_no_bin_is_known_as_such() {
        let mut blocks = Blocks::new(100).unwrap();
        blocks.prepare(4).unwrap();
        let mut bins = Bins::new();
        // Two of a size, one of another size in the same bin, and one alone in its own.
        let [a, b, c, d] = [(10, 1000), (50, 1000), (90, 1003), (30, 5)]
            .map(|(start, units)| blocks.take(block(start, units)));
        for id in [a, c] {
            bins.insert(&mut blocks, id);
        }
        let held = |bins: &Bins| [a, b, c, d].map(|id| bins.contains(&blocks, id));
        assert_eq!(held(&bins), [true, false, true, false]);
        // A list of which the bitmaps know nothing is never searched.
        bins.levels = 0;
        assert_eq!(held(&bins), [false; 4]);
    }
}
