//! Functions of the host that streams call.

use cudarc::driver::sys::CUstream;
use std::ffi::{c_int, c_void};

/// A callback of the host.
#[derive(Clone, Copy)]
pub(super) struct HostFunction {
    pub(super) function: unsafe extern "C" fn(*mut c_void),
    pub(super) user_data: *mut c_void,
}

/// A callback of `cuStreamAddCallback`. It runs even if the device failed.
#[derive(Clone, Copy)]
pub(super) struct Callback {
    pub(super) function: unsafe extern "C" fn(CUstream, c_int, *mut c_void),
    pub(super) stream: CUstream,
    pub(super) user_data: *mut c_void,
}

// SAFETY: the host passed the pointers to be used on a thread of the driver's choice.
unsafe impl Send for Callback {}
// SAFETY: it is only copied.
unsafe impl Sync for Callback {}

// SAFETY: the host passed the pointer to be used on a thread of the driver's choice.
unsafe impl Send for HostFunction {}
// SAFETY: it is only copied.
unsafe impl Sync for HostFunction {}
