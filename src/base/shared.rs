//! A reference-counted value that reports an allocation failure as an error; std's Arc would abort.

use crate::base::error::Result;
use crate::base::thread::try_box;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

struct Counted<T> {
    owners: AtomicUsize,
    value: T,
}

/// An owner of the value.
pub struct Shared<T>(NonNull<Counted<T>>);

// SAFETY: as for Arc: every owner has the same access, and any thread may be the last owner.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Creates the value with its first owner.
    pub fn new(value: T, what: &'static str) -> Result<Shared<T>> {
        let counted = try_box(Counted { owners: AtomicUsize::new(1), value }, what)?;
        Ok(Shared(NonNull::from(Box::leak(counted))))
    }

    /// Adds an owner.
    pub fn share(&self) -> Shared<T> {
        self.counted().owners.fetch_add(1, Ordering::Relaxed);
        Shared(self.0)
    }

    /// Do both own the same value?
    pub fn is(&self, other: &Shared<T>) -> bool {
        self.0 == other.0
    }

    /// Mutable access, if this is the only owner.
    pub fn alone(&mut self) -> Option<&mut T> {
        if self.counted().owners.load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: the only owner is borrowed for as long, so that no other can be created.
        Some(&mut unsafe { self.0.as_mut() }.value)
    }

    fn counted(&self) -> &Counted<T> {
        // SAFETY: it lives as long as an owner.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if self.counted().owners.fetch_sub(1, Ordering::Release) == 1 {
            // The accesses of the other owners happen before the drop.
            fence(Ordering::Acquire);
            // SAFETY: from Box::leak, and this was the last owner.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Noted<'a>(&'a AtomicUsize);

    impl Drop for Noted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_last_owner_ends_it() {
        let ends = AtomicUsize::new(0);
        let mut first = Shared::new(Noted(&ends), "a test").unwrap();
        assert!(first.alone().is_some());
        let second = first.share();
        assert!(first.alone().is_none());
        assert!(first.is(&second));
        std::thread::scope(|scope| {
            scope.spawn(move || drop(first));
        });
        assert_eq!(ends.load(Ordering::Relaxed), 0);
        drop(second);
        assert_eq!(ends.load(Ordering::Relaxed), 1);
    }
}
