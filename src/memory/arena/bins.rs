//! Free blocks by size: two levels of bitmaps over lists. A best fit takes a few instructions,
//! however many blocks are free.
//!
//! A bin holds sizes that agree in their top eight bits. Up to 255 units each size has a bin of its
//! own. Above that a bin is 0.8 % wide, so that most bins have at most one block. The newest block
//! is the first of its list. A search takes the smallest block that fits, and of equals the lowest
//! that it sees. To bound its time it stops after [`SHORT_WALK`] blocks, and after [`EQUALS_WALK`]
//! in a list of equals. It may miss a block that fits: a [`WHOLE_WALK`] comes before memory is
//! mapped.
//!
//! The direction of a branch is as random as the sizes, so the code has few branches. A block
//! without a neighbour in its list writes into the block of index 0, whose links are never read.

use super::block::{Block, Blocks, NONE};
use crate::base::error::Result;
use crate::base::place::try_box_at;

const SUB_BITS: u32 = 7;
const SUBS: usize = 1 << SUB_BITS;
/// More bins than sizes need, so that no search goes beyond the last.
const BINS: usize = 1 << 12;
/// Bins whose bits are in one word.
const WORD_BITS: u32 = 6;
const WORDS: usize = BINS >> WORD_BITS;
/// Blocks of one list that a search visits in steady state.
pub const SHORT_WALK: usize = 64;
/// The same for a list of equals, which differ only in their addresses. A longer walk saves no
/// memory, and costs a cache line for each block.
const EQUALS_WALK: usize = 4;
/// Sizes up to this, in units, have a bin of their own.
const MOST_EQUAL: u32 = 2 * SUBS as u32 - 1;
/// A walk that visits all blocks of the list.
pub const WHOLE_WALK: usize = usize::MAX;

/// The bins of an arena.
pub struct Bins {
    /// A bit for each word of `bits` that is not 0.
    words: u64,
    /// A bit for each list that is not empty.
    bits: [u64; WORDS],
    heads: [u32; BINS],
}

/// The bin of a size. Size 0, which no block has, has a bin that is always empty.
#[inline(always)]
fn bin_of(units: u32) -> usize {
    // Sizes below SUBS are treated as if they had its top bit, which avoids a branch.
    let width = 31 - (units | SUBS as u32).leading_zeros() - SUB_BITS;
    ((width << SUB_BITS) + (units >> width)) as usize % BINS
}

impl Bins {
    /// Empty bins.
    #[cfg(test)]
    pub fn new() -> Bins {
        Bins { words: 0, bits: [0; WORDS], heads: [NONE; BINS] }
    }

    /// Writes empty bins to `place`.
    pub fn write_new(place: *mut Bins) {
        const { assert!(NONE == 0, "zeros are empty bins") };
        // SAFETY: there is room for bins, as the caller promises.
        unsafe { place.write_bytes(0, 1) };
    }

    /// Empty bins, made in place.
    pub fn boxed(what: &'static str) -> Result<Box<Bins>> {
        let write = |place| {
            Bins::write_new(place);
            Ok(())
        };
        // SAFETY: that writes all.
        unsafe { try_box_at(what, write) }
    }

    /// Adds a free block.
    #[inline]
    pub fn insert(&mut self, blocks: &mut Blocks, id: u32) {
        let bin = bin_of(blocks[id].units);
        self.bits[bin >> WORD_BITS] |= 1 << (bin % 64);
        self.words |= 1 << (bin >> WORD_BITS);
        let head = std::mem::replace(&mut self.heads[bin], id);
        let block = &mut blocks[id];
        block.bin_previous = NONE;
        block.bin_next = head;
        blocks[head].bin_previous = id;
    }

    /// Takes a block out.
    #[inline]
    pub fn remove(&mut self, blocks: &mut Blocks, id: u32) {
        debug_assert!(id != NONE);
        let Block { units, bin_previous: below, bin_next: above, .. } = blocks[id];
        blocks[above].bin_previous = below;
        blocks[below].bin_next = above;
        let bin = bin_of(units);
        let head = &mut self.heads[bin];
        *head = if below == NONE { above } else { *head };
        let is_empty = u64::from(*head == NONE);
        let bits = &mut self.bits[bin >> WORD_BITS];
        *bits &= !(is_empty << (bin % 64));
        self.words &= !(u64::from(*bits == 0) << (bin >> WORD_BITS));
    }

    /// The smallest block of at least `units` in nearly all cases, or [`NONE`]. Only after a
    /// [`WHOLE_WALK`] does [`NONE`] mean that no block fits.
    #[inline]
    pub fn find(&self, blocks: &Blocks, units: u32, walk: usize) -> u32 {
        let bin = bin_of(units);
        let id = self.first_from(bin);
        if blocks.get(id).is_some_and(|block| (block.units >= units) & (block.bin_next == NONE)) {
            return id;
        }
        if id == NONE { NONE } else { self.choose(blocks, bin, units, walk) }
    }

    /// Does the work of [`Bins::find`] if the first list has several blocks, or none that fits.
    #[inline(never)]
    fn choose(&self, blocks: &Blocks, bin: usize, units: u32, walk: usize) -> u32 {
        // Every block of a later bin is large enough.
        for bin in [bin, bin + 1] {
            let mut id = self.first_from(bin);
            let mut best = (u64::MAX, NONE);
            let are_equal = blocks[id].units <= MOST_EQUAL;
            for _ in 0..if are_equal { walk.min(EQUALS_WALK) } else { walk } {
                if id == NONE {
                    break;
                }
                let block = &blocks[id];
                if block.units >= units && block.key() < best.0 {
                    best = (block.key(), id);
                }
                id = block.bin_next;
            }
            if best.1 != NONE {
                return best.1;
            }
        }
        NONE
    }

    /// Runs `body` for each block of at least `units`, and perhaps for some that are smaller.
    pub fn each(&self, blocks: &Blocks, units: u32, mut body: impl FnMut(u32, &Block)) {
        let mut id = self.first_from(bin_of(units));
        while id != NONE {
            let block = &blocks[id];
            body(id, block);
            let next = block.bin_next;
            id = if next != NONE { next } else { self.first_from(bin_of(block.units) + 1) };
        }
    }

    /// The first block of the first bin that has any, from `bin` on.
    #[inline(always)]
    fn first_from(&self, bin: usize) -> u32 {
        let word = bin >> WORD_BITS;
        let here = self.bits[word % WORDS] & !0 << (bin % 64);
        let above = self.words & !1 << (word % 64);
        if here | above == 0 {
            return NONE;
        }
        let word = if here != 0 { word } else { above.trailing_zeros() as usize };
        let bits = if here != 0 { here } else { self.bits[word % WORDS] };
        self.heads[(word << WORD_BITS | bits.trailing_zeros() as usize) % BINS]
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
    use super::super::block::State;
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
        assert!(bin_of(u32::MAX) < BINS - 1);
        assert!(bin_of(0) < bin_of(1));
    }

    #[test]
    fn finds_the_best_fit_lowest_address_first() {
        let mut blocks = Blocks::new(100);
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
    fn of_many_equals_the_lowest_of_the_newest_is_found() {
        let mut blocks = Blocks::new(100);
        blocks.prepare(20).unwrap();
        let mut bins = Bins::new();
        let ids: Vec<u32> =
            [10, 70, 20, 60, 50, 30].map(|start| blocks.take(block(start, 5))).into();
        ids.iter().for_each(|id| bins.insert(&mut blocks, *id));
        for walk in [SHORT_WALK, WHOLE_WALK] {
            assert_eq!(bins.find(&blocks, 5, walk), ids[2], "of 20, 60, 50 and 30");
        }
        bins.remove(&mut blocks, ids[2]);
        assert_eq!(bins.find(&blocks, 4, SHORT_WALK), ids[5], "of 70, 60, 50 and 30");
        bins.remove(&mut blocks, ids[5]);
        assert_eq!(bins.find(&blocks, 5, SHORT_WALK), ids[0], "of all that are left");
    }

    #[test]
    fn a_block_in_no_bin_is_not_found() {
        let mut blocks = Blocks::new(100);
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
        // A list without its bit in the bitmaps is never searched.
        bins.words = 0;
        assert_eq!(held(&bins), [false; 4]);
    }
}
