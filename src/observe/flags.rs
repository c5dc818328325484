//! Whether anybody looks at calls: one word, zero unless events are recorded, the stream sanitizer is on, a
//! thread uses a private pool or is in an observer, freed memory is poisoned, a tool is told of calls, turns
//! are kept, light fences do not work, or the library is not initialised. So a plain allocation or free pays for all of that with one load
//! and one branch.
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
    Sanitizer = 2,
    /// What is done to memory that is freed, and what is told of it.
    Debugging = 4,
    /// Threads that are in an observer.
    Observer = 8,
    /// Threads that use private pools, and captures that have one.
    Route = 32,
    /// A tool that is told of calls.
    Ranges = 56,
    /// Who keeps turns.
    Turns = 58,
    /// Full fences, where light ones do not work.
    Fences = 60,
    /// Forks, which wait until no other thread is inside; as long as the library is not initialised.
    Forks = 62,
}

/// All that look at memory.
pub const MEMORY: u64 = CALLS - 1;
/// All that look at every call.
pub const CALLS: u64 = !0 << Watcher::Ranges as u32;
/// Those whom threads meet before they enter.
pub const ENTRIES: u64 = !0 << Watcher::Turns as u32;
/// All.
pub const ALL: u64 = !0;

static WATCHERS: AtomicU64 = AtomicU64::new(1 << Watcher::Forks as u32);

/// Does any of these look?
#[inline(always)]
pub fn is_watched_by(these: u64) -> bool {
    WATCHERS.load(Ordering::Relaxed) & these != 0
}

/// Does anybody look at memory?
#[inline(always)]
pub fn is_watched() -> bool {
    is_watched_by(MEMORY)
}

/// Does nobody look at memory but one of these?
#[inline]
pub fn is_only(watcher: Watcher) -> bool {
    WATCHERS.load(Ordering::Relaxed) & MEMORY == 1 << watcher as u32
}

/// One more of these looks from now on.
pub fn begin(watcher: Watcher) {
    WATCHERS.fetch_add(1 << watcher as u32, Ordering::Relaxed);
}

/// One of these, which had begun, no longer does.
pub fn end(watcher: Watcher) {
    WATCHERS.fetch_sub(1 << watcher as u32, Ordering::Relaxed);
}

/// One of these, which looked or not, does from now on, or does not.
pub fn change(watcher: Watcher, looked: bool, looks: bool) {
    match (looked, looks) {
        (false, true) => begin(watcher),
        (true, false) => end(watcher),
        _ => (),
    }
}
