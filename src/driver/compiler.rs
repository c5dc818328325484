//! Compiles CUDA C++ with NVRTC to an image for `cuModuleLoadData`.

use super::Driver;
use super::linker::Input;
use super::nvrtc::{self, Format};
pub use crate::base::error::compiler::{Failure, Log, NvrtcError};
use crate::base::waiting;
use std::ffi::CStr;

/// Whether a program is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// Not at all.
    Whole,
    /// With images.
    Linked,
    /// With link-time optimisation.
    Optimized,
}

/// The input of a compilation.
#[derive(Clone, Copy)]
pub struct Program<'a> {
    /// CUDA C++; empty with images: they have the kernel.
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
    /// How it is linked.
    pub linkage: Linkage,
    /// What it is linked with.
    pub images: &'a [Input<'a>],
}

impl Program<'_> {
    /// Is there something to compile?
    pub fn has_source(&self) -> bool {
        self.images.is_empty() || !self.source.is_empty()
    }
}

/// The result of a compilation.
#[derive(Debug, Default)]
pub struct Image {
    /// The image for `cuModuleLoadData`.
    pub bytes: Vec<u8>,
    /// The kernel's name in the image, NUL-terminated.
    pub entry: Vec<u8>,
    /// The compiler's version, as in [`version`].
    pub version: u32,
}

impl Driver {
    /// Compiles a program. The simulated machine has no machine code, so its images are PTX.
    pub fn compile(&self, program: &Program<'_>) -> Result<Image, Failure> {
        let _waiting = waiting::begin();
        nvrtc::compile(program, self.format())
    }

    /// The format of images for its devices.
    pub(super) fn format(&self) -> Format {
        if self.is_simulated() { Format::Ptx } else { Format::MachineCode }
    }

    /// Loads the compiler. That takes a lock which a thread that waits for a kernel must not hold.
    pub fn find_compiler(&self) -> Result<(), Failure> {
        nvrtc::set_driver_version(&self.table);
        nvrtc::find()
    }
}

/// Version of the compiler in this process: NVRTC 12.9 is 12090. 0: not needed yet.
pub fn version() -> u32 {
    nvrtc::known_version()
}
