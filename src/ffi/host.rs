//! Section "Pinned host memory" of the header.

use super::boundary::{boundary, out};
use super::status::tcuda_status;
use crate::memory::host;
use std::ffi::c_void;

/// Page-locked memory of the host, usable from all devices: copies from and to it run in stream
/// order while the host goes on, so that its bytes must be left alone until the stream got there.
///
/// @param bytes     any size; 0: NULL and OK
/// @param[out] ptr  the block, aligned to 64 bytes; the caller's, to be freed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_host_malloc(bytes: usize, ptr: *mut *mut c_void) -> tcuda_status {
    boundary(|call| {
        let ptr = out(ptr, "ptr")?;
        let runtime = call.runtime()?;
        ptr.set(runtime.host.allocate(runtime, bytes)? as *mut c_void);
        Ok(())
    })
}

/// Gives page-locked memory back, after waiting for work that may still use it. If the driver fails,
/// the block is still the caller's: free it again, or leave it to tcuda_shutdown.
///
/// @param ptr  what tcuda_host_malloc gave; may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_host_free(ptr: *mut c_void) -> tcuda_status {
    boundary(|call| {
        if ptr.is_null() {
            return Ok(());
        }
        // A finalizer may come after shutdown: that is no reason to initialise again.
        match crate::runtime::existing(call.inside()) {
            Some(runtime) => runtime.host.free(runtime, ptr as usize),
            None => Err(host::unknown_block(ptr as usize)),
        }
    })
}
