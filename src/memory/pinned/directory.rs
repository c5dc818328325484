//! The lock-free lookup of a pinned segment by address. A sorted list is replaced when a segment is
//! added or removed, and dropped once no thread that is inside can still read it.

use super::source::Memory;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::published::Published;
use crate::base::rank::Rank;
use crate::base::retired::Reclaimable;
use crate::base::thread;

/// The location of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub memory: Memory,
    /// Index of its heap.
    pub heap: u32,
    /// Index of the segment in the heap.
    pub segment: u32,
}

type List = Vec<Place>;

/// A list that was replaced, and that other threads may still read: to be retired while no lock is
/// held.
pub type Replaced = Option<Box<Reclaimable<List>>>;

/// The directory of all pinned segments.
pub struct Directory {
    list: Published<List>,
    /// Held while the list changes.
    changing: Mutex<()>,
}

impl Directory {
    pub fn new() -> Directory {
        Directory { list: Published::new(), changing: Mutex::new(Rank::LEAF, ()) }
    }

    fn list(&self) -> &[Place] {
        self.list.get().map_or(&[], Vec::as_slice)
    }

    /// The segment that contains an address; it may have been freed in the meantime.
    #[inline]
    pub fn find(&self, address: usize) -> Option<Place> {
        let list = self.list();
        let index = list.partition_point(|place| place.memory.base <= address);
        let place = list.get(index.checked_sub(1)?)?;
        (address - place.memory.base < place.memory.bytes).then_some(*place)
    }

    /// Replaces the list: without some segments, and perhaps with a new one.
    fn replace(&self, ends: impl Fn(&Place) -> bool, new: Option<Place>) -> Result<Replaced> {
        let _changing = self.changing.lock();
        let old = self.list();
        let mut list = Vec::new();
        let no_room = |_| Error::OutOfHostMemory("the list of pinned memory");
        list.try_reserve_exact(old.len() + 1).map_err(no_room)?;
        list.extend(old.iter().filter(|place| !ends(place)).chain(&new));
        list.sort_unstable_by_key(|place: &Place| place.memory.base);
        let list = thread::reclaimable(list, "the list of pinned memory")?;
        Ok(self.list.replace(Some(list)))
    }

    /// Adds a segment. Removes those that overlap it: they were freed to the driver, and `remove`
    /// had no host memory.
    pub fn add(&self, place: Place) -> Result<Replaced> {
        let new = place.memory;
        self.replace(
            |Place { memory: old, .. }| old.base < new.end() && new.base < old.end(),
            Some(place),
        )
    }

    /// Removes a segment. Without host memory it stays: readers check it under the heap's lock.
    pub fn remove(&self, place: Place) {
        if let Ok(Some(list)) = self.replace(|other| *other == place, None) {
            thread::retire(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::Origin;
    use super::*;

    fn add(directory: &Directory, place: Place) {
        // No other thread reads it.
        drop(directory.add(place).unwrap());
    }

    fn place(base: usize, bytes: usize, segment: u32) -> Place {
        Place { memory: Memory { base, bytes, origin: Origin::Driver }, heap: 3, segment }
    }

    #[test]
    fn an_address_finds_its_segment_after_removals() {
        let directory = Directory::new();
        assert_eq!(directory.find(0x5000), None);
        let (low, high) = (place(0x4000, 0x2000, 1), place(0x9000, 0x1000, 2));
        add(&directory, high);
        add(&directory, low);
        for (address, found) in [
            (0x3fff, None),
            (0x4000, Some(low)),
            (0x5fff, Some(low)),
            (0x6000, None),
            (0x9000, Some(high)),
            (0x9fff, Some(high)),
            (0xa000, None),
        ] {
            assert_eq!(directory.find(address), found, "{address:#x}");
        }
        // The driver returned the addresses of two segments again before they were removed.
        let over = place(0x5000, 0x5000, 3);
        add(&directory, over);
        for (address, found) in [(0x4000, None), (0x5fff, Some(over)), (0x9fff, Some(over))] {
            assert_eq!(directory.find(address), found, "{address:#x}");
        }
        // A late removal concerns the old segments.
        directory.remove(low);
        add(&directory, place(0x100, 0x100, 4));
        assert_eq!(directory.find(0x5000), Some(over));
        directory.remove(over);
        add(&directory, low);
        assert_eq!(directory.find(0x9000), None);
        assert_eq!(directory.find(0x4000), Some(low));
    }
}
