//! Failures of cuBLAS.

use super::library::LoadError;

/// cublasStatus_t numbers that may mean that memory is short.
const NOT_INITIALIZED: i32 = 1;
const ALLOC_FAILED: i32 = 3;

/// The meaning of a cublasStatus_t.
fn describe(code: i32) -> &'static str {
    match code {
        NOT_INITIALIZED => "it could not begin; the GPU may lack memory, or the driver be too old",
        ALLOC_FAILED => "it found no memory",
        7 => "an argument was wrong",
        8 => "it has nothing for this GPU",
        11 => "it could not reach memory",
        13 => "the GPU failed",
        14 => "it failed inside",
        15 => "it cannot do that",
        _ => "see cublasStatus_t in NVIDIA's cublas_api.h",
    }
}

/// A call of cuBLAS that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CublasError {
    /// "cublasCreate".
    pub call: &'static str,
    /// Its cublasStatus_t.
    pub code: i32,
}

/// Why there is no handle.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// cuBLAS is missing.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// It lacks a function.
    #[error("cuBLAS has no {0}: install one of CUDA 11 or later")]
    Missing(&'static str),
    /// It would use the GPU instead of the simulated machine.
    #[error(
        "cuBLAS needs a GPU: on the simulated machine TCUDA_CUBLAS_PATH may name a stand-in, which \
         exports tcuda_cublas_stand_in"
    )]
    NotSimulated,
    /// A call failed.
    #[error("{} failed: cuBLAS status {}: {}", .0.call, .0.code, describe(.0.code))]
    Call(CublasError),
}

impl Failure {
    /// May freeing memory help?
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Failure::Call(error) if matches!(error.code, NOT_INITIALIZED | ALLOC_FAILED))
    }
}
