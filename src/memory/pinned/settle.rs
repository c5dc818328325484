//! The deferred frees of pinned blocks, and the return of memory to the driver.

use super::heap::{Detached, Heap};
use super::{HostMemory, events};
use crate::base::error::Result;
use crate::base::waiting;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::memory::device::settle::{Polled, poll};

impl HostMemory {
    /// Completes deferred frees: polls the streams that blocks wait for, and frees the blocks whose
    /// streams are done. A slow, captured or broken stream does not delay the blocks of other
    /// streams.
    #[inline]
    pub(super) fn settle(&self, gpus: &Gpus, heap: &mut Heap) -> Result<()> {
        if heap.uses.is_queue_empty() { Ok(()) } else { self.settle_slowly(gpus, heap) }
    }

    #[cold]
    fn settle_slowly(&self, gpus: &Gpus, heap: &mut Heap) -> Result<()> {
        let (mut index, mut relaxed, mut outcome) = (0, None, Ok(()));
        while index < heap.uses.awaited.len() {
            match poll(gpus, &mut heap.uses, index, &mut relaxed) {
                Ok(Polled::Done) => continue,
                Ok(_) => (),
                Err(error) => outcome = outcome.and(Err(error)),
            }
            index += 1;
        }
        while let Some(mut group) = heap.uses.take_completed() {
            while let Some(id) = heap.uses.next_block(&mut group) {
                events::free_completed(heap, id);
                self.counts.count_free(heap.release(id));
            }
        }
        outcome
    }

    /// Gives all unused memory back to the driver, which waits for the work of its devices. Tries
    /// everything, and returns the first failure. Segments that the driver fails to free stay in
    /// the cache.
    pub fn empty_cache(&self, gpus: &Gpus) -> Result<()> {
        waiting::refuse_in_callback()?;
        let mut outcome = Ok(());
        for index in 0..self.heaps.len() {
            if let Some(heap) = self.heap(index).as_deref_mut() {
                outcome = outcome.and(self.settle(gpus, heap));
            }
            let mut next = 0;
            loop {
                let detached =
                    self.heap(index).as_deref_mut().and_then(|heap| heap.detach(next, false));
                let Some(detached) = detached else { break };
                next = detached.segment as usize + 1;
                outcome = outcome.and(self.give(gpus, index, detached));
            }
        }
        outcome
    }

    /// Frees the segments that must not be cached. Segments that the driver fails to free are
    /// cached after all.
    #[cold]
    pub(super) fn give_unwanted(&self, gpus: &Gpus, index: usize) {
        loop {
            let detached = self.heap(index).as_deref_mut().and_then(|heap| heap.detach(0, true));
            let Some(detached) = detached else { return };
            let _ = self.give(gpus, index, detached);
        }
    }

    fn give(&self, gpus: &Gpus, index: usize, detached: Detached) -> Result<()> {
        let Detached { segment, base, bytes, origin } = detached;
        let given = self.source.give(gpus, &self.counts, (base, bytes, origin));
        // From here on the driver may return the addresses to another thread.
        if given.is_ok() {
            self.directory.remove(base, index as u32, segment);
        }
        if let Some(heap) = self.heap(index).as_deref_mut() {
            if given.is_ok() {
                heap.remove(segment);
            } else {
                heap.reattach(segment);
            }
        }
        given
    }

    /// Frees everything. No other thread is inside, no work is pending, and `devices` have their
    /// contexts.
    pub(crate) fn close(&self, devices: &[Device]) {
        self.end_helper();
        let active = devices.iter().find(|device| device.has_context());
        let _context = active.and_then(|device| device.enter().ok());
        for index in 0..self.heaps.len() {
            let heap = self.heap(index).take();
            let Some(mut heap) = heap else { continue };
            for awaited in heap.uses.awaited.drain(..).filter(|awaited| !awaited.event.is_null()) {
                // SAFETY: ours, and nothing waits for it.
                let _ = unsafe { self.driver.cuEventDestroy(awaited.event) };
            }
            for segment in heap.segments.iter().flatten() {
                self.source.close_segment(
                    &self.counts,
                    segment.base,
                    segment.bytes,
                    segment.origin,
                );
            }
        }
        self.source.close(&self.counts);
    }
}
