//! Stream-ordered pools: the calls.

use super::address_space::{Access, PoolAccess, Purpose};
use super::arguments::{peek, put, require};
use super::copy::Fill;
use super::handles::Handles;
use super::physical::POISONED_BYTES;
use super::queue::{Action, Stream};
use super::segment::{BLOCK, Free, PoolState, SEGMENT, count};
use super::sync::{lock, read, write};
use super::unit::Block;
use super::virtual_memory::{check_handle_types, location, rights};
use super::{Machine, capture, device, entry, graph_memory, replay, schedule, stream};
use crate::driver::code;
use crate::driver::sys::{
    CUdevice, CUdeviceptr, CUmemAccessDesc, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool,
    CUstream, cuuint64_t,
};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A pool.
pub(super) struct Pool {
    pub(super) access: Arc<PoolAccess>,
    default: bool,
    state: Mutex<PoolState>,
}

impl Pool {
    /// Inserts a new pool into a table.
    pub(super) fn insert(pools: &mut Handles<Arc<Pool>>, device: usize, default: bool) -> usize {
        let mask = AtomicU32::new(1 << device);
        pools.insert_with(|handle| {
            let access = Arc::new(PoolAccess { device, handle, mask });
            Arc::new(Pool { access, default, state: Mutex::new(PoolState::new()) })
        })
    }

    pub(super) fn device(&self) -> usize {
        self.access.device
    }

    /// The block that contains an address.
    pub(super) fn block(&self, address: usize) -> Option<(usize, Block)> {
        lock(&self.state).block(address)
    }

    /// Number of allocated blocks.
    pub(super) fn blocks(&self) -> usize {
        lock(&self.state).used_blocks.len()
    }

    fn trim(&self, machine: &Machine, keep: Option<u64>) {
        let mut state = lock(&self.state);
        let keep = keep.unwrap_or(state.threshold);
        for (start, bytes) in state.trim(keep) {
            // Only this unmaps a pool's memory, so it cannot fail.
            let _ = machine.memory.free_mapped(start, bytes);
        }
    }
}

impl Machine {
    /// At a synchronisation, pools release idle memory above their threshold.
    pub(super) fn release_idle_pool_memory(&self) {
        if !self.pools_in_use.load(Ordering::Relaxed) {
            return;
        }
        replay::drop_finished(self);
        for pool in read(&self.pools).iter() {
            // Work that the host waited for has finished, so no opportunistic flag is needed.
            lock(&pool.state).free.values_mut().for_each(Free::settle);
            pool.trim(self, None);
        }
        lock(&self.retired_pools).retain(|pool| {
            pool.trim(self, Some(0));
            lock(&pool.state).reserved[0] > 0
        });
    }
}

pub(super) fn get(machine: &Machine, pool: CUmemoryPool) -> Result<Arc<Pool>, i32> {
    read(&machine.pools).get(pool.addr()).map(Arc::clone).ok_or(code::INVALID_VALUE)
}

fn allocate(
    machine: &Arc<Machine>,
    handle: CUmemoryPool,
    bytes: usize,
    stream: &Arc<Stream>,
) -> Result<usize, i32> {
    let pool = get(machine, handle)?;
    let requested = bytes;
    let bytes = bytes.checked_next_multiple_of(BLOCK).ok_or(code::OUT_OF_MEMORY)?;
    let mut state = lock(&pool.state);
    let start = match state.fit(bytes, stream) {
        Some(start) => start,
        None => {
            let grow = |bytes| {
                let access = Access::Pool(Arc::clone(&pool.access));
                machine.memory.allocate_mapped(pool.device(), bytes, Purpose::Pool, access)
            };
            let exact = bytes.checked_next_multiple_of(super::config::GRANULARITY);
            let exact = exact.ok_or(code::OUT_OF_MEMORY)?;
            let mut segment = bytes.checked_next_multiple_of(SEGMENT).unwrap_or(exact);
            let mut start = grow(segment);
            if start.is_err() {
                for (start, bytes) in state.trim(0) {
                    machine.memory.free_mapped(start, bytes)?;
                }
                segment = exact;
                start = grow(segment);
            }
            let start = start?;
            machine.pools_in_use.store(true, Ordering::Relaxed);
            state.segments.insert(start, segment);
            state.free.insert(start, Free { bytes: segment, after: Vec::new() });
            count(&mut state.reserved, segment);
            start
        }
    };
    let mut waits = state.take(start, bytes, requested).ok_or(code::UNKNOWN)?;
    drop(state);
    waits.retain(|point| !Arc::ptr_eq(&point.stream, stream) && !point.is_reached());
    if !waits.is_empty() {
        schedule::submit(machine, stream, waits, Action::Nothing)?;
    }
    Ok(start)
}

/// Allocates in stream order, or records the allocation if the stream is captured.
fn allocate_or_record(
    machine: &Arc<Machine>,
    ptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: &Arc<Stream>,
) -> Result<(), i32> {
    let records = capture::records(machine, stream)?;
    require(!ptr.is_null(), code::INVALID_VALUE)?;
    if bytes == 0 {
        get(machine, pool)?;
        return put!(ptr, 0);
    }
    let address = if records {
        graph_memory::allocate(machine, stream, pool, bytes)?
    } else {
        capture::refuse_unsafe(machine)?;
        allocate(machine, pool, bytes, stream)?
    };
    put!(ptr, address as CUdeviceptr)
}

/// The access to the pool of an address.
fn access(machine: &Machine, address: usize) -> Result<Arc<PoolAccess>, i32> {
    match read(&machine.memory.space).mapping(address).map(|(_, mapping)| &mapping.access) {
        Some(Access::Pool(access)) => Ok(Arc::clone(access)),
        _ => Err(code::INVALID_VALUE),
    }
}

/// The pool of an address.
fn owner(machine: &Machine, address: usize) -> Result<Arc<Pool>, i32> {
    let access = access(machine, address)?;
    machine.pool_of(&access).ok_or(code::INVALID_VALUE)
}

/// If the schedule poisons memory, overwrites a block that its stream has freed.
fn poison_freed(
    machine: &Arc<Machine>,
    pool: &Pool,
    address: usize,
    stream: &Arc<Stream>,
) -> Result<(), i32> {
    let poison = machine.adversary.poison();
    let found = lock(&pool.state).used_blocks.get(&address).map(|block| block.0);
    match found {
        Some(bytes) if poison != 0 && pool.access.is_reached_by(stream.device) => {
            let (value, count) = (poison.into(), bytes.min(POISONED_BYTES));
            let fill = Action::Fill(Fill { address, value, width: 1, count });
            schedule::submit(machine, stream, Vec::new(), fill).map(drop)
        }
        _ => Ok(()),
    }
}

/// The device of the pool of an address.
pub(super) fn device_of(machine: &Machine, address: usize) -> Result<usize, i32> {
    Ok(access(machine, address)?.device)
}

/// Frees a block whose work has finished.
pub(super) fn free_now(machine: &Machine, address: usize) -> Result<(), i32> {
    let pool = owner(machine, address)?;
    lock(&pool.state).give_back(address, Vec::new())?;
    machine.release_idle_pool_memory();
    Ok(())
}

pub(super) unsafe extern "C" fn get_default(pool: *mut CUmemoryPool, device: CUdevice) -> c_int {
    entry(|machine| {
        let device = device::get(machine, device)?;
        put!(pool, ptr::without_provenance_mut(device.default_pool))
    })
}

pub(super) unsafe extern "C" fn create(
    pool: *mut CUmemoryPool,
    properties: *const CUmemPoolProps,
) -> c_int {
    entry(|machine| {
        capture::refuse_unsafe(machine)?;
        require(!pool.is_null(), code::INVALID_VALUE)?;
        let properties = peek!(properties)?;
        require(properties.allocType as u32 == 1, code::INVALID_VALUE)?;
        check_handle_types(properties.handleTypes.0)?;
        let device = location(machine, &properties.location).map_err(|_| code::INVALID_VALUE)?;
        let handle = Pool::insert(&mut write(&machine.pools), device, false);
        put!(pool, ptr::without_provenance_mut(handle))
    })
}

pub(super) unsafe extern "C" fn destroy(pool: CUmemoryPool) -> c_int {
    entry(|machine| {
        capture::refuse_unsafe(machine)?;
        let found = get(machine, pool)?;
        require(!found.default, code::INVALID_VALUE)?;
        let mut pools = write(&machine.pools);
        pools.remove(pool.addr()).ok_or(code::INVALID_VALUE)?;
        // Its memory lives until the last block is freed and no work uses it.
        lock(&machine.retired_pools).push(found);
        drop(pools);
        machine.release_idle_pool_memory();
        Ok(())
    })
}

pub(super) unsafe extern "C" fn set_attribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> c_int {
    entry(|machine| {
        capture::refuse_unsafe(machine)?;
        let pool = get(machine, pool)?;
        let mut state = lock(&pool.state);
        match attribute as usize {
            reuse @ 1..=3 => state.reuse[reuse - 1] = peek!(value.cast::<c_int>())?,
            4 => state.threshold = peek!(value.cast::<cuuint64_t>())?,
            high @ (6 | 8) => {
                // A high-water mark can only be set to 0.
                require(peek!(value.cast::<cuuint64_t>())? == 0, code::INVALID_VALUE)?;
                let counter = if high == 6 { &mut state.reserved } else { &mut state.used };
                counter[1] = counter[0];
            }
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn get_attribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> c_int {
    entry(|machine| {
        capture::refuse_unsafe(machine)?;
        let pool = get(machine, pool)?;
        let state = lock(&pool.state);
        let number = match attribute as usize {
            reuse @ 1..=3 => return put!(value.cast::<c_int>(), state.reuse[reuse - 1]),
            4 => state.threshold,
            5 => state.reserved[0],
            6 => state.reserved[1],
            7 => state.used[0],
            8 => state.used[1],
            _ => return Err(code::INVALID_VALUE),
        };
        put!(value.cast::<cuuint64_t>(), number)
    })
}

pub(super) unsafe extern "C" fn set_access(
    pool: CUmemoryPool,
    access: *const CUmemAccessDesc,
    count: usize,
) -> c_int {
    entry(|machine| {
        capture::refuse_unsafe(machine)?;
        let pool = get(machine, pool)?;
        require(!access.is_null(), code::INVALID_VALUE)?;
        if count == 0 {
            return Ok(());
        }
        let rights = rights(machine, access, count).map_err(|code| match code {
            code::INVALID_DEVICE => code,
            _ => code::NOT_SUPPORTED,
        })?;
        require(rights.iter().all(|(_, right)| *right != 1), code::NOT_SUPPORTED)?;
        for (device, right) in &rights {
            if *device == pool.device() {
                // The owner's access cannot be revoked.
                require(*right == 3, code::INVALID_DEVICE)?;
            } else {
                let reachable = machine.config.can_access_peer(*device, pool.device());
                require(reachable, code::INVALID_DEVICE)?;
            }
        }
        for (device, right) in rights {
            if right == 0 {
                pool.access.mask.fetch_and(!(1 << device), Ordering::Relaxed);
            } else {
                pool.access.mask.fetch_or(1 << device, Ordering::Relaxed);
            }
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn trim_to(pool: CUmemoryPool, bytes_to_keep: usize) -> c_int {
    entry(|machine| {
        capture::refuse_unsafe(machine)?;
        get(machine, pool)?.trim(machine, Some(bytes_to_keep as u64));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn allocate_async(
    ptr: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        let stream = stream::get(machine, stream)?;
        let pool = ptr::without_provenance_mut(machine.devices[stream.device].default_pool);
        allocate_or_record(machine, ptr, bytes, pool, &stream)
    })
}

pub(super) unsafe extern "C" fn allocate_from_pool_async(
    ptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        let stream = stream::get(machine, stream)?;
        allocate_or_record(machine, ptr, bytes, pool, &stream)
    })
}

pub(super) unsafe extern "C" fn free_async(ptr: CUdeviceptr, stream: CUstream) -> c_int {
    entry(|machine| {
        let stream = stream::get(machine, stream)?;
        if ptr == 0 {
            return Ok(());
        }
        if graph_memory::frees(machine, &stream, ptr as usize)? {
            return Ok(());
        }
        let plain = read(&machine.memory.space).blocks.around(ptr as usize);
        if let Some((start, _)) = plain {
            require(start == ptr as usize, code::INVALID_VALUE)?;
            schedule::wait(machine, &stream.tail())?;
            return machine.memory.free_block(start);
        }
        let pool = owner(machine, ptr as usize)?;
        poison_freed(machine, &pool, ptr as usize, &stream)?;
        let after = if stream.is_idle() { Vec::new() } else { vec![stream.tail()] };
        lock(&pool.state).give_back(ptr as usize, after)
    })
}
