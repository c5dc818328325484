//! Conversions between `f32` and the 16-bit floating types; rounded to nearest, ties to even.

/// The bits of a half. Any NaN becomes 0x7fff, as in a GPU's own conversion.
pub fn half_of(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return 0x7fff;
    }
    // Overflow: from the midpoint of the largest half and the next power of two on.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    // Normal: the bias of the exponent changes, and 13 bits are rounded off.
    if magnitude >= 0x3880_0000 {
        let rebiased = magnitude - (112 << 23);
        return sign | (rounded(rebiased, 13) as u16);
    }
    // Subnormal: the significand with its leading 1, shifted to units of 2^-24. A smaller number
    // gives 0.
    let shift = 126 - (magnitude >> 23);
    if shift > 24 {
        return sign;
    }
    let significand = magnitude & 0x007f_ffff | 0x0080_0000;
    sign | (rounded(significand, shift) as u16)
}

/// The value of a half.
pub fn of_half(bits: u16) -> f32 {
    let (exponent, significand) = (bits >> 10 & 0x1f, u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => significand as f32 * f32::from_bits(0x3380_0000), // 2^-24
        31 => f32::from_bits(0x7f80_0000 | significand << 13),
        _ => f32::from_bits((u32::from(exponent) + 112) << 23 | significand << 13),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// The bits of a bfloat16. Any NaN becomes 0x7fff, as in a GPU's own conversion.
pub fn bfloat_of(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    rounded(value.to_bits(), 16) as u16
}

/// The value of a bfloat16.
pub fn of_bfloat(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `value >> shift`, rounded to nearest, ties to even; `shift` is 1..=31.
fn rounded(value: u32, shift: u32) -> u32 {
    let odd = value >> shift & 1;
    let half = (1u64 << (shift - 1)) - 1;
    ((u64::from(value) + half + u64::from(odd)) >> shift) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_trip() {
        for bits in 0..=u16::MAX {
            let value = of_half(bits);
            let back = half_of(value);
            assert_eq!(back, if value.is_nan() { 0x7fff } else { bits }, "{bits:#x}");
        }
    }

    #[test]
    fn bfloats_round_trip() {
        for bits in 0..=u16::MAX {
            let value = of_bfloat(bits);
            let back = bfloat_of(value);
            assert_eq!(back, if value.is_nan() { 0x7fff } else { bits }, "{bits:#x}");
        }
    }

    #[test]
    fn midpoints_of_halves_round_to_even() {
        for bits in (0..0x7c00u16).chain(0x8000..0xfc00) {
            // The next half of larger magnitude. After the largest half, the value as if exponents
            // continued.
            let here = f64::from(of_half(bits));
            let step = if bits & 0x7fff == 0x7bff { 65_536.0f64.copysign(here) } else { 0.0 };
            let next = if step == 0.0 { f64::from(of_half(bits + 1)) } else { step };
            let middle = ((here + next) / 2.0) as f32;
            let even = if bits & 1 == 0 { bits } else { bits + 1 };
            assert_eq!(half_of(middle), even, "{bits:#x}");
            let toward = |up: bool| {
                f32::from_bits(if up { middle.to_bits() + 1 } else { middle.to_bits() - 1 })
            };
            assert_eq!(half_of(toward(true)), bits + 1, "{bits:#x}");
            assert_eq!(half_of(toward(false)), bits, "{bits:#x}");
        }
    }

    #[test]
    fn midpoints_of_bfloats_round_to_even() {
        for bits in (0..0x7f80u16).chain(0x8000..0xff80) {
            let middle = u32::from(bits) << 16 | 0x8000;
            let even = if bits & 1 == 0 { bits } else { bits + 1 };
            assert_eq!(bfloat_of(f32::from_bits(middle)), even);
            assert_eq!(bfloat_of(f32::from_bits(middle + 1)), bits + 1);
            assert_eq!(bfloat_of(f32::from_bits(middle - 1)), bits);
        }
    }
}
