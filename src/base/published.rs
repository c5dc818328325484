//! A value that threads read without a lock, and that is replaced as a whole.

use crate::base::retired::Reclaimable;
use crate::base::sync::{self, AtomicPtr, Ordering};
use crate::base::thread;
use crate::base::waiting;
use std::ptr::null_mut;

/// A value, or none.
pub struct Published<T>(AtomicPtr<T>);

impl<T> Published<T> {
    sync::constant! {
        /// No value.
        pub fn new() -> Published<T> {
            Published(AtomicPtr::new(null_mut()))
        }
    }

    /// Is there a value?
    #[inline(always)]
    pub fn is_some(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_null()
    }

    /// The value, which lives until this thread leaves the library or waits.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        waiting::assert_awake();
        // SAFETY: NULL or a value; a replaced one is dropped after the threads have left that were
        // inside, as this thread is.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Replaces the value. Returns the old one, which other threads may still read: it is to be
    /// passed to [`thread::retire`] while no lock is held.
    #[must_use]
    pub fn replace(&self, new: Option<Box<Reclaimable<T>>>) -> Option<Box<Reclaimable<T>>> {
        let old = self.0.swap(new.map_or(null_mut(), Reclaimable::into_value), Ordering::AcqRel);
        // SAFETY: from `into_value`, and no longer reachable.
        (!old.is_null()).then(|| unsafe { Reclaimable::from_value(old) })
    }
}

impl<T: Send + 'static> Published<T> {
    /// Replaces the value; the caller holds no lock.
    pub fn set(&self, new: Option<Box<Reclaimable<T>>>) {
        self.replace(new).into_iter().for_each(thread::retire);
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        drop(self.replace(None));
    }
}
