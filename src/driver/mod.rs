//! The seam between the library and its backend. A [`Table`] of driver calls is filled by the real
//! libcuda ([`cuda`]) or by the simulated machine ([`sim`]); nothing above this module knows which.

pub mod compiler;
pub mod cuda;
pub mod cufile;
pub mod inject;
pub mod library;
pub mod linker;
#[cfg(debug_assertions)]
mod lock_rules;
pub mod math_library;
pub mod nccl;
pub mod newer;
mod nvjitlink;
pub mod nvml;
pub mod nvrtc;
pub mod sim;
pub mod sync_debug;
pub mod table;
pub mod telemetry;

pub use crate::base::error::cuda::{CudaError, CudaResult, code, describe};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
pub use table::{Call, NAMES, Table};

pub use cudarc::driver::sys;

/// A backend in use: its table, with counters and injected faults.
pub struct Driver {
    pub(crate) table: Table,
    simulated: Option<&'static sim::Interface>,
    counts: [AtomicU64; NAMES.len()],
}

impl Driver {
    /// Wraps a filled table: of the simulated machine, or of libcuda.
    pub fn new(simulated: Option<&'static sim::Interface>, table: Table) -> Driver {
        let counts = [const { AtomicU64::new(0) }; NAMES.len()];
        Driver { table, simulated, counts }
    }

    /// "cuda" or "sim".
    pub fn name(&self) -> &'static str {
        if self.is_simulated() { "sim" } else { "cuda" }
    }

    /// Is it the simulated machine?
    pub fn is_simulated(&self) -> bool {
        self.simulated.is_some()
    }

    /// The simulator's functions, if that is the backend.
    pub fn simulated(&self) -> Option<&'static sim::Interface> {
        self.simulated
    }

    /// The address of a call of the table, by its index in [`NAMES`].
    pub fn address(&self, call: usize) -> Result<*mut c_void, CudaError> {
        let name = NAMES.get(call).copied().unwrap_or_default();
        self.table.address(call).ok_or(CudaError::missing(name))
    }

    /// Number of calls of one driver function; `None`: of all. With a GPU's driver, two calls at
    /// the same moment may count as one.
    pub fn count(&self, call: Option<usize>) -> u64 {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        match call {
            Some(index) => self.counts.get(index).map_or(0, load),
            None => self.counts.iter().map(load).sum(),
        }
    }

    #[inline]
    fn count_call(&self, call: Call) {
        let count = &self.counts[call as usize];
        if self.is_simulated() {
            count.fetch_add(1, Ordering::Relaxed);
        } else {
            // A locked instruction would cost as much as the shortest driver calls.
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

/// Does the success of a call show the host that work of a device is over? Queries are not
/// included: those of the host notify at their call sites, those of the library do not count.
const fn shows_completion(call: Call) -> bool {
    use Call::*;
    matches!(
        call,
        cuCtxSynchronize
            | cuStreamSynchronize
            | cuEventSynchronize
            | cuEventElapsedTime
            // Copies to pageable memory are complete when they return.
            | cuMemcpyAsync
            | cuMemcpy2DAsync
            | cuMemcpy3DPeerAsync
            | cuMemFree
            | cuMemFreeHost
            | cuMemHostUnregister
    )
}

/// May a call wait, for the device or for the system? The others only query or queue.
const fn waits(call: Call) -> bool {
    use Call::*;
    !matches!(
        call,
        cuCtxGetCurrent
            | cuCtxSetCurrent
            | cuCtxPushCurrent
            | cuCtxPopCurrent
            | cuCtxGetDevice
            | cuCtxFromGreenCtx
            | cuGreenCtxGetDevResource
            | cuStreamGetGreenCtx
            | cuStreamQuery
            | cuStreamWaitEvent
            | cuStreamGetPriority
            | cuStreamGetFlags
            | cuStreamGetCtx
            | cuStreamGetId
            | cuStreamIsCapturing
            | cuStreamGetCaptureInfo
            | cuThreadExchangeStreamCaptureMode
            | cuEventRecord
            | cuEventRecordWithFlags
            | cuEventQuery
            | cuPointerGetAttribute
            | cuMemRangeGetAttribute
            | cuFuncGetAttribute
            | cuFuncGetName
            | cuFuncGetParamInfo
            | cuGraphGetNodes
            | cuGraphGetEdges
            | cuGraphGetEdges_v2
            | cuGraphGetRootNodes
            | cuGraphNodeGetDependentNodes
            | cuGraphNodeGetDependentNodes_v2
            | cuGraphNodeGetType
            | cuGraphNodeGetToolsId
            | cuGraphExecGetId
            | cuGraphKernelNodeGetParams
            | cuGraphMemcpyNodeGetParams
            | cuGraphMemsetNodeGetParams
            | cuGraphHostNodeGetParams
            | cuGraphEventRecordNodeGetEvent
            | cuGraphEventWaitNodeGetEvent
            | cuGraphMemAllocNodeGetParams
            | cuGraphMemFreeNodeGetParams
            | cuGraphChildGraphNodeGetGraph
            // Where they may wait for host memory, the caller marks the wait.
            | cuMemcpyAsync
            | cuMemcpyPeerAsync
            | cuMemsetD8Async
            | cuMemsetD16Async
            | cuMemsetD32Async
            | cuLaunchKernel
            | cuLaunchKernelEx
    )
}

/// The bits of an argument of a driver call: an integer, an enum, a pointer or a handle.
fn word<T: Copy>(argument: &T) -> u64 {
    let mut word = [0u8; size_of::<u64>()];
    let from = std::ptr::from_ref(argument).cast::<u8>();
    // SAFETY: no more bytes than either has; no argument has padding.
    unsafe { from.copy_to_nonoverlapping(word.as_mut_ptr(), size_of::<T>().min(word.len())) };
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_context_is_sticky() {
        // Errors that kernels caused on an H200, and errors of refused calls, which are harmless.
        for code in [700, 709, 710, 716, 719] {
            assert!(CudaError { call: "cuLaunchKernel", code }.is_sticky(), "{code}");
        }
        for code in [1, 2, 201, 400, 600, 701, 712, 713, 800, 801, 900] {
            assert!(!CudaError { call: "cuLaunchKernel", code }.is_sticky(), "{code}");
        }
    }
}
