//! A growable array in an anonymous mapping of host memory. Growing moves pages instead of copying
//! elements, and running out of host memory is an error.

use crate::base::error::{Error, Result};
use std::ffi::c_void;

/// Types for which all-zero bytes are a value, so that fresh pages are valid elements.
///
/// # Safety
/// All-zero bytes must be a valid value, and there must be nothing to drop.
pub unsafe trait Zeroed: Copy {}

// SAFETY: an integer.
unsafe impl Zeroed for u32 {}

pub struct Region<T: Zeroed> {
    base: *mut T,
    len: usize,
    /// Bytes of the mapping; 0: not mapped yet.
    mapped: usize,
    /// The largest number of elements.
    most: usize,
}

// SAFETY: the region owns its mapping like a Vec.
unsafe impl<T: Zeroed + Send> Send for Region<T> {}

const PAGE: usize = 4096;
/// A mapping grows by at least this part of itself, as a shift, so that it seldom moves.
const PART: u32 = 2;

impl<T: Zeroed> Region<T> {
    /// An empty array of at most `most` elements.
    pub const fn new(most: usize) -> Region<T> {
        Region { base: std::ptr::dangling_mut(), len: 0, mapped: 0, most }
    }

    /// Makes at least `len` elements usable. New elements are zero, and all may move.
    #[cold]
    pub fn grow(&mut self, len: usize) -> Result<()> {
        const FULL: Error = Error::OutOfHostMemory("an allocator's tables: they are full");
        if len <= self.len {
            return Ok(());
        }
        if len > self.most {
            return Err(FULL);
        }
        let wanted = len.checked_mul(size_of::<T>()).ok_or(FULL)?;
        let enough = wanted.max(self.mapped + (self.mapped >> PART));
        let bytes = enough.checked_next_multiple_of(PAGE).ok_or(FULL)?;
        let moved = match self.mapped {
            // SAFETY: a fresh private mapping, placed by the kernel.
            0 => unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            },
            // SAFETY: the mapping of this length, which is borrowed exclusively.
            mapped => unsafe {
                libc::mremap(self.base.cast::<c_void>(), mapped, bytes, libc::MREMAP_MAYMOVE)
            },
        };
        if moved == libc::MAP_FAILED {
            return Err(Error::OutOfHostMemory("an allocator's tables"));
        }
        self.base = moved.cast();
        self.mapped = bytes;
        self.len = (bytes / size_of::<T>()).min(self.most);
        Ok(())
    }

    /// Bytes of host memory in use.
    #[cfg(test)]
    pub fn resident(&self) -> usize {
        let mut pages = vec![0u8; self.mapped / PAGE];
        if self.mapped == 0 {
            return 0;
        }
        // SAFETY: the mapping that `grow` made, and a byte for each of its pages.
        let failed = unsafe { libc::mincore(self.base.cast(), self.mapped, pages.as_mut_ptr()) };
        assert_eq!(failed, 0);
        pages.iter().filter(|page| **page & 1 != 0).count() * PAGE
    }

    /// The usable elements, read-only.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `len` elements are readable and, being zeroed at first, valid.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    /// The usable elements, writable.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl<T: Zeroed> Drop for Region<T> {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: the mapping that `grow` made.
            unsafe { libc::munmap(self.base.cast::<c_void>(), self.mapped) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_keeps_elements_and_zeroes_new_ones() {
        let mut region = Region::<u32>::new(1 << 20);
        assert_eq!(region.as_slice().len(), 0);
        region.grow(10).unwrap();
        region.as_mut_slice()[9] = 7;
        region.grow(1 << 20).unwrap();
        assert_eq!(region.as_slice()[9], 7);
        assert_eq!(region.as_slice()[(1 << 20) - 1], 0);
        assert!(region.grow((1 << 20) + 1).is_err());
        assert_eq!(region.as_slice()[9], 7);
    }

    #[test]
    fn growing_to_less_changes_nothing() {
        let mut region = Region::<u32>::new(1 << 20);
        region.grow(10).unwrap();
        let len = region.as_slice().len();
        region.grow(10).unwrap();
        region.grow(3).unwrap();
        assert_eq!(region.as_slice().len(), len);
    }

    #[test]
    fn the_mapping_is_at_most_four_times_the_use_and_seldom_moves() {
        let (mut region, mut moves) = (Region::<u32>::new(usize::MAX), 0);
        for len in 1..=1 << 20 {
            let before = region.mapped;
            region.grow(len).unwrap();
            assert!(region.mapped <= (len * 4).max(before / 4 * 5).next_multiple_of(PAGE));
            moves += u32::from(region.mapped != before);
        }
        assert!(moves < 50, "{moves}");
    }

    #[test]
    fn growing_beyond_the_address_space_fails() {
        let mut region = Region::<u32>::new(usize::MAX);
        for len in [1 << 58, usize::MAX] {
            assert!(matches!(region.grow(len), Err(Error::OutOfHostMemory(_))));
        }
        assert_eq!(region.as_slice().len(), 0);
    }
}
