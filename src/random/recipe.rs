//! Selects the kernel for a distribution and an element type, with parameters cast like PyTorch's.

use super::number::{bfloat_of, half_of, of_bfloat, of_half};
use super::plan::{Distribution, Dtype, Image};
use std::ffi::CStr;

/// A kernel and its arguments.
pub struct Recipe {
    pub image: Image,
    /// The kernels for contiguous views and for strided views.
    pub flat: &'static CStr,
    pub strided: &'static CStr,
    /// Number of the element type in the strided kernel.
    pub element: u32,
    /// Elements per Philox block.
    pub draws: u64,
    /// The kernels' `Scalars`.
    pub scalars: [u64; 4],
}

/// The kernels of one file, indexed by the number of the element type.
struct Family {
    image: Image,
    draws: u64,
    strided: &'static CStr,
    flat: &'static [&'static CStr],
}

/// Concatenates literals to a C string.
macro_rules! name {
    ($name:literal, $element:literal) => {
        match CStr::from_bytes_with_nul(
            concat!("tcuda_random_", $name, "_", $element, "\0").as_bytes(),
        ) {
            Ok(name) => name,
            Err(_) => c"",
        }
    };
}

macro_rules! family {
    ($image:ident, $draws:literal, $name:literal: $($element:literal)*) => {
        Family {
            image: Image::$image,
            draws: $draws,
            strided: name!($name, "strided"),
            flat: &[$(name!($name, $element)),*],
        }
    };
}

const UNIFORM: Family = family!(Uniform, 4, "uniform": "f32" "f16" "bf16" "f64");
const NORMAL: Family = family!(Normal, 4, "normal": "f32" "f16" "bf16" "f64");
const LOG_NORMAL: Family = family!(LogNormal, 4, "log_normal": "f32" "f16" "bf16" "f64");
const EXPONENTIAL: Family = family!(Exponential, 4, "exponential": "f32" "f16" "bf16" "f64");
const CAUCHY: Family = family!(Cauchy, 4, "cauchy": "f32" "f16" "bf16" "f64");
const GEOMETRIC: Family =
    family!(Geometric, 4, "geometric": "f32" "f16" "bf16" "f64" "u8" "i8" "i16" "i32" "i64");
const INTEGERS32: Family = family!(Integers, 4, "integers32":
    "f32" "f16" "bf16" "f64" "b8" "b16" "b32" "b64" "bool");
/// Some types have no kernel: their ranges are always smaller.
const INTEGERS64: Family = family!(Integers, 2, "integers64":
    "f32" "none" "bf16" "f64" "none" "none" "b32" "b64");
const BERNOULLI: Family = family!(Bernoulli, 4, "bernoulli": "b8" "b16" "b32" "b64" "f64");
const EACH: [&CStr; 4] = [
    name!("bernoulli_each", "b8"),
    name!("bernoulli_each", "b16"),
    name!("bernoulli_each", "b32"),
    name!("bernoulli_each", "b64"),
];

/// From this range on, PyTorch draws integers with 64 bits.
const WIDE_RANGE: u64 = 1 << 28;

/// Does a draw take two words, so that a Philox block gives two elements?
fn is_wide(distribution: &Distribution, dtype: Dtype) -> bool {
    match distribution {
        Distribution::Integers { range, .. } => *range >= WIDE_RANGE,
        Distribution::IntegersFull => true,
        Distribution::IntegersAll => matches!(dtype, Dtype::I64 | Dtype::F64),
        _ => dtype == Dtype::F64,
    }
}

/// Elements per Philox block.
pub fn draws(distribution: &Distribution, dtype: Dtype) -> u64 {
    if is_wide(distribution, dtype) { 2 } else { 4 }
}

/// The recipe; `None` if PyTorch does not support the combination.
pub fn find(distribution: &Distribution, dtype: Dtype) -> Option<Recipe> {
    let wide = is_wide(distribution, dtype);
    let (family, element, scalars) = match *distribution {
        Distribution::Uniform { low, high } => (&UNIFORM, float(dtype)?, uniform(low, high, dtype)),
        Distribution::Normal { mean, stddev } => {
            (&NORMAL, float(dtype)?, [acc(mean, dtype), acc(stddev, dtype), 0, 0])
        }
        Distribution::LogNormal { mean, stddev } => {
            (&LOG_NORMAL, float(dtype)?, [acc(mean, dtype), acc(stddev, dtype), 0, 0])
        }
        Distribution::Cauchy { median, sigma } => {
            (&CAUCHY, float(dtype)?, [acc(median, dtype), acc(sigma, dtype), 0, 0])
        }
        Distribution::Exponential { rate } => {
            let scale = match dtype {
                Dtype::F64 => (-1.0 / rate).to_bits(),
                _ => u64::from((-1.0 / rate as f32).to_bits()),
            };
            (&EXPONENTIAL, float(dtype)?, [scale, 0, 0, 0])
        }
        Distribution::Geometric { p } => (&GEOMETRIC, trials(dtype)?, [acc(p, dtype), 0, 0, 0]),
        Distribution::Bernoulli { p } => {
            let (element, one) = bits(dtype)?;
            (&BERNOULLI, element, [threshold(p, dtype)?, one, 0, 0])
        }
        Distribution::BernoulliTensor => return None,
        Distribution::Integers { base, range: range @ 1.. } if wide => {
            (&INTEGERS64, wide_integers(dtype)?, modulo64(base, range))
        }
        Distribution::Integers { base, range: range @ 1.. } => {
            (&INTEGERS32, integers(dtype), modulo32(base, range as u32))
        }
        Distribution::Integers { .. } => return None,
        // Range 2^64 is encoded as 0, and is a power of two.
        Distribution::IntegersFull => {
            use Dtype::{BF16, F32, F64, I64};
            let taken = matches!(dtype, I64 | F64 | F32 | BF16);
            (&INTEGERS64, wide_integers(dtype).filter(|_| taken)?, [0, 0, 0, 1 << 16])
        }
        Distribution::IntegersAll => {
            let range = all_of(dtype)?;
            match wide {
                true => (&INTEGERS64, wide_integers(dtype)?, modulo64(0, range)),
                false => (&INTEGERS32, integers(dtype), modulo32(0, range as u32)),
            }
        }
    };
    Some(Recipe {
        image: family.image,
        flat: family.flat.get(element as usize)?,
        strided: family.strided,
        element,
        draws: if wide { 2 } else { family.draws },
        scalars,
    })
}

/// The number of a floating-point type.
fn float(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::F32 => Some(0),
        Dtype::F16 => Some(1),
        Dtype::BF16 => Some(2),
        Dtype::F64 => Some(3),
        _ => None,
    }
}

fn trials(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::U8 => Some(4),
        Dtype::I8 => Some(5),
        Dtype::I16 => Some(6),
        Dtype::I32 => Some(7),
        Dtype::I64 => Some(8),
        _ => float(dtype),
    }
}

fn integers(dtype: Dtype) -> u32 {
    match (float(dtype), dtype.bytes()) {
        (Some(float), _) => float,
        _ if dtype == Dtype::Bool => 8,
        (_, bytes) => 4 + bytes.trailing_zeros(),
    }
}

fn wide_integers(dtype: Dtype) -> Option<u32> {
    // The other types have fewer than 2^28 values.
    use Dtype::{BF16, F32, F64, I32, I64, U32, U64};
    let taken = matches!(dtype, F32 | BF16 | F64 | I32 | U32 | I64 | U64);
    taken.then(|| integers(dtype))
}

/// For results 0 and 1: the number of the kernel, and the bits of a 1.
fn bits(dtype: Dtype) -> Option<(u32, u64)> {
    let one = one(dtype)?;
    Some((if dtype == Dtype::F64 { 4 } else { dtype.bytes().trailing_zeros() }, one))
}

fn one(dtype: Dtype) -> Option<u64> {
    match dtype {
        Dtype::F16 => Some(0x3c00),
        Dtype::BF16 => Some(0x3f80),
        Dtype::F32 => Some(u64::from(1f32.to_bits())),
        Dtype::F64 => Some(1f64.to_bits()),
        Dtype::U16 | Dtype::U32 | Dtype::U64 => None,
        _ => Some(1),
    }
}

/// The kernel with a probability for each element, and the bits of a 1.
pub fn each(dtype: Dtype) -> Option<(&'static CStr, u64)> {
    let kernel = EACH[dtype.bytes().trailing_zeros() as usize];
    one(dtype).map(|one| (kernel, one))
}

/// The number of the type of the probabilities: `P_...` in the kernel.
pub fn probability(dtype: Dtype) -> Option<u64> {
    match dtype {
        Dtype::F32 => Some(0),
        Dtype::F64 => Some(1),
        Dtype::F16 => Some(2),
        Dtype::BF16 => Some(3),
        _ => None,
    }
}

/// The range of `random_()`: it draws from 0 to this bound, exclusive.
fn all_of(dtype: Dtype) -> Option<u64> {
    match dtype {
        Dtype::Bool => Some(2),
        Dtype::U8 => Some(1 << 8),
        Dtype::I8 => Some(1 << 7),
        Dtype::I16 => Some(1 << 15),
        Dtype::I32 => Some(1 << 31),
        Dtype::I64 => Some(1 << 63),
        Dtype::F16 => Some((1 << 11) + 1),
        Dtype::BF16 => Some((1 << 8) + 1),
        Dtype::F32 => Some((1 << 24) + 1),
        Dtype::F64 => Some((1 << 53) + 1),
        Dtype::U16 | Dtype::U32 | Dtype::U64 => None,
    }
}

/// The bits of a value in the type in which PyTorch computes elements of `dtype`.
fn acc(value: f64, dtype: Dtype) -> u64 {
    match dtype {
        Dtype::F64 => value.to_bits(),
        _ => u64::from((value as f32).to_bits()),
    }
}

/// `high - low`, `low` and `high`, each cast to the element type like in PyTorch.
fn uniform(low: f64, high: f64, dtype: Dtype) -> [u64; 4] {
    if dtype == Dtype::F64 {
        return [(high - low).to_bits(), low.to_bits(), high.to_bits(), 0];
    }
    let cast = |value: f32| match dtype {
        Dtype::F16 => of_half(half_of(value)),
        Dtype::BF16 => of_bfloat(bfloat_of(value)),
        _ => value,
    };
    let (low, high) = (cast(low as f32), cast(high as f32));
    [cast(high - low), low, high, 0.0].map(|value| u64::from(value.to_bits()))
}

/// The least word (or 53 bits of two words) whose uniform number is at least `p`.
fn threshold(p: f64, dtype: Dtype) -> Option<u64> {
    if !(0.0..=1.0).contains(&p) {
        return None;
    }
    let below = |x: u64| match dtype {
        Dtype::F64 => uniform64(x) < p,
        _ => uniform32(x as u32) < p as f32,
    };
    // The largest word gives 1, which is never below `p`.
    let (mut first, mut end) = (0, if dtype == Dtype::F64 { (1 << 53) - 1 } else { (1 << 32) - 1 });
    while first < end {
        let middle = first + (end - first) / 2;
        if below(middle) { first = middle + 1 } else { end = middle }
    }
    Some(first)
}

/// A uniform number in (0, 1].
pub fn uniform32(x: u32) -> f32 {
    (x as f32).mul_add(f32::from_bits(0x2f80_0000), f32::from_bits(0x2f00_0000))
}

/// A uniform number in (0, 1], from 53 bits.
pub fn uniform64(z: u64) -> f64 {
    let (scale, half) =
        (f64::from_bits(0x3ca0_0000_0000_0000), f64::from_bits(0x3c90_0000_0000_0000));
    (z as f64).mul_add(scale, half)
}

/// Constants for a division by `divisor` > 0 without a divide instruction (Granlund and
/// Montgomery). The quotient is `(t + ((x - t) >> first)) >> second`, with `t` the high half of
/// `x*magic`.
pub fn magic32(divisor: u32) -> (u32, u32, u32) {
    let bits = u64::from(divisor).next_power_of_two().trailing_zeros();
    let excess = (1u64 << bits) - u64::from(divisor);
    let magic = (excess << 32) / u64::from(divisor) + 1;
    (magic as u32, bits.min(1), bits.saturating_sub(1))
}

/// [`magic32`] for 64 bits.
pub fn magic64(divisor: u64) -> (u64, u32, u32) {
    let bits = u128::from(divisor).next_power_of_two().trailing_zeros();
    let excess = (1u128 << bits) - u128::from(divisor);
    let magic = (excess << 64) / u128::from(divisor) + 1;
    (magic as u64, bits.min(1), bits.saturating_sub(1))
}

fn modulo32(base: i64, range: u32) -> [u64; 4] {
    let (magic, first, second) = magic32(range);
    let masks = u64::from(range.is_power_of_two());
    let packed = u64::from(magic) | u64::from(first) << 32 | u64::from(second) << 40 | masks << 48;
    [base as u64, u64::from(range), packed, 0]
}

fn modulo64(base: i64, range: u64) -> [u64; 4] {
    let (magic, first, second) = magic64(range);
    let masks = u64::from(range.is_power_of_two());
    [base as u64, range, magic, u64::from(first) | u64::from(second) << 8 | masks << 16]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn divide32(x: u32, divisor: u32) -> u32 {
        let (magic, first, second) = magic32(divisor);
        let t = ((u64::from(x) * u64::from(magic)) >> 32) as u32;
        (t + ((x - t) >> first)) >> second
    }

    fn divide64(x: u64, divisor: u64) -> u64 {
        let (magic, first, second) = magic64(divisor);
        let t = ((u128::from(x) * u128::from(magic)) >> 64) as u64;
        (t + ((x - t) >> first)) >> second
    }

    proptest! {
        #[test]
        fn division_by_multiplication_is_exact(x: u64, divisor: u64, shift in 0u32..64) {
            let divisor = (divisor >> shift).max(1);
            let multiple = divisor.wrapping_mul(x / divisor);
            for x in [x, x >> shift, u64::MAX, divisor - 1, divisor, multiple] {
                prop_assert_eq!(divide64(x, divisor), x / divisor);
                let (x, divisor) = (x as u32, (divisor as u32).max(1));
                prop_assert_eq!(divide32(x, divisor), x / divisor);
            }
        }

        #[test]
        fn the_threshold_separates_the_draws(p in 0.0f64..=1.0, small: bool) {
            let p = if small { p * 1e-6 } else { p };
            let first = threshold(p, Dtype::F32).unwrap();
            prop_assert!(uniform32(first as u32) >= p as f32);
            prop_assert!(first == 0 || uniform32(first as u32 - 1) < p as f32);
            let first = threshold(p, Dtype::F64).unwrap();
            prop_assert!(uniform64(first) >= p);
            prop_assert!(first == 0 || uniform64(first - 1) < p);
        }
    }

    #[test]
    fn divisors_at_the_edges() {
        for divisor in [1, 2, 3, 7, (1 << 24) + 1, 1 << 31, (1 << 31) + 1, u32::MAX] {
            for x in [0, 1, divisor - 1, divisor, divisor.wrapping_add(1), u32::MAX - 1, u32::MAX] {
                assert_eq!(divide32(x, divisor), x / divisor, "{x} / {divisor}");
            }
        }
        for divisor in [1, 2, 3, (1 << 53) + 1, 1 << 63, (1 << 63) + 1, u64::MAX] {
            for x in [0, 1, divisor - 1, divisor, divisor.wrapping_add(1), u64::MAX - 1, u64::MAX] {
                assert_eq!(divide64(x, divisor), x / divisor, "{x} / {divisor}");
            }
        }
    }

    #[test]
    fn thresholds_at_the_extremes() {
        for dtype in [Dtype::F32, Dtype::F64] {
            assert_eq!(threshold(0.0, dtype), Some(0));
            assert_eq!(threshold(1.5, dtype), None);
            assert_eq!(threshold(f64::NAN, dtype), None);
        }
        // Draws that round to 1 are not below p. As in PyTorch, p = 1 does not always give 1.
        assert_eq!(threshold(1.0, Dtype::F32), Some((1 << 32) - 128));
        assert_eq!(threshold(1.0, Dtype::F64), Some((1 << 53) - 1));
    }
}
