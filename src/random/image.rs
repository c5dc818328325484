//! The images of the random kernels, which `build.rs` stores compressed.

use crate::base::error::Result;
use crate::gpu::image::inflated;

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
    /// All images, in the order of their numbers.
    pub const ALL: [Image; 8] = {
        use Image::*;
        [Uniform, Normal, LogNormal, Exponential, Cauchy, Geometric, Integers, Bernoulli]
    };

    /// The image's PTX with a NUL at the end, as `cuModuleLoadData` requires.
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
