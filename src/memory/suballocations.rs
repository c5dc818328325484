//! Blocks made known to a tool, so that it tells an access beside a block from one inside it:
//! compute-sanitizer sees whole segments otherwise. Only while it is asked for, and a tool listens.
//!
//! Segments of cuMemAlloc alone: of mapped memory compute-sanitizer (2026.1) registers nothing.

use crate::gpu::device::{ContextGuard, Device};
use crate::profiling::nvtx::memory as nvtx;
use crate::profiling::nvtx::memory::Heap;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_ON: AtomicBool = AtomicBool::new(false);
/// Segments may be known that came while it was on.
static WAS_ON: AtomicBool = AtomicBool::new(false);

/// Tells of segments that come from now on, or no longer.
pub(super) fn set(on: bool) {
    if on {
        nvtx::find_listener();
        WAS_ON.store(true, Ordering::Relaxed);
    }
    IS_ON.store(on, Ordering::Relaxed);
}

/// What compute-sanitizer must be told with: the context of the device, if anything is told at all.
pub(super) fn context(device: &Device) -> Option<ContextGuard> {
    if WAS_ON.load(Ordering::Relaxed) { device.enter().ok() } else { None }
}

/// A segment comes, of which nothing may be used but blocks.
pub(super) fn segment(address: u64, bytes: u64) -> Option<Heap> {
    if IS_ON.load(Ordering::Relaxed) { nvtx::add_heap(address, bytes) } else { None }
}

/// It goes.
pub(super) fn segment_goes(device: &Device, heap: Option<Heap>) {
    if let Some(heap) = heap {
        let _context = device.enter();
        nvtx::remove_heap(heap);
    }
}

/// A block of a segment is handed out, for so many bytes as were asked for. The caller has the
/// [`context`], as for all that follows.
pub(super) fn block(heap: Option<Heap>, address: u64, bytes: u64) {
    if let Some(heap) = heap {
        nvtx::add_region(heap, address, bytes);
    }
}

/// It is nobody's any more.
pub(super) fn block_goes(heap: Option<Heap>, address: u64) {
    if heap.is_some() {
        nvtx::remove_region(address);
    }
}
