//! The kernels of `kernels/random*.cu` as Rust functions, for the simulated machine.

mod arithmetic;
mod draw;
mod each;
mod element;

use super::philox;
use super::plan::{EACH, FLAT, MAX_DIMS, STRIDED};
use crate::driver::code;
use crate::sim;
use draw::*;
use element::*;

/// Device memory; an error is a `CUresult`.
pub trait Memory {
    /// Copies from device memory.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), i32>;
    /// Copies to device memory.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), i32>;
}

impl Memory for sim::Launch {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), i32> {
        sim::Launch::read(self, address, bytes)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), i32> {
        sim::Launch::write(self, address, bytes)
    }
}

/// A kernel launch: the words of all parameters, and the memory.
pub struct Call<'a> {
    /// The parameters.
    pub words: &'a [u64],
    /// The memory that the kernel reads and writes.
    pub memory: &'a dyn Memory,
}

/// Runs a kernel for its whole grid.
pub type Body = fn(&Call<'_>) -> Result<(), i32>;

impl Call<'_> {
    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    fn four(&self, first: usize) -> [u64; 4] {
        std::array::from_fn(|index| self.word(first + index))
    }

    fn load(&self, address: u64) -> Result<u64, i32> {
        let mut bytes = [0; 8];
        self.memory.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The seed and the first Philox block, for a Philox state at word `first`.
    fn state(&self, first: usize) -> Result<(u64, u64), i32> {
        let [seed, offset, seed_ptr, offset_ptr] = self.four(first);
        let seed = if seed_ptr == 0 { seed } else { self.load(seed_ptr)? };
        let more = if offset_ptr == 0 { 0 } else { self.load(offset_ptr)? };
        Ok((seed, offset.wrapping_add(more) / philox::BLOCK_WORDS))
    }
}

/// Number of words before parameter `index`.
const fn words_before(sizes: &[usize], index: usize) -> usize {
    let (mut at, mut words) = (0, 0);
    while at < index {
        words += sizes[at] / 8;
        at += 1;
    }
    words
}

/// Number of threads that are simulated at a time.
const STREAMS: usize = 64;

/// Receives contiguous elements: the number of the first, and the bits of each.
type Row<'a> = dyn FnMut(u64, &[u64]) -> Result<(), i32> + 'a;

/// Calls `body` with each element once.
fn blocks<D: Draw>(call: &Call<'_>, body: &mut Row<'_>) -> Result<(), i32> {
    let (seed, first_block) = call.state(words_before(FLAT, 1))?;
    let target = words_before(FLAT, 2);
    let numel = call.word(target) & u64::from(u32::MAX);
    let (threads, waves) = (call.word(target) >> 32, call.word(target + 1) & u64::from(u32::MAX));
    let draw = D::new(call.four(words_before(FLAT, 3)));
    let mut values = [[0; STREAMS]; 4];
    for wave in 0..waves {
        let base = wave * threads * D::DRAWS as u64;
        for first in (0..threads).step_by(STREAMS) {
            let streams = STREAMS.min((threads - first) as usize);
            for stream in 0..streams {
                // All following elements are out of range too.
                if base + first + stream as u64 >= numel {
                    break;
                }
                let number = first + stream as u64;
                let words = philox::block(seed, number, first_block.wrapping_add(wave));
                for (values, value) in values.iter_mut().zip(draw.draw(words)) {
                    values[stream] = value;
                }
            }
            for (index, values) in values[..D::DRAWS].iter().enumerate() {
                let li = base + index as u64 * threads + first;
                let count = streams.min(numel.saturating_sub(li) as usize);
                if count > 0 {
                    body(li, &values[..count])?;
                }
            }
        }
    }
    Ok(())
}

fn flat<D: Draw>(call: &Call<'_>) -> Result<(), i32> {
    let address = call.word(0);
    let mut bytes = [0; STREAMS * 8];
    blocks::<D>(call, &mut |li, values| {
        for (to, value) in bytes.chunks_exact_mut(D::BYTES).zip(values) {
            to.copy_from_slice(&value.to_le_bytes()[..D::BYTES]);
        }
        let at = address.wrapping_add(li.wrapping_mul(D::BYTES as u64));
        call.memory.write(at, &bytes[..values.len() * D::BYTES])
    })
}

fn strided<D: Draw>(call: &Call<'_>) -> Result<(), i32> {
    let address = call.word(0);
    let shape = words_before(STRIDED, 4);
    let dims = (call.word(shape) as u32 as usize).min(MAX_DIMS);
    blocks::<D>(call, &mut |li, values| {
        for (li, value) in (li..).zip(values) {
            let (mut at, mut rest) = (address, li);
            for dim in 0..dims {
                let size = u64::from(call.word(shape + 1 + 3 * dim) as u32).max(1);
                let stride = call.word(shape + 3 + 3 * dim);
                at = at.wrapping_add((rest % size).wrapping_mul(stride));
                rest /= size;
            }
            call.memory.write(at, &value.to_le_bytes()[..D::BYTES])?;
        }
        Ok(())
    })
}

/// Runs the kernel for the element type of this number.
macro_rules! by_element {
    ($($number:literal $draw:ty),*) => {
        |call| match call.word(words_before(STRIDED, 4)) >> 32 {
            $($number => strided::<$draw>(call),)*
            _ => Err(code::INVALID_VALUE),
        }
    };
}

/// The kernels: names, parameter sizes and bodies.
macro_rules! kernels {
    ($($name:literal $sizes:ident $body:expr;)*) => {
        /// The parameter sizes and the body of a kernel.
        pub fn find(name: &str) -> Option<(&'static [usize], Body)> {
            match name {
                $(concat!("tcuda_random_", $name) => Some(($sizes, $body)),)*
                _ => None,
            }
        }

        /// The names of all kernels.
        pub const NAMES: &[&str] = &[$(concat!("tcuda_random_", $name)),*];

        /// Registers the kernels with the simulated machine.
        pub fn register_simulated() {
            $(sim::register_kernel(concat!("tcuda_random_", $name), $sizes, |launch| {
                run(launch, $sizes, $body)
            });)*
        }
    };
}

fn run(launch: &sim::Launch, sizes: &[usize], body: Body) -> Result<(), i32> {
    const MAX_CALL_WORDS: usize = words_before(EACH, EACH.len());
    let mut words = [0; MAX_CALL_WORDS];
    let mut at = words.iter_mut();
    for index in 0..sizes.len() {
        for bytes in launch.param(index).chunks_exact(8) {
            if let (Some(word), Ok(bytes)) = (at.next(), bytes.try_into()) {
                *word = u64::from_le_bytes(bytes);
            }
        }
    }
    body(&Call { words: &words, memory: launch })
}

kernels! {
    "uniform_f32" FLAT flat::<Uniform<F32>>;
    "uniform_f16" FLAT flat::<Uniform<F16>>;
    "uniform_bf16" FLAT flat::<Uniform<BF16>>;
    "uniform_f64" FLAT flat::<Uniform<F64>>;
    "uniform_strided" STRIDED
        by_element!(0 Uniform<F32>, 1 Uniform<F16>, 2 Uniform<BF16>, 3 Uniform<F64>);
    "normal_f32" FLAT flat::<Normal<F32>>;
    "normal_f16" FLAT flat::<Normal<F16>>;
    "normal_bf16" FLAT flat::<Normal<BF16>>;
    "normal_f64" FLAT flat::<Normal<F64>>;
    "normal_strided" STRIDED
        by_element!(0 Normal<F32>, 1 Normal<F16>, 2 Normal<BF16>, 3 Normal<F64>);
    "log_normal_f32" FLAT flat::<LogNormal<F32>>;
    "log_normal_f16" FLAT flat::<LogNormal<F16>>;
    "log_normal_bf16" FLAT flat::<LogNormal<BF16>>;
    "log_normal_f64" FLAT flat::<LogNormal<F64>>;
    "log_normal_strided" STRIDED
        by_element!(0 LogNormal<F32>, 1 LogNormal<F16>, 2 LogNormal<BF16>, 3 LogNormal<F64>);
    "exponential_f32" FLAT flat::<Exponential<F32>>;
    "exponential_f16" FLAT flat::<Exponential<F16>>;
    "exponential_bf16" FLAT flat::<Exponential<BF16>>;
    "exponential_f64" FLAT flat::<Exponential<F64>>;
    "exponential_strided" STRIDED
        by_element!(
            0 Exponential<F32>, 1 Exponential<F16>, 2 Exponential<BF16>, 3 Exponential<F64>
        );
    "cauchy_f32" FLAT flat::<Cauchy<F32>>;
    "cauchy_f16" FLAT flat::<Cauchy<F16>>;
    "cauchy_bf16" FLAT flat::<Cauchy<BF16>>;
    "cauchy_f64" FLAT flat::<Cauchy<F64>>;
    "cauchy_strided" STRIDED
        by_element!(0 Cauchy<F32>, 1 Cauchy<F16>, 2 Cauchy<BF16>, 3 Cauchy<F64>);
    "geometric_f32" FLAT flat::<Geometric<F32>>;
    "geometric_f16" FLAT flat::<Geometric<F16>>;
    "geometric_bf16" FLAT flat::<Geometric<BF16>>;
    "geometric_f64" FLAT flat::<Geometric<F64>>;
    "geometric_u8" FLAT flat::<Geometric<U8>>;
    "geometric_i8" FLAT flat::<Geometric<B8>>;
    "geometric_i16" FLAT flat::<Geometric<B16>>;
    "geometric_i32" FLAT flat::<Geometric<B32>>;
    "geometric_i64" FLAT flat::<Geometric<B64>>;
    "geometric_strided" STRIDED by_element!(
        0 Geometric<F32>, 1 Geometric<F16>, 2 Geometric<BF16>, 3 Geometric<F64>, 4 Geometric<U8>,
        5 Geometric<B8>, 6 Geometric<B16>, 7 Geometric<B32>, 8 Geometric<B64>
    );
    "integers32_f32" FLAT flat::<Integers32<F32>>;
    "integers32_f16" FLAT flat::<Integers32<F16>>;
    "integers32_bf16" FLAT flat::<Integers32<BF16>>;
    "integers32_f64" FLAT flat::<Integers32<F64>>;
    "integers32_b8" FLAT flat::<Integers32<B8>>;
    "integers32_b16" FLAT flat::<Integers32<B16>>;
    "integers32_b32" FLAT flat::<Integers32<B32>>;
    "integers32_b64" FLAT flat::<Integers32<B64>>;
    "integers32_bool" FLAT flat::<Integers32<Bool>>;
    "integers32_strided" STRIDED by_element!(
        0 Integers32<F32>, 1 Integers32<F16>, 2 Integers32<BF16>, 3 Integers32<F64>,
        4 Integers32<B8>, 5 Integers32<B16>, 6 Integers32<B32>, 7 Integers32<B64>,
        8 Integers32<Bool>
    );
    "integers64_f32" FLAT flat::<Integers64<F32>>;
    "integers64_bf16" FLAT flat::<Integers64<BF16>>;
    "integers64_f64" FLAT flat::<Integers64<F64>>;
    "integers64_b32" FLAT flat::<Integers64<B32>>;
    "integers64_b64" FLAT flat::<Integers64<B64>>;
    "integers64_strided" STRIDED by_element!(
        0 Integers64<F32>, 2 Integers64<BF16>, 3 Integers64<F64>, 6 Integers64<B32>,
        7 Integers64<B64>
    );
    "bernoulli_b8" FLAT flat::<Bernoulli<B8>>;
    "bernoulli_b16" FLAT flat::<Bernoulli<B16>>;
    "bernoulli_b32" FLAT flat::<Bernoulli<B32>>;
    "bernoulli_b64" FLAT flat::<Bernoulli<B64>>;
    "bernoulli_f64" FLAT flat::<BernoulliF64>;
    "bernoulli_strided" STRIDED by_element!(
        0 Bernoulli<B8>, 1 Bernoulli<B16>, 2 Bernoulli<B32>, 3 Bernoulli<B64>, 4 BernoulliF64
    );
    "bernoulli_each_b8" EACH each::each::<1>;
    "bernoulli_each_b16" EACH each::each::<2>;
    "bernoulli_each_b32" EACH each::each::<4>;
    "bernoulli_each_b64" EACH each::each::<8>;
}
