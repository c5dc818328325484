//! Makes a device's context current for a call of NCCL, which finds its device by the context. The
//! thread is outside the library meanwhile, so that the library may be shut down.

use crate::base::error::Result;
use crate::driver::sys::CUcontext;
use crate::driver::{CudaError, code};
use crate::gpu::device::Device;
use std::ffi::c_int;

type Push = unsafe extern "C" fn(CUcontext) -> c_int;
type Pop = unsafe extern "C" fn(*mut CUcontext) -> c_int;

/// A primary context, with the driver's functions, which are never unloaded.
#[derive(Clone, Copy)]
pub(super) struct Context {
    context: usize,
    push: Push,
    pop: Pop,
}

/// Restores the caller's context when dropped, also during a panic.
struct Pushed(Pop);

impl Drop for Pushed {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: undoes the push; `context` is writable.
        let _ = unsafe { (self.0)(&mut context) };
    }
}

impl Context {
    /// The primary context of a device, retained until shutdown.
    pub(super) fn of(device: &Device) -> Result<Context> {
        let context = device.context()? as usize;
        let table = &device.driver().table;
        let push = table.cuCtxPushCurrent.ok_or(CudaError::missing("cuCtxPushCurrent"))?;
        let pop = table.cuCtxPopCurrent.ok_or(CudaError::missing("cuCtxPopCurrent"))?;
        Ok(Context { context, push, pop })
    }

    /// Runs `body` with the context current. `body` gets an error if the push failed: after a
    /// shutdown the context may be gone.
    pub(super) fn within<R>(&self, body: impl FnOnce(Result<(), CudaError>) -> R) -> R {
        #[cfg(any(test, feature = "host_faults"))]
        let _in_driver = crate::base::host_faults::in_driver();
        // SAFETY: the driver reports an error for a context that no longer exists.
        let result = unsafe { (self.push)(self.context as CUcontext) };
        let _pushed = (result == code::SUCCESS).then_some(Pushed(self.pop));
        body(CudaError::check("cuCtxPushCurrent", result))
    }
}
