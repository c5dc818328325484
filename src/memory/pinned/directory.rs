//! The lock-free lookup of a pinned segment by address. A sorted list is replaced when a segment is
//! added, and dropped once no thread that is inside can still read it.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::retired::Reclaimable;
use crate::base::sync::{AtomicBool, AtomicPtr, Ordering};
use crate::base::thread;
use crate::base::waiting;

/// The location of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// First address.
    pub base: usize,
    /// One past the last address.
    pub end: usize,
    /// Index of its heap.
    pub heap: u32,
    /// Index of the segment in the heap.
    pub segment: u32,
}

struct Entry {
    place: Place,
    /// Set once the segment was freed to the driver. Readers check the segment again under the
    /// heap's lock.
    is_gone: AtomicBool,
}

type List = Vec<Entry>;

/// The directory of all pinned segments.
pub struct Directory {
    list: AtomicPtr<List>,
    /// Held while the list changes.
    changing: Mutex<()>,
}

impl Directory {
    pub fn new() -> Directory {
        let list = AtomicPtr::new(std::ptr::null_mut());
        Directory { list, changing: Mutex::new(Rank::LEAF, ()) }
    }

    fn list(&self) -> &[Entry] {
        waiting::assert_awake();
        // SAFETY: NULL or a list, dropped once all threads have left that were inside when it was
        // replaced, as this thread is.
        let list = unsafe { self.list.load(Ordering::Acquire).as_ref() };
        list.map_or(&[], Vec::as_slice)
    }

    /// The segment that contains an address; it may have been freed in the meantime.
    #[inline]
    pub fn find(&self, address: usize) -> Option<Place> {
        let list = self.list();
        let index = list.partition_point(|entry| entry.place.base <= address);
        let place = list.get(index.checked_sub(1)?)?.place;
        (address < place.end).then_some(place)
    }

    /// Adds a segment. Returns the replaced list, to be retired while no lock is held.
    pub fn add(&self, place: Place) -> Result<Replaced> {
        let _changing = self.changing.lock();
        let old = self.list();
        let mut new = Vec::new();
        let no_room = |_| Error::OutOfHostMemory("the list of pinned memory");
        new.try_reserve_exact(old.len() + 1).map_err(no_room)?;
        for entry in old {
            // An overlapping segment was freed to the driver, although `remove` has not run yet.
            let overlaps = entry.place.base < place.end && place.base < entry.place.end;
            if !overlaps && !entry.is_gone.load(Ordering::Relaxed) {
                new.push(Entry { place: entry.place, is_gone: AtomicBool::new(false) });
            }
        }
        let index = new.partition_point(|entry| entry.place.base < place.base);
        new.insert(index, Entry { place, is_gone: AtomicBool::new(false) });
        let new = Reclaimable::into_value(thread::reclaimable(new, "the list of pinned memory")?);
        Ok(Replaced(self.list.swap(new, Ordering::AcqRel)))
    }

    /// Removes a segment.
    pub fn remove(&self, base: usize, heap: u32, segment: u32) {
        let _changing = self.changing.lock();
        let is_it =
            |place: &Place| (place.base, place.heap, place.segment) == (base, heap, segment);
        if let Some(entry) = self.list().iter().find(|entry| is_it(&entry.place)) {
            entry.is_gone.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(Replaced(self.list.swap(std::ptr::null_mut(), Ordering::AcqRel)).take());
    }
}

/// A replaced list, which other threads may still read.
#[must_use]
pub struct Replaced(*mut List);

impl Replaced {
    fn take(self) -> Option<Box<Reclaimable<List>>> {
        // SAFETY: made by `add` with `into_value`, and removed from the directory by `swap`.
        (!self.0.is_null()).then(|| unsafe { Reclaimable::from_value(self.0) })
    }

    /// Drops the list once no thread can read it.
    pub fn retire(self) {
        if let Some(list) = self.take() {
            thread::retire(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(directory: &Directory, place: Place) {
        // No other thread reads it.
        drop(directory.add(place).unwrap().take());
    }

    fn place(base: usize, bytes: usize, segment: u32) -> Place {
        Place { base, end: base + bytes, heap: 3, segment }
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
        directory.remove(low.base, low.heap, low.segment);
        add(&directory, place(0x100, 0x100, 4));
        assert_eq!(directory.find(0x5000), Some(over));
        directory.remove(over.base, over.heap, over.segment);
        add(&directory, low);
        assert_eq!(directory.find(0x9000), None);
        assert_eq!(directory.find(0x4000), Some(low));
    }
}
