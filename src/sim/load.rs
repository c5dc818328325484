//! How busy a device was in the last second: the time that its work took, in slots of a ring.

use super::lock;
use std::sync::Mutex;

/// Parts of the second, and their length in ns.
const SLOTS: u64 = 16;
const LENGTH: u64 = 1_000_000_000 / SLOTS;

/// Time in which something was done, in the last second.
#[derive(Default)]
pub(super) struct Load(Mutex<[Slot; SLOTS as usize]>);

#[derive(Clone, Copy, Default)]
struct Slot {
    /// Its number since the machine began.
    number: u64,
    busy: u64,
}

impl Load {
    /// Something was done from one time to another, in ns since the machine began.
    pub(super) fn add(&self, begin: u64, end: u64) {
        let mut slots = lock(&self.0);
        let begin = begin.max(end.saturating_sub(SLOTS * LENGTH));
        for number in begin / LENGTH..=end / LENGTH {
            let slot = &mut slots[(number % SLOTS) as usize];
            if slot.number != number {
                *slot = Slot { number, busy: 0 };
            }
            let part = end.min((number + 1) * LENGTH) - begin.max(number * LENGTH);
            // Streams that work at a time are one device.
            slot.busy = (slot.busy + part).min(LENGTH);
        }
    }

    /// The share of the last second, in percent.
    pub(super) fn percent(&self, now: u64) -> u32 {
        let first = (now / LENGTH + 1).saturating_sub(SLOTS);
        let slots = lock(&self.0);
        let busy: u64 =
            slots.iter().filter(|slot| slot.number >= first).map(|slot| slot.busy).sum();
        // Rounded up: what was busy at all is not idle.
        (busy * 100).div_ceil(SLOTS * LENGTH).min(100) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = SLOTS * LENGTH;

    #[test]
    fn shares_are_of_the_last_second() {
        let load = Load::default();
        assert_eq!(load.percent(5 * SECOND), 0);
        load.add(4 * SECOND, 4 * SECOND + SECOND / 2);
        // The other stream at the same time.
        load.add(4 * SECOND + SECOND / 4, 4 * SECOND + SECOND / 2);
        assert_eq!(load.percent(5 * SECOND - 1), 50);
        assert_eq!(load.percent(6 * SECOND), 0);
        load.add(0, 9 * SECOND - 1);
        assert_eq!(load.percent(9 * SECOND - 1), 100);
        load.add(11 * SECOND, 11 * SECOND + 10);
        assert_eq!(load.percent(11 * SECOND + 10), 1);
    }
}
