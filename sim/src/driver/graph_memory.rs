//! Memory that graphs allocate and free. Its addresses are fixed at capture. A block lives as long
//! as a graph that uses it, or while a launch has allocated it and it was not freed.

use super::address_space::{Access, PoolAccess, Purpose};
use super::arguments::require;
use super::config::{GRANULARITY, MAX_DEVICES};
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
    /// By device.
    usage: Mutex<[Usage; MAX_DEVICES]>,
}

/// Bytes of the blocks of a device. All of them are in use: none is kept after its graphs.
#[derive(Clone, Copy, Default)]
pub(super) struct Usage {
    pub(super) current: u64,
    /// The highest values since the last reset: of bytes in use, and of reserved bytes.
    pub(super) high: [u64; 2],
}

impl Usage {
    fn add(&mut self, bytes: usize) {
        self.current += bytes as u64;
        self.high = self.high.map(|high| high.max(self.current));
    }
}

/// A block.
pub(super) struct Block {
    owner: Weak<GraphMemory>,
    pub(super) device: usize,
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
        lock(&owner.usage)[self.device].current -= bytes as u64;
        // Only this unmaps a graph's memory, so it cannot fail.
        let _ = owner.memory.free_mapped(self.address, bytes);
    }
}

impl GraphMemory {
    pub(super) fn new(memory: &Arc<Memory>) -> GraphMemory {
        let memory = Arc::clone(memory);
        let (blocks, live, usage) = (Mutex::default(), Mutex::default(), Mutex::default());
        GraphMemory { memory, blocks, live, usage }
    }

    /// Creates a block with a pool's access; it is free.
    pub(super) fn create(
        self: &Arc<Self>,
        access: &Arc<PoolAccess>,
        bytes: usize,
    ) -> Result<Arc<Block>, i32> {
        let device = access.device.ok_or(code::NOT_SUPPORTED)?;
        let of_pool = Access::Pool(Arc::clone(access));
        let address = self.memory.allocate_mapped(device, bytes, Purpose::Pool, of_pool)?;
        let (owner, live) = (Arc::downgrade(self), AtomicBool::new(false));
        let block = Arc::new(Block { owner, device, address, bytes, live });
        lock(&self.usage)[device].add(bytes.next_multiple_of(GRANULARITY));
        lock(&self.blocks).insert(address, Arc::downgrade(&block));
        Ok(block)
    }

    /// Reads or changes the usage of a device's memory.
    pub(super) fn usage<T>(&self, device: usize, body: impl FnOnce(&mut Usage) -> T) -> T {
        body(&mut lock(&self.usage)[device])
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
