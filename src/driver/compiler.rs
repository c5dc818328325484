//! Compiles CUDA C++ to an image for `cuModuleLoadData`: with NVRTC for a GPU, with the host's C++
//! compiler for the simulated machine.

use super::{Driver, nvrtc};
pub use crate::base::error::compiler::{Failure, Log, NvrtcError};
use crate::base::waiting;
use std::ffi::CStr;

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
