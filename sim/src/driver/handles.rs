//! Opaque handles: integers that are looked up in a table, never dereferenced.

use crate::base::code;
use std::collections::VecDeque;
use std::io::{self, Write};

/// Distance between the handles of neighbouring slots.
const STRIDE: usize = 64;
/// Number of handles of destroyed contexts that are distinguished from invalid ones.
const MOST_RETIRED: usize = 1 << 16;

/// A table of live objects under recycled handles. As in CUDA, the most recently freed handle is
/// used first.
pub(super) struct Handles<T> {
    base: usize,
    slots: Vec<Option<T>>,
    free: Vec<usize>,
    /// Slots of objects that ended with their context, the oldest first.
    retired: VecDeque<usize>,
    /// What uses of destroyed handles are reported as; `None`: they are not. Handles that are
    /// reported are not used again.
    reported_as: Option<&'static str>,
}

impl<T> Handles<T> {
    /// `kind` makes the handles of different tables distinct.
    pub(super) const fn new(kind: usize) -> Handles<T> {
        Handles {
            base: kind << 36,
            slots: Vec::new(),
            free: Vec::new(),
            retired: VecDeque::new(),
            reported_as: None,
        }
    }

    /// A table that reports uses of destroyed handles as those of `name`, if it is wanted.
    pub(super) const fn reporting(kind: usize, name: &'static str, is_wanted: bool) -> Handles<T> {
        let mut handles = Handles::new(kind);
        handles.reported_as = if is_wanted { Some(name) } else { None };
        handles
    }

    pub(super) fn insert(&mut self, object: T) -> usize {
        self.insert_with(|_| object)
    }

    /// Inserts an object that knows its handle.
    pub(super) fn insert_with(&mut self, object: impl FnOnce(usize) -> T) -> usize {
        let free = if self.reported_as.is_none() { self.free.pop() } else { None };
        let slot = free.unwrap_or(self.slots.len());
        let handle = self.base + slot * STRIDE;
        let object = object(handle);
        match self.slots.get_mut(slot) {
            Some(empty) => *empty = Some(object),
            None => self.slots.push(Some(object)),
        }
        handle
    }

    fn slot(&self, handle: usize) -> Option<usize> {
        let distance = handle.checked_sub(self.base)?;
        (distance % STRIDE == 0).then_some(distance / STRIDE)
    }

    #[inline]
    pub(super) fn get(&self, handle: usize) -> Option<&T> {
        self.slots.get(self.slot(handle)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, handle: usize) -> Option<&mut T> {
        let slot = self.slot(handle)?;
        self.slots.get_mut(slot)?.as_mut()
    }

    /// The object of a handle. The error distinguishes a handle of a destroyed context from an
    /// invalid one.
    #[inline]
    pub(super) fn find(&self, handle: usize) -> Result<&T, i32> {
        self.get(handle).ok_or_else(|| self.missing(handle))
    }

    #[cold]
    pub(super) fn missing(&self, handle: usize) -> i32 {
        match self.slot(handle) {
            Some(slot) if slot < self.slots.len() && !self.free.contains(&slot) => {
                code::CONTEXT_IS_DESTROYED
            }
            Some(slot) if slot < self.slots.len() => {
                self.report(handle);
                code::INVALID_HANDLE
            }
            _ => code::INVALID_HANDLE,
        }
    }

    fn report(&self, handle: usize) {
        if let Some(name) = self.reported_as {
            // A failure to write to stderr is ignored.
            let _ = writeln!(
                io::stderr(),
                "simulated machine: a call got {name} {handle:#x}, which was destroyed; the driver \
                 of a GPU may end the process there"
            );
        }
    }

    /// The handle of the first object for which `is_sought` is true.
    pub(super) fn handle_of(&self, is_sought: impl Fn(&T) -> bool) -> Option<usize> {
        let slot = self.slots.iter().position(|object| object.as_ref().is_some_and(&is_sought))?;
        Some(self.base + slot * STRIDE)
    }

    pub(super) fn remove(&mut self, handle: usize) -> Option<T> {
        let slot = self.slot(handle)?;
        let object = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(object)
    }

    /// Removes the objects for which `keep` is false and returns them.
    pub(super) fn extract(&mut self, mut keep: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for (slot, object) in self.slots.iter_mut().enumerate() {
            if let Some(object) = object.take_if(|object| !keep(object)) {
                self.free.push(slot);
                removed.push(object);
            }
        }
        removed
    }

    /// Removes the objects for which `keep` is false, with their context. Their handles are reused
    /// when many others have been removed so.
    pub(super) fn retire(&mut self, keep: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for (slot, object) in self.slots.iter_mut().enumerate() {
            if let Some(object) = object.take_if(|object| !keep(object)) {
                self.retired.push_back(slot);
                removed.push(object);
            }
        }
        let surplus = self.retired.len().saturating_sub(MOST_RETIRED);
        self.free.extend(self.retired.drain(..surplus));
        removed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.retired.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_recently_freed_handle_comes_first() {
        let mut handles = Handles::new(3);
        let (a, b, c) = (handles.insert('a'), handles.insert('b'), handles.insert('c'));
        assert_eq!(handles.remove(a), Some('a'));
        assert_eq!(handles.remove(c), Some('c'));
        assert_eq!(handles.remove(c), None);
        assert_eq!(handles.get(a), None);
        assert_eq!(handles.get(b + 1), None);
        assert_eq!(handles.get(usize::MAX), None);
        assert_eq!((handles.insert('d'), handles.insert('e')), (c, a));
        assert_eq!(handles.len(), 3);
        assert_eq!(handles.extract(|object| *object == 'b').len(), 2);
        assert_eq!(handles.len(), 1);
    }

    #[test]
    fn handles_that_are_reported_are_not_used_again() {
        let mut handles = Handles::reporting(3, "event", true);
        let a = handles.insert('a');
        assert_eq!(handles.remove(a), Some('a'));
        assert_ne!(handles.insert('b'), a);
        assert_eq!(handles.find(a), Err(code::INVALID_HANDLE));
        assert_eq!(handles.len(), 1);
    }

    #[test]
    fn handles_of_a_destroyed_context_are_distinguished() {
        let mut handles = Handles::new(3);
        let (a, b) = (handles.insert('a'), handles.insert('b'));
        assert_eq!(handles.retire(|object| *object == 'b'), ['a']);
        assert_eq!(handles.find(a), Err(code::CONTEXT_IS_DESTROYED));
        assert_eq!(handles.find(b), Ok(&'b'));
        assert_eq!(handles.len(), 1);
        let c = handles.insert('c');
        assert!(a != c, "never used again");
        assert_eq!(handles.remove(b), Some('b'));
        assert_eq!(handles.find(b), Err(code::INVALID_HANDLE));
        assert_eq!(handles.find(c + STRIDE), Err(code::INVALID_HANDLE));
        assert_eq!(handles.find(7), Err(code::INVALID_HANDLE));
    }
}
