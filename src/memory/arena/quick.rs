//! Quick lists: freed blocks by their exact size, not yet merged with their neighbours.
//!
//! Programs often request the sizes that they have just freed. Such a block is allocated as it is,
//! without a search, a merge or a split. If nothing else fits, blocks are merged, the longest
//! first, until something does ([`ArenaState::merge_until`]). So blocks that are not merged never
//! make an arena grow.
//!
//! Only small blocks have lists. Blocks that are freed in the order of need leave memory in pieces,
//! and pieces of large memory cost more than the time that lists save. Of large blocks only the one
//! that was freed last is not merged. It is allocated again if exactly its size is requested next,
//! and is merged before anything else is freed or searched.
//!
//! Blocks that are not merged lead to other addresses than merged ones, and now and then to a
//! higher need. So an arena that is empty begins again as it began (`segment/growth_cursor.rs`): a
//! program that repeats itself repeats the effects of its lists.

use super::bins::SHORT_WALK;
use crate::memory::arena::ArenaState;
use crate::memory::arena::block::{Block, Blocks, NONE, State};
use crate::memory::config::size::{Class, SMALL_ARENA, UNIT};

/// Lists of an arena: one for each length of a block in a small arena.
const SIZES: usize = (SMALL_ARENA / UNIT) as usize;
const WORDS: usize = SIZES / 64;

/// The quick lists of an arena. The fields that nearly every call uses come first. They are not
/// adjacent, for the reason that `headroom.rs` gives.
#[repr(C)]
pub struct Quick {
    /// The block that was freed last, which is in no list; [`NONE`]: there is none.
    last_freed: u32,
    /// A block that was freed last and is the best fit of a search, if nothing was merged or
    /// searched since: it is allocated and freed again and again.
    best: u32,
    /// Where that block starts. It is computed from the address that is freed. So the next
    /// allocation need not wait for the block to be found and its start to be read.
    last_freed_start: u32,
    /// Were blocks merged for lack of memory since the arena was last empty?
    pub(in crate::memory) had_pressure: bool,
    /// A bit for each list that may have blocks.
    used: [u64; WORDS],
    /// Newest block of each list, by its length less one.
    heads: [u32; SIZES],
}

/// The list of a length; for one that is too long, an index without a list.
#[inline(always)]
fn list_of(units: u32) -> usize {
    units.wrapping_sub(1) as usize
}

impl Quick {
    /// Empty lists.
    pub fn new() -> Quick {
        Quick {
            last_freed: NONE,
            best: NONE,
            last_freed_start: 0,
            had_pressure: false,
            used: [0; WORDS],
            heads: [NONE; SIZES],
        }
    }

    /// Is there certainly no block?
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.has_lists() && self.last_freed == NONE
    }

    /// May there be blocks in lists?
    #[inline]
    pub fn has_lists(&self) -> bool {
        self.used.iter().fold(0, |all, bits| all | bits) != 0
    }

    /// Adds a block of this length; false: it is too long for a list.
    #[inline(always)]
    pub fn push(&mut self, blocks: &mut Blocks, id: u32, units: u32) -> bool {
        let list = list_of(units);
        let Some(newest) = self.heads.get_mut(list) else { return false };
        let head = std::mem::replace(newest, id);
        self.used[list / 64] |= 1 << (list % 64);
        let next_but_one = blocks.get(head).map_or(NONE, |block| block.bin_next);
        let block = &mut blocks[id];
        block.bin_next = head;
        block.bin_previous = next_but_one;
        block.state = State::Quick;
        true
    }

    /// Takes the newest block of a length.
    #[inline(always)]
    pub fn pop(&mut self, blocks: &mut Blocks, units: u32) -> Option<u32> {
        let newest = self.heads.get_mut(list_of(units))?;
        let head = *newest;
        if head == NONE {
            return None;
        }
        let block = blocks.get_mut(head)?;
        *newest = block.bin_next;
        // Another thread may have freed these: the block that is taken after the next one is
        // fetched meanwhile.
        let later = block.bin_previous;
        block.bin_next = later;
        blocks.prefetch(later);
        Some(head)
    }

    /// Takes the newest of the longest blocks.
    fn pop_longest(&mut self, blocks: &Blocks) -> u32 {
        debug_assert!(self.last_freed == NONE, "it is in no list");
        for (word, bits) in self.used.iter_mut().enumerate().rev() {
            while *bits != 0 {
                let bit = bits.ilog2();
                let newest = &mut self.heads[word * 64 + bit as usize];
                let id = *newest;
                if id != NONE {
                    *newest = blocks[id].bin_next;
                    return id;
                }
                *bits &= !(1 << bit);
            }
        }
        NONE
    }

    /// Is a block in the list of its size?
    #[cfg(test)]
    pub fn contains(&self, blocks: &Blocks, id: u32) -> bool {
        if id == self.last_freed {
            return true;
        }
        let list = list_of(blocks[id].units);
        let Some(head) = self.heads.get(list) else { return false };
        let mut next = *head;
        while next != NONE && next != id {
            next = blocks[next].bin_next;
        }
        next == id && self.used[list / 64] >> (list % 64) & 1 == 1
    }
}

impl ArenaState {
    /// Merges the blocks of the quick lists with their free neighbours.
    #[inline]
    pub(in crate::memory) fn merge_quick(&mut self) {
        if !self.quick.is_empty() {
            self.merge_until(u32::MAX);
        }
    }

    /// Merges them until a block of so many units is free. The longest come first: they make the
    /// longest ones, so that few are merged.
    #[inline(never)]
    pub(in crate::memory) fn merge_until(&mut self, units: u32) {
        self.merge_last_freed();
        loop {
            let id = self.quick.pop_longest(&self.blocks);
            if id == NONE {
                return;
            }
            let merged = self.merge(id);
            let fits = match merged == self.wilderness {
                true => self.fits_at_end(units),
                false => self.blocks[merged].units >= units,
            };
            if fits {
                return;
            }
        }
    }

    /// Merges the block that was freed last.
    #[inline]
    pub(in crate::memory) fn merge_last_freed(&mut self) {
        let id = std::mem::replace(&mut self.quick.last_freed, NONE);
        if id != NONE {
            self.merge(id);
        }
    }

    /// Merges a block with its free neighbours. Returns the merged block.
    fn merge(&mut self, id: u32) -> u32 {
        self.forget_start(id);
        // It is counted as free already, and `release` counts it again.
        self.free_blocks -= 1;
        self.free_bytes -= self.blocks[id].bytes();
        self.release(id)
    }

    /// Takes a block of exactly this length: the one that was freed last, or one of a list. Returns
    /// it and its first unit.
    #[inline(always)]
    pub(in crate::memory) fn take_quick(&mut self, units: u32) -> Option<(u32, u32)> {
        let id = self.quick.last_freed;
        // The block of index 0 has no length.
        if self.blocks.get(id).is_none_or(|block| block.units != units) {
            // If all lists are empty, their cache lines are not read.
            let listed =
                if self.quick.has_lists() { self.quick.pop(&mut self.blocks, units) } else { None };
            return Some((listed?, self.blocks.get(listed?)?.start));
        }
        if self.class == Class::Large && id != self.quick.best {
            if !self.is_best_fit(id) {
                return None;
            }
            self.quick.best = id;
        }
        debug_assert!(self.quick.last_freed_start == self.blocks[id].start, "it stays where it is");
        self.quick.last_freed = NONE;
        Some((id, self.quick.last_freed_start))
    }

    /// Prefetches the block that may be freed next, when a thread frees blocks that another thread
    /// allocated.
    #[inline(always)]
    pub(in crate::memory) fn prefetch_next(&self, id: u32) {
        self.blocks.prefetch(self.blocks[id].bin_next);
    }

    /// Called before free memory changes.
    #[inline(always)]
    pub(in crate::memory) fn forget_best(&mut self) {
        self.quick.best = NONE;
    }

    /// Would a search have found the place of this block, if it had been merged?
    #[inline(never)]
    fn is_best_fit(&self, id: u32) -> bool {
        let Block { units, start, previous, next, .. } = self.blocks[id];
        let is_free = |id: u32| id != NONE && self.blocks[id].state == State::Free;
        if is_free(previous) || is_free(next) && next != self.wilderness {
            return false;
        }
        let other = self.bins.find(&self.blocks, units, SHORT_WALK);
        // A block beside the wilderness is the best fit only if no other block fits.
        let is_worse = || {
            next != self.wilderness
                && (self.blocks[other].units, self.blocks[other].start) > (units, start)
        };
        other == NONE || is_worse()
    }

    /// Makes a block free, as the one that was freed last. The one before it goes to the quick list
    /// of its size if it is small, or else is merged.
    #[inline(always)]
    pub(in crate::memory) fn release_quick(&mut self, id: u32, units: u32, start: u32) {
        let before = std::mem::replace(&mut self.quick.last_freed, id);
        self.quick.last_freed_start = start;
        self.blocks[id].state = State::Quick;
        self.free_blocks += 1;
        self.free_bytes += i64::from(units) * UNIT as i64;
        if before != NONE {
            self.push_or_merge(before);
        }
    }

    /// Merges all blocks of an arena of small blocks in which nothing is in use, and this one,
    /// unless there was always room beside them. A pass of a program that began with the blocks
    /// that the previous pass left would now and then need more memory.
    #[cold]
    fn merge_all(&mut self, id: u32) {
        self.quick.had_pressure = false;
        self.merge(id);
        self.merge_quick();
    }

    #[inline]
    fn push_or_merge(&mut self, id: u32) {
        if self.class == Class::Large {
            self.merge(id);
        } else if self.active_blocks == 0 && self.quick.had_pressure {
            self.merge_all(id);
        } else {
            let units = self.blocks[id].units;
            if !self.quick.push(&mut self.blocks, id, units) {
                self.merge(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks_of(sizes: &[u32]) -> (Blocks, Vec<u32>) {
        let mut blocks = Blocks::new(1000);
        blocks.prepare(sizes.len() as u32).unwrap();
        let take = |units: &u32| blocks.take(Block::new(0, *units, State::Quick));
        let ids = sizes.iter().map(take).collect();
        (blocks, ids)
    }

    fn push(quick: &mut Quick, blocks: &mut Blocks, id: u32) -> bool {
        let units = blocks[id].units;
        quick.push(blocks, id, units)
    }

    fn pop(quick: &mut Quick, blocks: &mut Blocks, units: u32) -> u32 {
        quick.pop(blocks, units).unwrap_or(NONE)
    }

    #[test]
    fn the_newest_of_a_size_comes_first() {
        let (mut blocks, ids) = blocks_of(&[7, 9, 7]);
        let mut quick = Quick::new();
        for id in &ids {
            assert!(push(&mut quick, &mut blocks, *id));
            assert!(quick.contains(&blocks, *id));
        }
        assert_eq!(pop(&mut quick, &mut blocks, 7), ids[2]);
        assert!(!quick.contains(&blocks, ids[2]));
        assert_eq!(pop(&mut quick, &mut blocks, 7), ids[0]);
        assert_eq!(pop(&mut quick, &mut blocks, 7), NONE);
        assert_eq!(pop(&mut quick, &mut blocks, 8), NONE);
        assert_eq!(pop(&mut quick, &mut blocks, 9), ids[1]);
    }

    #[test]
    fn a_block_that_is_too_long_has_no_list() {
        let longest = (SMALL_ARENA / UNIT) as u32;
        let (mut blocks, ids) = blocks_of(&[longest, longest + 1]);
        let mut quick = Quick::new();
        assert!(push(&mut quick, &mut blocks, ids[0]));
        assert!(!push(&mut quick, &mut blocks, ids[1]));
        assert_eq!(pop(&mut quick, &mut blocks, longest + 1), NONE);
        assert_eq!(pop(&mut quick, &mut blocks, longest), ids[0]);
    }

    #[test]
    fn the_longest_come_first_however_often_lists_were_used() {
        let sizes: Vec<u32> = (1..60).chain(40..129).collect();
        let (mut blocks, ids) = blocks_of(&sizes);
        let mut quick = Quick::new();
        for _ in 0..3 {
            let mut kept = Vec::new();
            for id in &ids {
                assert!(push(&mut quick, &mut blocks, *id));
                let units = blocks[*id].units;
                if units % 3 == 0 {
                    assert_eq!(pop(&mut quick, &mut blocks, units), *id);
                } else {
                    kept.push(units);
                }
            }
            kept.sort_by_key(|units| std::cmp::Reverse(*units));
            for units in kept {
                assert!(!quick.is_empty());
                let id = quick.pop_longest(&blocks);
                assert_eq!(blocks[id].units, units);
            }
            assert_eq!(quick.pop_longest(&blocks), NONE);
            assert!(quick.is_empty());
        }
    }
}
