//! Sleeping pools: their physical memory is released and their addresses are kept, so that pointers
//! into them are valid again when they wake.

use crate::base::error::{Error, Result};
use crate::base::waiting;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::memory::arena::block::{NONE, State};
use crate::memory::arena::heap::Heap;
use crate::memory::arena::{Arena, ArenaGuard, Backup, addresses};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::UNIT;
use crate::memory::device::DeviceMemory;
use crate::memory::device::uncached::Origin;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

const NO_ROOM: Error = Error::OutOfHostMemory("the contents of a pool that is to sleep");

/// Copies of the contents of an arena's blocks.
struct Contents {
    arena: *const Arena,
    blocks: Vec<Backup>,
}

/// Did a pool ever sleep? If not, no address is checked.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Fails if the memory at an address sleeps.
#[inline]
pub(crate) fn require_awake(address: u64) -> Result<()> {
    if IS_USED.load(Ordering::Relaxed) { require_memory(address) } else { Ok(()) }
}

#[cold]
fn require_memory(address: u64) -> Result<()> {
    let Some((arena, offset)) = addresses::arena_of(address) else { return Ok(()) };
    if arena.pool() == PoolId::DEFAULT {
        return Ok(());
    }
    let state = &mut arena.guard();
    if state.segment.is_asleep_at((offset / UNIT) as u32) {
        let why = "is in a private pool that sleeps; call tcuda_mem_pool_wake before using it";
        return Err(Error::InvalidPointer { ptr: address as usize, why });
    }
    Ok(())
}

/// The devices on which a pool has or had memory.
fn devices_of(gpus: &Gpus, pool: PoolId) -> impl Iterator<Item = &Device> {
    gpus.devices.iter().filter(move |device| device.memory().has_arena_of(pool))
}

/// Waits for the devices, and copies the contents of a pool to host memory if `keep` is set. No
/// thread allocates from the pool meanwhile. On failure nothing changes.
pub(in crate::memory) fn prepare(gpus: &Gpus, pool: PoolId, keep: bool) -> Result<()> {
    IS_USED.store(true, Ordering::Relaxed);
    if gpus.captures().uses_pool(pool) {
        return Err(Error::Capturing {
            operation: "tcuda_mem_pool_sleep",
            why: "the capture uses the pool's memory; end it first",
        });
    }
    let mut kept = Vec::new();
    kept.try_reserve(gpus.devices.len()).map_err(|_| NO_ROOM)?;
    for device in devices_of(gpus, pool) {
        device.memory().require_mapped(pool)?;
        device.memory().require_unshared(pool)?;
        device.synchronize_for_host()?;
        if keep {
            kept.push((device, device.memory().back_up(gpus, device, pool)?));
        }
    }
    kept.into_iter().for_each(|(device, contents)| device.memory().keep(contents));
    Ok(())
}

/// Releases the memory of a pool. Tries all devices, and returns the first failure.
pub(in crate::memory) fn release_memory(gpus: &Gpus, pool: PoolId) -> Result<()> {
    let mut outcome = Ok(());
    for device in devices_of(gpus, pool) {
        let released = device.memory().release_memory(device, pool);
        outcome = outcome.and(released);
    }
    outcome
}

/// Maps memory for a pool, using all fallbacks. On failure the memory that was mapped stays. The
/// caller holds no lock.
pub(in crate::memory) fn find_memory(gpus: &Gpus, pool: PoolId) -> Result<()> {
    for device in devices_of(gpus, pool) {
        let memory = device.memory();
        let bytes = memory.sleeping_bytes(pool)?;
        memory.try_fallbacks_uncached(gpus, device, &Origin::Driver, bytes, || {
            memory.map_memory(device, pool).map(|()| bytes)
        })?;
    }
    Ok(())
}

/// Restores the contents; all memory is mapped.
pub(in crate::memory) fn restore(gpus: &Gpus, pool: PoolId) -> Result<()> {
    for device in devices_of(gpus, pool) {
        // Another thread may have put the pool to sleep again.
        device.memory().map_memory(device, pool)?;
        device.memory().copy_back(gpus, device, pool)?;
    }
    // After a failure the contents of all devices are needed again.
    devices_of(gpus, pool).try_for_each(|device| device.memory().drop_contents(pool))
}

impl DeviceMemory {
    fn has_arena_of(&self, pool: PoolId) -> bool {
        self.stats.with_members(|heaps| heaps.iter().any(|heap| heap.pool() == pool))
    }

    /// Fails if a pool has memory that is not mapped.
    fn require_mapped(&self, pool: PoolId) -> Result<()> {
        let is_mapped = |heap: &Heap| heap.pool() != pool || !heap.segmented;
        if self.stats.with_members(|heaps| heaps.iter().all(|heap| is_mapped(heap))) {
            return Ok(());
        }
        Err(Error::InvalidState(
            "the private pool has segments from cuMemAlloc or another allocator, which cannot keep \
             their addresses without memory; use expandable_segments:True and a pool without \
             TCUDA_MEM_POOL_NO_SPLIT",
        ))
    }

    /// Fails if memory of the pool may be in use outside of it.
    fn require_unshared(&self, pool: PoolId) -> Result<()> {
        self.each_arena(|state| {
            let arena = state.arena();
            if arena.pool() != pool {
                return Ok(());
            }
            if state.exported() > 0 {
                return Err(Error::InvalidState(
                    "other processes may have memory of the private pool, which would keep it; \
                     have them close what they imported, and call tcuda_ipc_collect",
                ));
            }
            match state.lent_block() {
                None => Ok(()),
                Some(id) => Err(Error::BlockInUse {
                    ptr: state.address(arena.base, id) as usize,
                    bytes: state.blocks[id].requested,
                    why: "was allocated outside of the private pool, which lent it \
                          (TCUDA_MEM_POOL_USE_ON_OOM): free it before the pool sleeps",
                }),
            }
        })
    }

    fn back_up(&self, gpus: &Gpus, device: &Device, pool: PoolId) -> Result<Vec<Contents>> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        let mut contents = Vec::new();
        self.each_arena(|state| {
            let arena = state.arena();
            if arena.pool() == pool {
                contents.try_reserve(1).map_err(|_| NO_ROOM)?;
                contents.push(Contents { arena, blocks: buffers_for(state)? });
            }
            Ok(())
        })?;
        let default = device.streams.default();
        let mut blocks = contents.iter_mut().flat_map(|contents| &mut contents.blocks);
        let copied = blocks.try_for_each(|block| {
            let (to, bytes) = (block.bytes.as_mut_ptr() as u64, block.bytes.len());
            let _waiting = waiting::begin();
            // SAFETY: from a block that stays mapped, to a buffer of the same length.
            unsafe { self.driver.cuMemcpyAsync(to, block.address, bytes, default.native()) }
                .map_err(Error::from)
        });
        let waited = default.synchronize(gpus).or_else(|_| device.synchronize_for_host());
        if waited.is_err() {
            // Copies that were queued may still write to these buffers.
            contents.drain(..).for_each(std::mem::forget);
        }
        copied.and(waited)?;
        Ok(contents)
    }

    /// Moves the contents to their arenas.
    fn keep(&self, contents: Vec<Contents>) {
        for Contents { arena, blocks } in contents {
            // SAFETY: found by this call, which is not over.
            let arena = unsafe { &*arena };
            let state = &mut arena.guard();
            state.backups = blocks;
        }
    }

    fn release_memory(&self, device: &Device, pool: PoolId) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        // Copies of a failed wake may still write to this memory.
        device.synchronize_for_host()?;
        let mut outcome = Ok(());
        self.each_arena(|state| {
            let arena = state.arena();
            if arena.pool() == pool {
                let before = state.reserved();
                let slept = state.segment.sleep(&self.virtual_memory, arena.base);
                self.count_segment(state, before);
                if outcome.is_ok() {
                    outcome = slept;
                }
            }
            Ok(())
        })?;
        outcome
    }

    /// The bytes of a pool that have addresses and no memory.
    fn sleeping_bytes(&self, pool: PoolId) -> Result<u64> {
        let mut bytes = 0;
        self.each_arena(|state| {
            let arena = state.arena();
            if arena.pool() == pool {
                bytes += state.segment.sleeping_bytes();
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Maps memory for a pool; stops at the first failure.
    fn map_memory(&self, device: &Device, pool: PoolId) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        self.each_arena(|state| {
            let arena = state.arena();
            if arena.pool() != pool {
                return Ok(());
            }
            let before = state.reserved();
            let outcome = state.segment.wake(&self.virtual_memory, arena.base);
            self.count_segment(state, before);
            outcome
        })
    }

    /// Copies the contents back to the blocks, and waits for the copies.
    fn copy_back(&self, gpus: &Gpus, device: &Device, pool: PoolId) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        let default = device.streams.default();
        let copied = self.each_arena(|state| {
            let arena = state.arena();
            if arena.pool() != pool {
                return Ok(());
            }
            let _waiting = waiting::begin();
            for block in &state.backups {
                let from = block.bytes.as_ptr().cast::<c_void>() as u64;
                let (to, bytes) = (block.address, block.bytes.len());
                // SAFETY: from a buffer that stays until the copies are complete, to a block that
                // is mapped.
                unsafe { self.driver.cuMemcpyAsync(to, from, bytes, default.native()) }?;
            }
            Ok(())
        });
        // Copies that were queued still read the buffers.
        let waited = default.synchronize(gpus).or_else(|_| device.synchronize_for_host());
        copied.and(waited)
    }

    fn drop_contents(&self, pool: PoolId) -> Result<()> {
        self.each_arena(|state| {
            let arena = state.arena();
            if arena.pool() == pool {
                state.backups = Vec::new();
            }
            Ok(())
        })
    }
}

/// Buffers for the contents of the allocated blocks of an arena.
fn buffers_for(state: &mut ArenaGuard<'_>) -> Result<Vec<Backup>> {
    let arena = state.arena();
    let mut blocks = Vec::new();
    blocks.try_reserve(state.active_blocks as usize).map_err(|_| NO_ROOM)?;
    let mut id = state.first;
    while id != NONE {
        let block = &state.blocks[id];
        if block.state == State::Allocated {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(block.bytes() as usize).map_err(|_| NO_ROOM)?;
            bytes.resize(block.bytes() as usize, 0);
            blocks.push(Backup { address: state.address(arena.base, id), bytes });
        }
        id = block.next;
    }
    Ok(blocks)
}
