//! Section "Memory" of the header: memory for streams that a host has as native handles.

use super::boundary::{Call, boundary, out};
use super::status::tcuda_status;
use crate::base::error::{Error, Result};
use crate::driver::sys::CUstream_st;
use crate::gpu::gpus;
use crate::interop::native_stream;
use crate::memory;
use crate::memory::config::size::UNIT;
use crate::runtime::pointer_kind::{Kind, name_kind};
use std::ffi::c_void;

fn allocate(
    call: &Call,
    bytes: usize,
    device: i32,
    cu_stream: *mut CUstream_st,
    ptr: *mut *mut c_void,
) -> Result<()> {
    let ptr = out(ptr, "ptr")?;
    let address = native_stream::allocate(call.gpus()?, device, cu_stream, bytes as u64)?;
    ptr.set(address as *mut c_void);
    Ok(())
}

/// tcuda_malloc for a stream that the host has as a native handle: the call that an adapter of
/// another library makes for each allocation. (+)
///
/// @param bytes      any size; 0: NULL and OK
/// @param device     ordinal, TCUDA_CURRENT_DEVICE: the stream's, else this thread's current one
/// @param cu_stream  a CUstream or cudaStream_t of a device's primary context; NULL: the default
///                   stream of the device. It must live as long as tcuda keeps memory that was used
///                   on it; to end it earlier, use tcuda_stream_from_external
/// @param[out] ptr   the block, aligned to 512 bytes unless another library's allocator gave it;
///                   the caller's, to be freed by tcuda_free_on or tcuda_free
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_malloc_native(
    bytes: usize,
    device: i32,
    cu_stream: *mut CUstream_st,
    ptr: *mut *mut c_void,
) -> tcuda_status {
    boundary(|call| allocate(call, bytes, device, cu_stream, ptr))
}

/// tcuda_malloc_native for interfaces that pass an alignment. (+)
///
/// @param bytes      as in tcuda_malloc_native
/// @param alignment  a power of two of at most 512; 0: 512
/// @param device, cu_stream  as in tcuda_malloc_native
/// @param[out] ptr   as in tcuda_malloc_native; the caller's, to be freed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_malloc_native_aligned(
    bytes: usize,
    alignment: usize,
    device: i32,
    cu_stream: *mut CUstream_st,
    ptr: *mut *mut c_void,
) -> tcuda_status {
    boundary(|call| {
        if alignment != 0 && !alignment.is_power_of_two() || alignment as u64 > UNIT {
            return Err(Error::OutOfRange {
                name: "alignment",
                value: alignment as i64,
                allowed: "pass a power of two of at most 512, or 0",
            });
        }
        allocate(call, bytes, device, cu_stream, ptr)
    })
}

/// Gives a block back in the order of a stream, as cudaFreeAsync does. The stream must come after
/// all uses of the block, except those on streams that were recorded for it. Later work of the
/// stream may get the memory at once, and other streams after the work that the stream has now. The
/// host does not wait. Memory of private pools, of segments (expandable_segments:False), of another
/// device than the stream's, or freed during a capture of the stream returns to the stream that it
/// was allocated for, after that work. (+)
///
/// @param ptr        what tcuda_malloc, tcuda_malloc_native or tcuda_torch_malloc gave; may be
///                   NULL: no-op
/// @param cu_stream  as in tcuda_malloc_native, of any device; NULL: the default stream of ptr's
///                   device
/// @return           TCUDA_STATUS_OUT_OF_HOST_MEMORY: ptr is not freed; call again
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_free_on(
    ptr: *mut c_void,
    cu_stream: *mut CUstream_st,
) -> tcuda_status {
    boundary(|call| {
        if ptr.is_null() {
            return Ok(());
        }
        // A finalizer may run after shutdown: it must not initialise the library again.
        match gpus::existing(call.inside()) {
            Some(gpus) => native_stream::free(gpus, ptr as u64, cu_stream)
                .map_err(|error| name_kind(gpus, Kind::Device, error)),
            None => Err(memory::unknown_pointer(ptr as u64)),
        }
    })
}
