//! Plans a fill with random numbers: how many words it takes, the kernel, and its parameters.
//!
//! The functions are pure and launch nothing. The numbers of the elements follow from the geometry
//! with which PyTorch would launch its own kernel. The launches of the kernels in
//! `kernels/random.cuh` may have another geometry.

pub use super::image::Image;
use super::recipe::{self, Recipe};
use std::ffi::{CStr, c_void};

/// A distribution, with PyTorch's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Uniform numbers from `low` to `high`.
    Uniform {
        /// Lower bound, inclusive.
        low: f64,
        /// Upper bound, exclusive unless it equals `low`.
        high: f64,
    },
    /// Normal numbers.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        stddev: f64,
    },
    /// Integers from `base` to `base + range`, exclusive.
    Integers {
        /// Lower bound, inclusive.
        base: i64,
        /// Number of integers, at least 1.
        range: u64,
    },
    /// All signed 64-bit integers.
    IntegersFull,
    /// Integers from 0 to the largest of the type; for floats, to the largest up to which all
    /// integers are representable.
    IntegersAll,
    /// 1 with probability `p`, else 0.
    Bernoulli {
        /// Probability.
        p: f64,
    },
    /// 1 or 0, with a probability for each element.
    BernoulliTensor,
    /// Exponential numbers.
    Exponential {
        /// Reciprocal of the mean.
        rate: f64,
    },
    /// `exp` of normal numbers.
    LogNormal {
        /// Mean of the normal numbers.
        mean: f64,
        /// Standard deviation of the normal numbers.
        stddev: f64,
    },
    /// Cauchy numbers.
    Cauchy {
        /// Median.
        median: f64,
        /// Half of the interquartile range.
        sigma: f64,
    },
    /// Number of trials up to the first success.
    Geometric {
        /// Probability of a success.
        p: f64,
    },
}

/// Element types.
#[allow(missing_docs, reason = "their names are their description")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl Dtype {
    /// All element types.
    pub const ALL: [Dtype; 13] = {
        use Dtype::*;
        [Bool, U8, I8, U16, I16, U32, I32, U64, I64, F16, BF16, F32, F64]
    };

    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Bool | Dtype::U8 | Dtype::I8 => 1,
            Dtype::U16 | Dtype::I16 | Dtype::F16 | Dtype::BF16 => 2,
            Dtype::U32 | Dtype::I32 | Dtype::F32 => 4,
            Dtype::U64 | Dtype::I64 | Dtype::F64 => 8,
        }
    }
}

/// The properties of a device on which PyTorch's launch geometry depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Maximum resident threads per multiprocessor.
    pub threads_per_multiprocessor: u32,
    /// Major compute capability.
    pub major: u32,
    /// Minor compute capability.
    pub minor: u32,
}

/// The most dimensions of a view.
pub const MAX_DIMS: usize = 25;

/// A dimension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dim {
    /// Number of elements, at least 1.
    pub size: u64,
    /// Distance of neighbours, in elements.
    pub stride: i64,
}

/// A tensor whose elements are counted along the first dimension, then along the second, and so on.
/// Without dimensions it has one element.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Address of the element whose indices are all 0.
    pub address: u64,
    dims: [Dim; MAX_DIMS],
    len: usize,
}

impl View {
    /// A view of these dimensions; `None` if there are too many.
    pub fn new(address: u64, dims: impl IntoIterator<Item = Dim>) -> Option<View> {
        let mut view = View { address, dims: [Dim::default(); MAX_DIMS], len: 0 };
        for dim in dims {
            *view.dims.get_mut(view.len)? = dim;
            view.len += 1;
        }
        Some(view)
    }

    /// A contiguous view.
    pub fn flat(address: u64, numel: u64) -> View {
        let mut view = View { address, dims: [Dim::default(); MAX_DIMS], len: 1 };
        view.dims[0] = Dim { size: numel, stride: 1 };
        view
    }

    /// Its dimensions, the fastest first.
    pub fn dims(&self) -> &[Dim] {
        &self.dims[..self.len]
    }

    /// Number of elements.
    pub fn numel(&self) -> u64 {
        self.dims().iter().map(|dim| dim.size).fold(1, u64::saturating_mul)
    }

    /// Is it contiguous?
    fn is_flat(&self) -> bool {
        matches!(self.dims(), [] | [Dim { stride: 1, .. }] | [Dim { size: 1, .. }])
    }
}

/// A Philox state: values, or addresses on the device in a captured kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Philox {
    /// Seed; ignored if `seed_ptr` is not 0.
    pub seed: u64,
    /// Offset in words, a multiple of 4. If `offset_ptr` is not 0, its word is added.
    pub offset: u64,
    /// Address of the seed, or 0.
    pub seed_ptr: u64,
    /// Address of the offset, or 0.
    pub offset_ptr: u64,
}

/// Threads per thread block, in PyTorch and here. The kernels are compiled for at most this many.
pub const BLOCK: u32 = 256;

/// Words of a Philox block; offsets count words.
const BLOCK_WORDS: u64 = 4;

/// A launch of `grid` x 1 x 1 thread blocks of `block` x 1 x 1 threads.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// The image that contains the kernel.
    pub image: Image,
    /// Name of the kernel.
    pub kernel: &'static CStr,
    /// Number of thread blocks.
    pub grid: u32,
    /// Threads per thread block.
    pub block: u32,
    /// The kernel's parameters.
    pub parameters: Parameters,
}

/// The most parameters of a kernel.
pub const MAX_PARAMETERS: usize = 5;

/// Parameter sizes of the kernels for contiguous views, in bytes: address, Philox state, target,
/// scalars of the distribution.
pub const FLAT: &[usize] = &[8, 32, 24, 32];

/// Parameter sizes of the kernels for strided views; the last is the shape.
pub const STRIDED: &[usize] = &[8, 32, 24, 32, 8 + 24 * MAX_DIMS];

/// Parameter sizes of the kernels with a probability for each element: address, address of the
/// probabilities, Philox state, scalars, shapes.
pub const EACH: &[usize] = &[8, 8, 32, 32, 8 + 32 * MAX_DIMS];

const MAX_WORDS: usize = 11 + 4 * MAX_DIMS;

/// A kernel's parameters in one buffer. Each is a whole number of words.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    words: [u64; MAX_WORDS],
    sizes: &'static [usize],
}

impl Parameters {
    pub(super) fn new(sizes: &'static [usize]) -> Parameters {
        Parameters { words: [0; MAX_WORDS], sizes }
    }

    /// Sizes of the parameters in bytes.
    pub fn sizes(&self) -> &'static [usize] {
        self.sizes
    }

    /// All words.
    pub fn words(&self) -> &[u64] {
        &self.words[..self.sizes.iter().sum::<usize>() / 8]
    }

    /// Addresses of the parameters for `cuLaunchKernel`; NULL after the last.
    pub fn pointers(&mut self) -> [*mut c_void; MAX_PARAMETERS] {
        let mut pointers = [std::ptr::null_mut(); MAX_PARAMETERS];
        let mut start = self.words.as_mut_ptr();
        for (pointer, size) in pointers.iter_mut().zip(self.sizes) {
            *pointer = start.cast();
            start = start.wrapping_add(size / 8);
        }
        pointers
    }

    /// The words of parameter `index`.
    pub(super) fn parameter(&mut self, index: usize) -> &mut [u64] {
        let start = self.sizes[..index].iter().sum::<usize>() / 8;
        &mut self.words[start..start + self.sizes[index] / 8]
    }
}

/// PyTorch's launch: its grid, and the elements that a thread gets from one Philox block.
struct TorchLaunch {
    grid: u64,
    draws: u64,
}

impl TorchLaunch {
    fn new(numel: u64, draws: u64, geometry: &Geometry) -> TorchLaunch {
        let resident = geometry.threads_per_multiprocessor / BLOCK;
        let most = u64::from(geometry.multiprocessors) * u64::from(resident);
        // No division by 0, even for a device without multiprocessors.
        TorchLaunch { grid: numel.div_ceil(u64::from(BLOCK)).min(most).max(1), draws }
    }

    /// Number of threads.
    fn threads(&self) -> u64 {
        self.grid * u64::from(BLOCK)
    }

    /// Philox blocks that each thread takes.
    fn waves(&self, numel: u64) -> u64 {
        numel.div_ceil(self.threads() * self.draws)
    }
}

/// PyTorch's increment for a probability per element; the generator rounds it up to 12.
const EACH_INCREMENT: u64 = 10;

/// Words of each thread's subsequence that PyTorch's kernel takes for `numel` elements.
pub fn increment(
    distribution: &Distribution,
    dtype: Dtype,
    numel: u64,
    geometry: &Geometry,
) -> u64 {
    match (distribution, numel) {
        (_, 0) => 0,
        (Distribution::BernoulliTensor, _) => EACH_INCREMENT,
        _ => {
            let draws = recipe::draws(distribution, dtype);
            TorchLaunch::new(numel, draws, geometry).waves(numel) * BLOCK_WORDS
        }
    }
}

/// Plans a launch. `p`: the probabilities of [`Distribution::BernoulliTensor`], in the same order.
///
/// `None` if PyTorch does not support the type or a parameter, if the view has no elements or is
/// misaligned, or if it has more than 2^31 - 1 elements (without probabilities per element).
pub fn plan(
    distribution: &Distribution,
    dtype: Dtype,
    out: &View,
    p: Option<(&View, Dtype)>,
    philox: &Philox,
    geometry: &Geometry,
) -> Option<Launch> {
    let numel = out.numel();
    if numel == 0 || !out.address.is_multiple_of(dtype.bytes()) {
        return None;
    }
    match (distribution, p) {
        (Distribution::BernoulliTensor, Some((p, p_dtype))) => {
            each(dtype, out, p, p_dtype, philox, geometry)
        }
        (Distribution::BernoulliTensor, None) | (_, Some(_)) => None,
        _ if numel > i32::MAX as u64 => None,
        _ => fill(&recipe::find(distribution, dtype)?, dtype, out, philox, geometry),
    }
}

/// Thread blocks per multiprocessor that occupy it.
const RESIDENT_BLOCKS: u64 = 4;

/// Limits for splitting the work, by the bytes of an element. First, thread blocks per
/// multiprocessor: several times its capacity, so that little of it is idle at the end. Second, the
/// least Philox blocks per thread, so that its setup is worthwhile. Bandwidth-bound fills need the
/// first, others the second. Measured on an H200.
fn split_limits(bytes: u64) -> (u64, u64) {
    if bytes <= 2 { (16, 16) } else { (128, 4) }
}

/// Number of threads that share a subsequence, where each share takes `columns` thread blocks.
fn slices(columns: u64, waves: u64, bytes: u64, geometry: &Geometry) -> u64 {
    let multiprocessors = u64::from(geometry.multiprocessors);
    let (blocks, least) = split_limits(bytes);
    let full = (multiprocessors * RESIDENT_BLOCKS).div_ceil(columns);
    let even = (multiprocessors * blocks / columns).min(waves / least);
    full.max(even).clamp(1, waves)
}

fn fill(
    recipe: &Recipe,
    dtype: Dtype,
    out: &View,
    philox: &Philox,
    geometry: &Geometry,
) -> Option<Launch> {
    let numel = out.numel();
    let torch = TorchLaunch::new(numel, recipe.draws, geometry);
    let (threads, waves) = (torch.threads(), torch.waves(numel));
    let flat = out.is_flat();
    // Like `Stores` of `kernels/random.cuh`: elements per vector, and elements before the first
    // vector.
    let lanes = if dtype.bytes() == 8 { 2 } else { 4 };
    let lead = if flat { out.address / dtype.bytes() % lanes } else { 0 };
    let groups = if flat { (threads + lead).div_ceil(lanes) } else { threads };
    let columns = groups.div_ceil(u64::from(BLOCK));
    let slices = slices(columns, waves, dtype.bytes(), geometry);

    let mut parameters = Parameters::new(if flat { FLAT } else { STRIDED });
    parameters.parameter(0)[0] = out.address;
    state(parameters.parameter(1), philox);
    let full = numel / (threads * torch.draws);
    let target = [numel | threads << 32, waves | slices << 32, lead | full << 32];
    parameters.parameter(2).copy_from_slice(&target);
    parameters.parameter(3).copy_from_slice(&recipe.scalars);
    if !flat {
        shape(parameters.parameter(4), out, recipe.element, dtype.bytes())?;
    }
    let kernel = if flat { recipe.flat } else { recipe.strided };
    let grid = u32::try_from(columns * slices).ok()?;
    Some(Launch { image: recipe.image, kernel, grid, block: BLOCK, parameters })
}

fn state(words: &mut [u64], philox: &Philox) {
    words.copy_from_slice(&[philox.seed, philox.offset, philox.seed_ptr, philox.offset_ptr]);
}

fn stride_in_bytes(stride: i64, bytes: u64) -> u64 {
    (stride as u64).wrapping_mul(bytes)
}

/// Fills the kernels' `Shape`.
fn shape(words: &mut [u64], view: &View, element: u32, bytes: u64) -> Option<()> {
    words[0] = view.len as u64 | u64::from(element) << 32;
    for (words, dim) in words[1..].chunks_exact_mut(3).zip(view.dims()) {
        let size = u32::try_from(dim.size).ok()?;
        let (magic, first, second) = recipe::magic32(size);
        words[0] = u64::from(size) | u64::from(magic) << 32;
        words[1] = u64::from(first) | u64::from(second) << 32;
        words[2] = stride_in_bytes(dim.stride, bytes);
    }
    Some(())
}

/// Elements per thread, with a probability for each.
const GROUP: u64 = 4;

/// Thread blocks per multiprocessor; further elements are handled by a loop.
const EACH_BLOCKS: u64 = 32;

fn each(
    dtype: Dtype,
    out: &View,
    p: &View,
    p_dtype: Dtype,
    philox: &Philox,
    geometry: &Geometry,
) -> Option<Launch> {
    let numel = out.numel();
    let (kernel, one) = recipe::each(dtype)?;
    let p_kind = recipe::probability(p_dtype)?;
    if p.numel() != numel || !p.address.is_multiple_of(p_dtype.bytes()) {
        return None;
    }
    let mut parameters = Parameters::new(EACH);
    parameters.parameter(0)[0] = out.address;
    parameters.parameter(1)[0] = p.address;
    state(parameters.parameter(2), philox);
    let doubles = u64::from(dtype == Dtype::F64);
    parameters.parameter(3).copy_from_slice(&[numel, one, p_kind, doubles]);
    let pair = parameters.parameter(4);
    let len = |view: &View| if view.is_flat() { 0 } else { view.len as u64 };
    pair[0] = len(out) | len(p) << 32;
    for (index, (view, bytes)) in [(out, dtype.bytes()), (p, p_dtype.bytes())].iter().enumerate() {
        for (at, dim) in view.dims().iter().enumerate() {
            pair[1 + MAX_DIMS * index + at] = dim.size;
            pair[1 + MAX_DIMS * (index + 2) + at] = stride_in_bytes(dim.stride, *bytes);
        }
    }
    let most = u64::from(geometry.multiprocessors) * EACH_BLOCKS;
    let blocks = numel.div_ceil(GROUP * u64::from(BLOCK)).min(most).max(1);
    let grid = u32::try_from(blocks).ok()?;
    Some(Launch { image: Image::Bernoulli, kernel, grid, block: BLOCK, parameters })
}

#[cfg(test)]
mod tests;
