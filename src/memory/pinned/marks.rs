//! A set of numbers as a bitmap with a second level over its words, so that the largest member up
//! to a number is found in a few steps.

use crate::base::error::{Error, Result};

/// A two-level bitmap.
pub struct Marks {
    words: Vec<u64>,
    /// One bit for each word that is not zero.
    full: Vec<u64>,
}

fn zeros(len: usize) -> Result<Vec<u64>> {
    let mut words = Vec::new();
    words.try_reserve_exact(len).map_err(|_| Error::OutOfHostMemory("the table of a segment"))?;
    words.resize(len, 0);
    Ok(words)
}

/// The last set bit up to a position.
fn last(words: &[u64], position: usize) -> Option<usize> {
    let (index, bit) = (position / 64, position % 64);
    let below = words.get(index)? & (u64::MAX >> (63 - bit));
    if below != 0 {
        return Some(index * 64 + 63 - below.leading_zeros() as usize);
    }
    let index = words[..index].iter().rposition(|word| *word != 0)?;
    Some(index * 64 + 63 - words[index].leading_zeros() as usize)
}

impl Marks {
    /// An empty set for numbers below `len`.
    pub fn new(len: usize) -> Result<Marks> {
        let words = len.div_ceil(64);
        Ok(Marks { words: zeros(words)?, full: zeros(words.div_ceil(64))? })
    }

    /// Adds a number.
    #[inline]
    pub fn set(&mut self, number: usize) {
        self.words[number / 64] |= 1 << (number % 64);
        self.full[number / 4096] |= 1 << (number / 64 % 64);
    }

    /// Removes a number.
    #[inline]
    pub fn clear(&mut self, number: usize) {
        let word = &mut self.words[number / 64];
        *word &= !(1 << (number % 64));
        if *word == 0 {
            self.full[number / 4096] &= !(1 << (number / 64 % 64));
        }
    }

    /// Is a number in the set?
    #[inline]
    pub fn has(&self, number: usize) -> bool {
        self.words.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// The largest member that is at most `number`.
    pub fn last_up_to(&self, number: usize) -> Option<usize> {
        let (index, bit) = (number / 64, number % 64);
        let below = self.words.get(index)? & (u64::MAX >> (63 - bit));
        if below != 0 {
            return Some(index * 64 + 63 - below.leading_zeros() as usize);
        }
        let index = last(&self.full, index.checked_sub(1)?)?;
        Some(index * 64 + 63 - self.words[index].leading_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn marks_agree_with_a_set() {
        const LEN: usize = 3 * 4096 + 77;
        let (mut marks, mut model) = (Marks::new(LEN).unwrap(), BTreeSet::new());
        let mut random = 7u64;
        for step in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = (random >> 33) as usize % LEN;
            // Few members at first and at the end, many in between.
            if (random >> 20) as usize % 20_000 > step {
                marks.set(number);
                model.insert(number);
            } else {
                marks.clear(number);
                model.remove(&number);
            }
            let asked = (random >> 13) as usize % LEN;
            assert_eq!(marks.last_up_to(asked), model.range(..=asked).next_back().copied());
            assert_eq!(marks.has(asked), model.contains(&asked));
        }
        assert!(!marks.has(LEN + 4096) && marks.last_up_to(LEN + 4096).is_none());
    }
}
