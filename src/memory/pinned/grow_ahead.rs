//! Growing ahead: an internal thread obtains the next segment of a heap before it is needed.

use super::threads::{Helper, HelperOwner};
use super::{HostMemory, SHARDS, growth};
use crate::base::sync::Ordering;
use crate::base::thread;
use crate::gpu::gpus;

impl HostMemory {
    /// Requests the next segment of a heap from the helper thread, which is started at the first
    /// request.
    #[cold]
    pub(super) fn request_segment(&self, index: usize) {
        const STARTING: usize = usize::MAX;
        let thread = &self.helper_thread;
        if thread.compare_exchange(0, STARTING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let started = Helper::begin(self);
            thread.store(started.map_or(0, |thread| thread as usize), Ordering::Release);
        }
        self.helper.request(index as u32);
    }

    /// Ends the helper thread if it runs; no other thread makes requests.
    pub(super) fn end_helper(&self) {
        let thread = self.helper_thread.swap(0, Ordering::AcqRel);
        if thread != 0 {
            self.helper.end(thread as libc::pthread_t);
        }
    }
}

impl HelperOwner for HostMemory {
    fn helper(&self) -> &Helper {
        &self.helper
    }

    fn perform(&self, bit: u32) {
        let Ok(inside) = thread::enter() else { return };
        // A shutdown that has begun waits for this thread, and needs no segments.
        let Some(gpus) = gpus::existing(&inside) else { return };
        let index = bit as usize;
        if gpus.generation != self.generation || index >= self.heaps.len() {
            return;
        }
        let (free, bytes) =
            self.heap(index).as_deref().map_or((0, 0), |heap| (heap.free_bytes, heap.bytes));
        if free < growth(index / SHARDS, bytes) / 2 {
            let _ = self.grow(gpus, index, None);
        }
    }
}
