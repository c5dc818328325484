//! Rounding of exact values to binary formats, in integer arithmetic.
//!
//! These functions serve where the host has no instruction for the rounding or the format.

/// To the nearest value, ties to the one with an even significand: `.rn`, `.rni`.
pub const NEAREST: u8 = 0;
/// Towards zero: `.rz`, `.rzi`.
pub const ZERO: u8 = 1;
/// Towards negative infinity: `.rm`, `.rmi`.
pub const DOWN: u8 = 2;
/// Towards positive infinity: `.rp`, `.rpi`.
pub const UP: u8 = 3;
/// To the nearest value, ties away from zero: `.rna`.
pub const AWAY: u8 = 4;

/// A binary format with the encoding of IEEE 754.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    /// Bits of the significand, with the implicit one.
    pub precision: u32,
    /// Exponent of the least normal number.
    pub least: i32,
    /// Number of bits that encode a finite value, an infinity or a NaN, without the sign.
    pub bits: u32,
}

impl Format {
    #[cfg(test)]
    pub const F16: Format = Format { precision: 11, least: -14, bits: 15 };
    #[cfg(test)]
    pub const BF16: Format = Format { precision: 8, least: -126, bits: 15 };
    pub const F32: Format = Format { precision: 24, least: -126, bits: 31 };
    pub const F64: Format = Format { precision: 53, least: -1022, bits: 63 };

    /// The encoding of infinity.
    pub const fn infinity(self) -> u64 {
        ((1 << (self.bits - self.precision + 1)) - 1) << (self.precision - 1)
    }
}

/// The value `(-1)^negative * significand * 2^exponent`.
///
/// Where the lowest bit of the significand is set, it may stand for any value between the two
/// even ones next to it, which are then not the value itself. Rounding to at least two bits less
/// is exact nevertheless.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exact {
    pub negative: bool,
    pub significand: u128,
    pub exponent: i32,
}

impl Exact {
    /// A finite value of a format. The sign is the bit above the `bits` of the format.
    #[inline(always)]
    pub const fn decode(encoding: u64, format: Format) -> Exact {
        let fraction_bits = format.precision - 1;
        let biased = (encoding & ((1 << format.bits) - 1)) >> fraction_bits;
        let fraction = encoding & ((1 << fraction_bits) - 1);
        let implicit = if biased == 0 { 0 } else { 1 << fraction_bits };
        let exponent = if biased == 0 { 1 } else { biased as i32 };
        Exact {
            negative: encoding >> format.bits & 1 == 1,
            significand: (fraction | implicit) as u128,
            exponent: exponent - 1 + format.least - fraction_bits as i32,
        }
    }

    /// The encoding of the value after rounding, with the sign. `exact` results keep their sign
    /// where they are zero.
    #[inline(always)]
    pub const fn encode<const R: u8>(self, format: Format) -> u64 {
        let sign = (self.negative as u64) << format.bits;
        if self.significand == 0 {
            return sign;
        }
        let fraction_bits = format.precision as i32 - 1;
        let top = 127 - self.significand.leading_zeros() as i32;
        let leading = self.exponent + top;
        let place = if leading > format.least { leading } else { format.least };
        let unit = place - fraction_bits;
        let rounded = round_at::<R>(self.significand, unit - self.exponent, self.negative);
        // A carry out of the significand makes the exponent greater by one, as it should.
        let magnitude = (((place - format.least) as u64) << fraction_bits) + rounded as u64;
        let infinity = format.infinity();
        if magnitude < infinity {
            return sign | magnitude;
        }
        let finite = match R {
            ZERO => true,
            DOWN => !self.negative,
            UP => self.negative,
            _ => false,
        };
        sign | (infinity - finite as u64)
    }

    /// The sum of two values.
    #[inline(always)]
    pub const fn add(self, other: Exact) -> Exact {
        // The uppermost bits of both are brought to place 125, where a sum has place to carry.
        let (a, b) = (self.normalised(), other.normalised());
        let (greater, lesser) =
            if b.significand == 0 || (a.significand != 0 && a.exponent >= b.exponent) {
                (a, b)
            } else {
                (b, a)
            };
        let distance = greater.exponent.wrapping_sub(lesser.exponent);
        let aligned = if lesser.significand == 0 {
            0
        } else {
            shift_right_sticky(lesser.significand, distance as u32)
        };
        if greater.negative == lesser.negative {
            return Exact { significand: greater.significand + aligned, ..greater };
        }
        if greater.significand >= aligned {
            Exact { significand: greater.significand - aligned, ..greater }
        } else {
            let significand = aligned - greater.significand;
            Exact { negative: lesser.negative, significand, ..greater }
        }
    }

    /// The product of two values of at most 64 bits.
    #[inline(always)]
    pub const fn mul(self, other: Exact) -> Exact {
        Exact {
            negative: self.negative != other.negative,
            significand: self.significand * other.significand,
            exponent: self.exponent + other.exponent,
        }
    }

    /// The quotient of two values of at most 53 bits; the divisor is not zero.
    #[inline(always)]
    pub const fn div(self, divisor: Exact) -> Exact {
        let left = self.significand.leading_zeros().saturating_sub(1);
        let dividend = self.significand << left;
        let quotient = dividend / divisor.significand;
        let inexact = quotient * divisor.significand != dividend;
        Exact {
            negative: self.negative != divisor.negative,
            significand: quotient << 1 | inexact as u128,
            exponent: self.exponent - left as i32 - divisor.exponent - 1,
        }
    }

    /// The square root of a value that is not negative.
    #[inline(always)]
    pub const fn sqrt(self) -> Exact {
        let left = self.significand.leading_zeros().saturating_sub(2);
        let left = if (self.exponent - left as i32) % 2 == 0 { left } else { left + 1 };
        let radicand = self.significand << left;
        let root = radicand.isqrt();
        let inexact = root * root != radicand;
        Exact {
            negative: self.negative,
            significand: root << 1 | inexact as u128,
            exponent: (self.exponent - left as i32) / 2 - 1,
        }
    }

    const fn normalised(self) -> Exact {
        if self.significand == 0 {
            return self;
        }
        let top = 127 - self.significand.leading_zeros() as i32;
        if top <= 125 {
            let left = (125 - top) as u32;
            let significand = self.significand << left;
            Exact { significand, exponent: self.exponent - left as i32, ..self }
        } else {
            let right = (top - 125) as u32;
            let significand = shift_right_sticky(self.significand, right);
            Exact { significand, exponent: self.exponent + right as i32, ..self }
        }
    }
}

/// Shifts right; the lowest bit of the result is also set if a set bit was lost.
#[inline(always)]
const fn shift_right_sticky(value: u128, amount: u32) -> u128 {
    if amount == 0 {
        return value;
    }
    if amount > 127 {
        return (value != 0) as u128;
    }
    let lost = value << (128 - amount) != 0;
    value >> amount | lost as u128
}

/// `significand * 2^-shift`, rounded to an integer.
#[inline(always)]
pub(crate) const fn round_at<const R: u8>(significand: u128, shift: i32, negative: bool) -> u128 {
    if shift <= 0 {
        return significand << -shift;
    }
    // Beyond 127 bits only the sign of the rest counts.
    let (kept, rest, half) = if shift > 127 {
        (0, (significand != 0) as u128, 2)
    } else {
        (significand >> shift, significand & ((1 << shift) - 1), 1u128 << (shift - 1))
    };
    let up = match R {
        ZERO => false,
        DOWN => negative && rest != 0,
        UP => !negative && rest != 0,
        AWAY => rest >= half,
        _ => rest > half || (rest == half && kept & 1 == 1),
    };
    kept + up as u128
}
