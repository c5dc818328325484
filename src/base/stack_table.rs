//! A table of stacks. A stack stays while it is pinned, or while a search finds a reference to it.
//! `memory/trace/stacks.rs` describes the searches.

use crate::base::frames::{Context, Ids, Named, Stacks};

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
    pub fn keep(
        &mut self,
        context: Option<Context>,
        named: &mut dyn Iterator<Item = Named<'_>>,
        native: &[usize],
    ) -> u32 {
        let id = self.stacks.intern(context, named, native);
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
    pub fn pin(&mut self, id: u32) -> u32 {
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
