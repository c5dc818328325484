//! The calls for stream-ordered pools.

use super::address_space::{Access, PoolAccess, Purpose};
use super::arguments::{peek, peek_checked, put, require};
use super::config::{GRANULARITY, MAX_DEVICES};
use super::copy::Fill;
use super::entry::entry;
use super::graph::Work;
use super::machine::Machine;
use super::managed_calls::described;
use super::physical::POISONED_BYTES;
use super::pool::Pool;
use super::queue::{Action, Stream};
use super::segment::{BLOCK, Free, SEGMENT, count};
use super::sync::{lock, read};
use super::virtual_memory_calls::check_handle_types;
use crate::base::code;
use cudarc::driver::sys::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemPoolProps,
    CUmemoryPool, CUstream, cuuint64_t,
};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn allocate(
    machine: &Machine,
    handle: CUmemoryPool,
    bytes: usize,
    stream: &Arc<Stream>,
) -> Result<usize, i32> {
    let pool = machine.pools.get(handle.addr())?;
    let requested = bytes;
    let bytes = bytes.checked_next_multiple_of(BLOCK).ok_or(code::OUT_OF_MEMORY)?;
    let mut state = lock(&pool.state);
    let start = match state.fit(bytes, stream) {
        Some(start) => start,
        None => {
            let grow = |bytes| {
                let access = Access::Pool(Arc::clone(&pool.access));
                match pool.access.device {
                    Some(device) => {
                        machine.memory.allocate_mapped(device, bytes, Purpose::Pool, access)
                    }
                    None => machine.memory.allocate_for_host(0, bytes, Purpose::Pool, access),
                }
            };
            let exact = bytes.checked_next_multiple_of(GRANULARITY);
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
            machine.pools.note_use();
            if pool.access.device.is_none() {
                machine.schedule.share_memory();
            }
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
        machine.submit(stream, waits, Action::Nothing)?;
    }
    Ok(start)
}

/// Records an allocation on a captured stream; it has the pool's access.
fn record_allocation(
    machine: &Machine,
    stream: &Stream,
    pool: CUmemoryPool,
    bytes: usize,
) -> Result<usize, i32> {
    let pool = machine.pools.get(pool.addr())?;
    let block = machine.graph_memory.create(&pool.access, bytes)?;
    let address = block.address;
    machine.pools.note_use();
    machine.captures.add(&machine.graphs, stream, Work::Allocate(block))?;
    Ok(address)
}

/// Frees a graph's memory in stream order; false if the address is not a graph's. On a captured
/// stream the free is recorded. That is allowed once, and only for memory that a graph allocates.
fn frees_of_graph(machine: &Machine, stream: &Stream, address: usize) -> Result<bool, i32> {
    let block = machine.graph_memory.find(address);
    if !machine.captures.records(stream)? {
        machine.captures.refuse_unsafe()?;
        return block.map_or(Ok(false), |block| block.free(&machine.graph_memory).map(|()| true));
    }
    let block = block.ok_or(code::INVALID_VALUE)?;
    let graph = machine.captures.graph_of(stream)?;
    require(!graph.frees(&block), code::INVALID_VALUE)?;
    machine.captures.add(&machine.graphs, stream, Work::Free(block)).map(|()| true)
}

/// Allocates in stream order, or records the allocation if the stream is captured.
fn allocate_or_record(
    machine: &Machine,
    ptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: &Arc<Stream>,
) -> Result<(), i32> {
    let records = machine.captures.records(stream)?;
    require(!ptr.is_null(), code::INVALID_VALUE)?;
    if bytes == 0 {
        machine.pools.get(pool.addr())?;
        return put!(ptr, 0);
    }
    let address = if records {
        record_allocation(machine, stream, pool, bytes)?
    } else {
        machine.captures.refuse_unsafe()?;
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
    machine.pools.of(&access).ok_or(code::INVALID_VALUE)
}

/// If the schedule poisons memory, overwrites a block that its stream has freed.
fn poison_freed(
    machine: &Machine,
    pool: &Pool,
    address: usize,
    stream: &Arc<Stream>,
) -> Result<(), i32> {
    let poison = machine.schedule.poison();
    let found = lock(&pool.state).used_blocks.get(&address).map(|block| block.0);
    match found {
        Some(bytes) if poison != 0 && pool.access.is_reached_by(stream.device) => {
            let (value, count) = (poison.into(), bytes.min(POISONED_BYTES));
            let fill = Action::Fill(Fill::row(address, value, 1, count));
            machine.submit(stream, Vec::new(), fill).map(drop)
        }
        _ => Ok(()),
    }
}

/// The device of the pool of an address; of memory of the host it is the current one.
pub(super) fn device_of(machine: &Machine, address: usize) -> Result<usize, i32> {
    access(machine, address)?.device.map_or_else(|| Ok(machine.current()?.device), Ok)
}

/// Frees a block whose work has finished.
pub(super) fn free_now(machine: &Machine, address: usize) -> Result<(), i32> {
    let pool = owner(machine, address)?;
    lock(&pool.state).give_back(address, Vec::new())?;
    machine.release_idle_memory();
    Ok(())
}

/// The device at a location, or `None` for the host, on any NUMA node.
fn place(machine: &Machine, location: &CUmemLocation) -> Result<Option<usize>, i32> {
    match location.type_ as u32 {
        1 => Ok(Some(machine.device(location.id)?.context.device)),
        2 | 3 => Ok(None),
        _ => Err(code::INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetDefaultMemPool(
    pool: *mut CUmemoryPool,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        let device = machine.device(device)?.context.device;
        put!(pool, ptr::without_provenance_mut(machine.pools.default[device]))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetMemPool(
    pool: *mut CUmemoryPool,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        let device = machine.device(device).map_err(|_| code::INVALID_VALUE)?.context.device;
        put!(pool, ptr::without_provenance_mut(machine.pools.current(device)))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> c_int {
    entry(|machine| {
        let device = machine.device(device).map_err(|_| code::INVALID_VALUE)?.context.device;
        let found = machine.pools.get(pool.addr())?;
        require(found.access.device == Some(device), code::INVALID_VALUE)?;
        machine.pools.set_current(device, pool.addr());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolCreate(
    pool: *mut CUmemoryPool,
    properties: *const CUmemPoolProps,
) -> c_int {
    entry(|machine| {
        machine.captures.refuse_unsafe()?;
        require(!pool.is_null(), code::INVALID_VALUE)?;
        let properties = peek_checked!(properties, allocType, location.type_)?;
        require(properties.allocType as u32 == 1, code::INVALID_VALUE)?;
        check_handle_types(properties.handleTypes.0)?;
        let exists = described(machine, &properties.location);
        let device = exists.and_then(|_| place(machine, &properties.location));
        let device = device.map_err(|_| code::INVALID_VALUE)?;
        let handle = machine.pools.create(device);
        put!(pool, ptr::without_provenance_mut(handle))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> c_int {
    entry(|machine| {
        machine.captures.refuse_unsafe()?;
        let found = machine.pools.get(pool.addr())?;
        require(!found.default, code::INVALID_VALUE)?;
        machine.pools.retire(pool.addr())?;
        machine.release_idle_memory();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: c_uint,
    value: *mut c_void,
) -> c_int {
    entry(|machine| {
        machine.captures.refuse_unsafe()?;
        let pool = machine.pools.get(pool.addr())?;
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

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: c_uint,
    value: *mut c_void,
) -> c_int {
    entry(|machine| {
        machine.captures.refuse_unsafe()?;
        let pool = machine.pools.get(pool.addr())?;
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

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    access: *const CUmemAccessDesc,
    count: usize,
) -> c_int {
    entry(|machine| {
        machine.captures.refuse_unsafe()?;
        let pool = machine.pools.get(pool.addr())?;
        require(!access.is_null(), code::INVALID_VALUE)?;
        if count == 0 {
            return Ok(());
        }
        let owner = pool.access.device;
        let right = |index| {
            let given = peek_checked!(access.wrapping_add(index), flags, location.type_);
            let given = given.and_then(|given| Ok((place(machine, &given.location)?, given.flags)));
            let (to, right) = given.map_err(|code| match owner {
                Some(_) if code == code::INVALID_VALUE => code::NOT_SUPPORTED,
                _ => code,
            })?;
            let right = right as u8;
            require(right != 1, code::NOT_SUPPORTED)?;
            // The access of the owner, or of the host to its memory, cannot be revoked.
            match (owner, to) {
                (None, Some(_)) => {}
                (None, None) => require(right == 3, code::NOT_SUPPORTED)?,
                (Some(_), None) => return Err(code::NOT_SUPPORTED),
                (Some(owner), Some(to)) => {
                    let is_own = to == owner && right == 3;
                    let is_peer = to != owner && machine.can_access_peer(to, owner);
                    require(is_own || is_peer, code::INVALID_DEVICE)?;
                }
            }
            Ok((to, right))
        };
        // More descriptors than devices are useless, but the driver accepts them.
        require(count <= MAX_DEVICES * 16, code::INVALID_VALUE)?;
        let rights = (0..count).map(right).collect::<Result<Vec<_>, i32>>()?;
        for (device, right) in rights.into_iter().filter_map(|(to, right)| Some((to?, right))) {
            if right == 0 {
                pool.access.mask.fetch_and(!(1 << device), Ordering::Relaxed);
            } else {
                pool.access.mask.fetch_or(1 << device, Ordering::Relaxed);
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolGetAccess(
    flags: *mut CUmemAccess_flags,
    pool: CUmemoryPool,
    at: *mut CUmemLocation,
) -> c_int {
    entry(|machine| {
        machine.captures.refuse_unsafe()?;
        require(!flags.is_null(), code::INVALID_VALUE)?;
        let pool = machine.pools.get(pool.addr())?;
        let at = place(machine, &peek_checked!(at, type_)?).map_err(|_| code::INVALID_VALUE)?;
        let access = match at {
            None => pool.access.device.is_none(),
            Some(device) => pool.access.is_reached_by(device),
        };
        let access = match access {
            true => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            false => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        };
        put!(flags, access)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolTrimTo(pool: CUmemoryPool, bytes_to_keep: usize) -> c_int {
    entry(|machine| {
        machine.captures.refuse_unsafe()?;
        machine.pools.get(pool.addr())?.trim(&machine.memory, Some(bytes_to_keep as u64));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocAsync(
    ptr: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        let pool = ptr::without_provenance_mut(machine.pools.current(stream.device));
        allocate_or_record(machine, ptr, bytes, pool, &stream)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocFromPoolAsync(
    ptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        allocate_or_record(machine, ptr, bytes, pool, &stream)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFreeAsync(ptr: CUdeviceptr, stream: CUstream) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        if ptr == 0 {
            return Ok(());
        }
        if frees_of_graph(machine, &stream, ptr as usize)? {
            return Ok(());
        }
        let plain = read(&machine.memory.space).blocks.around(ptr as usize);
        if let Some((start, _)) = plain {
            require(start == ptr as usize, code::INVALID_VALUE)?;
            machine.wait(&stream.tail())?;
            return machine.memory.free_block(start);
        }
        let pool = owner(machine, ptr as usize)?;
        poison_freed(machine, &pool, ptr as usize, &stream)?;
        let after = if stream.is_idle() { Vec::new() } else { vec![stream.tail()] };
        lock(&pool.state).give_back(ptr as usize, after)
    })
}
