//! Section "Memory" of the header: the functions that PyTorch calls for its memory.

use super::boundary::{Call, boundary};
use super::status::{last_message, tcuda_status};
use crate::base::error::Result;
use crate::base::log::{self, Level};
use crate::base::stderr;
use crate::base::text::Count;
use crate::driver::sys::CUstream_st;
use crate::gpu::gpus;
use crate::interop::{native_stream, torch};
use crate::memory::{self};
use crate::runtime::pointer_kind::{Kind, name_kind};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the body of a function that returns no status: a failure is logged with the function's
/// name.
pub(super) fn run_logged(name: &str, body: impl FnOnce(&Call) -> Result<()>) {
    let _ = boundary(|call| logged(name, call, body));
}

/// [`run_logged`] for an allocation, after which PyTorch continues with NULL: without a log
/// listener the first failure is written to stderr.
pub(super) fn run_logged_allocation(name: &str, body: impl FnOnce(&Call) -> Result<()>) {
    let mut is_logged = false;
    let status = boundary(|call| {
        is_logged = log::is_enabled(Level::Error);
        logged(name, call, body)
    });
    if !is_logged && !matches!(status, tcuda_status::Ok) {
        report_once(name);
    }
}

fn logged(name: &str, call: &Call, body: impl FnOnce(&Call) -> Result<()>) -> Result<()> {
    body(call).inspect_err(|error| log::write(Level::Error, format_args!("{name}: {error}")))
}

/// Writes this thread's last error to stderr, the first time only.
#[cold]
fn report_once(name: &str) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if IS_REPORTED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: a message of this thread, or a constant, that ends in a NUL.
    let message = unsafe { CStr::from_ptr(last_message()) }.to_str().unwrap_or("");
    stderr::write(format_args!("{name}: {message}"));
}

/// Allocates memory for PyTorch: torch.cuda.memory.CUDAPluggableAllocator takes the path of this
/// library and the names of this function and tcuda_torch_free; the functions below are set one by
/// one (docs/pytorch.md).
///
/// PyTorch has no way to receive a failure and uses what it gets: out of memory it gets NULL, and
/// its next kernel fails. The reason goes to tcuda_set_log_callback; without a callback for errors
/// the first one is written to stderr. On a stream that is captured, the block comes from the pool
/// that tcuda_torch_begin_allocate_to_pool began. (for torch.cuda.CUDAPluggableAllocator)
///
/// @param bytes      0: NULL
/// @param device     ordinal
/// @param cu_stream  may be NULL: the device's default stream. A stream must live as long as
///                   tcuda keeps memory that was used on it, as PyTorch's own do
/// @return           the block, aligned to 512 bytes; NULL: it failed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_torch_malloc(
    bytes: isize,
    device: i32,
    cu_stream: *mut CUstream_st,
) -> *mut c_void {
    let mut address = 0;
    run_logged_allocation("tcuda_torch_malloc", |call| {
        address = torch::allocate(call.gpus()?, device, cu_stream, bytes)?;
        Ok(())
    });
    address as *mut c_void
}

/// Gives a block back, in the order of its stream; after tcuda_shutdown it does nothing.
/// (for torch.cuda.CUDAPluggableAllocator)
///
/// @param ptr  what tcuda_torch_malloc gave, or tcuda_malloc; may be NULL: no-op
/// @param bytes, device, cu_stream  ignored: tcuda knows them
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_torch_free(
    ptr: *mut c_void,
    bytes: isize,
    device: i32,
    cu_stream: *mut CUstream_st,
) {
    let _ = (bytes, device, cu_stream);
    if ptr.is_null() {
        return;
    }
    run_logged("tcuda_torch_free", |call| match gpus::existing(call.inside()) {
        Some(gpus) => {
            memory::free(gpus, ptr as u64).map_err(|error| name_kind(gpus, Kind::Device, error))
        }
        None => Err(memory::unknown_pointer(ptr as u64)),
    });
}

/// For set_init_fn: initialises the library. (for torch.cuda.CUDAPluggableAllocator)
///
/// @param device_count  devices that PyTorch sees; if it is not the number of tcuda, this is logged
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_torch_init(device_count: i32) {
    run_logged("tcuda_torch_init", |call| {
        let own = call.gpus()?.devices.len();
        if usize::try_from(device_count) != Ok(own) {
            log::write(
                Level::Warning,
                format_args!(
                    "tcuda_torch_init: PyTorch has {}, tcuda {own}",
                    Count(device_count.max(0) as usize, "device")
                ),
            );
        }
        Ok(())
    });
}

/// For set_reset_fn: tcuda_memory_empty_cache. (torch.cuda.empty_cache)
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_torch_reset() {
    run_logged("tcuda_torch_reset", |call| {
        let Some(gpus) = gpus::existing(call.inside()) else { return Ok(()) };
        gpus.devices.iter().try_for_each(|device| device.memory().empty_cache(gpus))
    });
}

/// For set_memory_fraction_fn: tcuda_memory_fraction_set.
/// (torch.cuda.set_per_process_memory_fraction)
///
/// @param fraction  as for tcuda_memory_fraction_set
/// @param device    ordinal
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_torch_memory_fraction(fraction: f64, device: i32) {
    run_logged("tcuda_torch_memory_fraction", |call| {
        call.gpus()?.device(device)?.memory().set_fraction(fraction)
    });
}

/// For set_base_alloc_fn: the segment that holds an address.
/// (for torch.cuda.CUDAPluggableAllocator)
///
/// @param ptr         any address of a segment; may be NULL: NULL
/// @param[out] bytes  its length; may be NULL
/// @return            its first byte; NULL, and bytes untouched: tcuda has no memory there
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_torch_base_alloc(
    ptr: *mut c_void,
    bytes: *mut usize,
) -> *mut c_void {
    let mut base = 0;
    if ptr.is_null() {
        return std::ptr::null_mut();
    }
    run_logged("tcuda_torch_base_alloc", |_| {
        let (address, length) = memory::device::snapshot::segment_of(ptr as u64)?;
        base = address;
        if !bytes.is_null() {
            // SAFETY: not NULL, and writable by the caller's promise.
            unsafe { bytes.write_unaligned(length as usize) };
        }
        Ok(())
    });
    base as *mut c_void
}

/// For set_record_stream_fn, without which Tensor.record_stream does nothing: records that the
/// block is also used on a stream, of any device. (tcuda_record_stream)
/// (torch.Tensor.record_stream)
///
/// @param ptr        what tcuda_torch_malloc gave; may be NULL: no-op
/// @param cu_stream  may be NULL: the default stream of the block's device
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_torch_record_stream(ptr: *mut c_void, cu_stream: *mut CUstream_st) {
    if ptr.is_null() {
        return;
    }
    run_logged("tcuda_torch_record_stream", |call| match gpus::existing(call.inside()) {
        Some(gpus) => native_stream::record(gpus, ptr as u64, cu_stream)
            .map_err(|error| name_kind(gpus, Kind::Device, error)),
        None => Err(memory::unknown_pointer(ptr as u64)),
    });
}

/// For set_begin_allocate_to_pool: from now on allocations on a device come from a private pool,
/// created now if it is new: those on the streams of a capture, or, where id1 is not 0 and no
/// capture has begun, those of this thread. (for torch.cuda.graph)
///
/// @param device    ordinal
/// @param id0, id1  PyTorch's MempoolId_t, by value
/// @param filter    PyTorch's std::function, which C cannot call; ignored, may be NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_torch_begin_allocate_to_pool(
    device: i32,
    id0: u64,
    id1: u64,
    filter: *const c_void,
) {
    let _ = filter;
    run_logged("tcuda_torch_begin_allocate_to_pool", |call| {
        torch::begin(call.gpus()?, device, (id0, id1))
    });
}

/// For set_end_allocate_to_pool_fn: ends that. The pool, and its cached memory, stays.
/// (for torch.cuda.CUDAPluggableAllocator)
///
/// @param device  ordinal
/// @param id0     PyTorch's MempoolId_t, by value
/// @param id1     PyTorch's MempoolId_t, by value
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_torch_end_allocate_to_pool(device: i32, id0: u64, id1: u64) {
    run_logged("tcuda_torch_end_allocate_to_pool", |call| {
        torch::end(call.gpus()?, device, (id0, id1))
    });
}

/// Marks the begin of a capture of the host on a device. tcuda finds the capture of a stream
/// without a mark; with one, slow paths of all streams look for captures, and errors for want of
/// memory name captures as a cause. (+: c10's markCaptureBegin)
///
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_torch_mark_capture_begin(device: i32) {
    run_logged("tcuda_torch_mark_capture_begin", |call| {
        torch::mark_capture_begin(call.gpus()?, device)
    });
}

/// Marks the end of a capture; an end without a begin is logged. (+: c10's markCaptureEnd)
///
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_torch_mark_capture_end(device: i32) {
    run_logged("tcuda_torch_mark_capture_end", |call| {
        torch::mark_capture_end(call.gpus()?, device)
    });
}

/// For set_release_pool: drops the reference to the pool of one tcuda_torch_begin_allocate_to_pool.
/// After the last, unused memory of the pool goes back to the driver with the next
/// tcuda_memory_empty_cache, or when memory is short, after all work of the device: launches of
/// PyTorch's graphs are not known. (for torch.cuda.CUDAPluggableAllocator)
///
/// @param device  ordinal
/// @param id0     PyTorch's MempoolId_t, by value
/// @param id1     PyTorch's MempoolId_t, by value
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_torch_release_pool(device: i32, id0: u64, id1: u64) {
    run_logged("tcuda_torch_release_pool", |call| {
        // It may be called when the interpreter ends: it must not initialise the library again.
        let Some(gpus) = gpus::existing(call.inside()) else { return Ok(()) };
        torch::release(gpus, device, (id0, id1))
    });
}
