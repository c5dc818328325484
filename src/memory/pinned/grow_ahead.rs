//! Growing ahead: an internal thread obtains the next segment of a heap before it is needed.

use super::threads::{join, start};
use super::{HEAPS, HostMemory, growth};
use crate::base::sync::{self, Ordering};
use crate::base::thread;
use crate::gpu::gpus;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The bit that ends the thread.
const END: u32 = 1 << 31;

impl HostMemory {
    /// Is little of a heap free?
    fn is_low(&self, index: usize) -> bool {
        let heap = self.heap(index);
        heap.free_bytes < growth(index, heap.bytes) / 2
    }

    /// Requests the next segment of a heap of which little is free.
    #[cold]
    pub(super) fn request_if_low(&self, index: usize) {
        if !self.is_low(index) {
            return;
        }
        const STARTING: usize = usize::MAX;
        let thread = &self.helper;
        if thread.compare_exchange(0, STARTING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let started = start(run, std::ptr::from_ref(self).cast_mut().cast());
            thread.store(started.map_or(0, |thread| thread as usize), Ordering::Release);
        }
        self.wake_helper(1 << index);
    }

    fn wake_helper(&self, bit: u32) {
        // A repeated request has no effect while the first is pending.
        if self.wanted.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            sync::wake_one(&self.wanted);
        }
    }

    /// Ends the helper thread if it runs; no other thread makes requests.
    pub(super) fn end_helper(&self) {
        let thread = self.helper.swap(0, Ordering::AcqRel);
        if thread != 0 {
            self.wake_helper(END);
            join(thread as libc::pthread_t);
        }
    }

    fn grow_ahead(&self, index: usize) {
        let Ok(inside) = thread::enter() else { return };
        // A shutdown that has begun waits for this thread, and needs no segments.
        let Some(gpus) = gpus::existing(&inside) else { return };
        if self.is_low(index) {
            // A failure is ignored: it occurs again when the memory is needed, and is reported
            // then.
            let _ = self.grow(gpus, index, None);
        }
    }
}

extern "C" fn run(memory: *mut c_void) -> *mut c_void {
    // SAFETY: it does not move, and lives until `end_helper`.
    let memory = unsafe { &*memory.cast::<HostMemory>() };
    let wanted = &memory.wanted;
    loop {
        let bits = wanted.swap(0, Ordering::AcqRel);
        if bits & END != 0 {
            return std::ptr::null_mut();
        }
        if bits == 0 {
            sync::sleep_while(wanted, 0);
        }
        for index in (0..HEAPS).filter(|index| bits >> index & 1 == 1) {
            let _ = catch_unwind(AssertUnwindSafe(|| memory.grow_ahead(index)));
        }
    }
}
