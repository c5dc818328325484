//! Statistics that are exact at all times and cost the hot path a few additions.
//!
//! Every arena counts for itself ([`Account`]). Currents and totals of a device are sums, made when
//! someone asks. Peaks of sums cannot be made afterwards, so each arena holds *slack*: how much it may
//! still grow before the device could exceed its peak. The invariant, for each quantity and for each
//! of small, large and all: the sum of current and slack over the arenas is at most the peak. An arena
//! that runs out of slack goes to the device's [`Ledger`], adds up the true currents, raises the peak
//! if it must, and shares out anew what is left below it. With scopes (`scopes.rs`) there are several
//! peaks: the invariant holds for the lowest of them, and therefore for all.

use super::scopes::Scopes;

/// The quantities that change with every block.
pub const LANES: usize = 8;
/// Blocks held by the host.
pub const ALLOCATION: usize = 0;
/// Their bytes, rounded.
pub const ALLOCATED_BYTES: usize = 1;
/// Those blocks, and freed ones that other streams may still use.
pub const ACTIVE: usize = 2;
/// Their bytes, rounded.
pub const ACTIVE_BYTES: usize = 3;
/// Their bytes as asked for.
pub const REQUESTED_BYTES: usize = 4;
/// Free blocks of arenas in which others are in use.
pub const INACTIVE_SPLIT: usize = 5;
/// Their bytes.
pub const INACTIVE_SPLIT_BYTES: usize = 6;
/// Blocks held by the host that were oversize when they were allocated.
pub const OVERSIZE: usize = 7;

/// A value for each quantity.
pub type Lanes = [i64; LANES];

/// The size class of a block, and of the arena it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Up to 1 MiB.
    Small = 0,
    /// Above.
    Large = 1,
}

/// The rows of a statistic, in the order of PyTorch's StatArray.
pub const ALL: usize = 0;

impl Class {
    /// Its row of a statistic.
    pub fn row(self) -> usize {
        self as usize + 1
    }
}

/// A change of one block and its bytes.
pub fn change_of(count: i64, bytes: i64, requested: i64, oversize: bool) -> Lanes {
    let mut change = [0; LANES];
    change[ALLOCATION] = count;
    change[ALLOCATED_BYTES] = bytes;
    change[ACTIVE] = count;
    change[ACTIVE_BYTES] = bytes;
    change[REQUESTED_BYTES] = requested;
    change[OVERSIZE] = count * i64::from(oversize);
    change
}

/// What an arena counts.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub struct Account {
    /// How much each may grow without asking the ledger.
    pub slack: Lanes,
    /// All increases since the last reset.
    pub increased: Lanes,
    /// What each has when its slack is used up: its present value is what is missing from that to the
    /// slack, so that the hot path writes one of the two.
    pub most: Lanes,
    /// Present values at the last reset.
    pub base: Lanes,
    /// Number of the last time that it asked the ledger; 0: never.
    pub asked: u64,
    /// Blocks that became free before the last reset.
    freed_before: i64,
}

/// The free blocks of an arena that count as split, and their bytes.
#[derive(Clone, Copy)]
pub struct Split {
    /// How many.
    pub blocks: i64,
    /// Their bytes.
    pub bytes: i64,
}

impl Account {
    /// The present value of a lane.
    #[inline]
    pub fn now(&self, lane: usize) -> i64 {
        self.most[lane] - self.slack[lane]
    }

    /// Present values.
    pub fn current(&self) -> Lanes {
        std::array::from_fn(|lane| self.now(lane))
    }

    /// Sets how much each may grow from now on.
    pub fn set_slack(&mut self, slack: Lanes) {
        let current = self.current();
        self.slack = slack;
        self.most = std::array::from_fn(|lane| current[lane] + slack[lane]);
    }

    /// Counts a block that is not oversize as it comes, with `split` as it is then, if the slack allows;
    /// false: nothing was done, ask the ledger.
    // In words, not in vectors: the next call reads what this one wrote, word by word.
    #[inline(always)]
    pub fn rise(&mut self, bytes: i64, requested: i64, split: Split) -> bool {
        let slack = &self.slack;
        let allocation = slack[ALLOCATION] - 1;
        let allocated_bytes = slack[ALLOCATED_BYTES] - bytes;
        let active = slack[ACTIVE] - 1;
        let active_bytes = slack[ACTIVE_BYTES] - bytes;
        let requested_bytes = slack[REQUESTED_BYTES] - requested;
        let split_blocks = self.most[INACTIVE_SPLIT] - split.blocks;
        let split_bytes = self.most[INACTIVE_SPLIT_BYTES] - split.bytes;
        let least = allocation
            | allocated_bytes
            | active
            | active_bytes
            | requested_bytes
            | split_blocks
            | split_bytes;
        if least < 0 {
            return false;
        }
        self.slack[ALLOCATION] = allocation;
        self.slack[ALLOCATED_BYTES] = allocated_bytes;
        self.slack[ACTIVE] = active;
        self.slack[ACTIVE_BYTES] = active_bytes;
        self.slack[REQUESTED_BYTES] = requested_bytes;
        self.increased[ALLOCATION] += 1;
        self.increased[ALLOCATED_BYTES] += bytes;
        self.increased[ACTIVE] += 1;
        self.increased[ACTIVE_BYTES] += bytes;
        self.increased[REQUESTED_BYTES] += requested;
        self.set_split(split_blocks, split_bytes);
        true
    }

    /// The same for one that goes.
    #[inline(always)]
    pub fn fall(&mut self, bytes: i64, requested: i64, split: Split) -> bool {
        let split_blocks = self.most[INACTIVE_SPLIT] - split.blocks;
        let split_bytes = self.most[INACTIVE_SPLIT_BYTES] - split.bytes;
        if split_blocks | split_bytes < 0 {
            return false;
        }
        self.slack[ALLOCATION] += 1;
        self.slack[ALLOCATED_BYTES] += bytes;
        self.slack[ACTIVE] += 1;
        self.slack[ACTIVE_BYTES] += bytes;
        self.slack[REQUESTED_BYTES] += requested;
        self.set_split(split_blocks, split_bytes);
        true
    }

    /// Takes over the slack of the free blocks, less of which is an increase.
    #[inline(always)]
    fn set_split(&mut self, blocks: i64, bytes: i64) {
        self.increased[INACTIVE_SPLIT] += (self.slack[INACTIVE_SPLIT] - blocks).max(0);
        self.increased[INACTIVE_SPLIT_BYTES] += (self.slack[INACTIVE_SPLIT_BYTES] - bytes).max(0);
        self.slack[INACTIVE_SPLIT] = blocks;
        self.slack[INACTIVE_SPLIT_BYTES] = bytes;
    }

    /// Fills in how the free blocks change when they become `split`.
    pub fn change_split(&self, change: &mut Lanes, split: Split) {
        change[INACTIVE_SPLIT] = split.blocks - self.now(INACTIVE_SPLIT);
        change[INACTIVE_SPLIT_BYTES] = split.bytes - self.now(INACTIVE_SPLIT_BYTES);
    }

    /// Applies a change if the slack allows; false: nothing was done, ask the ledger.
    pub fn apply(&mut self, change: &Lanes) -> bool {
        if self.slack.iter().zip(change).any(|(slack, change)| slack < change) {
            return false;
        }
        for (lane, change) in change.iter().enumerate() {
            self.slack[lane] -= change;
            self.increased[lane] += (*change).max(0);
        }
        true
    }

    /// All decreases since the last reset.
    pub fn decreased(&self) -> Lanes {
        std::array::from_fn(|lane| self.increased[lane] + self.base[lane] - self.now(lane))
    }

    /// Blocks that ever became free: pending ones when they no longer were.
    pub fn freed_ever(&self) -> u64 {
        let freed = self.increased[ACTIVE] + self.base[ACTIVE] - self.now(ACTIVE);
        (self.freed_before + freed).cast_unsigned()
    }

    /// Undoes a change as if it had never been, but for the peaks.
    pub fn undo(&mut self, change: &Lanes) {
        for (lane, change) in change.iter().enumerate() {
            self.most[lane] -= change;
            self.increased[lane] -= (*change).max(0);
        }
    }

    /// Zeroes the totals.
    pub fn reset_accumulated(&mut self) {
        self.freed_before = self.freed_ever().cast_signed();
        self.increased = [0; LANES];
        self.base = self.current();
    }

    /// Applies a change whatever the slack: the ledger's business.
    pub fn add(&mut self, change: &Lanes) {
        for (lane, change) in change.iter().enumerate() {
            self.most[lane] += change;
            self.increased[lane] += (*change).max(0);
        }
    }
}

/// PyTorch's Stat.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Now.
    pub current: i64,
    /// Highest since the last reset.
    pub peak: i64,
    /// All increases since the last reset.
    pub allocated: i64,
    /// All decreases since the last reset.
    pub freed: i64,
}

impl Stat {
    pub(super) fn change(&mut self, by: i64) {
        self.current += by;
        self.peak = self.peak.max(self.current);
        if by > 0 {
            self.allocated += by;
        } else {
            self.freed -= by;
        }
    }

    /// Undoes a change, but for the peak.
    fn undo(&mut self, by: i64) {
        self.current -= by;
        if by > 0 {
            self.allocated -= by;
        } else {
            self.freed += by;
        }
    }

    pub(super) fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    pub(super) fn reset_accumulated(&mut self) {
        (self.allocated, self.freed) = (0, 0);
    }
}

/// A statistic: all, small, large.
pub type StatRow = [Stat; 3];

/// Everything of `memory_stats`.
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "PyTorch's names; the header documents them")]
pub struct Statistics {
    pub lanes: [StatRow; LANES],
    pub segment: StatRow,
    pub reserved_bytes: StatRow,
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
    /// Fills in the lanes: sums, peaks, and increases with decreases of a row and lane.
    pub(super) fn fill(
        &mut self,
        current: &Sums,
        peaks: &Sums,
        totals: impl Fn(usize, usize) -> (i64, i64),
    ) {
        for (lane, rows) in self.lanes.iter_mut().enumerate() {
            for (row, stat) in rows.iter_mut().enumerate() {
                let (allocated, freed) = totals(row, lane);
                let (current, peak) = (current[row][lane], peaks[row][lane]);
                *stat = Stat { current, peak, allocated, freed };
            }
        }
        self.oversize_allocations = self.lanes[OVERSIZE][ALL];
    }
}

/// What a device counts, and the peaks of its arenas' sums.
#[derive(Default)]
pub struct Ledger {
    peaks: Sums,
    /// The highest that the bytes of blocks held by the host ever were, whatever was reset.
    pub highest: i64,
    /// The lowest of the device's peaks and the scopes'.
    lowest: Sums,
    counted: Statistics,
    scopes: Scopes,
    /// How often an arena asked.
    pub asks: u64,
    /// Blocks that are in no arena, by their class; they have no slack, and ask each time.
    pub direct: [Account; 2],
}

/// Sums over the accounts of a device: all, small, large.
pub type Sums = [Lanes; 3];

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
    }

    /// Opens a scope of a thread, given the sums of currents, increases and decreases; false: no host
    /// memory. The slack is to be shared out anew.
    pub fn open_scope(&mut self, owner: u64, sums: [&Sums; 3]) -> bool {
        let opened = self.scopes.open(owner, sums, &self.counted);
        self.find_lowest();
        opened
    }

    /// Closes the newest scope of a thread, given the same; none: it has none.
    pub fn close_scope(&mut self, owner: u64, sums: [&Sums; 3]) -> Option<Statistics> {
        let closed = self.scopes.close(owner, sums);
        self.find_lowest();
        closed
    }

    /// Lowers the peaks to these sums, and those of the ledger's own counts to their currents.
    pub fn reset_peak(&mut self, sums: &Sums) {
        self.peaks = *sums;
        self.find_lowest();
        let counted = &mut self.counted;
        counted.segment.iter_mut().chain(&mut counted.reserved_bytes).for_each(Stat::reset_peak);
        counted.oversize_segments.reset_peak();
    }

    /// Zeroes the ledger's own totals, where the arenas are about to forget these.
    pub fn reset_accumulated(&mut self, increased: &Sums, decreased: &Sums) {
        self.scopes.rebase(increased, decreased);
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

    /// The slack of one arena of a class when what is left below the lowest peaks is shared among `members`
    /// (all, small, large); the one that asked gets what the others' equal parts leave.
    #[inline]
    pub fn share(&self, sums: &Sums, members: &[i64; 3], class: Class, asked: bool) -> Lanes {
        // Shifts: a division for each lane would cost more than all the rest.
        let shifts = members.map(|count| count.max(1).cast_unsigned().next_power_of_two().ilog2());
        std::array::from_fn(|lane| {
            let part = |row: usize| {
                let left = self.lowest[row][lane] - sums[row][lane];
                let part = left >> shifts[row];
                if asked { left - part * (members[row] - 1) } else { part }
            };
            part(ALL).min(part(class.row()))
        })
    }

    /// Counts memory that came from the driver, or went back to it if negative (never 0), and how the
    /// number of mapped ranges changed.
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

    /// Counts that the same memory is in more ranges, or less.
    pub fn count_ranges(&mut self, class: Class, ranges: i64) {
        self.count(|counted| {
            for row in [ALL, class.row()] {
                counted.segment[row].change(ranges);
            }
        });
    }

    /// Undoes that memory went back, which the driver refused, as if it had never been counted.
    pub fn undo_given_back(&mut self, class: Class, bytes: i64, segments: i64) {
        self.count(|counted| {
            for row in [ALL, class.row()] {
                counted.reserved_bytes[row].undo(-bytes);
                counted.segment[row].undo(-segments);
            }
            counted.num_device_free = counted.num_device_free.saturating_sub(1);
        });
    }

    /// Counts a segment that came, or went if its bytes are negative.
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

    /// Everything, from the sums of currents and of increases and decreases.
    pub fn statistics(&self, current: &Sums, increased: &Sums, decreased: &Sums) -> Statistics {
        let mut all = self.counted;
        all.fill(current, &self.peaks, |row, lane| (increased[row][lane], decreased[row][lane]));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_never_lets_the_sum_pass_the_peak() {
        let mut ledger = Ledger::default();
        let mut sums = [[0; LANES]; 3];
        sums[ALL][0] = 100;
        sums[Class::Small.row()][0] = 100;
        ledger.raise(&sums);
        sums[ALL][0] = 93;
        sums[Class::Small.row()][0] = 93;
        let members = [3, 3, 0];
        let asked = ledger.share(&sums, &members, Class::Small, true)[0];
        let other = ledger.share(&sums, &members, Class::Small, false)[0];
        assert_eq!((asked, other), (5, 1));
        assert_eq!(asked + 2 * other, 7);
    }

    #[test]
    fn an_account_refuses_what_exceeds_its_slack() {
        let mut account = Account::default();
        let mut change = [0; LANES];
        change[ALLOCATION] = 1;
        assert!(!account.apply(&change));
        assert_eq!(account.now(ALLOCATION), 0);
        let mut slack = [0; LANES];
        slack[ALLOCATION] = 1;
        account.set_slack(slack);
        assert!(account.apply(&change));
        assert!(!account.apply(&change));
        change[ALLOCATION] = -1;
        assert!(account.apply(&change));
        assert_eq!((account.now(ALLOCATION), account.increased[ALLOCATION]), (0, 1));
    }
}
