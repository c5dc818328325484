//! Statistics that are exact at all times and cost the hot path a few additions.
//!
//! Every heap counts for itself ([`Account`]). The current values and the totals of a device are
//! sums, which are made when they are read. Peaks of sums cannot be made afterwards. So each heap
//! has *headroom*: how much it may grow before the device could exceed its peak. The invariant, for
//! each quantity and for each of small, large and all:
//!
//! ```text
//! sum over heaps (current + headroom) <= lowest open peak
//! ```
//!
//! A heap that counts within its headroom keeps the sum, because what `current` gains `headroom`
//! loses; so the peak cannot be exceeded unnoticed, whatever other heaps do at the same time. A
//! heap that runs out of headroom makes a request to the device's [`Ledger`]. The ledger freezes
//! all accounts, adds up the current values, raises the peak if necessary, and distributes anew
//! what is left below it, which establishes the invariant again. With scopes (`scopes.rs`) there
//! are several peaks: the invariant holds for the lowest of them, and therefore for all.
//! `models/tests/device_stats.rs` checks this in every interleaving.

pub use super::account::{Account, Changes, Split, only};
use super::scopes::Scopes;
use crate::memory::config::size::Class;

/// The number of quantities that change with every block.
pub const COUNTERS: usize = 8;
/// Allocated blocks.
pub const ALLOCATION: usize = 0;
/// Their bytes, rounded.
pub const ALLOCATED_BYTES: usize = 1;
/// Those blocks, and pending ones: freed, but other streams may still use them.
pub const ACTIVE: usize = 2;
/// Their bytes, rounded.
pub const ACTIVE_BYTES: usize = 3;
/// Their bytes as requested.
pub const REQUESTED_BYTES: usize = 4;
/// Free blocks of arenas in which others are in use.
pub const INACTIVE_SPLIT: usize = 5;
/// Their bytes.
pub const INACTIVE_SPLIT_BYTES: usize = 6;
/// Allocated blocks that were oversize when they were allocated.
pub const OVERSIZE: usize = 7;

/// A thread makes so many requests in a row before it counts as the only one.
const CROWD: u32 = 64;

/// A value for each quantity.
pub type Counters = [i64; COUNTERS];

/// The row of all blocks in a statistic, in the order of PyTorch's StatArray.
pub const ALL: usize = 0;

/// A change of one block and its bytes.
pub fn change_of(count: i64, bytes: i64, requested: i64, oversize: bool) -> Counters {
    let mut change = [0; COUNTERS];
    change[ALLOCATION] = count;
    change[ALLOCATED_BYTES] = bytes;
    change[ACTIVE] = count;
    change[ACTIVE_BYTES] = bytes;
    change[REQUESTED_BYTES] = requested;
    change[OVERSIZE] = count * i64::from(oversize);
    change
}

/// PyTorch's Stat.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The current value.
    pub current: i64,
    /// Highest since the last reset.
    pub peak: i64,
    /// All increases since the last reset.
    pub allocated: i64,
    /// All decreases since the last reset.
    pub freed: i64,
}

impl Stat {
    pub(in crate::memory) fn change(&mut self, by: i64) {
        self.current += by;
        self.peak = self.peak.max(self.current);
        if by > 0 {
            self.allocated += by;
        } else {
            self.freed -= by;
        }
    }

    /// Undoes a change, except for the peak.
    fn undo(&mut self, by: i64) {
        self.current -= by;
        if by > 0 {
            self.allocated -= by;
        } else {
            self.freed += by;
        }
    }

    pub(in crate::memory) fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    pub(in crate::memory) fn reset_accumulated(&mut self) {
        (self.allocated, self.freed) = (0, 0);
    }
}

/// A statistic: all, small, large.
pub type StatArray = [Stat; 3];

/// All values of `memory_stats`.
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "PyTorch's names; the header documents them")]
pub struct Statistics {
    pub counters: [StatArray; COUNTERS],
    pub segment: StatArray,
    pub reserved_bytes: StatArray,
    pub oversize_allocations: Stat,
    pub oversize_segments: Stat,
    pub num_alloc_retries: u64,
    pub num_ooms: u64,
    pub num_sync_all_streams: u64,
    pub num_device_alloc: u64,
    pub num_device_free: u64,
    pub num_oom_rejections: u64,
    /// None: unlimited.
    pub max_split_size: Option<u64>,
}

impl Statistics {
    /// Fills in the counters: sums, peaks, and increases and decreases by row and counter.
    pub(in crate::memory) fn fill(
        &mut self,
        current: &Sums,
        peaks: &Sums,
        totals: impl Fn(usize, usize) -> (i64, i64),
    ) {
        for (counter, rows) in self.counters.iter_mut().enumerate() {
            for (row, stat) in rows.iter_mut().enumerate() {
                let (allocated, freed) = totals(row, counter);
                let (current, peak) = (current[row][counter], peaks[row][counter]);
                *stat = Stat { current, peak, allocated, freed };
            }
        }
        self.oversize_allocations = self.counters[OVERSIZE][ALL];
    }
}

/// What a device counts, and the peaks of its arenas' sums.
#[derive(Default)]
pub struct Ledger {
    peaks: Sums,
    /// The most bytes that were allocated since the cache was emptied, whatever was reset.
    pub highest: i64,
    /// The lowest of the peaks of the device and of the scopes.
    lowest: Sums,
    /// How far the sums may exceed that without a request: 0 where peaks are exact.
    allowance: Counters,
    counted: Statistics,
    scopes: Scopes,
    /// The number of requests of arenas.
    pub requests: u64,
    /// The thread of the last request, and how many more requests count as those of several
    /// threads.
    last_requester: usize,
    crowd: u32,
    /// Did members get what they lacked when headroom was last distributed?
    pub(in crate::memory) has_granted: bool,
    /// Uncached blocks. They have no headroom, and make a request each time.
    pub uncached: Account,
    /// What removed arenas have counted, of each class: increases, and values at the last reset.
    pub(in crate::memory) removed: [Sums; 2],
}

/// Sums over the accounts of a device: all, small, large.
pub type Sums = [Counters; 3];

/// What is left below the peaks: of all, and of each class.
pub struct Remaining(Sums);

impl Remaining {
    /// Takes what an arena of a class lacks, all of it or nothing; false: there is not enough.
    #[inline]
    pub fn take(&mut self, class: Class, lacking: &Counters) -> bool {
        let rows = [ALL, class.row()];
        let is_enough =
            |row: &Counters| lacking.iter().zip(row).all(|(lacking, left)| lacking <= left);
        let is_there = rows.iter().all(|row| is_enough(&self.0[*row]));
        if is_there {
            for row in rows {
                self.0[row].iter_mut().zip(lacking).for_each(|(left, lacking)| *left -= lacking);
            }
        }
        is_there
    }

    /// The part of one arena in a row that `among` arenas share. The requester gets what the equal
    /// parts of the others leave.
    #[inline]
    pub fn part(&self, row: usize, among: i64, requested: bool) -> Counters {
        // A shift: a division for each counter would cost more than all the rest.
        let shift = among.max(1).cast_unsigned().next_power_of_two().ilog2();
        self.0[row].map(|left| {
            let part = left >> shift;
            if requested { left - part * (among - 1) } else { part }
        })
    }
}

impl Ledger {
    /// Raises the peaks to these sums.
    pub fn raise(&mut self, sums: &Sums) {
        for (peaks, sums) in self.peaks.iter_mut().zip(sums) {
            for (peak, sum) in peaks.iter_mut().zip(sums) {
                *peak = (*peak).max(*sum);
            }
        }
        self.highest = self.highest.max(sums[ALL][ALLOCATED_BYTES]);
        self.scopes.raise(sums);
        self.find_lowest();
    }

    fn find_lowest(&mut self) {
        self.lowest = self.peaks;
        self.scopes.lower(&mut self.lowest);
        let bytes = &mut self.lowest[ALL][ALLOCATED_BYTES];
        *bytes = (*bytes).min(self.highest);
    }

    /// Called after the cache was emptied: the need before it says nothing any more. The headroom
    /// is to be distributed anew.
    pub fn forget_highest(&mut self, sums: &Sums) {
        self.highest = sums[ALL][ALLOCATED_BYTES];
        self.find_lowest();
    }

    /// Opens a scope of a thread, given the sums of current values, increases and decreases; false:
    /// no host memory. The headroom is to be distributed anew.
    pub fn open_scope(&mut self, owner: u64, sums: [&Sums; 3]) -> bool {
        let opened = self.scopes.open(owner, sums, &self.counted);
        self.find_lowest();
        opened
    }

    /// Closes the newest scope of a thread, given the same sums; none: it has none.
    pub fn close_scope(&mut self, owner: u64, sums: [&Sums; 3]) -> Option<Statistics> {
        let closed = self.scopes.close(owner, sums);
        self.find_lowest();
        closed
    }

    /// Removes all scopes of a thread that ends.
    pub fn forget_scopes(&mut self, owner: u64) {
        self.scopes.forget(owner);
        self.find_lowest();
    }

    /// How many scopes are open.
    #[cfg(test)]
    pub fn open_scopes(&self) -> usize {
        self.scopes.len()
    }

    /// Lowers the peaks to these sums, and those of the ledger's own counts to their current
    /// values.
    pub fn reset_peak(&mut self, sums: &Sums) {
        self.peaks = *sums;
        self.find_lowest();
        let counted = &mut self.counted;
        counted.segment.iter_mut().chain(&mut counted.reserved_bytes).for_each(Stat::reset_peak);
        counted.oversize_segments.reset_peak();
    }

    /// Keeps what an arena without blocks has counted, as it is removed.
    pub fn keep_counts(&mut self, account: &Account) {
        account.add_to(&mut self.removed, |row| {
            let [_, increased, base] = row.counts();
            [increased, base]
        });
    }

    /// Zeroes the ledger's own totals. The arenas are about to forget these increases and
    /// decreases.
    pub fn reset_accumulated(&mut self, increased: &Sums, decreased: &Sums) {
        self.scopes.rebase(increased, decreased);
        self.removed = Default::default();
        let counted = &mut self.counted;
        let rows = counted.segment.iter_mut().chain(&mut counted.reserved_bytes);
        rows.for_each(Stat::reset_accumulated);
        counted.oversize_segments.reset_accumulated();
        counted.num_alloc_retries = 0;
        counted.num_ooms = 0;
        counted.num_sync_all_streams = 0;
        counted.num_device_alloc = 0;
        counted.num_device_free = 0;
        counted.num_oom_rejections = 0;
    }

    /// Allows peaks to be too low, by at most this much, from now on.
    pub fn allow(&mut self, allowance: Counters) {
        self.allowance = allowance;
    }

    /// How much too low peaks may be.
    #[cfg(test)]
    pub(in crate::memory) fn allowance(&self) -> Counters {
        self.allowance
    }

    /// Is every peak exact?
    pub fn is_exact(&self) -> bool {
        self.allowance == [0; COUNTERS]
    }

    /// Counts a request of a thread.
    pub fn note_requester(&mut self, last_requester: usize) {
        self.requests += 1;
        let is_other = self.last_requester != last_requester && self.last_requester != 0;
        self.crowd = if is_other { CROWD } else { self.crowd.saturating_sub(1) };
        self.last_requester = last_requester;
    }

    /// Did several threads make requests lately?
    pub fn is_crowded(&self) -> bool {
        self.crowd != 0
    }

    /// What is left below the lowest peaks, and what these may be too low by.
    #[inline]
    pub fn left(&self, sums: &Sums) -> Remaining {
        Remaining(std::array::from_fn(|row| {
            std::array::from_fn(|counter| {
                self.lowest[row][counter] + self.allowance[counter] - sums[row][counter]
            })
        }))
    }

    /// Counts memory that came from the driver, or went back to it if negative (never 0), and the
    /// change of the number of mapped ranges.
    pub fn count_reserved(&mut self, class: Class, bytes: i64, segments: i64) {
        self.count(|counted| {
            for row in [ALL, class.row()] {
                counted.reserved_bytes[row].change(bytes);
                counted.segment[row].change(segments);
            }
            if bytes > 0 {
                counted.num_device_alloc += 1;
            } else {
                counted.num_device_free += 1;
            }
        });
    }

    /// Counts a change of the number of ranges in which the same memory is.
    pub fn count_ranges(&mut self, class: Class, ranges: i64) {
        self.count(|counted| {
            for row in [ALL, class.row()] {
                counted.segment[row].change(ranges);
            }
        });
    }

    /// Undoes the count of memory that the driver did not take back, as if it had never been
    /// counted.
    pub fn undo_given_back(&mut self, class: Class, bytes: i64, segments: i64) {
        self.count(|counted| {
            for row in [ALL, class.row()] {
                counted.reserved_bytes[row].undo(-bytes);
                counted.segment[row].undo(-segments);
            }
            counted.num_device_free = counted.num_device_free.saturating_sub(1);
        });
    }

    /// Counts a new segment, or one that went back to the driver if its bytes are negative.
    pub fn count_segment(&mut self, class: Class, bytes: i64, oversize: bool) {
        self.count_reserved(class, bytes, bytes.signum());
        if oversize {
            self.count(|counted| counted.oversize_segments.change(bytes.signum()));
        }
    }

    /// Counts something, for the device and for every scope.
    pub fn count(&mut self, body: impl Fn(&mut Statistics)) {
        body(&mut self.counted);
        self.scopes.count(body);
    }

    /// Fills in everything except the setting, from the sums of current values, increases and
    /// decreases.
    #[inline(always)]
    pub fn statistics(
        &self,
        current: &Sums,
        increased: &Sums,
        decreased: &Sums,
        to: &mut Statistics,
    ) {
        // A peak that need not be exact may be below the current value.
        let peak = |row: usize, counter: usize| self.peaks[row][counter].max(current[row][counter]);
        let peaks = std::array::from_fn(|row| std::array::from_fn(|counter| peak(row, counter)));
        to.fill(current, &peaks, |row, counter| (increased[row][counter], decreased[row][counter]));
        let counted = &self.counted;
        to.segment = counted.segment;
        to.reserved_bytes = counted.reserved_bytes;
        to.oversize_segments = counted.oversize_segments;
        to.num_alloc_retries = counted.num_alloc_retries;
        to.num_ooms = counted.num_ooms;
        to.num_sync_all_streams = counted.num_sync_all_streams;
        to.num_device_alloc = counted.num_device_alloc;
        to.num_device_free = counted.num_device_free;
        to.num_oom_rejections = counted.num_oom_rejections;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger with a peak of 100 blocks in its first counter, of which 93 are there: all of them
    /// small.
    fn left_of_seven() -> Remaining {
        let mut ledger = Ledger::default();
        let mut sums = [[0; COUNTERS]; 3];
        sums[ALL][0] = 100;
        sums[Class::Small.row()][0] = 100;
        ledger.raise(&sums);
        sums[ALL][0] = 93;
        sums[Class::Small.row()][0] = 93;
        ledger.left(&sums)
    }

    #[test]
    fn with_headroom_the_sum_never_exceeds_the_peak() {
        let left = left_of_seven();
        for row in [ALL, Class::Small.row()] {
            let (requested, other) = (left.part(row, 3, true)[0], left.part(row, 3, false)[0]);
            assert_eq!((requested, other), (5, 1));
            assert_eq!(requested + 2 * other, 7);
        }
    }

    #[test]
    fn what_is_lacking_is_taken_of_every_counter_or_of_none() {
        let mut left = left_of_seven();
        let lacking = |first, second| {
            let mut lacking = [0; COUNTERS];
            (lacking[0], lacking[1]) = (first, second);
            lacking
        };
        assert!(left.take(Class::Small, &lacking(4, 0)));
        assert!(!left.take(Class::Small, &lacking(4, 0)), "three are left");
        assert!(!left.take(Class::Small, &lacking(1, 1)), "none of the second counter");
        assert!(!left.take(Class::Large, &lacking(1, 0)), "nor of the other class");
        assert!(left.take(Class::Large, &lacking(0, 0)));
        assert!(left.take(Class::Small, &lacking(3, 0)));
        assert!(!left.take(Class::Small, &lacking(1, 0)));
        assert_eq!([ALL, Class::Small.row()].map(|row| left.part(row, 1, true)[0]), [0; 2]);
    }
}
