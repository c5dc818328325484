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
    let bounded = a.clamp(-200.0, 200.0) as f64;
    finish::<FTZ, false>(if a.is_nan() { NAN_F32 } else { exp2(bounded) as f32 })
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
    let series = a * polynomial(square, [-17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0]);
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
