//! A growing array in its own host mapping: it never moves, never copies, and running out of host
//! memory is an error.

use crate::error::{Error, Result};
use std::ffi::c_void;

/// Types for which all-zero bytes are a value, so that fresh pages are valid elements.
///
/// # Safety
/// All-zero bytes must be a valid value, and there must be nothing to drop.
pub unsafe trait Zeroed: Copy {}

// SAFETY: an integer.
unsafe impl Zeroed for u32 {}

/// The array: `capacity` elements of addresses, the first `len` of them usable.
pub struct Region<T: Zeroed> {
    base: *mut T,
    len: usize,
    capacity: usize,
}

// SAFETY: it owns its mapping like a Vec.
unsafe impl<T: Zeroed + Send> Send for Region<T> {}

const PAGE: usize = 4096;
/// Grows by at least so much, to make few calls.
const STEP: usize = 64 << 10;

impl<T: Zeroed> Region<T> {
    /// Reserves addresses for `capacity` elements; uses no memory yet.
    pub fn reserve(capacity: usize) -> Result<Region<T>> {
        let bytes = (capacity.max(1) * size_of::<T>()).next_multiple_of(PAGE);
        // SAFETY: a fresh private mapping, placed by the kernel.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::OutOfHostMemory("the addresses of an allocator's tables"));
        }
        Ok(Region { base: base.cast(), len: 0, capacity: bytes / size_of::<T>() })
    }

    /// Makes at least `len` elements usable; new ones are zero.
    pub fn grow(&mut self, len: usize) -> Result<()> {
        if len <= self.len {
            return Ok(());
        }
        if len > self.capacity {
            return Err(Error::OutOfHostMemory("an allocator's tables: they are full"));
        }
        let bytes = (len * size_of::<T>()).next_multiple_of(STEP);
        let bytes = bytes.min((self.capacity * size_of::<T>()).next_multiple_of(PAGE));
        // SAFETY: the range is inside the mapping.
        let failed = unsafe {
            libc::mprotect(self.base.cast::<c_void>(), bytes, libc::PROT_READ | libc::PROT_WRITE)
        };
        if failed != 0 {
            return Err(Error::OutOfHostMemory("an allocator's tables"));
        }
        self.len = (bytes / size_of::<T>()).min(self.capacity);
        Ok(())
    }

    /// Bytes of host memory that it has.
    #[cfg(test)]
    pub fn resident(&self) -> usize {
        let bytes = (self.capacity * size_of::<T>()).next_multiple_of(PAGE);
        let mut pages = vec![0u8; bytes / PAGE];
        // SAFETY: the mapping that `reserve` made, and a byte for each of its pages.
        let failed = unsafe { libc::mincore(self.base.cast(), bytes, pages.as_mut_ptr()) };
        assert_eq!(failed, 0);
        pages.iter().filter(|page| **page & 1 != 0).count() * PAGE
    }

    /// The usable elements.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `len` elements are readable and, being zeroed at first, valid.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    /// The usable elements.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl<T: Zeroed> Drop for Region<T> {
    fn drop(&mut self) {
        let bytes = (self.capacity * size_of::<T>()).next_multiple_of(PAGE);
        // SAFETY: the mapping that `reserve` made.
        unsafe { libc::munmap(self.base.cast::<c_void>(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_in_place_zeroed() {
        let mut region = Region::<u32>::reserve(1 << 20).unwrap();
        region.grow(10).unwrap();
        let before = region.as_slice().as_ptr();
        region.as_mut_slice()[9] = 7;
        region.grow(1 << 20).unwrap();
        assert_eq!(before, region.as_slice().as_ptr());
        assert_eq!(region.as_slice()[9], 7);
        assert_eq!(region.as_slice()[(1 << 20) - 1], 0);
        assert!(region.grow((1 << 20) + 1).is_err());
    }

    #[test]
    fn what_is_usable_stays_so() {
        let mut region = Region::<u32>::reserve(1 << 20).unwrap();
        region.grow(10).unwrap();
        let len = region.as_slice().len();
        region.grow(10).unwrap();
        region.grow(3).unwrap();
        assert_eq!(region.as_slice().len(), len);
    }

    #[test]
    fn more_addresses_than_a_process_has_are_refused() {
        assert!(matches!(Region::<u32>::reserve(1 << 58), Err(Error::OutOfHostMemory(_))));
    }
}
