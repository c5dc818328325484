//! The seam between the library and its backend. A [`Table`] of driver calls is filled by the real
//! libcuda ([`cuda`]) or by the simulated machine ([`sim`]); nothing above this module knows which.

pub mod compiler;
pub mod cublas;
pub mod cuda;
pub mod inject;
pub mod library;
#[cfg(debug_assertions)]
mod lock_rules;
pub mod nccl;
pub mod nvml;
pub mod nvrtc;
pub mod table;
pub mod telemetry;

use std::ffi::{c_char, c_void};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
pub use table::{Call, NAMES, Table};

pub use cudarc::driver::sys;

/// CUresult numbers that the library handles.
pub mod code {
    #![allow(missing_docs, reason = "CUDA's own names, without their prefix")]
    pub const SUCCESS: i32 = 0;
    pub const INVALID_VALUE: i32 = 1;
    pub const OUT_OF_MEMORY: i32 = 2;
    pub const NOT_INITIALIZED: i32 = 3;
    pub const DEINITIALIZED: i32 = 4;
    pub const STUB_LIBRARY: i32 = 34;
    pub const NO_DEVICE: i32 = 100;
    pub const INVALID_DEVICE: i32 = 101;
    pub const INVALID_IMAGE: i32 = 200;
    pub const INVALID_CONTEXT: i32 = 201;
    pub const INVALID_PTX: i32 = 218;
    pub const UNSUPPORTED_PTX_VERSION: i32 = 222;
    pub const NO_BINARY_FOR_GPU: i32 = 209;
    pub const ECC_UNCORRECTABLE: i32 = 214;
    pub const PEER_ACCESS_UNSUPPORTED: i32 = 217;
    pub const OPERATING_SYSTEM: i32 = 304;
    pub const INVALID_HANDLE: i32 = 400;
    pub const ILLEGAL_STATE: i32 = 401;
    pub const NOT_FOUND: i32 = 500;
    pub const NOT_READY: i32 = 600;
    pub const ILLEGAL_ADDRESS: i32 = 700;
    pub const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
    pub const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
    pub const CONTEXT_IS_DESTROYED: i32 = 709;
    pub const ASSERT: i32 = 710;
    pub const TOO_MANY_PEERS: i32 = 711;
    pub const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
    pub const HOST_MEMORY_NOT_REGISTERED: i32 = 713;
    pub const HARDWARE_STACK_ERROR: i32 = 714;
    pub const ILLEGAL_INSTRUCTION: i32 = 715;
    pub const MISALIGNED_ADDRESS: i32 = 716;
    pub const INVALID_ADDRESS_SPACE: i32 = 717;
    pub const INVALID_PC: i32 = 718;
    pub const LAUNCH_FAILED: i32 = 719;
    pub const NOT_PERMITTED: i32 = 800;
    pub const NOT_SUPPORTED: i32 = 801;
    pub const SYSTEM_DRIVER_MISMATCH: i32 = 803;
    pub const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
    pub const STREAM_CAPTURE_INVALIDATED: i32 = 901;
    pub const STREAM_CAPTURE_MERGE: i32 = 902;
    pub const STREAM_CAPTURE_UNMATCHED: i32 = 903;
    pub const STREAM_CAPTURE_UNJOINED: i32 = 904;
    pub const STREAM_CAPTURE_ISOLATION: i32 = 905;
    pub const STREAM_CAPTURE_IMPLICIT: i32 = 906;
    pub const STREAM_CAPTURE_EVENT: i32 = 907;
    pub const STREAM_CAPTURE_WRONG_THREAD: i32 = 908;
    pub const GRAPH_EXEC_UPDATE_FAILURE: i32 = 910;
    pub const MAP_FAILED: i32 = 205;
    pub const UNKNOWN: i32 = 999;
}

/// Outcome of a driver call.
pub type CudaResult = Result<(), CudaError>;

/// A driver call that failed, with its CUresult; never a Rust enum, since drivers grow new codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CudaError {
    /// The driver call, "cuMemMap".
    pub call: &'static str,
    /// Its CUresult, or [`CudaError::MISSING`].
    pub code: i32,
}

impl CudaError {
    /// Means "this driver has no such call"; not a CUresult.
    pub const MISSING: i32 = -1;

    /// Means "the call would wait, and sync debug mode forbids it"; not a CUresult.
    pub const WOULD_WAIT: i32 = -2;

    /// The error of a call that this driver lacks.
    pub fn missing(call: &'static str) -> CudaError {
        CudaError { call, code: Self::MISSING }
    }

    /// `Ok` for 0.
    #[inline]
    pub fn check(call: &'static str, code: i32) -> CudaResult {
        if code == code::SUCCESS { Ok(()) } else { Err(CudaError { call, code }) }
    }

    /// Is the device, or its context, permanently unusable?
    pub fn is_sticky(&self) -> bool {
        matches!(
            self.code,
            code::ECC_UNCORRECTABLE
                | code::ILLEGAL_ADDRESS
                | code::CONTEXT_IS_DESTROYED
                | code::ASSERT
                | code::HARDWARE_STACK_ERROR..=code::LAUNCH_FAILED
        )
    }
}

impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.code)
    }
}

/// Passes texts to a function.
pub type PassTexts = fn(&mut dyn FnMut(&[u8]));

/// What the simulated machine provides besides its table. `runtime` passes it.
pub struct SimulatedBackend {
    /// Compiles a program, in place of NVRTC.
    pub compile: fn(&compiler::Program<'_>) -> Result<compiler::Image, compiler::Failure>,
    /// Texts other than the program on which the result of a compilation depends.
    pub compiler_texts: PassTexts,
    /// Lists of directories, separated by colons, that its compiler searches for headers.
    pub include_paths: fn() -> [&'static [u8]; 2],
    /// Finds a driver function by its name, for a stand-in of another library.
    pub function: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    /// Does the machine take time for queries, so that runs are not repeatable?
    pub uses_clock: fn() -> bool,
}

/// A backend in use: its table, with counters and injected faults.
pub struct Driver {
    pub(crate) table: Table,
    simulated: Option<&'static SimulatedBackend>,
    repeats: bool,
    counts: [AtomicU64; NAMES.len()],
}

impl Driver {
    /// Wraps a filled table: of the simulated machine, or of libcuda.
    pub fn new(simulated: Option<&'static SimulatedBackend>, table: Table) -> Driver {
        let counts = [const { AtomicU64::new(0) }; NAMES.len()];
        let repeats = simulated.is_some_and(|backend| !(backend.uses_clock)());
        Driver { table, simulated, repeats, counts }
    }

    /// "cuda" or "sim".
    pub fn name(&self) -> &'static str {
        if self.is_simulated() { "sim" } else { "cuda" }
    }

    /// Is it the simulated machine?
    pub fn is_simulated(&self) -> bool {
        self.simulated.is_some()
    }

    /// The simulated machine's functions, if that is the backend.
    pub fn simulated(&self) -> Option<&'static SimulatedBackend> {
        self.simulated
    }

    /// Must runs be repeatable, so that nothing may depend on time?
    pub fn repeats(&self) -> bool {
        self.repeats
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
            | cuFuncGetAttribute
            | cuFuncGetParamInfo
            // Where they may wait for host memory, the caller marks the wait.
            | cuMemcpyAsync
            | cuMemcpyPeerAsync
            | cuMemsetD8Async
            | cuMemsetD16Async
            | cuMemsetD32Async
            | cuLaunchKernel
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

/// Name and meaning of a CUresult; kept here because they are needed without a driver.
pub fn describe(code: i32) -> (&'static str, &'static str) {
    match code {
        0 => ("CUDA_SUCCESS", "no error"),
        1 => ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
        2 => ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
        3 => ("CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
        4 => ("CUDA_ERROR_DEINITIALIZED", "driver shutting down"),
        34 => ("CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"),
        46 => {
            ("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable")
        }
        100 => ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
        101 => ("CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
        200 => ("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"),
        201 => ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
        205 => ("CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"),
        206 => ("CUDA_ERROR_UNMAP_FAILED", "unmapping of buffer object failed"),
        209 => ("CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for this device"),
        214 => ("CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"),
        217 => ("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"),
        218 => ("CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
        222 => ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the driver is too old for this PTX"),
        304 => ("CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported"),
        400 => ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
        401 => ("CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in this state"),
        500 => ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
        600 => ("CUDA_ERROR_NOT_READY", "device not ready"),
        700 => ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
        701 => ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"),
        702 => ("CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"),
        704 => ("CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"),
        705 => ("CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"),
        709 => ("CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"),
        710 => ("CUDA_ERROR_ASSERT", "an assertion failed in device code"),
        714 => ("CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"),
        715 => ("CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"),
        716 => ("CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"),
        717 => ("CUDA_ERROR_INVALID_ADDRESS_SPACE", "wrong address space for an operation"),
        718 => ("CUDA_ERROR_INVALID_PC", "invalid program counter"),
        719 => ("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
        800 => ("CUDA_ERROR_NOT_PERMITTED", "operation not permitted"),
        801 => ("CUDA_ERROR_NOT_SUPPORTED", "operation not supported"),
        802 => ("CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"),
        803 => ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "driver and kernel module do not match"),
        900 => ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted in a capture"),
        901 => ("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture was invalidated before"),
        902 => ("CUDA_ERROR_STREAM_CAPTURE_MERGE", "the operation would merge two captures"),
        904 => ("CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "the capture was not joined to its stream"),
        905 => ("CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "a dependency would cross the capture"),
        906 => ("CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the default stream would be captured"),
        907 => ("CUDA_ERROR_CAPTURED_EVENT", "the event was last recorded in a capture"),
        908 => ("CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "the capture is another thread's"),
        910 => ("CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph has another shape"),
        999 => ("CUDA_ERROR_UNKNOWN", "unknown error"),
        _ => ("an unknown CUresult", "newer than this library; see the CUDA driver API's cuda.h"),
    }
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
