//! Headroom that one account takes from another, which saves a request to the ledger.

use super::account::{Account, Split};
use crate::memory::config::size::Class;
use crate::memory::stats::class_counters::{ClassCounters, OF_MEMORY};
use crate::memory::stats::headroom::PARTS;

/// A number of each of [`PARTS`].
type Parts = [i64; PARTS];

impl Account {
    /// [`Account::count_alloc`] with headroom of another account of the device, if its own does not
    /// allow it. False: nothing was done.
    #[inline(always)]
    pub fn count_alloc_with(
        &mut self,
        other: &mut Account,
        class: Class,
        (bytes, requested): (i64, i64),
        split: Split,
    ) -> bool {
        let wanted = [1, bytes, requested];
        // If one block is freed for each that is allocated, only the number of blocks is at its
        // peak.
        let has_taken = if self.lacks_blocks_alone(class, wanted, split) {
            self.take_from::<1>(other, class, wanted, split)
        } else {
            self.take_all_from(other, class, wanted, split)
        };
        has_taken && self.count_alloc(class, bytes, requested, split)
    }

    /// [`Account::count_free`] in the same way.
    #[inline(always)]
    pub fn count_free_with(
        &mut self,
        other: &mut Account,
        class: Class,
        (bytes, requested): (i64, i64),
        split: Split,
    ) -> bool {
        let Some(of_free) = missing_split(&self.own, &other.own, split) else { return false };
        self.gain_split(other, of_free);
        self.count_free(class, bytes, requested, split)
    }

    /// Is there enough headroom for a block, except for the number of blocks?
    #[inline(always)]
    fn lacks_blocks_alone(&self, class: Class, [_, bytes, requested]: Parts, split: Split) -> bool {
        let (split_blocks, split_bytes) = self.own.headroom_after(split);
        let (all, row) = (self.all.parts(), self.rows[class as usize].headroom.parts());
        let bytes = (all[1] - bytes) | (row[1] - bytes);
        let requested = (all[2] - requested) | (row[2] - requested);
        split_blocks | split_bytes | bytes | requested >= 0
    }

    #[inline(never)]
    fn take_all_from(
        &mut self,
        other: &mut Account,
        class: Class,
        wanted: Parts,
        split: Split,
    ) -> bool {
        self.take_from::<PARTS>(other, class, wanted, split)
    }

    /// Takes what is missing of the first `MANY` parts, and if these are all, also what free memory
    /// needs. False: the other account has too little, and nothing was taken.
    #[inline(always)]
    fn take_from<const MANY: usize>(
        &mut self,
        other: &mut Account,
        class: Class,
        wanted: Parts,
        split: Split,
    ) -> bool {
        let of_free = match MANY {
            PARTS => missing_split(&self.own, &other.own, split),
            _ => Some([0; 2]),
        };
        let Some(of_free) = of_free else { return false };
        let (row, others) = (&mut self.rows[class as usize], &mut other.rows[class as usize]);
        let of_all = missing::<MANY>(self.all.parts(), other.all.parts(), wanted);
        let of_class = missing::<MANY>(row.headroom.parts(), others.headroom.parts(), wanted);
        let (Some(of_all), Some(of_class)) = (of_all, of_class) else { return false };
        other.all.gain(negative(of_all));
        self.all.gain(of_all);
        if of_class != [0; PARTS] {
            others.gain(negative(of_class));
            row.gain(of_class);
        }
        self.gain_split(other, of_free);
        true
    }

    /// Takes headroom of free memory from another account.
    #[inline(always)]
    fn gain_split(&mut self, other: &mut Account, gained: [i64; 2]) {
        if gained != [0; 2] {
            self.own.gain_split(gained);
            other.own.gain_split(gained.map(|gained| -gained));
        }
    }
}

#[inline(always)]
fn negative(parts: Parts) -> Parts {
    parts.map(|part| -part)
}

/// What another account's headroom must give, so that the first `MANY` parts are as wanted; none:
/// it has too little. At least half of what it has, so that neither account soon comes back.
#[inline(always)]
fn missing<const MANY: usize>(own: Parts, others: Parts, wanted: Parts) -> Option<Parts> {
    let mut given = [0; PARTS];
    for part in 0..MANY {
        let missing = wanted[part] - own[part];
        if missing > 0 {
            if missing > others[part] {
                return None;
            }
            given[part] = missing.max(others[part] / 2);
        }
    }
    Some(given)
}

/// The same for the headroom of free memory, so that these blocks may be free.
#[inline(always)]
fn missing_split(own: &ClassCounters, others: &ClassCounters, split: Split) -> Option<[i64; 2]> {
    let mut given = [0; 2];
    for (index, wanted) in [split.blocks, split.bytes].into_iter().enumerate() {
        let counter = OF_MEMORY[index];
        let missing = wanted - own.most[counter];
        if missing > 0 {
            let most = others.headroom.beyond[counter].min(own.spare[counter]);
            if missing > most {
                return None;
            }
            given[index] = missing.max(others.headroom.beyond[counter] / 2).min(most);
        }
    }
    Some(given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::stats::ledger::{
        COUNTERS, Counters, INACTIVE_SPLIT, OVERSIZE, REQUESTED_BYTES, change_of, only,
    };

    const SMALL: Class = Class::Small;

    /// An account of a class, with so much left below the peaks of all, and of its class.
    fn account(class: Class, [all, own]: [i64; 2]) -> Account {
        let mut account = Account::new(class);
        account.set_headroom([all; COUNTERS], only(class, [own; COUNTERS]));
        account
    }

    /// The present values and the headroom: of all, and of each class. Peaks bound these sums.
    fn bounds(accounts: [&Account; 2]) -> [Counters; 3] {
        let sum =
            |[one, two]: [Counters; 2]| std::array::from_fn(|counter| one[counter] + two[counter]);
        let of_class = |class| sum(accounts.map(|account| account.most(class)));
        [sum(accounts.map(Account::most_of_all)), of_class(SMALL), of_class(Class::Large)]
    }

    /// Counts a small block, if need be with headroom of another account.
    fn rises(own: &mut Account, other: &mut Account, bytes: (i64, i64), split: Split) -> bool {
        own.count_alloc(SMALL, bytes.0, bytes.1, split)
            || own.count_alloc_with(other, SMALL, bytes, split)
    }

    #[test]
    fn headroom_of_another_account_serves_below_all_peaks() {
        for left in [[[0, 9], [8, 8]], [[3, 9], [8, 2]], [[5, 9], [0, 3]], [[9, 5], [3, 9]]] {
            for class in [SMALL, Class::Large] {
                let (mut own, mut other) = (account(SMALL, left[0]), account(class, left[1]));
                let before = bounds([&own, &other]);
                let mut came = 0;
                loop {
                    let split = Split { blocks: came + 1, bytes: came + 1 };
                    if !rises(&mut own, &mut other, (1, 1), split) {
                        break;
                    }
                    came += 1;
                    assert_eq!(own.current(SMALL)[..OVERSIZE], [came; OVERSIZE]);
                    assert_eq!(other.current(class), [0; COUNTERS]);
                    assert_eq!(bounds([&own, &other]), before, "{left:?}");
                }
                // Free memory takes what the peaks of all leave, not what those of its class do.
                let [[all, of_class], [others, others_class]] = left;
                let of_free =
                    all.min(of_class) + others.min(others_class).min((of_class - all).max(0));
                let shared = if class == SMALL { others_class } else { 0 };
                let most = (all + others).min(of_class + shared).min(of_free);
                assert_eq!(came, most, "{left:?} {class:?}: all that is allowed");
            }
        }
    }

    #[test]
    fn where_one_part_is_missing_nothing_is_taken() {
        let (mut small, mut large) = (account(SMALL, [0, 9]), account(Class::Large, [8, 8]));
        let mut left = [8; COUNTERS];
        left[REQUESTED_BYTES] = 0;
        large.set_headroom(left, only(Class::Large, [8; COUNTERS]));
        assert!(!rises(&mut small, &mut large, (1, 1), Split::NONE));
        let parts = |account: &Account| account.all.parts();
        assert_eq!((parts(&small), parts(&large)), ([0; PARTS], [8, 8, 0]));
        assert!(rises(&mut small, &mut large, (1, 0), Split::NONE));
        assert_eq!((parts(&small), parts(&large)), ([3, 3, 0], [4, 4, 0]));
    }

    #[test]
    fn free_memory_takes_headroom_of_another_account_on_free() {
        let (mut own, mut other) = (account(SMALL, [0, 9]), account(Class::Large, [8, 8]));
        let before = bounds([&own, &other]);
        own.add(&only(SMALL, change_of(1, 1, 1, false)));
        let mut falls = |split| own.count_free_with(&mut other, SMALL, (1, 1), split);
        assert!(!falls(Split { blocks: 9, bytes: 1 }), "the other has 8");
        assert!(falls(Split { blocks: 1, bytes: 1 }));
        assert_eq!(own.current(SMALL)[INACTIVE_SPLIT], 1);
        let after = bounds([&own, &other]);
        assert_eq!(
            after.map(|counters| counters[INACTIVE_SPLIT]),
            before.map(|counters| counters[INACTIVE_SPLIT])
        );
    }
}
