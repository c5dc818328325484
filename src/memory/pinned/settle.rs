//! The deferred frees of pinned blocks, and the return of memory to the driver.

use super::directory::Place;
use super::heap::Heap;
use super::{HEAPS, HostMemory, events};
use crate::base::error::Result;
use crate::base::waiting;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::memory::device::settle::{Polled, poll};
use crate::memory::trace::history;
use crate::memory::trace::ring::Action;

impl HostMemory {
    /// Completes deferred frees: polls the streams that blocks wait for, and frees the blocks whose
    /// streams are done. A slow, captured or broken stream does not delay the blocks of other
    /// streams. Returns the first failure.
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
        let mut groups = heap.uses.take_groups();
        groups.retain_mut(|group| {
            let waits = heap.uses.waits(group);
            while !waits && let Some(id) = heap.uses.next_block(group) {
                self.complete(heap, id);
            }
            waits
        });
        heap.uses.put_back(groups);
        outcome
    }

    /// Makes a pending block wait for the streams that use it, or frees it.
    pub(super) fn defer(&self, heap: &mut Heap, id: u32) {
        match heap.blocks[id].uses {
            0 => self.complete(heap, id),
            uses => heap.blocks[id].uses = heap.uses.enqueue(uses, id),
        }
    }

    fn complete(&self, heap: &mut Heap, id: u32) {
        events::of_block(heap, id, &[Action::FreeCompleted]);
        self.active.count(-1, -heap.release(id));
    }

    /// Gives all unused memory back to the driver, which waits for the work of its devices. Tries
    /// everything, and returns the first failure. Segments that the driver fails to free stay in
    /// the cache.
    pub fn empty_cache(&self, gpus: &Gpus) -> Result<()> {
        waiting::refuse_in_callback()?;
        let _frames = history::before_free();
        let mut outcome = Ok(());
        for index in 0..HEAPS {
            let settled = self.settle(gpus, &mut self.heap(index));
            outcome = outcome.and(settled).and(self.give_back(gpus, index, false));
        }
        outcome
    }

    /// Frees the unused segments of a heap, or only those that must not be cached. Segments that
    /// the driver fails to free are cached. Returns the first failure.
    #[cold]
    pub(super) fn give_back(&self, gpus: &Gpus, index: usize, only_unwanted: bool) -> Result<()> {
        let (mut outcome, mut next) = (Ok(()), 0);
        loop {
            let detached = self.heap(index).detach(next, only_unwanted);
            let Some((segment, memory)) = detached else { return outcome };
            next = segment + 1;
            self.directory.remove(Place { memory, heap: index as u32, segment: segment as u32 });
            let given = self.source.give(gpus, memory);
            if given.is_err() && self.add(index, memory, None).is_err() {
                let _ = self.source.give(gpus, memory);
            }
            outcome = outcome.and(given);
        }
    }

    /// Frees everything. No other thread is inside, no work is pending, and `devices` have their
    /// contexts.
    pub(crate) fn close(&self, devices: &[Device]) {
        self.end_helper();
        let active = devices.iter().find(|device| device.has_context());
        let _context = active.and_then(|device| device.enter().ok());
        for index in 0..HEAPS {
            let (awaited, segments) = self.heap(index).take_all();
            for awaited in awaited.iter().filter(|awaited| !awaited.event.is_null()) {
                // SAFETY: ours, and nothing waits for it.
                let _ = unsafe { self.driver.cuEventDestroy(awaited.event) };
            }
            segments.iter().flatten().for_each(|segment| self.source.close_segment(segment.memory));
        }
        self.source.close();
        self.unregister_all();
    }
}
