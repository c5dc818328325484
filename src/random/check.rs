//! Which element types and parameters PyTorch accepts for each distribution.

use super::number::{bfloat_of, half_of, of_bfloat, of_half};
use super::plan::{Distribution, Dtype};
use crate::base::error::{Error, Result};
use crate::tensor;
use crate::tensor::dtype::code;

/// The element type for the kernels. True for complex numbers, whose two parts are filled
/// separately.
pub fn dtype_of(dtype: tensor::Dtype) -> Result<(Dtype, bool)> {
    let found = match (dtype.code, dtype.bits) {
        (code::BOOL, 8) => Dtype::Bool,
        (code::UINT, 8) => Dtype::U8,
        (code::UINT, 16) => Dtype::U16,
        (code::UINT, 32) => Dtype::U32,
        (code::UINT, 64) => Dtype::U64,
        (code::INT, 8) => Dtype::I8,
        (code::INT, 16) => Dtype::I16,
        (code::INT, 32) => Dtype::I32,
        (code::INT, 64) => Dtype::I64,
        (code::FLOAT, 16) | (code::COMPLEX, 32) => Dtype::F16,
        (code::FLOAT, 32) | (code::COMPLEX, 64) => Dtype::F32,
        (code::FLOAT, 64) | (code::COMPLEX, 128) => Dtype::F64,
        (code::BFLOAT, 16) => Dtype::BF16,
        _ => return Err(NO_NUMBERS),
    };
    if dtype.lanes == 1 { Ok((found, dtype.code == code::COMPLEX)) } else { Err(NO_NUMBERS) }
}

const NO_NUMBERS: Error = Error::Invalid(
    "random numbers are for tensors of floats of 16, 32 or 64 bits, bfloat16, integers of 8 to 64 \
     bits and bool, with one lane",
);

/// For a floating-point type: its largest number, and the digits of its significand.
fn float(dtype: Dtype) -> Option<(f64, u32)> {
    match dtype {
        Dtype::F16 => Some((65504.0, 11)),
        Dtype::BF16 => Some((f64::from(f32::from_bits(0x7f7f_0000)), 8)),
        Dtype::F32 => Some((f64::from(f32::MAX), 24)),
        Dtype::F64 => Some((f64::MAX, 53)),
        _ => None,
    }
}

/// The least and the largest integer of a type.
fn bounds(dtype: Dtype) -> Option<(i64, i64)> {
    let signed = |bits: u32| (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits));
    Some(match dtype {
        Dtype::Bool => (0, 1),
        Dtype::U8 => (0, i64::from(u8::MAX)),
        Dtype::U16 => (0, i64::from(u16::MAX)),
        Dtype::U32 => (0, i64::from(u32::MAX)),
        // The largest bound that an `i64` can represent.
        Dtype::U64 => (0, i64::MAX),
        Dtype::I8 => signed(8),
        Dtype::I16 => signed(16),
        Dtype::I32 => signed(32),
        Dtype::I64 => signed(64),
        Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64 => return None,
    })
}

const FLOATS_ONLY: Error = Error::Invalid(
    "that distribution is one of real numbers: the tensor must be of floats of 16, 32 or 64 bits, \
     or bfloat16",
);

/// An error unless the distribution supports the type. `is_complex`: parts of complex numbers.
pub fn require(distribution: &Distribution, dtype: Dtype, is_complex: bool) -> Result<()> {
    use Distribution::*;
    let is_float = float(dtype).is_some();
    let is_odd = matches!(dtype, Dtype::U16 | Dtype::U32 | Dtype::U64);
    if is_complex && !matches!(distribution, Uniform { .. } | Normal { .. }) {
        return Err(Error::Invalid(
            "complex numbers have a uniform and a normal distribution; fill the real and the \
             imaginary parts as floats for others",
        ));
    }
    match distribution {
        Uniform { .. } | Normal { .. } | LogNormal { .. } | Exponential { .. } | Cauchy { .. } => {
            if is_float {
                Ok(())
            } else {
                Err(FLOATS_ONLY)
            }
        }
        Geometric { .. } if is_odd || dtype == Dtype::Bool => Err(Error::Invalid(
            "PyTorch fills floats, signed integers and uint8 with geometric numbers, and no others",
        )),
        IntegersFull if !matches!(dtype, Dtype::I64 | Dtype::F64 | Dtype::F32 | Dtype::BF16) => {
            Err(Error::Invalid(
                "PyTorch fills int64, float64, float32 and bfloat16 with all numbers of 64 bits, \
                 and no others; use a low above INT64_MIN",
            ))
        }
        IntegersAll | Bernoulli { .. } | BernoulliTensor if is_odd => Err(Error::Invalid(
            "PyTorch fills uint16, uint32 and uint64 with integers in a range, and with nothing \
             else",
        )),
        _ => Ok(()),
    }
}

fn wrong(name: &'static str, value: f64, allowed: &'static str) -> Error {
    Error::Number { name, value, allowed }
}

/// Uniform numbers from `low` to `high`.
pub fn uniform(dtype: Dtype, low: f64, high: f64) -> Result<Distribution> {
    let (most, _) = float(dtype).ok_or(FLOATS_ONLY)?;
    let allowed = "it must be a number that the type of the tensor can hold";
    for (name, value) in [("low", low), ("high", high)] {
        if !(-most..=most).contains(&value) {
            return Err(wrong(name, value, allowed));
        }
    }
    if low > high {
        return Err(wrong("low", low, "it must not be above high"));
    }
    if high - low > most {
        let allowed = "high - low must be a number that the type of the tensor can hold";
        return Err(wrong("high", high, allowed));
    }
    Ok(Distribution::Uniform { low, high })
}

/// Normal numbers. For complex numbers each part has half of the variance.
pub fn normal(mean: f64, stddev: f64, is_complex: bool) -> Result<Distribution> {
    if stddev.is_nan() || stddev < 0.0 {
        return Err(wrong("stddev", stddev, "it must not be negative"));
    }
    let stddev = if is_complex { stddev / std::f64::consts::SQRT_2 } else { stddev };
    Ok(Distribution::Normal { mean, stddev })
}

/// `exp` of normal numbers.
pub fn log_normal(mean: f64, stddev: f64) -> Result<Distribution> {
    positive("stddev", stddev)?;
    Ok(Distribution::LogNormal { mean, stddev })
}

/// Exponential numbers.
pub fn exponential(rate: f64) -> Result<Distribution> {
    positive("rate", rate)?;
    Ok(Distribution::Exponential { rate })
}

/// Cauchy numbers.
pub fn cauchy(median: f64, sigma: f64) -> Result<Distribution> {
    positive("sigma", sigma)?;
    Ok(Distribution::Cauchy { median, sigma })
}

fn positive(name: &'static str, value: f64) -> Result<()> {
    if value > 0.0 { Ok(()) } else { Err(wrong(name, value, "it must be above 0")) }
}

/// Number of trials up to the first success.
pub fn geometric(p: f64) -> Result<Distribution> {
    if !(p > 0.0 && p < 1.0) {
        return Err(wrong("p", p, "it must be above 0 and below 1"));
    }
    Ok(Distribution::Geometric { p })
}

/// 1 with probability `p`, else 0.
pub fn bernoulli(p: f64) -> Result<Distribution> {
    if !(0.0..=1.0).contains(&p) {
        return Err(wrong("p", p, "it must be 0 to 1"));
    }
    Ok(Distribution::Bernoulli { p })
}

/// Rounds a number to a floating-point type and back. A number that does not fit gives `i64::MIN`,
/// as in PyTorch on x86.
fn round_trip(dtype: Dtype, value: i64) -> i64 {
    let value = match dtype {
        Dtype::F16 => f64::from(of_half(half_of(value as f32))),
        Dtype::BF16 => f64::from(of_bfloat(bfloat_of(value as f32))),
        Dtype::F32 => f64::from(value as f32),
        _ => value as f64,
    };
    // 2^63 and NaN are not representable as `i64`.
    if value >= -(2f64.powi(63)) && value < 2f64.powi(63) { value as i64 } else { i64::MIN }
}

/// The distance of neighbours near `value`, for a type with this many digits.
fn step(value: i64, digits: u32) -> i64 {
    let bits = value.unsigned_abs().max(1).ilog2();
    1i64.wrapping_shl((bits + 1).wrapping_sub(digits))
}

/// The least bound from `low` on above which no number is rounded below the bound.
fn low_of(dtype: Dtype, digits: u32, low: i64) -> i64 {
    let next = low.wrapping_add(1);
    let rounded = round_trip(dtype, next);
    if rounded < low { rounded.wrapping_add(step(next, digits)) } else { low }
}

/// The largest bound up to `high` below which no number is rounded up to the bound.
fn high_of(dtype: Dtype, digits: u32, high: i64) -> i64 {
    let last = high.wrapping_sub(1);
    let rounded = round_trip(dtype, last);
    if rounded >= high { rounded.wrapping_sub(step(last, digits)) } else { high }
}

fn out_of_type(name: &'static str, value: i64) -> Error {
    Error::OutOfRange { name, value, allowed: "the type of the tensor has no such number" }
}

/// An error unless the type can represent both numbers.
fn require_in_type(dtype: Dtype, low: i64, last: i64) -> Result<()> {
    let (least, most) = match (float(dtype), bounds(dtype)) {
        (Some((most, _)), _) => (-most, most),
        (None, Some((least, most))) => {
            return match () {
                () if !(least..=most).contains(&low) => Err(out_of_type("low", low)),
                () if !(least..=most).contains(&last) => Err(out_of_type("high - 1", last)),
                () => Ok(()),
            };
        }
        (None, None) => return Err(NO_NUMBERS),
    };
    for (name, value) in [("low", low), ("high - 1", last)] {
        if !(least..=most).contains(&(value as f64)) {
            return Err(out_of_type(name, value));
        }
    }
    Ok(())
}

/// Integers from `low` to `high`, exclusive.
pub fn integers(dtype: Dtype, low: i64, high: i64) -> Result<Distribution> {
    let empty = |low, allowed| Err(Error::OutOfRange { name: "low", value: low, allowed });
    if low >= high {
        return empty(low, "it must be below high");
    }
    let (mut base, mut end) = (low, high);
    if let Some((_, digits)) = float(dtype) {
        (base, end) = (low_of(dtype, digits, low), high_of(dtype, digits, high));
        if base >= end {
            return empty(low, "the type of the tensor has no number from there up to below high");
        }
    }
    require_in_type(dtype, base, end.wrapping_sub(1))?;
    Ok(Distribution::Integers { base, range: (end as u64).wrapping_sub(base as u64) })
}

/// Integers from `low` to the largest of a type; for floats, to the largest up to which all
/// integers are representable.
pub fn integers_from(dtype: Dtype, low: i64) -> Result<Distribution> {
    if low == i64::MIN {
        return Ok(Distribution::IntegersFull);
    }
    let (base, last) = match (float(dtype), bounds(dtype)) {
        (Some((_, digits)), _) => {
            let (base, last) = (low_of(dtype, digits, low), 1i64 << digits);
            if base >= last {
                return Err(out_of_type("low", low));
            }
            (base, last)
        }
        // The largest bound does not fit in `i64`; PyTorch refuses it too.
        (None, Some(_)) if dtype == Dtype::U64 => return Err(out_of_type("high - 1", -1)),
        (None, Some((_, most))) => (low, most),
        (None, None) => return Err(NO_NUMBERS),
    };
    require_in_type(dtype, base, last)?;
    let range = (last as u64).wrapping_sub(base as u64).wrapping_add(1);
    Ok(Distribution::Integers { base, range })
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
