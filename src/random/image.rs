//! The images with the random kernels, which build.rs stores compressed.

use crate::error::{Error, Result};
use crate::text::Text;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// An image: the kernels of a distribution.
#[allow(missing_docs, reason = "their names are their description")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Image {
    Uniform,
    Normal,
    LogNormal,
    Exponential,
    Cauchy,
    Geometric,
    Integers,
    Bernoulli,
}

impl Image {
    /// All of them, in the order of their numbers.
    pub const ALL: [Image; 8] = {
        use Image::*;
        [Uniform, Normal, LogNormal, Exponential, Cauchy, Geometric, Integers, Bernoulli]
    };

    /// Its PTX with a NUL at the end, as cuModuleLoadData wants it.
    pub fn ptx(self) -> Result<Vec<u8>> {
        inflated(self.stored())
    }

    fn stored(self) -> &'static [u8] {
        macro_rules! stored {
            ($name:literal) => {
                include_bytes!(concat!(env!("OUT_DIR"), "/random_", $name))
            };
        }
        match self {
            Image::Uniform => stored!("uniform"),
            Image::Normal => stored!("normal"),
            Image::LogNormal => stored!("log_normal"),
            Image::Exponential => stored!("exponential"),
            Image::Cauchy => stored!("cauchy"),
            Image::Geometric => stored!("geometric"),
            Image::Integers => stored!("integers"),
            Image::Bernoulli => stored!("bernoulli"),
        }
    }
}

/// An image as build.rs stored it.
pub(crate) fn inflated(stored: &[u8]) -> Result<Vec<u8>> {
    let (length, deflated) = stored.split_first_chunk().ok_or_else(damaged)?;
    let length = u64::from_le_bytes(*length) as usize;
    let mut text = Vec::new();
    text.try_reserve_exact(length).map_err(|_| Error::OutOfHostMemory("a kernel's image"))?;
    text.resize(length, 0);
    let mut state = DecompressorOxide::new();
    let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (status, _, written) = decompress(&mut state, deflated, &mut text, 0, flags);
    if status != TINFLStatus::Done || written != length || text.last() != Some(&0) {
        return Err(damaged());
    }
    Ok(text)
}

fn damaged() -> Error {
    Error::Internal(Text::new("the image of a kernel is damaged"))
}
