//! The history events of pinned memory. They are recorded with the heap's lock held, so that the
//! events of an address are in order. Sizes are those of the blocks, as in PyTorch.

use super::HostMemory;
use super::heap::Heap;
use super::source::Memory;
use crate::memory::trace::history::{host_event, is_on, pending_stack, take_stack};
use crate::memory::trace::ring::Action;

impl HostMemory {
    /// Calls `add` with the stack of each live block, and with 0 for other indices.
    pub(in crate::memory) fn each_stack(&self, add: &mut dyn FnMut(u32)) {
        for heap in self.each_heap() {
            heap.blocks.all().for_each(|id| add(heap.blocks[id].stack()));
        }
    }
}

/// Records what happens to a block: before it is free, and after it is allocated.
#[inline(always)]
pub fn of_block(heap: &mut Heap, id: u32, actions: &[Action]) {
    if is_on() {
        push(heap, id, actions);
    }
}

#[cold]
fn push(heap: &mut Heap, id: u32, actions: &[Action]) {
    let (address, bytes) = (heap.address_of(id) as u64, heap.bytes_of(id) as u64);
    let block = &mut heap.blocks[id];
    let stack = match actions[0] {
        Action::FreeCompleted => block.stack(),
        // As in PyTorch, a free without frames of its own gets those of the allocation.
        _ => match take_stack() {
            0 => block.stack(),
            stack => stack,
        },
    };
    if actions[0] == Action::Alloc {
        block.set_stack(stack);
    }
    actions.iter().for_each(|action| host_event(*action, address, bytes, stack));
}

/// Records that a segment was allocated, or stays because the driver failed to free it; or that it
/// is about to be freed: another thread may get its addresses before the driver call returns.
pub fn of_segment(action: Action, memory: Memory) {
    if is_on() {
        host_event(action, memory.base as u64, memory.bytes as u64, pending_stack());
    }
}
