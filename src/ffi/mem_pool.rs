//! Section "Memory" of the header: private pools.

use super::boundary::{boundary, flag, out};
use super::handle::Table;
use super::pluggable::{ALLOCATORS, tcuda_pluggable_allocator};
use super::snapshot::{SNAPSHOTS, tcuda_memory_snapshot};
use super::status::tcuda_status;
use crate::driver::sync_debug;
use crate::gpu::gpus;
use crate::memory::pools::mem_pool::MemPool;
use crate::memory::trace::snapshot::Snapshot;

/// A private pool, for any device.
pub struct tcuda_mem_pool {
    _private: [u8; 0],
}

pub(super) static MEM_POOLS: Table<MemPool> = Table::new(5, "pool");

/// Flag of tcuda_mem_pool_create: allocations outside of the pool may use its free blocks of their
/// stream before they fail.
pub const TCUDA_MEM_POOL_USE_ON_OOM: u32 = 1;

/// Flag of tcuda_mem_pool_create: each block is a whole segment of PyTorch's sizes (2 MiB, 20 MiB,
/// or from 10 MiB on the request rounded up to 2 MiB), from cuMemAlloc or the pool's allocator.
pub const TCUDA_MEM_POOL_NO_SPLIT: u32 = 2;

/// A private pool: memory that only those allocations get that tcuda_mem_pool_begin routes to it.
/// tcuda_memory_empty_cache does not touch it while the pool exists. Before an allocation fails for
/// want of memory, unused memory of pools goes back to the driver, except that of graphs' pools,
/// which replays write. (torch.cuda.MemPool)
///
/// @param allocator   source of its segments, which it divides into blocks; the pool and its
///                    segments keep it; may be NULL: the driver
/// @param flags       TCUDA_MEM_POOL_... combined, or 0
/// @param[out] pool   the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_create(
    allocator: *mut tcuda_pluggable_allocator,
    flags: u32,
    pool: *mut *mut tcuda_mem_pool,
) -> tcuda_status {
    boundary(|call| {
        let pool = out(pool, "pool")?;
        let source = match allocator.is_null() {
            true => None,
            false => Some(ALLOCATORS.get(allocator as usize, "allocator", call)?.share()),
        };
        pool.set(MEM_POOLS.insert(MemPool::new(flags, source)?)? as *mut tcuda_mem_pool);
        Ok(())
    })
}

/// Destroys a pool. Allocated blocks stay valid, and threads that are routed to it stay so until
/// their tcuda_mem_pool_end, or their end. Unused memory goes back to the driver, at once or, where
/// something was in use, with the next tcuda_memory_empty_cache; waits for work that may still use
/// it. (the end of a torch.cuda.MemPool)
///
/// @param pool  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_mem_pool_destroy(pool: *mut tcuda_mem_pool) -> tcuda_status {
    boundary(|call| {
        if pool.is_null() {
            return Ok(());
        }
        let found = MEM_POOLS.get(pool as usize, "pool", call)?;
        let id = found.id();
        found.close();
        MEM_POOLS.remove(pool as usize, "pool")?;
        gpus::existing(call.inside())
            .map_or(Ok(()), |gpus| crate::memory::pools::mem_pool::release(gpus, id))
    })
}

/// From now on this thread's allocations on a device come from the pool, on any stream, until the
/// matching tcuda_mem_pool_end. Begins nest: the last one counts. (torch.cuda.use_mem_pool)
///
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_begin(
    pool: *mut tcuda_mem_pool,
    device: i32,
) -> tcuda_status {
    boundary(|call| {
        let found = MEM_POOLS.get(pool as usize, "pool", call)?;
        found.begin(pool as usize, call.gpus()?.device(device)?)
    })
}

/// Ends this thread's last tcuda_mem_pool_begin on that device, also if the pool was destroyed
/// since. (the end of torch.cuda.use_mem_pool)
///
/// @param pool    a handle of the pool of that begin, or TCUDA_STATUS_INVALID_STATE; if that handle
///                was destroyed, the same one, or TCUDA_STATUS_INVALID_HANDLE
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_end(
    pool: *mut tcuda_mem_pool,
    device: i32,
) -> tcuda_status {
    boundary(|call| match MEM_POOLS.get(pool as usize, "pool", call) {
        Ok(found) => found.end(call.gpus()?.device(device)?),
        Err(refused) => {
            let gpus = gpus::existing(call.inside());
            let device = gpus.and_then(|gpus| gpus.device(device).ok());
            let ended = device.is_some_and(|at| MemPool::end_destroyed(pool as usize, at));
            if ended { Ok(()) } else { Err(refused) }
        }
    })
}

/// Gives the physical memory of a pool back to the driver and keeps its addresses, so that its
/// blocks are usable again after tcuda_mem_pool_wake. Waits for the devices. Until then only
/// tcuda_free may use the blocks: copies and fills are TCUDA_STATUS_INVALID_POINTER, kernels lose
/// the device; allocating there, and replaying a graph of the pool, is TCUDA_STATUS_INVALID_STATE.
/// So is sleeping while an allocation outside of the pool uses a block of it
/// (TCUDA_MEM_POOL_USE_ON_OOM), which the message names; while a capture uses the pool it is
/// TCUDA_STATUS_CAPTURING. No-op on a sleeping pool. (+: torch_memory_saver, vLLM's sleep mode)
///
/// @param keep_contents  1: the contents of the blocks are copied to the host and come back; 0: the
///                       contents are undefined afterwards
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_sleep(
    pool: *mut tcuda_mem_pool,
    keep_contents: i32,
) -> tcuda_status {
    boundary(|call| {
        let keep = flag(keep_contents, "keep_contents")?;
        let pool = MEM_POOLS.get(pool as usize, "pool", call)?;
        let _documented = sync_debug::check_documented(sync_debug::POOL_SLEEP)?;
        pool.sleep(call.gpus()?, keep)
    })
}

/// Puts memory, and kept contents, back at the same addresses: all of it, on all devices, or
/// nothing. Where memory is short, unused memory of the library is given back and observers are
/// called, as for an allocation; then it fails with TCUDA_STATUS_OUT_OF_MEMORY and the pool stays
/// asleep: free some memory, and try again. No-op on a pool that is awake.
/// (+: torch_memory_saver, vLLM's sleep mode)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_wake(pool: *mut tcuda_mem_pool) -> tcuda_status {
    boundary(|call| {
        let pool = MEM_POOLS.get(pool as usize, "pool", call)?;
        let _documented = sync_debug::check_documented(sync_debug::POOL_SLEEP)?;
        pool.wake(call.gpus()?)
    })
}

/// tcuda_memory_snapshot_create of this pool alone. (torch.cuda.MemPool.snapshot)
///
/// @param with_history   1: with the recorded history; 0: only the present state
/// @param[out] snapshot  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_snapshot(
    pool: *mut tcuda_mem_pool,
    with_history: i32,
    snapshot: *mut *mut tcuda_memory_snapshot,
) -> tcuda_status {
    boundary(|call| {
        let snapshot = out(snapshot, "snapshot")?;
        let with_history = flag(with_history, "with_history")?;
        let found = MEM_POOLS.get(pool as usize, "pool", call)?;
        let taken = match gpus::existing(call.inside()) {
            Some(gpus) => Snapshot::of(&gpus.devices, Some(found.id()), with_history)?,
            None => Snapshot::before_any_use()?,
        };
        snapshot.set(SNAPSHOTS.insert(taken)? as *mut tcuda_memory_snapshot);
        Ok(())
    })
}

/// The two numbers that identify a pool in snapshots and keys of statistics.
/// (torch.cuda.MemPool.id)
///
/// @param[out] id0  0 for a pool that tcuda_mem_pool_create made
/// @param[out] id1  0 for a pool of graphs
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_id(
    pool: *mut tcuda_mem_pool,
    id0: *mut u64,
    id1: *mut u64,
) -> tcuda_status {
    boundary(|call| {
        let (first, second) = (out(id0, "id0")?, out(id1, "id1")?);
        let pair = MEM_POOLS.get(pool as usize, "pool", call)?.id().pair();
        first.set(pair.0);
        second.set(pair.1);
        Ok(())
    })
}

/// Number of references to a pool: of its handles, of each tcuda_mem_pool_begin, and of captures
/// and graphs. The pool ends with the last. (torch.cuda.MemPool.use_count)
///
/// @param[out] count  1 or more
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_use_count(
    pool: *mut tcuda_mem_pool,
    count: *mut u32,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        count.set(MEM_POOLS.get(pool as usize, "pool", call)?.id().references());
        Ok(())
    })
}
