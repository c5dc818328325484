//! Slack that one account gives to another, so that the ledger need not be asked.

use super::account::{Account, Split};
use super::row::{OF_MEMORY, Row};
use super::slack::PARTS;
use super::stats::Class;

/// A number of each of [`PARTS`].
type Parts = [i64; PARTS];

impl Account {
    /// [`Account::rise`] where the slack does not allow it, with slack of another account of the device;
    /// false: nothing was done.
    #[inline(always)]
    pub fn rise_with<const SINGLE: bool>(
        &mut self,
        other: &mut Account,
        class: Class,
        (bytes, requested): (i64, i64),
        split: Split,
    ) -> bool {
        let wanted = [1, bytes, requested];
        // Where one block goes and one comes, the number of all is at its peak, and nothing else is.
        let has_taken = if self.lacks_blocks_alone::<SINGLE>(class, wanted, split) {
            self.take_from::<SINGLE, 1>(other, class, wanted, split)
        } else {
            self.take_all_from::<SINGLE>(other, class, wanted, split)
        };
        has_taken && self.rise::<SINGLE>(class, bytes, requested, split)
    }

    /// [`Account::fall`] in the same way.
    #[inline(always)]
    pub fn fall_with<const SINGLE: bool>(
        &mut self,
        other: &mut Account,
        class: Class,
        (bytes, requested): (i64, i64),
        split: Split,
    ) -> bool {
        let Some(of_free) = missing_split(&self.own, &other.own, split) else { return false };
        self.gain_split(other, of_free);
        self.fall::<SINGLE>(class, bytes, requested, split)
    }

    /// Is there enough of all that a block needs, but for the blocks themselves?
    #[inline(always)]
    fn lacks_blocks_alone<const SINGLE: bool>(
        &self,
        class: Class,
        [_, bytes, requested]: Parts,
        split: Split,
    ) -> bool {
        let (split_blocks, split_bytes) = self.own.left_of(split);
        let [_, left_bytes, left_requested] = match SINGLE {
            true => self.own.slack.parts(),
            false => {
                let (all, row) = (self.all.parts(), self.rows[class as usize].slack.parts());
                std::array::from_fn(|part| all[part].min(row[part]))
            }
        };
        split_blocks | split_bytes | left_bytes - bytes | left_requested - requested >= 0
    }

    #[inline(never)]
    fn take_all_from<const SINGLE: bool>(
        &mut self,
        other: &mut Account,
        class: Class,
        wanted: Parts,
        split: Split,
    ) -> bool {
        self.take_from::<SINGLE, PARTS>(other, class, wanted, split)
    }

    /// Takes what is missing of the first `MANY` parts, and of what a split needs where these are all; false:
    /// that cannot be, and nothing was taken.
    #[inline(always)]
    fn take_from<const SINGLE: bool, const MANY: usize>(
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
        let others = if other.is_single { other.own.slack.parts() } else { other.all.parts() };
        let (of_all, of_class) = if SINGLE {
            // As much below the peaks of its class: what it has to spare, and what the other has.
            let (own, spare) = (self.own.slack.parts(), self.own.spare_parts());
            let limit = sum(spare, other.left_of_class(class, [0; PARTS]));
            let Some(of_all) = missing::<MANY>(own, others, limit, wanted) else { return false };
            (of_all, first::<MANY>(|part| (of_all[part] - spare[part]).max(0)))
        } else {
            let (own, row) = (self.all.parts(), self.rows[class as usize].slack.parts());
            let Some(of_all) = missing::<MANY>(own, others, others, wanted) else { return false };
            let others = other.left_of_class(class, of_all);
            let Some(of_class) = missing::<MANY>(row, others, others, wanted) else { return false };
            (of_all, of_class)
        };
        other.gain(negative(of_all));
        if of_class != [0; PARTS] {
            other.gain_of_class(class, negative(of_class));
            self.gain_of_class(class, of_class);
        }
        self.gain(of_all);
        self.gain_split(other, of_free);
        true
    }

    /// Gains slack of free memory that another one has.
    #[inline(always)]
    fn gain_split(&mut self, other: &mut Account, gained: [i64; 2]) {
        if gained != [0; 2] {
            self.own.gain_split(gained);
            other.own.gain_split(gained.map(|gained| -gained));
        }
    }

    /// What is left below the peaks of a class alone, once so much was given of what is left below those of
    /// all.
    #[inline(always)]
    fn left_of_class(&self, class: Class, given: Parts) -> Parts {
        match self.is_single {
            true if class == self.memory => sum(self.own.spare_parts(), given),
            true => [0; PARTS],
            false => self.rows[class as usize].slack.parts(),
        }
    }

    /// Gains slack below the peaks of all; what its classes have left stays as it is.
    #[inline(always)]
    fn gain(&mut self, gained: Parts) {
        if self.is_single { self.own.gain_of_all(gained) } else { self.all.gain(gained) }
    }

    /// Gains slack below the peaks of a class; what there is below those of all stays as it is.
    #[inline(always)]
    fn gain_of_class(&mut self, class: Class, gained: Parts) {
        match self.is_single {
            true => self.own.lose_spare(negative(gained)),
            false => self.rows[class as usize].gain(gained),
        }
    }
}

#[inline(always)]
fn sum(one: Parts, other: Parts) -> Parts {
    std::array::from_fn(|part| one[part] + other[part])
}

#[inline(always)]
fn negative(parts: Parts) -> Parts {
    parts.map(|part| -part)
}

/// A number of each of the first `MANY` parts; of the others nothing.
#[inline(always)]
fn first<const MANY: usize>(value: impl Fn(usize) -> i64) -> Parts {
    std::array::from_fn(|part| if part < MANY { value(part) } else { 0 })
}

/// What another one's slack gives to one's own, up to a limit, so that it is what is wanted; none: it cannot.
/// Half of what it has, so that neither soon comes back.
#[inline(always)]
fn missing<const MANY: usize>(
    own: Parts,
    others: Parts,
    limit: Parts,
    wanted: Parts,
) -> Option<Parts> {
    let mut given = [0; PARTS];
    for part in 0..MANY {
        let missing = wanted[part] - own[part];
        if missing > 0 {
            let most = others[part].min(limit[part]);
            if missing > most {
                return None;
            }
            given[part] = missing.max(others[part] / 2).min(most);
        }
    }
    Some(given)
}

/// The same for the free memory of two, so that these may be free.
#[inline(always)]
fn missing_split(own: &Row, others: &Row, split: Split) -> Option<[i64; 2]> {
    let mut given = [0; 2];
    for (index, wanted) in [split.blocks, split.bytes].into_iter().enumerate() {
        let lane = OF_MEMORY[index];
        let missing = wanted - own.most[lane];
        if missing > 0 {
            let most = others.slack.beyond[lane].min(own.spare[lane]);
            if missing > most {
                return None;
            }
            given[index] = missing.max(others.slack.beyond[lane] / 2).min(most);
        }
    }
    Some(given)
}

#[cfg(test)]
mod tests {
    use super::super::stats::{INACTIVE_SPLIT, LANES, Lanes, OVERSIZE, REQUESTED_BYTES, only};
    use super::*;

    const SMALL: Class = Class::Small;

    /// An account of a class, with so much left below the peaks of all, and of its class.
    fn account(class: Class, is_single: bool, [all, own]: [i64; 2]) -> Account {
        let mut account = Account::new(class, is_single);
        account.set_slack([all; LANES], only(class, [own; LANES]));
        account
    }

    /// What is there and may still come: of all, and of each class. That is what peaks bound.
    fn bounds(accounts: [&Account; 2]) -> [Lanes; 3] {
        let sum = |[one, two]: [Lanes; 2]| std::array::from_fn(|lane| one[lane] + two[lane]);
        let of_class = |class| sum(accounts.map(|account| account.most(class)));
        [sum(accounts.map(Account::most_of_all)), of_class(SMALL), of_class(Class::Large)]
    }

    /// A small block comes, if need be with slack of another.
    fn rises(own: &mut Account, other: &mut Account, bytes: (i64, i64), split: Split) -> bool {
        match own.is_single {
            true => {
                own.rise::<true>(SMALL, bytes.0, bytes.1, split)
                    || own.rise_with::<true>(other, SMALL, bytes, split)
            }
            false => {
                own.rise::<false>(SMALL, bytes.0, bytes.1, split)
                    || own.rise_with::<false>(other, SMALL, bytes, split)
            }
        }
    }

    #[test]
    fn slack_of_another_serves_below_all_peaks() {
        let lefts = [[[0, 9], [8, 8]], [[3, 9], [8, 2]], [[5, 9], [0, 3]], [[9, 5], [3, 9]]];
        let kinds = [[true, true], [true, false], [false, true], [false, false]];
        for (left, singles) in lefts.into_iter().flat_map(|left| kinds.map(|kind| (left, kind))) {
            for class in [SMALL, Class::Large] {
                let mut own = account(SMALL, singles[0], left[0]);
                let mut other = account(class, singles[1], left[1]);
                let before = bounds([&own, &other]);
                let mut came = 0;
                loop {
                    let split = Split { blocks: came + 1, bytes: came + 1 };
                    if !rises(&mut own, &mut other, (1, 1), split) {
                        break;
                    }
                    came += 1;
                    assert_eq!(own.current(SMALL)[..OVERSIZE], [came; OVERSIZE]);
                    assert_eq!(other.current(class), [0; LANES]);
                    assert_eq!(bounds([&own, &other]), before, "{left:?}");
                }
                // Free memory takes what the peaks of all leave, not what those of its class do.
                let [[all, of_class], [others, others_class]] = left;
                let of_free =
                    all.min(of_class) + others.min(others_class).min((of_class - all).max(0));
                let others_all = if singles[1] { others.min(others_class) } else { others };
                let shared = if class == SMALL { others_class } else { 0 };
                let most = (all + others_all).min(of_class + shared).min(of_free);
                assert_eq!(came, most, "{left:?} {singles:?} {class:?}: all that is allowed");
            }
        }
    }

    #[test]
    fn where_one_part_is_missing_nothing_is_given() {
        let mut small = account(SMALL, true, [0, 9]);
        let mut large = account(Class::Large, true, [8, 8]);
        let mut left = [8; LANES];
        left[REQUESTED_BYTES] = 0;
        large.set_slack(left, only(Class::Large, [8; LANES]));
        assert!(!rises(&mut small, &mut large, (1, 1), Split::NONE));
        let parts = |account: &Account| account.own.slack.parts();
        assert_eq!((parts(&small), parts(&large)), ([0; PARTS], [8, 8, 0]));
        assert!(rises(&mut small, &mut large, (1, 0), Split::NONE));
        assert_eq!((parts(&small), parts(&large)), ([3, 3, 0], [4, 4, 0]));
    }

    #[test]
    fn free_memory_takes_slack_of_another_as_a_block_goes() {
        for single in [true, false] {
            let mut own = account(SMALL, single, [0, 9]);
            let mut other = account(Class::Large, false, [8, 8]);
            let before = bounds([&own, &other]);
            own.add(&only(SMALL, super::super::stats::change_of(1, 1, 1, false)));
            let split = Split { blocks: 1, bytes: 1 };
            let mut falls = |split| match single {
                true => own.fall_with::<true>(&mut other, SMALL, (1, 1), split),
                false => own.fall_with::<false>(&mut other, SMALL, (1, 1), split),
            };
            assert!(!falls(Split { blocks: 9, bytes: 1 }), "the other has 8");
            assert!(falls(split));
            assert_eq!(own.current(SMALL)[INACTIVE_SPLIT], 1);
            assert_eq!(bounds([&own, &other]), before, "{single}");
        }
    }
}
