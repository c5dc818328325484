//! The flag word: zero unless a watcher is active. Watchers are: the recorder of events, the stream
//! sanitizer, threads that use a private pool or are in an observer, poisoning of freed memory, a
//! tool that receives calls, a thread scheduler, full fences, and an uninitialised library. So a
//! plain allocation or free checks all of them with one load and one branch.
//!
//! The thread that changes the word sees the change at once. Another thread may still finish a call
//! by the plain path, as if the call had come before the change.

use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of watcher: a bit field of the word that counts the active ones.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Watcher {
    /// The recorder of history.
    History = 0,
    /// The stream sanitizer.
    Sanitizer = 2,
    /// Poisoning of freed memory, and tools that receive allocations.
    Debugging = 4,
    /// Threads that are in an observer.
    Observer = 8,
    /// Threads that use private pools, and captures that have one.
    Route = 32,
    /// A tool that receives calls.
    Ranges = 56,
    /// A thread scheduler.
    Turns = 58,
    /// Full fences, where light ones are not enough.
    Fences = 60,
    /// Forks that wait until no other thread is inside, as long as the library is not initialised.
    Forks = 62,
}

/// All watchers of memory.
pub const MEMORY: u64 = CALLS - 1;
/// Watchers of routes alone.
pub const ROUTES: u64 = (1 << Watcher::Ranges as u32) - (1 << Watcher::Route as u32);
/// All watchers of every call.
pub const CALLS: u64 = !0 << Watcher::Ranges as u32;
/// All watchers that a thread checks before it enters.
pub const ENTRIES: u64 = !0 << Watcher::Turns as u32;
/// All watchers.
pub const ALL: u64 = !0;

static WATCHERS: AtomicU64 = AtomicU64::new(1 << Watcher::Forks as u32);

/// Is any of these active?
#[inline(always)]
pub fn is_watched_by(these: u64) -> bool {
    WATCHERS.load(Ordering::Relaxed) & these != 0
}

/// Is any watcher of memory active?
#[inline(always)]
pub fn is_watched() -> bool {
    is_watched_by(MEMORY)
}

/// Is `watcher`, with a count of 1, the only active watcher of memory?
#[inline]
pub fn is_only(watcher: Watcher) -> bool {
    WATCHERS.load(Ordering::Relaxed) & MEMORY == 1 << watcher as u32
}

/// Adds one active watcher.
pub fn begin(watcher: Watcher) {
    WATCHERS.fetch_add(1 << watcher as u32, Ordering::Relaxed);
}

/// Removes one active watcher.
pub fn end(watcher: Watcher) {
    WATCHERS.fetch_sub(1 << watcher as u32, Ordering::Relaxed);
}

/// Updates the count after a watcher changed from `looked` to `looks`.
pub fn change(watcher: Watcher, looked: bool, looks: bool) {
    match (looked, looks) {
        (false, true) => begin(watcher),
        (true, false) => end(watcher),
        _ => (),
    }
}
