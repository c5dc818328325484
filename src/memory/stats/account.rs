//! The account of a heap: what it counts. `ledger.rs` has the invariant that connects the accounts
//! of a device.

use crate::memory::config::size::{CLASSES, Class};
use crate::memory::stats::class_counters::ClassCounters;
use crate::memory::stats::headroom::{Headroom, PARTS};
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, COUNTERS, Counters, INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES, OVERSIZE, REQUESTED_BYTES, Sums,
};

/// Changes of blocks, by their class.
pub type Changes = [Counters; 2];

/// A change of blocks of one class.
pub fn only(class: Class, change: Counters) -> Changes {
    let mut changes = [[0; COUNTERS]; 2];
    changes[class as usize] = change;
    changes
}

/// What a heap counts.
///
/// Each quantity has one headroom below the peak of its class, and one below the peak of both
/// classes together. A block is counted in the row of its own class, and free memory in the row of
/// the arena's class: the arena of large blocks also has small ones.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Account {
    pub(in crate::memory) all: Headroom,
    pub(in crate::memory) rows: [ClassCounters; 2],
    /// Number of its last request to the ledger; 0: it made none.
    last_request: u64,
    /// The same for each class.
    last_request_of: [u64; 2],
}

/// The free blocks of an arena that count as split, and their bytes.
#[derive(Clone, Copy)]
pub struct Split {
    /// Their number.
    pub blocks: i64,
    /// Their bytes.
    pub bytes: i64,
}

impl Split {
    /// No free blocks.
    pub const NONE: Split = Split { blocks: 0, bytes: 0 };
}

/// The headroom that remains of free memory: of its blocks and of their bytes.
#[derive(Clone, Copy)]
struct FreeLeft {
    of_class: [i64; 2],
    of_all: [i64; 2],
    /// The change of both.
    gained: [i64; 2],
}

impl FreeLeft {
    /// Negative if any of it is.
    #[inline(always)]
    fn lowest(&self) -> i64 {
        self.of_class[0] | self.of_class[1] | self.of_all[0] | self.of_all[1]
    }
}

impl Account {
    /// Present values of a class.
    #[inline]
    pub fn current(&self, class: Class) -> Counters {
        self.rows[class as usize].current()
    }

    /// Adds the values of each class to sums.
    #[inline(always)]
    pub fn add_to<const N: usize>(
        &self,
        all: &mut [Sums; N],
        values: impl Fn(&ClassCounters) -> [Counters; N],
    ) {
        for class in CLASSES {
            for (sums, values) in all.iter_mut().zip(values(&self.rows[class as usize])) {
                let sums = &mut sums[class.row()];
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
    }

    /// The present value of a counter, of both classes.
    #[inline]
    pub fn now(&self, counter: usize) -> i64 {
        self.rows.iter().map(|row| row.now(counter)).sum()
    }

    /// Bytes of pending blocks: freed, but other streams may still use them.
    #[inline]
    pub fn waiting_bytes(&self) -> i64 {
        self.rows.iter().map(ClassCounters::waiting_bytes).sum()
    }

    /// The number of blocks that ever became free.
    pub fn total_freed(&self) -> u64 {
        self.rows.iter().map(ClassCounters::total_freed).sum()
    }

    /// The present values and the headroom, of both classes: the peaks of all bound these sums.
    #[cfg(test)]
    pub fn most_of_all(&self) -> Counters {
        std::array::from_fn(|counter| self.now(counter) + self.all.of(counter))
    }

    /// Makes a count wrong.
    #[cfg(test)]
    pub fn count_wrongly(&mut self, class: Class, counter: usize) {
        self.rows[class as usize].most[counter] += 1;
    }

    /// Notes the request of this number to the ledger, for changes that are counted already.
    pub fn request(&mut self, number: u64, changes: &Changes) {
        self.last_request = number;
        for class in CLASSES.into_iter().filter(|class| changes[*class as usize] != [0; COUNTERS]) {
            self.last_request_of[class as usize] = number;
            let row = &mut self.rows[class as usize];
            row.at_request = row.current();
        }
    }

    /// Was its last request, for a class or for anything, of at least this number?
    #[inline]
    pub fn has_requested(&self, class: Option<Class>, since: u64) -> bool {
        let last_request =
            class.map_or(self.last_request, |class| self.last_request_of[class as usize]);
        last_request != 0 && last_request >= since
    }

    /// Grants what it lacks of a class to its values at its last request, if `take` finds enough;
    /// false: there is not enough.
    #[inline]
    pub fn grant(&mut self, class: Class, take: impl FnOnce(&Counters) -> bool) -> bool {
        let row = &mut self.rows[class as usize];
        let lacking = row.lacking();
        let is_there = take(&lacking);
        if is_there {
            row.granted = lacking;
        }
        is_there
    }

    /// Sets what was granted to nothing.
    pub fn clear_grant(&mut self) {
        self.rows.iter_mut().for_each(|row| row.granted = [0; COUNTERS]);
    }

    /// Sets how much it may grow from now on, beside what was granted: below the peaks of all, and
    /// below those of each class.
    pub fn set_headroom(&mut self, mut all: Counters, of: [Counters; 2]) {
        for (row, of_class) in self.rows.iter_mut().zip(of) {
            row.set_headroom(std::array::from_fn(|counter| {
                of_class[counter] + row.granted[counter]
            }));
            all.iter_mut().zip(row.granted).for_each(|(all, granted)| *all += granted);
        }
        self.all = Headroom::new(all);
    }

    /// The headroom of free memory if the free blocks of an arena become `split`.
    #[inline(always)]
    fn free_left(&self, arena: Class, split: Split) -> FreeLeft {
        let row = &self.rows[arena as usize];
        let of_class = row.free_left(split);
        let before = row.headroom.free();
        let gained = [of_class[0] - before[0], of_class[1] - before[1]];
        let all = self.all.free();
        FreeLeft { of_class, of_all: [all[0] + gained[0], all[1] + gained[1]], gained }
    }

    /// Sets the headroom of free memory, and counts what it lost as increases.
    #[inline(always)]
    fn set_free(&mut self, arena: Class, left: FreeLeft) {
        self.all.set_free(left.of_all);
        let row = &mut self.rows[arena as usize];
        row.headroom.set_free(left.of_class);
        if left.gained[0] | left.gained[1] < 0 {
            row.note_free(left.gained.map(|gained| (-gained).max(0)));
        }
    }

    /// Counts an allocated block that is not oversize, in the arena of a class whose free blocks
    /// are `split` then, if the headroom allows. False: nothing was done, and the ledger must count
    /// it.
    // In words, not in vectors: the next call reads word by word what this one wrote.
    #[inline(always)]
    pub fn count_alloc(
        &mut self,
        (arena, class): (Class, Class),
        (bytes, requested): (i64, i64),
        split: Split,
    ) -> bool {
        let free = self.free_left(arena, split);
        let row = &mut self.rows[class as usize];
        let of_all = self.all.left(bytes, requested);
        let of_class = row.headroom.left(bytes, requested);
        if of_all.lowest() | of_class.lowest() | free.lowest() < 0 {
            return false;
        }
        self.all.set(of_all);
        row.headroom.set(of_class);
        row.note_alloc(bytes, requested);
        self.set_free(arena, free);
        true
    }

    /// Counts a freed block in the same way.
    #[inline(always)]
    pub fn count_free(
        &mut self,
        (arena, class): (Class, Class),
        (bytes, requested): (i64, i64),
        split: Split,
    ) -> bool {
        let free = self.free_left(arena, split);
        if free.lowest() < 0 {
            return false;
        }
        self.all.gain([1, bytes, requested]);
        self.rows[class as usize].headroom.gain([1, bytes, requested]);
        self.set_free(arena, free);
        true
    }

    /// Runs `body` on each headroom that blocks of a class use.
    #[inline]
    fn each_headroom(&mut self, class: Class, body: impl Fn(&mut Headroom)) {
        body(&mut self.all);
        body(&mut self.rows[class as usize].headroom);
    }

    /// Counts a freed block that other streams may still use.
    #[inline]
    pub fn count_deferred_free(&mut self, class: Class, bytes: i64, oversize: bool) {
        self.each_headroom(class, |headroom| {
            headroom.beyond[ALLOCATION] += 1;
            headroom.beyond[ALLOCATED_BYTES] += bytes;
            headroom.beyond[OVERSIZE] += i64::from(oversize);
            headroom.share();
        });
    }

    /// Does the rest of [`Account::count_free`] for pending blocks that became free: their number,
    /// their bytes and their requested bytes.
    #[inline]
    pub fn end_active(
        &mut self,
        (arena, class): (Class, Class),
        [blocks, bytes, requested]: [i64; PARTS],
        split: Split,
    ) -> bool {
        let free = self.free_left(arena, split);
        if free.lowest() < 0 {
            return false;
        }
        self.set_free(arena, free);
        self.each_headroom(class, |headroom| {
            headroom.beyond[ACTIVE] += blocks;
            headroom.beyond[ACTIVE_BYTES] += bytes;
            headroom.beyond[REQUESTED_BYTES] += requested;
            headroom.share();
        });
        true
    }

    /// Fills in how the free blocks of an arena change when they become `split`.
    pub fn change_split(&self, arena: Class, changes: &mut Changes, split: Split) {
        let (change, row) = (&mut changes[arena as usize], &self.rows[arena as usize]);
        change[INACTIVE_SPLIT] = split.blocks - row.now(INACTIVE_SPLIT);
        change[INACTIVE_SPLIT_BYTES] = split.bytes - row.now(INACTIVE_SPLIT_BYTES);
    }

    /// Applies changes if the headroom allows. False: nothing was done, and the ledger must count
    /// them.
    pub fn apply(&mut self, changes: &Changes) -> bool {
        let of_all = std::array::from_fn(|counter| changes[0][counter] + changes[1][counter]);
        let mut rows = self.rows.iter().zip(changes);
        let are_allowed =
            self.all.allows(&of_all) && rows.all(|(row, change)| row.headroom.allows(change));
        if are_allowed {
            self.all.take(&of_all);
            self.rows.iter_mut().zip(changes).for_each(|(row, change)| row.apply(change));
        }
        are_allowed
    }

    /// Applies changes whatever the headroom is. The ledger calls this, and then distributes the
    /// headroom anew.
    pub fn add(&mut self, changes: &Changes) {
        self.rows.iter_mut().zip(changes).for_each(|(row, change)| row.add(change));
    }

    /// Undoes changes as if they had never been, except for the peaks.
    pub fn undo(&mut self, changes: &Changes) {
        self.rows.iter_mut().zip(changes).for_each(|(row, change)| row.undo(change));
    }

    /// Zeroes the totals.
    pub fn reset_accumulated(&mut self) {
        self.rows.iter_mut().for_each(ClassCounters::reset_accumulated);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Class = Class::Small;

    #[test]
    fn an_account_refuses_what_exceeds_its_headroom() {
        let mut account = Account::default();
        let mut change = [0; COUNTERS];
        change[ALLOCATION] = 1;
        assert!(!account.apply(&only(SMALL, change)));
        assert_eq!(account.now(ALLOCATION), 0);
        let mut headroom = [0; COUNTERS];
        headroom[ALLOCATION] = 1;
        account.set_headroom([0; COUNTERS], only(SMALL, headroom));
        assert!(!account.apply(&only(SMALL, change)), "all are at their peak");
        account.set_headroom(headroom, [[0; COUNTERS]; 2]);
        assert!(!account.apply(&only(SMALL, change)), "those of its class are");
        account.set_headroom(headroom, only(SMALL, headroom));
        assert!(account.apply(&only(SMALL, change)));
        assert!(!account.apply(&only(SMALL, change)));
        change[ALLOCATION] = -1;
        assert!(account.apply(&only(SMALL, change)));
        assert_eq!((account.now(ALLOCATION), account.rows[0].increased()[ALLOCATION]), (0, 1));
    }

    #[test]
    fn headroom_of_one_class_does_not_serve_the_other() {
        let mut account = Account::default();
        account.set_headroom([9; COUNTERS], [[1; COUNTERS], [2; COUNTERS]]);
        let mut rises = |class| account.count_alloc((class, class), (1, 1), Split::NONE);
        assert_eq!([SMALL, SMALL].map(&mut rises), [true, false]);
        assert_eq!([Class::Large; 3].map(&mut rises), [true, true, false]);
        assert_eq!(account.current(SMALL)[..INACTIVE_SPLIT], [1; INACTIVE_SPLIT]);
        assert_eq!(account.current(Class::Large)[..INACTIVE_SPLIT], [2; INACTIVE_SPLIT]);
    }

    #[test]
    fn free_memory_needs_headroom_of_its_class_and_of_all() {
        let free = |blocks| Split { blocks, bytes: blocks };
        for (all, of_class, most) in [(3, 9, 3), (9, 3, 3)] {
            let mut account = Account::default();
            account.set_headroom([all; COUNTERS], only(SMALL, [of_class; COUNTERS]));
            let mut fits = |blocks| account.count_free((SMALL, SMALL), (0, 0), free(blocks));
            assert_eq!([most, most + 1].map(&mut fits), [true, false]);
            assert_eq!([0, most].map(&mut fits), [true; 2], "it is given back");
            let counters = account.rows[0].increased();
            assert_eq!((account.now(INACTIVE_SPLIT), counters[INACTIVE_SPLIT]), (most, 2 * most));
        }
    }
}
