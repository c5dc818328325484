//! Whether anybody looks at allocations: one word, zero unless events are recorded, the stream
//! sanitizer is on, a thread uses a private pool or is in an observer, or freed memory is poisoned. So
//! a plain allocation or free pays for all of that with one load and one branch.
//!
//! A word that changes is seen at once by the thread that changed it; another thread may finish what
//! it has begun the plain way, as if it had come just before.

use std::sync::atomic::{AtomicU64, Ordering};

/// Who looks: a count each, so that they come and go independently.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Watcher {
    /// The recorder of history.
    History = 0,
    /// The stream sanitizer.
    Sanitizer = 4,
    /// What is done to memory that is freed, and what is told of it.
    Debugging = 8,
    /// Threads that are in an observer.
    Observer = 16,
    /// Threads that use private pools, and captures that have one.
    Route = 40,
}

static WATCHERS: AtomicU64 = AtomicU64::new(0);

/// Does anybody look?
#[inline(always)]
pub fn is_watched() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0
}

/// Does nobody look but one of these?
#[inline]
pub fn is_only(watcher: Watcher) -> bool {
    WATCHERS.load(Ordering::Relaxed) == 1 << watcher as u32
}

/// One more of these looks from now on.
pub fn begin(watcher: Watcher) {
    WATCHERS.fetch_add(1 << watcher as u32, Ordering::Relaxed);
}

/// One of these, which had begun, no longer does.
pub fn end(watcher: Watcher) {
    WATCHERS.fetch_sub(1 << watcher as u32, Ordering::Relaxed);
}
