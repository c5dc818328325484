//! The account of an arena: what it counts. `ledger.rs` has the invariant that connects the
//! accounts of a device.

use crate::memory::config::size::{CLASSES, Class};
use crate::memory::stats::class_counters::{ClassCounters, OF_MEMORY, without_memory};
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

/// What an arena counts.
///
/// Each quantity has one headroom below the peak of all blocks, and one below the peak of its
/// class. Free memory is counted in `own`: it is the arena's, whatever the class of its blocks, and
/// needs only the smaller of the two. Blocks are counted in `rows`, with one headroom below the
/// peaks of all for both classes, also if the arena has blocks of one class alone. So no branch of
/// the counting depends on the arena, which is as random as the sizes are.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Account {
    pub(in crate::memory) own: ClassCounters,
    pub(in crate::memory) all: Headroom,
    pub(in crate::memory) rows: [ClassCounters; 2],
    /// The class of the memory, for which free blocks count.
    pub(in crate::memory) memory: Class,
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

impl Default for Account {
    /// The account of blocks in no arena: there is no free memory.
    fn default() -> Account {
        Account::new(Class::Large)
    }
}

impl Account {
    /// An empty account of an arena with memory of a class.
    pub fn new(memory: Class) -> Account {
        let (own, all, rows) =
            (ClassCounters::default(), Headroom::default(), [ClassCounters::default(); 2]);
        Account { own, all, rows, memory, last_request: 0, last_request_of: [0; 2] }
    }

    /// The values of a class, with those of free memory if it is of the class.
    #[inline]
    fn of(&self, class: Class, value: impl Fn(&ClassCounters) -> Counters) -> Counters {
        let values = value(&self.rows[class as usize]);
        if class != self.memory {
            return values;
        }
        let own = value(&self.own);
        std::array::from_fn(|counter| own[counter] + values[counter])
    }

    /// Present values of a class.
    #[inline]
    pub fn current(&self, class: Class) -> Counters {
        self.of(class, ClassCounters::current)
    }

    /// Adds the values of each class to sums. Only the counters of free memory are not 0 in `own`.
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
        for (sums, values) in all.iter_mut().zip(values(&self.own)) {
            OF_MEMORY
                .into_iter()
                .for_each(|counter| sums[self.memory.row()][counter] += values[counter]);
        }
    }

    fn parts(&self) -> impl Iterator<Item = &ClassCounters> {
        self.rows.iter().chain([&self.own])
    }

    /// The present value of a counter, of both classes.
    #[inline]
    pub fn now(&self, counter: usize) -> i64 {
        self.parts().map(|row| row.now(counter)).sum()
    }

    /// Bytes of pending blocks: freed, but other streams may still use them.
    #[inline]
    pub fn waiting_bytes(&self) -> i64 {
        let [small, large] = &self.rows;
        small.waiting_bytes() + large.waiting_bytes() + self.own.waiting_bytes()
    }

    /// The number of blocks that ever became free.
    pub fn total_freed(&self) -> u64 {
        self.parts().map(ClassCounters::total_freed).sum()
    }

    /// The present values and the headroom, of both classes: the peaks of all bound these sums.
    #[cfg(test)]
    pub fn most_of_all(&self) -> Counters {
        let of_rows = |counter| self.rows.iter().map(|row| row.now(counter)).sum::<i64>();
        std::array::from_fn(|counter| {
            self.own.most[counter] + of_rows(counter) + self.all.of(counter)
        })
    }

    /// The same of one class, with what the headroom of another class below the peaks of all would
    /// allow.
    #[cfg(test)]
    pub fn most(&self, class: Class) -> Counters {
        self.of(class, ClassCounters::most)
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
            if class == self.memory {
                self.own.at_request = self.own.current();
            }
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
        let is_there = take(&self.of(class, ClassCounters::lacking));
        if is_there {
            self.rows[class as usize].granted = self.rows[class as usize].lacking();
            if class == self.memory {
                self.own.granted = self.own.lacking();
            }
        }
        is_there
    }

    /// Sets what was granted to nothing.
    pub fn clear_grant(&mut self) {
        self.own.granted = [0; COUNTERS];
        self.rows.iter_mut().for_each(|row| row.granted = [0; COUNTERS]);
    }

    /// Sets how much it may grow from now on, beside what was granted: below the peaks of all, and
    /// below those of each class.
    pub fn set_headroom(&mut self, all: Counters, of: [Counters; 2]) {
        let [own_all, mut rows_all] = apart(all);
        let [own_class, _] = apart(of[self.memory as usize]);
        self.own.set_both(own_all, own_class);
        for (row, of_class) in self.rows.iter_mut().zip(of) {
            let of_class = without_memory(of_class);
            row.set_headroom(std::array::from_fn(|counter| {
                of_class[counter] + row.granted[counter]
            }));
            rows_all = std::array::from_fn(|counter| rows_all[counter] + row.granted[counter]);
        }
        self.all = Headroom::new(rows_all);
    }

    /// Counts an allocated block that is not oversize, with `split` as it is then, if the headroom
    /// allows. False: nothing was done, and the ledger must count it.
    // In words, not in vectors: the next call reads word by word what this one wrote.
    #[inline(always)]
    pub fn count_alloc(&mut self, class: Class, bytes: i64, requested: i64, split: Split) -> bool {
        let (split_blocks, split_bytes) = self.own.headroom_after(split);
        let row = &mut self.rows[class as usize];
        let of_all = self.all.left(bytes, requested);
        let of_class = row.headroom.left(bytes, requested);
        if of_all.lowest() | of_class.lowest() | split_blocks | split_bytes < 0 {
            return false;
        }
        self.all.set(of_all);
        row.headroom.set(of_class);
        row.note_alloc(bytes, requested);
        // An allocated block leaves less free, unless the arena was idle.
        let headroom = &mut self.own.headroom.beyond;
        let is_less = split_blocks >= headroom[INACTIVE_SPLIT]
            && split_bytes >= headroom[INACTIVE_SPLIT_BYTES];
        if is_less {
            headroom[INACTIVE_SPLIT] = split_blocks;
            headroom[INACTIVE_SPLIT_BYTES] = split_bytes;
        } else {
            self.own.set_split(split_blocks, split_bytes);
        }
        true
    }

    /// Counts a freed block in the same way.
    #[inline(always)]
    pub fn count_free(&mut self, class: Class, bytes: i64, requested: i64, split: Split) -> bool {
        let (split_blocks, split_bytes) = self.own.headroom_after(split);
        if split_blocks | split_bytes < 0 {
            return false;
        }
        self.all.gain([1, bytes, requested]);
        self.rows[class as usize].headroom.gain([1, bytes, requested]);
        self.own.set_split(split_blocks, split_bytes);
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
    pub fn end_active(&mut self, class: Class, gone: [i64; PARTS], split: Split) -> bool {
        let [blocks, bytes, requested] = gone;
        let (split_blocks, split_bytes) = self.own.headroom_after(split);
        if split_blocks | split_bytes < 0 {
            return false;
        }
        self.own.set_split(split_blocks, split_bytes);
        self.each_headroom(class, |headroom| {
            headroom.beyond[ACTIVE] += blocks;
            headroom.beyond[ACTIVE_BYTES] += bytes;
            headroom.beyond[REQUESTED_BYTES] += requested;
            headroom.share();
        });
        true
    }

    /// Fills in how the free blocks change when they become `split`.
    pub fn change_split(&self, changes: &mut Changes, split: Split) {
        let change = &mut changes[self.memory as usize];
        change[INACTIVE_SPLIT] = split.blocks - self.own.now(INACTIVE_SPLIT);
        change[INACTIVE_SPLIT_BYTES] = split.bytes - self.own.now(INACTIVE_SPLIT_BYTES);
    }

    /// Splits changes into what is counted in `own`, and what is counted in `rows`.
    fn changes_apart(&self, changes: &Changes) -> (Counters, Changes) {
        let [of_own, _] = apart(changes[self.memory as usize]);
        let of_rows = changes.map(|change| apart(change)[1]);
        debug_assert!(
            CLASSES.iter().all(|class| {
                let other = changes[*class as usize];
                *class == self.memory || other == of_rows[*class as usize]
            }),
            "free memory is of the memory's class"
        );
        (of_own, of_rows)
    }

    /// Applies changes if the headroom allows. False: nothing was done, and the ledger must count
    /// them.
    pub fn apply(&mut self, changes: &Changes) -> bool {
        let (of_own, of_rows) = self.changes_apart(changes);
        let of_all = std::array::from_fn(|counter| of_rows[0][counter] + of_rows[1][counter]);
        let mut rows = self.rows.iter().zip(&of_rows);
        let are_allowed = self.own.headroom.allows(&of_own)
            && self.all.allows(&of_all)
            && rows.all(|(row, change)| row.headroom.allows(change));
        if !are_allowed {
            return false;
        }
        self.own.apply(&of_own);
        self.all.take(&of_all);
        self.rows.iter_mut().zip(&of_rows).for_each(|(row, change)| row.apply(change));
        true
    }

    /// Applies changes whatever the headroom is. The ledger calls this, and then distributes the
    /// headroom anew.
    pub fn add(&mut self, changes: &Changes) {
        let (of_own, of_rows) = self.changes_apart(changes);
        self.own.add(&of_own);
        self.rows.iter_mut().zip(&of_rows).for_each(|(row, change)| row.add(change));
    }

    /// Undoes changes as if they had never been, except for the peaks.
    pub fn undo(&mut self, changes: &Changes) {
        let (of_own, of_rows) = self.changes_apart(changes);
        self.own.undo(&of_own);
        self.rows.iter_mut().zip(&of_rows).for_each(|(row, change)| row.undo(change));
    }

    /// Zeroes the totals.
    pub fn reset_accumulated(&mut self) {
        self.own.reset_accumulated();
        self.rows.iter_mut().for_each(ClassCounters::reset_accumulated);
    }
}

/// Splits counters of the memory's class into those of free memory and those of blocks.
fn apart(counters: Counters) -> [Counters; 2] {
    let rest = without_memory(counters);
    [std::array::from_fn(|counter| counters[counter] - rest[counter]), rest]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Class = Class::Small;

    #[test]
    fn an_account_refuses_what_exceeds_its_headroom() {
        let mut account = Account::new(SMALL);
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
        let mut account = Account::new(Class::Large);
        account.set_headroom([9; COUNTERS], [[1; COUNTERS], [2; COUNTERS]]);
        let mut rises = |class| account.count_alloc(class, 1, 1, Split::NONE);
        assert_eq!([SMALL, SMALL].map(&mut rises), [true, false]);
        assert_eq!([Class::Large; 3].map(&mut rises), [true, true, false]);
        assert_eq!(account.current(SMALL)[..INACTIVE_SPLIT], [1; INACTIVE_SPLIT]);
        assert_eq!(account.current(Class::Large)[..INACTIVE_SPLIT], [2; INACTIVE_SPLIT]);
    }
}
