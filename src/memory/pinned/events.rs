//! The history events of pinned memory. They are recorded with the heap's lock held, so that the
//! events of an address are in order. Sizes are those of the blocks, as in PyTorch.

use super::HostMemory;
use super::heap::Heap;
use crate::memory::trace::history::{host_event, is_on, pending_stack, take_stack};
use crate::memory::trace::ring::Action;

impl HostMemory {
    /// Calls `add` with the stack of each live block, and with 0 for other indices.
    pub(in crate::memory) fn each_stack(&self, add: &mut dyn FnMut(u32)) {
        for index in 0..self.heaps.len() {
            if let Some(heap) = &*self.heap(index) {
                heap.blocks.all().for_each(|id| add(heap.blocks[id].stack()));
            }
        }
    }
}

/// Records that a block was allocated.
#[inline(always)]
pub fn allocated(heap: &mut Heap, id: u32) {
    if is_on() {
        let stack = take_stack();
        heap.blocks[id].set_stack(stack);
        push(heap, id, Action::Alloc, stack);
    }
}

/// As in PyTorch, a free without frames of its own gets those of the allocation.
fn stack_of_free(heap: &Heap, id: u32) -> u32 {
    match take_stack() {
        0 => heap.blocks[id].stack(),
        stack => stack,
    }
}

/// Records a block that is freed at once.
#[inline(always)]
pub fn freed(heap: &Heap, id: u32) {
    if is_on() {
        let stack = stack_of_free(heap, id);
        push(heap, id, Action::FreeRequested, stack);
        push(heap, id, Action::FreeCompleted, stack);
    }
}

/// Records that a block was freed which streams still use.
#[inline(always)]
pub fn free_requested(heap: &Heap, id: u32) {
    if is_on() {
        push(heap, id, Action::FreeRequested, stack_of_free(heap, id));
    }
}

/// Records that a pending block is about to become free.
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

/// Records that a segment was allocated, or stays because the driver failed to free it.
pub fn segment_added(base: usize, bytes: usize) {
    if is_on() {
        host_event(Action::SegmentAlloc, base as u64, bytes as u64, pending_stack());
    }
}

/// Records that a segment is about to be freed. This comes before the driver call, because another
/// thread may get its addresses before that call returns.
pub fn segment_removed(base: usize, bytes: usize) {
    if is_on() {
        host_event(Action::SegmentFree, base as u64, bytes as u64, 0);
    }
}
