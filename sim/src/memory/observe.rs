//! What the search for races sees of a warp's accesses. It comes before the access itself, so that
//! memory still has what was there.

use super::race::{Effects, Found, Location, Order, Releases, Use};
use super::{Memory, Place};
use crate::registers::{LANES, Mask, Wide};
use std::ptr;

impl Memory<'_> {
    /// Where an access is, if threads share it.
    fn location(&self, place: Place, address: u64, bytes: usize) -> Option<Location> {
        match Self::resolve(place, address) {
            (Place::Shared, at) => {
                self.shared_index(at, bytes).ok().map(|at| Location::Shared(at as u64))
            }
            (Place::Global | Place::Generic, at) => Some(Location::Global(at)),
            (Place::Local | Place::Param, _) => None,
        }
    }

    /// True if memory has these bytes.
    fn has_bytes(&mut self, location: Location, value: &[u8]) -> bool {
        match location {
            Location::Shared(at) => {
                let at = at as usize;
                self.shared.bytes.get(at..at + value.len()) == Some(value)
            }
            Location::Global(at) => {
                let Ok(from) = self.global(at, value.len() as u64, false) else { return false };
                let mut bytes = [0; 64];
                let Some(bytes) = bytes.get_mut(..value.len()) else { return false };
                // SAFETY: the window has as many readable bytes; `bytes` is memory of our own.
                unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), value.len()) };
                bytes == value
            }
        }
    }

    /// An access of a lane; `value` has what a plain write writes.
    fn note(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        (bytes, done, effects): (usize, Use, Effects),
        is_same: impl FnOnce(&mut Self, Location, &Found) -> bool,
    ) {
        let Some(location) = self.location(place, address, bytes) else { return };
        let Some(races) = &mut self.races else { return };
        let Some(found) = races.access(lane, location, bytes as u32, done, effects) else { return };
        let is_same_value = found.is_of_writes() && is_same(self, location, &found);
        let Some(races) = &mut self.races else { return };
        if let Some(race) = races.count(&found, is_same_value) {
            self.machine.report_race(&race);
        }
    }

    /// The effects of the instruction that runs.
    fn effects(&mut self) -> Effects {
        let (function, pc) = self.place;
        match &mut self.races {
            Some(races) => races.begin(function, pc),
            None => Order::Weak.effects(),
        }
    }

    /// An access of each active lane: a write if there are values.
    #[cold]
    #[inline(never)]
    pub(super) fn observe_row<const N: usize>(
        &mut self,
        place: Place,
        addresses: &Wide,
        mask: Mask,
        values: Option<&[[u8; N]; LANES]>,
    ) {
        if matches!(place, Place::Local | Place::Param) {
            return;
        }
        let effects = self.effects();
        let done = if values.is_some() { Use::Write } else { Use::Read };
        if done == Use::Read
            && self.races.as_ref().is_some_and(|races| races.repeats(mask.active, addresses))
        {
            return;
        }
        for lane in mask.lanes() {
            let access = (N, done, effects);
            self.note(place, lane, addresses[lane], access, |this, location, _| {
                let Some(values) = values else { return false };
                // Lanes that write the same address write in order.
                let is_before = |other: &usize| {
                    mask.active >> other & 1 != 0 && addresses[*other] == addresses[lane]
                };
                match (0..lane).rev().find(is_before) {
                    Some(other) => values[other] == values[lane],
                    None => this.has_bytes(location, &values[lane]),
                }
            });
        }
        if let (Use::Read, Some(races)) = (done, &mut self.races) {
            races.keep_row(mask.active, addresses);
        }
    }

    /// An access of one lane.
    #[cold]
    #[inline(never)]
    pub(super) fn observe(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        bytes: usize,
        done: Use,
        value: Option<&[u8]>,
    ) {
        let effects = self.effects();
        self.note(place, lane, address, (bytes, done, effects), |this, location, _| {
            value.is_some_and(|value| this.has_bytes(location, value))
        });
    }

    /// An access of one lane that does this to the clocks.
    #[cold]
    #[inline(never)]
    pub(super) fn observe_as(
        &mut self,
        place: Place,
        lane: usize,
        address: u64,
        bytes: usize,
        done: Use,
        effects: Effects,
    ) {
        // Sets the instruction of the access.
        self.effects();
        self.note(place, lane, address, (bytes, done, effects), |_, _, _| false);
    }

    /// A change of a barrier object: an arrival, of copies if the instruction is one.
    #[cold]
    #[inline(never)]
    pub(super) fn observe_signal(&mut self, place: Place, lane: usize, address: u64) {
        let effects = if self.effects().is_copy { Effects::COPIES } else { Effects::ARRIVAL };
        debug_assert!(effects.releases != Releases::No);
        self.note(place, lane, address, (8, Use::Update, effects), |_, _, _| false);
    }

    /// Copies that the thread started will signal a barrier object.
    pub fn signal(&mut self, place: Place, lane: usize, address: u64) {
        if self.races.is_some() {
            self.observe_signal(place, lane, address);
        }
    }

    /// Lanes pass a fence.
    pub fn fence(&mut self, mask: Mask) {
        if let Some(races) = &mut self.races {
            races.fence(mask.active);
        }
    }

    /// Lanes end a group of copies.
    pub fn commit_copies(&mut self, mask: Mask) {
        if let Some(races) = &mut self.races {
            races.commit_copies(mask.active);
        }
    }

    /// Lanes wait for all groups of copies but the last ones.
    pub fn wait_for_copies(&mut self, mask: Mask, except: u32) {
        if let Some(races) = &mut self.races {
            races.wait_for_copies(mask.active, except);
        }
    }

    /// Lanes wait for all copies that they started.
    pub fn wait_for_all_copies(&mut self, mask: Mask) {
        self.commit_copies(mask);
        self.wait_for_copies(mask, 0);
    }
}
