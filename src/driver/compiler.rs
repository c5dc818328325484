//! Compiles CUDA C++ to an image for `cuModuleLoadData`: with NVRTC for a GPU, with the host's C++
//! compiler for the simulated machine.

use super::library::LoadError;
use super::{Driver, nvrtc};
use crate::base::waiting;
use std::ffi::CStr;
use std::fmt;

/// The input of a compilation.
#[derive(Clone, Copy)]
pub struct Program<'a> {
    /// CUDA C++.
    pub source: &'a CStr,
    /// The name of the source in the compiler's messages.
    pub title: &'a CStr,
    /// The kernel: `add`, or an instance of a template, `scale<float>`.
    pub entry: &'a CStr,
    /// Is `entry` also the kernel's name in the image? It is if the kernel is declared extern "C".
    pub is_plain: bool,
    /// Options for the compiler.
    pub flags: &'a [&'a CStr],
    /// Compute capability of the device: 90 is 9.0.
    pub capability: u32,
}

/// The result of a compilation.
#[derive(Debug, Default)]
pub struct Image {
    /// The image for `cuModuleLoadData`.
    pub bytes: Vec<u8>,
    /// The kernel's name in the image, NUL-terminated.
    pub entry: Vec<u8>,
    /// The compiler's version, as in [`Driver::compiler_version`].
    pub version: u32,
}

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
    /// The simulated machine found no compiler.
    #[error(
        "no C++ compiler was found, with which the simulated machine compiles kernels: tried $CXX, \
         c++, g++ and clang++; install one, or set CXX to it"
    )]
    NoCompiler,
    /// The compiler could not be run.
    #[error("the host's C++ compiler cannot be used: {what} failed (errno {code}){}",
        crate::base::error::descriptor_hint(*.code))]
    Host {
        /// The failed operation.
        what: &'static str,
        /// The system's number.
        code: i32,
    },
    /// Host memory ran out.
    #[error("no host memory for a program")]
    OutOfHostMemory,
}

impl Driver {
    /// Compiles a program.
    pub fn compile(&self, program: &Program<'_>) -> Result<Image, Failure> {
        let _waiting = waiting::begin();
        let Some(simulated) = self.simulated() else { return nvrtc::compile(program) };
        #[cfg(any(test, feature = "host_faults"))]
        let _in_driver = crate::base::host_faults::in_driver();
        (simulated.compile)(program)
    }

    /// Loads the compiler. That takes a lock which a thread that waits for a kernel must not hold.
    pub fn find_compiler(&self) -> Result<(), Failure> {
        if self.is_simulated() {
            return Ok(());
        }
        nvrtc::set_driver_version(&self.table);
        nvrtc::find()
    }

    /// Texts other than the program on which the result of a compilation depends.
    pub fn compiler_texts(&self, take: &mut dyn FnMut(&[u8])) {
        if let Some(simulated) = self.simulated() {
            (simulated.compiler_texts)(take);
        }
    }

    /// Directories that the compiler searches for headers, besides those of the program's options.
    pub fn for_each_include_folder<E>(
        &self,
        take: &mut dyn FnMut(&'static [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let lists = self.simulated().map(|simulated| (simulated.include_paths)());
        lists
            .iter()
            .flatten()
            .flat_map(|list| list.split(|byte| *byte == b':'))
            .filter(|path| !path.is_empty())
            .try_for_each(take)
    }

    /// Version of the compiler in this process: NVRTC 12.9 is 12090. 0: not needed yet.
    pub fn compiler_version(&self) -> u32 {
        if self.is_simulated() { 0 } else { nvrtc::known_version() }
    }
}
