//! Lists that are nearly always short: stored in place up to a length, beyond that in heap memory.

use crate::base::error::{Error, Result};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// A list that does not allocate up to `PLACES` values.
pub struct Few<T: Copy, const PLACES: usize> {
    places: [MaybeUninit<T>; PLACES],
    /// Number of places that are filled.
    filled: usize,
    /// All values, once they are more than `PLACES`.
    all: Vec<T>,
}

const NO_ROOM: Error = Error::OutOfHostMemory("a list of a call");

impl<T: Copy, const PLACES: usize> Few<T, PLACES> {
    /// An empty list.
    #[inline]
    pub const fn new() -> Few<T, PLACES> {
        Few { places: [const { MaybeUninit::uninit() }; PLACES], filled: 0, all: Vec::new() }
    }

    /// Appends all values of an iterator.
    #[inline]
    pub fn fill(&mut self, values: impl Iterator<Item = T>) -> Result<()> {
        for value in values {
            self.push(value)?;
        }
        Ok(())
    }

    /// Appends a value.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<()> {
        if self.all.is_empty()
            && let Some(place) = self.places.get_mut(self.filled)
        {
            place.write(value);
            self.filled += 1;
            return Ok(());
        }
        self.push_beyond(value)
    }

    #[cold]
    #[inline(never)]
    fn push_beyond(&mut self, value: T) -> Result<()> {
        if self.all.is_empty() {
            let mut all = Vec::new();
            all.try_reserve_exact(2 * PLACES + 1).map_err(|_| NO_ROOM)?;
            all.extend_from_slice(self);
            self.all = all;
        }
        self.all.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.all.push(value);
        Ok(())
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.filled = 0;
        self.all.clear();
    }
}

impl<T: Copy, const PLACES: usize> Default for Few<T, PLACES> {
    #[inline]
    fn default() -> Few<T, PLACES> {
        Few::new()
    }
}

impl<T: Copy, const PLACES: usize> Deref for Few<T, PLACES> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        if !self.all.is_empty() {
            return &self.all;
        }
        // SAFETY: `filled` places were written.
        unsafe { std::slice::from_raw_parts(self.places.as_ptr().cast(), self.filled) }
    }
}

impl<T: Copy, const PLACES: usize> DerefMut for Few<T, PLACES> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        if !self.all.is_empty() {
            return &mut self.all;
        }
        // SAFETY: `filled` places were written.
        unsafe { std::slice::from_raw_parts_mut(self.places.as_mut_ptr().cast(), self.filled) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_go_on_beyond_their_places() {
        let mut few = Few::<usize, 3>::new();
        assert!(few.is_empty());
        for number in 0..20 {
            few.push(number).unwrap();
            assert!(few.iter().copied().eq(0..=number));
        }
        few[0] = 7;
        assert_eq!((few[0], few[19]), (7, 19));
        few.clear();
        assert!(few.is_empty());
        few.push(5).unwrap();
        few.iter_mut().for_each(|number| *number += 1);
        assert_eq!(*few, [6]);
        few.fill(7..10).unwrap();
        assert_eq!(*few, [6, 7, 8, 9]);
    }
}
