//! Changes to the recorded accesses of ranges: when blocks are allocated and freed, and when work
//! completes.

use super::check::{Scratch, append, exchange};
use super::clock::NO_MEMORY;
use super::ranges::{Inside, Ranges};
use super::store::{Access, Cell, NO_CELL, NO_MEMO, Store};
use crate::base::error::Result;

/// Applies `change` to each access of a range; an access for which it returns `None` is removed.
pub(super) fn transform(
    ranges: &mut Ranges,
    store: &mut Store,
    scratch: &mut Scratch,
    range: (u64, u64),
    change: &mut impl FnMut(&Access) -> Option<Access>,
) -> Result<()> {
    let inside = ranges.inside(range.0, range.1);
    transform_inside(ranges, store, scratch, (range, inside), change)
}

/// As [`transform`], for a range whose contents the caller has looked up already.
#[inline]
pub(super) fn transform_inside(
    ranges: &mut Ranges,
    store: &mut Store,
    scratch: &mut Scratch,
    (range, inside): ((u64, u64), Inside),
    change: &mut impl FnMut(&Access) -> Option<Access>,
) -> Result<()> {
    let (place, cell) = match inside {
        Inside::Nothing => return Ok(()),
        Inside::One(place, entry) => (place, entry.value),
        Inside::More => return transform_each(ranges, store, scratch, range, change),
    };
    let new = match store.is_sole(cell) {
        true if store.alter(cell, &mut *change) => return Ok(()),
        true => NO_CELL,
        false => changed(store, scratch, (cell, false), change)?,
    };
    if new == cell {
        return Ok(());
    }
    if new == NO_CELL {
        ranges.remove_at(place);
    } else {
        store.share(new);
        ranges.set(place, new);
    }
    store.release(cell);
    Ok(())
}

fn transform_each(
    ranges: &mut Ranges,
    store: &mut Store,
    scratch: &mut Scratch,
    (start, end): (u64, u64),
    change: &mut dyn FnMut(&Access) -> Option<Access>,
) -> Result<()> {
    let mut old = std::mem::take(&mut scratch.old);
    let mut new = std::mem::take(&mut scratch.new);
    old.clear();
    new.clear();
    let mut memo = NO_MEMO;
    let outcome = ranges.overlapping(start, end, &mut old).and_then(|()| {
        for entry in &old {
            if memo.old != entry.value {
                let is_whole = entry.start >= start && entry.end <= end;
                let cell = changed(store, scratch, (entry.value, is_whole), change)?;
                memo.remember(store, entry.value, cell);
            }
            if memo.new != NO_CELL {
                let piece = (entry.start.max(start), entry.end.min(end));
                append(store, &mut new, piece, memo.new)?;
            }
        }
        exchange(ranges, store, (start, end), &old, &new)
    });
    memo.remember(store, NO_CELL, NO_CELL);
    (scratch.old, scratch.new) = (old, new);
    outcome
}

/// Returns the cell with the changed accesses: the same cell, another one, or `NO_CELL`. A cell is
/// changed in place if all bytes of the range change and no other range has it.
fn changed(
    store: &mut Store,
    scratch: &mut Scratch,
    (place, is_whole): (u32, bool),
    change: &mut dyn FnMut(&Access) -> Option<Access>,
) -> Result<u32> {
    if is_whole && store.is_sole(place) {
        return Ok(if store.alter(place, &mut *change) { place } else { NO_CELL });
    }
    let Cell { write, reads, partial, .. } = store.cell(place);
    let mut is_same = true;
    let mut apply = |access: &Access| {
        let new = change(access);
        is_same &= new.as_ref() == Some(access);
        new
    };
    let write = write.as_ref().and_then(&mut apply);
    for (list, to) in [(reads, &mut scratch.reads), (partial, &mut scratch.partial)] {
        to.clear();
        to.try_reserve(list.len()).map_err(|_| NO_MEMORY)?;
        to.extend(list.iter().filter_map(&mut apply));
    }
    if is_same {
        return Ok(place);
    }
    if write.is_none() && scratch.reads.is_empty() && scratch.partial.is_empty() {
        return Ok(NO_CELL);
    }
    store.add_cell(write, &scratch.reads, &scratch.partial)
}

/// As [`transform`], for all ranges.
pub(super) fn transform_all(
    ranges: &mut Ranges,
    store: &mut Store,
    scratch: &mut Scratch,
    change: &mut dyn FnMut(&Access) -> Option<Access>,
) -> Result<()> {
    let mut memo = NO_MEMO;
    let mut outcome = Ok(());
    ranges.retain(|entry| {
        if outcome.is_err() {
            return true;
        }
        if memo.old != entry.value {
            outcome = changed(store, scratch, (entry.value, true), change)
                .map(|cell| memo.remember(store, entry.value, cell));
            if outcome.is_err() {
                return true;
            }
        }
        if memo.new == entry.value {
            return true;
        }
        if memo.new != NO_CELL {
            store.share(memo.new);
        }
        store.release(entry.value);
        entry.value = memo.new;
        memo.new != NO_CELL
    });
    memo.remember(store, NO_CELL, NO_CELL);
    outcome
}
