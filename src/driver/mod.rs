//! The seam: how a GPU is reached. A [`Table`] of driver calls is filled by the real libcuda
//! ([`cuda`]) or by the simulated machine ([`sim`]); nothing above this module knows which.

pub mod cuda;
pub mod inject;
pub mod library;
pub mod sim;
pub mod table;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
pub use table::{Call, NAMES, Table};

pub use cudarc::driver::sys;

/// CUresult numbers that the library tells apart.
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
    pub const ECC_UNCORRECTABLE: i32 = 214;
    pub const PEER_ACCESS_UNSUPPORTED: i32 = 217;
    pub const INVALID_HANDLE: i32 = 400;
    pub const NOT_FOUND: i32 = 500;
    pub const NOT_READY: i32 = 600;
    pub const ILLEGAL_ADDRESS: i32 = 700;
    pub const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
    pub const CONTEXT_IS_DESTROYED: i32 = 709;
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
    /// Stands for "this driver has no such call"; not a CUresult.
    pub const MISSING: i32 = -1;

    /// A call that this driver lacks.
    pub fn missing(call: &'static str) -> CudaError {
        CudaError { call, code: Self::MISSING }
    }

    /// `Ok` for 0.
    #[inline]
    pub fn check(call: &'static str, code: i32) -> CudaResult {
        if code == code::SUCCESS { Ok(()) } else { Err(CudaError { call, code }) }
    }

    /// Has the device, or its context, become unusable for good?
    pub fn is_sticky(&self) -> bool {
        matches!(
            self.code,
            code::ECC_UNCORRECTABLE
                | code::ILLEGAL_ADDRESS
                | code::CONTEXT_IS_DESTROYED..=code::LAUNCH_FAILED
        )
    }
}

impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.code)
    }
}

/// A backend in use: its table, with counters and the hook for injected failures.
pub struct Driver {
    pub(crate) table: Table,
    name: &'static str,
    counts: [AtomicU64; NAMES.len()],
}

impl Driver {
    /// Wraps a filled table; `name` is "cuda" or "sim".
    pub fn new(name: &'static str, table: Table) -> Driver {
        Driver { table, name, counts: [const { AtomicU64::new(0) }; NAMES.len()] }
    }

    /// "cuda" or "sim".
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Calls so far of one driver function; `None`: of all.
    pub fn count(&self, call: Option<usize>) -> u64 {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        match call {
            Some(index) => self.counts.get(index).map_or(0, load),
            None => self.counts.iter().map(load).sum(),
        }
    }

    /// Counts a call and gives the code that was injected for it, if any.
    #[inline]
    fn enter(&self, call: Call) -> Option<i32> {
        self.counts[call as usize].fetch_add(1, Ordering::Relaxed);
        if inject::armed() { inject::take(call) } else { None }
    }
}
