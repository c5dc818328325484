//! What one arena counts; `stats.rs` says how the accounts of a device belong together.

use super::stats::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES, LANES,
    Lanes, OVERSIZE, REQUESTED_BYTES,
};

/// What an arena counts.
///
/// A block that comes is allocated and active, and so is one that nobody else uses when it goes: each of
/// these two has its own slack, and what they have in common is in one number, which is all that the hot
/// path reads and writes.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Account {
    /// Blocks that may come without asking the ledger. What the hot path writes
    /// does not lie side by side: a compiler would read two words as a vector, and a processor then waits
    /// until what the last call wrote word by word is in its cache.
    blocks: i64,
    /// How much each may grow without asking the ledger; the first four beyond `blocks` and `bytes`, one
    /// of each two by nothing.
    slack: Lanes,
    /// Bytes of blocks that may.
    bytes: i64,
    /// Present values at the last reset.
    base: Lanes,
    /// Blocks that [`Account::rise`] counted since the last reset, and their bytes: each is an increase of two
    /// lanes.
    came: i64,
    /// All other increases since the last reset.
    increased: Lanes,
    came_bytes: i64,
    /// What each has when its slack is used up: its present value is what is missing from that to
    /// the slack, so that the hot path writes one of the two.
    pub most: Lanes,
    /// Number of the last time that it asked the ledger; 0: never.
    pub asked: u64,
    /// What each had then, with what it asked for.
    had: Lanes,
    /// What it got of what it lacked to that, while slack is shared out.
    pub given: Lanes,
    /// Blocks that became free before the last reset.
    freed_before: i64,
    /// What it has left below the peaks of its class beyond the slack, which ends with those of all.
    spare: Lanes,
}

/// What [`Account::rise`] looks at: the lanes whose slack that is, two of which have it in common.
const PARTS: [[usize; 2]; 5] = [
    [ALLOCATION, ACTIVE],
    [ALLOCATED_BYTES, ACTIVE_BYTES],
    [REQUESTED_BYTES; 2],
    [INACTIVE_SPLIT; 2],
    [INACTIVE_SPLIT_BYTES; 2],
];

/// The free blocks of an arena that count as split, and their bytes.
#[derive(Clone, Copy)]
pub struct Split {
    /// How many.
    pub blocks: i64,
    /// Their bytes.
    pub bytes: i64,
}

impl Account {
    /// How much a lane may grow.
    #[inline]
    fn slack(&self, lane: usize) -> i64 {
        let common = match lane {
            ALLOCATION | ACTIVE => self.blocks,
            ALLOCATED_BYTES | ACTIVE_BYTES => self.bytes,
            _ => 0,
        };
        self.slack[lane] + common
    }

    /// What two lanes have beyond what they have in common becomes common.
    #[inline]
    fn share(&mut self) {
        let blocks = self.slack[ALLOCATION].min(self.slack[ACTIVE]);
        self.blocks += blocks;
        self.slack[ALLOCATION] -= blocks;
        self.slack[ACTIVE] -= blocks;
        let bytes = self.slack[ALLOCATED_BYTES].min(self.slack[ACTIVE_BYTES]);
        self.bytes += bytes;
        self.slack[ALLOCATED_BYTES] -= bytes;
        self.slack[ACTIVE_BYTES] -= bytes;
    }

    /// The present value of a lane.
    #[inline]
    pub fn now(&self, lane: usize) -> i64 {
        self.most[lane] - self.slack(lane)
    }

    /// Bytes of blocks that their holders gave up, and that other streams may still use.
    #[inline]
    pub fn waiting_bytes(&self) -> i64 {
        self.now(ACTIVE_BYTES) - self.now(ALLOCATED_BYTES)
    }

    /// Present values.
    pub fn current(&self) -> Lanes {
        std::array::from_fn(|lane| self.now(lane))
    }

    /// It asks the ledger for the `number`th time of all, with what it asks for counted already.
    pub fn asks(&mut self, number: u64) {
        self.asked = number;
        self.had = self.current();
    }

    /// What each lacks to what it had when it asked the last time.
    #[inline]
    pub fn lacking(&self) -> Lanes {
        std::array::from_fn(|lane| (self.had[lane] - self.now(lane)).max(0))
    }

    /// Sets how much each may grow from now on: as far as the peaks of all classes go, and those of its
    /// own.
    pub fn set_slack(&mut self, left: [Lanes; 2]) {
        let current = self.current();
        let [of_all, of_class] = left;
        let slack: Lanes = std::array::from_fn(|lane| of_all[lane].min(of_class[lane]));
        self.spare = std::array::from_fn(|lane| of_class[lane] - slack[lane]);
        (self.slack, self.blocks, self.bytes) = (slack, 0, 0);
        self.most = std::array::from_fn(|lane| current[lane] + slack[lane]);
        self.share();
    }

    /// What was given to it, and further slack.
    pub fn with_given(&self, more: [Lanes; 2]) -> [Lanes; 2] {
        more.map(|more| std::array::from_fn(|lane| self.given[lane] + more[lane]))
    }

    /// Counts a block that is not oversize as it comes, with `split` as it is then, if the slack
    /// allows; false: nothing was done, ask the ledger.
    // In words, not in vectors: the next call reads what this one wrote, word by word.
    #[inline(always)]
    pub fn rise(&mut self, bytes: i64, requested: i64, split: Split) -> bool {
        let blocks = self.blocks - 1;
        let all_bytes = self.bytes - bytes;
        let requested_bytes = self.slack[REQUESTED_BYTES] - requested;
        let split_blocks = self.most[INACTIVE_SPLIT] - split.blocks;
        let split_bytes = self.most[INACTIVE_SPLIT_BYTES] - split.bytes;
        if blocks | all_bytes | requested_bytes | split_blocks | split_bytes < 0 {
            return false;
        }
        self.blocks = blocks;
        self.bytes = all_bytes;
        self.slack[REQUESTED_BYTES] = requested_bytes;
        self.came += 1;
        self.came_bytes += bytes;
        self.increased[REQUESTED_BYTES] += requested;
        // A block that comes leaves less free, unless the arena was idle.
        let is_less = split_blocks >= self.slack[INACTIVE_SPLIT]
            && split_bytes >= self.slack[INACTIVE_SPLIT_BYTES];
        if !is_less {
            self.increase_split(split_blocks, split_bytes);
        }
        self.slack[INACTIVE_SPLIT] = split_blocks;
        self.slack[INACTIVE_SPLIT_BYTES] = split_bytes;
        true
    }

    /// The same where the slack does not allow it, with slack of another account of the device; false:
    /// nothing was done.
    #[inline(never)]
    pub fn rise_with(
        &mut self,
        other: &mut Account,
        (bytes, requested): (i64, i64),
        split: Split,
    ) -> bool {
        // Nearly always a block of the other went, and nothing else is missing.
        let spare = self.spare[ALLOCATION].min(self.spare[ACTIVE]).min(other.blocks);
        if self.blocks == 0 && spare > 0 {
            let given = (other.blocks / 2).max(1).min(spare);
            self.gain(0, given);
            other.gain(0, -given);
            if self.rise(bytes, requested, split) {
                return true;
            }
            self.gain(0, -given);
            other.gain(0, given);
        }
        let (own, others) = (self.parts(), other.parts());
        let wanted = [1, bytes, requested, split.blocks, split.bytes];
        // Those of the free blocks are all of them.
        let now = [0, 0, 0, self.now(INACTIVE_SPLIT), self.now(INACTIVE_SPLIT_BYTES)];
        let mut given = [0; PARTS.len()];
        for (part, [first, second]) in PARTS.into_iter().enumerate() {
            let missing = wanted[part] - now[part] - own[part];
            if missing > 0 {
                let most = others[part].min(self.spare[first]).min(self.spare[second]);
                if missing > most {
                    return false;
                }
                // Half of what the other has, so that neither soon comes back.
                given[part] = missing.max(others[part] / 2).min(most);
            }
        }
        for (part, given) in given.into_iter().enumerate().filter(|(_, given)| *given > 0) {
            self.gain(part, given);
            other.gain(part, -given);
        }
        self.rise(bytes, requested, split)
    }

    /// The slack of each of [`PARTS`].
    #[inline]
    fn parts(&self) -> [i64; PARTS.len()] {
        let slack = |part: usize| self.slack[PARTS[part][0]];
        [self.blocks, self.bytes, slack(2), slack(3), slack(4)]
    }

    /// Gains slack of one of [`PARTS`]; what its class has left stays as it is.
    #[inline]
    fn gain(&mut self, part: usize, gained: i64) {
        let [first, second] = PARTS[part];
        match part {
            0 => self.blocks += gained,
            1 => self.bytes += gained,
            _ => self.slack[first] += gained,
        }
        self.most[first] += gained;
        self.spare[first] -= gained;
        if second != first {
            self.most[second] += gained;
            self.spare[second] -= gained;
        }
    }

    /// The same for one that goes.
    #[inline(always)]
    pub fn fall(&mut self, bytes: i64, requested: i64, split: Split) -> bool {
        let split_blocks = self.most[INACTIVE_SPLIT] - split.blocks;
        let split_bytes = self.most[INACTIVE_SPLIT_BYTES] - split.bytes;
        if split_blocks | split_bytes < 0 {
            return false;
        }
        self.blocks += 1;
        self.bytes += bytes;
        self.slack[REQUESTED_BYTES] += requested;
        self.set_split(split_blocks, split_bytes);
        true
    }

    /// Counts a block that its holder gave up, and that other streams may still use.
    #[inline]
    pub fn give_up(&mut self, bytes: i64, oversize: bool) {
        self.slack[ALLOCATION] += 1;
        self.slack[ALLOCATED_BYTES] += bytes;
        self.slack[OVERSIZE] += i64::from(oversize);
        self.share();
    }

    /// The rest of [`Account::fall`] for such a block.
    #[inline]
    pub fn end_active(&mut self, bytes: i64, requested: i64, split: Split) -> bool {
        let split_blocks = self.most[INACTIVE_SPLIT] - split.blocks;
        let split_bytes = self.most[INACTIVE_SPLIT_BYTES] - split.bytes;
        if split_blocks | split_bytes < 0 {
            return false;
        }
        self.slack[ACTIVE] += 1;
        self.slack[ACTIVE_BYTES] += bytes;
        self.slack[REQUESTED_BYTES] += requested;
        self.share();
        self.set_split(split_blocks, split_bytes);
        true
    }

    #[inline(always)]
    fn increase_split(&mut self, blocks: i64, bytes: i64) {
        self.increased[INACTIVE_SPLIT] += (self.slack[INACTIVE_SPLIT] - blocks).max(0);
        self.increased[INACTIVE_SPLIT_BYTES] += (self.slack[INACTIVE_SPLIT_BYTES] - bytes).max(0);
    }

    /// Takes over the slack of the free blocks, less of which is an increase.
    #[inline(always)]
    fn set_split(&mut self, blocks: i64, bytes: i64) {
        self.increase_split(blocks, bytes);
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
        if change.iter().enumerate().any(|(lane, change)| self.slack(lane) < *change) {
            return false;
        }
        for (lane, change) in change.iter().enumerate() {
            self.slack[lane] -= change;
            self.increased[lane] += (*change).max(0);
        }
        self.share();
        true
    }

    /// All increases since the last reset.
    #[inline]
    pub fn increased(&self) -> Lanes {
        let mut increased = self.increased;
        increased[ALLOCATION] += self.came;
        increased[ACTIVE] += self.came;
        increased[ALLOCATED_BYTES] += self.came_bytes;
        increased[ACTIVE_BYTES] += self.came_bytes;
        increased
    }

    /// All decreases since the last reset.
    #[inline]
    pub fn decreased(&self) -> Lanes {
        let (increased, current) = (self.increased(), self.current());
        std::array::from_fn(|lane| increased[lane] + self.base[lane] - current[lane])
    }

    /// Blocks that ever became free: pending ones when they no longer were.
    pub fn freed_ever(&self) -> u64 {
        let freed = self.increased()[ACTIVE] + self.base[ACTIVE] - self.now(ACTIVE);
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
        (self.increased, self.came, self.came_bytes) = ([0; LANES], 0, 0);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_refuses_what_exceeds_its_slack() {
        let mut account = Account::default();
        let mut change = [0; LANES];
        change[ALLOCATION] = 1;
        assert!(!account.apply(&change));
        assert_eq!(account.now(ALLOCATION), 0);
        let mut slack = [0; LANES];
        slack[ALLOCATION] = 1;
        account.set_slack([slack, slack]);
        assert!(account.apply(&change));
        assert!(!account.apply(&change));
        change[ALLOCATION] = -1;
        assert!(account.apply(&change));
        assert_eq!((account.now(ALLOCATION), account.increased()[ALLOCATION]), (0, 1));
    }

    const NO_SPLIT: Split = Split { blocks: 0, bytes: 0 };

    /// A small and a large account with so much left below the peaks of all, and of their class.
    fn accounts(left: [[i64; 2]; 2]) -> [Account; 2] {
        left.map(|left| {
            let mut account = Account::default();
            account.set_slack(left.map(|left| [left; LANES]));
            account
        })
    }

    /// What is there and may still come: of all, and of each class. That is what peaks bound.
    fn bounds(accounts: &[Account; 2]) -> [Lanes; 3] {
        let [small, large] = accounts;
        let of_class = |account: &Account| -> Lanes {
            std::array::from_fn(|lane| account.most[lane] + account.spare[lane])
        };
        let all = std::array::from_fn(|lane| small.most[lane] + large.most[lane]);
        [all, of_class(small), of_class(large)]
    }

    #[test]
    fn slack_of_another_serves_below_all_peaks() {
        for left in [[[0, 9], [8, 8]], [[3, 9], [8, 2]], [[5, 9], [0, 3]], [[9, 5], [9, 9]]] {
            let mut accounts = accounts(left);
            let before = bounds(&accounts);
            let mut came = 0;
            loop {
                let [small, large] = &mut accounts;
                let split = Split { blocks: came + 1, bytes: came + 1 };
                if !small.rise(1, 1, split) && !small.rise_with(large, (1, 1), split) {
                    break;
                }
                came += 1;
                assert_eq!(small.current()[..OVERSIZE], [came; OVERSIZE]);
                assert_eq!(large.current(), [0; LANES]);
                assert_eq!(bounds(&accounts), before, "{left:?}");
            }
            let [[all, class], [others, others_class]] = left;
            let most = all.min(class) + others.min(others_class);
            assert_eq!(came, most.min(class), "{left:?}: all that the peaks allow");
        }
    }

    #[test]
    fn where_one_part_is_missing_nothing_is_given() {
        let [mut small, mut large] = accounts([[0, 9], [8, 8]]);
        let mut left = [8; LANES];
        left[REQUESTED_BYTES] = 0;
        large.set_slack([left, [8; LANES]]);
        assert!(!small.rise_with(&mut large, (1, 1), NO_SPLIT));
        assert_eq!((small.parts(), large.parts()), ([0; 5], [8, 8, 0, 8, 8]));
        assert!(small.rise_with(&mut large, (1, 0), NO_SPLIT));
        assert_eq!((small.parts(), large.parts()), ([3, 3, 0, 0, 0], [4, 4, 0, 8, 8]));
    }
}
