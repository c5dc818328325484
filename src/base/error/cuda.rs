//! Failed calls of the driver.

use std::fmt;

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
    pub const LAUNCH_TIMEOUT: i32 = 702;
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
    pub const COOPERATIVE_LAUNCH_TOO_LARGE: i32 = 720;
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
    pub const INVALID_CLUSTER_SIZE: i32 = 912;
    pub const INVALID_RESOURCE_TYPE: i32 = 914;
    pub const INVALID_RESOURCE_CONFIGURATION: i32 = 915;
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
