//! The deferred frees of pinned blocks, and the return of memory to the driver.

use super::heap::{Detached, Heap};
use super::{HostMemory, events};
use crate::base::error::Result;
use crate::base::waiting;
use crate::driver::sys::CUevent;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::finished;
use crate::memory::arena::deferred_free::Batch;
use crate::memory::device::stream_end::{ordering_stream, record_end};

impl HostMemory {
    /// Completes deferred frees: closes open batches by recording an event, and frees the blocks of
    /// completed batches. A slow, captured or broken stream does not delay the blocks of other
    /// streams.
    #[inline]
    pub(super) fn settle(&self, gpus: &Gpus, heap: &mut Heap) -> Result<()> {
        if heap.deferred.is_empty() { Ok(()) } else { self.settle_slowly(gpus, heap) }
    }

    #[cold]
    fn settle_slowly(&self, gpus: &Gpus, heap: &mut Heap) -> Result<()> {
        heap.enqueue_overflow();
        let _relaxed = Relaxed::enter(self.driver);
        let mut outcome = Ok(());
        let mut index = 0;
        while index < heap.deferred.batches.len() {
            let is_behind = heap.deferred.is_behind(index);
            let Some(batch) = heap.deferred.batches.get_mut(index) else { break };
            let passed = if is_behind { Ok(false) } else { self.has_passed(gpus, batch) };
            match passed {
                Ok(true) => self.complete_batch(gpus, heap, index),
                Ok(false) => index += 1,
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    index += 1;
                }
            }
        }
        outcome
    }

    /// Frees the blocks of a batch whose stream is done with them.
    fn complete_batch(&self, gpus: &Gpus, heap: &mut Heap, index: usize) {
        let mut batch = heap.deferred.batches.remove(index);
        // SAFETY: streams that batches name stay (`mark_streams`).
        let device = unsafe { &*batch.stream }.device();
        if !batch.event.is_null()
            && let Ok(device) = gpus.device(device)
        {
            device.events.give_untimed(batch.event);
        }
        while let Some(id) = heap.uses.pop(&mut batch) {
            let block = &mut heap.blocks[id];
            block.waits = block.waits.saturating_sub(1);
            if block.waits == 0 && block.uses == 0 {
                events::free_completed(heap, id);
                self.counts.count_free(heap.release(id));
            }
        }
    }

    /// Is a batch's stream done with it? Records the batch's event first if it has none.
    fn has_passed(&self, gpus: &Gpus, batch: &mut Batch) -> Result<bool> {
        // SAFETY: streams that batches name stay (`mark_streams`).
        let stream = unsafe { &*batch.stream };
        let device = gpus.device(stream.device())?;
        let _context = device.enter()?;
        let mut event = batch.event;
        if event.is_null() {
            event = match stream.end_state() {
                EndState::Gone(None) => return Ok(true),
                EndState::Gone(Some(external_life)) => external_life as CUevent,
                // Only a wait for the whole device would tell.
                EndState::Lost => return Ok(false),
                EndState::Alive(_named) => {
                    let asked = ordering_stream(device, stream);
                    match asked.unless_captured(gpus, || asked.is_done(gpus))? {
                        None => return Ok(false),
                        Some(true) => return Ok(true),
                        Some(false) => (),
                    }
                    // The stream is busy, and will hardly be done once the event is recorded.
                    if let Some(event) = record_end(gpus, device, stream)? {
                        batch.event = event;
                    }
                    return Ok(false);
                }
            };
        }
        // SAFETY: our event, recorded.
        finished(unsafe { self.driver.cuEventQuery(event) })
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
            for batch in heap.deferred.batches.drain(..).filter(|batch| !batch.event.is_null()) {
                // SAFETY: ours, and nothing waits for it.
                let _ = unsafe { self.driver.cuEventDestroy(batch.event) };
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
