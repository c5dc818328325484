//! Failures of NVML.

use super::library::LoadError;
use std::ffi::c_int;

/// nvmlReturn_t numbers that the library handles.
pub(crate) const INVALID_ARGUMENT: c_int = 2;
pub(crate) const NOT_SUPPORTED: c_int = 3;
pub(crate) const NOT_FOUND: c_int = 6;
/// The result for a list that is longer than the buffer.
pub(crate) const INSUFFICIENT_SIZE: c_int = 7;

/// A call of NVML that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmlError {
    /// "nvmlInit_v2".
    pub call: &'static str,
    /// Its nvmlReturn_t.
    pub code: i32,
}

/// The meaning of an nvmlReturn_t, and what to do.
fn describe(code: i32) -> &'static str {
    match code {
        1 => "it was not initialised",
        INVALID_ARGUMENT => "an argument was wrong",
        NOT_SUPPORTED => "this GPU does not tell",
        4 => "this user may not ask; ask the administrator",
        NOT_FOUND => "it does not know the GPU",
        INSUFFICIENT_SIZE => "the list grew again and again",
        9 => "the NVIDIA driver is not loaded",
        10 => "the GPU did not answer in time",
        12 => "a library of the driver is missing",
        13 => "the NVIDIA driver is too old",
        15 => "the GPU has fallen off the bus; it must be reset",
        16 => "the GPU must be reset",
        17 => "the system refused it; a container may hide the GPU",
        18 => "the driver and its management library are of two versions; restart the machine",
        _ => "see nvmlReturn_t in NVIDIA's nvml.h",
    }
}

/// Why NVML has no value.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// NVML is missing.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// It lacks a function.
    #[error("NVML has no {0}: update the NVIDIA driver")]
    Missing(&'static str),
    /// A call failed.
    #[error("{} failed: NVML error {}: {}", .0.call, .0.code, describe(.0.code))]
    Call(NvmlError),
    /// The GPU, or a part of one, has no such value.
    #[error("{} is not supported here: {}", .0.call, describe(.0.code))]
    NotSupported(NvmlError),
    /// The list did not fit.
    #[error("no host memory for a list of processes")]
    OutOfHostMemory,
}

impl Failure {
    /// Is a name unknown or invalid?
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Failure::Call(error) if matches!(error.code, INVALID_ARGUMENT | NOT_FOUND))
    }
}
