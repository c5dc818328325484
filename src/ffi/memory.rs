//! Section "Memory" of the header: blocks and the cache.

use super::boundary::{
    Call, boundary, boundary_with_fast_path, boundary_without_guard, known_out, out,
};
use super::handle::Table;
use super::status::tcuda_status;
use super::stream::{borrow, known, optional, tcuda_stream};
use crate::base::error::{Error, Result};
use crate::base::thread::Inside;
use crate::gpu::device::{CURRENT, Device};
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::{self, fast::OTHER, fast::OWNER};
use crate::observe::flags;
use crate::ops::copy;
use crate::runtime::pointer_kind::{Kind, name_kind};
use std::ffi::c_void;

/// An allocated block with a handle.
pub struct tcuda_allocation {
    _private: [u8; 0],
}

/// The object behind an allocation's handle.
pub struct Allocation {
    address: u64,
    bytes: usize,
    stream: HeldStream,
}

pub(super) static ALLOCATIONS: Table<Allocation> = Table::new(3, "allocation");

/// The stream and device of an allocation: a stream that is not NULL determines the device as well.
#[inline(always)]
pub(super) fn place_of(
    call: &Call,
    device: i32,
    stream: *mut tcuda_stream,
) -> Result<(&Gpus, &Device, &Stream)> {
    let given = optional(stream, call)?;
    let gpus = call.gpus()?;
    let named = match given {
        Some(stream) if device == CURRENT => stream.device(),
        _ => device,
    };
    let found = gpus.device(named)?;
    match given {
        None => Ok((gpus, found, found.streams.current())),
        Some(stream) if named == stream.device() => Ok((gpus, found, stream)),
        Some(_) => Err(Error::OutOfRange {
            name: "device",
            value: device.into(),
            allowed: "the stream belongs to another device; pass that one, or -1",
        }),
    }
}

/// Allocates memory in the order of a stream: work queued on it may use the block at once, and
/// after tcuda_free the block is reused in that order. (torch.cuda.caching_allocator_alloc)
///
/// @param bytes     any size; 0: NULL and OK
/// @param device    ordinal, TCUDA_CURRENT_DEVICE: the stream's, else this thread's current one
/// @param stream    NULL: the current stream of the device
/// @param[out] ptr  the block, aligned to 512 bytes unless another library's allocator gave it; the
///                  caller's, to be freed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_malloc(
    bytes: usize,
    device: i32,
    stream: *mut tcuda_stream,
    ptr: *mut *mut c_void,
) -> tcuda_status {
    #[inline(always)]
    fn fast<const IS_OWNER: bool>(
        inside: &Inside,
        bytes: u64,
        device: i32,
        stream: *mut tcuda_stream,
        ptr: *mut *mut c_void,
    ) -> Option<()> {
        let ptr = known_out(ptr)?;
        let address = match stream.is_null() {
            true => memory::fast::allocate_on_current::<IS_OWNER>(inside, device, bytes)?,
            false => {
                let stream = known(stream, inside)?;
                memory::fast::allocate::<IS_OWNER>(inside, device, stream, bytes)?
            }
        };
        ptr.set(address as *mut c_void);
        Some(())
    }
    #[cold]
    #[inline(never)]
    fn as_other_thread(
        bytes: usize,
        device: i32,
        stream: *mut tcuda_stream,
        ptr: *mut *mut c_void,
    ) -> tcuda_status {
        let fast_path = |inside: &Inside| fast::<OTHER>(inside, bytes as u64, device, stream, ptr);
        boundary_with_fast_path(flags::ALL, fast_path, || slow_path(bytes, device, stream, ptr))
    }
    #[cold]
    #[inline(never)]
    fn slow_path(
        bytes: usize,
        device: i32,
        stream: *mut tcuda_stream,
        ptr: *mut *mut c_void,
    ) -> tcuda_status {
        boundary_without_guard(|call| {
            let ptr = out(ptr, "ptr")?;
            let (gpus, device, stream) = place_of(call, device, stream)?;
            ptr.set(device.memory().allocate(gpus, device, stream, bytes as u64)? as *mut c_void);
            Ok(())
        })
    }
    let fast_path = |inside: &Inside| fast::<OWNER>(inside, bytes as u64, device, stream, ptr);
    boundary_with_fast_path(flags::ALL, fast_path, || as_other_thread(bytes, device, stream, ptr))
}

/// Gives a block back to the cache, in the order of its stream; the host does not wait.
/// (torch.cuda.caching_allocator_delete)
///
/// @param ptr  what tcuda_malloc gave; may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_free(ptr: *mut c_void) -> tcuda_status {
    #[cold]
    #[inline(never)]
    fn slow_path(ptr: *mut c_void) -> tcuda_status {
        boundary_without_guard(|call| {
            if ptr.is_null() {
                return Ok(());
            }
            // A finalizer may run after shutdown: it must not initialise the library again.
            match crate::gpu::gpus::existing(call.inside()) {
                Some(gpus) => memory::free(gpus, ptr as u64)
                    .map_err(|error| name_kind(gpus, Kind::Device, error)),
                None => Err(memory::unknown_pointer(ptr as u64)),
            }
        })
    }
    let fast_path = |inside: &Inside| memory::fast::free(inside, ptr as u64);
    boundary_with_fast_path(flags::ALL, fast_path, || slow_path(ptr))
}

/// Records that the block is also used on `stream`: once freed, it is not reused before the work
/// queued there at that time is done. No effect for the stream that it was allocated on.
/// (Tensor.record_stream)
///
/// @param ptr     what tcuda_malloc gave; may be NULL: no-op
/// @param stream  NULL: the current stream of ptr's device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_record_stream(
    ptr: *mut c_void,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    let fast_path = move |inside: &Inside| {
        memory::fast::record_stream(inside, ptr as u64, known(stream, inside)?)
    };
    #[cold]
    #[inline(never)]
    fn slow_path(ptr: *mut c_void, stream: *mut tcuda_stream) -> tcuda_status {
        boundary_without_guard(|call| {
            let stream = optional(stream, call)?;
            if ptr.is_null() {
                return Ok(());
            }
            let gpus = call.gpus()?;
            let stream = match stream {
                Some(stream) => stream,
                None => copy::stream_for(gpus, None, &[ptr as u64])?,
            };
            memory::record_stream(ptr as u64, stream.on_this_thread(gpus)?)
                .map_err(|error| name_kind(gpus, Kind::Device, error))
        })
    }
    boundary_with_fast_path(flags::CALLS, fast_path, || slow_path(ptr, stream))
}

/// tcuda_malloc with a handle. (torch.cuda.caching_allocator_alloc)
///
/// @param bytes            any size; 0: an allocation without a block
/// @param device           ordinal, or TCUDA_CURRENT_DEVICE: as for tcuda_malloc
/// @param stream           NULL: the current stream of the device
/// @param[out] allocation  the caller's, to be destroyed, which frees the block
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_allocation_create(
    bytes: usize,
    device: i32,
    stream: *mut tcuda_stream,
    allocation: *mut *mut tcuda_allocation,
) -> tcuda_status {
    boundary(|call| {
        let allocation = out(allocation, "allocation")?;
        let (gpus, device, stream) = place_of(call, device, stream)?;
        let address = device.memory().allocate(gpus, device, stream, bytes as u64)?;
        let stream = HeldStream::new(stream);
        match ALLOCATIONS.insert(Allocation { address, bytes, stream }) {
            Ok(handle) => {
                allocation.set(handle as *mut tcuda_allocation);
                Ok(())
            }
            Err(error) => {
                if address != 0 {
                    memory::free(gpus, address)?;
                }
                Err(error)
            }
        }
    })
}

/// Frees the block of an allocation. (torch.cuda.caching_allocator_delete)
///
/// @param allocation  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_allocation_destroy(
    allocation: *mut tcuda_allocation,
) -> tcuda_status {
    boundary(|call| {
        if allocation.is_null() {
            return Ok(());
        }
        let address = ALLOCATIONS.get(allocation as usize, "allocation", call)?.address;
        ALLOCATIONS.remove(allocation as usize, "allocation")?;
        if address == 0 { Ok(()) } else { memory::free(call.gpus()?, address) }
    })
}

/// First byte of an allocation; NULL if it has none. (+)
///
/// @param allocation  from tcuda_allocation_create
/// @param[out] ptr    borrowed: valid until the allocation is destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_allocation_pointer(
    allocation: *mut tcuda_allocation,
    ptr: *mut *mut c_void,
) -> tcuda_status {
    boundary(|call| {
        let ptr = out(ptr, "ptr")?;
        let allocation = ALLOCATIONS.get(allocation as usize, "allocation", call)?;
        ptr.set(allocation.address as *mut c_void);
        Ok(())
    })
}

/// Requested size of an allocation. (+)
///
/// @param allocation  from tcuda_allocation_create
/// @param[out] bytes  as it was requested
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_allocation_bytes(
    allocation: *mut tcuda_allocation,
    bytes: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let bytes = out(bytes, "bytes")?;
        bytes.set(ALLOCATIONS.get(allocation as usize, "allocation", call)?.bytes);
        Ok(())
    })
}

/// Ordinal of an allocation's device. (+)
///
/// @param allocation   from tcuda_allocation_create
/// @param[out] device  its ordinal
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_allocation_device(
    allocation: *mut tcuda_allocation,
    device: *mut i32,
) -> tcuda_status {
    boundary(|call| {
        let device = out(device, "device")?;
        device.set(ALLOCATIONS.get(allocation as usize, "allocation", call)?.stream.device());
        Ok(())
    })
}

/// The stream of an allocation; borrowed. (+)
///
/// @param allocation   from tcuda_allocation_create
/// @param[out] stream  borrowed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_allocation_stream(
    allocation: *mut tcuda_allocation,
    stream: *mut *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = out(stream, "stream")?;
        let allocation = ALLOCATIONS.get(allocation as usize, "allocation", call)?;
        // Fails while another thread shuts down, which would not see the new handle.
        call.gpus()?;
        stream.set(borrow(&allocation.stream)?);
        Ok(())
    })
}

/// Returns all unused cached memory, of all devices, to the driver; waits for pending frees, for
/// the work of streams whose memory is returned, and for all work of a device if a pool has ended
/// there whose memory a graph of the host used (tcuda_mem_pool_destroy). (torch.cuda.empty_cache)
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_memory_empty_cache() -> tcuda_status {
    boundary(|call| {
        let Some(gpus) = crate::gpu::gpus::existing(call.inside()) else { return Ok(()) };
        memory::empty_cache(gpus)
    })
}

/// The contiguous memory that holds an address: the segment of the cache, or the allocation of the
/// driver or of another library. Only tcuda's memory of devices: others are
/// TCUDA_STATUS_INVALID_POINTER. (+: c10's getBaseAllocation)
///
/// @param ptr         any address in it; not NULL
/// @param[out] base   its first byte, borrowed
/// @param[out] bytes  its length
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_base(
    ptr: *const c_void,
    base: *mut *mut c_void,
    bytes: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let (base, bytes) = (out(base, "base")?, out(bytes, "bytes")?);
        if ptr.is_null() {
            return Err(Error::Null { name: "ptr" });
        }
        let Some(gpus) = crate::gpu::gpus::existing(call.inside()) else {
            return Err(memory::unknown_pointer(ptr as u64));
        };
        let (address, length) = memory::device::snapshot::segment_of(ptr as u64)
            .map_err(|error| name_kind(gpus, Kind::Device, error))?;
        base.set(address as *mut c_void);
        bytes.set(length as usize);
        Ok(())
    })
}

/// Free and total memory of a device as the driver reports it. (torch.cuda.mem_get_info)
///
/// @param device            ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] free_bytes   free memory, for any process
/// @param[out] total_bytes  all memory of the device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_info(
    device: i32,
    free_bytes: *mut usize,
    total_bytes: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let (free, total) = (out(free_bytes, "free_bytes")?, out(total_bytes, "total_bytes")?);
        let device = call.gpus()?.device(device)?;
        let info = device.memory_info()?;
        free.set(info.0 as usize);
        total.set(info.1 as usize);
        Ok(())
    })
}
