//! Section "Memory" of the header: private pools.

use super::boundary::{boundary, flag, out, out_list};
use super::handle::Table;
use super::library::tcuda_destroy_fn;
use super::pluggable::{ALLOCATORS, tcuda_pluggable_allocator};
use super::snapshot::{SNAPSHOTS, tcuda_memory_snapshot};
use super::status::tcuda_status;
use super::user_data::UserData;
use crate::base::error::{Error, Result};
use crate::base::thread::try_box;
use crate::driver::sync_debug;
use crate::driver::sys::{CUstream, CUstream_st};
use crate::gpu::gpus;
use crate::memory::checkpoint::{self, PoolBlock};
use crate::memory::pools::mem_pool::MemPool;
use crate::memory::pools::stream_routes::{self, Filter};
use crate::memory::trace::snapshot::Snapshot;
use std::ffi::c_void;

/// A private pool, for any device.
pub struct tcuda_mem_pool {
    _private: [u8; 0],
}

pub(super) static MEM_POOLS: Table<MemPool> = Table::new(5, "pool");

/// Flag of tcuda_mem_pool_create and _set_flags: allocations outside of the pool may use its free
/// blocks of their stream before they fail.
pub const TCUDA_MEM_POOL_USE_ON_OOM: u32 = 1;

/// Flag of tcuda_mem_pool_create and _set_flags: each block is a whole segment of PyTorch's sizes
/// (2 MiB, 20 MiB, or from 10 MiB on the request rounded up to 2 MiB), from cuMemAlloc or the
/// pool's allocator.
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

/// A pool by the pair of numbers that another library has for it, for example PyTorch's
/// MempoolId_t: the pool that has these numbers, or a new one. Each call gives a handle of its own.
/// When all of them are destroyed, and no route or graph refers to the pool, it ends: its numbers
/// denote a new pool then, which may get the memory that the earlier one left. Snapshots and keys
/// of statistics show these numbers. Pools that tcuda numbers itself have larger ones. (+: c10's
/// createOrIncrefPool)
///
/// @param id0        of a pool of graphs, whose unused memory graphs may write; else 0
/// @param id1        of another pool; else 0. One of the two numbers is 0, the other 1 to 2^30 - 1
/// @param allocator  source of the segments of a new pool; may be NULL: the driver. It is
///                   TCUDA_STATUS_INVALID_STATE to give one for a pool that exists
/// @param[out] pool  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_from_id(
    id0: u64,
    id1: u64,
    allocator: *mut tcuda_pluggable_allocator,
    pool: *mut *mut tcuda_mem_pool,
) -> tcuda_status {
    boundary(|call| {
        let pool = out(pool, "pool")?;
        let source = match allocator.is_null() {
            true => None,
            false => Some(ALLOCATORS.get(allocator as usize, "allocator", call)?.share()),
        };
        let found = MemPool::of_pair((id0, id1), source)?;
        pool.set(MEM_POOLS.insert(found)? as *mut tcuda_mem_pool);
        Ok(())
    })
}

/// Sets the flags of a pool for the allocations that follow; blocks, and the rest of segments that
/// were divided before, stay as they are. (+: c10's setUseOnOOM, setNoSplit)
///
/// @param pool   not NULL
/// @param flags  TCUDA_MEM_POOL_... combined, or 0. TCUDA_MEM_POOL_NO_SPLIT cannot be taken back:
///               TCUDA_STATUS_INVALID_STATE
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_set_flags(
    pool: *mut tcuda_mem_pool,
    flags: u32,
) -> tcuda_status {
    boundary(|call| MEM_POOLS.get(pool as usize, "pool", call)?.set_flags(flags))
}

/// Destroys a pool. Allocated blocks stay valid, and threads that are routed to it stay so until
/// their tcuda_mem_pool_end, or their end. Routes of streams that began with this handle end.
/// Unused memory goes back to the driver, at once or, where something was in use, with the next
/// tcuda_memory_empty_cache; waits for work that may still use it. The launches of graphs that the
/// host captures by the driver's functions are not known. So if such a graph used the pool, or its
/// id is one of a capture, its memory goes back with the next tcuda_memory_empty_cache, or when
/// memory is short: after all work of the device, and not while a stream is captured. (the end of a
/// torch.cuda.MemPool)
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
        // After this none begins any more.
        stream_routes::end_by_handle(pool as usize);
        MEM_POOLS.remove(pool as usize, "pool")?;
        gpus::existing(call.inside())
            .map_or(Ok(()), |gpus| crate::memory::pools::mem_pool::release(gpus, id))
    })
}

/// From now on this thread's allocations on a device come from the pool, on any stream, until the
/// matching tcuda_mem_pool_end. Begins nest: the last one counts. (torch.cuda.use_mem_pool)
///
/// @param pool    not NULL
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

/// Returns nonzero if a stream is in a set of streams. Called on any thread that allocates, perhaps
/// on several at once. It must not call tcuda, which would be TCUDA_STATUS_INVALID_STATE, nor wait
/// for a thread that is in a call of tcuda. It may query the driver, for example for the capture of
/// the stream.
pub type tcuda_stream_filter_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, cu_stream: *mut CUstream_st) -> i32>;

/// The host's function as a set of streams.
struct HostFilter {
    function: unsafe extern "C" fn(*mut c_void, *mut CUstream_st) -> i32,
    user_data: UserData,
}

impl Filter for HostFilter {
    fn accepts(&self, stream: CUstream) -> bool {
        // SAFETY: the host's own function with its own data.
        unsafe { (self.function)(self.user_data.ptr(), stream) != 0 }
    }

    fn attached(&self) {
        self.user_data.take();
    }
}

/// From now on the allocations of all threads on a device, on those streams that a function
/// accepts, come from the pool, until tcuda_mem_pool_end_streams, the end of the handle, or
/// tcuda_shutdown. Of several such routes, captures and tcuda_mem_pool_begin, the one that began
/// last is used. While there is one, each allocation of any device calls the functions of its
/// device until one accepts the stream. (+: c10's beginAllocateToPool)
///
/// @param pool       not NULL
/// @param device     ordinal, or TCUDA_CURRENT_DEVICE; one route to a pool for each, or
///                   TCUDA_STATUS_INVALID_STATE
/// @param filter     not NULL
/// @param user_data  the caller's, passed to the filter; may be NULL
/// @param destroy    called with user_data once no thread is in the filter; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_begin_streams(
    pool: *mut tcuda_mem_pool,
    device: i32,
    filter: tcuda_stream_filter_fn,
    user_data: *mut c_void,
    destroy: tcuda_destroy_fn,
) -> tcuda_status {
    boundary(|call| {
        let function = filter.ok_or(Error::Null { name: "filter" })?;
        let found = MEM_POOLS.get(pool as usize, "pool", call)?;
        let user_data = UserData::new(user_data, destroy);
        let host = try_box(HostFilter { function, user_data }, "a filter of streams")?;
        found.begin_streams(pool as usize, call.gpus()?.device(device)?, host)
    })
}

/// Ends the route of streams of a device to a pool. (+: c10's endAllocateToPool)
///
/// @param pool    any handle of the pool; TCUDA_STATUS_INVALID_STATE: no streams are routed to it
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_end_streams(
    pool: *mut tcuda_mem_pool,
    device: i32,
) -> tcuda_status {
    boundary(|call| {
        let found = MEM_POOLS.get(pool as usize, "pool", call)?;
        found.end_streams(call.gpus()?.device(device)?)
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
/// @param pool           not NULL
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
///
/// @param pool  not NULL
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
/// @param pool           not NULL
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
/// @param pool      not NULL
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

/// Number of references to a pool: of its handles, of each tcuda_mem_pool_begin and
/// tcuda_mem_pool_begin_streams, of PyTorch's hooks, and of captures and graphs. The pool ends with
/// the last. (torch.cuda.MemPool.use_count)
///
/// @param pool        not NULL
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

/// A live block of a private pool.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_pool_block {
    /// What tcuda_malloc gave.
    pub ptr: *mut c_void,
    /// Bytes that were requested.
    pub requested_bytes: usize,
    /// Bytes that it has.
    pub bytes: usize,
    /// torch's id of the stream for which it was allocated.
    pub stream_id: i64,
}

/// Allocates a block at an address in memory that the pool has on a device, for the stream of that
/// memory. The address is at a multiple of 512 bytes from those of its other blocks, and the range
/// is free: TCUDA_STATUS_INVALID_POINTER says what is in the way, and nothing has changed. Small
/// blocks and large ones have memory of their own. The block is the caller's, to be freed by
/// tcuda_free. (+: c10's allocateWithAddress)
///
/// @param pool   not NULL
/// @param ptr    where the block begins, for example that of a freed block of this size; its device
///               is the block's
/// @param bytes  1 or more
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_malloc_at(
    pool: *mut tcuda_mem_pool,
    ptr: *mut c_void,
    bytes: usize,
) -> tcuda_status {
    boundary(|call| {
        let found = MEM_POOLS.get(pool as usize, "pool", call)?;
        if ptr.is_null() {
            return Err(Error::Null { name: "ptr" });
        }
        if bytes == 0 {
            return Err(Error::OutOfRange { name: "bytes", value: 0, allowed: "use 1 or more" });
        }
        checkpoint::allocate_at(call.gpus()?, found, ptr as u64, bytes as u64)
    })
}

/// The live blocks of a pool on a device, by address: a checkpoint to which tcuda_mem_pool_restore
/// can return. The list is the caller's, and plain data. Pending blocks, which other streams may
/// still use, are not live. (torch._C._cuda_getCheckpointState)
///
/// @param pool         not NULL
/// @param device       ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] blocks  the first `capacity` of them; may be NULL when `capacity` is 0
/// @param capacity     length of the list
/// @param[out] count   number of live blocks
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_blocks(
    pool: *mut tcuda_mem_pool,
    device: i32,
    blocks: *mut tcuda_pool_block,
    capacity: usize,
    count: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        let blocks = out_list(blocks, capacity, "blocks")?;
        let found = MEM_POOLS.get(pool as usize, "pool", call)?;
        let live = checkpoint::live_blocks(call.gpus()?.device(device)?, found)?;
        blocks.set(live.iter().map(|block| tcuda_pool_block {
            ptr: block.address as *mut c_void,
            requested_bytes: block.requested as usize,
            bytes: block.bytes as usize,
            stream_id: block.stream,
        }));
        count.set(live.len());
        Ok(())
    })
}

/// Makes the live blocks of a pool on a device those of a checkpoint, at the same addresses. Live
/// blocks that are not in the list are freed: they must not be freed again. Blocks of the list that
/// are not live are allocated again: they are the caller's, to be freed as any block. The others
/// stay as they are. Contents do not change, and no work is queued: what a graph wrote stays
/// readable, unless freed blocks are poisoned (poison_on_free). Statistics and the history count
/// the blocks that are freed and allocated.
///
/// All or nothing: if a block cannot be freed at once, because other streams may use it, or if the
/// memory of one went back to the driver, it is TCUDA_STATUS_INVALID_POINTER, and nothing has
/// changed. Memory that a graph uses never goes back while the graph exists.
/// (torch._C._cuda_setCheckpointPoolState)
///
/// @param pool    no other thread may use it meanwhile
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
/// @param blocks  as tcuda_mem_pool_blocks filled it, in any order; may be NULL when `count` is 0
/// @param count   length of the list
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_restore(
    pool: *mut tcuda_mem_pool,
    device: i32,
    blocks: *const tcuda_pool_block,
    count: usize,
) -> tcuda_status {
    boundary(|call| {
        let found = MEM_POOLS.get(pool as usize, "pool", call)?;
        if blocks.is_null() && count > 0 {
            return Err(Error::Null { name: "blocks" });
        }
        let mut list = copy_of(count, |index| {
            // SAFETY: the caller's list has `count` blocks.
            let place = unsafe { blocks.add(index) };
            // SAFETY: as above.
            let block = unsafe { place.read_unaligned() };
            PoolBlock {
                address: block.ptr as u64,
                requested: block.requested_bytes as u64,
                bytes: block.bytes as u64,
                stream: block.stream_id,
            }
        })?;
        let gpus = call.gpus()?;
        checkpoint::restore(gpus, gpus.device(device)?, found, &mut list)
    })
}

/// Are these, in any order, just the live blocks of a pool on a device?
/// (torch._C._cuda_checkPoolLiveAllocations)
///
/// @param pool        not NULL
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param ptrs        what tcuda_malloc gave; may be NULL when `count` is 0
/// @param count       length of the list
/// @param[out] equal  whether they are
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_mem_pool_check_live(
    pool: *mut tcuda_mem_pool,
    device: i32,
    ptrs: *const *const c_void,
    count: usize,
    equal: *mut bool,
) -> tcuda_status {
    boundary(|call| {
        let equal = out(equal, "equal")?;
        let found = MEM_POOLS.get(pool as usize, "pool", call)?;
        if ptrs.is_null() && count > 0 {
            return Err(Error::Null { name: "ptrs" });
        }
        let mut expected = copy_of(count, |index| {
            // SAFETY: the caller's list has `count` pointers.
            let place = unsafe { ptrs.add(index) };
            // SAFETY: as above.
            let ptr = unsafe { place.read_unaligned() };
            ptr as u64
        })?;
        expected.sort_unstable();
        expected.dedup();
        let live = checkpoint::live_blocks(call.gpus()?.device(device)?, found)?;
        equal.set(live.iter().map(|block| block.address).eq(expected));
        Ok(())
    })
}

/// A copy of a list of the host.
fn copy_of<T>(count: usize, read: impl FnMut(usize) -> T) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| Error::OutOfHostMemory("the blocks of a pool"))?;
    list.extend((0..count).map(read));
    Ok(list)
}
