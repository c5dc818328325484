//! What becomes of the words of an element: PyTorch's definitions, with the rounding that each step
//! has, or with bounds where a GPU approximates.

use super::machine::{BFLOAT, HALF};
use tcuda::random::plan::{Distribution, Dtype};

/// The largest error of `sin.approx` and `cos.approx` from 0 to two pi.
const SINE_ERROR: f64 = 6.743_495_8e-7; // 2^-20.5

/// What an element may be.
#[derive(Debug)]
pub enum Expected {
    /// These bits.
    Bits(u64),
    /// A number between two, of which both are rounded as the element is.
    Between(f64, f64),
    /// A number of trials between two, which is cast as PyTorch does.
    Trials(f64, f64),
}

impl Expected {
    /// With the error of the kernel, and of the computation here.
    fn near(value: f64, error: f64) -> Expected {
        let error = error + value.abs() * f64::EPSILON;
        Expected::Between(value - error, value + error)
    }

    /// Are these the bytes of such an element?
    pub fn is(&self, dtype: Dtype, bytes: &[u8]) -> bool {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(word);
        let is_between = |low: f64, high: f64| {
            let value = value_of(dtype, bits);
            let rounded = |value: f64| value_of(dtype, bits_of(dtype, value));
            rounded(low) <= value && value <= rounded(high)
        };
        match *self {
            Expected::Bits(expected) => bits == expected & mask(dtype),
            Expected::Between(low, high) => is_between(low, high),
            Expected::Trials(low, high) if is_float(dtype) => is_between(low, high),
            Expected::Trials(low, high) => {
                (low as i64..=high as i64).any(|trials| bits == trials as u64 & mask(dtype))
            }
        }
    }
}

fn mask(dtype: Dtype) -> u64 {
    u64::MAX >> (64 - 8 * dtype.bytes())
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
}

/// The bits of a number; one of less than 64 bits is rounded to `f32` first, as PyTorch computes.
fn bits_of(dtype: Dtype, value: f64) -> u64 {
    let single = value as f32;
    match dtype {
        Dtype::F16 => HALF.nearest(single.into()).into(),
        Dtype::BF16 => BFLOAT.nearest(single.into()).into(),
        Dtype::F32 => single.to_bits().into(),
        _ => value.to_bits(),
    }
}

fn value_of(dtype: Dtype, bits: u64) -> f64 {
    match dtype {
        Dtype::F16 => HALF.value(bits as u16),
        Dtype::BF16 => BFLOAT.value(bits as u16),
        Dtype::F32 => f32::from_bits(bits as u32).into(),
        _ => f64::from_bits(bits),
    }
}

/// The bits of a probability.
pub fn probability_bits(dtype: Dtype, p: f64) -> u64 {
    bits_of(dtype, p)
}

/// A number in (0, 1] of a word.
fn uniform(word: u32) -> f32 {
    (word as f32).mul_add(2f32.powi(-32), 2f32.powi(-33))
}

/// The 53 bits of two words.
fn wide(x: u32, y: u32) -> u64 {
    u64::from(x) ^ u64::from(y) << 21
}

/// A number in (0, 1] of two words.
fn uniform_wide(x: u32, y: u32) -> f64 {
    (wide(x, y) as f64).mul_add(2f64.powi(-53), 2f64.powi(-54))
}

/// The logarithm as `__logf` approximates it, and the largest error.
fn fast_log(x: f32) -> (f64, f64) {
    let value = f64::from(x).ln();
    let is_near_one = (0.5..=2.0).contains(&x);
    (value, if is_near_one { 2f64.powf(-21.41) } else { 3.0 * 2f64.powi(-23) * value.abs() })
}

/// The logarithm of a double, and the largest error.
fn log(x: f64) -> (f64, f64) {
    let value = x.ln();
    (value, 2f64.powi(-51) * value.abs())
}

/// A distribution and the type of its elements.
pub struct Draw<'a> {
    pub distribution: &'a Distribution,
    pub dtype: Dtype,
}

impl Draw<'_> {
    /// Does an element take two words?
    fn is_wide(&self) -> bool {
        match *self.distribution {
            Distribution::Integers { range, .. } => range >= 1 << 28,
            Distribution::IntegersFull => true,
            Distribution::IntegersAll => matches!(self.dtype, Dtype::I64 | Dtype::F64),
            _ => self.dtype == Dtype::F64,
        }
    }

    /// Elements of a Philox block.
    pub fn per_block(&self) -> u64 {
        if self.is_wide() { 2 } else { 4 }
    }

    /// The element of this number of a Philox block.
    pub fn element(&self, words: [u32; 4], index: usize) -> Expected {
        let double = self.dtype == Dtype::F64;
        let (x, y) = if self.is_wide() {
            (words[2 * index], words[2 * index + 1])
        } else {
            (words[index], 0)
        };
        match *self.distribution {
            Distribution::Uniform { low, high } if double => {
                let value = uniform_wide(x, y).mul_add(high - low, low);
                Expected::Bits(if value == high { low } else { value }.to_bits())
            }
            Distribution::Uniform { low, high } => {
                let cast = |value: f32| value_of(self.dtype, bits_of(self.dtype, value.into()));
                let (low, high) = (cast(low as f32) as f32, cast(high as f32) as f32);
                let range = cast(high - low) as f32;
                let value = cast(uniform(x).mul_add(range, low));
                let value = if value == f64::from(high) { low.into() } else { value };
                Expected::Bits(bits_of(self.dtype, value))
            }
            Distribution::Normal { mean, stddev } => {
                let (n, error) = self.normal(words, index);
                Expected::near(n * self.cast(stddev) + self.cast(mean), error * self.cast(stddev))
            }
            Distribution::LogNormal { mean, stddev } => {
                let (n, error) = self.normal(words, index);
                let x = n * self.cast(stddev) + self.cast(mean);
                let error = error * self.cast(stddev) + 2f64.powi(self.digits()) * x.abs();
                // Of __expf: 2 + floor(1.173*|x|) units in the last place.
                let units = if double { 4.0 } else { 3.0 + 1.173 * x.abs() };
                let off = units * 2f64.powi(self.digits() + 1);
                Expected::Between((x - error).exp() * (1.0 - off), (x + error).exp() * (1.0 + off))
            }
            Distribution::Exponential { rate } => {
                let scale = if double { -1.0 / rate } else { f64::from(-1.0 / rate as f32) };
                let (u, tiny) = if double {
                    (uniform_wide(x, y), 2f64.powi(-53))
                } else {
                    (uniform(x).into(), 2f64.powi(-24))
                };
                let (value, error) = match () {
                    () if u >= 1.0 - tiny => (-tiny, 0.0),
                    () if double => log(u),
                    () => fast_log(u as f32),
                };
                Expected::near(scale * value, (scale * error).abs())
            }
            Distribution::Cauchy { median, sigma } if double => {
                let tangent = ((uniform_wide(x, y) - 0.5) * std::f64::consts::PI).tan();
                Expected::near(sigma * tangent + median, sigma * tangent.abs() * 2f64.powi(-49))
            }
            Distribution::Cauchy { median, sigma } => {
                let u = uniform(x).clamp(f32::EPSILON, 1.0 - f32::EPSILON);
                let (s, c) = f64::from((u - 0.5) * std::f32::consts::PI).sin_cos();
                if c <= 2.0 * SINE_ERROR {
                    return Expected::Between(f64::NEG_INFINITY, f64::INFINITY);
                }
                let error = (s.abs() + SINE_ERROR) / (c - SINE_ERROR) - s.abs() / c;
                let error = error + 2f64.powi(-21) * (s / c).abs();
                let (median, sigma) = (self.cast(median), self.cast(sigma));
                Expected::near(sigma * (s / c) + median, sigma * error)
            }
            Distribution::Geometric { p } => {
                let ((above, above_error), (below, below_error)) = if double {
                    (log(uniform_wide(x, y)), ((-p).ln_1p(), (-p).ln_1p().abs() * 2f64.powi(-51)))
                } else {
                    (fast_log(uniform(x)), fast_log(1.0 - p as f32))
                };
                let off = 2f64.powi(self.digits());
                let low = (above.abs() - above_error) / (below.abs() + below_error) * (1.0 - off);
                let high = (above.abs() + above_error) / (below.abs() - below_error) * (1.0 + off);
                Expected::Trials(low.ceil(), high.ceil())
            }
            Distribution::Integers { base, range } => self.integer(base, range.into(), x, y),
            Distribution::IntegersFull => self.integer(0, 1 << 64, x, y),
            Distribution::IntegersAll => {
                let range = match self.dtype {
                    Dtype::Bool => 2,
                    Dtype::F16 => (1 << 11) + 1,
                    Dtype::BF16 => (1 << 8) + 1,
                    Dtype::F32 => (1 << 24) + 1,
                    Dtype::F64 => (1 << 53) + 1,
                    Dtype::U8 => 1 << 8,
                    signed => 1 << (8 * signed.bytes() - 1),
                };
                self.integer(0, range, x, y)
            }
            Distribution::Bernoulli { p } => {
                let is_one = if double { uniform_wide(x, y) < p } else { uniform(x) < p as f32 };
                Expected::Bits(if is_one { self.one() } else { 0 })
            }
            Distribution::BernoulliTensor => unreachable!("with_probability does these"),
        }
    }

    /// The element of a word where each has a probability.
    pub fn with_probability(&self, word: u32, dtype: Dtype, p: u64) -> Expected {
        let (u, p) = (uniform(word), value_of(dtype, p));
        let is_one = if self.dtype == Dtype::F64 { f64::from(u) <= p } else { u <= p as f32 };
        Expected::Bits(if is_one { self.one() } else { 0 })
    }

    fn one(&self) -> u64 {
        if is_float(self.dtype) { bits_of(self.dtype, 1.0) } else { 1 }
    }

    /// A parameter in the type in which PyTorch computes.
    fn cast(&self, value: f64) -> f64 {
        if self.dtype == Dtype::F64 { value } else { f64::from(value as f32) }
    }

    /// The power of two of a rounding's largest relative error.
    fn digits(&self) -> i32 {
        if self.dtype == Dtype::F64 { -53 } else { -24 }
    }

    /// The remainder by `range`, from `base` on; of two words the first is the high one.
    fn integer(&self, base: i64, range: u128, x: u32, y: u32) -> Expected {
        let draw = if self.is_wide() { u128::from(x) << 32 | u128::from(y) } else { x.into() };
        let value = base.wrapping_add((draw % range) as i64);
        Expected::Bits(match self.dtype {
            Dtype::Bool => u64::from(value != 0),
            Dtype::F64 => (value as f64).to_bits(),
            dtype if is_float(dtype) => bits_of(dtype, f64::from(value as f32)),
            _ => value as u64,
        })
    }

    /// A standard normal number by Box and Muller's method, and the largest error.
    fn normal(&self, [x, y, z, w]: [u32; 4], index: usize) -> (f64, f64) {
        let is_sine = index.is_multiple_of(2);
        if self.dtype == Dtype::F64 {
            let length = (-2.0 * uniform_wide(x, y).ln()).sqrt();
            let turn = (wide(z, w) as f64).mul_add(2f64.powi(-52), 2f64.powi(-53));
            // Of a multiple of a quarter turn nothing is lost by the product with pi.
            let quarters = (turn * 2.0).round();
            let (s, c) = ((turn - quarters / 2.0) * std::f64::consts::PI).sin_cos();
            let value = match (quarters as u32 % 4, is_sine) {
                (0, true) | (3, false) => s,
                (1, true) | (0, false) => c,
                (2, true) | (1, false) => -s,
                _ => -c,
            };
            return (length * value, length * 2f64.powi(-50));
        }
        let (x, y) = if index < 2 { (x, y) } else { (z, w) };
        let length = (-2.0 * f64::from(uniform(x)).ln()).sqrt();
        let scale = std::f32::consts::TAU * 2f32.powi(-32);
        let (s, c) = f64::from((y as f32).mul_add(scale, scale / 2.0)).sin_cos();
        let value = length * if is_sine { s } else { c };
        (value, length * SINE_ERROR + value.abs() * 2f64.powi(-22))
    }
}
