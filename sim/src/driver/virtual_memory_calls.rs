//! Virtual memory: the calls to reserve, create, map, set access, and undo these.

use super::address_space::{Access, AddressSpace, Mapping, Purpose};
use super::arguments::{peek_checked, put, require};
use super::config::{GRANULARITY, MAX_DEVICES};
use super::entry::entry;
use super::machine::Machine;
use super::sync::{lock, read, write};
use crate::base::code;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType,
};
use std::collections::btree_map::Entry;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::Arc;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`.
const PINNED: u32 = 1;
const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_WIN32` and `CU_MEM_HANDLE_TYPE_WIN32_KMT`.
const WINDOWS: u32 = 2 | 4;

/// The device of a location.
pub(super) fn location(machine: &Machine, location: &CUmemLocation) -> Result<usize, i32> {
    require(location.type_ as u32 == LOCATION_DEVICE, code::INVALID_VALUE)?;
    let device = usize::try_from(location.id).map_err(|_| code::INVALID_DEVICE)?;
    require(device < machine.hardware.devices.len(), code::INVALID_DEVICE)?;
    Ok(device)
}

/// The device on which memory of these properties lies.
fn owner(machine: &Machine, properties: &CUmemAllocationProp) -> Result<usize, i32> {
    require(properties.type_ as u32 == PINNED, code::INVALID_VALUE)?;
    let device = location(machine, &properties.location)?;
    let handles = properties.requestedHandleTypes.0;
    check_handle_types(handles)?;
    Ok(device)
}

/// Checks that memory can be exported as these kinds of handles.
pub(super) fn check_handle_types(types: u32) -> Result<(), i32> {
    require(types & WINDOWS == 0, code::INVALID_VALUE)?;
    require(types & !FILE_DESCRIPTOR == 0, code::NOT_SUPPORTED)
}

/// Reads and checks access descriptors; returns device and protection of each.
pub(super) fn rights(
    machine: &Machine,
    access: *const CUmemAccessDesc,
    count: usize,
) -> Result<Vec<(usize, u8)>, i32> {
    require(!access.is_null() && count > 0, code::INVALID_VALUE)?;
    // More descriptors than devices are useless, but the driver accepts them.
    require(count <= MAX_DEVICES * 16, code::INVALID_VALUE)?;
    let right = |index| {
        let descriptor = peek_checked!(access.wrapping_add(index), flags, location.type_)?;
        Ok((location(machine, &descriptor.location)?, descriptor.flags as u8))
    };
    (0..count).map(right).collect()
}

fn check_range(address: CUdeviceptr, bytes: usize) -> Result<usize, i32> {
    let address = address as usize;
    let aligned = address.is_multiple_of(GRANULARITY) && bytes.is_multiple_of(GRANULARITY);
    require(aligned && bytes > 0 && address != 0, code::INVALID_VALUE)?;
    address.checked_add(bytes).ok_or(code::INVALID_VALUE)?;
    Ok(address)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const CUmemAllocationProp,
    _option: c_uint,
) -> c_int {
    entry(|_| {
        // The driver does not check the properties (580.159).
        require(!properties.is_null(), code::INVALID_VALUE)?;
        put!(granularity, GRANULARITY)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    bytes: usize,
    alignment: usize,
    address: CUdeviceptr,
    flags: c_ulonglong,
) -> c_int {
    entry(|machine| {
        require(machine.config.virtual_memory, code::NOT_SUPPORTED)?;
        require(!ptr.is_null() && flags == 0, code::INVALID_VALUE)?;
        require(bytes > 0 && bytes.is_multiple_of(GRANULARITY), code::INVALID_VALUE)?;
        require(alignment == 0 || alignment.is_power_of_two(), code::INVALID_VALUE)?;
        require((address as usize).is_multiple_of(GRANULARITY), code::INVALID_VALUE)?;
        let mut space = write(&machine.memory.space);
        let reserved = space.reserve(bytes, alignment, address as usize, Purpose::Virtual)?;
        put!(ptr, reserved as CUdeviceptr)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAddressFree(ptr: CUdeviceptr, bytes: usize) -> c_int {
    entry(|machine| {
        let address = check_range(ptr, bytes)?;
        let mut space = write(&machine.memory.space);
        let found = space.reservation(address).ok_or(code::INVALID_VALUE)?.1;
        require(found.purpose == Purpose::Virtual, code::INVALID_VALUE)?;
        space.unreserve(address, bytes)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> c_int {
    entry(|machine| {
        require(machine.config.virtual_memory, code::NOT_SUPPORTED)?;
        require(!handle.is_null() && flags == 0, code::INVALID_VALUE)?;
        let properties = peek_checked!(properties, type_, location.type_)?;
        let device = owner(machine, &properties)?;
        require(bytes > 0 && bytes.is_multiple_of(GRANULARITY), code::INVALID_VALUE)?;
        let physical = &machine.memory.physical[device];
        let allocation = physical.allocate(bytes, properties.requestedHandleTypes.0)?;
        let created = write(&machine.handles).insert(allocation);
        put!(handle, created as CUmemGenericAllocationHandle)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> c_int {
    entry(|machine| {
        let mut handles = write(&machine.handles);
        if let Entry::Occupied(mut retained) = lock(&machine.retained).entry(handle as usize) {
            *retained.get_mut() -= 1;
            if *retained.get() == 0 {
                retained.remove();
            }
            return Ok(());
        }
        // Mappings keep the memory alive.
        let removed = handles.remove(handle as usize);
        drop(handles);
        removed.map(drop).ok_or(code::INVALID_VALUE)
    })
}

/// The handle of mapped memory. Each must be released.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    ptr: *mut c_void,
) -> c_int {
    entry(|machine| {
        require(!handle.is_null() && !ptr.is_null(), code::INVALID_VALUE)?;
        let space = read(&machine.memory.space);
        let (_, mapping) = space.mapping(ptr.addr()).ok_or(code::INVALID_VALUE)?;
        let is_virtual = matches!(mapping.access, Access::Granted(_));
        require(is_virtual, code::INVALID_VALUE)?;
        let allocation = Arc::clone(&mapping.allocation);
        drop(space);
        let mut handles = write(&machine.handles);
        let found = match handles.handle_of(|held| Arc::ptr_eq(held, &allocation)) {
            Some(found) => {
                *lock(&machine.retained).entry(found).or_default() += 1;
                found
            }
            None => handles.insert(allocation),
        };
        put!(handle, found as CUmemGenericAllocationHandle)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    properties: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> c_int {
    entry(|machine| {
        require(!properties.is_null(), code::INVALID_VALUE)?;
        let found = read(&machine.handles).get(handle as usize).map(Arc::clone);
        let allocation = found.ok_or(code::INVALID_VALUE)?;
        let location = CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: allocation.device() as c_int,
        };
        put!(
            properties,
            CUmemAllocationProp {
                type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                requestedHandleTypes: CUmemAllocationHandleType(allocation.handle_types),
                location,
                win32HandleMetaData: ptr::null_mut(),
                allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                    compressionType: 0,
                    gpuDirectRDMACapable: 0,
                    usage: 0,
                    reserved: [0; 4],
                },
            }
        )
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemMap(
    ptr: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> c_int {
    entry(|machine| {
        require(flags == 0 && bytes > 0 && ptr != 0, code::INVALID_VALUE)?;
        let found = read(&machine.handles).get(handle as usize).map(Arc::clone);
        let allocation = found.ok_or(code::INVALID_VALUE)?;
        // Only a whole handle can be mapped (580.159).
        require(offset == 0 && bytes == allocation.bytes, code::NOT_SUPPORTED)?;
        let address = check_range(ptr, bytes)?;
        let access = Access::Granted([0; MAX_DEVICES]);
        let mut space = write(&machine.memory.space);
        let found = space.reservation(address).ok_or(code::INVALID_VALUE)?.1;
        require(found.purpose == Purpose::Virtual, code::INVALID_VALUE)?;
        space.map(address, Mapping { bytes, allocation, offset, access })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemUnmap(ptr: CUdeviceptr, bytes: usize) -> c_int {
    entry(|machine| {
        let address = check_range(ptr, bytes)?;
        let mut space = write(&machine.memory.space);
        let found = space.reservation(address).ok_or(code::INVALID_VALUE)?.1;
        require(found.purpose == Purpose::Virtual, code::INVALID_VALUE)?;
        let memory = space.unmap(address, bytes)?;
        drop(space);
        drop(memory);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemSetAccess(
    ptr: CUdeviceptr,
    bytes: usize,
    access: *const CUmemAccessDesc,
    count: usize,
) -> c_int {
    entry(|machine| {
        let address = check_range(ptr, bytes)?;
        let rights = rights(machine, access, count).map_err(|_| code::INVALID_VALUE)?;
        let reachable = |device, owner| machine.can_access_peer(device, owner);
        write(&machine.memory.space).set_access(address, bytes, &rights, reachable)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetAccess(
    flags: *mut c_ulonglong,
    at: *const CUmemLocation,
    ptr: CUdeviceptr,
) -> c_int {
    entry(|machine| {
        // The driver writes 0 on failure (580.159).
        put!(flags, 0)?;
        require(!at.is_null(), code::INVALID_VALUE)?;
        let device = peek_checked!(at, type_).and_then(|at| location(machine, &at));
        let device = device.map_err(|_| code::INVALID_DEVICE)?;
        let space = read(&machine.memory.space);
        let (_, mapping) = space.mapping(ptr as usize).ok_or(code::INVALID_VALUE)?;
        let protection = AddressSpace::protection(mapping, device, &machine.memory.peers);
        put!(flags, protection.into())
    })
}
