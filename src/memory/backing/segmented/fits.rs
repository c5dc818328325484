//! The free blocks of an arena in the order in which a best fit is looked for: size, then address.
//! The choice among equals is PyTorch's, and so is what becomes of the memory after it.

use crate::base::error::{Error, Result};

/// A free block.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// Its length.
    pub units: u32,
    /// Which it is.
    pub id: u32,
    /// Where it begins.
    pub address: u64,
    /// The searches of its pool before it was freed: how old it is.
    pub since: u64,
}

/// The order.
pub fn key(fit: &Fit) -> (u32, u64) {
    (fit.units, fit.address)
}

/// Free blocks in order.
pub struct Fits(Vec<Fit>);

impl Fits {
    /// None.
    pub fn new() -> Fits {
        Fits(Vec::new())
    }

    /// Makes room for `count` blocks in all: where every block of the arena has a place, freeing one
    /// cannot fail.
    pub fn prepare(&mut self, count: usize) -> Result<()> {
        let more = count.saturating_sub(self.0.len());
        self.0.try_reserve(more).map_err(|_| Error::OutOfHostMemory("the list of free blocks"))
    }

    fn place(&self, units: u32, address: u64) -> usize {
        self.0.partition_point(|fit| key(fit) < (units, address))
    }

    /// Adds a block; there is room.
    pub fn insert(&mut self, fit: Fit) {
        let at = self.place(fit.units, fit.address);
        self.0.insert(at, fit);
    }

    /// Takes a block out.
    pub fn remove(&mut self, units: u32, address: u64) {
        let at = self.place(units, address);
        if self.0.get(at).is_some_and(|fit| fit.address == address) {
            self.0.remove(at);
        }
    }

    /// The smallest that has `units`, the lowest of equals.
    pub fn best(&self, units: u32) -> Option<Fit> {
        self.0.get(self.place(units, 0)).copied()
    }

    /// All of them, the smallest first.
    pub fn as_slice(&self) -> &[Fit] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_fits_and_the_lowest_of_equals() {
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
