//! The stacks of what is recorded. A stack is stored while an event, a block or a call names it.
//!
//! Events and blocks name a stack by its id alone: neither counts, so that a block that is freed while
//! nothing is recorded has nothing to give back. From time to time a search (`history.rs`) marks what
//! they name, and the other stacks go. The order of the search is blocks, then events, because an id
//! moves from a block to an event and never back. An id that is in neither has a [`Pin`]: it is the id of a
//! call that has not reached its block yet, or of a block in the table of `uncached.rs`. A stack
//! that was pinned when the search began, is pinned when it ends, or was stored meanwhile stays.

use super::frames::{Ids, Named, Stacks};
use crate::base::error::Result;
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of an id besides its stack.
#[derive(Clone, Copy)]
struct Note {
    pins: u32,
    /// Was it stored, or found, since the last search began?
    is_new: bool,
}

/// Stacks of which some are pinned, and the others go when a search finds nothing that names them.
pub struct StackTable {
    stacks: Stacks,
    /// One for each id, from 1 on.
    notes: Vec<Note>,
}

impl StackTable {
    /// None.
    pub const fn new() -> StackTable {
        StackTable { stacks: Stacks::new(), notes: Vec::new() }
    }

    /// The stacks.
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    fn note(&mut self, id: u32) -> Option<&mut Note> {
        self.notes.get_mut((id as usize).checked_sub(1)?)
    }

    /// Stores a stack, innermost frame first, and pins it; 0: it is empty, or there is no host memory.
    pub fn keep(&mut self, named: &mut dyn Iterator<Item = Named<'_>>, native: &[usize]) -> u32 {
        let id = self.stacks.keep(named, native);
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

    /// Pins a stack that is pinned already, or named by what the caller holds still.
    fn pin(&mut self, id: u32) -> u32 {
        match self.note(id) {
            Some(note) => {
                note.pins += 1;
                id
            }
            None => 0,
        }
    }

    /// Ends a pin.
    pub fn unpin(&mut self, id: u32) {
        if let Some(note) = self.note(id) {
            note.pins = note.pins.saturating_sub(1);
        }
    }

    /// Is a search worth its time?
    pub fn are_many(&self) -> bool {
        self.stacks.are_many()
    }

    /// Begins a search: the ids to which those that something names are to be added. One search is
    /// made at a time. None without host memory.
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

    /// Ends a search that looked at `walked` places: the other stacks go. Gives what is to be dropped.
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

/// What is recorded of the allocators.
struct Recorded {
    table: StackTable,
    /// How often all were forgotten. A pin of an earlier time pins nothing.
    generation: u32,
}

static RECORDED: Mutex<Recorded> =
    Mutex::new(Rank::LEAF, Recorded { table: StackTable::new(), generation: 0 });

/// Is a search for stacks that nothing names worth its time?
static ARE_MANY: AtomicBool = AtomicBool::new(false);

/// A stack that stays while this does.
#[derive(Debug)]
pub struct Pin {
    id: u32,
    generation: u32,
}

impl Pin {
    /// Of no stack.
    pub const NONE: Pin = Pin { id: 0, generation: 0 };
    /// The same, for a thread that ends without dropping it.
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

/// Pins a stack that is pinned by this thread; 0: none.
pub fn pin(id: u32) -> Pin {
    if id == 0 {
        return Pin::NONE;
    }
    let mut recorded = RECORDED.lock();
    Pin { id: recorded.table.pin(id), generation: recorded.generation }
}

/// Do the stacks take so much that those that nothing names should go?
pub fn are_many() -> bool {
    ARE_MANY.load(Ordering::Relaxed)
}

/// Begins a search, to whose ids those that blocks and events name are to be added.
pub fn begin() -> Option<Ids> {
    RECORDED.lock().table.begin()
}

/// Ends a search that looked at `walked` blocks and events.
pub fn finish(ids: &Ids, walked: usize) {
    let mut recorded = RECORDED.lock();
    let old = recorded.table.finish(ids, walked);
    ARE_MANY.store(false, Ordering::Relaxed);
    drop(recorded);
    drop(old);
}

/// A copy of all stacks, for reading.
pub fn copy() -> Result<Stacks> {
    let mut copy = RECORDED.lock().table.stacks.to_be_read()?;
    copy.look_up()?;
    Ok(copy)
}

/// The largest id.
#[cfg(test)]
pub fn count() -> usize {
    RECORDED.lock().table.stacks.count()
}

/// How many stacks there are.
#[cfg(test)]
pub fn named() -> usize {
    let recorded = RECORDED.lock();
    let stacks = recorded.table.stacks();
    (1..=stacks.count() as u32).filter(|id| stacks.stack(*id).count() > 0).count()
}

/// Forgets all: there are no blocks any more.
pub fn forget() {
    let mut recorded = RECORDED.lock();
    let generation = recorded.generation.wrapping_add(1);
    let new = Recorded { table: StackTable::new(), generation };
    let old = std::mem::replace(&mut *recorded, new);
    ARE_MANY.store(false, Ordering::Relaxed);
    drop(recorded);
    drop(old);
}
