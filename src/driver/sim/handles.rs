//! Opaque handles: numbers that are looked up, never dereferenced.

/// Distance between the handles of neighbouring slots.
const STRIDE: usize = 64;

/// A table of live objects under recycled handles: the most recently freed comes first, as in CUDA.
pub(super) struct Handles<T> {
    base: usize,
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Handles<T> {
    /// `kind` keeps the handles of different tables apart.
    pub(super) const fn new(kind: usize) -> Handles<T> {
        Handles { base: kind << 36, slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, object: T) -> usize {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            Some(empty) => *empty = Some(object),
            None => self.slots.push(Some(object)),
        }
        self.base + slot * STRIDE
    }

    fn slot(&self, handle: usize) -> Option<usize> {
        let distance = handle.checked_sub(self.base)?;
        (distance % STRIDE == 0).then_some(distance / STRIDE)
    }

    #[inline]
    pub(super) fn get(&self, handle: usize) -> Option<&T> {
        self.slots.get(self.slot(handle)?)?.as_ref()
    }

    pub(super) fn remove(&mut self, handle: usize) -> Option<T> {
        let slot = self.slot(handle)?;
        let object = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(object)
    }

    /// Removes the objects for which `keep` is false, and gives them.
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

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
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
}
