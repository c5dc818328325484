//! What the history is told of pinned memory. The heap's lock is held, so that the events of an address
//! are in the order in which they happened; sizes are those of the blocks, as PyTorch has them here.

use super::HostMemory;
use super::heap::Heap;
use crate::memory::trace::history::{host_event, is_on, pending_stack, take_stack};
use crate::memory::trace::ring::Action;

impl HostMemory {
    /// Calls `add` with the stack of each live block, and with 0 for other indices.
    pub(in crate::memory) fn each_stack(&self, add: &mut impl FnMut(u32)) {
        for index in 0..self.heaps.len() {
            if let Some(heap) = &*self.heap(index) {
                heap.blocks.all().for_each(|id| add(heap.blocks[id].stack()));
            }
        }
    }
}

/// A block was taken.
#[inline(always)]
pub fn allocated(heap: &mut Heap, id: u32) {
    if is_on() {
        let stack = take_stack();
        heap.blocks[id].set_stack(stack);
        push(heap, id, Action::Alloc, stack);
    }
}

/// As PyTorch does it: where freeing has no frames of its own, those of the allocation stand.
fn stack_of_free(heap: &Heap, id: u32) -> u32 {
    match take_stack() {
        0 => heap.blocks[id].stack(),
        stack => stack,
    }
}

/// A block is about to be free at once.
#[inline(always)]
pub fn freed(heap: &Heap, id: u32) {
    if is_on() {
        let stack = stack_of_free(heap, id);
        push(heap, id, Action::FreeRequested, stack);
        push(heap, id, Action::FreeCompleted, stack);
    }
}

/// The host lets go of a block that streams use.
#[inline(always)]
pub fn free_requested(heap: &Heap, id: u32) {
    if is_on() {
        push(heap, id, Action::FreeRequested, stack_of_free(heap, id));
    }
}

/// A block that waited is about to be free.
#[inline(always)]
pub fn free_completed(heap: &Heap, id: u32) {
    if is_on() {
        push(heap, id, Action::FreeCompleted, heap.blocks[id].stack());
    }
}

#[cold]
fn push(heap: &Heap, id: u32, action: Action, stack: u32) {
    let address = heap.address_of(id) as u64;
    host_event(action, address, heap.bytes_of(id), stack);
}

/// A segment came from the driver, or stays because that did not take it.
pub fn segment_came(base: usize, bytes: usize) {
    if is_on() {
        host_event(Action::SegmentAlloc, base as u64, bytes as u64, pending_stack());
    }
}

/// A segment is about to go. It is told before the driver is asked, which may give its addresses to
/// another thread before it answers.
pub fn segment_goes(base: usize, bytes: usize) {
    if is_on() {
        host_event(Action::SegmentFree, base as u64, bytes as u64, 0);
    }
}
