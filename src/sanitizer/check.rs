//! Compares the touches of an operation with the recorded accesses of other streams to the same
//! bytes, and records them.

use super::Mode;
use super::clock::{NO_SLOT, push};
use super::domain::{Domain, StreamInfo};
use super::ranges::{Entry, Inside, Place, Ranges};
use super::shape::{ByteSet, Common, Shape};
use super::store::{Access, AccessDetails, Cell, Memo, NO_CELL, NO_MEMO, Store};
use crate::base::error::Result;
use crate::base::thread::try_box;

/// The most runs of a touch whose bytes are recorded run by run. A touch with more runs is recorded
/// as a shape.
pub(super) const MAX_RUNS: u64 = 256;
/// The most partial accesses of one cell.
const MAX_PARTIAL: usize = 64;
/// The most races of one operation that are reported.
const MAX_RACES: usize = 64;

/// Two accesses that nothing orders.
#[derive(Clone, Copy)]
pub(super) struct Race {
    /// The later access's touch, in the store.
    touched: u32,
    pub(super) current: AccessDetails,
    pub(super) previous: AccessDetails,
    /// Flags of the earlier access: `EARLIER`, `UNCOVERED`.
    pub(super) flags: u32,
    /// The stream to which the bytes were allocated since the earlier access.
    pub(super) reallocated_to: Option<StreamInfo>,
    /// The first range of bytes that both access.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Lists that are reused between calls.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) old: Vec<Entry>,
    pub(super) new: Vec<Entry>,
    pub(super) reads: Vec<Access>,
    pub(super) partial: Vec<Access>,
}

impl Scratch {
    pub(super) const fn new() -> Scratch {
        Scratch { old: Vec::new(), new: Vec::new(), reads: Vec::new(), partial: Vec::new() }
    }
}

/// The recorded state with which an operation is compared, and into which it is recorded.
pub(super) struct Check<'a> {
    pub(super) domain: &'a mut Domain,
    pub(super) store: &'a mut Store,
    pub(super) scratch: &'a mut Scratch,
    pub(super) races: &'a mut Vec<Race>,
    /// Number of touches that could not be checked.
    pub(super) unchecked: &'a mut u64,
    pub(super) max_runs: u64,
}

/// One touch while it is compared and recorded.
struct Pass {
    access: Access,
    is_write: bool,
    /// The touch accesses only some bytes of each run; its shape says which.
    is_partial: bool,
    /// The cell with only this access: for bytes without recorded accesses, or, of a write, for all
    /// bytes.
    fresh: u32,
    /// The last cell in which no race was found.
    clean: u32,
    memo: Memo,
    /// The place of the last run, its distance from the run before, and the place predicted for the
    /// next run.
    last: Place,
    step: usize,
    next: Place,
}

impl Pass {
    /// Notes the place of the last run, and predicts the next one.
    #[inline]
    fn set_last(&mut self, place: Place) {
        if place.0 == self.last.0 {
            self.step = place.1.wrapping_sub(self.last.1);
        }
        self.last = place;
        self.next = (place.0, place.1.wrapping_add(self.step));
    }
}

const NO_PLACE: Place = (usize::MAX, 0);

impl Check<'_> {
    /// Compares and records a touch. The store gets its range and shape.
    pub(super) fn touch(&mut self, access: Access, mode: Mode, bytes: ByteSet<'_>) -> Result<()> {
        let mut pass = Pass {
            access,
            is_write: mode != Mode::Read,
            is_partial: false,
            fresh: NO_CELL,
            clean: NO_CELL,
            memo: NO_MEMO,
            last: NO_PLACE,
            step: 1,
            next: NO_PLACE,
        };
        match bytes {
            ByteSet::Nothing => (),
            ByteSet::Unknown => *self.unchecked += 1,
            ByteSet::Range(start, end) => {
                self.store.place(access.touched, start, end, None);
                self.run(&mut pass, start, end)?;
            }
            ByteSet::Rows(rows) if rows.rows <= self.max_runs => {
                self.store.place(access.touched, rows.start, rows.end(), None);
                for start in rows.starts() {
                    self.run(&mut pass, start, start + rows.bytes)?;
                }
            }
            ByteSet::Rows(rows) => self.parts(&mut pass, rows.shape()?)?,
            ByteSet::Shaped(shape) => self.parts(&mut pass, shape)?,
            ByteSet::Runs(runs) => {
                let range = (runs.first(), runs.last());
                if let (Some((start, _)), Some((_, end))) = range {
                    self.store.place(access.touched, *start, *end, None);
                }
                runs.iter().try_for_each(|(start, end)| self.run(&mut pass, *start, *end))?;
            }
        }
        self.store.drop_hold(pass.fresh);
        pass.memo.remember(self.store, NO_CELL, NO_CELL);
        Ok(())
    }

    fn parts(&mut self, pass: &mut Pass, shape: Shape) -> Result<()> {
        let (start, end) = shape.range();
        if shape.runs() <= self.max_runs {
            self.store.place(pass.access.touched, start, end, None);
            return shape.each(&mut |start, end| self.run(pass, start, end));
        }
        pass.is_partial = true;
        let shape = try_box(shape, "the stream sanitizer")?;
        self.store.place(pass.access.touched, start, end, Some(shape));
        self.run(pass, start, end)
    }

    /// Compares and records the bytes `start..end`.
    #[inline]
    fn run(&mut self, pass: &mut Pass, start: u64, end: u64) -> Result<()> {
        // Fast path: the run has the same cell as the previous one, at the predicted place.
        let Memo { old, new } = pass.memo;
        let is_known = pass.clean == old && old != NO_CELL && !pass.is_partial;
        if is_known && self.domain.ranges.replace_at(pass.next, (start, end), old, new) {
            self.store.replace_held(old, new);
            pass.set_last(pass.next);
            return Ok(());
        }
        self.run_general(pass, start, end)
    }

    #[inline(never)]
    fn run_general(&mut self, pass: &mut Pass, start: u64, end: u64) -> Result<()> {
        if let Some((place, entry)) = self.single_range(pass, start, end) {
            pass.set_last(place);
            let old = entry.value;
            let value = self.replacement(pass, (old, true), (entry.start, entry.end))?;
            if value != old {
                self.store.share(value);
            }
            self.domain.ranges.put(place, Entry { start, end, value });
            if value != old {
                self.store.release(old);
            }
            return Ok(());
        }
        let mut old = std::mem::take(&mut self.scratch.old);
        let mut new = std::mem::take(&mut self.scratch.new);
        old.clear();
        new.clear();
        let outcome = self.domain.ranges.overlapping(start, end, &mut old).and_then(|()| {
            if pass.is_write && !pass.is_partial {
                self.write(pass, &old, &mut new, (start, end))
            } else {
                self.add(pass, &old, &mut new, (start, end))
            }
        });
        let outcome = outcome
            .and_then(|()| exchange(&mut self.domain.ranges, self.store, (start, end), &old, &new));
        (self.scratch.old, self.scratch.new) = (old, new);
        outcome
    }

    /// Returns the range whose cell alone is replaced: exactly `start..end`, which is the usual
    /// case of a repeated access, or one range that a write covers.
    #[inline]
    fn single_range(&self, pass: &Pass, start: u64, end: u64) -> Option<(Place, Entry)> {
        let next = self.domain.ranges.carry(pass.next);
        if let Some(value) = self.domain.ranges.at(next, start, end) {
            return Some((next, Entry { start, end, value }));
        }
        let Inside::One(place, entry) = self.domain.ranges.inside(start, end) else { return None };
        let is_same = (entry.start, entry.end) == (start, end);
        (is_same || pass.is_write && !pass.is_partial).then_some((place, entry))
    }

    /// Returns the cell that replaces `old`. `is_whole`: the replacement covers the whole range.
    #[inline]
    fn replacement(
        &mut self,
        pass: &mut Pass,
        (old, is_whole): (u32, bool),
        piece: (u64, u64),
    ) -> Result<u32> {
        if pass.is_write && !pass.is_partial {
            self.compare(pass, old, piece)?;
            if is_whole && pass.fresh == NO_CELL && self.store.is_sole(old) {
                self.store.write_over(old, pass.access);
                self.store.share(old);
                pass.fresh = old;
                return Ok(old);
            }
            let new = self.write_cell(pass)?;
            pass.memo.remember(self.store, old, new);
            return Ok(new);
        }
        if !self.is_in(pass, piece) {
            return Ok(old);
        }
        self.compare(pass, old, piece)?;
        self.with_access(pass, (old, is_whole))
    }

    /// Returns the cell that all written bytes get.
    #[inline]
    fn write_cell(&mut self, pass: &mut Pass) -> Result<u32> {
        if pass.fresh == NO_CELL {
            pass.fresh = self.store.add_cell(Some(pass.access), &[], &[])?;
            self.store.share(pass.fresh);
        }
        Ok(pass.fresh)
    }

    /// Records a write: all bytes get one cell.
    fn write(
        &mut self,
        pass: &mut Pass,
        old: &[Entry],
        new: &mut Vec<Entry>,
        (start, end): (u64, u64),
    ) -> Result<()> {
        for entry in old {
            self.compare(pass, entry.value, (entry.start.max(start), entry.end.min(end)))?;
        }
        let cell = self.write_cell(pass)?;
        append(self.store, new, (start, end), cell)
    }

    /// Adds the access to the cell of each range, and fills the gaps.
    fn add(
        &mut self,
        pass: &mut Pass,
        old: &[Entry],
        new: &mut Vec<Entry>,
        (start, end): (u64, u64),
    ) -> Result<()> {
        let mut place = start;
        for entry in old {
            let piece = (entry.start.max(start), entry.end.min(end));
            if place < piece.0 {
                self.gap(pass, new, (place, piece.0))?;
            }
            place = piece.1;
            let is_whole = piece == (entry.start, entry.end);
            let value = self.replacement(pass, (entry.value, is_whole), piece)?;
            append(self.store, new, piece, value)?;
        }
        if place < end { self.gap(pass, new, (place, end)) } else { Ok(()) }
    }

    /// Records bytes without earlier accesses.
    fn gap(&mut self, pass: &mut Pass, new: &mut Vec<Entry>, piece: (u64, u64)) -> Result<()> {
        if !self.is_in(pass, piece) {
            return Ok(());
        }
        if pass.fresh == NO_CELL {
            let one = [pass.access];
            pass.fresh = match pass.is_partial {
                true => self.store.add_cell(None, &[], &one)?,
                false => self.store.add_cell(None, &one, &[])?,
            };
            self.store.share(pass.fresh);
        }
        append(self.store, new, piece, pass.fresh)
    }

    /// Returns whether the touch accesses a byte of `piece`.
    fn is_in(&self, pass: &Pass, piece: (u64, u64)) -> bool {
        let shape = self.store.touched(pass.access.touched).shape.as_ref();
        shape.is_none_or(|shape| shape.within(piece.0, piece.1).is_some())
    }

    /// Returns a cell with the new access and those accesses of the old cell that still matter.
    fn with_access(&mut self, pass: &mut Pass, (old, is_whole): (u32, bool)) -> Result<u32> {
        if pass.memo.old == old {
            return Ok(pass.memo.new);
        }
        let (domain, store) = (&*self.domain, &*self.store);
        let (access, cell) = (pass.access, store.cell(old));
        let last = if pass.is_partial { &cell.partial } else { &cell.reads };
        if last.iter().any(|known| known.touched == access.touched) {
            // Two runs of this touch overlap, so the access is already recorded.
            return Ok(old);
        }
        let knows = |slot, time| domain.knows(access.slot, slot, time);
        let is_plain = !pass.is_partial && cell.partial.is_empty();
        if is_plain && is_whole && store.is_sole(old) {
            self.store.read_over(old, access, |known| known.is_before(knows))?;
            return Ok(old);
        }
        let own = store.touched(access.touched).shape.as_ref();
        // An earlier access is dropped if it is ordered before the new one, the new one touches all
        // its bytes, and it is a read or the new one is a write.
        let is_same = |known: &Access| store.touched(known.touched).shape.as_ref() == own;
        let stays_read = |known: &&Access| pass.is_partial || !known.is_before(knows);
        let stays_partial = |known: &&Access| {
            let is_replaced =
                (store.is_read(known) || pass.is_write) && (!pass.is_partial || is_same(known));
            !(is_replaced && known.is_before(knows))
        };
        let Scratch { reads, partial, .. } = &mut *self.scratch;
        gather(reads, cell.reads.iter().filter(stays_read))?;
        gather(partial, cell.partial.iter().filter(stays_partial))?;
        if pass.is_partial {
            if partial.len() >= MAX_PARTIAL {
                partial.remove(0);
                *self.unchecked += 1;
            }
            push(partial, access)?;
        } else {
            push(reads, access)?;
        }
        let new = self.store.add_cell(self.store.cell(old).write, reads, partial)?;
        pass.memo.remember(self.store, old, new);
        Ok(new)
    }

    /// Reports the accesses of a cell that are not ordered before the new one.
    #[inline]
    fn compare(&mut self, pass: &mut Pass, cell: u32, piece: (u64, u64)) -> Result<()> {
        if pass.clean == cell {
            return Ok(());
        }
        let Cell { write, reads, partial, .. } = self.store.cell(cell);
        let knows = |slot, time| self.domain.knows(pass.access.slot, slot, time);
        let is_before = write.as_ref().is_none_or(|write| write.is_before(knows));
        if is_before && reads.is_empty() && partial.is_empty() {
            pass.clean = cell;
            return Ok(());
        }
        self.compare_all(pass, cell, piece)
    }

    #[inline(never)]
    fn compare_all(&mut self, pass: &mut Pass, cell: u32, piece: (u64, u64)) -> Result<()> {
        let (domain, store) = (&*self.domain, &*self.store);
        let (access, known) = (pass.access, store.cell(cell));
        let knows = |slot, time| domain.knows(access.slot, slot, time);
        let mut is_clean = true;
        let mut report = |previous: &Access, is_read: bool| -> Result<bool> {
            if previous.is_before(knows) || (is_read && !pass.is_write) {
                return Ok(false);
            }
            is_clean = false;
            if is_reported(store, known, access, previous, is_read) {
                return Ok(false);
            }
            match common(store, access.touched, previous, piece) {
                Ok(None) => Ok(false),
                Ok(Some(bytes)) => {
                    note(self.races, domain, store, access.touched, previous, bytes).map(|()| true)
                }
                Err(()) => {
                    *self.unchecked += 1;
                    Ok(false)
                }
            }
        };
        let mut is_by_read = false;
        for previous in &known.reads {
            is_by_read |= report(previous, true)?;
        }
        for previous in &known.partial {
            report(previous, store.is_read(previous))?;
        }
        if let Some(write) = known.write.as_ref().filter(|_| !is_by_read) {
            report(write, false)?;
        }
        if is_clean {
            pass.clean = cell;
        }
        Ok(())
    }
}

/// Returns whether the race with `previous` was reported already, at an access of the same stream
/// to the same bytes after `previous`.
fn is_reported(store: &Store, cell: &Cell, own: Access, previous: &Access, is_read: bool) -> bool {
    let shape = store.touched(own.touched).shape.as_ref();
    let is_same = |known: &&Access| shape == store.touched(known.touched).shape.as_ref();
    let all = cell.write.iter().chain(&cell.reads).chain(cell.partial.iter().filter(is_same));
    let mut own_before = all.filter(|known| known.slot == own.slot && known.time > previous.time);
    own_before.any(|known| !is_read || !store.is_read(known))
}

/// Returns bytes of `piece` that both the touch and an earlier access touch.
fn common(store: &Store, touched: u32, previous: &Access, piece: (u64, u64)) -> Common {
    let lhs = store.touched(touched).shape.as_deref();
    let rhs = store.touched(previous.touched).shape.as_deref();
    match (lhs, rhs) {
        (None, None) => Ok(Some(piece)),
        (Some(shape), None) | (None, Some(shape)) => Ok(shape.within(piece.0, piece.1)),
        (Some(lhs), Some(rhs)) => lhs.shared(rhs, piece.0, piece.1),
    }
}

fn note(
    races: &mut Vec<Race>,
    domain: &Domain,
    store: &Store,
    touched: u32,
    access: &Access,
    (start, end): (u64, u64),
) -> Result<()> {
    let (current, previous) =
        (store.touched(touched).details, store.touched(access.touched).details);
    // Sequence number, range and mode identify a touch.
    let name =
        |details: &AccessDetails| (details.sequence, details.start, details.end, details.mode);
    let is_pair =
        |race: &&mut Race| race.touched == touched && name(&race.previous) == name(&previous);
    if let Some(known) = races.iter_mut().find(is_pair) {
        if known.end == start {
            known.end = end;
        }
        return Ok(());
    }
    if races.len() >= MAX_RACES {
        return Ok(());
    }
    let reallocated_to =
        (access.realloc_slot != NO_SLOT).then(|| domain.stream(access.realloc_slot));
    push(
        races,
        Race { touched, current, previous, flags: access.flags, reallocated_to, start, end },
    )
}

/// Appends a range and takes a reference to its cell. If the last range is adjacent and has the
/// same cell, that range grows instead.
pub(super) fn append(
    store: &mut Store,
    new: &mut Vec<Entry>,
    (start, end): (u64, u64),
    value: u32,
) -> Result<()> {
    if let Some(last) = new.last_mut()
        && last.end == start
        && last.value == value
    {
        last.end = end;
        return Ok(());
    }
    push(new, Entry { start, end, value })?;
    store.share(value);
    Ok(())
}

fn gather<'a>(list: &mut Vec<Access>, from: impl Iterator<Item = &'a Access>) -> Result<()> {
    list.clear();
    for access in from {
        push(list, *access)?;
    }
    Ok(())
}

/// Replaces ranges. The list already holds references to the cells of `new`; the references of
/// `old` are released.
pub(super) fn exchange(
    ranges: &mut Ranges,
    store: &mut Store,
    (start, end): (u64, u64),
    old: &[Entry],
    new: &[Entry],
) -> Result<()> {
    ranges.replace(start, end, new)?;
    for entry in old {
        match (entry.start < start, entry.end > end) {
            (false, false) => store.release(entry.value),
            (true, true) => store.share(entry.value),
            _ => (),
        }
    }
    Ok(())
}
