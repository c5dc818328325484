//! Failures of cuBLAS and cuSOLVER.

use super::library::{LoadError, Spec};
use std::ffi::CStr;

/// The numbers of a library's statuses that may mean that memory is short: it could not begin, and
/// it found no memory.
fn memory_codes(library: &str) -> [i32; 2] {
    if library == "cuSOLVER" { [1, 2] } else { [1, 3] }
}

/// The meaning of a status.
fn describe(error: &MathError) -> &'static str {
    let [cannot_begin, no_memory] = memory_codes(error.library);
    match error.code {
        code if code == cannot_begin => {
            "it could not begin; the GPU may lack memory, or the driver be too old"
        }
        code if code == no_memory => "it found no memory",
        _ if error.library == "cuSOLVER" => "see cusolverStatus_t in NVIDIA's cusolver_common.h",
        7 => "an argument was wrong",
        8 => "it has nothing for this GPU",
        11 => "it could not reach memory",
        13 => "the GPU failed",
        14 => "it failed inside",
        15 => "it cannot do that",
        _ => "see cublasStatus_t in NVIDIA's cublas_api.h",
    }
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MathError {
    /// "cuBLAS" or "cuSOLVER".
    pub library: &'static str,
    /// "cublasCreate_v2".
    pub call: &'static str,
    /// Its cublasStatus_t or cusolverStatus_t.
    pub code: i32,
}

/// Why there is no handle.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The library is missing.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// It lacks a function.
    #[error("{} has no {}: install one of CUDA 11 or later", .0.title, .1.to_string_lossy())]
    Missing(&'static Spec, &'static CStr),
    /// It would use the GPU instead of the simulated machine; its stand-in's symbol.
    #[error(
        "{} needs a GPU: on the simulated machine {} may name a stand-in, which exports {}",
        .0.title, .0.variable.to_string_lossy(), .1.to_string_lossy()
    )]
    NotSimulated(&'static Spec, &'static CStr),
    /// A call failed.
    #[error("{} failed: {} status {}: {}", .0.call, .0.library, .0.code, describe(.0))]
    Call(MathError),
}

impl Failure {
    /// May freeing memory help?
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Failure::Call(error) if memory_codes(error.library).contains(&error.code))
    }
}
