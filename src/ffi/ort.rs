//! Section "Memory" of the header: the functions that ONNX Runtime calls for its memory.

use super::torch::{run_logged, run_logged_allocation};
use crate::gpu::device::CURRENT;
use crate::gpu::gpus;
use crate::memory;
use crate::runtime::pointer_kind::{Kind, name_kind};
use std::ffi::c_void;

/// Allocates memory of the current device, in the order of its current stream, for libraries that
/// take a function void *(size_t). ONNX Runtime takes its address as the option gpu_external_alloc
/// of the CUDA execution provider. Failures are logged as those of tcuda_torch_malloc. (+)
///
/// @param bytes  0: NULL
/// @return       the block, aligned to 512 bytes; NULL: it failed
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_ort_malloc(bytes: usize) -> *mut c_void {
    let mut address = 0;
    run_logged_allocation("tcuda_ort_malloc", |call| {
        let gpus = call.gpus()?;
        let device = gpus.device(CURRENT)?;
        let stream = device.streams.current();
        address = device.memory().allocate(gpus, device, stream, bytes as u64)?;
        Ok(())
    });
    address as *mut c_void
}

/// Gives a block back, in the order of its stream, for libraries that take a function
/// void (void *); after tcuda_shutdown it does nothing. ONNX Runtime: gpu_external_free. (+)
///
/// @param ptr  what tcuda_ort_malloc gave, or tcuda_malloc; may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_ort_free(ptr: *mut c_void) {
    if ptr.is_null() {
        return;
    }
    run_logged("tcuda_ort_free", |call| match gpus::existing(call.inside()) {
        Some(gpus) => {
            memory::free(gpus, ptr as u64).map_err(|error| name_kind(gpus, Kind::Device, error))
        }
        None => Err(memory::unknown_pointer(ptr as u64)),
    });
}

/// tcuda_memory_empty_cache for libraries that take a function void (void). ONNX Runtime:
/// gpu_external_empty_cache. (+)
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_ort_empty_cache() {
    run_logged("tcuda_ort_empty_cache", |call| match gpus::existing(call.inside()) {
        Some(gpus) => memory::empty_cache(gpus),
        None => Ok(()),
    });
}
