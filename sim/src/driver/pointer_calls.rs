//! Pointer attributes.

use super::address_space::{Access, AddressSpace, Purpose};
use super::arguments::{put, require};
use super::entry::entry;
use super::machine::Machine;
use super::sync::read;
use crate::base::code;
use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUmemoryPool, CUpointer_attribute};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr;

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> c_int {
    entry(|machine| {
        require(!data.is_null() && ptr != 0, code::INVALID_VALUE)?;
        let address = ptr as usize;
        if read(&machine.memory.space).contains(address) {
            of_device(machine, data, attribute, address)
        } else {
            of_host(machine, data, attribute, address)
        }
    })
}

fn of_host(
    machine: &Machine,
    data: *mut c_void,
    attribute: CUpointer_attribute,
    address: usize,
) -> Result<(), i32> {
    use CUpointer_attribute::*;
    let (start, range) = read(&machine.memory.host).find(address).ok_or(code::INVALID_VALUE)?;
    match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => {
            put!(data.cast::<CUcontext>(), machine.hardware.devices[range.device].context.handle())
        }
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => put!(data.cast::<c_uint>(), HOST),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER | CU_POINTER_ATTRIBUTE_HOST_POINTER => {
            put!(data.cast::<usize>(), address)
        }
        CU_POINTER_ATTRIBUTE_IS_MANAGED | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            put!(data.cast::<c_uint>(), 0)
        }
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put!(data.cast::<c_int>(), range.device as c_int),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put!(data.cast::<usize>(), start),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => put!(data.cast::<usize>(), range.bytes),
        CU_POINTER_ATTRIBUTE_MAPPED => put!(data.cast::<c_uint>(), 1),
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => put!(data.cast::<c_ulonglong>(), 0),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => put!(data.cast::<c_uint>(), 3),
        CU_POINTER_ATTRIBUTE_BUFFER_ID => put!(data.cast::<c_ulonglong>(), start as c_ulonglong),
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
            put!(data.cast::<CUmemoryPool>(), ptr::null_mut())
        }
        _ => Err(code::INVALID_VALUE),
    }
}

fn of_device(
    machine: &Machine,
    data: *mut c_void,
    attribute: CUpointer_attribute,
    address: usize,
) -> Result<(), i32> {
    use CUpointer_attribute::*;
    let (_, block) = machine.block(address).ok_or(code::INVALID_VALUE)?;
    let space = read(&machine.memory.space);
    let (start, reservation) = space.reservation(address).ok_or(code::INVALID_VALUE)?;
    // Unmapped addresses and gaps between blocks have no attributes (580.159).
    let (base, mapping) = space.mapping(address).ok_or(code::INVALID_VALUE)?;
    let (start, bytes, id) = if reservation.purpose == Purpose::Virtual {
        (start, reservation.bytes, mapping.allocation.id)
    } else {
        let (start, block) = block.ok_or(code::INVALID_VALUE)?;
        (start, block.bytes, block.id)
    };
    let owner = mapping.allocation.device();
    let is_managed = space.managed.contains(address);
    match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => {
            // Only memory of cuMemAlloc belongs to a context.
            let context = match reservation.purpose {
                Purpose::Allocation(device)
                | Purpose::Managed(device, _)
                | Purpose::Imported(device, ..) => {
                    machine.hardware.devices[device].context.handle()
                }
                Purpose::Virtual | Purpose::Pool | Purpose::Module => ptr::null_mut(),
            };
            put!(data.cast::<CUcontext>(), context)
        }
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => put!(data.cast::<c_uint>(), DEVICE),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => {
            let reached = AddressSpace::protection(mapping, owner, &machine.memory.peers) != 0;
            require(reached, code::INVALID_VALUE)?;
            put!(data.cast::<usize>(), address)
        }
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put!(data.cast::<usize>(), start),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => put!(data.cast::<usize>(), bytes),
        CU_POINTER_ATTRIBUTE_MAPPED => put!(data.cast::<c_uint>(), 1),
        CU_POINTER_ATTRIBUTE_HOST_POINTER if is_managed => put!(data.cast::<usize>(), address),
        CU_POINTER_ATTRIBUTE_IS_MANAGED => put!(data.cast::<c_uint>(), c_uint::from(is_managed)),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put!(data.cast::<c_int>(), owner as c_int),
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            let capable = matches!(mapping.access, Access::Peers);
            put!(data.cast::<c_uint>(), c_uint::from(capable))
        }
        CU_POINTER_ATTRIBUTE_BUFFER_ID | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
            put!(data.cast::<c_ulonglong>(), id)
        }
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
            put!(data.cast::<c_ulonglong>(), mapping.allocation.handle_types.into())
        }
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            let device = machine.current()?.device;
            let protection = AddressSpace::protection(mapping, device, &machine.memory.peers);
            put!(data.cast::<c_uint>(), protection.into())
        }
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
            let handle = match &mapping.access {
                Access::Pool(access) => ptr::without_provenance_mut(access.handle),
                Access::Granted(_) | Access::Peers | Access::All => ptr::null_mut(),
            };
            put!(data.cast::<CUmemoryPool>(), handle)
        }
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => put!(data.cast::<usize>(), base),
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE => put!(data.cast::<usize>(), mapping.bytes),
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => put!(data.cast::<c_uint>(), 0),
        _ => Err(code::INVALID_VALUE),
    }
}
