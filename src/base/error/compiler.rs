//! Failures of compilers.

use super::library::LoadError;
use std::fmt;

/// The compiler's messages, as far as there was memory for them.
#[derive(Debug, Default)]
pub struct Log(Vec<u8>);

/// Longest part of the messages that is kept: an error has no room for more.
const MOST: usize = 4096;

impl Log {
    /// Copies a text.
    pub fn of(text: &[u8]) -> Log {
        let text = text.trim_ascii();
        let kept = &text[..text.len().min(MOST)];
        let mut copy = Vec::new();
        if copy.try_reserve_exact(kept.len()).is_ok() {
            copy.extend_from_slice(kept);
        }
        Log(copy)
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("the compiler gave no reason");
        }
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("?")?;
            }
        }
        Ok(())
    }
}

/// A call of NVRTC that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvrtcError {
    /// "nvrtcCreateProgram".
    pub call: &'static str,
    /// Its nvrtcResult.
    pub code: i32,
}

/// Why a compilation failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// NVRTC is missing.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// It lacks a function.
    #[error("NVRTC has no {0}: install that of CUDA 11.2 or newer")]
    Missing(&'static str),
    /// A call failed.
    #[error("{} failed: NVRTC error {}", .0.call, .0.code)]
    Call(NvrtcError),
    /// NVRTC cannot compile for the device.
    #[error(
        "NVRTC {}.{} has no target for devices of capability {}.{}; install another, or set \
         TCUDA_NVRTC_PATH to it", .version / 1000, .version % 1000 / 10, .capability / 10,
        .capability % 10
    )]
    Target {
        /// Version of NVRTC: 12090 is 12.9.
        version: u32,
        /// Compute capability of the device: 90 is 9.0.
        capability: u32,
    },
    /// The source is invalid.
    #[error("the source does not compile:\n{0}")]
    Source(Log),
    /// NVRTC is too old for link-time optimisation.
    #[error("NVRTC has no nvrtcGetLTOIR: link-time optimisation needs that of CUDA 12.0 or newer")]
    NoLtoIr,
    /// nvJitLink lacks a function.
    #[error("nvJitLink has no {0}: install that of CUDA 12.0 or newer")]
    MissingInLinker(&'static str),
    /// A call of nvJitLink failed.
    #[error("{} failed: nvJitLink error {}", .0.call, .0.code)]
    LinkCall(NvrtcError),
    /// Images that cannot be linked.
    #[error("the images do not link:\n{0}")]
    Link(Log),
    /// Host memory ran out.
    #[error("no host memory for a program")]
    OutOfHostMemory,
}
