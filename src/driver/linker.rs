//! Links images of device code: by the driver, or by nvJitLink with link-time optimisation.

use super::compiler::{Failure, Log};
use super::nvrtc;
use super::sys::{CUjit_option, CUjitInputType, CUlinkState};
use super::{Driver, code, nvjitlink};
use crate::base::error::{Error, Result};
use crate::base::text::Text;
use crate::base::waiting;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

/// What an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text of PTX, with or without a NUL.
    Ptx,
    /// Machine code.
    Cubin,
    /// PTX and machine code for several architectures.
    FatBinary,
    /// A host's object file with device code.
    Object,
    /// An archive of such.
    Library,
    /// The intermediate representation of link-time optimisation.
    LtoIr,
}

impl Kind {
    fn of_driver(self) -> CUjitInputType {
        use CUjitInputType::*;
        match self {
            Kind::Ptx => CU_JIT_INPUT_PTX,
            Kind::Cubin => CU_JIT_INPUT_CUBIN,
            Kind::FatBinary => CU_JIT_INPUT_FATBINARY,
            Kind::Object => CU_JIT_INPUT_OBJECT,
            Kind::Library => CU_JIT_INPUT_LIBRARY,
            Kind::LtoIr => CU_JIT_INPUT_NVVM,
        }
    }

    /// Its number in nvJitLink's `nvJitLinkInputType`.
    pub(super) fn of_nvjitlink(self) -> i32 {
        match self {
            Kind::Cubin => 1,
            Kind::Ptx => 2,
            Kind::LtoIr => 3,
            Kind::FatBinary => 4,
            Kind::Object => 5,
            Kind::Library => 6,
        }
    }

    /// Can `cuModuleLoadData` load it as it is?
    pub fn is_loadable(self) -> bool {
        matches!(self, Kind::Ptx | Kind::Cubin | Kind::FatBinary)
    }
}

/// An image that is linked.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its bytes; of PTX they end with a NUL.
    pub bytes: &'a [u8],
    /// Its name in messages.
    pub name: &'a CStr,
}

/// Room for the messages of the driver's linker.
const LOG_BYTES: usize = 4096;

/// A link by the driver, destroyed when it is dropped.
struct Link<'a> {
    driver: &'a Driver,
    state: CUlinkState,
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // SAFETY: created, and not used again once this succeeds.
        let destroy = || unsafe { self.driver.cuLinkDestroy(self.state) };
        if destroy().is_err() {
            let _ = destroy();
        }
    }
}

impl Driver {
    /// Loads nvJitLink. That takes a lock which a thread that waits for a kernel must not hold.
    pub fn find_linker(&self) -> Result<(), Failure> {
        nvrtc::set_driver_version(&self.table);
        nvjitlink::find()
    }

    /// Links images to one for `cuModuleLoadData`, with nvJitLink if `is_lto`. The context of a
    /// device of the compute capability is current.
    pub fn link(&self, inputs: &[Input<'_>], is_lto: bool, capability: u32) -> Result<Vec<u8>> {
        let _waiting = waiting::begin();
        if is_lto {
            return Ok(nvjitlink::link(inputs, capability, self.format())?);
        }
        let mut log = Vec::new();
        log.try_reserve_exact(LOG_BYTES).map_err(|_| Failure::OutOfHostMemory)?;
        log.resize(LOG_BYTES, 0u8);
        let linked = self.link_with(inputs, &mut log);
        linked.map_err(|error| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            match &error {
                Error::Cuda(cuda) if !cuda.is_sticky() && end > 0 => {
                    Failure::Link(Log::of(&log[..end])).into()
                }
                Error::Cuda(cuda)
                    if matches!(
                        cuda.code,
                        code::INVALID_IMAGE | code::INVALID_PTX | code::NO_BINARY_FOR_GPU
                    ) =>
                {
                    Failure::Link(Log::of(b"an image is damaged, or not for this device")).into()
                }
                _ => error,
            }
        })
    }

    fn link_with(&self, inputs: &[Input<'_>], log: &mut [u8]) -> Result<Vec<u8>> {
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The driver reads and writes the values until the link is destroyed.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut state = null_mut();
        // SAFETY: two options and values, and `state` is writable.
        unsafe { self.cuLinkCreate(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut state) }?;
        let link = Link { driver: self, state };
        for input in inputs {
            // SAFETY: the link is alive; the driver only reads the bytes and the name.
            unsafe {
                self.cuLinkAddData(
                    link.state,
                    input.kind.of_driver(),
                    input.bytes.as_ptr().cast_mut().cast(),
                    input.bytes.len(),
                    input.name.as_ptr(),
                    0,
                    null_mut(),
                    null_mut(),
                )
            }?;
        }
        let (mut image, mut size) = (null_mut(), 0usize);
        // SAFETY: the link is alive, and both are writable.
        unsafe { self.cuLinkComplete(link.state, &mut image, &mut size) }?;
        if image.is_null() {
            return Err(Error::Internal(Text::new("the driver has linked nothing")));
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size + 1).map_err(|_| Failure::OutOfHostMemory)?;
        // SAFETY: the driver's image has so many bytes, until the link is destroyed.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(image.cast_const().cast::<u8>(), size)
        });
        // PTX ends with a NUL.
        bytes.push(0);
        Ok(bytes)
    }
}
