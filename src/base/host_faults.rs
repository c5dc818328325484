//! Injected failures of host memory, for tests: an allocator that fails the n-th allocation on
//! request, and counts the bytes that the library holds. Only in builds with the feature
//! `host_faults`.
//!
//! It counts what the library allocates between entering and leaving. The simulated machine
//! replaces the driver, whose memory is not the library's: while a thread is in it, and on its own
//! threads, nothing is counted.

use crate::base::thread;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

thread_local! {
    /// Depth of driver calls of this thread.
    static DRIVER_DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Depth of library code that this thread runs before it is inside.
    static LIBRARY_DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Allocations until the one that fails; 0: none fails.
static REMAINING: AtomicU64 = AtomicU64::new(0);
static FOREVER: AtomicBool = AtomicBool::new(false);
static FIRED: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicI64 = AtomicI64::new(0);

/// Makes the `nth` allocation from now fail, once or for ever; 0: none.
pub fn set(nth: u64, forever: bool) {
    REMAINING.store(0, Ordering::Relaxed);
    FOREVER.store(forever, Ordering::Relaxed);
    REMAINING.store(nth, Ordering::Relaxed);
}

/// Number of allocations that were made to fail.
pub fn fired() -> u64 {
    FIRED.load(Ordering::Relaxed)
}

/// Bytes that the library has allocated and not freed.
pub fn held() -> i64 {
    HELD.load(Ordering::Relaxed)
}

/// Stages of a shutdown at which a test may check what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Every device has freed what it held; contexts, whose end frees the rest, are alive.
    Closed,
    /// Contexts are released; the backend is closed next.
    Released,
}

static OBSERVER: OnceLock<fn(Stage)> = OnceLock::new();

/// Calls a function at each stage of every shutdown; only the first call has an effect.
pub fn observe(observer: fn(Stage)) {
    let _ = OBSERVER.set(observer);
}

pub(crate) fn reached(stage: Stage) {
    if let Some(observer) = OBSERVER.get() {
        observer(stage);
    }
}

/// Ends what `in_driver` and `in_library` begin.
pub struct Scope(&'static std::thread::LocalKey<Cell<u32>>);

impl Drop for Scope {
    fn drop(&mut self) {
        let _ = self.0.try_with(|depth| depth.set(depth.get() - 1));
    }
}

fn begin(key: &'static std::thread::LocalKey<Cell<u32>>) -> Scope {
    let _ = key.try_with(|depth| depth.set(depth.get() + 1));
    Scope(key)
}

/// Marks that this thread is in the driver from here on.
pub fn in_driver() -> Scope {
    begin(&DRIVER_DEPTH)
}

/// Marks that this thread is in the library from here on, although it has not entered.
pub fn in_library() -> Scope {
    begin(&LIBRARY_DEPTH)
}

fn is_counted() -> bool {
    let depth = |key: &'static std::thread::LocalKey<Cell<u32>>| key.try_with(Cell::get);
    let theirs = depth(&DRIVER_DEPTH).unwrap_or(1) > 0;
    !theirs && (depth(&LIBRARY_DEPTH).unwrap_or(0) > 0 || thread::is_inside())
}

/// Counts one allocation; true: it fails.
fn fails() -> bool {
    if REMAINING.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let forever = FOREVER.load(Ordering::Relaxed);
    let count = |left: u64| match left {
        0 => None,
        1 if forever => Some(1),
        _ => Some(left - 1),
    };
    let fires = REMAINING
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, count)
        .is_ok_and(|was| was == 1);
    if fires {
        FIRED.fetch_add(1, Ordering::Relaxed);
    }
    fires
}

/// The system's allocator, with a word before each block that says whether it is counted.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Size of the prefix with the word, which keeps the block aligned, and the whole layout.
fn widened(layout: Layout) -> Option<(usize, Layout)> {
    let room = layout.align().max(align_of::<u64>());
    let size = layout.size().checked_add(room)?;
    Some((room, Layout::from_size_align(size, room).ok()?))
}

// SAFETY: blocks are the system's plus `room` bytes, consistently.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let counts = is_counted();
        let Some((room, whole)) = widened(layout) else { return std::ptr::null_mut() };
        if counts && fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: not of size 0.
        let base = unsafe { System.alloc(whole) };
        if base.is_null() {
            return base;
        }
        if counts {
            HELD.fetch_add(layout.size() as i64, Ordering::Relaxed);
        }
        // SAFETY: the block is `room` bytes longer than asked for.
        let block = unsafe { base.add(room) };
        // SAFETY: the last word of that room.
        let word = unsafe { block.cast::<u64>().sub(1) };
        // SAFETY: as above, and aligned, as `room` and the block are.
        unsafe { word.write(u64::from(counts)) };
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some((room, whole)) = widened(layout) else { return };
        // SAFETY: the last word of the room before the block.
        let word = unsafe { block.cast::<u64>().sub(1) };
        // SAFETY: written by `alloc`.
        if unsafe { word.read() } != 0 {
            HELD.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        }
        // SAFETY: the room before the block.
        let base = unsafe { block.sub(room) };
        // SAFETY: from `alloc` with this layout.
        unsafe { System.dealloc(base, whole) };
    }
}
