//! Failures of cuFile.

use super::library::{LoadError, Spec};
use std::ffi::CStr;
use std::fmt;

/// What to do instead, as the end of a sentence.
fn instead(call: &str) -> &'static str {
    if call.starts_with("cuFileBuf") {
        "memory need not be registered"
    } else {
        "open the file with TCUDA_FILE_STAGING, which needs no cuFile"
    }
}

/// The meaning of a status, and what to do.
fn describe(code: i32) -> &'static str {
    match code {
        5001 => {
            "its kernel driver nvidia-fs is not loaded, and compatible mode is off: load it, \
                 or set allow_compat_mode in cufile.json"
        }
        5004 | 5005 => "nvidia-fs has another version: install the one of this cuFile",
        5006 => "it is shutting down: try again",
        5007 => "this platform has no GPUDirect Storage",
        5008 | 5020 | 5034 => "this file system, or its options, have no GPUDirect Storage",
        5009 => "this GPU has no GPUDirect Storage",
        5011 => "a call of the CUDA driver failed",
        5012..=5014 => "it does not accept this memory",
        5018 => "it accepts regular files only",
        5023 => "the memory is registered already, perhaps by another library",
        5024 => "the memory is not registered",
        5025 => "it may not use its driver or the file: check the permissions",
        5027 => {
            "it finds no properties of the file's disk, as in a container without /run/udev: \
                 mount that of the host"
        }
        5033 => "nvidia-fs could not be set up",
        5036 => "the GPU has no room to pin so much memory: register less of it",
        _ => "see CUfileOpError in NVIDIA's cufile.h",
    }
}

/// The status of the driver in a message, if there is one.
struct Cuda(i32);

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ", CUDA status {}", self.0) }
    }
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CufileError {
    /// "cuFileHandleRegister".
    pub call: &'static str,
    /// Its CUfileOpError.
    pub code: i32,
    /// The CUresult of the driver call that failed in it, or 0.
    pub cuda: i32,
}

/// Why cuFile did not do its part.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The library is missing.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// It lacks a function.
    #[error(
        "{} has no {}: install one of CUDA 11.4 or later, or {}",
        .0.title, .1.to_string_lossy(), instead("")
    )]
    Missing(&'static Spec, &'static CStr),
    /// It would use the GPU instead of the simulated machine; its stand-in's symbol.
    #[error(
        "{} needs a GPU: on the simulated machine {}; {} may name a stand-in, which exports {}",
        .0.title, instead(""), .0.variable.to_string_lossy(), .1.to_string_lossy()
    )]
    NotSimulated(&'static Spec, &'static CStr),
    /// A call failed.
    #[error(
        "{} failed: cuFile status {}{}: {}; or {}",
        .0.call, .0.code, Cuda(.0.cuda), describe(.0.code), instead(.0.call)
    )]
    Call(CufileError),
    /// A system call failed in it; its errno.
    #[error("{0} failed with errno {1}")]
    System(&'static str, i32),
}

impl Failure {
    /// Can cuFile not be used here, whatever the file and memory?
    pub fn is_not_supported(&self) -> bool {
        match self {
            Failure::Missing(..) | Failure::NotSimulated(..) => true,
            Failure::Call(error) => {
                matches!(error.code, 5001 | 5004 | 5005 | 5007..=5009 | 5020 | 5033 | 5034)
            }
            _ => false,
        }
    }
}
