//! The calls for memory of `cuMemAlloc`, and for pinned memory of the host.

use super::address_space::{AddressSpace, Purpose};
use super::arguments::{put, require};
use super::context::Context;
use super::entry::entry;
use super::host_memory::{HostMemory, HostRange, free_host};
use super::machine::Machine;
use super::physical::{POISONED_BYTES, next_id};
use super::pointer_calls;
use super::pool_calls;
use super::sync::{read, write};
use crate::base::code;
use cudarc::driver::sys::CUdeviceptr;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

/// Valid flags of `cuMemHostAlloc` (portable, device map, write combined) and of
/// `cuMemHostRegister` (portable, device map, I/O memory, read only).
const HOST_ALLOC_FLAGS: c_uint = 0x7;
const HOST_REGISTER_FLAGS: c_uint = 0xf;
/// Alignment of the rows of `cuMemAllocPitch`.
const PITCH_ALIGNMENT: usize = 512;
/// `CU_DEVICE_ATTRIBUTE_MAX_PITCH`.
const MAX_PITCH: usize = i32::MAX as usize;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    entry(|machine| {
        let report = |pointer: *mut usize, bytes| {
            if pointer.is_null() { Ok(()) } else { put!(pointer, bytes) }
        };
        // The driver writes 0 on failure (580.159).
        report(free, 0)?;
        report(total, 0)?;
        let physical = &machine.memory.physical[machine.current()?.device];
        report(free, physical.bytes() - physical.used())?;
        report(total, physical.bytes())
    })
}

/// Allocates memory of a context.
fn allocate(machine: &Machine, context: &Context, bytes: usize) -> Result<usize, i32> {
    machine.memory.allocate_block(context.number, context.device, bytes)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAlloc_v2(ptr: *mut CUdeviceptr, bytes: usize) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        machine.captures.refuse_unsafe()?;
        require(!ptr.is_null() && bytes > 0, code::INVALID_VALUE)?;
        put!(ptr, allocate(machine, context, bytes)? as CUdeviceptr)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocPitch_v2(
    ptr: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    rows: usize,
    element: c_uint,
) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        machine.captures.refuse_unsafe()?;
        require(!ptr.is_null() && !pitch.is_null(), code::INVALID_VALUE)?;
        require(width > 0 && rows > 0, code::INVALID_VALUE)?;
        require(matches!(element, 4 | 8 | 16), code::INVALID_VALUE)?;
        let row = width.checked_next_multiple_of(PITCH_ALIGNMENT);
        let row = row.filter(|row| *row <= MAX_PITCH).ok_or(code::INVALID_VALUE)?;
        let bytes = row.checked_mul(rows).ok_or(code::OUT_OF_MEMORY)?;
        put!(ptr, allocate(machine, context, bytes)? as CUdeviceptr)?;
        put!(pitch, row)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetAddressRange_v2(
    start: *mut CUdeviceptr,
    bytes: *mut usize,
    ptr: CUdeviceptr,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        let found = pointer_calls::range(machine, ptr as usize).ok_or(code::NOT_FOUND)?;
        require(is_reached(machine, ptr as usize)?, code::NOT_FOUND)?;
        if !start.is_null() {
            put!(start, found.start as CUdeviceptr)?;
        }
        if !bytes.is_null() {
            put!(bytes, found.bytes)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFree_v2(ptr: CUdeviceptr) -> c_int {
    entry(|machine| {
        machine.usable()?;
        machine.captures.refuse_unsafe()?;
        if ptr == 0 {
            return Ok(());
        }
        let address = ptr as usize;
        let (reservation, block) = machine.block(address).ok_or(code::INVALID_VALUE)?;
        require(block.is_some_and(|(start, _)| start == address), code::INVALID_VALUE)?;
        let pooled = reservation.purpose == Purpose::Pool;
        let owner = match reservation.purpose {
            Purpose::Allocation(owner) | Purpose::Managed(owner, _) => owner,
            // The primary context has the number of its device.
            Purpose::Pool | Purpose::Virtual => pool_calls::device_of(machine, address)?,
            Purpose::Imported(..) | Purpose::Module => return Err(code::INVALID_VALUE),
        };
        // CUDA waits for the device's work first.
        let context = machine.hardware.owner(owner);
        context.check()?;
        let contexts = machine.hardware.contexts();
        machine.schedule.drain(contexts.filter(|other| other.device == context.device));
        if let Purpose::Managed(..) = reservation.purpose {
            return machine.memory.free_mapped(address, reservation.bytes);
        }
        if !pooled {
            return machine.memory.free_block(address);
        }
        match machine.graph_memory.find(address) {
            Some(block) => block.free(&machine.graph_memory),
            None => pool_calls::free_now(machine, address),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocHost_v2(ptr: *mut *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the same promise.
    unsafe { cuMemHostAlloc(ptr, bytes, 0) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemHostAlloc(
    ptr: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        machine.captures.refuse_unsafe()?;
        require(!ptr.is_null(), code::INVALID_VALUE)?;
        require(flags & !HOST_ALLOC_FLAGS == 0, code::INVALID_VALUE)?;
        if bytes == 0 {
            return put!(ptr, ptr::null_mut());
        }
        // SAFETY: maps new pages at an address that the system chooses.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        require(address != libc::MAP_FAILED, code::OUT_OF_MEMORY)?;
        let poison = machine.schedule.poison();
        if poison != 0 {
            // SAFETY: the pages are new and writable.
            unsafe { ptr::write_bytes(address.cast::<u8>(), poison, bytes.min(POISONED_BYTES)) };
        }
        let range = HostRange { bytes, owner: context.number, owned: true, flags, id: next_id() };
        write(&machine.memory.host).ranges.insert(address.expose_provenance(), range);
        machine.schedule.share_memory();
        put!(ptr, address)
    })
}

/// False for memory of the host in a pool to which the current device has no access.
fn is_reached(machine: &Machine, address: usize) -> Result<bool, i32> {
    let device = machine.current()?.device;
    let space = read(&machine.memory.space);
    let has_access =
        |mapping| AddressSpace::protection(mapping, device, &machine.memory.peers) != 0;
    let found = space.mapping(address).filter(|(_, mapping)| mapping.access.is_of_host_pool());
    Ok(found.is_none_or(|(_, mapping)| has_access(mapping)))
}

/// The pinned range around an address.
fn pinned(machine: &Machine, ptr: *mut c_void) -> Result<HostRange, i32> {
    let found = read(&machine.memory.host).find(ptr.addr());
    found.map(|(_, range)| range).ok_or(code::INVALID_VALUE)
}

/// Devices use pinned memory at the host's address.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    device_ptr: *mut CUdeviceptr,
    ptr: *mut c_void,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        require(!device_ptr.is_null() && flags == 0, code::INVALID_VALUE)?;
        pinned(machine, ptr)?;
        put!(device_ptr, ptr.addr() as CUdeviceptr)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemHostGetFlags(flags: *mut c_uint, ptr: *mut c_void) -> c_int {
    entry(|machine| {
        machine.current()?;
        require(!flags.is_null(), code::INVALID_VALUE)?;
        let range = pinned(machine, ptr)?;
        require(range.owned, code::INVALID_VALUE)?;
        put!(flags, range.flags)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFreeHost(ptr: *mut c_void) -> c_int {
    entry(|machine| {
        machine.usable()?;
        machine.captures.refuse_unsafe()?;
        if ptr.is_null() {
            return Ok(());
        }
        let find = |host: &HostMemory| host.get(ptr.addr(), true).ok_or(code::INVALID_VALUE);
        find(&read(&machine.memory.host))?;
        // Queued work may still use it.
        machine.drain();
        let mut host = write(&machine.memory.host);
        let range = find(&host)?;
        host.ranges.remove(&ptr.addr());
        drop(host);
        free_host(ptr.addr(), range.bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemHostRegister_v2(
    ptr: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        machine.captures.refuse_unsafe()?;
        let address = ptr.expose_provenance();
        let valid = address != 0 && bytes > 0 && address.checked_add(bytes).is_some();
        require(valid && flags & !HOST_REGISTER_FLAGS == 0, code::INVALID_VALUE)?;
        require(!read(&machine.memory.space).contains(address), code::INVALID_VALUE)?;
        let mut host = write(&machine.memory.host);
        // Memory of `cuMemHostAlloc` cannot be registered, and a range only once.
        let owned = host.find(address).is_some_and(|(_, range)| range.owned);
        require(!owned, code::INVALID_VALUE)?;
        require(!host.overlaps(address, bytes), code::HOST_MEMORY_ALREADY_REGISTERED)?;
        let range = HostRange { bytes, owner: context.number, owned: false, flags, id: next_id() };
        host.ranges.insert(address, range);
        drop(host);
        machine.schedule.share_memory();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemHostUnregister(ptr: *mut c_void) -> c_int {
    entry(|machine| {
        machine.usable()?;
        machine.captures.refuse_unsafe()?;
        require(!ptr.is_null(), code::INVALID_VALUE)?;
        require(!read(&machine.memory.space).contains(ptr.addr()), code::INVALID_VALUE)?;
        let find = |host: &HostMemory| match host.find(ptr.addr()) {
            Some((start, range)) if start == ptr.addr() && !range.owned => Ok(()),
            // Pinned, but no registered range begins at this address.
            Some(_) => Err(code::INVALID_VALUE),
            None => Err(code::HOST_MEMORY_NOT_REGISTERED),
        };
        find(&read(&machine.memory.host))?;
        // Queued work may still use it.
        machine.drain();
        let mut host = write(&machine.memory.host);
        find(&host)?;
        host.ranges.remove(&ptr.addr());
        Ok(())
    })
}
