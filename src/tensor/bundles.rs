//! The bundles that hosts have, by where their sizes begin.

use super::bundle::Bundle;
use crate::base::error::{Error, Result};

/// Bundles that need no host memory: so that calls whose outputs go before the next one take none.
const PLACES: usize = 4;

const NO_ROOM: Error = Error::OutOfHostMemory("a tensor");

/// Bundles, each by an index until another one comes or goes.
pub(super) struct Bundles {
    /// In no order; those without tensors are none.
    places: [Bundle; PLACES],
    /// By where they begin.
    more: Vec<Bundle>,
}

impl Bundles {
    pub(super) const fn new() -> Bundles {
        Bundles { places: [const { Bundle::none() }; PLACES], more: Vec::new() }
    }

    pub(super) fn of(&self, index: usize) -> &Bundle {
        self.places.get(index).unwrap_or_else(|| &self.more[index - PLACES])
    }

    pub(super) fn of_mut(&mut self, index: usize) -> &mut Bundle {
        match index.checked_sub(PLACES) {
            None => &mut self.places[index],
            Some(index) => &mut self.more[index],
        }
    }

    /// Bundle and number of the tensor with this shape.
    pub(super) fn find(&self, shape: usize) -> Option<(usize, usize)> {
        let known = self.places.iter().enumerate().find_map(|(index, bundle)| {
            let member = if bundle.is_empty() { None } else { bundle.find(shape) };
            member.map(|member| (index, member))
        });
        known.or_else(|| {
            let after = self.more.partition_point(|bundle| bundle.start() <= shape);
            let index = after.checked_sub(1)?;
            Some((PLACES + index, self.more[index].find(shape)?))
        })
    }

    /// The bundle whose sizes begin there.
    pub(super) fn starting_at(&self, start: usize) -> Option<usize> {
        let is_it = |bundle: &Bundle| !bundle.is_empty() && bundle.start() == start;
        self.places.iter().position(is_it).or_else(|| {
            let found = self.more.binary_search_by_key(&start, Bundle::start);
            found.ok().map(|index| PLACES + index)
        })
    }

    /// Takes one in, which has tensors. On failure it stays where it is.
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
        let Some(index) = index.checked_sub(PLACES) else {
            return std::mem::replace(&mut self.places[index], Bundle::none());
        };
        let bundle = self.more.remove(index);
        if self.more.is_empty() {
            // So that nothing is left of it at the end.
            self.more = Vec::new();
        }
        bundle
    }
}
