//! Vector clocks of streams, and the points that are passed between them.
//!
//! Time is one counter for all streams. It grows with each operation and with each change of a
//! stream's clock. A stream that knows another stream at time t therefore knows all that the other
//! knew at t. Whether a wait adds anything is decided by one comparison.

use crate::base::error::{Error, Result};
use crate::base::shared::Shared;
use std::hash::{BuildHasherDefault, Hasher};

/// The number of no stream.
pub(super) const NO_SLOT: u32 = u32::MAX;

pub(super) const NO_MEMORY: Error = Error::OutOfHostMemory("the stream sanitizer");

/// Appends a value, or returns an error without host memory.
pub(super) fn push<T>(list: &mut Vec<T>, value: T) -> Result<()> {
    list.try_reserve(1).map_err(|_| NO_MEMORY)?;
    list.push(value);
    Ok(())
}

/// A hash table whose keys are mostly addresses.
pub(super) type Table<V> = std::collections::HashMap<u64, V, BuildHasherDefault<Mixed>>;

pub(super) fn insert<V>(table: &mut Table<V>, key: u64, value: V) -> Result<()> {
    table.try_reserve(1).map_err(|_| NO_MEMORY)?;
    table.insert(key, value);
    Ok(())
}

/// A hasher that multiplies, which suffices for addresses.
#[derive(Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

/// For each stream, by its slot: the time up to which its work is ordered before the owner of the
/// clock. Copied on write while it is shared.
#[derive(Default)]
pub(super) struct Clock(Option<Shared<Vec<u64>>>);

impl Clock {
    pub(super) const fn new() -> Clock {
        Clock(None)
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> u64 {
        let times = self.0.as_ref().and_then(|times| times.get(slot as usize));
        times.copied().unwrap_or(0)
    }

    fn share(&self) -> Clock {
        Clock(self.0.as_ref().map(Shared::share))
    }

    fn times(&self) -> &[u64] {
        self.0.as_ref().map_or(&[], |times| times)
    }

    /// Returns times that only this clock has, for at least `len` streams.
    fn own(&mut self, len: usize) -> Result<&mut Vec<u64>> {
        let is_own = self.0.as_mut().is_some_and(|times| times.alone().is_some());
        if !is_own {
            let old = self.times();
            let mut copy = Vec::new();
            copy.try_reserve_exact(len.max(old.len())).map_err(|_| NO_MEMORY)?;
            copy.extend_from_slice(old);
            self.0 = Some(Shared::new(copy, "the stream sanitizer")?);
        }
        let Some(times) = self.0.as_mut().and_then(Shared::alone) else { return Err(NO_MEMORY) };
        if times.len() < len {
            times.try_reserve(len - times.len()).map_err(|_| NO_MEMORY)?;
            times.resize(len, 0);
        }
        Ok(times)
    }

    /// Joins a point: afterwards the clock covers all that is before it. Returns false if it
    /// already did.
    pub(super) fn join(&mut self, stamp: &Stamp) -> Result<bool> {
        if stamp.slot != NO_SLOT && self.get(stamp.slot) >= stamp.time {
            return Ok(false);
        }
        let other = stamp.clock.times();
        let is_new = |(slot, time): (usize, &u64)| *time > self.get(slot as u32);
        let is_more = other.iter().enumerate().any(is_new);
        if stamp.slot == NO_SLOT && !is_more {
            return Ok(false);
        }
        let mut len = other.len().max(self.times().len());
        if stamp.slot != NO_SLOT {
            len = len.max(stamp.slot as usize + 1);
        }
        let times = self.own(len)?;
        if is_more {
            times.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
        }
        if stamp.slot != NO_SLOT {
            times[stamp.slot as usize] = stamp.time;
        }
        Ok(true)
    }

    /// Returns this clock as a point that belongs to no stream.
    pub(super) fn stamp(&self) -> Stamp {
        Stamp { slot: NO_SLOT, time: 0, clock: self.share() }
    }

    /// Returns the point of stream `slot` at `time`.
    pub(super) fn stamp_of(&self, slot: u32, time: u64) -> Stamp {
        Stamp { slot, time, clock: self.share() }
    }
}

/// A point: all that a stream had done at a time, and all that is ordered before that.
pub(super) struct Stamp {
    slot: u32,
    time: u64,
    clock: Clock,
}

impl Stamp {
    pub(super) fn share(&self) -> Stamp {
        Stamp { slot: self.slot, time: self.time, clock: self.clock.share() }
    }

    /// Returns whether it is a point of stream `slot`.
    pub(super) fn is_of(&self, slot: u32) -> bool {
        self.slot == slot
    }

    /// Returns whether stream `slot` at `time` is at or before this point.
    #[cfg(test)]
    pub(super) fn covers(&self, slot: u32, time: u64) -> bool {
        slot == self.slot && time <= self.time || time <= self.clock.get(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_comparison_decides_what_is_known() {
        let (mut first, mut second) = (Clock::new(), Clock::new());
        assert!(first.join(&second.stamp_of(1, 5)).unwrap());
        let point = first.stamp_of(0, 7);
        assert!(point.covers(0, 7) && point.covers(1, 5) && !point.covers(1, 6));
        assert!(second.join(&point).unwrap());
        assert!(!second.join(&point).unwrap());
        assert_eq!((second.get(0), second.get(1), second.get(9)), (7, 5, 0));
        assert!(!second.join(&first.stamp()).unwrap(), "nothing new");
    }

    #[test]
    fn a_point_does_not_change_with_its_stream() {
        let mut clock = Clock::new();
        clock.join(&Clock::new().stamp_of(2, 3)).unwrap();
        let point = clock.stamp_of(0, 4);
        clock.join(&Clock::new().stamp_of(2, 9)).unwrap();
        assert!(point.covers(2, 3) && !point.covers(2, 4));
        assert_eq!(clock.get(2), 9);
    }
}
