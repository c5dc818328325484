//! Arithmetic of `f16` and `bf16`, which are passed as their encodings in `u16`.
//!
//! Results are those of one rounding, to nearest. Const parameters stand for the modifiers:
//! `FTZ` for `.ftz`, `SAT` for `.sat`, `RELU` for `.relu`.

use super::float::{self, Float, NEAREST};
use super::rounding::{DOWN, UP, ZERO};

/// The NaN that an instruction on `f16` or `bf16` gives.
pub const NAN: u16 = 0x7fff;

/// The encoding of -0.
const SIGN: u16 = 0x8000;

/// One of the formats of 16 bits.
pub trait Half {
    /// The encoding of infinity.
    const INFINITY: u16;
    /// The encoding of 1.
    const ONE: u16;
    /// Number of bits of the fraction.
    const FRACTION_BITS: u32;
    /// Whether a NaN keeps its bits in a conversion to `f32`.
    const KEEPS_NAN: bool;

    /// The same value as `f32`; a NaN stays one.
    fn widen(value: u16) -> f32;

    /// Rounds to this format. `R` is one of the roundings of [`float`].
    fn narrow<const R: u8>(value: f32) -> u16;
}

/// `f16`: 11 bits of significand, 5 of exponent.
pub struct F16;

/// `bf16`: 8 bits of significand, 8 of exponent.
pub struct Bf16;

/// Whether a rest makes a kept significand greater by one.
#[inline(always)]
const fn round_up<const R: u8>(kept: u32, rest: u32, half: u32, negative: bool) -> bool {
    match R {
        ZERO => false,
        DOWN => (rest != 0) & negative,
        UP => (rest != 0) & !negative,
        _ => (rest > half) | ((rest == half) & (kept & 1 == 1)),
    }
}

/// Where a value rounds beyond the greatest finite one, whether it becomes that one.
#[inline(always)]
const fn stays_finite<const R: u8>(negative: bool) -> bool {
    match R {
        ZERO => true,
        DOWN => !negative,
        UP => negative,
        _ => false,
    }
}

/// Rounds the magnitude of an `f32` to a format with less precision and a narrower range of
/// exponents, as if this had no greatest value. The result is encoded with the format's bias.
#[inline(always)]
pub(crate) fn shrink<const R: u8, const PRECISION: u32, const LEAST: i32>(
    magnitude: u32,
    negative: bool,
) -> u32 {
    let exponent = magnitude >> 23;
    let least = (127 + LEAST) as u32;
    let dropped = 24 - PRECISION;
    // Values below the least normal one are shifted to the place of a subnormal significand.
    // Subnormal values of f32 are below half the least value of the format in any case.
    let normal = exponent >= least;
    let significand = (magnitude & 0x007f_ffff) | 0x0080_0000;
    let significand = if exponent == 0 { magnitude } else { significand };
    let from = if normal { magnitude.wrapping_sub((least - 1) << 23) } else { significand };
    let shift = if normal { dropped } else { (least + dropped).wrapping_sub(exponent).min(31) };
    let kept = from >> shift;
    let rest = from & ((1 << shift) - 1);
    kept + round_up::<R>(kept, rest, 1 << (shift - 1), negative) as u32
}

impl Half for F16 {
    const INFINITY: u16 = 0x7c00;
    const ONE: u16 = 0x3c00;
    const FRACTION_BITS: u32 = 10;
    const KEEPS_NAN: bool = false;

    #[inline(always)]
    fn widen(value: u16) -> f32 {
        let magnitude = ((value & !SIGN) as u32) << 13;
        // The bias of the exponent differs by 112. A subnormal value is the difference of a number
        // with it as the fraction and one without.
        let biased = magnitude + (112 << 23);
        const LEAST: u32 = 113 << 23;
        let subnormal = f32::from_bits(magnitude + LEAST) - f32::from_bits(LEAST);
        let bits = if magnitude >= 1 << 23 { biased } else { subnormal.to_bits() };
        let special = magnitude | 0x7f80_0000;
        let bits = if magnitude >= 0x7c00 << 13 { special } else { bits };
        f32::from_bits(bits | ((value & SIGN) as u32) << 16)
    }

    #[inline(always)]
    fn narrow<const R: u8>(value: f32) -> u16 {
        let bits = value.to_bits();
        let (magnitude, negative) = (bits & 0x7fff_ffff, bits >> 31 == 1);
        let rounded = shrink::<R, 11, -14>(magnitude, negative);
        let infinity = Self::INFINITY as u32;
        let beyond = infinity - stays_finite::<R>(negative) as u32;
        let rounded = if rounded >= infinity { beyond } else { rounded };
        let rounded = if magnitude == 0x7f80_0000 { infinity } else { rounded };
        let signed = rounded | (bits >> 16 & SIGN as u32);
        (if magnitude > 0x7f80_0000 { NAN as u32 } else { signed }) as u16
    }
}

impl Half for Bf16 {
    const INFINITY: u16 = 0x7f80;
    const ONE: u16 = 0x3f80;
    const FRACTION_BITS: u32 = 7;
    const KEEPS_NAN: bool = true;

    #[inline(always)]
    fn widen(value: u16) -> f32 {
        f32::from_bits((value as u32) << 16)
    }

    #[inline(always)]
    fn narrow<const R: u8>(value: f32) -> u16 {
        let bits = value.to_bits();
        let kept = bits >> 16;
        // A carry out of the significand gives the next exponent, and infinity in the end.
        let up = round_up::<R>(kept, bits & 0xffff, 0x8000, bits >> 31 == 1);
        let rounded = kept + up as u32;
        (if bits & 0x7fff_ffff > 0x7f80_0000 { NAN as u32 } else { rounded }) as u16
    }
}

/// Replaces subnormal values by zeros of their sign.
#[inline(always)]
pub fn flush<H: Half, const FTZ: bool>(value: u16) -> u16 {
    if FTZ && value & H::INFINITY == 0 { value & SIGN } else { value }
}

/// Applies the modifiers to a rounded result.
#[inline(always)]
pub(crate) fn finish<H: Half, const FTZ: bool, const SAT: bool, const RELU: bool>(
    value: u16,
) -> u16 {
    let value = flush::<H, FTZ>(value);
    let nan = value & !SIGN > H::INFINITY;
    let negative = value & SIGN != 0;
    if SAT {
        // Encodings of values that are not negative are ordered as the values.
        if nan | negative { 0 } else { value.min(H::ONE) }
    } else if RELU {
        if negative & !nan { 0 } else { value }
    } else {
        value
    }
}

/// Rounds a result, and replaces it by a zero of its sign if `FTZ` and it is below the normal
/// range. `scaled` is [`SCALE`] times the value, for the reason of `flush_tiny` in `float`.
#[inline(always)]
fn round<H: Half, const FTZ: bool>(value: f32, scaled: f32) -> u16 {
    let rounded = H::narrow::<NEAREST>(value);
    let least = 1 << H::FRACTION_BITS;
    let scaled = H::narrow::<NEAREST>(scaled) & !SIGN;
    if FTZ && scaled < least * (SCALE_EXPONENT + 1) { rounded & SIGN } else { rounded }
}

const SCALE_EXPONENT: u16 = 8;

/// The factor for [`round`].
const SCALE: f32 = 256.0;

/// Rounds to `f32` the value `sum + rest` such that a second rounding, to a format with at least
/// two bits less, gives what one rounding of the value gives: an inexact result is odd.
#[inline(always)]
pub(crate) fn round_to_odd(sum: f64, rest: f64) -> f32 {
    let truncated = float::round_sum::<ZERO>(sum, rest);
    let inexact = (truncated as f64 != sum) | (rest != 0.0);
    let odd = f32::from_bits(truncated.to_bits() | 1);
    if inexact & truncated.is_finite() { odd } else { truncated }
}

/// `add`
#[inline(always)]
pub fn add<H: Half, const FTZ: bool, const SAT: bool>(a: u16, b: u16) -> u16 {
    let (a, b) = (flush::<H, FTZ>(a), flush::<H, FTZ>(b));
    // f32 has more than twice the bits of the significand: rounding twice gives the same.
    let sum = H::narrow::<NEAREST>(H::widen(a) + H::widen(b));
    finish::<H, FTZ, SAT, false>(sum)
}

/// `sub`
#[inline(always)]
pub fn sub<H: Half, const FTZ: bool, const SAT: bool>(a: u16, b: u16) -> u16 {
    add::<H, FTZ, SAT>(a, b ^ SIGN)
}

/// `mul`
#[inline(always)]
pub fn mul<H: Half, const FTZ: bool, const SAT: bool>(a: u16, b: u16) -> u16 {
    let (a, b) = (flush::<H, FTZ>(a), flush::<H, FTZ>(b));
    let product = H::widen(a) * H::widen(b);
    let product = round::<H, FTZ>(product, if FTZ { product * SCALE } else { 0.0 });
    finish::<H, FTZ, SAT, false>(product)
}

/// `fma`
#[inline(always)]
pub fn fma<H: Half, const FTZ: bool, const SAT: bool, const RELU: bool>(
    a: u16,
    b: u16,
    c: u16,
) -> u16 {
    let [a, b, c] = [a, b, c].map(|value| H::widen(flush::<H, FTZ>(value)) as f64);
    // The product is exact.
    let (sum, rest) = float::two_sum(a * b, c);
    let scaled = if FTZ { round_to_odd(sum * SCALE as f64, rest) } else { 0.0 };
    finish::<H, FTZ, SAT, RELU>(round::<H, FTZ>(round_to_odd(sum, rest), scaled))
}

/// The NaN that fills a tensor outside of its bounds.
const OUT_OF_BOUNDS: u16 = 0xffff;

/// `fma.oob`: +0 if a factor is the NaN that stands for an element out of bounds.
#[inline(always)]
pub fn fma_oob<H: Half, const RELU: bool>(a: u16, b: u16, c: u16) -> u16 {
    let value = fma::<H, false, false, RELU>(a, b, c);
    if (a == OUT_OF_BOUNDS) | (b == OUT_OF_BOUNDS) { 0 } else { value }
}

/// `neg`
#[inline(always)]
pub fn neg<H: Half, const FTZ: bool>(a: u16) -> u16 {
    let value = flush::<H, FTZ>(a);
    if value & !SIGN > H::INFINITY { NAN } else { value ^ SIGN }
}

/// `abs`
#[inline(always)]
pub fn abs<H: Half, const FTZ: bool>(a: u16) -> u16 {
    let value = flush::<H, FTZ>(a) & !SIGN;
    if value > H::INFINITY { NAN } else { value }
}

/// `min`; `NAN` and `XORSIGN` are as for [`Float::min`].
#[inline(always)]
pub fn min<H: Half, const FTZ: bool, const NAN: bool, const XORSIGN: bool>(a: u16, b: u16) -> u16 {
    let (a, b) = (H::widen(flush::<H, FTZ>(a)), H::widen(flush::<H, FTZ>(b)));
    H::narrow::<NEAREST>(Float::min::<false, NAN, XORSIGN>(a, b))
}

/// `max`; `NAN` and `XORSIGN` are as for [`Float::min`].
#[inline(always)]
pub fn max<H: Half, const FTZ: bool, const NAN: bool, const XORSIGN: bool>(a: u16, b: u16) -> u16 {
    let (a, b) = (H::widen(flush::<H, FTZ>(a)), H::widen(flush::<H, FTZ>(b)));
    H::narrow::<NEAREST>(Float::max::<false, NAN, XORSIGN>(a, b))
}

/// The comparison `C` of [`float::comparison`].
#[inline(always)]
pub fn compare<H: Half, const C: u8, const FTZ: bool>(a: u16, b: u16) -> bool {
    let (a, b) = (H::widen(flush::<H, FTZ>(a)), H::widen(flush::<H, FTZ>(b)));
    float::compare::<C, f32>(a, b)
}

/// Applies a function to both halves of a word: the `.x2` types.
#[inline(always)]
pub fn pair(a: u32, function: impl Fn(u16) -> u16) -> u32 {
    let (low, high) = (function(a as u16), function((a >> 16) as u16));
    (high as u32) << 16 | low as u32
}

/// Applies a function to the lower and to the upper halves of two words.
#[inline(always)]
pub fn pair2(a: u32, b: u32, function: impl Fn(u16, u16) -> u16) -> u32 {
    let low = function(a as u16, b as u16);
    let high = function((a >> 16) as u16, (b >> 16) as u16);
    (high as u32) << 16 | low as u32
}

/// Applies a function to the lower and to the upper halves of three words.
#[inline(always)]
pub fn pair3(a: u32, b: u32, c: u32, function: impl Fn(u16, u16, u16) -> u16) -> u32 {
    let low = function(a as u16, b as u16, c as u16);
    let high = function((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
    (high as u32) << 16 | low as u32
}

macro_rules! packed {
    ($($(#[$doc:meta])* $name:ident = $function:ident
        [$($flag:ident),*]($($operand:ident),*);)*) => {
        $($(#[$doc])*
        #[inline(always)]
        pub fn $name<H: Half, $(const $flag: bool),*>($($operand: u32),*) -> u32 {
            // Not by `pair` and its like: a function that is passed as a value is not always
            // inlined.
            let low = $function::<H, $($flag),*>($($operand as u16),*);
            let high = $function::<H, $($flag),*>($(($operand >> 16) as u16),*);
            (high as u32) << 16 | low as u32
        })*
    };
}

packed! {
    /// [`add`] of both halves of two words.
    add_x2 = add[FTZ, SAT](a, b);
    /// [`sub`] of both halves of two words.
    sub_x2 = sub[FTZ, SAT](a, b);
    /// [`mul`] of both halves of two words.
    mul_x2 = mul[FTZ, SAT](a, b);
    /// [`fma`] of both halves of three words.
    fma_x2 = fma[FTZ, SAT, RELU](a, b, c);
    /// [`fma_oob`] of both halves of three words.
    fma_oob_x2 = fma_oob[RELU](a, b, c);
    /// [`neg`] of both halves of a word.
    neg_x2 = neg[FTZ](a);
    /// [`abs`] of both halves of a word.
    abs_x2 = abs[FTZ](a);
    /// [`min`] of both halves of two words.
    min_x2 = min[FTZ, NAN, XORSIGN](a, b);
    /// [`max`] of both halves of two words.
    max_x2 = max[FTZ, NAN, XORSIGN](a, b);
}

#[cfg(test)]
mod tests {
    use super::super::rounding::{Exact, Format};
    use super::*;

    fn is_nan<H: Half>(value: u16) -> bool {
        value & !SIGN > H::INFINITY
    }

    fn is_finite<H: Half>(value: u16) -> bool {
        value & !SIGN < H::INFINITY
    }

    fn exact(value: u16, format: Format) -> Exact {
        Exact::decode(value as u64, format)
    }

    /// Widening and narrowing agree with the formats' definition for all encodings, and narrowing
    /// with integer arithmetic for values around all those of the format.
    fn check_conversions<H: Half, const R: u8>(format: Format) {
        for value in 0..=u16::MAX {
            let wide = H::widen(value);
            if is_nan::<H>(value) {
                assert!(wide.is_nan());
                assert_eq!(H::narrow::<R>(wide), NAN);
                continue;
            }
            assert_eq!(H::narrow::<R>(wide), value);
            if !is_finite::<H>(value) {
                assert!(wide.is_infinite() && wide.is_sign_negative() == (value & SIGN != 0));
                continue;
            }
            let encoded = exact(value, format).encode::<NEAREST>(Format::F32);
            assert_eq!(wide.to_bits() as u64, encoded, "{value:04x}");
            let unit = if format == Format::F16 { 1 << 13 } else { 1 << 16 };
            let offsets = [1, 2, unit / 2 - 1, unit / 2, unit / 2 + 1, unit - 1, 0x123, 0x1fff];
            for offset in offsets {
                let near = f32::from_bits(wide.to_bits() + offset);
                if near.is_finite() {
                    let expected =
                        Exact::decode(near.to_bits() as u64, Format::F32).encode::<R>(format);
                    assert_eq!(H::narrow::<R>(near) as u64, expected, "{near:e}");
                }
            }
        }
        for exponent in 0..255u32 {
            for significand in [0, 1, 0x40_0000, 0x40_0001, 0x7f_ffff, 0x12_3456] {
                for sign in [0, 1 << 31] {
                    let value = sign | exponent << 23 | significand;
                    let expected = Exact::decode(value as u64, Format::F32).encode::<R>(format);
                    assert_eq!(H::narrow::<R>(f32::from_bits(value)) as u64, expected);
                }
            }
        }
    }

    #[test]
    fn conversions() {
        check_conversions::<F16, NEAREST>(Format::F16);
        check_conversions::<F16, ZERO>(Format::F16);
        check_conversions::<F16, DOWN>(Format::F16);
        check_conversions::<F16, UP>(Format::F16);
        check_conversions::<Bf16, NEAREST>(Format::BF16);
        check_conversions::<Bf16, ZERO>(Format::BF16);
        check_conversions::<Bf16, DOWN>(Format::BF16);
        check_conversions::<Bf16, UP>(Format::BF16);
    }

    fn check_arithmetic<H: Half>(format: Format) {
        let mut state = 0x0123_4567_89ab_cdefu64;
        for i in 0..2_000_000 {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            let bits = state.wrapping_mul(0x2545_f491_4f6c_dd1d);
            let (a, b, mut c) = (bits as u16, (bits >> 16) as u16, (bits >> 32) as u16);
            if i % 4 == 0 {
                // An addend that nearly cancels the product.
                c = mul::<H, false, false>(a, b) ^ SIGN ^ (bits >> 62) as u16;
            }
            if !(is_finite::<H>(a) && is_finite::<H>(b) && is_finite::<H>(c)) {
                continue;
            }
            let (x, y, z) = (exact(a, format), exact(b, format), exact(c, format));
            let round = |value: Exact, zero_negative: bool| {
                let negative = if value.significand == 0 { zero_negative } else { value.negative };
                Exact { negative, ..value }.encode::<NEAREST>(format) as u16
            };
            let expected = round(x.add(y), x.negative & y.negative);
            assert_eq!(add::<H, false, false>(a, b), expected, "{a:04x} + {b:04x}");
            let expected = round(x.mul(y), x.negative != y.negative);
            assert_eq!(mul::<H, false, false>(a, b), expected, "{a:04x} * {b:04x}");
            let product = x.mul(y);
            let expected = round(product.add(z), product.negative & z.negative);
            let value = fma::<H, false, false, false>(a, b, c);
            assert_eq!(value, expected, "{a:04x} * {b:04x} + {c:04x}");
        }
    }

    #[test]
    fn arithmetic() {
        check_arithmetic::<F16>(Format::F16);
        check_arithmetic::<Bf16>(Format::BF16);
    }

    #[test]
    fn specials_and_modifiers() {
        assert_eq!(sub::<F16, false, false>(0x7c00, 0x7c00), NAN);
        assert_eq!(mul::<Bf16, false, false>(0x7f80, 0), NAN);
        assert_eq!(fma::<F16, false, false, false>(0x7c00, 0x3c00, 0xfc00), NAN);
        assert_eq!(fma::<F16, false, false, false>(0x7c00, 0x3c00, 0x3c00), 0x7c00);
        assert_eq!(add::<F16, false, true>(0x3c00, 0x3c00), 0x3c00);
        assert_eq!(add::<F16, false, true>(0xbc00, 0), 0);
        assert_eq!(add::<F16, false, true>(0x7e00, 0), 0);
        assert_eq!(add::<F16, true, false>(0x83ff, 0x8000), 0x8000);
        assert_eq!(mul::<F16, true, false>(0x0400, 0xb800), 0x8000);
        assert_eq!(mul::<F16, true, false>(0x3bff, 0x0400), 0);
        assert_eq!(mul::<F16, false, false>(0x3bff, 0x0400), 0x0400);
        assert_eq!(fma::<F16, true, false, false>(0x0400, 0x8400, 0x0400), 0x0400);
        assert_eq!(fma::<F16, false, false, true>(0xbc00, 0x3c00, 0), 0);
        assert_eq!(fma::<F16, false, false, true>(0x7e00, 0x3c00, 0), NAN);
        assert_eq!(neg::<F16, false>(0x3c00), 0xbc00);
        assert_eq!(abs::<Bf16, false>(0xbf80), 0x3f80);
        assert_eq!(min::<F16, false, false, false>(0, 0x8000), 0x8000);
        assert_eq!(max::<F16, false, false, false>(0x7e01, 0x3c00), 0x3c00);
        assert_eq!(max::<F16, false, true, false>(0x7e01, 0x3c00), NAN);
        assert_eq!(max::<Bf16, false, false, true>(0x4000, 0xc040), 0xc040);
        assert!(compare::<F16, { float::comparison::LT }, false>(0xbc00, 0x3c00));
        assert_eq!(pair2(0x3c00_4000, 0x3c00_4000, add::<F16, false, false>), 0x4000_4400);
        assert_eq!(add_x2::<F16, false, false>(0x3c00_4000, 0x3c00_4000), 0x4000_4400);
        assert_eq!(fma_x2::<F16, false, false, false>(0x3c00_4000, 0x3c00_4000, 0), 0x3c00_4400);
    }
}
