//! Filling a tensor with random numbers: how much of a generator's streams that takes, and by which
//! kernel, with what parameters.
//!
//! Pure functions: they launch nothing. Which number an element gets follows from how PyTorch would
//! launch its own kernel on the device, the geometry; how the kernels of kernels/random.cuh are
//! launched is another matter, and free.

pub use super::image::Image;
use super::recipe::{self, Recipe};
use std::ffi::{CStr, c_void};

/// What is drawn, with PyTorch's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// From `low` up to `high`.
    Uniform {
        /// The least number.
        low: f64,
        /// Above them all, unless it is `low`.
        high: f64,
    },
    /// Normal numbers.
    Normal {
        /// Their mean.
        mean: f64,
        /// Their standard deviation.
        stddev: f64,
    },
    /// `base` and what follows, `range` numbers.
    Integers {
        /// The least number.
        base: i64,
        /// How many there are, at least 1.
        range: u64,
    },
    /// All numbers of 64 bits with a sign.
    IntegersFull,
    /// From 0 to the largest that the type has; of floats, up to where integers become sparse.
    IntegersAll,
    /// 1 with a probability, else 0.
    Bernoulli {
        /// The probability.
        p: f64,
    },
    /// The same with a probability for each element.
    BernoulliTensor,
    /// Exponential.
    Exponential {
        /// One by their mean.
        rate: f64,
    },
    /// e to a normal number.
    LogNormal {
        /// Its mean.
        mean: f64,
        /// Its standard deviation.
        stddev: f64,
    },
    /// Cauchy's.
    Cauchy {
        /// Their median.
        median: f64,
        /// Half of their range between quartiles.
        sigma: f64,
    },
    /// Trials to the first success.
    Geometric {
        /// The probability of one.
        p: f64,
    },
}

/// Types of elements.
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
    /// All of them.
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

/// A device as it shapes PyTorch's launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Threads that one of them can hold.
    pub threads_per_multiprocessor: u32,
    /// Compute capability.
    pub major: u32,
    /// Its second part.
    pub minor: u32,
}

/// The most dimensions of a view.
pub const MAX_DIMS: usize = 25;

/// A dimension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dim {
    /// Elements, at least 1.
    pub size: u64,
    /// From one to the next, in elements.
    pub stride: i64,
}

/// A tensor of which the elements are counted along the first dimension, then the second, and so on;
/// without dimensions it has one element.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The element of which all indices are 0.
    pub address: u64,
    dims: [Dim; MAX_DIMS],
    len: usize,
}

impl View {
    /// `None`: too many dimensions.
    pub fn new(address: u64, dims: impl IntoIterator<Item = Dim>) -> Option<View> {
        let mut view = View { address, dims: [Dim::default(); MAX_DIMS], len: 0 };
        for dim in dims {
            *view.dims.get_mut(view.len)? = dim;
            view.len += 1;
        }
        Some(view)
    }

    /// Elements that follow each other without gaps.
    pub fn flat(address: u64, numel: u64) -> View {
        let mut view = View { address, dims: [Dim::default(); MAX_DIMS], len: 1 };
        view.dims[0] = Dim { size: numel, stride: 1 };
        view
    }

    /// Its dimensions, the fastest first.
    pub fn dims(&self) -> &[Dim] {
        &self.dims[..self.len]
    }

    /// Elements.
    pub fn numel(&self) -> u64 {
        self.dims().iter().map(|dim| dim.size).fold(1, u64::saturating_mul)
    }

    /// Without gaps?
    fn is_flat(&self) -> bool {
        matches!(self.dims(), [] | [Dim { stride: 1, .. }] | [Dim { size: 1, .. }])
    }
}

/// Where in a generator's streams to draw: values, or where they are on the device when captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Philox {
    /// Seed; not read where `seed_ptr` is not 0.
    pub seed: u64,
    /// Offset in words, a multiple of 4; added to what `offset_ptr` leads to, if it is not 0.
    pub offset: u64,
    /// 0, or the address of a seed.
    pub seed_ptr: u64,
    /// 0, or the address of an offset.
    pub offset_ptr: u64,
}

/// Threads of a block, PyTorch's and ours; the kernels are compiled for no more.
pub const BLOCK: u32 = 256;

/// A launch: `grid` x 1 x 1 blocks of `block` x 1 x 1 threads.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Where the kernel is.
    pub image: Image,
    /// Its name.
    pub kernel: &'static CStr,
    /// Blocks.
    pub grid: u32,
    /// Threads of each.
    pub block: u32,
    /// The kernel's parameters.
    pub parameters: Parameters,
}

/// The most parameters of a kernel.
pub const MAX_PARAMETERS: usize = 5;

/// Sizes in bytes of the parameters of the kernels for views without gaps: address, state, target,
/// numbers of the distribution.
pub const FLAT: &[usize] = &[8, 32, 24, 32];

/// For other views: besides, their shape.
pub const STRIDED: &[usize] = &[8, 32, 24, 32, 8 + 24 * MAX_DIMS];

/// For probabilities of each element: address, address of the probabilities, state, numbers, shapes.
pub const EACH: &[usize] = &[8, 8, 32, 32, 8 + 32 * MAX_DIMS];

const MAX_WORDS: usize = 11 + 4 * MAX_DIMS;

/// The kernel's parameters one after the other, as they lie in a buffer too: all are of whole words.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    words: [u64; MAX_WORDS],
    sizes: &'static [usize],
}

impl Parameters {
    pub(super) fn new(sizes: &'static [usize]) -> Parameters {
        Parameters { words: [0; MAX_WORDS], sizes }
    }

    /// Their sizes in bytes.
    pub fn sizes(&self) -> &'static [usize] {
        self.sizes
    }

    /// All of them.
    pub fn words(&self) -> &[u64] {
        &self.words[..self.sizes.iter().sum::<usize>() / 8]
    }

    /// Where each is, for cuLaunchKernel, which reads them; NULL past the last.
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

/// The grid with which PyTorch would launch its kernel, and how many elements a thread gets of one
/// block of its stream.
struct Torch {
    grid: u64,
    draws: u64,
}

impl Torch {
    fn new(numel: u64, draws: u64, geometry: &Geometry) -> Torch {
        let resident = geometry.threads_per_multiprocessor / BLOCK;
        let most = u64::from(geometry.multiprocessors) * u64::from(resident);
        // A device without multiprocessors launches nothing; still no division by 0 here.
        Torch { grid: numel.div_ceil(u64::from(BLOCK)).min(most).max(1), draws }
    }

    /// Threads.
    fn threads(&self) -> u64 {
        self.grid * u64::from(BLOCK)
    }

    /// Blocks of its stream that a thread takes.
    fn waves(&self, numel: u64) -> u64 {
        numel.div_ceil(self.threads() * self.draws)
    }
}

/// PyTorch's, for probabilities of each element; the generator rounds it up.
const EACH_INCREMENT: u64 = 10;

/// Words of each thread's stream that PyTorch's kernel takes for `numel` elements.
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
            Torch::new(numel, draws, geometry).waves(numel) * super::philox::BLOCK_WORDS
        }
    }
}

/// What to launch. `p` is the probabilities of [`Distribution::BernoulliTensor`], in the same order.
///
/// `None` for what PyTorch refuses: a type that it does not fill so, a probability that is none; for
/// views without elements, that are not aligned to theirs, or of which the elements, unless each has
/// its probability, take more than 31 bits to number.
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

/// Blocks of a multiprocessor, to occupy it.
const RESIDENT_BLOCKS: u64 = 4;

/// How small elements of so many bytes let the work be cut: blocks for each multiprocessor, several
/// times as many as it holds, so that the last of them leave little idle; and blocks of a stream that
/// a thread takes at least, so that what it does first is worth it. Where memory is what takes time,
/// the first matters, else the second; found by trying, on an H200.
fn cut(bytes: u64) -> (u64, u64) {
    if bytes <= 2 { (16, 16) } else { (128, 4) }
}

/// Threads that share a stream: `columns` blocks of them are there for each.
fn slices(columns: u64, waves: u64, bytes: u64, geometry: &Geometry) -> u64 {
    let multiprocessors = u64::from(geometry.multiprocessors);
    let (blocks, least) = cut(bytes);
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
    let torch = Torch::new(numel, recipe.draws, geometry);
    let (threads, waves) = (torch.threads(), torch.waves(numel));
    let flat = out.is_flat();
    // As Stores of kernels/random.cuh: a vector, and the elements before the first whole one.
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

/// The kernels' Shape.
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

/// Elements of one thread, for probabilities of each.
const GROUP: u64 = 4;

/// Blocks for each multiprocessor, likewise; then they go on.
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
