//! Slots of several sizes, used once a device has as many arenas as have a slot for all of its
//! memory.
//!
//! A *window* is an address reservation that begins as small slots. An arena that outgrows its slot
//! continues in a larger one above it in the same window, so that one base and 32-bit unit numbers
//! address all of its memory. Slots of one level are four times as large as those of the level
//! below. Four vacant slots merge into one of the next level: a buddy allocator, kept as bits.
//! Small slots are taken from the lower end and larger ones from the upper end.

use crate::base::error::{Error, Result};
use crate::memory::arena::registry::Slot;
use crate::memory::config::size::UNIT;

/// The ratio of slot sizes between adjacent levels, as a shift.
pub const STEP: u32 = 2;
/// The number of levels above the smallest slots, at most.
const MOST_LEVELS: u32 = 5;
/// The number of smallest slots in a window, at most.
pub const MOST_PLACES: usize = 8 << (STEP * MOST_LEVELS);
/// The smallest size of a slot.
const SMALLEST: u64 = 8 << 20;
/// The largest size of a window: the bytes of 2^32 units.
pub const LONGEST: u64 = UNIT << 32;

/// The index of the first word of each level's bits.
const FIRST_WORDS: [usize; MOST_LEVELS as usize + 2] = {
    let mut first = [0; MOST_LEVELS as usize + 2];
    let mut level = 0;
    while level <= MOST_LEVELS as usize {
        let bits = MOST_PLACES >> (STEP as usize * level);
        first[level + 1] = first[level] + bits.div_ceil(64);
        level += 1;
    }
    first
};

const WORDS: usize = FIRST_WORDS[MOST_LEVELS as usize + 1];

/// The number of levels above the smallest slots, if the largest slot has so many bytes.
pub fn levels(largest: u64) -> u32 {
    (0..=MOST_LEVELS).rev().find(|level| largest >> (STEP * level) >= SMALLEST).unwrap_or(0)
}

/// The vacant slots of a window.
pub struct Window {
    /// Its number in the registry.
    pub reservation: usize,
    top: u32,
    /// New arenas begin in places below this one; arenas that outgrow their slot continue in places
    /// above it.
    growth: usize,
    /// A bit for each vacant slot of each level.
    vacant: [u64; WORDS],
}

impl Window {
    /// A window of `count` vacant slots of the highest level.
    pub fn new(reservation: usize, count: usize, top: u32) -> Window {
        let growth = (count << (STEP * top) >> 1).max(1);
        let mut window = Window { reservation, top, growth, vacant: [0; WORDS] };
        (0..count).for_each(|index| window.flip(top, index));
        window
    }

    fn flip(&mut self, level: u32, index: usize) {
        self.vacant[FIRST_WORDS[level as usize] + index / 64] ^= 1 << (index % 64);
    }

    fn is_vacant(&self, level: u32, index: usize) -> bool {
        self.vacant[FIRST_WORDS[level as usize] + index / 64] >> (index % 64) & 1 != 0
    }

    /// The lowest vacant slot of a level, or the highest.
    fn find(&self, level: u32, highest: bool) -> Option<usize> {
        let words = &self.vacant[FIRST_WORDS[level as usize]..FIRST_WORDS[level as usize + 1]];
        match highest {
            false => {
                let word = words.iter().position(|word| *word != 0)?;
                Some(word * 64 + words[word].trailing_zeros() as usize)
            }
            true => {
                let word = words.iter().rposition(|word| *word != 0)?;
                Some(word * 64 + words[word].ilog2() as usize)
            }
        }
    }

    /// Takes a slot of a level; returns its first place and its number of places.
    fn take(&mut self, level: u32, highest: bool) -> Option<(usize, usize)> {
        let found = |from: u32| self.find(from, highest).map(|index| (from, index));
        let (mut from, mut index) = (level..=self.top).find_map(found)?;
        self.flip(from, index);
        while from > level {
            from -= 1;
            let first = index << STEP;
            index = if highest { first + (1 << STEP) - 1 } else { first };
            (first..first + (1 << STEP))
                .filter(|at| *at != index)
                .for_each(|at| self.flip(from, at));
        }
        Some((index << (STEP * level), 1 << (STEP * level)))
    }

    /// Takes one of the smallest slots, for a new arena.
    pub fn take_smallest(&mut self) -> Option<(usize, usize)> {
        let (index, count) = self.take(0, false)?;
        if index < self.growth {
            return Some((index, count));
        }
        self.give(index, count);
        None
    }

    /// Takes a slot of at least `places` places above `slot`, from the lowest level that has one.
    pub fn take_above(&mut self, slot: &Slot, places: u64) -> Option<(usize, usize)> {
        let levels = (0..=self.top).filter(|level| {
            let has = 1u64 << (STEP * level);
            has >= places && has > slot.count as u64
        });
        for level in levels {
            let Some((index, count)) = self.take(level, true) else { continue };
            if index >= slot.index + slot.count {
                return Some((index, count));
            }
            self.give(index, count);
        }
        None
    }

    /// Gives a slot back.
    pub fn give(&mut self, index: usize, count: usize) {
        let mut level = count.ilog2() / STEP;
        let mut index = index >> (STEP * level);
        self.flip(level, index);
        while level < self.top {
            let first = index >> STEP << STEP;
            let mut all = first..first + (1 << STEP);
            if !all.clone().all(|at| self.is_vacant(level, at)) {
                return;
            }
            all.by_ref().for_each(|at| self.flip(level, at));
            (level, index) = (level + 1, index >> STEP);
            self.flip(level, index);
        }
    }
}

/// The slots of an arena, in address order. The arena grows in the last.
pub struct OwnedSlots {
    list: [Option<Slot>; MOST_LEVELS as usize + 1],
    count: usize,
}

impl OwnedSlots {
    pub const fn new() -> OwnedSlots {
        OwnedSlots { list: [None; MOST_LEVELS as usize + 1], count: 0 }
    }

    pub fn push(&mut self, slot: Slot) -> Result<()> {
        const MANY: Error = Error::OutOfHostMemory("the slots of an arena");
        let place = self.list.get_mut(self.count).ok_or(MANY)?;
        *place = Some(slot);
        self.count += 1;
        Ok(())
    }

    /// The last slot.
    pub fn last(&self) -> Option<Slot> {
        self.list[..self.count].last().copied().flatten()
    }

    /// All slots, in address order.
    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = Slot> {
        self.list.into_iter().flatten()
    }

    /// Removes and returns all slots.
    pub fn take(&mut self) -> impl Iterator<Item = Slot> + use<> {
        std::mem::replace(self, OwnedSlots::new()).list.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn levels_end_where_slots_are_small() {
        assert_eq!(levels(256 * GIB), MOST_LEVELS);
        assert_eq!(levels(8 * GIB), MOST_LEVELS);
        assert_eq!(levels(GIB / 2), 3);
        assert_eq!(levels(4 << 20), 0);
    }

    #[test]
    fn taken_slots_are_disjoint_and_returned_slots_merge() {
        let mut window = Window::new(1, 2, 3);
        let (places, mut taken) = (2 << 6, Vec::new());
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..10_000 {
            if next(2) == 0 || taken.is_empty() {
                if let Some((index, count)) = window.take(next(4) as u32, next(2) == 0) {
                    assert!(index + count <= places && index % count == 0);
                    let is_apart =
                        |&(at, many): &(usize, usize)| at + many <= index || index + count <= at;
                    assert!(taken.iter().all(is_apart));
                    taken.push((index, count));
                }
            } else {
                let (index, count) = taken.swap_remove(next(taken.len() as u64) as usize);
                window.give(index, count);
            }
        }
        let held: usize = taken.iter().map(|slot| slot.1).sum();
        let mut smallest = Vec::new();
        while let Some((index, 1)) = window.take(0, false) {
            smallest.push(index);
        }
        assert_eq!(smallest.len() + held, places, "no slot is lost");
        smallest.into_iter().for_each(|index| window.give(index, 1));
        taken.into_iter().for_each(|(index, count)| window.give(index, count));
        assert_eq!(window.vacant, Window::new(1, 2, 3).vacant);
    }

    #[test]
    fn half_of_a_window_is_for_growth() {
        let mut window = Window::new(1, 2, 2);
        for index in 0..16 {
            assert_eq!(window.take_smallest(), Some((index, 1)));
        }
        assert_eq!(window.take_smallest(), None);
        window.give(3, 1);
        assert_eq!(window.take_smallest(), Some((3, 1)));
        assert_eq!(Window::new(1, 1, 0).take_smallest(), Some((0, 1)));
    }

    #[test]
    fn larger_slots_are_taken_from_above() {
        let mut window = Window::new(1, 1, 2);
        let slot = |(index, count)| Slot { reservation: 1, index, count, base: 0, bytes: 0 };
        let low = slot(window.take_smallest().unwrap());
        let high = slot(window.take_above(&low, 1).unwrap());
        assert_eq!((low.index, high.index, high.count), (0, 12, 4));
        assert!(window.take_above(&high, 1).is_none(), "nothing is above");
        assert!(window.take_above(&low, 5).is_none(), "none is so large");
        assert_eq!(window.take_above(&low, 2), Some((8, 4)));
    }
}
