//! Quick lists: blocks that were freed, by their exact size, not yet joined with their neighbours.
//!
//! Programs ask again and again for the sizes that they have just freed. Such a block is given out as it
//! is, without a search, a join or a split. What fits neither here nor in what is joined, joins all of them
//! ([`ArenaState::join_quick`]), so that what they keep apart never makes an arena grow.
//!
//! Lists are of small blocks only: what is freed in the order of need leaves memory in pieces, and pieces of
//! large memory cost more than the time that they save. Programs that repeat themselves would grow from pass
//! to pass. Of large blocks the one that was freed last rests: it is given out again if just its size is
//! wanted next, and is joined before anything else is freed or searched.

use super::arena::ArenaState;
use super::bins::SHORT_WALK;
use super::block::{Block, Blocks, NONE, State, UNIT};
use super::stats::Class;

/// Places for sizes; two sizes may want the same, then the first has it until all are joined.
const PLACES: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 10;
/// Blocks that are joined at once after the arena has grown, while it finds its size. Few where programs
/// are tested, which are short.
const REST: u32 = if cfg!(debug_assertions) { 2 } else { 4096 };
/// How much longer they may rest in the end.
const MOST_RESTS: u32 = 1024 * REST;
/// Head of a list that has become empty: its place is on the list of used ones still.
const EMPTY: u32 = u32::MAX;

/// The quick lists of an arena. What nearly every call uses comes first, and not side by side, for the reason
/// that `slack.rs` gives.
#[repr(C)]
pub struct Quick {
    /// The large block that was freed last; [`NONE`]: it is joined.
    resting: u32,
    /// Blocks that are joined at once before the lists are used again.
    rests: u32,
    /// Where the resting block starts. Known from its address as it is freed, so that who allocates it
    /// next need not wait until the block was found, and where it starts was read.
    resting_start: u32,
    /// `rests` at the next growth.
    next_rests: u32,
    /// Had all to be joined for want of memory since the arena was last empty?
    pub(super) is_pressed: bool,
    /// The block that was found to rest where a search would have found a place for it, when nothing was
    /// joined or searched since: it comes and goes.
    best: u32,
    /// Newest block of each list; [`NONE`]: the place was not used since all were joined.
    heads: [u32; PLACES],
    /// Places that were used since.
    used: [u16; PLACES],
    used_count: usize,
}

/// The place of a size.
#[inline]
fn place_of(units: u32) -> usize {
    // Multiplied by the golden ratio, so that sizes that follow each other lie apart.
    (units.wrapping_mul(0x9e37_79b1) >> (32 - PLACE_BITS)) as usize
}

impl Quick {
    /// Empty lists.
    pub fn new() -> Quick {
        Quick {
            resting: NONE,
            rests: REST,
            resting_start: 0,
            next_rests: REST,
            is_pressed: false,
            best: NONE,
            heads: [NONE; PLACES],
            used: [0; PLACES],
            used_count: 0,
        }
    }

    /// Is there certainly no block?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used_count == 0 && self.resting == NONE
    }

    /// May there be blocks in lists?
    #[inline]
    pub fn has_lists(&self) -> bool {
        self.used_count != 0
    }

    /// Adds a block of this length; false: its place is taken by another length.
    #[inline(always)]
    pub fn push(&mut self, blocks: &mut Blocks, id: u32, units: u32) -> bool {
        let place = place_of(units);
        let mut head = self.heads[place];
        if head == NONE {
            self.used[self.used_count] = place as u16;
            self.used_count += 1;
            head = EMPTY;
        } else if head != EMPTY && blocks[head].units != units {
            return false;
        }
        self.heads[place] = id;
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
        let place = place_of(units);
        let head = self.heads[place];
        if head == NONE || head == EMPTY {
            return None;
        }
        let block = blocks.get_mut(head)?;
        if block.units != units {
            return None;
        }
        self.heads[place] = block.bin_next;
        // Another thread may have freed these: what is wanted after the next comes meanwhile.
        let later = block.bin_previous;
        block.bin_next = later;
        blocks.fetch(later);
        Some(head)
    }

    /// Takes a whole list out of use: its first block, or [`NONE`] when there are no more.
    fn take_list(&mut self) -> u32 {
        debug_assert!(self.resting == NONE, "it is in no list");
        while self.used_count > 0 {
            self.used_count -= 1;
            let place = self.used[self.used_count] as usize;
            let head = std::mem::replace(&mut self.heads[place], NONE);
            if head != EMPTY {
                return head;
            }
        }
        NONE
    }

    /// Is a block in the list of its size?
    #[cfg(test)]
    pub fn contains(&self, blocks: &Blocks, id: u32) -> bool {
        if id == self.resting {
            return true;
        }
        let place = place_of(blocks[id].units);
        let mut next = self.heads[place];
        while next != NONE && next != EMPTY && next != id {
            next = blocks[next].bin_next;
        }
        next == id && self.used[..self.used_count].contains(&(place as u16))
    }
}

impl ArenaState {
    /// The arena grows: what is freed next is joined at once, so that it grows no more than it must; for
    /// twice as long if it grows although the lists were in use.
    pub(super) fn rest_quick(&mut self) {
        let quick = &mut self.quick;
        // What has no memory begins anew: what it was used for before says nothing of what comes.
        if self.last == NONE {
            quick.next_rests = REST;
        } else if quick.rests == 0 {
            quick.next_rests = (quick.next_rests * 2).min(MOST_RESTS);
        }
        quick.rests = quick.next_rests;
    }

    /// Joins the blocks of the quick lists with their free neighbours.
    #[inline]
    pub(super) fn join_quick(&mut self) {
        if !self.quick.is_empty() {
            self.join_all_quick();
        }
    }

    #[inline(never)]
    fn join_all_quick(&mut self) {
        self.join_resting();
        loop {
            let mut id = self.quick.take_list();
            if id == NONE {
                return;
            }
            while id != EMPTY {
                let next = self.blocks[id].bin_next;
                self.join(id);
                id = next;
            }
        }
    }

    /// Is what was freed last to be joined before a search?
    #[inline]
    pub(super) fn joins_at_once(&self) -> bool {
        self.class == Class::Large || self.quick.rests > 0
    }

    /// Joins the block that was freed last.
    #[inline]
    pub(super) fn join_resting(&mut self) {
        let id = std::mem::replace(&mut self.quick.resting, NONE);
        if id != NONE {
            self.join(id);
        }
    }

    fn join(&mut self, id: u32) {
        self.forget_start(id);
        // Counted as free already, which `release` does.
        self.free_blocks -= 1;
        self.free_bytes -= self.blocks[id].bytes();
        self.release(id);
    }

    /// Takes a block that just has this length, the one that was freed last or another one of a list: it,
    /// and its first unit.
    #[inline(always)]
    pub(super) fn take_quick(&mut self, units: u32) -> Option<(u32, u32)> {
        let id = self.quick.resting;
        // The block of index 0 has no length.
        if self.blocks.get(id).is_none_or(|block| block.units != units) {
            // Where there are none, their lines stay where they are.
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
        debug_assert!(self.quick.resting_start == self.blocks[id].start, "it stays where it is");
        self.quick.resting = NONE;
        Some((id, self.quick.resting_start))
    }

    /// A block is freed where another thread allocated it: those that came with it may follow.
    #[inline(always)]
    pub(super) fn fetch_next(&self, id: u32) {
        self.blocks.fetch(self.blocks[id].bin_next);
    }

    /// Free memory is about to change.
    #[inline(always)]
    pub(super) fn forget_best(&mut self) {
        self.quick.best = NONE;
    }

    /// Would a search have found the place of this resting block, had it been joined?
    #[inline(never)]
    fn is_best_fit(&self, id: u32) -> bool {
        let Block { units, start, previous, next, .. } = self.blocks[id];
        let is_free = |id: u32| id != NONE && self.blocks[id].state == State::Free;
        if is_free(previous) || is_free(next) && next != self.wilderness {
            return false;
        }
        let other = self.bins.find(&self.blocks, units, SHORT_WALK);
        // At the end nothing is best but what alone fits.
        let is_worse = || {
            next != self.wilderness
                && (self.blocks[other].units, self.blocks[other].start) > (units, start)
        };
        other == NONE || is_worse()
    }

    /// Makes a block free: it rests, and what rested before goes to a quick list if it is small and there
    /// is a place for its size.
    #[inline(always)]
    pub(super) fn release_quick(&mut self, id: u32, units: u32, start: u32) {
        let before = std::mem::replace(&mut self.quick.resting, id);
        self.quick.resting_start = start;
        self.blocks[id].state = State::Quick;
        self.free_blocks += 1;
        self.free_bytes += i64::from(units) * UNIT as i64;
        if before != NONE {
            self.put_away(before);
        }
    }

    /// An arena of small blocks in which nothing is in use joins all of them, this one too, unless there was
    /// always room beside them. A pass of a program that began with what the one before had left apart
    /// would now and then need more than that.
    #[cold]
    fn begin_anew(&mut self, id: u32) {
        (self.quick.is_pressed, self.quick.rests) = (false, 0);
        self.join(id);
        self.join_quick();
    }

    #[inline]
    fn put_away(&mut self, id: u32) {
        if self.class == Class::Large {
            return self.join(id);
        }
        if self.active_blocks == 0 && (self.quick.is_pressed || self.quick.rests > 0) {
            self.begin_anew(id);
            return;
        }
        let units = self.blocks[id].units;
        if self.quick.rests > 0 || !self.quick.push(&mut self.blocks, id, units) {
            self.quick.rests = self.quick.rests.saturating_sub(1);
            self.join(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks_of(sizes: &[u32]) -> (Blocks, Vec<u32>) {
        let mut blocks = Blocks::new(100).unwrap();
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
    fn sizes_that_share_a_place_do_not_mix() {
        let other = (2..).find(|units| place_of(*units) == place_of(1)).unwrap();
        let (mut blocks, ids) = blocks_of(&[1, other]);
        let mut quick = Quick::new();
        assert!(push(&mut quick, &mut blocks, ids[0]));
        assert!(!push(&mut quick, &mut blocks, ids[1]));
        assert_eq!(pop(&mut quick, &mut blocks, other), NONE);
        assert_eq!(pop(&mut quick, &mut blocks, 1), ids[0]);
        // The place is free again, although no list was taken.
        assert!(push(&mut quick, &mut blocks, ids[1]));
        assert_eq!(pop(&mut quick, &mut blocks, other), ids[1]);
    }

    #[test]
    fn every_list_is_taken_once_however_often_it_was_used() {
        let sizes: Vec<u32> = (1..60).collect();
        let (mut blocks, ids) = blocks_of(&sizes);
        let mut quick = Quick::new();
        for _ in 0..3 {
            let mut kept = 0;
            for id in &ids {
                if push(&mut quick, &mut blocks, *id) {
                    kept += 1;
                }
                let units = blocks[*id].units;
                if units % 3 == 0 && pop(&mut quick, &mut blocks, units) != NONE {
                    kept -= 1;
                }
            }
            let mut taken = 0;
            while quick.take_list() != NONE {
                taken += 1;
            }
            assert_eq!(taken, kept, "each list has one block");
            assert!(quick.is_empty());
        }
    }
}
