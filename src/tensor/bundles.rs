//! The bundles that hosts hold, found by the address of their first size.

use super::bundle::Bundle;
use crate::base::error::{Error, Result};

/// Bundles that are stored without host memory. Calls whose outputs are released before the next
/// call need no more than these.
const INLINE_BUNDLES: usize = 4;

const NO_ROOM: Error = Error::OutOfHostMemory("a tensor");

/// The bundles. An index is valid until a bundle is inserted or removed.
pub(super) struct Bundles {
    /// Unordered; a place whose bundle is empty is free.
    places: [Bundle; INLINE_BUNDLES],
    /// Further bundles, sorted by the address of their first size.
    more: Vec<Bundle>,
}

impl Bundles {
    pub(super) const fn new() -> Bundles {
        Bundles { places: [const { Bundle::none() }; INLINE_BUNDLES], more: Vec::new() }
    }

    pub(super) fn of(&self, index: usize) -> &Bundle {
        self.places.get(index).unwrap_or_else(|| &self.more[index - INLINE_BUNDLES])
    }

    pub(super) fn of_mut(&mut self, index: usize) -> &mut Bundle {
        match index.checked_sub(INLINE_BUNDLES) {
            None => &mut self.places[index],
            Some(index) => &mut self.more[index],
        }
    }

    /// Index of the bundle, and of the tensor in it, whose shape is at this address.
    pub(super) fn find(&self, shape: usize) -> Option<(usize, usize)> {
        let known = self.places.iter().enumerate().find_map(|(index, bundle)| {
            let member = if bundle.is_empty() { None } else { bundle.find(shape) };
            member.map(|member| (index, member))
        });
        known.or_else(|| {
            let after = self.more.partition_point(|bundle| bundle.start() <= shape);
            let index = after.checked_sub(1)?;
            Some((INLINE_BUNDLES + index, self.more[index].find(shape)?))
        })
    }

    /// Index of the bundle whose first size is at this address.
    pub(super) fn starting_at(&self, start: usize) -> Option<usize> {
        let is_it = |bundle: &Bundle| !bundle.is_empty() && bundle.start() == start;
        self.places.iter().position(is_it).or_else(|| {
            let found = self.more.binary_search_by_key(&start, Bundle::start);
            found.ok().map(|index| INLINE_BUNDLES + index)
        })
    }

    /// Moves a bundle in, which has tensors. On failure it stays with the caller.
    pub(super) fn insert(&mut self, bundle: &mut Bundle) -> Result<()> {
        if let Some(place) = self.places.iter_mut().find(|place| place.is_empty()) {
            *place = std::mem::replace(bundle, Bundle::none());
            return Ok(());
        }
        self.more.try_reserve(1).map_err(|_| NO_ROOM)?;
        let place = self.more.partition_point(|other| other.start() < bundle.start());
        self.more.insert(place, std::mem::replace(bundle, Bundle::none()));
        Ok(())
    }

    pub(super) fn remove(&mut self, index: usize) -> Bundle {
        let Some(index) = index.checked_sub(INLINE_BUNDLES) else {
            return std::mem::replace(&mut self.places[index], Bundle::none());
        };
        let bundle = self.more.remove(index);
        if self.more.is_empty() {
            // Returns the memory, so that a leak check at the end finds none.
            self.more = Vec::new();
        }
        bundle
    }
}
