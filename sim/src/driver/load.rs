//! Utilisation of a device over the last second: the time of its work, in a ring of slots.

use super::sync::lock;
use std::sync::Mutex;

/// Number of slots in a second, and their length in ns.
const SLOTS: u64 = 16;
const LENGTH: u64 = 1_000_000_000 / SLOTS;

/// Busy time in the last second.
#[derive(Default)]
pub(super) struct Load(Mutex<[Slot; SLOTS as usize]>);

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The number of the time slot since the machine was powered on.
    number: u64,
    busy: u64,
}

impl Load {
    /// Adds a busy interval, in ns since the machine was powered on.
    pub(super) fn add(&self, begin: u64, end: u64) {
        let mut slots = lock(&self.0);
        let begin = begin.max(end.saturating_sub(SLOTS * LENGTH));
        for number in begin / LENGTH..=end / LENGTH {
            let slot = &mut slots[(number % SLOTS) as usize];
            if slot.number != number {
                *slot = Slot { number, busy: 0 };
            }
            let part = end.min((number + 1) * LENGTH) - begin.max(number * LENGTH);
            // Concurrent streams count once: a slot is at most fully busy.
            slot.busy = (slot.busy + part).min(LENGTH);
        }
    }

    /// The busy share of the last second, in percent.
    pub(super) fn percent(&self, now: u64) -> u32 {
        let first = (now / LENGTH + 1).saturating_sub(SLOTS);
        let slots = lock(&self.0);
        let busy: u64 =
            slots.iter().filter(|slot| slot.number >= first).map(|slot| slot.busy).sum();
        // Rounded up, so that any work gives at least 1.
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
        // A concurrent interval of another stream.
        load.add(4 * SECOND + SECOND / 4, 4 * SECOND + SECOND / 2);
        assert_eq!(load.percent(5 * SECOND - 1), 50);
        assert_eq!(load.percent(6 * SECOND), 0);
        load.add(0, 9 * SECOND - 1);
        assert_eq!(load.percent(9 * SECOND - 1), 100);
        load.add(11 * SECOND, 11 * SECOND + 10);
        assert_eq!(load.percent(11 * SECOND + 10), 1);
    }
}
