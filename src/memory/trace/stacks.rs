//! The stacks of the record. A stack is stored while an event, a block or a call references it.
//!
//! Events and blocks refer to a stack by its id, without a reference count. Thus a block that is
//! freed while recording is off need not release its stack. From time to time a search
//! (`history.rs`) marks the referenced ids, and the other stacks are removed. The search visits
//! blocks, then events, because an id moves from a block to an event and never back. An id that is
//! in neither has a [`Pin`]: it belongs to a call that has not stored it yet, or to a block in the
//! table of `uncached.rs`. A stack stays if it was pinned when the search began, is pinned when the
//! search ends, or was stored in between.

use super::frames::{Ids, Named, Stacks};
use crate::base::error::Result;
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

/// The bookkeeping of an id.
#[derive(Clone, Copy)]
struct Note {
    pins: u32,
    /// Was it stored or found since the last search began?
    is_new: bool,
}

/// Stacks; those that are neither pinned nor found by a search are removed.
pub struct StackTable {
    stacks: Stacks,
    /// One entry for each id, starting with id 1.
    notes: Vec<Note>,
}

impl StackTable {
    /// No stacks.
    pub const fn new() -> StackTable {
        StackTable { stacks: Stacks::new(), notes: Vec::new() }
    }

    /// The stored stacks.
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    fn note(&mut self, id: u32) -> Option<&mut Note> {
        self.notes.get_mut((id as usize).checked_sub(1)?)
    }

    /// Stores a stack, innermost frame first, and pins it. 0: it is empty, or there is no host
    /// memory.
    pub fn keep(&mut self, named: &mut dyn Iterator<Item = Named<'_>>, native: &[usize]) -> u32 {
        let id = self.stacks.intern(named, native);
        let wanted = self.stacks.count();
        let missing = wanted.saturating_sub(self.notes.len());
        if self.notes.try_reserve(missing).is_err() {
            return 0;
        }
        self.notes.resize(self.notes.len().max(wanted), Note { pins: 0, is_new: false });
        if let Some(note) = self.note(id) {
            note.is_new = true;
        }
        self.pin(id)
    }

    /// Pins a stack that is pinned already, or that is referenced by an object whose lock the
    /// caller holds.
    fn pin(&mut self, id: u32) -> u32 {
        match self.note(id) {
            Some(note) => {
                note.pins += 1;
                id
            }
            None => 0,
        }
    }

    /// Removes a pin.
    pub fn unpin(&mut self, id: u32) {
        if let Some(note) = self.note(id) {
            note.pins = note.pins.saturating_sub(1);
        }
    }

    /// Is a search worthwhile?
    pub fn are_many(&self) -> bool {
        self.stacks.are_many()
    }

    /// Begins a search; returns the set to which the caller adds the referenced ids. Only one
    /// search runs at a time. `None`: no host memory.
    pub fn begin(&mut self) -> Option<Ids> {
        let mut ids = self.stacks.no_ids()?;
        for (index, note) in self.notes.iter_mut().enumerate() {
            note.is_new = false;
            if note.pins > 0 {
                ids.add(index as u32 + 1);
            }
        }
        Some(ids)
    }

    /// Ends a search that visited `walked` places, and removes the other stacks. Returns them to be
    /// dropped.
    pub fn finish(&mut self, ids: &Ids, walked: usize) -> Option<Stacks> {
        let mut left = self.stacks.no_ids()?;
        ids.iter().for_each(|id| left.add(id));
        let notes = self.notes.iter().enumerate();
        let in_use = notes.filter(|(_, note)| note.is_new || note.pins > 0);
        in_use.for_each(|(index, _)| left.add(index as u32 + 1));
        let old = self.stacks.keep_only(&left, walked);
        let count = self.stacks.count();
        self.notes.truncate(count);
        if self.notes.capacity() > 2 * count + 64 {
            self.notes.shrink_to(count);
        }
        Some(old)
    }
}

/// The stacks of the allocators.
struct Recorded {
    table: StackTable,
    /// Incremented when all stacks are dropped; pins of an earlier generation have no effect.
    generation: u32,
}

static RECORDED: Mutex<Recorded> =
    Mutex::new(Rank::LEAF, Recorded { table: StackTable::new(), generation: 0 });

/// Is a search for unreferenced stacks worthwhile?
static ARE_MANY: AtomicBool = AtomicBool::new(false);

/// Keeps a stack stored until this is dropped.
#[derive(Debug)]
pub struct Pin {
    id: u32,
    generation: u32,
}

impl Pin {
    /// A pin of no stack.
    pub const NONE: Pin = Pin { id: 0, generation: 0 };
    /// The same, for a thread-local that is not dropped at the thread's end.
    pub const UNDROPPED: ManuallyDrop<Pin> = ManuallyDrop::new(Pin::NONE);

    /// The id of the stack; 0: none.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.id == 0 {
            return;
        }
        let mut recorded = RECORDED.lock();
        if recorded.generation == self.generation {
            recorded.table.unpin(self.id);
        }
    }
}

/// Stores a stack, innermost frame first.
pub fn keep(named: &mut dyn Iterator<Item = Named<'_>>, native: &[usize]) -> Pin {
    let mut recorded = RECORDED.lock();
    let id = recorded.table.keep(named, native);
    ARE_MANY.store(recorded.table.are_many(), Ordering::Relaxed);
    Pin { id, generation: recorded.generation }
}

/// Adds a pin to a stack that this thread has pinned; 0: no stack.
pub fn pin(id: u32) -> Pin {
    if id == 0 {
        return Pin::NONE;
    }
    let mut recorded = RECORDED.lock();
    Pin { id: recorded.table.pin(id), generation: recorded.generation }
}

/// Do the stacks take so much memory that the unreferenced ones should be removed?
pub fn are_many() -> bool {
    ARE_MANY.load(Ordering::Relaxed)
}

/// Begins a search; the caller adds the ids that blocks and events reference.
pub fn begin() -> Option<Ids> {
    RECORDED.lock().table.begin()
}

/// Ends a search that visited `walked` blocks and events.
pub fn finish(ids: &Ids, walked: usize) {
    let mut recorded = RECORDED.lock();
    let old = recorded.table.finish(ids, walked);
    ARE_MANY.store(false, Ordering::Relaxed);
    drop(recorded);
    drop(old);
}

/// A copy of all stacks, for reading.
pub fn copy() -> Result<Stacks> {
    let mut copy = RECORDED.lock().table.stacks.copy_for_reading()?;
    copy.resolve()?;
    Ok(copy)
}

/// The largest id.
#[cfg(test)]
pub fn count() -> usize {
    RECORDED.lock().table.stacks.count()
}

/// The number of stored stacks.
#[cfg(test)]
pub fn named() -> usize {
    let recorded = RECORDED.lock();
    let stacks = recorded.table.stacks();
    (1..=stacks.count() as u32).filter(|id| stacks.stack(*id).count() > 0).count()
}

/// Drops all stacks; there are no blocks.
pub fn forget() {
    let mut recorded = RECORDED.lock();
    let generation = recorded.generation.wrapping_add(1);
    let new = Recorded { table: StackTable::new(), generation };
    let old = std::mem::replace(&mut *recorded, new);
    ARE_MANY.store(false, Ordering::Relaxed);
    drop(recorded);
    drop(old);
}
