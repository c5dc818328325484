//! The next segment of a heap, got by a thread of the library's own before it is needed.

use super::threads::{Helper, Helps};
use super::{HostMemory, SHARDS, growth};
use crate::base::sync::Ordering;
use crate::base::thread;
use crate::runtime;

impl HostMemory {
    /// Asks the helper for the next segment of a heap, if there is none to spare.
    #[cold]
    pub(super) fn ask_ahead(&self, index: usize) {
        const STARTING: usize = usize::MAX;
        let thread = &self.helper_thread;
        if thread.compare_exchange(0, STARTING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let started = Helper::begin(self);
            thread.store(started.map_or(0, |thread| thread as usize), Ordering::Release);
        }
        self.helper.ask(index as u32);
    }

    /// Ends the helper, if it runs; nobody asks any more.
    pub(super) fn end_ahead(&self) {
        let thread = self.helper_thread.swap(0, Ordering::AcqRel);
        if thread != 0 {
            self.helper.end(thread as libc::pthread_t);
        }
    }
}

impl Helps for HostMemory {
    fn helper(&self) -> &Helper {
        &self.helper
    }

    fn help(&self, bit: u32) {
        let Ok(inside) = thread::enter() else { return };
        // A shutdown that has begun waits for this thread, and wants nothing any more.
        let Some(runtime) = runtime::existing(&inside) else { return };
        let index = bit as usize;
        if runtime.generation != self.generation || index >= self.heaps.len() {
            return;
        }
        let (free, bytes) =
            self.heap(index).as_deref().map_or((0, 0), |heap| (heap.free_bytes, heap.bytes));
        if free < growth(index / SHARDS, bytes) / 2 {
            let _ = self.grow(runtime, index, None);
        }
    }
}
