//! Arithmetic of `f32` and `f64` with PTX's modifiers.
//!
//! Const parameters stand for the modifiers, in this order where they occur: `R` for the rounding
//! ([`NEAREST`] and so on), `FTZ` for `.ftz`, `SAT` for `.sat`. `FTZ` and `SAT` do not apply to
//! `f64`. Rounding to nearest is straight-line code, which the compiler vectorises.

pub use super::rounding::{DOWN, NEAREST, UP, ZERO};
use super::rounding::{Exact, Format};

/// The comparisons of `set` and `setp`.
pub mod comparison {
    /// Equal, and no NaN.
    pub const EQ: u8 = 0;
    /// Not equal, and no NaN.
    pub const NE: u8 = 1;
    /// Less, and no NaN.
    pub const LT: u8 = 2;
    /// Less or equal, and no NaN.
    pub const LE: u8 = 3;
    /// Greater, and no NaN.
    pub const GT: u8 = 4;
    /// Greater or equal, and no NaN.
    pub const GE: u8 = 5;
    /// Equal, or a NaN.
    pub const EQU: u8 = 6;
    /// Not equal, or a NaN.
    pub const NEU: u8 = 7;
    /// Less, or a NaN.
    pub const LTU: u8 = 8;
    /// Less or equal, or a NaN.
    pub const LEU: u8 = 9;
    /// Greater, or a NaN.
    pub const GTU: u8 = 10;
    /// Greater or equal, or a NaN.
    pub const GEU: u8 = 11;
    /// Neither operand is a NaN.
    pub const NUM: u8 = 12;
    /// An operand is a NaN.
    pub const NAN: u8 = 13;
}

/// The properties of `testp`.
pub mod property {
    /// Neither an infinity nor a NaN.
    pub const FINITE: u8 = 0;
    /// An infinity.
    pub const INFINITE: u8 = 1;
    /// Not a NaN.
    pub const NUMBER: u8 = 2;
    /// A NaN.
    pub const NOT_A_NUMBER: u8 = 3;
    /// A normal number; zeros are among them.
    pub const NORMAL: u8 = 4;
    /// A subnormal number.
    pub const SUBNORMAL: u8 = 5;
}

/// The NaN that an instruction on `f32` gives.
pub const NAN_F32: f32 = f32::from_bits(0x7fff_ffff);

/// The NaN that an instruction on `f64` gives where no operand is a NaN.
pub const NAN_F64: f64 = f64::from_bits(0xfff8_0000_0000_0000);

/// Replaces a result that is a NaN by the GPU's one.
#[inline(always)]
fn canonical_f32(value: f32) -> f32 {
    f32::from_bits(if is_nan_f32(value) { NAN_F32.to_bits() } else { value.to_bits() })
}

/// Whether the value is a NaN, by its bits: the compiler may remove a selection of a NaN that
/// depends on a comparison of the result of an operation with itself.
#[inline(always)]
pub(crate) fn is_nan_f32(value: f32) -> bool {
    value.to_bits() & 0x7fff_ffff > 0x7f80_0000
}

/// As [`is_nan_f32`].
#[inline(always)]
pub(crate) fn is_nan_f64(value: f64) -> bool {
    value.to_bits() & (u64::MAX >> 1) > 0x7ff0 << 48
}

/// Makes a NaN quiet; it keeps its sign and its payload.
#[inline(always)]
pub(crate) fn quiet(nan: f64) -> f64 {
    f64::from_bits(nan.to_bits() | 1 << 51)
}

/// The result of an instruction on `f64`: `value`, or where this is a NaN the first one of the
/// operands that is one, made quiet, or [`NAN_F64`].
#[inline(always)]
pub(crate) fn with_payload<const N: usize>(value: f64, operands: [f64; N]) -> f64 {
    let mut nan = NAN_F64.to_bits();
    for operand in operands.into_iter().rev() {
        nan = if is_nan_f64(operand) { quiet(operand).to_bits() } else { nan };
    }
    f64::from_bits(if is_nan_f64(value) { nan } else { value.to_bits() })
}

/// Replaces subnormal values by zeros of their sign.
#[inline(always)]
pub fn flush(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}

/// [`flush`] if `FTZ`.
#[inline(always)]
pub(crate) fn flush_if<const FTZ: bool>(value: f32) -> f32 {
    if FTZ { flush(value) } else { value }
}

/// The factor for [`flush_tiny`].
const SCALE: f32 = 16_777_216.0;

/// Replaces a result by a zero of its sign if it is below the normal range, for `.ftz`.
///
/// `scaled` is the rounded result of the operation that gives [`SCALE`] times the value. Its
/// rounding is that of a normal number: a value that only the rounding to a subnormal number
/// brings to the least normal one is below the range.
#[inline(always)]
fn flush_tiny<const FTZ: bool>(value: f32, scaled: f32) -> f32 {
    let tiny = FTZ & (scaled.abs() < SCALE * f32::MIN_POSITIVE);
    let bits = value.to_bits();
    f32::from_bits(if tiny { bits & 0x8000_0000 } else { bits })
}

/// [`round_sum`], and [`flush_tiny`] if `FTZ`.
#[inline(always)]
pub(crate) fn round_sum_flushed<const R: u8, const FTZ: bool>(sum: f64, rest: f64) -> f32 {
    let scaled = if FTZ { round_sum::<R>(sum * SCALE as f64, rest) } else { 0.0 };
    flush_tiny::<FTZ>(round_sum::<R>(sum, rest), scaled)
}

/// `.sat`: the nearest value of 0 to 1; 0 for a NaN.
#[inline(always)]
pub fn saturate(value: f32) -> f32 {
    let positive = if value > 0.0 { value } else { 0.0 };
    if positive < 1.0 { positive } else { 1.0 }
}

/// Applies the modifiers to a rounded result of `f32`. An exact result below the normal range is
/// flushed if `FTZ`.
#[inline(always)]
pub(crate) fn finish<const FTZ: bool, const SAT: bool>(value: f32) -> f32 {
    let value = flush_if::<FTZ>(value);
    if SAT { saturate(value) } else { canonical_f32(value) }
}

/// Rounds to `f32` the value `sum + rest`, of which `sum` is the nearest `f64`.
///
/// Only the sign of `rest` counts, and only where `sum` is a value of `f32`.
#[inline(always)]
pub(crate) fn round_sum<const R: u8>(sum: f64, rest: f64) -> f32 {
    let nearest = sum as f32;
    let wide = nearest as f64;
    let above = (wide > sum) | ((wide == sum) & (rest < 0.0));
    let below = (wide < sum) | ((wide == sum) & (rest > 0.0));
    let bits = nearest.to_bits();
    let negative = bits >> 31 == 1;
    // Encodings grow with the magnitude. Infinity is the successor of the greatest finite value.
    let away = match R {
        DOWN => above & negative,
        UP => below & !negative,
        _ => false,
    };
    let towards = match R {
        ZERO => (above & !negative) | (below & negative),
        DOWN => above & !negative,
        UP => below & negative,
        _ => false,
    };
    f32::from_bits(bits.wrapping_add(away as u32).wrapping_sub(towards as u32))
}

/// The sum of two values, rounded to `f64`, and the exact rest. No intermediate value may
/// overflow.
#[inline(always)]
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    let of_a = sum - of_b;
    (sum, (a - of_a) + (b - of_b))
}

/// The sum of two values that come from `f32`, with a directed rounding.
#[inline(always)]
fn add_directed<const R: u8, const FTZ: bool>(a: f64, b: f64) -> f32 {
    let (sum, rest) = two_sum(a, b);
    let rounded = round_sum_flushed::<R, FTZ>(sum, rest);
    // A zero is negative if either operand is: both are zeros, or they cancel.
    if R == DOWN && sum == 0.0 && (a.is_sign_negative() | b.is_sign_negative()) {
        -0.0
    } else {
        rounded
    }
}

/// Arithmetic of a floating-point type.
pub trait Float: Copy + PartialOrd {
    /// `add`
    fn add<const R: u8, const FTZ: bool, const SAT: bool>(self, other: Self) -> Self;

    /// `sub`
    fn sub<const R: u8, const FTZ: bool, const SAT: bool>(self, other: Self) -> Self;

    /// `mul`
    fn mul<const R: u8, const FTZ: bool, const SAT: bool>(self, other: Self) -> Self;

    /// `fma`, `mad`: one rounding for the product and the sum.
    fn fma<const R: u8, const FTZ: bool, const SAT: bool>(self, factor: Self, addend: Self)
    -> Self;

    /// `div` with IEEE 754's rounding.
    fn div<const R: u8, const FTZ: bool>(self, divisor: Self) -> Self;

    /// `rcp` with IEEE 754's rounding.
    fn rcp<const R: u8, const FTZ: bool>(self) -> Self;

    /// `sqrt` with IEEE 754's rounding.
    fn sqrt<const R: u8, const FTZ: bool>(self) -> Self;

    /// `abs`
    fn abs<const FTZ: bool>(self) -> Self;

    /// `neg`
    fn neg<const FTZ: bool>(self) -> Self;

    /// `copysign`: `other` with the sign of this value.
    fn copysign(self, other: Self) -> Self;

    /// `min`: the lesser operand; -0 is less than +0. A NaN gives the other operand, or a NaN if
    /// `NAN`. `XORSIGN` is `.xorsign.abs`: the lesser magnitude, with the product's sign.
    fn min<const FTZ: bool, const NAN: bool, const XORSIGN: bool>(self, other: Self) -> Self;

    /// `max`: as `min`.
    fn max<const FTZ: bool, const NAN: bool, const XORSIGN: bool>(self, other: Self) -> Self;

    /// `min` of three operands; `ABS` is `.abs`.
    #[inline(always)]
    fn min3<const FTZ: bool, const NAN: bool, const ABS: bool>(self, b: Self, c: Self) -> Self {
        let [a, b, c] = if ABS {
            [self.abs::<false>(), b.abs::<false>(), c.abs::<false>()]
        } else {
            [self, b, c]
        };
        a.min::<FTZ, NAN, false>(b).min::<FTZ, NAN, false>(c)
    }

    /// `max` of three operands; `ABS` is `.abs`.
    #[inline(always)]
    fn max3<const FTZ: bool, const NAN: bool, const ABS: bool>(self, b: Self, c: Self) -> Self {
        let [a, b, c] = if ABS {
            [self.abs::<false>(), b.abs::<false>(), c.abs::<false>()]
        } else {
            [self, b, c]
        };
        a.max::<FTZ, NAN, false>(b).max::<FTZ, NAN, false>(c)
    }

    /// `testp`: `P` is one of [`property`].
    fn test<const P: u8>(self) -> bool;

    /// The comparison `C` of [`comparison`].
    fn compare<const C: u8, const FTZ: bool>(self, other: Self) -> bool;
}

/// A comparison of operands of which the modifiers are applied already.
#[inline(always)]
pub(crate) fn compare<const C: u8, T: PartialOrd>(a: T, b: T) -> bool {
    #[allow(clippy::eq_op)]
    let nan = (a != a) | (b != b);
    match C {
        comparison::EQ => a == b,
        comparison::NE => (a < b) | (a > b),
        comparison::LT => a < b,
        comparison::LE => a <= b,
        comparison::GT => a > b,
        comparison::GE => a >= b,
        comparison::EQU => (a == b) | nan,
        comparison::NEU => a != b,
        comparison::LTU => (a < b) | nan,
        comparison::LEU => (a <= b) | nan,
        comparison::GTU => (a > b) | nan,
        comparison::GEU => (a >= b) | nan,
        comparison::NUM => !nan,
        _ => nan,
    }
}

/// `f64` has no `.ftz`.
#[inline(always)]
fn keep<const FTZ: bool>(value: f64) -> f64 {
    value
}

/// The functions that are alike for both types.
macro_rules! by_bits {
    ($float:ty, $bits:ty, $flush:ident, $nan:expr) => {
        #[inline(always)]
        fn abs<const FTZ: bool>(self) -> Self {
            let value = $flush::<FTZ>(self);
            if value.is_nan() { $nan(value) } else { <$float>::abs(value) }
        }

        #[inline(always)]
        fn neg<const FTZ: bool>(self) -> Self {
            let value = $flush::<FTZ>(self);
            if value.is_nan() { $nan(value) } else { -value }
        }

        #[inline(always)]
        fn copysign(self, other: Self) -> Self {
            other.copysign(self)
        }

        #[inline(always)]
        fn min<const FTZ: bool, const NAN: bool, const XORSIGN: bool>(self, other: Self) -> Self {
            let (a, b) = ($flush::<FTZ>(self), $flush::<FTZ>(other));
            let sign = (a.to_bits() ^ b.to_bits()) & SIGN;
            let (a, b) = if XORSIGN { (<$float>::abs(a), <$float>::abs(b)) } else { (a, b) };
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            // Equal values are alike or zeros, of which -0 is the lesser.
            let equal = <$float>::from_bits(a.to_bits() | b.to_bits());
            let least = if a < b { a } else { b };
            let least = if a == b { equal } else { least };
            by_bits!(@nan $float, $nan, NAN, XORSIGN, a, b, least, sign)
        }

        #[inline(always)]
        fn max<const FTZ: bool, const NAN: bool, const XORSIGN: bool>(self, other: Self) -> Self {
            let (a, b) = ($flush::<FTZ>(self), $flush::<FTZ>(other));
            let sign = (a.to_bits() ^ b.to_bits()) & SIGN;
            let (a, b) = if XORSIGN { (<$float>::abs(a), <$float>::abs(b)) } else { (a, b) };
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            let equal = <$float>::from_bits(a.to_bits() & b.to_bits());
            let greatest = if a > b { a } else { b };
            let greatest = if a == b { equal } else { greatest };
            by_bits!(@nan $float, $nan, NAN, XORSIGN, a, b, greatest, sign)
        }

        #[inline(always)]
        fn test<const P: u8>(self) -> bool {
            let magnitude = <$float>::abs(self);
            match P {
                property::FINITE => magnitude < <$float>::INFINITY,
                property::INFINITE => magnitude == <$float>::INFINITY,
                property::NUMBER => !self.is_nan(),
                property::NOT_A_NUMBER => self.is_nan(),
                property::NORMAL => {
                    let normal = <$float>::MIN_POSITIVE..<$float>::INFINITY;
                    normal.contains(&magnitude) | (magnitude == 0.0)
                }
                _ => (magnitude > 0.0) & (magnitude < <$float>::MIN_POSITIVE),
            }
        }

        #[inline(always)]
        fn compare<const C: u8, const FTZ: bool>(self, other: Self) -> bool {
            compare::<C, $float>($flush::<FTZ>(self), $flush::<FTZ>(other))
        }
    };
    (@nan $float:ty, $nan:expr, $strict:ident, $xorsign:ident, $a:ident, $b:ident, $value:ident,
        $sign:ident) => {{
        let value = if $a.is_nan() { $b } else { $value };
        let value = if $b.is_nan() { $a } else { value };
        let value =
            if $xorsign { <$float>::from_bits(value.to_bits() | $sign) } else { value };
        let nan = if $strict {
            $a.is_nan() | $b.is_nan()
        } else {
            $a.is_nan() & $b.is_nan()
        };
        if nan { $nan(if $b.is_nan() { $b } else { $a }) } else { value }
    }};
}

impl Float for f32 {
    #[inline(always)]
    fn add<const R: u8, const FTZ: bool, const SAT: bool>(self, other: f32) -> f32 {
        let (a, b) = (flush_if::<FTZ>(self), flush_if::<FTZ>(other));
        let sum = if R == NEAREST { a + b } else { add_directed::<R, FTZ>(a as f64, b as f64) };
        finish::<FTZ, SAT>(sum)
    }

    #[inline(always)]
    fn sub<const R: u8, const FTZ: bool, const SAT: bool>(self, other: f32) -> f32 {
        Float::add::<R, FTZ, SAT>(self, -other)
    }

    #[inline(always)]
    fn mul<const R: u8, const FTZ: bool, const SAT: bool>(self, other: f32) -> f32 {
        let (a, b) = (flush_if::<FTZ>(self), flush_if::<FTZ>(other));
        // The product is exact in f64.
        let product = if R == NEAREST {
            flush_tiny::<FTZ>(a * b, a * SCALE * b)
        } else {
            round_sum_flushed::<R, FTZ>(a as f64 * b as f64, 0.0)
        };
        finish::<FTZ, SAT>(product)
    }

    #[inline(always)]
    fn fma<const R: u8, const FTZ: bool, const SAT: bool>(self, factor: f32, addend: f32) -> f32 {
        let (a, b) = (flush_if::<FTZ>(self), flush_if::<FTZ>(factor));
        let c = flush_if::<FTZ>(addend);
        let sum = if R == NEAREST {
            let scaled = if FTZ { (a * SCALE).mul_add(b, c * SCALE) } else { 0.0 };
            flush_tiny::<FTZ>(a.mul_add(b, c), scaled)
        } else {
            add_directed::<R, FTZ>(a as f64 * b as f64, c as f64)
        };
        finish::<FTZ, SAT>(sum)
    }

    #[inline(always)]
    fn div<const R: u8, const FTZ: bool>(self, divisor: f32) -> f32 {
        let (a, b) = (flush_if::<FTZ>(self), flush_if::<FTZ>(divisor));
        let quotient = if R == NEAREST {
            flush_tiny::<FTZ>(a / b, if FTZ { a * SCALE / b } else { 0.0 })
        } else {
            let (a, b) = (a as f64, b as f64);
            let quotient = a / b;
            // Exact where the quotient is a value of f32.
            let rest = a - quotient * b;
            round_sum_flushed::<R, FTZ>(quotient, if b < 0.0 { -rest } else { rest })
        };
        finish::<FTZ, false>(quotient)
    }

    #[inline(always)]
    fn rcp<const R: u8, const FTZ: bool>(self) -> f32 {
        1.0f32.div::<R, FTZ>(self)
    }

    #[inline(always)]
    fn sqrt<const R: u8, const FTZ: bool>(self) -> f32 {
        let a = flush_if::<FTZ>(self);
        let root = if R == NEAREST {
            a.sqrt()
        } else {
            let wide = a as f64;
            let root = wide.sqrt();
            round_sum::<R>(root, wide - root * root)
        };
        finish::<FTZ, false>(root)
    }

    by_bits!(f32, u32, flush_if, |_| NAN_F32);
}

/// The operands as exact values, or `None` if one is an infinity or a NaN: then the host's
/// result, which needs no rounding, is right.
#[inline]
fn exact<const N: usize>(operands: [f64; N]) -> Option<[Exact; N]> {
    if operands.iter().all(|operand| operand.is_finite()) {
        Some(operands.map(|operand| Exact::decode(operand.to_bits(), Format::F64)))
    } else {
        None
    }
}

/// Rounds the sum of two exact values. Zeros that cancel are negative only towards -infinity.
#[inline]
fn round_exact_sum<const R: u8>(a: Exact, b: Exact) -> f64 {
    let sum = a.add(b);
    if sum.significand == 0 {
        let negative = if R == DOWN { a.negative | b.negative } else { a.negative & b.negative };
        return if negative { -0.0 } else { 0.0 };
    }
    f64::from_bits(sum.encode::<R>(Format::F64))
}

impl Float for f64 {
    #[inline(always)]
    fn add<const R: u8, const FTZ: bool, const SAT: bool>(self, other: f64) -> f64 {
        let sum = match exact([self, other]) {
            Some([a, b]) if R != NEAREST => round_exact_sum::<R>(a, b),
            _ => self + other,
        };
        with_payload(sum, [other, self])
    }

    #[inline(always)]
    fn sub<const R: u8, const FTZ: bool, const SAT: bool>(self, other: f64) -> f64 {
        let difference = Float::add::<R, FTZ, SAT>(self, -other);
        with_payload(difference, [other, self])
    }

    #[inline(always)]
    fn mul<const R: u8, const FTZ: bool, const SAT: bool>(self, other: f64) -> f64 {
        let product = match exact([self, other]) {
            Some([a, b]) if R != NEAREST => f64::from_bits(a.mul(b).encode::<R>(Format::F64)),
            _ => self * other,
        };
        with_payload(product, [other, self])
    }

    #[inline(always)]
    fn fma<const R: u8, const FTZ: bool, const SAT: bool>(self, factor: f64, addend: f64) -> f64 {
        let sum = match exact([self, factor, addend]) {
            Some([a, b, c]) if R != NEAREST => round_exact_sum::<R>(a.mul(b), c),
            _ => self.mul_add(factor, addend),
        };
        with_payload(sum, [factor, addend, self])
    }

    #[inline(always)]
    fn div<const R: u8, const FTZ: bool>(self, divisor: f64) -> f64 {
        let quotient = match exact([self, divisor]) {
            Some([a, b]) if R != NEAREST && b.significand != 0 => {
                f64::from_bits(a.div(b).encode::<R>(Format::F64))
            }
            _ => self / divisor,
        };
        with_payload(quotient, [self, divisor])
    }

    #[inline(always)]
    fn rcp<const R: u8, const FTZ: bool>(self) -> f64 {
        1.0f64.div::<R, FTZ>(self)
    }

    #[inline(always)]
    fn sqrt<const R: u8, const FTZ: bool>(self) -> f64 {
        let root = match exact([self]) {
            Some([a]) if R != NEAREST && !a.negative => {
                f64::from_bits(a.sqrt().encode::<R>(Format::F64))
            }
            _ => f64::sqrt(self),
        };
        with_payload(root, [self])
    }

    by_bits!(f64, u64, keep, quiet);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Ordering;

    /// Numbers of xorshift64*.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }

        /// Any encoding, short significands and edges of the range among them.
        fn single(&mut self) -> f32 {
            let bits = self.next() as u32;
            f32::from_bits(match self.next() % 8 {
                0 => bits & 0xfff0_0000,
                1 => bits & 0x80ff_ffff,
                2 => bits & 0x8000_000f | 0x7f7f_fff0,
                3 => bits & 0x8000_0007,
                4 | 5 => bits & 0x83ff_ffff | 0x3e00_0000,
                _ => bits,
            })
        }

        fn double(&mut self) -> f64 {
            let bits = self.next();
            f64::from_bits(match self.next() % 8 {
                0 => bits & 0xffff_fff0_0000_0000,
                1 => bits & 0x801f_ffff_ffff_ffff,
                2 => bits & 0x8000_0000_0000_000f | 0x7fef_ffff_ffff_fff0,
                3 => bits & 0x8000_0000_0000_0007,
                4 | 5 => bits & 0x803f_ffff_ffff_ffff | 0x3fc0_0000_0000_0000,
                _ => bits,
            })
        }
    }

    fn same_f32(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    fn same_f64(a: f64, b: f64) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    /// Rounds by integer arithmetic; the host's result stands for infinities and NaN.
    fn by_integers<const R: u8, const N: usize>(
        operands: [f32; N],
        host: f32,
        operation: impl Fn([Exact; N]) -> Exact,
    ) -> f32 {
        if operands.iter().all(|operand| operand.is_finite()) && !host.is_nan() {
            let values = operands.map(|a| Exact::decode(a.to_bits() as u64, Format::F32));
            f32::from_bits(operation(values).encode::<R>(Format::F32) as u32)
        } else {
            host
        }
    }

    fn sum<const R: u8>(a: Exact, b: Exact) -> Exact {
        let sum = a.add(b);
        let zero = if R == DOWN { a.negative | b.negative } else { a.negative & b.negative };
        Exact { negative: if sum.significand == 0 { zero } else { sum.negative }, ..sum }
    }

    fn check_single<const R: u8>() {
        let mut random = Random(0x1234_5678_9abc_def1);
        for _ in 0..100_000 {
            let (a, b, c) = (random.single(), random.single(), random.single());
            let expected = by_integers::<R, 2>([a, b], a + b, |[a, b]| sum::<R>(a, b));
            let value = Float::add::<R, false, false>(a, b);
            assert!(same_f32(value, expected), "{a:e} + {b:e}: {value:e}, {expected:e}");
            let expected = by_integers::<R, 2>([a, b], a * b, |[a, b]| a.mul(b));
            let value = Float::mul::<R, false, false>(a, b);
            assert!(same_f32(value, expected), "{a:e} * {b:e}: {value:e}, {expected:e}");
            let host = a.mul_add(b, c);
            let expected = by_integers::<R, 3>([a, b, c], host, |[a, b, c]| sum::<R>(a.mul(b), c));
            let value = Float::fma::<R, false, false>(a, b, c);
            assert!(same_f32(value, expected), "{a:e} * {b:e} + {c:e}: {value:e}, {expected:e}");
            if b != 0.0 {
                let expected = by_integers::<R, 2>([a, b], a / b, |[a, b]| a.div(b));
                let value = Float::div::<R, false>(a, b);
                assert!(same_f32(value, expected), "{a:e} / {b:e}: {value:e}, {expected:e}");
            }
            let a = a.abs();
            let expected = by_integers::<R, 1>([a], a.sqrt(), |[a]| a.sqrt());
            let value = Float::sqrt::<R, false>(a);
            assert!(same_f32(value, expected), "root {a:e}: {value:e}, {expected:e}");
            let (square, host) = (a * a, (a * a).sqrt());
            let expected = by_integers::<R, 1>([square], host, |[a]| a.sqrt());
            assert!(same_f32(Float::sqrt::<R, false>(square), expected), "root {square:e}");
        }
    }

    #[test]
    fn single_nearest() {
        check_single::<NEAREST>();
    }

    #[test]
    fn single_zero() {
        check_single::<ZERO>();
    }

    #[test]
    fn single_down() {
        check_single::<DOWN>();
    }

    #[test]
    fn single_up() {
        check_single::<UP>();
    }

    /// The integers' nearest rounding is the host's, and the directed ones are the neighbours on
    /// the right side of the exact value: a comparison that does not round says on which side.
    #[test]
    fn double_all_roundings() {
        let mut random = Random(0x9234_5678_9abc_def1);
        let encode = |value: Exact| f64::from_bits(value.encode::<NEAREST>(Format::F64));
        for _ in 0..100_000 {
            let operands @ [a, b, c] = [random.double(), random.double(), random.double()];
            let Some([x, y, z]) = exact(operands) else { continue };
            assert!(same_f64(encode(sum::<NEAREST>(x, y)), a + b), "{a:e} + {b:e}");
            assert!(same_f64(encode(x.mul(y)), a * b), "{a:e} * {b:e}");
            let fused = encode(sum::<NEAREST>(x.mul(y), z));
            assert!(same_f64(fused, a.mul_add(b, c)), "{a:e} * {b:e} + {c:e}");
            if b != 0.0 {
                assert!(same_f64(encode(x.div(y)), a / b), "{a:e} / {b:e}");
            }
            assert!(same_f64(encode(Exact { negative: false, ..x }.sqrt()), a.abs().sqrt()));
            let order = |nearest: f64| {
                let nearest = Exact::decode(nearest.to_bits(), Format::F64);
                let negated = Exact { negative: !nearest.negative, ..nearest };
                let difference = x.add(y).add(negated);
                match (difference.significand, difference.negative) {
                    (0, _) => Ordering::Equal,
                    (_, true) => Ordering::Less,
                    (_, false) => Ordering::Greater,
                }
            };
            let nearest = a + b;
            if nearest.is_finite() && nearest != 0.0 {
                let side = order(nearest);
                let down = if side == Ordering::Less { nearest.next_down() } else { nearest };
                let up = if side == Ordering::Greater { nearest.next_up() } else { nearest };
                let zero = if nearest > 0.0 { down } else { up };
                assert_eq!(Float::add::<DOWN, false, false>(a, b), down, "{a:e} + {b:e}");
                assert_eq!(Float::add::<UP, false, false>(a, b), up, "{a:e} + {b:e}");
                assert_eq!(Float::add::<ZERO, false, false>(a, b), zero, "{a:e} + {b:e}");
            }
            let (down, up) = (a.mul::<DOWN, false, false>(b), a.mul::<UP, false, false>(b));
            assert!(down == up || down.next_up() == up);
            assert!(a * b == down || a * b == up);
            let (down, up) = (a.div::<DOWN, false>(b), a.div::<UP, false>(b));
            assert!(b == 0.0 || down == up || down.next_up() == up);
            let (down, up) = (a.fma::<DOWN, false, false>(b, c), a.fma::<UP, false, false>(b, c));
            assert!(down == up || down.next_up() == up);
            assert!(a.mul_add(b, c) == down || a.mul_add(b, c) == up);
        }
    }

    #[test]
    fn zeros_that_cancel() {
        assert_eq!(Float::add::<DOWN, false, false>(1.0f32, -1.0).to_bits(), 1 << 31);
        assert_eq!(Float::add::<UP, false, false>(1.0f32, -1.0).to_bits(), 0);
        assert_eq!(Float::add::<DOWN, false, false>(0.0f32, 0.0).to_bits(), 0);
        assert_eq!(Float::add::<DOWN, false, false>(1.0f64, -1.0).to_bits(), 1 << 63);
        assert_eq!(Float::sub::<NEAREST, false, false>(0.0f64, 0.0).to_bits(), 0);
        assert_eq!(Float::sub::<DOWN, false, false>(0.0f64, 0.0).to_bits(), 1 << 63);
    }

    #[test]
    fn modifiers() {
        let tiny = f32::from_bits(0x007f_ffff);
        assert_eq!(tiny.add::<NEAREST, true, false>(-0.0), 0.0);
        assert_eq!((-tiny).mul::<NEAREST, true, false>(1.0).to_bits(), 1 << 31);
        let least = f32::MIN_POSITIVE;
        assert_eq!(least.mul::<NEAREST, true, false>(-0.5).to_bits(), 1 << 31);
        assert_eq!(least.mul::<NEAREST, false, false>(0.5), least / 2.0);
        // Rounded with a normal number's precision, these products and quotients are below the
        // range, and just not below it.
        let below = f32::from_bits(0x3f7f_fffe).mul::<NEAREST, true, false>(least);
        assert_eq!(below, 0.0);
        assert_eq!(f32::from_bits(0x3f7f_ffff).mul::<NEAREST, true, false>(least), 0.0);
        assert_eq!(f32::from_bits(0x3f7f_ffff).mul::<NEAREST, false, false>(least), least);
        assert_eq!((-least).div::<DOWN, true>(1.0 + f32::EPSILON).to_bits(), 1 << 31);
        let almost = f32::from_bits(1 << 20);
        assert_eq!(almost.fma::<NEAREST, true, false>(-almost, least), least);
        assert_eq!(2.0f32.add::<NEAREST, false, true>(1.0), 1.0);
        assert_eq!((-2.0f32).add::<NEAREST, false, true>(1.0).to_bits(), 0);
        assert_eq!(f32::NAN.add::<NEAREST, false, true>(1.0).to_bits(), 0);
        assert_eq!(
            f32::INFINITY.sub::<NEAREST, false, false>(f32::INFINITY).to_bits(),
            0x7fff_ffff
        );
        assert_eq!(Float::sqrt::<NEAREST, false>(-1.0f32).to_bits(), 0x7fff_ffff);
        assert_eq!(Float::sqrt::<NEAREST, false>(-0.0f32).to_bits(), 1 << 31);
        assert_eq!(Float::rcp::<NEAREST, true>(-tiny), f32::NEG_INFINITY);
    }

    #[test]
    fn extremes() {
        let nan = f32::NAN;
        assert_eq!(Float::min::<false, false, false>(0.0f32, -0.0).to_bits(), 1 << 31);
        assert_eq!(Float::min::<false, false, false>(-0.0f32, 0.0).to_bits(), 1 << 31);
        assert_eq!(Float::max::<false, false, false>(-0.0f32, 0.0).to_bits(), 0);
        assert_eq!(Float::max::<false, false, false>(0.0f64, -0.0).to_bits(), 0);
        assert_eq!(Float::min::<false, false, false>(nan, 3.0), 3.0);
        assert_eq!(Float::max::<false, false, false>(3.0, nan), 3.0);
        assert_eq!(Float::max::<false, false, false>(nan, -nan).to_bits(), 0x7fff_ffff);
        assert_eq!(Float::max::<false, true, false>(3.0, nan).to_bits(), 0x7fff_ffff);
        assert_eq!(Float::min::<false, false, true>(-2.0f32, 3.0), -2.0);
        assert_eq!(Float::min::<false, false, true>(-2.0f32, -3.0), 2.0);
        assert_eq!(Float::max::<false, false, true>(2.0f32, -3.0), -3.0);
        assert_eq!(3.0f32.min3::<false, false, false>(-1.0, 2.0), -1.0);
        assert_eq!(3.0f32.max3::<false, false, true>(-4.0, 2.0), 4.0);
        let tiny = f32::from_bits(1);
        assert_eq!(Float::max::<true, false, false>(tiny, -1.0).to_bits(), 0);
    }

    #[test]
    fn comparisons() {
        use comparison::*;
        let nan = f64::NAN;
        assert!(1.0f64.compare::<EQ, false>(1.0) && !nan.compare::<EQ, false>(nan));
        assert!(1.0f64.compare::<NE, false>(2.0) && !nan.compare::<NE, false>(1.0));
        assert!(nan.compare::<NEU, false>(nan) && !1.0f64.compare::<NEU, false>(1.0));
        assert!(nan.compare::<EQU, false>(1.0) && nan.compare::<LTU, false>(1.0));
        assert!(nan.compare::<LEU, false>(1.0) && nan.compare::<GTU, false>(1.0));
        assert!(nan.compare::<GEU, false>(1.0) && nan.compare::<NAN, false>(1.0));
        assert!(!nan.compare::<NUM, false>(1.0) && 2.0f64.compare::<NUM, false>(1.0));
        assert!(!nan.compare::<LE, false>(1.0) && !nan.compare::<GE, false>(1.0));
        let tiny = f32::from_bits(1);
        assert!(tiny.compare::<GT, false>(0.0) && tiny.compare::<EQ, true>(-0.0));
    }

    #[test]
    fn properties() {
        use property::*;
        let subnormal = f32::from_bits(1);
        assert!(subnormal.test::<SUBNORMAL>() && !0.0f32.test::<SUBNORMAL>());
        assert!((-0.0f32).test::<NORMAL>() && !subnormal.test::<NORMAL>());
        assert!(f32::MIN_POSITIVE.test::<NORMAL>() && !f32::INFINITY.test::<NORMAL>());
        assert!(f64::NEG_INFINITY.test::<INFINITE>() && !f64::NAN.test::<INFINITE>());
        assert!(f64::NAN.test::<NOT_A_NUMBER>() && !f64::NAN.test::<NUMBER>());
        assert!(subnormal.test::<FINITE>() && !f32::NAN.test::<FINITE>());
    }
}
