//! What an account counts of one class.

use super::account::Split;
use crate::memory::stats::headroom::{PARTS, Slack};
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES, LANES,
    Lanes, REQUESTED_BYTES,
};

/// The lanes of free memory, which is of one class: their slack is what is left below both peaks.
pub const OF_MEMORY: [usize; 2] = [INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES];

/// What is counted of one class.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Row {
    /// How much they may grow, as far as the peaks of their own class go; in `own`, also those of all.
    pub(in crate::memory) slack: Slack,
    /// Present values at the last reset.
    base: Lanes,
    /// Blocks that `Account::rise` counted since the last reset, and their bytes: each is an increase of two
    /// lanes.
    pub(in crate::memory) came: i64,
    /// All other increases since the last reset.
    pub(in crate::memory) increased: Lanes,
    pub(in crate::memory) came_bytes: i64,
    /// What each has when its slack is used up: its present value is what is missing from that to
    /// the slack, so that the hot path writes one of the two.
    pub(in crate::memory) most: Lanes,
    /// What each had when something of this class was wanted, with what was asked for.
    pub(in crate::memory) had: Lanes,
    /// What it got of what it lacked to that, while slack is shared out.
    pub(in crate::memory) given: Lanes,
    /// Blocks that became free before the last reset.
    freed_before: i64,
    /// Where the slack is the less of two: what is left below the peaks of the class beyond it.
    pub(in crate::memory) spare: Lanes,
}

impl Row {
    /// The present value of a lane.
    #[inline]
    pub(in crate::memory) fn now(&self, lane: usize) -> i64 {
        self.most[lane] - self.slack.of(lane)
    }

    /// Bytes that are active and not allocated. What slack the two have in common is of both.
    #[inline(always)]
    pub(in crate::memory) fn waiting_bytes(&self) -> i64 {
        let active = self.most[ACTIVE_BYTES] - self.slack.beyond[ACTIVE_BYTES];
        active - (self.most[ALLOCATED_BYTES] - self.slack.beyond[ALLOCATED_BYTES])
    }

    /// What there is and may come, with what another class's slack below the peaks of all would let come.
    #[cfg(test)]
    pub fn most(&self) -> Lanes {
        std::array::from_fn(|lane| self.most[lane] + self.spare[lane])
    }

    /// Present values.
    #[inline(always)]
    pub fn current(&self) -> Lanes {
        std::array::from_fn(|lane| self.now(lane))
    }

    /// What each lacks to what it had when it asked the last time.
    #[inline]
    pub(in crate::memory) fn lacking(&self) -> Lanes {
        std::array::from_fn(|lane| (self.had[lane] - self.now(lane)).max(0))
    }

    pub(in crate::memory) fn set_slack(&mut self, slack: Lanes) {
        let current = self.current();
        self.most = std::array::from_fn(|lane| current[lane] + slack[lane]);
        self.slack = Slack::new(slack);
    }

    /// The free blocks become these.
    #[inline(always)]
    pub(in crate::memory) fn set_split(&mut self, blocks: i64, bytes: i64) {
        let slack = &mut self.slack.beyond;
        self.increased[INACTIVE_SPLIT] += (slack[INACTIVE_SPLIT] - blocks).max(0);
        self.increased[INACTIVE_SPLIT_BYTES] += (slack[INACTIVE_SPLIT_BYTES] - bytes).max(0);
        slack[INACTIVE_SPLIT] = blocks;
        slack[INACTIVE_SPLIT_BYTES] = bytes;
    }

    /// All increases since the last reset.
    #[inline(always)]
    pub fn increased(&self) -> Lanes {
        let mut increased = self.increased;
        increased[ALLOCATION] += self.came;
        increased[ACTIVE] += self.came;
        increased[ALLOCATED_BYTES] += self.came_bytes;
        increased[ACTIVE_BYTES] += self.came_bytes;
        increased
    }

    /// Present values, all increases since the last reset, and the values at that time. All decreases are
    /// what the last two have beyond the first.
    #[inline(always)]
    pub fn counts(&self) -> [Lanes; 3] {
        [self.current(), self.increased(), self.base]
    }

    /// Blocks that ever became free: pending ones when they no longer were.
    pub(in crate::memory) fn freed_ever(&self) -> u64 {
        let freed = self.increased()[ACTIVE] + self.base[ACTIVE] - self.now(ACTIVE);
        (self.freed_before + freed).cast_unsigned()
    }

    pub(in crate::memory) fn reset_accumulated(&mut self) {
        self.freed_before = self.freed_ever().cast_signed();
        (self.increased, self.came, self.came_bytes) = ([0; LANES], 0, 0);
        self.base = self.current();
    }

    /// What is left of the slack of free memory when this is free.
    #[inline(always)]
    pub(in crate::memory) fn left_of(&self, split: Split) -> (i64, i64) {
        (self.most[INACTIVE_SPLIT] - split.blocks, self.most[INACTIVE_SPLIT_BYTES] - split.bytes)
    }

    /// A block came, whose slack was taken.
    #[inline(always)]
    pub(in crate::memory) fn came(&mut self, bytes: i64, requested: i64) {
        self.came += 1;
        self.came_bytes += bytes;
        self.increased[REQUESTED_BYTES] += requested;
    }

    /// Sets the slack to the less of what is left below the peaks of all and of the class, and what was given.
    pub(in crate::memory) fn set_both(&mut self, of_all: Lanes, of_class: Lanes) {
        self.spare = std::array::from_fn(|lane| (of_class[lane] - of_all[lane]).max(0));
        let slack = |lane: usize| of_all[lane].min(of_class[lane]) + self.given[lane];
        self.set_slack(std::array::from_fn(slack));
    }

    /// Gains slack.
    #[inline]
    pub(in crate::memory) fn gain(&mut self, gained: [i64; PARTS]) {
        self.slack.gain(gained);
        add_to(&mut self.most, gained);
    }

    /// Gains slack of free memory below the peaks of all; what is left below those of its class stays as it
    /// is.
    pub(in crate::memory) fn gain_split(&mut self, gained: [i64; 2]) {
        for (lane, gained) in OF_MEMORY.into_iter().zip(gained) {
            self.slack.beyond[lane] += gained;
            self.most[lane] += gained;
            self.spare[lane] -= gained;
        }
    }

    /// Applies a change that the slack allows.
    pub(in crate::memory) fn apply(&mut self, change: &Lanes) {
        self.slack.take(change);
        self.increased.iter_mut().zip(change).for_each(|(sum, change)| *sum += (*change).max(0));
    }

    /// Applies a change whatever the slack.
    pub(in crate::memory) fn add(&mut self, change: &Lanes) {
        self.most.iter_mut().zip(change).for_each(|(most, change)| *most += change);
        self.increased.iter_mut().zip(change).for_each(|(sum, change)| *sum += (*change).max(0));
    }

    /// Undoes that.
    pub(in crate::memory) fn undo(&mut self, change: &Lanes) {
        self.most.iter_mut().zip(change).for_each(|(most, change)| *most -= change);
        self.increased.iter_mut().zip(change).for_each(|(sum, change)| *sum -= (*change).max(0));
    }
}

/// The lanes but for [`OF_MEMORY`].
pub(in crate::memory) fn without_memory(mut lanes: Lanes) -> Lanes {
    OF_MEMORY.into_iter().for_each(|lane| lanes[lane] = 0);
    lanes
}

/// Adds to the lanes that each of the parts is of.
#[inline(always)]
fn add_to(lanes: &mut Lanes, [blocks, bytes, requested]: [i64; PARTS]) {
    lanes[ALLOCATION] += blocks;
    lanes[ACTIVE] += blocks;
    lanes[ALLOCATED_BYTES] += bytes;
    lanes[ACTIVE_BYTES] += bytes;
    lanes[REQUESTED_BYTES] += requested;
}
