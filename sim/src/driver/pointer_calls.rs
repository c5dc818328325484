//! The calls for attributes of pointers.

use super::address_space::{Access, AddressSpace, Purpose};
use super::arguments::{enumerator, peek, put, require};
use super::entry::entry;
use super::machine::Machine;
use super::sync::{read, write};
use crate::base::code;
use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUmemoryPool, CUpointer_attribute};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr;

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

/// `CU_DEVICE_INVALID`.
const NO_DEVICE: c_int = -2;

/// A piece of memory of a call that allocates or registers.
pub(super) struct Piece {
    pub(super) start: usize,
    pub(super) bytes: usize,
    /// See [`next_id`](super::physical::next_id).
    pub(super) id: u64,
}

/// The piece around an address. Of virtual memory it is a mapping.
pub(super) fn range(machine: &Machine, address: usize) -> Option<Piece> {
    let space = read(&machine.memory.space);
    if !space.contains(address) {
        drop(space);
        let (start, range) = read(&machine.memory.host).find(address)?;
        return Some(Piece { start, bytes: range.bytes, id: range.id });
    }
    let (base, mapping) = space.mapping(address)?;
    let mapped = Piece { start: base, bytes: mapping.bytes, id: mapping.allocation.id };
    drop(space);
    match machine.block(address)? {
        (reservation, None) if reservation.purpose == Purpose::Virtual => Some(mapped),
        (_, block) => block.map(|(start, block)| Piece { start, bytes: block.bytes, id: block.id }),
    }
}

fn query(
    machine: &Machine,
    data: *mut c_void,
    attribute: CUpointer_attribute,
    address: usize,
) -> Result<(), i32> {
    if attribute == CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
        range(machine, address).ok_or(code::INVALID_VALUE)?;
        return put!(data.cast::<c_uint>(), c_uint::from(is_synchronous(machine, address)));
    }
    if read(&machine.memory.space).contains(address) {
        of_device(machine, data, attribute, address)
    } else {
        of_host(machine, data, attribute, address)
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuPointerGetAttribute(
    data: *mut c_void,
    number: c_uint,
    ptr: CUdeviceptr,
) -> c_int {
    entry(|machine| {
        require(!data.is_null() && ptr != 0, code::INVALID_VALUE)?;
        query(machine, data, enumerator(number)?, ptr as usize)
    })
}

/// Writes the value of an attribute that a pointer does not have.
fn put_default(data: *mut c_void, attribute: CUpointer_attribute) -> Result<(), i32> {
    use CUpointer_attribute::*;
    match attribute {
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put!(data.cast::<c_int>(), NO_DEVICE),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        | CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | CU_POINTER_ATTRIBUTE_IS_MANAGED
        | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | CU_POINTER_ATTRIBUTE_MAPPED
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => put!(data.cast::<c_uint>(), 0),
        // The driver leaves these as they are (580.159).
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_RANGE_SIZE => Ok(()),
        _ => put!(data.cast::<usize>(), 0),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    ptr: CUdeviceptr,
) -> c_int {
    entry(|machine| {
        require(count > 0 && !attributes.is_null() && !data.is_null(), code::INVALID_VALUE)?;
        let asked = |index| {
            let attribute = enumerator(peek!(attributes.cast::<c_uint>().wrapping_add(index))?)?;
            let data = peek!(data.wrapping_add(index))?;
            require(!data.is_null(), code::INVALID_VALUE)?;
            Ok((attribute, data))
        };
        let asked = (0..count as usize).map(asked).collect::<Result<Vec<_>, i32>>()?;
        asked.into_iter().try_for_each(|(attribute, data)| {
            match query(machine, data, attribute, ptr as usize) {
                Err(code::INVALID_VALUE) => put_default(data, attribute),
                outcome => outcome,
            }
        })
    })
}

/// Only `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` can be set.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuPointerSetAttribute(
    value: *const c_void,
    number: c_uint,
    ptr: CUdeviceptr,
) -> c_int {
    entry(|machine| {
        require(!value.is_null(), code::INVALID_VALUE)?;
        let is_settable =
            enumerator(number) == Ok(CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
        require(is_settable, code::INVALID_VALUE)?;
        let piece = range(machine, ptr as usize).ok_or(code::INVALID_VALUE)?;
        set_synchronous(machine, &piece, peek!(value.cast::<c_uint>())? != 0);
        Ok(())
    })
}

fn set_synchronous(machine: &Machine, piece: &Piece, is_set: bool) {
    let mut pieces = write(&machine.memory.synchronous);
    if !is_set {
        pieces.remove(&piece.start);
        return;
    }
    // Freed memory is removed each time the number has doubled.
    if pieces.len().is_power_of_two() {
        let is_live = |start: &usize, id: &mut u64| {
            range(machine, *start).is_some_and(|piece| (piece.start, piece.id) == (*start, *id))
        };
        pieces.retain(is_live);
    }
    pieces.insert(piece.start, piece.id);
}

/// True if synchronous calls on memory at an address always wait.
pub(super) fn is_synchronous(machine: &Machine, address: usize) -> bool {
    let pieces = read(&machine.memory.synchronous);
    !pieces.is_empty()
        && range(machine, address).is_some_and(|piece| pieces.get(&piece.start) == Some(&piece.id))
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
            put!(data.cast::<CUcontext>(), machine.hardware.owner(range.owner).handle())
        }
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => put!(data.cast::<c_uint>(), HOST),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER | CU_POINTER_ATTRIBUTE_HOST_POINTER => {
            put!(data.cast::<usize>(), address)
        }
        CU_POINTER_ATTRIBUTE_IS_MANAGED
        | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => put!(data.cast::<c_uint>(), 0),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
            put!(data.cast::<c_int>(), machine.hardware.owner(range.owner).device as c_int)
        }
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put!(data.cast::<usize>(), start),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => put!(data.cast::<usize>(), range.bytes),
        CU_POINTER_ATTRIBUTE_MAPPED => put!(data.cast::<c_uint>(), 1),
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => put!(data.cast::<c_ulonglong>(), 0),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => put!(data.cast::<c_uint>(), 3),
        CU_POINTER_ATTRIBUTE_BUFFER_ID => put!(data.cast::<c_ulonglong>(), range.id),
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
    let is_of_host = mapping.access.is_of_host_pool();
    match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => {
            // Only memory of cuMemAlloc belongs to a context.
            let context = match reservation.purpose {
                Purpose::Allocation(owner)
                | Purpose::Managed(owner, _)
                | Purpose::Imported(owner, ..) => machine.hardware.owner(owner).handle(),
                Purpose::Virtual | Purpose::Pool | Purpose::Module => ptr::null_mut(),
            };
            put!(data.cast::<CUcontext>(), context)
        }
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            put!(data.cast::<c_uint>(), if is_of_host { HOST } else { DEVICE })
        }
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => {
            let reached = AddressSpace::protection(mapping, owner, &machine.memory.peers) != 0;
            require(reached, code::INVALID_VALUE)?;
            put!(data.cast::<usize>(), address)
        }
        // The driver gives 0 for memory of the host in a pool (580.159).
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => {
            put!(data.cast::<usize>(), if is_of_host { 0 } else { start })
        }
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => put!(data.cast::<usize>(), bytes),
        CU_POINTER_ATTRIBUTE_MAPPED => put!(data.cast::<c_uint>(), 1),
        CU_POINTER_ATTRIBUTE_HOST_POINTER if is_managed || is_of_host => {
            put!(data.cast::<usize>(), address)
        }
        CU_POINTER_ATTRIBUTE_IS_MANAGED => put!(data.cast::<c_uint>(), c_uint::from(is_managed)),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
            // Of imported memory it is the device of the context that opened it (580.159).
            let device = match reservation.purpose {
                Purpose::Imported(context, ..) => machine.hardware.owner(context).device,
                _ => owner,
            };
            put!(data.cast::<c_int>(), device as c_int)
        }
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
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS if is_of_host => put!(data.cast::<c_uint>(), 3),
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
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => put!(data.cast::<c_uint>(), 0),
        _ => Err(code::INVALID_VALUE),
    }
}
