//! Sets of multiprocessors of a device, and how a set is split into groups.

use super::arguments::require;
use crate::base::code;
use std::ffi::c_uint;

/// The most multiprocessors of a device.
pub(super) const MOST: usize = 1024;
const WORDS: usize = MOST / 2 / 64;

/// The smallest group that a split creates, whatever the device.
const PAIR: u32 = 2;

/// Flags of a group, `CU_DEV_SM_RESOURCE_GROUP_...`.
const BACKFILL: c_uint = 1;
pub(super) const OF_DOMAIN: c_uint = 2;
const SUPPLEMENTAL: c_uint = 4;
/// A domain number that means all domains.
const ANY_DOMAIN: c_uint = c_uint::MAX;

/// Multiprocessors of a device. A set consists of pairs, as a GPU's do: number 0 with 1, 2 with 3.
/// If the device has an odd number, its last pair has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multiprocessors {
    pairs: [u64; WORDS],
    /// The number of multiprocessors of the device.
    of_device: u32,
}

impl Multiprocessors {
    /// All of a device.
    pub(super) fn all(of_device: u32) -> Multiprocessors {
        let none = Multiprocessors { pairs: [0; WORDS], of_device };
        (0..of_device.div_ceil(2)).fold(none, Multiprocessors::with)
    }

    /// The set of these pairs; `None` if the device lacks one.
    pub(super) fn from_pairs(pairs: [u64; WORDS], of_device: u32) -> Option<Multiprocessors> {
        let set = Multiprocessors { pairs, of_device };
        (set.without(&Multiprocessors::all(of_device)).count() == 0).then_some(set)
    }

    /// A bit for each pair.
    pub(super) fn pairs(&self) -> [u64; WORDS] {
        self.pairs
    }

    fn none(&self) -> Multiprocessors {
        Multiprocessors { pairs: [0; WORDS], ..*self }
    }

    fn with(mut self, pair: u32) -> Multiprocessors {
        self.pairs[pair as usize / 64] |= 1 << (pair % 64);
        self
    }

    fn members(&self) -> impl Iterator<Item = u32> {
        let pairs = self.pairs;
        (0..MOST as u32 / 2).filter(move |pair| pairs[*pair as usize / 64] >> (pair % 64) & 1 != 0)
    }

    fn size_of(&self, pair: u32) -> u32 {
        if pair * 2 + 1 == self.of_device { 1 } else { PAIR }
    }

    pub(super) fn count(&self) -> u32 {
        self.members().map(|pair| self.size_of(pair)).sum()
    }

    /// The numbers of the multiprocessors, in ascending order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.members().flat_map(|pair| pair * 2..pair * 2 + self.size_of(pair))
    }

    pub(super) fn union(mut self, other: &Multiprocessors) -> Multiprocessors {
        self.pairs.iter_mut().zip(other.pairs).for_each(|(word, other)| *word |= other);
        self
    }

    fn without(mut self, other: &Multiprocessors) -> Multiprocessors {
        self.pairs.iter_mut().zip(other.pairs).for_each(|(word, other)| *word &= !other);
        self
    }

    fn within(mut self, other: &Multiprocessors) -> Multiprocessors {
        self.pairs.iter_mut().zip(other.pairs).for_each(|(word, other)| *word &= other);
        self
    }

    /// The first pairs that have at least `count` multiprocessors, or all.
    fn first(&self, count: u32) -> Multiprocessors {
        let (mut taken, mut first) = (0, self.none());
        for pair in self.members() {
            if taken >= count {
                break;
            }
            taken += self.size_of(pair);
            first = first.with(pair);
        }
        first
    }

    /// Groups of `size`, at most `most`, and what is left.
    pub(super) fn split(&self, size: u32, most: usize) -> (Vec<Multiprocessors>, Multiprocessors) {
        let mut rest = *self;
        let groups = self.groups(size).min(most);
        let split = (0..groups).map(|_| {
            let group = rest.first(size);
            rest = rest.without(&group);
            group
        });
        (split.collect(), rest)
    }

    /// The number of groups of `size`.
    pub(super) fn groups(&self, size: u32) -> usize {
        self.count().checked_div(size).unwrap_or(0) as usize
    }
}

/// How a device, or a part of it, can be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grain {
    /// Multiprocessors of the smallest group.
    pub(super) least: u32,
    /// The number of a group is a multiple of it.
    pub(super) multiple: u32,
}

impl Grain {
    /// Pairs, which every device can be split into.
    pub(super) const PAIRS: Grain = Grain { least: PAIR, multiple: PAIR };

    /// The grain of a device (H100: driver 580.159, others by CUDA's manual).
    pub(super) fn of_device((major, _): (i32, i32)) -> Grain {
        match major {
            9.. => Grain { least: 8, multiple: 8 },
            8 => Grain { least: 4, multiple: PAIR },
            _ => Grain::PAIRS,
        }
    }

    /// The size of a group with at least `count` of `available` multiprocessors.
    pub(super) fn group_size(self, count: u32, available: u32) -> Result<u32, i32> {
        require(count <= available, code::INVALID_RESOURCE_CONFIGURATION)?;
        let size = count.max(self.least).next_multiple_of(self.multiple);
        // The last group is all of them, though they are no multiple.
        Ok(size.min(available))
    }
}

/// The locality domains of a device: ranges of as many multiprocessors. An even number: what is
/// left over is in no domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Domains {
    pub(super) number: u32,
    of_device: u32,
}

impl Domains {
    pub(super) fn new(number: u32, of_device: u32) -> Domains {
        Domains { number, of_device }
    }

    /// The number of multiprocessors of each domain.
    pub(super) fn multiprocessors(self) -> u32 {
        if self.number == 1 { self.of_device } else { self.of_device / self.number / PAIR * PAIR }
    }

    /// The multiprocessors of a domain, or of all.
    fn members(self, domain: u32) -> Result<Multiprocessors, i32> {
        let whole = Multiprocessors::all(self.of_device);
        if domain == ANY_DOMAIN {
            return Ok(whole.first(self.number * self.multiprocessors()));
        }
        require(domain < self.number, code::INVALID_VALUE)?;
        let before = whole.first(domain * self.multiprocessors());
        Ok(whole.without(&before).first(self.multiprocessors()))
    }
}

/// A group as the host describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// Multiprocessors; 0: as many as there are.
    pub(super) count: c_uint,
    /// Multiprocessors that run the blocks of a cluster; 0: the device's number.
    pub(super) coscheduled: c_uint,
    pub(super) flags: c_uint,
    pub(super) domain: c_uint,
}

impl Group {
    /// The number of which its count is a multiple, unless it is filled up.
    pub(super) fn multiple(&self, grain: Grain) -> u32 {
        if self.coscheduled == 0 { grain.multiple } else { self.coscheduled }
    }

    fn check(&self, grain: Grain) -> Result<(), i32> {
        let most = if grain.multiple > PAIR { 32 } else { PAIR };
        let is_known = self.flags & !(BACKFILL | OF_DOMAIN | SUPPLEMENTAL) == 0;
        let is_modified = self.flags & (OF_DOMAIN | SUPPLEMENTAL) != SUPPLEMENTAL;
        let is_even = self.count.is_multiple_of(PAIR) && self.coscheduled.is_multiple_of(PAIR);
        require(is_known && is_modified && is_even, code::INVALID_VALUE)?;
        require(self.coscheduled <= most, code::INVALID_VALUE)?;
        let fills = self.flags & BACKFILL != 0 || self.coscheduled == 0;
        let is_multiple = fills || self.count.is_multiple_of(self.coscheduled);
        require(is_multiple, code::INVALID_VALUE)
    }

    /// Takes its multiprocessors from those that are left, and determines the count.
    fn take(
        &mut self,
        left: &Multiprocessors,
        grain: Grain,
        domains: Domains,
    ) -> Result<Multiprocessors, i32> {
        self.check(grain)?;
        let is_of_domain = self.flags & OF_DOMAIN != 0;
        let near = match is_of_domain {
            true => left.within(&domains.members(self.domain)?),
            false => *left,
        };
        let fills = self.flags & BACKFILL != 0;
        if is_of_domain && fills {
            require(near.count() > 0, code::INVALID_RESOURCE_CONFIGURATION)?;
        }
        if self.count == 0 {
            let multiple = if fills { 1 } else { self.multiple(grain) };
            self.count = near.count() / multiple * multiple;
        }
        let mut taken = near.first(self.count);
        if fills && taken.count() < self.count {
            let attributed = domains.members(ANY_DOMAIN)?;
            for far in [left.without(&attributed), *left] {
                let missing = self.count.saturating_sub(taken.count());
                taken = taken.union(&far.without(&taken).first(missing));
            }
        }
        require(taken.count() == self.count, code::INVALID_RESOURCE_CONFIGURATION)?;
        Ok(taken)
    }
}

/// Splits multiprocessors into groups, in the order of the groups. Returns their members and what
/// is left. A group may be empty where only its count is sought.
pub(super) fn split(
    input: &Multiprocessors,
    groups: &mut [Group],
    grain: Grain,
    domains: Domains,
    may_be_empty: bool,
) -> Result<(Vec<Multiprocessors>, Multiprocessors), i32> {
    let mut left = *input;
    let mut split = Vec::with_capacity(groups.len());
    for group in groups {
        let taken = group.take(&left, grain, domains)?;
        let least = group.coscheduled.max(PAIR);
        require(may_be_empty || group.count >= least, code::INVALID_RESOURCE_CONFIGURATION)?;
        left = left.without(&taken);
        split.push(taken);
    }
    Ok((split, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: Grain = Grain { least: 8, multiple: 8 };

    fn group(count: u32, coscheduled: u32, flags: u32, domain: u32) -> Group {
        Group { count, coscheduled, flags, domain }
    }

    /// The groups and the rest are disjoint, and their union is the input.
    fn check_partition(
        input: &Multiprocessors,
        groups: &[Multiprocessors],
        rest: &Multiprocessors,
    ) {
        let parts = || groups.iter().chain([rest]);
        let union = parts().fold(input.none(), |union, part| union.union(part));
        assert_eq!(union, *input);
        assert_eq!(parts().map(Multiprocessors::count).sum::<u32>(), input.count());
        let mut numbers: Vec<u32> = parts().flat_map(|part| part.numbers()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, input.numbers().collect::<Vec<_>>());
    }

    #[test]
    fn splits_by_count_are_partitions() {
        for of_device in [1, 2, 7, 40, 108, 132, 148, 1023, 1024] {
            let whole = Multiprocessors::all(of_device);
            assert_eq!(whole.count(), of_device);
            let holes = whole.without(&whole.first(of_device / 3));
            for input in [whole, holes].into_iter().filter(|input| input.count() > 0) {
                for (grain, count) in
                    [H100, Grain::PAIRS].into_iter().flat_map(|it| (0..140).map(move |n| (it, n)))
                {
                    let Ok(size) = grain.group_size(count, input.count()) else {
                        assert!(count > input.count());
                        continue;
                    };
                    assert!(size >= count);
                    assert!(size.is_multiple_of(grain.multiple) || size == input.count());
                    for most in [1, 3, usize::MAX] {
                        let (groups, rest) = input.split(size, most);
                        assert_eq!(groups.len(), ((input.count() / size) as usize).min(most));
                        assert!(groups.iter().all(|group| group.count() == size));
                        check_partition(&input, &groups, &rest);
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_of_groups_are_those_of_an_h100() {
        for (count, size) in [(0, 8), (1, 8), (8, 8), (9, 16), (128, 128), (129, 132), (132, 132)] {
            assert_eq!(H100.group_size(count, 132), Ok(size), "{count}");
        }
        assert_eq!(H100.group_size(133, 132), Err(code::INVALID_RESOURCE_CONFIGURATION));
        assert_eq!(Grain::PAIRS.group_size(3, 132), Ok(4));
        assert_eq!(H100.group_size(2, 4), Ok(4));
    }

    #[test]
    fn groups_of_a_size_are_taken_in_order() {
        let (whole, one) = (Multiprocessors::all(132), Domains::new(1, 132));
        let mut groups = [group(8, 4, 0, 0), group(0, 2, BACKFILL, 0)];
        let (split_groups, rest) = split(&whole, &mut groups, H100, one, false).unwrap();
        assert_eq!(groups.map(|group| group.count), [8, 124]);
        check_partition(&whole, &split_groups, &rest);
        let mut groups = [group(0, 0, 0, 0)];
        let (found, rest) = split(&whole, &mut groups, H100, one, false).unwrap();
        assert_eq!((groups[0].count, found[0].count(), rest.count()), (128, 128, 4));
        // All are taken by the first group.
        let mut groups = [group(132, 2, 0, 0), group(0, 2, 0, 0)];
        let refused = code::INVALID_RESOURCE_CONFIGURATION;
        assert_eq!(split(&whole, &mut groups, H100, one, false), Err(refused));
        groups[1].count = 0;
        assert!(split(&whole, &mut groups, H100, one, true).is_ok());
        assert_eq!(groups[1].count, 0);
        for (wrong, status) in [
            (group(3, 0, 0, 0), code::INVALID_VALUE),
            (group(12, 8, 0, 0), code::INVALID_VALUE),
            (group(12, 3, 0, 0), code::INVALID_VALUE),
            (group(64, 64, 0, 0), code::INVALID_VALUE),
            (group(8, 0, 8, 0), code::INVALID_VALUE),
            (group(8, 0, SUPPLEMENTAL, 0), code::INVALID_VALUE),
            (group(8, 0, OF_DOMAIN, 1), code::INVALID_VALUE),
            (group(134, 0, 0, 0), refused),
        ] {
            assert_eq!(split(&whole, &mut [wrong], H100, one, true), Err(status), "{wrong:?}");
        }
    }

    #[test]
    fn groups_of_domains_have_their_multiprocessors() {
        let whole = Multiprocessors::all(132);
        for number in 1..=8 {
            let domains = Domains::new(number, 132);
            let each = domains.multiprocessors();
            assert!(each.is_multiple_of(2) && each * number <= 132);
            let mut groups: Vec<Group> =
                (0..number).map(|domain| group(0, 2, OF_DOMAIN, domain)).collect();
            let (members, rest) = split(&whole, &mut groups, H100, domains, false).unwrap();
            check_partition(&whole, &members, &rest);
            for (domain, members) in (0..).zip(&members) {
                let range = domain * each..(domain + 1) * each;
                assert!(members.numbers().eq(range), "{number} {domain}");
            }
        }
        let halves = Domains::new(2, 132);
        let mut groups = [group(60, 2, OF_DOMAIN, 0), group(70, 2, OF_DOMAIN | BACKFILL, 0)];
        let (members, rest) = split(&whole, &mut groups, H100, halves, false).unwrap();
        assert!(members[1].numbers().eq(60..130));
        assert_eq!(rest.count(), 2);
        let refused = Err(code::INVALID_RESOURCE_CONFIGURATION);
        let mut too_many = [group(68, 2, OF_DOMAIN, 1)];
        assert_eq!(split(&whole, &mut too_many, H100, halves, true), refused);
        let mut gone = [group(0, 2, OF_DOMAIN, 1), group(8, 2, OF_DOMAIN | BACKFILL, 1)];
        assert_eq!(split(&whole, &mut gone, H100, halves, true), refused);
        let mut any = [group(0, 2, OF_DOMAIN, ANY_DOMAIN)];
        assert_eq!(split(&whole, &mut any, H100, halves, true).unwrap().0[0], whole);
    }
}
