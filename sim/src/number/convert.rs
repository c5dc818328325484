//! `cvt`: conversions among integers and floating-point types.
//!
//! `f16` and `bf16` are passed as their encodings, of the format `H`. Const parameters stand for
//! the modifiers: `R` for the rounding, `FTZ`, `SAT`, `RELU` and `SATFINITE` for those of the same
//! name.

use super::float::{self, NAN_F32, NEAREST, flush_if, is_nan_f32, is_nan_f64, round_sum};
use super::half::{self, F16, Half};
use super::rounding::{AWAY, DOWN, Exact, Format, UP, ZERO};

/// The rounding to an integer of a conversion that has none: the value stays.
pub const KEEP: u8 = 0xff;

/// The integer types of `cvt`: `u8` to `u64` and `s8` to `s64`.
pub trait Whole: Copy {
    /// Number of bits.
    const BITS: u32;
    /// Whether negative values exist.
    const SIGNED: bool;

    /// The value, extended to 64 bits.
    fn extend(self) -> u64;

    /// The lower bits of a value.
    fn truncate(value: u64) -> Self;

    /// The nearest value to a number that has no fraction; 0 for a NaN.
    fn of_f32(value: f32) -> Self;

    /// The nearest value to a number that has no fraction; 0 for a NaN.
    fn of_f64(value: f64) -> Self;

    /// The nearest `f32`.
    fn nearest_f32(self) -> f32;

    /// The nearest `f64`.
    fn nearest_f64(self) -> f64;
}

macro_rules! whole {
    ($($type:ty, $signed:expr);*) => {
        $(impl Whole for $type {
            const BITS: u32 = <$type>::BITS;
            const SIGNED: bool = $signed;

            #[inline(always)]
            fn extend(self) -> u64 {
                self as u64
            }

            #[inline(always)]
            fn truncate(value: u64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn of_f32(value: f32) -> Self {
                value as Self
            }

            #[inline(always)]
            fn of_f64(value: f64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn nearest_f32(self) -> f32 {
                self as f32
            }

            #[inline(always)]
            fn nearest_f64(self) -> f64 {
                self as f64
            }
        })*
    };
}

whole!(u8, false; i8, true; u16, false; i16, true; u32, false; i32, true; u64, false; i64, true);

/// Integer to integer: extension or truncation, or with `SAT` the nearest value.
#[inline(always)]
pub fn resize<S: Whole, D: Whole, const SAT: bool>(value: S) -> D {
    let bits = value.extend();
    let greatest = u64::MAX >> (64 - D::BITS + D::SIGNED as u32);
    if !SAT {
        D::truncate(bits)
    } else if S::SIGNED {
        let least = if D::SIGNED { !(greatest as i64) } else { 0 };
        // Of a signed value, only i64::MAX can be the bound where the result has 64 bits.
        let greatest = greatest.min(i64::MAX as u64) as i64;
        D::truncate((bits as i64).clamp(least, greatest) as u64)
    } else {
        D::truncate(bits.min(greatest))
    }
}

/// Rounds to an integer, which stays an `f32`.
#[inline(always)]
fn whole_f32<const R: u8>(value: f32) -> f32 {
    match R {
        NEAREST => value.round_ties_even(),
        ZERO => value.trunc(),
        DOWN => value.floor(),
        UP => value.ceil(),
        _ => value,
    }
}

/// Rounds to an integer, which stays an `f64`.
#[inline(always)]
fn whole_f64<const R: u8>(value: f64) -> f64 {
    match R {
        NEAREST => value.round_ties_even(),
        ZERO => value.trunc(),
        DOWN => value.floor(),
        UP => value.ceil(),
        _ => value,
    }
}

/// What a NaN becomes where the source is `f64` or the result has 64 bits: only the uppermost bit
/// is set.
#[inline(always)]
fn integer_of_nan<I: Whole>() -> I {
    I::truncate(1 << (I::BITS - 1))
}

/// `f32` to integer. Values out of range give the nearest one.
#[inline(always)]
pub fn f32_to_integer<I: Whole, const R: u8, const FTZ: bool>(value: f32) -> I {
    let integer = I::of_f32(whole_f32::<R>(flush_if::<FTZ>(value)));
    if I::BITS == 64 && value.is_nan() { integer_of_nan() } else { integer }
}

/// `f64` to integer. Values out of range give the nearest one.
#[inline(always)]
pub fn f64_to_integer<I: Whole, const R: u8>(value: f64) -> I {
    let integer = I::of_f64(whole_f64::<R>(value));
    if value.is_nan() { integer_of_nan() } else { integer }
}

/// `f16` or `bf16` to integer. Values out of range give the nearest one.
#[inline(always)]
pub fn half_to_integer<H: Half, I: Whole, const R: u8>(value: u16) -> I {
    f32_to_integer::<I, R, false>(H::widen(value))
}

/// The exact value of an integer.
#[inline(always)]
fn exact<I: Whole>(value: I) -> Exact {
    let bits = value.extend();
    let negative = I::SIGNED && (bits as i64) < 0;
    let significand = if negative { bits.wrapping_neg() } else { bits } as u128;
    Exact { negative, significand, exponent: 0 }
}

/// Integer to `f32`.
#[inline(always)]
pub fn integer_to_f32<I: Whole, const R: u8, const SAT: bool>(value: I) -> f32 {
    let rounded = if R == NEAREST {
        value.nearest_f32()
    } else if I::BITS < 64 {
        round_sum::<R>(value.nearest_f64(), 0.0)
    } else {
        f32::from_bits(exact(value).encode::<R>(Format::F32) as u32)
    };
    if SAT { float::saturate(rounded) } else { rounded }
}

/// Integer to `f64`.
#[inline(always)]
pub fn integer_to_f64<I: Whole, const R: u8, const SAT: bool>(value: I) -> f64 {
    let rounded = if R == NEAREST || I::BITS < 64 {
        value.nearest_f64()
    } else {
        f64::from_bits(exact(value).encode::<R>(Format::F64))
    };
    if SAT { saturate_f64(rounded) } else { rounded }
}

/// Integer to `f16` or `bf16`.
#[inline(always)]
pub fn integer_to_half<I: Whole, H: Half, const R: u8, const SAT: bool>(value: I) -> u16 {
    let odd = if I::BITS < 64 {
        half::round_to_odd(value.nearest_f64(), 0.0)
    } else {
        // Of more than 53 bits, the lower ones count only as to whether one is set.
        let Exact { negative, significand, .. } = exact(value);
        let bits = significand as u64;
        let sticky = (bits >> 11 | (bits & 0x7ff != 0) as u64) << 11;
        let magnitude = if bits < 1 << 53 { bits } else { sticky };
        let wide = half::round_to_odd(magnitude as f64, 0.0);
        if negative { -wide } else { wide }
    };
    half::finish::<H, false, SAT, false>(H::narrow::<R>(odd))
}

/// `.sat` of a value of `f64`.
#[inline(always)]
fn saturate_f64(value: f64) -> f64 {
    let positive = if value > 0.0 { value } else { 0.0 };
    if positive < 1.0 { positive } else { 1.0 }
}

/// `cvt.f32.f32`, with a rounding to an integer or with [`KEEP`]. Without any modifier, a NaN
/// keeps its bits.
#[inline(always)]
pub fn f32_to_f32<const R: u8, const FTZ: bool, const SAT: bool>(value: f32) -> f32 {
    if R == KEEP && !FTZ && !SAT {
        return value;
    }
    float::finish::<FTZ, SAT>(whole_f32::<R>(flush_if::<FTZ>(value)))
}

/// `cvt.f64.f64`, with a rounding to an integer or with [`KEEP`].
#[inline(always)]
pub fn f64_to_f64<const R: u8, const SAT: bool>(value: f64) -> f64 {
    let rounded = whole_f64::<R>(value);
    let rounded = if R == KEEP { value } else { float::with_payload(rounded, [value]) };
    if SAT { saturate_f64(rounded) } else { rounded }
}

/// `cvt.f16.f16` and `cvt.bf16.bf16`, with a rounding to an integer or with [`KEEP`].
#[inline(always)]
pub fn half_to_same<H: Half, const R: u8, const SAT: bool>(value: u16) -> u16 {
    let rounded = H::narrow::<NEAREST>(whole_f32::<R>(H::widen(value)));
    half::finish::<H, false, SAT, false>(rounded)
}

/// The `f64` of an `f32`. A NaN is made quiet; it keeps its sign and its payload.
#[inline(always)]
fn widen(value: f32) -> f64 {
    let bits = value.to_bits();
    let (sign, payload) = ((bits >> 31) as u64, (bits & 0x007f_ffff) as u64);
    let nan = sign << 63 | 0x7ff8 << 48 | payload << 29;
    f64::from_bits(if is_nan_f32(value) { nan } else { (value as f64).to_bits() })
}

/// The NaN of a narrower format, without the sign: `infinity` with the upper bits of the payload,
/// quiet.
#[inline(always)]
fn narrow_nan(value: f64, infinity: u32, fraction_bits: u32) -> u32 {
    let payload = (value.to_bits() & (u64::MAX >> 12)) >> (52 - fraction_bits);
    infinity | payload as u32 | 1 << (fraction_bits - 1)
}

/// `cvt.f64.f32`. With `FTZ`, a NaN is that of the instructions on `f32`.
#[inline(always)]
pub fn f32_to_f64<const FTZ: bool, const SAT: bool>(value: f32) -> f64 {
    let wide = widen(if FTZ { float::finish::<true, false>(value) } else { value });
    if SAT { saturate_f64(wide) } else { wide }
}

/// `cvt.f32.f64`. A NaN is made quiet; it keeps its sign and the upper bits of its payload.
#[inline(always)]
pub fn f64_to_f32<const R: u8, const FTZ: bool, const SAT: bool>(value: f64) -> f32 {
    let rounded = float::round_sum_flushed::<R, FTZ>(value, 0.0);
    let sign = (value.to_bits() >> 32) as u32 & 0x8000_0000;
    let nan = narrow_nan(value, 0x7f80_0000, 23) | sign;
    let bits = if is_nan_f64(value) { nan } else { rounded.to_bits() };
    if SAT { float::saturate(f32::from_bits(bits)) } else { f32::from_bits(bits) }
}

/// `f16` or `bf16` to `f32`. A NaN of `bf16` keeps its bits, unless `FTZ`.
#[inline(always)]
pub fn half_to_f32<H: Half, const FTZ: bool, const SAT: bool>(value: u16) -> f32 {
    let wide = H::widen(value);
    if H::KEEPS_NAN && !FTZ && !SAT { wide } else { float::finish::<FTZ, SAT>(wide) }
}

/// `f16` or `bf16` to `f64`. A NaN is made quiet; it keeps its sign and its payload.
#[inline(always)]
pub fn half_to_f64<H: Half, const SAT: bool>(value: u16) -> f64 {
    let wide = widen(H::widen(value));
    if SAT { saturate_f64(wide) } else { wide }
}

/// The greatest finite value in place of greater ones and infinity, with the same sign.
#[inline(always)]
fn finite<H: Half, const SATFINITE: bool>(value: u16) -> u16 {
    if SATFINITE && value & 0x7fff == H::INFINITY { value - 1 } else { value }
}

/// `f32` to `f16` or `bf16`. `FTZ` has no effect: the GPU rounds subnormal values as others.
#[inline(always)]
pub fn f32_to_half<
    H: Half,
    const R: u8,
    const FTZ: bool,
    const SAT: bool,
    const RELU: bool,
    const SATFINITE: bool,
>(
    value: f32,
) -> u16 {
    let rounded = H::narrow::<R>(value);
    half::finish::<H, false, SAT, RELU>(finite::<H, SATFINITE>(rounded))
}

/// `f64` to `f16` or `bf16`. A NaN is made quiet; it keeps its sign and the upper bits of its
/// payload.
#[inline(always)]
pub fn f64_to_half<H: Half, const R: u8, const SAT: bool>(value: f64) -> u16 {
    let rounded = H::narrow::<R>(half::round_to_odd(value, 0.0));
    let sign = (value.to_bits() >> 48) as u16 & 0x8000;
    let nan = narrow_nan(value, H::INFINITY as u32, H::FRACTION_BITS) as u16 | sign;
    half::finish::<H, false, SAT, false>(if is_nan_f64(value) { nan } else { rounded })
}

/// `f16` to `bf16` and the reverse.
#[inline(always)]
pub fn half_to_half<S: Half, D: Half, const R: u8>(value: u16) -> u16 {
    D::narrow::<R>(S::widen(value))
}

/// Two `f32` to `f16x2` or `bf16x2`: `a` becomes the upper half.
#[inline(always)]
pub fn f32_pair_to_half<H: Half, const R: u8, const RELU: bool, const SATFINITE: bool>(
    a: f32,
    b: f32,
) -> u32 {
    let high = f32_to_half::<H, R, false, false, RELU, SATFINITE>(a) as u32;
    let low = f32_to_half::<H, R, false, false, RELU, SATFINITE>(b) as u32;
    high << 16 | low
}

/// `f32` to `tf32`, an `f32` of which the lower 13 bits are zero.
///
/// `R` is [`NEAREST`], [`ZERO`] or [`AWAY`].
#[inline(always)]
pub fn f32_to_tf32<const R: u8, const RELU: bool, const SATFINITE: bool>(value: f32) -> f32 {
    const DROPPED: u32 = 0x1fff;
    let bits = value.to_bits();
    let finite = bits & 0x7f80_0000 != 0x7f80_0000;
    let up = match R {
        ZERO => 0,
        AWAY => 0x1000,
        _ => 0x0fff + (bits >> 13 & 1),
    };
    // A carry out of the significand gives the next exponent, and infinity in the end.
    let rounded = bits.wrapping_add(if finite { up } else { 0 }) & !DROPPED;
    // With AWAY, a NaN is truncated as other values are; otherwise there is one NaN.
    let infinite = rounded & 0x7fff_ffff >= 0x7f80_0000;
    let rounded = if SATFINITE & infinite { rounded - (DROPPED + 1) } else { rounded };
    let rounded = if RELU && bits >> 31 == 1 { 0 } else { rounded };
    let nan = R != AWAY && is_nan_f32(value);
    f32::from_bits(if nan { NAN_F32.to_bits() & !DROPPED } else { rounded })
}

/// One of the formats of 8 bits.
pub trait Octet {
    /// The encoding of the greatest finite value.
    const GREATEST: u32;

    /// The magnitude of an `f32` that is finite, rounded to nearest; it may exceed the greatest
    /// value.
    fn round(magnitude: u32) -> u32;

    /// The value as `f16`, without its sign. The encoding is not that of a NaN.
    fn widen(magnitude: u16) -> u16;

    /// Whether an encoding without its sign is that of a NaN.
    fn is_nan(magnitude: u16) -> bool;
}

/// `e4m3`: 4 bits of exponent, 3 of fraction, no infinity.
pub struct E4m3;

/// `e5m2`: 5 bits of exponent, 2 of fraction.
pub struct E5m2;

impl Octet for E4m3 {
    const GREATEST: u32 = 0x7e;

    #[inline(always)]
    fn round(magnitude: u32) -> u32 {
        half::shrink::<NEAREST, 4, -6>(magnitude, false)
    }

    #[inline(always)]
    fn widen(magnitude: u16) -> u16 {
        // The product corrects the bias of the exponent, for subnormal values too.
        let value = f32::from_bits((magnitude as u32) << 20) * f32::from_bits(0x7b80_0000);
        F16::narrow::<NEAREST>(value)
    }

    #[inline(always)]
    fn is_nan(magnitude: u16) -> bool {
        magnitude == 0x7f
    }
}

impl Octet for E5m2 {
    const GREATEST: u32 = 0x7b;

    #[inline(always)]
    fn round(magnitude: u32) -> u32 {
        half::shrink::<NEAREST, 3, -14>(magnitude, false)
    }

    #[inline(always)]
    fn widen(magnitude: u16) -> u16 {
        magnitude << 8
    }

    #[inline(always)]
    fn is_nan(magnitude: u16) -> bool {
        magnitude > 0x7c
    }
}

/// `f32` to `e4m3` or `e5m2`, rounded to nearest, with `.satfinite`.
#[inline(always)]
pub fn f32_to_octet<E: Octet, const RELU: bool>(value: f32) -> u8 {
    let bits = value.to_bits();
    let (magnitude, sign) = (bits & 0x7fff_ffff, bits >> 24 & 0x80);
    let rounded = E::round(magnitude).min(E::GREATEST) | sign;
    let rounded = if RELU && sign != 0 { 0 } else { rounded };
    (if value.is_nan() { 0x7f } else { rounded }) as u8
}

/// `e4m3` or `e5m2` to `f16`.
#[inline(always)]
pub fn octet_to_f16<E: Octet, const RELU: bool>(value: u8) -> u16 {
    let (magnitude, sign) = ((value & 0x7f) as u16, (value as u16 & 0x80) << 8);
    let wide = E::widen(magnitude) | sign;
    let wide = if RELU && sign != 0 { 0 } else { wide };
    if E::is_nan(magnitude) { half::NAN } else { wide }
}

/// Two `f32` to `e4m3x2` or `e5m2x2`: `a` becomes the upper byte.
#[inline(always)]
pub fn f32_pair_to_octets<E: Octet, const RELU: bool>(a: f32, b: f32) -> u16 {
    (f32_to_octet::<E, RELU>(a) as u16) << 8 | f32_to_octet::<E, RELU>(b) as u16
}

/// `f16x2` to `e4m3x2` or `e5m2x2`.
#[inline(always)]
pub fn f16_pair_to_octets<E: Octet, const RELU: bool>(value: u32) -> u16 {
    f32_pair_to_octets::<E, RELU>(F16::widen((value >> 16) as u16), F16::widen(value as u16))
}

/// `e4m3x2` or `e5m2x2` to `f16x2`.
#[inline(always)]
pub fn octets_to_f16_pair<E: Octet, const RELU: bool>(value: u16) -> u32 {
    let high = octet_to_f16::<E, RELU>((value >> 8) as u8) as u32;
    high << 16 | octet_to_f16::<E, RELU>(value as u8) as u32
}

/// The nearest value to `value` of an integer type of `bits` bits, as these bits.
#[inline(always)]
fn clamp_to(value: i32, bits: u32, signed: bool) -> u32 {
    let greatest = (1i32 << (bits - signed as u32)) - 1;
    let least = if signed { !greatest } else { 0 };
    value.clamp(least, greatest) as u32 & ((1 << bits) - 1)
}

/// `cvt.pack.sat` to `BITS` bits: `a` above `b`, and above both the lower bits of `c`.
///
/// `BITS` is 16, 8, 4 or 2; for 16 there is no `c`.
#[inline(always)]
pub fn pack<const BITS: u32, const SIGNED: bool>(a: i32, b: i32, c: u32) -> u32 {
    let both = clamp_to(a, BITS, SIGNED) << BITS | clamp_to(b, BITS, SIGNED);
    if BITS == 16 { both } else { c << (2 * BITS) | both }
}

#[cfg(test)]
mod tests {
    use super::super::half::Bf16;
    use super::*;

    #[test]
    fn integers() {
        assert_eq!(resize::<i32, u8, true>(-5), 0);
        assert_eq!(resize::<i32, u8, true>(300), 255);
        assert_eq!(resize::<i32, i8, true>(-300), -128);
        assert_eq!(resize::<u64, i32, true>(u64::MAX), i32::MAX);
        assert_eq!(resize::<u64, i64, true>(u64::MAX), i64::MAX);
        assert_eq!(resize::<i64, u64, true>(-1), 0);
        assert_eq!(resize::<i64, u64, true>(i64::MAX), i64::MAX as u64);
        assert_eq!(resize::<i64, i64, true>(i64::MIN), i64::MIN);
        assert_eq!(resize::<i8, u64, false>(-1), u64::MAX);
        assert_eq!(resize::<u8, i64, false>(255), 255);
        assert_eq!(resize::<i64, i16, false>(0x1_8000), i16::MIN);
        assert_eq!(resize::<u32, i64, true>(u32::MAX), u32::MAX as i64);
    }

    #[test]
    fn floats_to_integers() {
        for (value, nearest, zero, down, up) in [
            (2.5f32, 2, 2, 2, 3),
            (3.5, 4, 3, 3, 4),
            (-2.5, -2, -2, -3, -2),
            (-0.5, 0, 0, -1, 0),
            (1e-40, 0, 0, 0, 1),
            (3e9, i32::MAX, i32::MAX, i32::MAX, i32::MAX),
            (f32::NEG_INFINITY, i32::MIN, i32::MIN, i32::MIN, i32::MIN),
            (f32::NAN, 0, 0, 0, 0),
        ] {
            assert_eq!(f32_to_integer::<i32, NEAREST, false>(value), nearest);
            assert_eq!(f32_to_integer::<i32, ZERO, false>(value), zero);
            assert_eq!(f32_to_integer::<i32, DOWN, false>(value), down);
            assert_eq!(f32_to_integer::<i32, UP, false>(value), up);
        }
        assert_eq!(f32_to_integer::<i32, UP, true>(1e-40), 0);
        assert_eq!(f32_to_integer::<u8, ZERO, false>(-3.0), 0);
        assert_eq!(f32_to_integer::<u64, ZERO, false>(f32::NAN), 1 << 63);
        assert_eq!(f64_to_integer::<i32, ZERO>(f64::NAN), i32::MIN);
        assert_eq!(f64_to_integer::<u32, ZERO>(f64::NAN), 1 << 31);
        assert_eq!(f64_to_integer::<i64, NEAREST>(4503599627370497.5), 4503599627370498);
        assert_eq!(half_to_integer::<F16, i16, DOWN>(0xbe00), -2);
        assert_eq!(half_to_integer::<Bf16, u16, UP>(0x3fc0), 2);
    }

    fn check_integers<const R: u8>() {
        let mut state = 0x0123_4567_89ab_cdefu64;
        for i in 0..100_000 {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            let mut bits = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> (state & 63);
            if i % 3 == 0 {
                bits &= u64::MAX << (bits.leading_zeros() + i % 64).min(63);
                bits |= (i / 3) as u64 & 1;
            }
            let encode = |format, value: Exact| value.encode::<R>(format);
            let wide = exact(bits as i64);
            let single = integer_to_f32::<i64, R, false>(bits as i64).to_bits() as u64;
            assert_eq!(single, encode(Format::F32, wide), "{bits:x}");
            let double = integer_to_f64::<i64, R, false>(bits as i64).to_bits();
            assert_eq!(double, encode(Format::F64, wide), "{bits:x}");
            let half = integer_to_half::<i64, F16, R, false>(bits as i64) as u64;
            assert_eq!(half, encode(Format::F16, wide), "{bits:x}");
            let half = integer_to_half::<i64, Bf16, R, false>(bits as i64) as u64;
            assert_eq!(half, encode(Format::BF16, wide), "{bits:x}");
            let half = integer_to_half::<u64, Bf16, R, false>(bits) as u64;
            assert_eq!(half, encode(Format::BF16, exact(bits)), "{bits:x}");
            let narrow = exact(bits as u32);
            let single = integer_to_f32::<u32, R, false>(bits as u32).to_bits() as u64;
            assert_eq!(single, encode(Format::F32, narrow), "{bits:x}");
            let half = integer_to_half::<i32, F16, R, false>(bits as i32) as u64;
            assert_eq!(half, encode(Format::F16, exact(bits as i32)), "{bits:x}");
            let half = integer_to_half::<u32, Bf16, R, false>(bits as u32) as u64;
            assert_eq!(half, encode(Format::BF16, narrow), "{bits:x}");
            // The same bits as a double, towards the range of the narrower formats.
            let bits = bits & !(0x3ff << 52) | (0x36d + (i as u64 % 0x130)) << 52;
            let value = f64::from_bits(bits);
            if value.is_finite() {
                let wide = Exact::decode(bits, Format::F64);
                let single = f64_to_f32::<R, false, false>(value).to_bits() as u64;
                assert_eq!(single, encode(Format::F32, wide), "{value:e}");
                let half = f64_to_half::<F16, R, false>(value) as u64;
                assert_eq!(half, encode(Format::F16, wide), "{value:e}");
                let half = f64_to_half::<Bf16, R, false>(value) as u64;
                assert_eq!(half, encode(Format::BF16, wide), "{value:e}");
            }
        }
    }

    #[test]
    fn all_roundings() {
        check_integers::<NEAREST>();
        check_integers::<ZERO>();
        check_integers::<DOWN>();
        check_integers::<UP>();
    }

    #[test]
    fn floats_to_floats() {
        assert_eq!(f32_to_f32::<NEAREST, false, false>(2.5), 2.0);
        assert_eq!(f32_to_f32::<DOWN, false, false>(-0.5), -1.0);
        assert_eq!(f32_to_f32::<UP, false, false>(-0.5).to_bits(), 1 << 31);
        assert_eq!(f32_to_f32::<KEEP, true, false>(-1e-40).to_bits(), 1 << 31);
        assert_eq!(f32_to_f32::<KEEP, false, true>(7.0), 1.0);
        assert_eq!(half_to_same::<F16, UP, false>(0x3c01), 0x4000);
        assert_eq!(f32_to_f64::<true, false>(1e-40), 0.0);
        let signalling = f64::from_bits(0xfff0_0000_0000_0001);
        assert_eq!(f64_to_f32::<NEAREST, false, false>(signalling).to_bits(), 0xffc0_0000);
        assert_eq!(f64_to_half::<F16, NEAREST, false>(signalling), 0xfe00);
        assert_eq!(f64_to_half::<Bf16, NEAREST, false>(signalling), 0xffc0);
        let signalling = f32::from_bits(0x7f80_0001);
        assert_eq!(f32_to_f64::<false, false>(signalling).to_bits(), 0x7ff8_0000_2000_0000);
        assert_eq!(f32_to_f64::<true, false>(signalling).to_bits(), 0x7fff_ffff_e000_0000);
        assert_eq!(f32_to_f32::<KEEP, false, false>(signalling).to_bits(), 0x7f80_0001);
        assert_eq!(f32_to_f32::<DOWN, false, false>(signalling).to_bits(), 0x7fff_ffff);
        let half = f32_to_half::<F16, NEAREST, false, false, false, false>(1e9);
        assert_eq!(half, 0x7c00);
        let half = f32_to_half::<F16, NEAREST, false, false, false, true>(-1e9);
        assert_eq!(half, 0xfbff);
        let half = f32_to_half::<Bf16, NEAREST, false, false, true, true>(-1e9);
        assert_eq!(half, 0);
        let half = f32_to_half::<Bf16, NEAREST, false, false, true, true>(f32::NAN);
        assert_eq!(half, half::NAN);
        let pair = f32_pair_to_half::<F16, NEAREST, false, false>(1.0, -2.0);
        assert_eq!(pair, 0x3c00_c000);
        assert_eq!(half_to_half::<F16, Bf16, ZERO>(0x3fff), 0x3fff);
        assert_eq!(half_to_half::<Bf16, F16, NEAREST>(0x3f80), 0x3c00);
    }

    #[test]
    fn tensor_floats() {
        let value = f32::from_bits(0x3f80_1000);
        assert_eq!(f32_to_tf32::<NEAREST, false, false>(value).to_bits(), 0x3f80_0000);
        assert_eq!(f32_to_tf32::<AWAY, false, false>(value).to_bits(), 0x3f80_2000);
        assert_eq!(f32_to_tf32::<ZERO, false, false>(-value).to_bits(), 0xbf80_0000);
        assert_eq!(f32_to_tf32::<NEAREST, true, false>(-value).to_bits(), 0);
        assert_eq!(f32_to_tf32::<AWAY, false, false>(f32::MAX), f32::INFINITY);
        assert_eq!(f32_to_tf32::<AWAY, false, true>(f32::MAX).to_bits(), 0x7f7f_e000);
        assert_eq!(f32_to_tf32::<NEAREST, false, false>(-f32::NAN).to_bits(), 0x7fff_e000);
        let nan = f32::from_bits(0xffc0_0005);
        assert_eq!(f32_to_tf32::<AWAY, false, false>(nan).to_bits(), 0xffc0_0000);
        assert_eq!(f32_to_tf32::<AWAY, false, true>(nan).to_bits(), 0xffbf_e000);
    }

    /// The values of the formats of 8 bits, from their definition.
    fn octet_value(encoding: u8, fraction_bits: i32, bias: i32) -> f32 {
        let (biased, unit) = ((encoding & 0x7f) >> fraction_bits, 1 << fraction_bits);
        let fraction = (encoding & (unit - 1)) as f32;
        let exponent = (biased as i32).max(1) - bias - fraction_bits;
        let implicit = if biased == 0 { 0.0 } else { unit as f32 };
        (fraction + implicit) * (exponent as f32).exp2() * if encoding > 127 { -1.0 } else { 1.0 }
    }

    fn check_octets<E: Octet>(fraction_bits: i32, bias: i32) {
        let greatest = E::GREATEST as u8;
        let value = |encoding| octet_value(encoding, fraction_bits, bias);
        for encoding in (0..=greatest).chain(0x80..=greatest | 0x80) {
            let wide = F16::widen(octet_to_f16::<E, false>(encoding));
            assert_eq!(wide, value(encoding), "{encoding:02x}");
            assert_eq!(f32_to_octet::<E, false>(wide), encoding);
            assert_eq!(octets_to_f16_pair::<E, true>(encoding as u16) as u16 == 0, wide <= 0.0);
        }
        for encoding in 0..greatest {
            let (low, high) = (value(encoding), value(encoding + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(f32_to_octet::<E, false>(middle), encoding + (encoding & 1));
            assert_eq!(f32_to_octet::<E, false>(middle.next_down()), encoding);
            assert_eq!(f32_to_octet::<E, false>(-middle.next_up()), (encoding + 1) | 0x80);
        }
        assert_eq!(f32_to_octet::<E, false>(1e30), greatest);
        assert_eq!(f32_to_octet::<E, false>(f32::NEG_INFINITY), greatest | 0x80);
        assert_eq!(f32_to_octet::<E, false>(f32::NAN), 0x7f);
        assert_eq!(f32_to_octet::<E, true>(-1.0), 0);
        assert_eq!(octet_to_f16::<E, false>(0x7f), half::NAN);
    }

    #[test]
    fn formats_of_eight_bits() {
        check_octets::<E4m3>(3, 7);
        check_octets::<E5m2>(2, 15);
        assert_eq!(f32_pair_to_octets::<E4m3, false>(448.0, 1.0), 0x7e38);
        assert_eq!(f16_pair_to_octets::<E5m2, false>(0x7c00_3c00), 0x7b3c);
    }

    #[test]
    fn packing() {
        assert_eq!(pack::<16, false>(-1, 70_000, 0), 0xffff);
        assert_eq!(pack::<16, true>(-1, 70_000, 0), 0xffff_7fff);
        assert_eq!(pack::<8, true>(-200, 5, 0x1234_5678), 0x5678_8005);
        assert_eq!(pack::<4, false>(20, 3, 0xabcd_ef01), 0xcdef_01f3);
        assert_eq!(pack::<2, true>(-5, 1, 0xf), 0xf9);
    }
}
