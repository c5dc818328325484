//! Reports blocks to compute-sanitizer, so that it tells an access beside a block from one inside
//! it. Otherwise it sees whole segments. Blocks are reported only if this is turned on and a tool
//! listens.
//!
//! Only segments of cuMemAlloc are reported: of mapped memory compute-sanitizer (2026.1) registers
//! nothing.

use crate::gpu::device::{ContextGuard, Device};
use crate::profiling::nvtx::memory as nvtx;
use crate::profiling::nvtx::memory::Heap;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_ON: AtomicBool = AtomicBool::new(false);
/// Was it ever on? Then segments of that time may be known to the tool.
static WAS_ON: AtomicBool = AtomicBool::new(false);

/// Turns reports on or off for segments that come from now on.
pub(in crate::memory) fn set(on: bool) {
    if on {
        nvtx::find_listener();
        WAS_ON.store(true, Ordering::Relaxed);
    }
    IS_ON.store(on, Ordering::Relaxed);
}

/// The context of the device, which is current in reports to compute-sanitizer, if anything may be
/// reported.
pub(in crate::memory) fn context(device: &Device) -> Option<ContextGuard> {
    if WAS_ON.load(Ordering::Relaxed) { device.enter().ok() } else { None }
}

/// Reports a new segment, of which only blocks may be used.
pub(in crate::memory) fn segment(address: u64, bytes: u64) -> Option<Heap> {
    if IS_ON.load(Ordering::Relaxed) { nvtx::add_heap(address, bytes) } else { None }
}

/// Reports that a segment is gone.
pub(in crate::memory) fn report_segment_end(device: &Device, heap: Option<Heap>) {
    if let Some(heap) = heap {
        let _context = device.enter();
        nvtx::remove_heap(heap);
    }
}

/// Reports an allocated block of a segment, with its requested bytes. As for all following
/// functions, the caller has the [`context`].
pub(in crate::memory) fn block(heap: Option<Heap>, address: u64, bytes: u64) {
    if let Some(heap) = heap {
        nvtx::add_region(heap, address, bytes);
    }
}

/// Reports that a block is freed.
pub(in crate::memory) fn report_free(heap: Option<Heap>, address: u64) {
    if heap.is_some() {
        nvtx::remove_region(address);
    }
}
