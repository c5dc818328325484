//! Memory that graphs allocate and free. Its addresses are fixed at capture. A block lives as long
//! as a graph that uses it, or while a launch has allocated it and it was not freed.

use super::address_space::{Access, Purpose};
use super::arguments::require;
use super::config::GRANULARITY;
use super::graph::{Node, Work};
use super::queue::Stream;
use super::sync::lock;
use super::{Machine, capture, pool};
use crate::driver::code;
use crate::driver::sys::CUmemoryPool;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The blocks, by address.
#[derive(Default)]
pub(super) struct GraphMemory {
    blocks: Mutex<BTreeMap<usize, Weak<Block>>>,
    /// Blocks that a launch has allocated and that were not freed.
    live: Mutex<BTreeMap<usize, Arc<Block>>>,
}

/// A block.
pub(super) struct Block {
    machine: Weak<Machine>,
    pub(super) address: usize,
    /// The requested size.
    pub(super) bytes: usize,
    live: AtomicBool,
}

impl Block {
    pub(super) fn is_live(&self) -> bool {
        self.live.load(Ordering::Relaxed)
    }

    /// Marks the block allocated, at a launch.
    pub(super) fn take(self: &Arc<Self>, machine: &Machine) {
        self.live.store(true, Ordering::Relaxed);
        lock(&machine.graph_memory.live).insert(self.address, Arc::clone(self));
    }

    /// Marks the block free; an error if it was not allocated.
    pub(super) fn free(&self, machine: &Machine) -> Result<(), i32> {
        require(self.live.swap(false, Ordering::Relaxed), code::INVALID_VALUE)?;
        let kept = lock(&machine.graph_memory.live).remove(&self.address);
        drop(kept);
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A machine that is powered off has freed all memory.
        let Some(machine) = self.machine.upgrade() else { return };
        lock(&machine.graph_memory.blocks).remove(&self.address);
        let bytes = self.bytes.next_multiple_of(GRANULARITY);
        // Only this unmaps a graph's memory, so it cannot fail.
        let _ = machine.memory.free_mapped(self.address, bytes);
    }
}

/// The block that begins at an address.
pub(super) fn find(machine: &Machine, address: usize) -> Option<Arc<Block>> {
    lock(&machine.graph_memory.blocks).get(&address).and_then(Weak::upgrade)
}

/// Start and requested size of the block that contains an address.
pub(super) fn around(machine: &Machine, address: usize) -> Option<(usize, usize)> {
    let blocks = lock(&machine.graph_memory.blocks);
    let (start, found) = blocks.range(..=address).next_back()?;
    let (start, block) = (*start, found.upgrade()?);
    // The reference may be the last, so it is dropped outside the lock.
    drop(blocks);
    (address - start < block.bytes).then_some((start, block.bytes))
}

/// Records an allocation on a captured stream; it has the pool's access.
pub(super) fn allocate(
    machine: &Arc<Machine>,
    stream: &Stream,
    pool: CUmemoryPool,
    bytes: usize,
) -> Result<usize, i32> {
    let pool = pool::get(machine, pool)?;
    let (device, access) = (pool.device(), Access::Pool(Arc::clone(&pool.access)));
    let address = machine.memory.allocate_mapped(device, bytes, Purpose::Pool, access)?;
    let machine_of_block = Arc::downgrade(machine);
    let live = AtomicBool::new(false);
    let block = Arc::new(Block { machine: machine_of_block, address, bytes, live });
    lock(&machine.graph_memory.blocks).insert(address, Arc::downgrade(&block));
    machine.pools_in_use.store(true, Ordering::Relaxed);
    capture::add(machine, stream, Work::Allocate(block))?;
    Ok(address)
}

/// Frees a graph's memory in stream order; false if the address is not a graph's. On a captured
/// stream the free is recorded. That is allowed once, and only for memory that a graph allocates.
pub(super) fn frees(machine: &Machine, stream: &Stream, address: usize) -> Result<bool, i32> {
    let block = find(machine, address);
    if !capture::records(machine, stream)? {
        capture::refuse_unsafe(machine)?;
        return block.map_or(Ok(false), |block| block.free(machine).map(|()| true));
    }
    let block = block.ok_or(code::INVALID_VALUE)?;
    let graph = capture::graph_of(machine, stream)?;
    let is_known = |node: &Arc<Node>| match &node.work {
        Work::Free(freed) => Arc::ptr_eq(freed, &block),
        _ => false,
    };
    require(!graph.nodes().iter().any(is_known), code::INVALID_VALUE)?;
    capture::add(machine, stream, Work::Free(block)).map(|()| true)
}
