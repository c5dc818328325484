//! What one arena counts; `ledger.rs` says how the accounts of a device belong together.

use crate::memory::stats::class_counters::{ClassCounters, OF_MEMORY, without_memory};
use crate::memory::stats::headroom::{Headroom, PARTS};
use crate::memory::stats::ledger::{
    ACTIVE, ACTIVE_BYTES, ALLOCATED_BYTES, ALLOCATION, CLASSES, COUNTERS, Class, Counters,
    INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES, OVERSIZE, REQUESTED_BYTES, Sums,
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
/// Of all quantities there is a headroom below the peaks of all, and one below those of their class. What is free is
/// in `own`, because it is the arena's whatever its blocks are, and need know the less of the two only. Blocks are
/// in `rows`, with one headroom below the peaks of all for both, also where an arena has blocks of one class alone:
/// so nothing that is counted takes another way by which arena it is in, which is as random as sizes are.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Account {
    pub(in crate::memory) own: ClassCounters,
    pub(in crate::memory) all: Headroom,
    pub(in crate::memory) rows: [ClassCounters; 2],
    /// The class of the memory, for which free blocks count.
    pub(in crate::memory) memory: Class,
    /// Number of the last time that it asked the ledger; 0: never.
    last_request: u64,
    /// The same for something of each class.
    last_request_of: [u64; 2],
}

/// The free blocks of an arena that count as split, and their bytes.
#[derive(Clone, Copy)]
pub struct Split {
    /// How many.
    pub blocks: i64,
    /// Their bytes.
    pub bytes: i64,
}

impl Split {
    /// There are none.
    pub const NONE: Split = Split { blocks: 0, bytes: 0 };
}

impl Default for Account {
    /// Of blocks in no arena: there is no free memory.
    fn default() -> Account {
        Account::new(Class::Large)
    }
}

impl Account {
    /// An empty one of an arena with memory of a class.
    pub fn new(memory: Class) -> Account {
        let (own, all, rows) =
            (ClassCounters::default(), Headroom::default(), [ClassCounters::default(); 2]);
        Account { own, all, rows, memory, last_request: 0, last_request_of: [0; 2] }
    }

    /// Values of a class.
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

    /// Adds values of each class to sums. Of `own` only the counters of free memory are not 0.
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

    /// Bytes of blocks that their holders gave up, and that other streams may still use.
    #[inline]
    pub fn waiting_bytes(&self) -> i64 {
        let [small, large] = &self.rows;
        small.waiting_bytes() + large.waiting_bytes() + self.own.waiting_bytes()
    }

    /// Blocks that ever became free.
    pub fn total_freed(&self) -> u64 {
        self.parts().map(ClassCounters::total_freed).sum()
    }

    /// What there is and may come without asking, of both classes: what the peaks of all bound.
    #[cfg(test)]
    pub fn most_of_all(&self) -> Counters {
        let of_rows = |counter| self.rows.iter().map(|row| row.now(counter)).sum::<i64>();
        std::array::from_fn(|counter| {
            self.own.most[counter] + of_rows(counter) + self.all.of(counter)
        })
    }

    /// The same of a class, with what another one's headroom below the peaks of all would let come.
    #[cfg(test)]
    pub fn most(&self, class: Class) -> Counters {
        self.of(class, ClassCounters::most)
    }

    /// Breaks it.
    #[cfg(test)]
    pub fn count_wrongly(&mut self, class: Class, counter: usize) {
        self.rows[class as usize].most[counter] += 1;
    }

    /// It asks the ledger for the `number`th time of all, for changes that are counted already.
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

    /// Did it ask for a class, or for anything, when at least so many had asked?
    #[inline]
    pub fn has_requested(&self, class: Option<Class>, since: u64) -> bool {
        let last_request =
            class.map_or(self.last_request, |class| self.last_request_of[class as usize]);
        last_request != 0 && last_request >= since
    }

    /// Gives it what it lacks of a class to what it had when it asked, as `take` says; false: there is not
    /// enough.
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

    /// It was given nothing.
    pub fn clear_grant(&mut self) {
        self.own.granted = [0; COUNTERS];
        self.rows.iter_mut().for_each(|row| row.granted = [0; COUNTERS]);
    }

    /// Sets how much it may grow from now on beside what was given to it: as far as the peaks of all go, and
    /// those of each class.
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

    /// Counts a block that is not oversize as it comes, with `split` as it is then, if the headroom allows;
    /// false: nothing was done, ask the ledger.
    // In words, not in vectors: the next call reads what this one wrote, word by word.
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
        // A block that comes leaves less free, unless the arena was idle.
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

    /// The same for one that goes.
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

    /// What blocks of a class take headroom from.
    #[inline]
    fn each_headroom(&mut self, class: Class, body: impl Fn(&mut Headroom)) {
        body(&mut self.all);
        body(&mut self.rows[class as usize].headroom);
    }

    /// Counts a block that its holder gave up, and that other streams may still use.
    #[inline]
    pub fn count_deferred_free(&mut self, class: Class, bytes: i64, oversize: bool) {
        self.each_headroom(class, |headroom| {
            headroom.beyond[ALLOCATION] += 1;
            headroom.beyond[ALLOCATED_BYTES] += bytes;
            headroom.beyond[OVERSIZE] += i64::from(oversize);
            headroom.share();
        });
    }

    /// The rest of [`Account::count_free`] for so many such blocks, their bytes and those that were asked for.
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

    /// What of changes is counted in `own`, and what is in `rows`.
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

    /// Applies changes if the headroom allows; false: nothing was done, ask the ledger.
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

    /// Applies changes whatever the headroom: the ledger's business, which shares it out anew.
    pub fn add(&mut self, changes: &Changes) {
        let (of_own, of_rows) = self.changes_apart(changes);
        self.own.add(&of_own);
        self.rows.iter_mut().zip(&of_rows).for_each(|(row, change)| row.add(change));
    }

    /// Undoes changes as if they had never been, but for the peaks.
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

/// What of something of the memory's class is of free memory, and what is of blocks.
fn apart(counters: Counters) -> [Counters; 2] {
    let rest = without_memory(counters);
    [std::array::from_fn(|counter| counters[counter] - rest[counter]), rest]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Class = Class::Small;

    #[test]
    fn an_account_refuses_what_exceeds_its_slack() {
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
    fn what_is_left_of_one_class_is_nothing_to_the_other() {
        let mut account = Account::new(Class::Large);
        account.set_headroom([9; COUNTERS], [[1; COUNTERS], [2; COUNTERS]]);
        let mut rises = |class| account.count_alloc(class, 1, 1, Split::NONE);
        assert_eq!([SMALL, SMALL].map(&mut rises), [true, false]);
        assert_eq!([Class::Large; 3].map(&mut rises), [true, true, false]);
        assert_eq!(account.current(SMALL)[..INACTIVE_SPLIT], [1; INACTIVE_SPLIT]);
        assert_eq!(account.current(Class::Large)[..INACTIVE_SPLIT], [2; INACTIVE_SPLIT]);
    }
}
