//! Failures of NCCL.

use super::library::{LoadError, Text};
use std::fmt;

/// The oldest supported NCCL, in the format of ncclGetVersion: 2.10, which added bfloat16.
pub(crate) const MINIMUM_VERSION: i32 = 21000;

/// A failed call of NCCL.
#[derive(Debug)]
pub struct NcclError {
    /// "ncclAllReduce"
    pub call: &'static str,
    /// Its ncclResult_t.
    pub code: i32,
    /// The meaning of the code.
    pub meaning: &'static str,
    /// NCCL's own details.
    pub details: Text,
}

/// Why NCCL is not usable, or failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// NCCL is missing.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// It lacks a function.
    #[error(
        "the library loaded as NCCL has no {0}: install a newer one, or correct TCUDA_NCCL_PATH"
    )]
    Missing(&'static str),
    /// It is older than [`MINIMUM_VERSION`].
    #[error("NCCL is too old: it is {}, and {} is needed", Version(*.0), Version(MINIMUM_VERSION))]
    TooOld(i32),
    /// It is the real NCCL, and there is no GPU.
    #[error(
        "NCCL works on GPUs only, and the simulated machine is in use; there TCUDA_NCCL_PATH may \
         name a library that simulates it"
    )]
    OnSimulatedMachine,
    /// It is a stand-in, and there is a GPU.
    #[error(
        "the library loaded as NCCL simulates it, for the simulated machine only; correct or unset \
         TCUDA_NCCL_PATH"
    )]
    Simulated,
    /// A call failed.
    #[error("{0}")]
    Call(NcclError),
}

/// A version in NCCL's format.
pub(crate) struct Version(pub(crate) i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, _) = parts_of(self.0);
        write!(f, "{major}.{minor}")
    }
}

/// Major, minor, patch: the major version is a multiple of 1000 up to 2.8, of 10000 since.
pub(crate) fn parts_of(version: i32) -> (i32, i32, i32) {
    let unit = if version < 10_000 { 1000 } else { 10_000 };
    (version / unit, version % unit / 100, version % 100)
}

impl fmt::Display for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NcclError { call, code, meaning, details } = self;
        write!(f, "{call} failed: {meaning} ({code})")?;
        if details.is_empty() { Ok(()) } else { write!(f, ": {details}") }
    }
}
