//! Whether a thread is still alive: for state of a thread that other threads clean up.

use crate::base::error::Result;
use crate::base::thread::{Block, block, try_box};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

struct Shared {
    references: AtomicU32,
    has_ended: AtomicBool,
}

/// A reference to the shared state of a thread.
pub struct Lifetime(*const Shared);

// SAFETY: its fields are atomics, and live as long as a reference.
unsafe impl Send for Lifetime {}
// SAFETY: as above.
unsafe impl Sync for Lifetime {}

impl Lifetime {
    /// The lifetime of this thread.
    pub fn own() -> Result<Lifetime> {
        let place = &block().lifetime;
        if place.load(Ordering::Relaxed).is_null() {
            // The thread's own reference.
            let (references, has_ended) = (AtomicU32::new(1), AtomicBool::new(false));
            let shared = try_box(Shared { references, has_ended }, "a thread's state")?;
            place.store(Box::into_raw(shared).cast(), Ordering::Relaxed);
        }
        let shared = place.load(Ordering::Relaxed).cast_const().cast::<Shared>();
        // SAFETY: made above or before, and kept by the thread's reference.
        unsafe { &*shared }.references.fetch_add(1, Ordering::Relaxed);
        Ok(Lifetime(shared))
    }

    /// Is it the lifetime of this thread?
    pub fn is_own(&self) -> bool {
        std::ptr::eq(self.0, block().lifetime.load(Ordering::Relaxed).cast())
    }

    /// Has the thread ended?
    pub fn has_ended(&self) -> bool {
        // SAFETY: kept by this reference.
        unsafe { &*self.0 }.has_ended.load(Ordering::Acquire)
    }
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        // SAFETY: kept by this reference.
        if unsafe { &*self.0 }.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: made by `own` with Box::into_raw, and this was the last reference.
            drop(unsafe { Box::from_raw(self.0.cast_mut()) });
        }
    }
}

/// Marks the thread of a block as ended. Its destructors may call the library again; that gets a
/// new lifetime.
pub(crate) fn end(block: &Block) {
    let shared = block.lifetime.swap(std::ptr::null_mut(), Ordering::Relaxed).cast::<Shared>();
    if !shared.is_null() {
        let own = Lifetime(shared);
        // SAFETY: kept by this reference.
        unsafe { &*shared }.has_ended.store(true, Ordering::Release);
        drop(own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_know_that_a_thread_has_ended() {
        let (here, again) = (Lifetime::own().unwrap(), Lifetime::own().unwrap());
        assert!(here.is_own() && again.is_own() && !here.has_ended());
        let there = std::thread::spawn(|| {
            let own = Lifetime::own().unwrap();
            assert!(own.is_own() && !own.has_ended());
            end(block());
            own
        });
        let there = there.join().unwrap();
        assert!(!there.is_own() && there.has_ended() && !here.has_ended());
        end(block());
        assert!(here.has_ended());
    }
}
