//! The approximate instructions: `ex2`, `lg2`, `sin`, `cos`, `tanh`, `rcp`, `rsqrt`, `sqrt`,
//! `div.approx` and `div.full`.
//!
//! Results differ from a GPU's within the errors that the PTX ISA documents; special cases are
//! those of its tables. The functions are straight-line code, which the compiler vectorises:
//! polynomials in `f64`, of which the results are rounded to `f32`. `FTZ` is `.ftz`.

use super::float::{
    Float, NAN_F32, NAN_F64, NEAREST, finish, flush_if, is_nan_f64, round_sum, with_payload,
};
use super::half::{self, Half};
use super::rounding::ZERO;

/// Added to and subtracted from an `f64` of less than 2^51, it leaves the nearest integer.
const TO_INTEGER: f64 = 6_755_399_441_055_744.0;

/// The polynomial with these coefficients, the highest one first.
#[inline(always)]
fn polynomial<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    let mut value = 0.0;
    for coefficient in coefficients {
        value = value * x + coefficient;
    }
    value
}

/// 2^x for values of at most 1022, with a relative error of less than 2^-33.
#[inline(always)]
fn exp2(x: f64) -> f64 {
    let shifted = x + TO_INTEGER;
    let rest = x - (shifted - TO_INTEGER);
    // The powers of ln 2, divided by factorials: the rest is at most 1/2.
    let power = polynomial(
        rest,
        [
            1.321_548_679_014_430_5e-6,
            1.525_273_380_405_984e-5,
            1.540_353_039_338_160_6e-4,
            1.333_355_814_642_844_3e-3,
            9.618_129_107_628_477e-3,
            5.550_410_866_482_158e-2,
            2.402_265_069_591_007e-1,
            std::f64::consts::LN_2,
            1.0,
        ],
    );
    // The lowest bits of the shifted value are the integer; they become the exponent.
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    power * scale
}

/// `ex2.approx.f32`
#[inline(always)]
pub fn ex2<const FTZ: bool>(x: f32) -> f32 {
    let a = flush_if::<FTZ>(x);
    // Beyond these bounds the result is zero or infinity anyway.
    let bounded = if a < 200.0 { a } else { 200.0 };
    let bounded = if bounded > -200.0 { bounded } else { -200.0 };
    let power = exp2(bounded as f64) as f32;
    finish::<FTZ, false>(if a.is_nan() { NAN_F32 } else { power })
}

/// `lg2.approx.f32`
#[inline(always)]
pub fn lg2<const FTZ: bool>(x: f32) -> f32 {
    let a = flush_if::<FTZ>(x);
    // Subnormal values are brought into the normal range.
    let small = a < f32::MIN_POSITIVE;
    let normal = if small { a * 8_388_608.0 } else { a };
    let offset = if small { -23 } else { 0 };
    // The significand is brought to the range from the square root of 1/2 to that of 2.
    let bits = normal.to_bits() as i32;
    let exponent = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let significand = f32::from_bits(bits.wrapping_sub(exponent << 23) as u32) as f64;
    let s = (significand - 1.0) / (significand + 1.0);
    let square = s * s;
    // The series of the inverse hyperbolic tangent, times 2 / ln 2.
    let logarithm = s * polynomial(
        square,
        [
            2.885_390_081_777_926_8 / 11.0,
            2.885_390_081_777_926_8 / 9.0,
            2.885_390_081_777_926_8 / 7.0,
            2.885_390_081_777_926_8 / 5.0,
            2.885_390_081_777_926_8 / 3.0,
            2.885_390_081_777_926_8,
        ],
    );
    let value = ((exponent + offset) as f64 + logarithm) as f32;
    let value = if a == f32::INFINITY { a } else { value };
    let value = if a == 0.0 { f32::NEG_INFINITY } else { value };
    if (a < 0.0) | a.is_nan() { NAN_F32 } else { value }
}

/// The angle in turns, as the GPU computes it: the product with 1 / 2 pi, truncated to `f32`; and
/// its distance from the nearest whole turn.
///
/// Angles of at least 2^23 turns are whole ones.
#[inline(always)]
fn turns<const FTZ: bool>(x: f32) -> f64 {
    let a = flush_if::<FTZ>(x) as f64;
    let turns = flush_if::<FTZ>(round_sum::<ZERO>(a * (0.159_154_94_f32 as f64), 0.0)) as f64;
    let bounded = if turns.abs() < 8_388_608.0 { turns } else { 0.0 };
    let rest = bounded - ((bounded + TO_INTEGER) - TO_INTEGER);
    // Whole turns keep their sign.
    let rest = if rest == 0.0 { 0f64.copysign(turns) } else { rest };
    if a.is_finite() { rest } else { NAN_F64 }
}

/// The sine of at most a quarter of a turn in either direction.
#[inline(always)]
fn sine(turns: f64) -> f64 {
    let x = turns * std::f64::consts::TAU;
    let square = x * x;
    x * polynomial(
        square,
        [
            1.605_904_383_682_161_3e-10,
            -2.505_210_838_544_172e-8,
            2.755_731_922_398_589_3e-6,
            -1.984_126_984_126_984e-4,
            8.333_333_333_333_333e-3,
            -0.166_666_666_666_666_66,
            1.0,
        ],
    )
}

/// `sin.approx.f32`
#[inline(always)]
pub fn sin<const FTZ: bool>(x: f32) -> f32 {
    let turns = turns::<FTZ>(x);
    let mirrored = 0.5f64.copysign(turns) - turns;
    let folded = if turns.abs() > 0.25 { mirrored } else { turns };
    finish::<FTZ, false>(sine(folded) as f32)
}

/// `cos.approx.f32`
#[inline(always)]
pub fn cos<const FTZ: bool>(x: f32) -> f32 {
    finish::<FTZ, false>(sine(0.25 - turns::<FTZ>(x).abs()) as f32)
}

/// `tanh.approx.f32`
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x as f64;
    let square = a * a;
    // The series for small values, where the quotient of the other formula cancels.
    let series =
        a * polynomial(square, [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0]);
    let power = exp2(a.abs().min(16.0) * (2.0 * std::f64::consts::LOG2_E));
    let quotient = ((power - 1.0) / (power + 1.0)).copysign(a);
    let value = if a.abs() < 0.25 { series } else { quotient } as f32;
    if x.is_nan() { NAN_F32 } else { value }
}

/// `rcp.approx.f32`
#[inline(always)]
pub fn rcp<const FTZ: bool>(x: f32) -> f32 {
    Float::rcp::<NEAREST, FTZ>(x)
}

/// `sqrt.approx.f32`
#[inline(always)]
pub fn sqrt<const FTZ: bool>(x: f32) -> f32 {
    Float::sqrt::<NEAREST, FTZ>(x)
}

/// `rsqrt.approx.f32`
#[inline(always)]
pub fn rsqrt<const FTZ: bool>(x: f32) -> f32 {
    finish::<FTZ, false>(1.0 / flush_if::<FTZ>(x).sqrt())
}

/// `div.approx.f32`: the product with an approximate reciprocal.
///
/// The reciprocal of a divisor above 2^126 is flushed to zero.
#[inline(always)]
pub fn div_approx<const FTZ: bool>(a: f32, b: f32) -> f32 {
    let (a, b) = (flush_if::<FTZ>(a), flush_if::<FTZ>(b));
    const LIMIT: f32 = f32::from_bits(0x7e80_0000);
    let divisor = if b.abs() > LIMIT { f32::INFINITY.copysign(b) } else { b };
    finish::<FTZ, false>(a / divisor)
}

/// `div.full.f32`
#[inline(always)]
pub fn div_full<const FTZ: bool>(a: f32, b: f32) -> f32 {
    Float::div::<NEAREST, FTZ>(a, b)
}

/// The upper word of a value; what the approximate instructions on `f64` read and write.
#[inline(always)]
fn upper_word(value: f64) -> f64 {
    f64::from_bits(value.to_bits() & 0xffff_ffff_0000_0000)
}

/// Replaces subnormal values by zeros of their sign.
#[inline(always)]
fn flush_f64(value: f64) -> f64 {
    if value.abs() < f64::MIN_POSITIVE { 0f64.copysign(value) } else { value }
}

/// What the approximate instructions on `f64` give for a NaN.
const NAN_UPPER: f64 = f64::from_bits(0x7fff_ffff_0000_0000);

/// `rcp.approx.ftz.f64`: the lower word is neither read nor written.
#[inline(always)]
pub fn rcp_f64(x: f64) -> f64 {
    let value = flush_f64(upper_word(1.0 / flush_f64(upper_word(x))));
    if is_nan_f64(value) { NAN_UPPER } else { value }
}

/// `rsqrt.approx.ftz.f64`: the lower word is neither read nor written.
#[inline(always)]
pub fn rsqrt_f64(x: f64) -> f64 {
    let value = upper_word(1.0 / flush_f64(upper_word(x)).sqrt());
    if is_nan_f64(value) { NAN_UPPER } else { value }
}

/// `rsqrt.approx.f64`
#[inline(always)]
pub fn rsqrt_f64_full(x: f64) -> f64 {
    with_payload(1.0 / x.sqrt(), [x])
}

/// `ex2.approx.f16`, and with `FTZ` `ex2.approx.ftz.bf16`.
#[inline(always)]
pub fn ex2_half<H: Half, const FTZ: bool>(x: u16) -> u16 {
    let value = ex2::<FTZ>(H::widen(half::flush::<H, FTZ>(x)));
    half::flush::<H, FTZ>(H::narrow::<NEAREST>(value))
}

/// `tanh.approx.f16` and `tanh.approx.bf16`.
#[inline(always)]
pub fn tanh_half<H: Half>(x: u16) -> u16 {
    H::narrow::<NEAREST>(tanh(H::widen(x)))
}

#[cfg(test)]
mod tests {
    use super::super::half::{Bf16, F16};
    use super::*;

    /// All encodings in steps, with those around the steps.
    fn samples() -> impl Iterator<Item = f32> {
        (0..=u32::MAX / 9973).map(|i| f32::from_bits(i * 9973)).filter(|x| x.is_finite())
    }

    /// Checks a relative error, where the result is a normal number.
    fn check(name: &str, bits: i32, function: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
        for x in samples() {
            let (value, expected) = (function(x) as f64, exact(x as f64));
            if expected.abs() < f32::MIN_POSITIVE as f64 || expected.abs() > f32::MAX as f64 {
                continue;
            }
            if expected.is_nan() {
                assert!(value.is_nan(), "{name} {x:e}");
                continue;
            }
            let error = ((value - expected) / expected).abs();
            assert!(error <= 2f64.powi(bits), "{name} {x:e}: {value:e}, {expected:e}");
        }
    }

    #[test]
    fn errors_within_bounds() {
        check("ex2", -23, ex2::<false>, f64::exp2);
        check("lg2", -23, lg2::<false>, f64::log2);
        check("tanh", -23, tanh, f64::tanh);
        check("rsqrt", -22, rsqrt::<false>, |x| 1.0 / x.sqrt());
        check("rcp", -23, rcp::<false>, |x| 1.0 / x);
        check("sqrt", -23, sqrt::<false>, f64::sqrt);
        for i in 0..=1_000_000 {
            let x = (i as f32 / 500_000.0 - 1.0) * std::f32::consts::PI;
            let (sine, cosine) = (sin::<false>(x) as f64, cos::<false>(x) as f64);
            assert!((sine - (x as f64).sin()).abs() < 2f64.powf(-20.5), "sin {x:e}");
            assert!((cosine - (x as f64).cos()).abs() < 2f64.powf(-20.5), "cos {x:e}");
        }
    }

    /// The tables of the PTX ISA, and a GPU's answers.
    #[test]
    fn special_cases() {
        let (nan, infinity, tiny) = (f32::NAN, f32::INFINITY, f32::from_bits(1));
        let bits = f32::to_bits;
        assert_eq!(ex2::<true>(-infinity), 0.0);
        assert_eq!(ex2::<true>(-tiny), 1.0);
        assert_eq!(ex2::<true>(infinity), infinity);
        assert_eq!(ex2::<true>(-130.0), 0.0);
        // 2^-130: powi inverts 2^130, which is infinite.
        assert_eq!(bits(ex2::<false>(-130.0)), 1 << 19);
        assert_eq!(bits(ex2::<true>(nan)), 0x7fff_ffff);
        assert_eq!(lg2::<true>(-tiny), -infinity);
        assert_eq!(lg2::<true>(0.0), -infinity);
        assert_eq!(lg2::<true>(infinity), infinity);
        assert_eq!(lg2::<false>(tiny), -149.0);
        assert_eq!(lg2::<false>(1.0), 0.0);
        assert_eq!(bits(lg2::<true>(-1.0)), 0x7fff_ffff);
        assert_eq!(bits(sin::<true>(-0.0)), 0x8000_0000);
        assert_eq!(bits(sin::<true>(infinity)), 0x7fff_ffff);
        assert_eq!(bits(sin::<false>(f32::MIN)), 0x8000_0000);
        assert_eq!(cos::<true>(f32::MAX), 1.0);
        assert_eq!(cos::<true>(tiny), 1.0);
        assert_eq!(bits(cos::<true>(-infinity)), 0x7fff_ffff);
        assert_eq!(bits(tanh(-0.0)), 0x8000_0000);
        assert_eq!(tanh(-infinity), -1.0);
        assert_eq!(bits(tanh(nan)), 0x7fff_ffff);
        assert_eq!(rcp::<true>(-tiny), -infinity);
        assert_eq!(bits(rcp::<true>(-infinity)), 0x8000_0000);
        assert_eq!(rsqrt::<true>(-tiny), -infinity);
        assert_eq!(rsqrt::<true>(infinity), 0.0);
        assert_eq!(bits(rsqrt::<false>(-tiny)), 0x7fff_ffff);
        assert_eq!(bits(sqrt::<true>(-tiny)), 0x8000_0000);
        assert_eq!(bits(sqrt::<false>(-1.0)), 0x7fff_ffff);
        assert_eq!(div_approx::<false>(f32::MAX, f32::MAX), 0.0);
        assert_eq!(bits(div_approx::<false>(infinity, f32::MAX)), 0x7fff_ffff);
        assert_eq!(div_full::<false>(f32::MAX, f32::MAX), 1.0);
        assert_eq!(rcp_f64(1.5).to_bits(), 0x3fe5_5555_0000_0000);
        assert_eq!(rcp_f64(f64::MAX), 0.0);
        assert_eq!(rcp_f64(f64::from_bits(0x7ff0_0000_0000_0001)), 0.0);
        assert_eq!(rsqrt_f64(0.5).to_bits(), 0x3ff6_a09e_0000_0000);
        assert_eq!(rsqrt_f64(-1.0).to_bits(), 0x7fff_ffff_0000_0000);
        let quiet = rsqrt_f64_full(f64::from_bits(0x7ff0_0000_0000_0001));
        assert_eq!(quiet.to_bits(), 0x7ff8_0000_0000_0001);
        assert_eq!(ex2_half::<F16, false>(0x3c00), 0x4000);
        assert_eq!(ex2_half::<Bf16, true>(0xbf80), 0x3f00);
        assert_eq!(tanh_half::<F16>(0xfc00), 0xbc00);
    }
}
