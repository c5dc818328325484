//! Memory that graphs allocate and free. Its addresses are fixed at capture. A block lives as long
//! as a graph that uses it, or while a launch has allocated it and it was not freed.

use super::address_space::{Access, PoolAccess, Purpose};
use super::arguments::require;
use super::config::GRANULARITY;
use super::memory::Memory;
use super::sync::lock;
use crate::base::code;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The blocks, by address.
pub(super) struct GraphMemory {
    memory: Arc<Memory>,
    blocks: Mutex<BTreeMap<usize, Weak<Block>>>,
    /// Blocks that a launch has allocated and that were not freed.
    live: Mutex<BTreeMap<usize, Arc<Block>>>,
}

/// A block.
pub(super) struct Block {
    owner: Weak<GraphMemory>,
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
    pub(super) fn take(self: &Arc<Self>, memory: &GraphMemory) {
        self.live.store(true, Ordering::Relaxed);
        lock(&memory.live).insert(self.address, Arc::clone(self));
    }

    /// Marks the block free; an error if it was not allocated.
    pub(super) fn free(&self, memory: &GraphMemory) -> Result<(), i32> {
        require(self.live.swap(false, Ordering::Relaxed), code::INVALID_VALUE)?;
        let kept = lock(&memory.live).remove(&self.address);
        drop(kept);
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A machine that is powered off has freed all memory.
        let Some(owner) = self.owner.upgrade() else { return };
        lock(&owner.blocks).remove(&self.address);
        let bytes = self.bytes.next_multiple_of(GRANULARITY);
        // Only this unmaps a graph's memory, so it cannot fail.
        let _ = owner.memory.free_mapped(self.address, bytes);
    }
}

impl GraphMemory {
    pub(super) fn new(memory: &Arc<Memory>) -> GraphMemory {
        let memory = Arc::clone(memory);
        GraphMemory { memory, blocks: Mutex::default(), live: Mutex::default() }
    }

    /// Creates a block with a pool's access; it is free.
    pub(super) fn create(
        self: &Arc<Self>,
        access: &Arc<PoolAccess>,
        bytes: usize,
    ) -> Result<Arc<Block>, i32> {
        let (device, of_pool) = (access.device, Access::Pool(Arc::clone(access)));
        let address = self.memory.allocate_mapped(device, bytes, Purpose::Pool, of_pool)?;
        let (owner, live) = (Arc::downgrade(self), AtomicBool::new(false));
        let block = Arc::new(Block { owner, address, bytes, live });
        lock(&self.blocks).insert(address, Arc::downgrade(&block));
        Ok(block)
    }

    /// The block that begins at an address.
    pub(super) fn find(&self, address: usize) -> Option<Arc<Block>> {
        lock(&self.blocks).get(&address).and_then(Weak::upgrade)
    }

    /// Start and requested size of the block that contains an address.
    pub(super) fn around(&self, address: usize) -> Option<(usize, usize)> {
        let blocks = lock(&self.blocks);
        let (start, found) = blocks.range(..=address).next_back()?;
        let (start, block) = (*start, found.upgrade()?);
        // The reference may be the last, so it is dropped outside the lock.
        drop(blocks);
        (address - start < block.bytes).then_some((start, block.bytes))
    }
}
