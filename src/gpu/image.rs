//! Images of kernels, which build.rs stores compressed: machine code for current GPUs, which the
//! driver loads directly, and PTX for all others, which it compiles in 60 ms or more.

use crate::base::error::{Error, Result};
use crate::base::place::try_box_at;
use crate::base::text::Text;
use crate::driver::code;
use crate::driver::sys::CUmodule;
use crate::gpu::device::Device;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use std::ffi::c_void;

/// Machine code of kernels.
pub struct Machine {
    /// For GPUs 8.x and 9.x.
    stored: [&'static [u8]; 2],
}

impl Machine {
    /// The code as build.rs stored it.
    pub const fn new(stored: [&'static [u8]; 2]) -> Machine {
        Machine { stored }
    }

    /// Loads the code for the device; `None`: there is none. The device's context is current.
    pub fn load(&self, device: &Device) -> Result<Option<usize>> {
        if device.is_simulated() {
            return Ok(None);
        }
        let (major, _) = device.capability()?;
        let Some(stored) = usize::try_from(major - 8).ok().and_then(|at| self.stored.get(at))
        else {
            return Ok(None);
        };
        match load(device, stored) {
            Ok(module) => Ok(Some(module)),
            // The driver is emulated, or the GPU differs from its reported capability.
            Err(Error::Cuda(error))
                if matches!(error.code, code::INVALID_IMAGE | code::NO_BINARY_FOR_GPU) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Loads an image that build.rs stored. The device's context is current.
pub fn load(device: &Device, stored: &[u8]) -> Result<usize> {
    let image = inflated(stored)?;
    let mut module: CUmodule = std::ptr::null_mut();
    let image = image.as_ptr().cast::<c_void>();
    // SAFETY: the image is machine code, or PTX that ends with a NUL; `module` is writable.
    unsafe { device.driver().cuModuleLoadData(&mut module, image) }?;
    Ok(module as usize)
}

/// A text that build.rs stored.
pub(crate) struct StoredText(pub &'static [u8]);

impl StoredText {
    /// The text.
    pub(crate) fn text(&self) -> Result<String> {
        let mut text = inflated(self.0)?;
        text.pop();
        String::from_utf8(text).map_err(|_| damaged())
    }
}

/// `stored_text!("name")`: a [`StoredText`].
macro_rules! stored_text {
    ($name:literal) => {
        $crate::gpu::image::StoredText(include_bytes!(concat!(env!("OUT_DIR"), "/", $name)))
    };
}
pub(crate) use stored_text;

/// Decompresses an image that build.rs stored.
pub(crate) fn inflated(stored: &[u8]) -> Result<Vec<u8>> {
    let (length, deflated) = stored.split_first_chunk().ok_or_else(damaged)?;
    let length = u64::from_le_bytes(*length) as usize;
    let mut text = Vec::new();
    text.try_reserve_exact(length).map_err(|_| Error::OutOfHostMemory("an image"))?;
    text.resize(length, 0);
    let write = |place: *mut DecompressorOxide| {
        // SAFETY: there is room for it.
        unsafe { place.write(DecompressorOxide::default()) };
        Ok(())
    };
    // SAFETY: that writes all of it.
    let mut state = unsafe { try_box_at("a kernel's image", write) }?;
    let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (status, _, written) = decompress(&mut state, deflated, &mut text, 0, flags);
    if status != TINFLStatus::Done || written != length || text.last() != Some(&0) {
        return Err(damaged());
    }
    Ok(text)
}

fn damaged() -> Error {
    Error::Internal(Text::new("a compressed part of the library is damaged"))
}
