//! Pools that sleep: their physical memory is given up and their addresses are kept, so that pointers
//! into them are good again when they wake.

use super::arena::Arena;
use super::block::{NONE, State};
use super::pool::PoolId;
use super::{DeviceMemory, Relaxed};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::runtime::Runtime;
use std::ffi::c_void;

/// What a block held when its pool fell asleep.
pub(super) struct Backup {
    address: u64,
    bytes: Vec<u8>,
}

const NO_ROOM: Error = Error::OutOfHostMemory("the contents of a pool that is to sleep");

/// The contents of an arena's blocks.
struct Contents {
    arena: *const Arena,
    blocks: Vec<Backup>,
}

/// Gives up the memory of a pool; `keep`: its contents are kept by the host. Nobody allocates there
/// meanwhile. Before memory goes, all of it is done or nothing.
pub(super) fn put_to_sleep(runtime: &Runtime, pool: PoolId, keep: bool) -> Result<()> {
    // No more than is there is copied, and nothing is given up before it is.
    let mut kept = Vec::new();
    kept.try_reserve(runtime.devices.len()).map_err(|_| NO_ROOM)?;
    for device in runtime.devices.iter().filter(|device| device.memory.has_arena_of(pool)) {
        device.memory.require_mapped(pool)?;
        device.memory.require_unshared(pool)?;
        device.synchronize_for_host()?;
        kept.push((
            device,
            if keep { device.memory.back_up(runtime, device, pool)? } else { Vec::new() },
        ));
    }
    for (device, contents) in kept {
        device.memory.give_up(device, pool, contents)?;
    }
    Ok(())
}

/// Puts memory and contents back; what was not done is left for the next try.
pub(super) fn wake(runtime: &Runtime, pool: PoolId) -> Result<()> {
    for device in runtime.devices.iter().filter(|device| device.memory.has_arena_of(pool)) {
        device.memory.take_up(runtime, device, pool)?;
    }
    Ok(())
}

impl DeviceMemory {
    fn has_arena_of(&self, pool: PoolId) -> bool {
        self.books.with_members(|arenas| arenas.iter().any(|arena| arena.pool() == pool))
    }

    /// An error where a pool has memory that is not mapped.
    fn require_mapped(&self, pool: PoolId) -> Result<()> {
        let is_mapped = |arena: &Arena| arena.pool() != pool || !arena.segmented;
        if self.books.with_members(|arenas| arenas.iter().all(|arena| is_mapped(arena))) {
            return Ok(());
        }
        Err(Error::InvalidState(
            "the private pool has segments from cuMemAlloc or another allocator, which cannot keep \
             their addresses without memory; use expandable_segments:True and a pool without \
             TCUDA_MEM_POOL_NO_SPLIT",
        ))
    }

    /// An error where other processes may have memory of a pool.
    fn require_unshared(&self, pool: PoolId) -> Result<()> {
        self.each_arena(|arena| {
            // SAFETY: `each_arena` holds the lock.
            if arena.pool() == pool && unsafe { arena.state() }.exported > 0 {
                return Err(Error::InvalidState(
                    "other processes may have memory of the private pool, which would keep it; \
                     have them close what they imported, and call tcuda_ipc_collect",
                ));
            }
            Ok(())
        })
    }

    fn back_up(&self, runtime: &Runtime, device: &Device, pool: PoolId) -> Result<Vec<Contents>> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        let mut contents = Vec::new();
        self.each_arena(|arena| {
            if arena.pool() == pool {
                contents.try_reserve(1).map_err(|_| NO_ROOM)?;
                contents.push(Contents { arena, blocks: blocks_of(arena)? });
            }
            Ok(())
        })?;
        let default = device.streams.default();
        for block in contents.iter_mut().flat_map(|contents| &mut contents.blocks) {
            let to = block.bytes.as_mut_ptr() as u64;
            // SAFETY: from a block of ours that stays mapped, to as many bytes of our own.
            unsafe {
                self.driver.cuMemcpyAsync(to, block.address, block.bytes.len(), default.native())
            }?;
        }
        default.synchronize(runtime)?;
        Ok(contents)
    }

    fn give_up(&self, device: &Device, pool: PoolId, mut contents: Vec<Contents>) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        self.each_arena(|arena| {
            if arena.pool() != pool {
                return Ok(());
            }
            // SAFETY: `each_arena` holds the lock.
            let state = unsafe { arena.state() };
            let own = contents.iter_mut().find(|contents| std::ptr::eq(contents.arena, arena));
            if let Some(own) = own.filter(|own| !own.blocks.is_empty()) {
                state.backups = std::mem::take(&mut own.blocks);
            }
            let before = state.reserved();
            let outcome = state.segment.sleep(&self.virtual_memory, arena.base);
            self.count_segment(arena, before);
            outcome
        })
    }

    fn take_up(&self, runtime: &Runtime, device: &Device, pool: PoolId) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        self.each_arena(|arena| {
            if arena.pool() != pool {
                return Ok(());
            }
            // SAFETY: `each_arena` holds the lock.
            let state = unsafe { arena.state() };
            let before = state.reserved();
            let outcome = state.segment.wake(&self.virtual_memory, arena.base);
            self.count_segment(arena, before);
            outcome?;
            let default = device.streams.default();
            // SAFETY: `each_arena` holds the lock.
            for block in &unsafe { arena.state() }.backups {
                let from = block.bytes.as_ptr().cast::<c_void>() as u64;
                // SAFETY: from bytes that stay until the copies are over, to a block that is mapped.
                unsafe {
                    self.driver.cuMemcpyAsync(
                        block.address,
                        from,
                        block.bytes.len(),
                        default.native(),
                    )
                }?;
            }
            Ok(())
        })?;
        device.streams.default().synchronize(runtime)?;
        self.each_arena(|arena| {
            if arena.pool() == pool {
                // SAFETY: `each_arena` holds the lock.
                unsafe { arena.state() }.backups = Vec::new();
            }
            Ok(())
        })
    }
}

/// Room for what the blocks of an arena hold that the host has. The caller holds its lock.
fn blocks_of(arena: &Arena) -> Result<Vec<Backup>> {
    // SAFETY: the caller holds the lock.
    let state = unsafe { arena.state() };
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
