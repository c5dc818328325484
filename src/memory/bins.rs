//! Free blocks by size: two levels of bitmaps over lists, so that a best fit costs a few instructions
//! however many blocks are free.
//!
//! A bin holds sizes that agree in their top eight bits: up to 255 units each size has its own, above
//! that bins are 0.8 % wide, so that most have one block at most. A list is ordered by size, then
//! address; a walk along one gives up after [`SHORT_WALK`] blocks, which bounds the time. It may miss
//! what fits: before memory is mapped instead, the [`WHOLE_WALK`] is due.

use super::block::{Blocks, NONE};

const SUB_BITS: u32 = 7;
const SUBS: usize = 1 << SUB_BITS;
const BINS: usize = (32 - SUB_BITS as usize + 1) << SUB_BITS;
/// Bins whose bits are in one word.
const WORD_BITS: u32 = 6;
const WORDS: usize = BINS >> WORD_BITS;
/// Blocks of one list that are looked at in steady state.
pub const SHORT_WALK: usize = 24;
/// All blocks of the list.
pub const WHOLE_WALK: usize = usize::MAX;

/// The lists of an arena.
pub struct Bins {
    /// Which words are not 0.
    words: u64,
    /// Which lists are not empty.
    bits: [u64; WORDS],
    heads: [u32; BINS],
}

/// The bin of a size.
#[inline]
fn bin_of(units: u32) -> usize {
    // Sizes below SUBS lie as if they had its top bit: no branch decides.
    let width = 31 - (units | SUBS as u32).leading_zeros() - SUB_BITS;
    ((width << SUB_BITS) + (units >> width)) as usize
}

impl Bins {
    /// No blocks.
    pub fn new() -> Bins {
        Bins { words: 0, bits: [0; WORDS], heads: [NONE; BINS] }
    }

    /// Adds a free block.
    #[inline]
    pub fn insert(&mut self, blocks: &mut Blocks, id: u32) {
        let key = (blocks[id].units, blocks[id].start);
        let bin = bin_of(key.0);
        let (mut below, mut above) = (NONE, self.heads[bin]);
        if above == NONE {
            self.bits[bin >> WORD_BITS] |= 1 << (bin % 64);
            self.words |= 1 << (bin >> WORD_BITS);
        }
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
            self.heads[bin] = id;
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
        let bin = bin_of(block.units);
        self.heads[bin] = block.bin_next;
        if block.bin_next == NONE {
            let word = &mut self.bits[bin >> WORD_BITS];
            *word &= !(1 << (bin % 64));
            if *word == 0 {
                self.words &= !(1 << (bin >> WORD_BITS));
            }
        }
    }

    /// The smallest block of at least `units`, nearly always; none is [`NONE`]. Only after a
    /// [`WHOLE_WALK`] does that mean that there is none.
    #[inline]
    pub fn find(&self, blocks: &Blocks, units: u32, walk: usize) -> u32 {
        let bin = bin_of(units);
        let word = bin >> WORD_BITS;
        let bits = self.bits[word] >> (bin % 64);
        if bits & 1 != 0 {
            let mut id = self.heads[bin];
            for _ in 0..walk {
                if id == NONE {
                    break;
                }
                if blocks[id].units >= units {
                    return id;
                }
                id = blocks[id].bin_next;
            }
        }
        // Every block of a later bin is large enough; its first is its smallest.
        let later = bits & !1;
        if later != 0 {
            return self.heads[bin + later.trailing_zeros() as usize];
        }
        let words = self.words & (!1 << word);
        if words == 0 {
            return NONE;
        }
        let word = words.trailing_zeros() as usize;
        self.heads[word << WORD_BITS | self.bits[word].trailing_zeros() as usize]
    }

    /// Is a block in the list where it belongs?
    #[cfg(test)]
    pub fn contains(&self, blocks: &Blocks, id: u32) -> bool {
        let bin = bin_of(blocks[id].units);
        let mut next = self.heads[bin];
        while next != NONE && next != id {
            next = blocks[next].bin_next;
        }
        let word = bin >> WORD_BITS;
        let listed = self.words >> word & 1 == 1 && self.bits[word] >> (bin % 64) & 1 == 1;
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
        let mut last = 0;
        for units in (1..10_000).chain((14..31).flat_map(|b| [(1 << b) - 1, 1 << b, (1 << b) + 9]))
        {
            let bin = bin_of(units);
            assert!(bin >= last, "{units}: {bin:?} after {last:?}");
            last = bin;
        }
        assert_eq!(bin_of(u32::MAX), BINS - 1);
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
        assert_eq!(bins.words, 0);
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
        bins.words = 0;
        assert_eq!(held(&bins), [false; 4]);
    }
}
