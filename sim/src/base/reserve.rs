//! A reserve of host memory, since the driver uses std's infallible allocations. While a thread
//! holds the reserve, small allocations that the system refuses come from it. A thread that cannot
//! get the reserve fails with out of memory before it begins.
//!
//! A region is filled from its beginning, and is empty again when its last block is freed. Its word
//! has only the number of blocks and the bytes in use, so no block is ever searched.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Number of regions, and the size of each. They are addresses only until they are used.
const REGIONS: usize = 4;
const REGION: usize = 64 << 20;
/// Free bytes that a region must have for a new hold: what the longest call needs, which loads a
/// module with all functions of C's `math.h`.
const MARGIN: usize = REGION / 2;
/// Larger allocations are not served: their callers handle failure.
const LARGEST: usize = 8 << 20;

/// The number of live blocks in a region, and the bytes in use.
#[derive(Clone, Copy)]
struct Filled {
    blocks: u32,
    bytes: u32,
}

impl Filled {
    fn of(word: u64) -> Filled {
        Filled { blocks: (word >> 32) as u32, bytes: word as u32 }
    }

    fn word(self) -> u64 {
        u64::from(self.blocks) << 32 | u64::from(self.bytes)
    }
}

struct Reserve {
    /// NULL until the first hold; then constant.
    base: AtomicPtr<u8>,
    /// Index of the region that is being filled.
    current: AtomicUsize,
    regions: [AtomicU64; REGIONS],
}

static RESERVE: Reserve = Reserve::new();

thread_local! {
    /// Number of holds of this thread. It has no destructor, so it is usable until the thread's
    /// end.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Holds the reserve while it lives.
pub struct Hold(());

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

/// Begins a hold; `None`: the reserve is used up.
#[inline]
pub fn hold() -> Option<Hold> {
    let held = HELD.get();
    if held == 0 && !RESERVE.has_room() {
        return None;
    }
    HELD.set(held + 1);
    Some(Hold(()))
}

impl Reserve {
    const fn new() -> Reserve {
        Reserve {
            base: AtomicPtr::new(null_mut()),
            current: AtomicUsize::new(0),
            regions: [const { AtomicU64::new(0) }; REGIONS],
        }
    }

    #[inline]
    fn has_room(&self) -> bool {
        let filled = Filled::of(self.current().load(Ordering::Relaxed));
        let has_room = filled.bytes as usize <= REGION - MARGIN;
        (has_room && !self.base.load(Ordering::Acquire).is_null()) || self.make_room()
    }

    #[inline]
    fn current(&self) -> &AtomicU64 {
        &self.regions[self.current.load(Ordering::Relaxed) % REGIONS]
    }

    /// Maps the regions, or selects one with room.
    #[cold]
    fn make_room(&self) -> bool {
        if self.base.load(Ordering::Acquire).is_null() && !self.map() {
            return false;
        }
        let has_room = |word: &AtomicU64| {
            Filled::of(word.load(Ordering::Relaxed)).bytes as usize <= REGION - MARGIN
        };
        match self.regions.iter().position(has_room) {
            Some(index) => {
                self.current.store(index, Ordering::Relaxed);
                true
            }
            None => false,
        }
    }

    fn map(&self) -> bool {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, anywhere.
        let mapped = unsafe { libc::mmap(null_mut(), REGIONS * REGION, access, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return false;
        }
        let base = mapped.cast::<u8>();
        let first =
            self.base.compare_exchange(null_mut(), base, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            // SAFETY: not shared: another thread has installed its mapping first.
            unsafe { libc::munmap(mapped, REGIONS * REGION) };
        }
        true
    }

    /// The region of a block.
    #[inline]
    fn region_of(&self, block: *mut u8) -> Option<&AtomicU64> {
        let base = self.base.load(Ordering::Relaxed);
        if base.is_null() {
            return None;
        }
        self.regions.get(block.addr().checked_sub(base.addr())? / REGION)
    }

    /// Allocates a block; its contents are undefined.
    #[cold]
    fn take(&self, layout: Layout) -> *mut u8 {
        let base = self.base.load(Ordering::Acquire);
        if base.is_null() || layout.size() > LARGEST || layout.align() > LARGEST {
            return null_mut();
        }
        let index = self.current.load(Ordering::Relaxed) % REGIONS;
        let mut start = 0;
        let filled =
            self.regions[index].fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                let Filled { blocks, bytes } = Filled::of(word);
                start = (bytes as usize).next_multiple_of(layout.align());
                let end = start + layout.size().max(1);
                (end <= REGION).then_some(Filled { blocks: blocks + 1, bytes: end as u32 }.word())
            });
        if filled.is_err() { null_mut() } else { base.wrapping_add(index * REGION + start) }
    }

    /// Frees a block.
    #[cold]
    fn give(&self, region: &AtomicU64) {
        let _ = region.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let Filled { blocks, bytes } = Filled::of(word);
            let left = blocks.saturating_sub(1);
            Some(Filled { blocks: left, bytes: if left == 0 { 0 } else { bytes } }.word())
        });
    }
}

/// The system's allocator, with the reserve as a fallback for threads that hold it.
pub struct Backed;

/// A block of the reserve, if this thread holds it.
#[cold]
fn take_fallback(layout: Layout) -> *mut u8 {
    if HELD.get() == 0 { null_mut() } else { RESERVE.take(layout) }
}

// SAFETY: a block is the system's or the reserve's, which its address shows.
unsafe impl GlobalAlloc for Backed {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { take_fallback(layout) } else { block }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        let block = take_fallback(layout);
        if !block.is_null() {
            // SAFETY: a block of this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match RESERVE.region_of(block) {
            Some(region) => RESERVE.give(region),
            // SAFETY: from `System` with this layout.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if RESERVE.region_of(block).is_none() {
            // SAFETY: from `System` with this layout; the size is the caller's promise.
            let moved = unsafe { System.realloc(block, layout, bytes) };
            if !moved.is_null() {
                return moved;
            }
        }
        let Ok(wanted) = Layout::from_size_align(bytes, layout.align()) else { return null_mut() };
        // SAFETY: not of size 0, by the caller's promise.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both have at least this length, and one of them is new.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(bytes)) };
            // SAFETY: from this allocator with this layout.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_empty_again_when_its_last_block_goes() {
        let reserve = Reserve::new();
        let layout = Layout::from_size_align(100, 8).unwrap();
        assert!(reserve.take(layout).is_null(), "it is not held");
        assert!(reserve.has_room());
        let (first, second) = (reserve.take(layout), reserve.take(layout));
        assert_eq!(second.addr() - first.addr(), 104);
        let aligned = reserve.take(Layout::from_size_align(1, 4096).unwrap());
        assert_eq!(aligned.addr() % 4096, 0);
        assert!(reserve.region_of(&raw const layout as *mut u8).is_none());
        for block in [second, aligned, first] {
            reserve.give(reserve.region_of(block).unwrap());
        }
        assert_eq!(reserve.take(layout), first);
        assert!(reserve.take(Layout::from_size_align(LARGEST + 1, 1).unwrap()).is_null());
    }

    #[test]
    fn it_is_used_up_once_no_region_has_room() {
        let reserve = Reserve::new();
        let layout = Layout::from_size_align(LARGEST, 1).unwrap();
        let mut blocks = Vec::new();
        while reserve.has_room() {
            blocks.push(reserve.take(layout));
        }
        assert!(blocks.iter().all(|block| !block.is_null()));
        // Calls that have begun can still allocate.
        let rest = std::iter::repeat_with(|| reserve.take(layout));
        let rest: Vec<_> = rest.take_while(|block| !block.is_null()).collect();
        assert!((rest.len() + 1) * LARGEST >= MARGIN);
        for block in blocks.iter().chain(&rest) {
            reserve.give(reserve.region_of(*block).unwrap());
        }
        assert!(reserve.has_room());
    }
}
