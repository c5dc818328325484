//! The heap of kernels' `malloc`. The host cannot access it, as on a GPU.

use crate::memory::Window;
use std::collections::BTreeMap;

/// The first address; no other memory is near it.
const BASE: u64 = 0x0500_0000_0000_0000;
/// Bytes of the heap: CUDA's default.
const BYTES: u64 = 8 << 20;
/// No heap is larger.
const LARGEST: u64 = 1 << 48;
const ALIGNMENT: u64 = 16;

/// A heap.
pub struct Heap {
    memory: Vec<u128>,
    bytes: u64,
    /// Free ranges: start and length.
    free: BTreeMap<u64, u64>,
    used: BTreeMap<u64, u64>,
}

impl Default for Heap {
    fn default() -> Heap {
        let free = BTreeMap::from([(0, BYTES)]);
        Heap { memory: Vec::new(), bytes: BYTES, free, used: BTreeMap::new() }
    }
}

impl Heap {
    /// True for an address in a heap.
    pub fn contains(address: u64) -> bool {
        address.wrapping_sub(BASE) < LARGEST
    }

    /// Sets the size of a heap from which nothing was allocated yet; false if something was.
    pub fn resize(&mut self, bytes: usize) -> bool {
        let bytes = (bytes as u64).min(LARGEST).next_multiple_of(ALIGNMENT);
        if self.memory.is_empty() {
            self.bytes = bytes;
            self.free = BTreeMap::from([(0, bytes)]);
        }
        self.bytes == bytes
    }

    /// The memory of the whole heap; `None` before the first allocation.
    pub fn window(&mut self) -> Option<Window> {
        let host = self.memory.as_mut_ptr().cast();
        (!self.memory.is_empty()).then_some(Window { start: BASE, end: BASE + self.bytes, host })
    }

    /// Allocates by first fit; 0 if there is no room.
    pub fn allocate(&mut self, bytes: u64) -> u64 {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(ALIGNMENT) else { return 0 };
        if self.memory.is_empty() {
            let words = self.bytes as usize / size_of::<u128>();
            if self.memory.try_reserve_exact(words).is_err() {
                return 0;
            }
            self.memory.resize(words, 0);
        }
        let fits = self.free.iter().find(|(_, room)| **room >= bytes);
        let Some((start, room)) = fits.map(|(start, room)| (*start, *room)) else { return 0 };
        self.free.remove(&start);
        if room > bytes {
            self.free.insert(start + bytes, room - bytes);
        }
        self.used.insert(start, bytes);
        BASE + start
    }

    /// Frees an allocation; false if there is none at the address.
    pub fn free(&mut self, address: u64) -> bool {
        let Some(mut bytes) = self.used.remove(&address.wrapping_sub(BASE)) else { return false };
        let mut start = address - BASE;
        if let Some(after) = self.free.remove(&(start + bytes)) {
            bytes += after;
        }
        if let Some((before, room)) = self.free.range(..start).next_back().map(|(a, b)| (*a, *b))
            && before + room == start
        {
            self.free.remove(&before);
            (start, bytes) = (before, bytes + room);
        }
        self.free.insert(start, bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back() {
        let mut heap = Heap::default();
        assert_eq!(heap.allocate(BYTES + 1), 0);
        let all: Vec<u64> = (0..100).map(|it| heap.allocate(it * 100)).collect();
        assert!(all.iter().all(|it| Heap::contains(*it) && it % ALIGNMENT == 0));
        assert!(all.iter().rev().step_by(2).chain(all.iter().step_by(2)).all(|it| heap.free(*it)));
        assert!(!heap.free(all[0]));
        assert_eq!(heap.allocate(BYTES), BASE);
    }
}
