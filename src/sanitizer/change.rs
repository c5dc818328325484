//! Changes of what is remembered of bytes: when blocks come and go, and when work is over.

use super::check::{NO_MEMO, Scratch, append, exchange};
use super::clock::NO_MEMORY;
use super::ranges::Ranges;
use super::store::{Access, Cell, NO_CELL, Store};
use crate::error::Result;

/// Changes the accesses of a range, or of all; `None` forgets one.
pub(super) fn transform(
    ranges: &mut Ranges,
    store: &mut Store,
    scratch: &mut Scratch,
    (start, end): (u64, u64),
    change: &mut dyn FnMut(&Access) -> Option<Access>,
) -> Result<()> {
    if ranges.is_free(start, end) {
        return Ok(());
    }
    let mut old = std::mem::take(&mut scratch.old);
    let mut new = std::mem::take(&mut scratch.new);
    old.clear();
    new.clear();
    let mut memo = NO_MEMO;
    let outcome = ranges.overlapping(start, end, &mut old).and_then(|()| {
        for entry in &old {
            if memo.old != entry.value {
                let cell = changed(store, scratch, entry.value, change)?;
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

/// The cell of changed accesses: the same, another, or none.
fn changed(
    store: &mut Store,
    scratch: &mut Scratch,
    place: u32,
    change: &mut dyn FnMut(&Access) -> Option<Access>,
) -> Result<u32> {
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

/// The same for all ranges.
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
            outcome = changed(store, scratch, entry.value, change)
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
