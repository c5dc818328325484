//! The stacks of what is recorded. A stack is stored while an event, a block or a call names it.
//!
//! Events and blocks name a stack by its id alone: neither counts, so that a block that is freed while
//! nothing is recorded has nothing to give back. From time to time a search (`history.rs`) marks what
//! they name, and the other stacks go. The order of the search is blocks, then events, because an id
//! moves from a block to an event and never back. An id that is in neither has a [`Pin`]: it is the id of a
//! call that has not reached its block yet, or of a block in the table of `direct.rs`. A stack
//! that was pinned when the search began, is pinned when it ends, or was stored meanwhile stays.

use super::frames::{Ids, Named, Stacks};
use crate::error::Result;
use crate::lock::Mutex;
use crate::rank::Rank;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of an id besides its stack.
#[derive(Clone, Copy)]
struct Note {
    pins: u32,
    /// Was it stored, or found, since the last search began?
    is_new: bool,
}

struct Recorded {
    stacks: Stacks,
    /// One for each id, from 1 on.
    notes: Vec<Note>,
    /// How often all were forgotten. A pin of an earlier time pins nothing.
    generation: u32,
}

static RECORDED: Mutex<Recorded> =
    Mutex::new(Rank::LEAF, Recorded { stacks: Stacks::new(), notes: Vec::new(), generation: 0 });

/// Is a search for stacks that nothing names worth its time?
static ARE_MANY: AtomicBool = AtomicBool::new(false);

impl Recorded {
    fn note(&mut self, id: u32) -> Option<&mut Note> {
        self.notes.get_mut((id as usize).checked_sub(1)?)
    }

    fn pin(&mut self, id: u32) -> Pin {
        let generation = self.generation;
        match self.note(id) {
            Some(note) => {
                note.pins += 1;
                Pin { id, generation }
            }
            None => Pin::NONE,
        }
    }
}

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
        if recorded.generation == self.generation
            && let Some(note) = recorded.note(self.id)
        {
            note.pins = note.pins.saturating_sub(1);
        }
    }
}

/// Stores a stack, innermost frame first.
pub fn keep(named: &mut dyn Iterator<Item = Named<'_>>, native: &[usize]) -> Pin {
    let mut recorded = RECORDED.lock();
    let id = recorded.stacks.keep(named, native);
    ARE_MANY.store(recorded.stacks.are_many(), Ordering::Relaxed);
    let wanted = recorded.stacks.count();
    let missing = wanted.saturating_sub(recorded.notes.len());
    if recorded.notes.try_reserve(missing).is_err() {
        return Pin::NONE;
    }
    recorded.notes.resize(wanted, Note { pins: 0, is_new: false });
    if let Some(note) = recorded.note(id) {
        note.is_new = true;
    }
    recorded.pin(id)
}

/// Pins a stack that is pinned by this thread; 0: none.
pub fn pin(id: u32) -> Pin {
    if id == 0 { Pin::NONE } else { RECORDED.lock().pin(id) }
}

/// Do the stacks take so much that those that nothing names should go?
pub fn are_many() -> bool {
    ARE_MANY.load(Ordering::Relaxed)
}

/// Begins a search: the ids to which those that blocks and events name are to be added. One search is
/// made at a time. None without host memory.
pub fn begin() -> Option<Ids> {
    let mut recorded = RECORDED.lock();
    let mut ids = recorded.stacks.no_ids()?;
    for (index, note) in recorded.notes.iter_mut().enumerate() {
        note.is_new = false;
        if note.pins > 0 {
            ids.add(index as u32 + 1);
        }
    }
    Some(ids)
}

/// Ends a search that looked at `walked` blocks and events: the other stacks go.
pub fn finish(ids: Ids, walked: usize) {
    let mut recorded = RECORDED.lock();
    let Some(mut left) = recorded.stacks.no_ids() else { return };
    ids.iter().for_each(|id| left.add(id));
    let notes = recorded.notes.iter().enumerate();
    let in_use = notes.filter(|(_, note)| note.is_new || note.pins > 0);
    in_use.for_each(|(index, _)| left.add(index as u32 + 1));
    let old = recorded.stacks.keep_only(&left, walked);
    let count = recorded.stacks.count();
    recorded.notes.truncate(count);
    if recorded.notes.capacity() > 2 * count + 64 {
        recorded.notes.shrink_to(count);
    }
    ARE_MANY.store(false, Ordering::Relaxed);
    drop(recorded);
    drop(old);
}

/// A copy of all stacks, for reading.
pub fn copy() -> Result<Stacks> {
    let mut copy = RECORDED.lock().stacks.to_be_read()?;
    copy.look_up()?;
    Ok(copy)
}

/// The largest id.
#[cfg(test)]
pub fn count() -> usize {
    RECORDED.lock().stacks.count()
}

/// How many stacks there are.
#[cfg(test)]
pub fn named() -> usize {
    let recorded = RECORDED.lock();
    (1..=recorded.stacks.count() as u32).filter(|id| recorded.stacks.stack(*id).count() > 0).count()
}

/// Forgets all: there are no blocks any more.
pub fn forget() {
    let mut recorded = RECORDED.lock();
    let generation = recorded.generation.wrapping_add(1);
    let new = Recorded { stacks: Stacks::new(), notes: Vec::new(), generation };
    let old = std::mem::replace(&mut *recorded, new);
    ARE_MANY.store(false, Ordering::Relaxed);
    drop(recorded);
    drop(old);
}
