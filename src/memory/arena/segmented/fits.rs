//! The free blocks of an arena in best-fit order: by size, then by address, as in PyTorch, so that
//! the same requests get the same blocks.

use crate::base::error::{Error, Result};

/// A free block.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// Length in units.
    pub units: u32,
    /// The block.
    pub id: u32,
    /// First address.
    pub address: u64,
    /// The value of the garbage clock (`now`) when it was freed, which gives its age.
    pub since: u64,
}

/// The sort key: size, then address.
pub fn key(fit: &Fit) -> (u32, u64) {
    (fit.units, fit.address)
}

/// Free blocks in this order.
pub struct Fits(Vec<Fit>);

impl Fits {
    /// An empty list.
    pub fn new() -> Fits {
        Fits(Vec::new())
    }

    /// Reserves room for `count` blocks in total. With room for every block of the arena, freeing
    /// cannot fail.
    pub fn prepare(&mut self, count: usize) -> Result<()> {
        let more = count.saturating_sub(self.0.len());
        self.0.try_reserve(more).map_err(|_| Error::OutOfHostMemory("the list of free blocks"))
    }

    fn place(&self, units: u32, address: u64) -> usize {
        self.0.partition_point(|fit| key(fit) < (units, address))
    }

    /// Adds a block; room was reserved.
    pub fn insert(&mut self, fit: Fit) {
        let at = self.place(fit.units, fit.address);
        self.0.insert(at, fit);
    }

    /// Removes a block.
    pub fn remove(&mut self, units: u32, address: u64) {
        let at = self.place(units, address);
        if self.0.get(at).is_some_and(|fit| fit.address == address) {
            self.0.remove(at);
        }
    }

    /// The smallest block of at least `units`; among equals, the one of the lowest address.
    pub fn best(&self, units: u32) -> Option<Fit> {
        self.0.get(self.place(units, 0)).copied()
    }

    /// All blocks in order.
    pub fn as_slice(&self) -> &[Fit] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_fit_is_the_smallest_then_the_lowest() {
        let mut fits = Fits::new();
        fits.prepare(8).unwrap();
        for (id, (units, address)) in [(8, 900), (4, 700), (4, 300), (16, 100)].iter().enumerate() {
            let id = id as u32 + 1;
            fits.insert(Fit { units: *units, id, address: *address, since: 0 });
        }
        let best = |fits: &Fits, units| fits.best(units).map(|fit| fit.id);
        assert_eq!(best(&fits, 1), Some(3));
        assert_eq!(best(&fits, 5), Some(1));
        assert_eq!(best(&fits, 17), None);
        fits.remove(4, 300);
        assert_eq!(best(&fits, 4), Some(2));
        fits.remove(4, 301);
        fits.remove(99, 700);
        assert_eq!(fits.as_slice().len(), 3, "nothing else is taken out");
    }
}
