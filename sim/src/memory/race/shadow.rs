//! What is known of the accesses to each word of memory.
//!
//! A word's cell holds the accesses that a later one may race with. An access replaces those that
//! happened before it and that race with nothing that it does not race with itself. Most cells
//! need two entries: the last write, and the reads after it.

use super::clock::{Clock, NumberMap};

/// Bytes of a word.
const WORD: u64 = 4;
/// Words of a page.
const PAGE: usize = 1024;
/// Entries of a list at most. Beyond it the oldest read is forgotten: a race may be missed.
const LONGEST: usize = 16;
/// Pages whose place is remembered.
const RECENT: usize = 64;
/// This bit marks the copies that a thread started and that run beside it.
pub(super) const COPY: u32 = 1 << 31;
/// Numbers of instructions that an entry can hold.
pub(super) const MOST_SITES: u32 = 1 << 20;

/// How an access accesses a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(super) enum Kind {
    Read,
    AtomicRead,
    AtomicWrite,
    Write,
}

impl Kind {
    fn of(bits: u32) -> Kind {
        match bits & 3 {
            0 => Kind::Read,
            1 => Kind::AtomicRead,
            2 => Kind::AtomicWrite,
            _ => Kind::Write,
        }
    }

    pub(super) fn is_write(self) -> bool {
        matches!(self, Kind::AtomicWrite | Kind::Write)
    }

    fn is_atomic(self) -> bool {
        matches!(self, Kind::AtomicRead | Kind::AtomicWrite)
    }

    /// True if accesses of these kinds race where nothing orders them.
    #[inline]
    fn conflicts(self, other: Kind) -> bool {
        (self.is_write() || other.is_write()) && !(self.is_atomic() && other.is_atomic())
    }

    /// True if what conflicts with `other` conflicts with this.
    #[inline]
    fn covers(self, other: Kind) -> bool {
        self == other || self == Kind::Write || other == Kind::AtomicRead
    }
}

/// An access of a run of threads in one epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    /// The first thread.
    thread: u32,
    /// The epoch of its threads; 0: no entry.
    epoch: u32,
    /// From the highest bit on: instruction (20 bits), number of threads - 1 (10), kind (2).
    bits: u32,
}

/// An epoch that marks a cell whose entries are in a list.
const LIST: u32 = u32::MAX;
/// An epoch that marks a cell with a cell for each byte.
const SPLIT: u32 = u32::MAX - 1;
/// The last epoch that a thread can have.
pub(super) const LAST_EPOCH: u32 = SPLIT - 1;

impl Entry {
    pub(super) fn new(thread: u32, epoch: u32, site: u32, kind: Kind) -> Entry {
        Entry { thread, epoch, bits: site.min(MOST_SITES - 1) << 12 | kind as u32 }
    }

    pub(super) fn kind(self) -> Kind {
        Kind::of(self.bits)
    }

    pub(super) fn site(self) -> u32 {
        self.bits >> 12
    }

    #[inline]
    fn count(self) -> u32 {
        (self.bits >> 2 & 1023) + 1
    }

    #[inline]
    fn contains(self, thread: u32) -> bool {
        thread.wrapping_sub(self.thread) < self.count()
    }

    /// True if `other` is known and cannot race with the run.
    #[inline]
    fn has(self, other: Entry) -> bool {
        self.epoch == other.epoch
            && self.contains(other.thread)
            && self.kind().covers(other.kind())
            && (self.count() == 1 || !self.kind().conflicts(other.kind()))
    }

    /// True if `other` continues the run.
    #[inline]
    fn is_continued_by(self, other: Entry) -> bool {
        let count = self.count();
        self.epoch == other.epoch
            && (self.bits ^ other.bits) & !(1023 << 2) == 0
            && self.thread.wrapping_add(count) == other.thread
            && count < 1024
    }
}

/// What a thread knows of the others.
#[derive(Clone, Copy)]
pub(super) struct Viewer<'c> {
    pub(super) thread: u32,
    pub(super) clock: &'c Clock,
    /// The last epoch of its copies that it has waited for.
    pub(super) copied: u32,
    /// True for an access of one of its copies.
    pub(super) is_copy: bool,
}

impl Viewer<'_> {
    /// The first thread of an entry whose access did not happen before.
    #[inline]
    pub(super) fn first_unordered(&self, entry: Entry) -> Option<u32> {
        if entry.thread == self.thread && entry.count() == 1 {
            return None;
        }
        let (mut first, mut count) = (entry.thread, entry.count());
        loop {
            let thread = self.clock.first_before(first, count, entry.epoch)?;
            let is_own = thread == self.thread
                || thread == self.thread | COPY && (self.is_copy || entry.epoch <= self.copied);
            if !is_own {
                return Some(thread);
            }
            count -= thread - first + 1;
            first = thread.wrapping_add(1);
            if count == 0 {
                return None;
            }
        }
    }
}

/// The accesses to a word or a byte.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    a: Entry,
    b: Entry,
}

/// The memory that shadows may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) bytes: usize,
    /// True if it was too little.
    pub(super) is_exhausted: bool,
}

impl Budget {
    fn take(&mut self, bytes: usize) -> bool {
        match self.bytes.checked_sub(bytes) {
            Some(rest) => self.bytes = rest,
            None => self.is_exhausted = true,
        }
        !self.is_exhausted
    }
}

/// An earlier access that races with one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conflict {
    pub(super) entry: Entry,
    /// Its thread.
    pub(super) thread: u32,
    /// The first address that both access.
    pub(super) address: u64,
}

/// The cells of a space.
pub(super) struct Shadow {
    pages: NumberMap<u32>,
    cells: Vec<Box<[Cell]>>,
    recent: [(u64, u32); RECENT],
    lists: Vec<Vec<Entry>>,
    splits: Vec<[Cell; WORD as usize]>,
    /// Bytes that it has taken of the budget.
    taken: usize,
}

impl Default for Shadow {
    fn default() -> Shadow {
        Shadow {
            pages: NumberMap::default(),
            cells: Vec::new(),
            recent: [(u64::MAX, 0); RECENT],
            lists: Vec::new(),
            splits: Vec::new(),
            taken: 0,
        }
    }
}

impl Shadow {
    /// Gives its memory back to the budget.
    pub(super) fn give_back(&self, budget: &mut Budget) {
        budget.bytes += self.taken;
    }

    /// Records an access; returns an earlier one that races with it.
    #[inline]
    pub(super) fn access(
        &mut self,
        address: u64,
        bytes: u64,
        entry: Entry,
        viewer: Viewer<'_>,
        budget: &mut Budget,
    ) -> Option<Conflict> {
        let end = address.checked_add(bytes)?;
        let mut found = None;
        let mut at = address;
        while at < end {
            let next = end.min((at / WORD + 1) * WORD);
            if let Some((entry, thread, first)) = self.word(at, next - at, entry, viewer, budget) {
                found.get_or_insert(Conflict { entry, thread, address: first });
            }
            at = next;
        }
        found
    }

    /// Records an access to bytes of one word.
    #[inline]
    fn word(
        &mut self,
        address: u64,
        bytes: u64,
        entry: Entry,
        viewer: Viewer<'_>,
        budget: &mut Budget,
    ) -> Option<(Entry, u32, u64)> {
        let word = address / WORD;
        let page = self.page(word / PAGE as u64, budget)?;
        let cell = &mut self.cells[page as usize][word as usize % PAGE];
        if cell.a.epoch != SPLIT {
            if bytes == WORD {
                let found = visit(cell, &mut self.lists, &mut self.taken, entry, viewer, budget);
                return found.map(|(entry, thread)| (entry, thread, address));
            }
            // Each byte has had the accesses of the word.
            let size = 2 * size_of::<[Cell; WORD as usize]>();
            if !budget.take(size) {
                return None;
            }
            self.taken += size;
            let mut cells = [*cell; WORD as usize];
            if cell.a.epoch == LIST {
                let list = self.lists[cell.a.thread as usize].clone();
                for cell in &mut cells[1..] {
                    cell.a.thread = self.lists.len() as u32;
                    self.lists.push(list.clone());
                }
            }
            cell.a = Entry { thread: self.splits.len() as u32, epoch: SPLIT, bits: 0 };
            self.splits.push(cells);
        }
        let cells = &mut self.splits[cell.a.thread as usize];
        let mut found = None;
        for byte in address % WORD..address % WORD + bytes {
            let cell = &mut cells[byte as usize];
            let one = visit(cell, &mut self.lists, &mut self.taken, entry, viewer, budget);
            if let Some((entry, thread)) = one {
                found.get_or_insert((entry, thread, word * WORD + byte));
            }
        }
        found
    }

    /// The place of a page.
    #[inline]
    fn page(&mut self, page: u64, budget: &mut Budget) -> Option<u32> {
        let recent = self.recent[page as usize % RECENT];
        if recent.0 == page {
            return Some(recent.1);
        }
        self.find_page(page, budget)
    }

    fn find_page(&mut self, page: u64, budget: &mut Budget) -> Option<u32> {
        let place = match self.pages.get(&page) {
            Some(place) => *place,
            None => {
                let bytes = PAGE * size_of::<Cell>();
                if !budget.take(bytes) {
                    return None;
                }
                self.taken += bytes;
                let place = self.cells.len() as u32;
                self.cells.push(vec![Cell::default(); PAGE].into_boxed_slice());
                self.pages.insert(page, place);
                place
            }
        };
        self.recent[page as usize % RECENT] = (page, place);
        Some(place)
    }

    /// Forgets the accesses to a range.
    pub(super) fn forget(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let mut word = address / WORD;
        while word < end.div_ceil(WORD) {
            let (page, inside) = (word / PAGE as u64, word as usize % PAGE);
            let count = (PAGE - inside).min((end.div_ceil(WORD) - word) as usize);
            if let Some(place) = self.pages.get(&page) {
                self.cells[*place as usize][inside..inside + count].fill(Cell::default());
            }
            word += count as u64;
        }
    }
}

/// Records an access in a cell; returns an earlier one that races with it, and its thread.
#[inline]
fn visit(
    cell: &mut Cell,
    lists: &mut Vec<Vec<Entry>>,
    taken: &mut usize,
    entry: Entry,
    viewer: Viewer<'_>,
    budget: &mut Budget,
) -> Option<(Entry, u32)> {
    if cell.a.epoch == 0 {
        cell.a = entry;
        return None;
    }
    let mut found = None;
    if cell.a.epoch == LIST {
        let list = &mut lists[cell.a.thread as usize];
        if list.iter().any(|old| old.has(entry)) {
            return None;
        }
        let mut is_placed = false;
        list.retain_mut(|old| {
            // The oldest entries leave a list that is full, so that these need no look.
            if !old.kind().conflicts(entry.kind()) {
                if !is_placed && old.is_continued_by(entry) {
                    old.bits += 1 << 2;
                    is_placed = true;
                }
                return true;
            }
            let keeps = judge(old, entry, viewer, &mut found, &mut is_placed);
            keeps != Verdict::Drop
        });
        if !is_placed {
            if list.len() >= LONGEST {
                let read = list.iter().position(|old| !old.kind().is_write());
                let atomic = || list.iter().position(|old| old.kind() != Kind::Write);
                list.remove(read.or_else(atomic).unwrap_or(0));
            }
            list.push(entry);
        }
        return found;
    }
    let mut is_placed = false;
    let mut drops_b = true;
    if cell.b.epoch != 0 {
        match judge(&mut cell.b, entry, viewer, &mut found, &mut is_placed) {
            Verdict::Known => return found,
            Verdict::Keep => drops_b = false,
            Verdict::Drop => {}
        }
    }
    let mut drops_a = false;
    match judge(&mut cell.a, entry, viewer, &mut found, &mut is_placed) {
        Verdict::Known => {}
        Verdict::Keep => {}
        Verdict::Drop => drops_a = true,
    }
    match (drops_a, drops_b) {
        (false, false) if is_placed => {}
        (false, false) => {
            let size = (LONGEST + 2) * size_of::<Entry>();
            if budget.take(size) {
                *taken += size;
                let mut list = Vec::with_capacity(4);
                list.extend([cell.a, cell.b, entry]);
                cell.a = Entry { thread: lists.len() as u32, epoch: LIST, bits: 0 };
                lists.push(list);
            }
        }
        (false, true) => cell.b = if is_placed { Entry::default() } else { entry },
        (true, false) if is_placed => {
            (cell.a, cell.b) = (cell.b, Entry::default());
        }
        (true, false) => cell.a = entry,
        (true, true) => (cell.a, cell.b) = (entry, Entry::default()),
    }
    found
}

/// What becomes of an entry after another access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// The new access takes its place.
    Drop,
    /// It has the new access already.
    Known,
}

#[inline]
fn judge(
    old: &mut Entry,
    new: Entry,
    viewer: Viewer<'_>,
    found: &mut Option<(Entry, u32)>,
    is_placed: &mut bool,
) -> Verdict {
    if old.epoch == new.epoch && old.contains(new.thread) && old.kind().covers(new.kind()) {
        *is_placed = true;
        // The others of the run may have come later.
        if old.count() > 1 && old.kind().conflicts(new.kind()) && found.is_none() {
            *found = viewer.first_unordered(*old).map(|thread| (*old, thread));
        }
        return Verdict::Known;
    }
    let unordered = viewer.first_unordered(*old);
    let is_covered = new.kind().covers(old.kind());
    if let Some(thread) = unordered {
        let is_race = old.kind().conflicts(new.kind());
        if is_race && found.is_none() {
            *found = Some((*old, thread));
        }
        if !*is_placed && old.is_continued_by(new) {
            old.bits += 1 << 2;
            *is_placed = true;
            return Verdict::Keep;
        }
        // A race that has been found is enough for one word.
        return if is_race && is_covered { Verdict::Drop } else { Verdict::Keep };
    }
    if is_covered { Verdict::Drop } else { Verdict::Keep }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Budget {
        Budget { bytes: 1 << 20, is_exhausted: false }
    }

    fn viewer(thread: u32, clock: &Clock) -> Viewer<'_> {
        Viewer { thread, clock, copied: 0, is_copy: false }
    }

    #[test]
    fn accesses_without_an_order_conflict() {
        let none = Clock::default();
        let kinds = [Kind::Read, Kind::AtomicRead, Kind::AtomicWrite, Kind::Write];
        for first in kinds {
            for second in kinds {
                let (mut shadow, mut budget) = (Shadow::default(), budget());
                let mut access = |thread, kind| {
                    let entry = Entry::new(thread, 1, 7, kind);
                    shadow.access(64, 4, entry, viewer(thread, &none), &mut budget)
                };
                assert!(access(0, first).is_none());
                let writes = first >= Kind::AtomicWrite || second >= Kind::AtomicWrite;
                let atomic = |kind| kind == Kind::AtomicRead || kind == Kind::AtomicWrite;
                let races = writes && !(atomic(first) && atomic(second));
                assert_eq!(access(1, second).is_some(), races, "{first:?} {second:?}");
            }
        }
    }

    #[test]
    fn bytes_of_a_word_are_apart() {
        let none = Clock::default();
        let (mut shadow, mut budget) = (Shadow::default(), budget());
        let mut access = |thread, address, bytes| {
            let entry = Entry::new(thread, 1, 7, Kind::Write);
            shadow.access(address, bytes, entry, viewer(thread, &none), &mut budget)
        };
        for thread in 0..8 {
            assert!(access(thread, u64::from(thread), 1).is_none());
        }
        let found = access(9, 2, 4).unwrap();
        assert_eq!((found.thread, found.address), (2, 2));
        assert!(access(10, 64, 8).is_none());
        let found = access(11, 68, 4).unwrap();
        assert_eq!((found.thread, found.address), (10, 68));
    }

    #[test]
    fn readers_are_all_known() {
        let none = Clock::default();
        let (mut shadow, mut budget) = (Shadow::default(), budget());
        for thread in 0..3000 {
            let entry = Entry::new(thread, 1, 7, Kind::Read);
            let one = viewer(thread, &none);
            assert!(shadow.access(64, 4, entry, one, &mut budget).is_none());
        }
        // The writer knows all but one of them.
        let clock = Clock::of((0..3000).filter(|t| *t != 1234).map(|t| (t, 1)));
        let entry = Entry::new(5000, 1, 8, Kind::Write);
        let found = shadow.access(64, 4, entry, viewer(5000, &clock), &mut budget).unwrap();
        assert_eq!((found.thread, found.entry.kind()), (1234, Kind::Read));
    }

    #[test]
    fn an_exhausted_budget_is_reported() {
        let none = Clock::default();
        let mut budget = Budget { bytes: 100, is_exhausted: false };
        let entry = Entry::new(0, 1, 7, Kind::Read);
        let found = Shadow::default().access(64, 4, entry, viewer(0, &none), &mut budget);
        assert!(found.is_none() && budget.is_exhausted);
    }
}
