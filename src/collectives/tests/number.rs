//! Reference additions for each number type, rounded to the type, derived from the formats.

use super::reference::{Kind, element_bytes};

/// A 16-bit floating-point format: its exponent and fraction bits.
#[derive(Clone, Copy)]
struct Format {
    exponent: u32,
    fraction: u32,
}

const HALF: Format = Format { exponent: 5, fraction: 10 };
const BRAIN: Format = Format { exponent: 8, fraction: 7 };

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The exact value.
    fn value(self, bits: u16) -> f64 {
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let exponent = i32::from(bits >> self.fraction) & ((1 << self.exponent) - 1);
        let fraction = f64::from(bits & ((1 << self.fraction) - 1));
        let one = f64::from(1u32 << self.fraction);
        let magnitude = if exponent == (1 << self.exponent) - 1 {
            if fraction == 0.0 { f64::INFINITY } else { f64::NAN }
        } else if exponent == 0 {
            fraction / one * 2f64.powi(1 - self.bias())
        } else {
            (1.0 + fraction / one) * 2f64.powi(exponent - self.bias())
        };
        sign * magnitude
    }

    /// The nearest number to a value; ties to even.
    fn nearest(self, value: f64) -> u16 {
        let sign = if value.is_sign_negative() { 1u16 << 15 } else { 0 };
        let infinity = ((1u16 << self.exponent) - 1) << self.fraction;
        if value.is_nan() {
            return infinity | 1;
        }
        // Magnitudes rise with their bits: bisects for the last one that is not above.
        let value = value.abs();
        let (mut low, mut high) = (0u16, infinity);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.value(middle) <= value { low = middle } else { high = middle }
        }
        // Beyond the largest number the next one would be one step larger.
        let largest = self.value(infinity - 1);
        let above = if high == infinity {
            largest + (largest - self.value(infinity - 2))
        } else {
            self.value(high)
        };
        let (down, up) = (value - self.value(low), above - value);
        let rises = down > up || (down == up && low & 1 == 1) || value >= above;
        sign | if rises { high } else { low }
    }

    /// Adds as floats and rounds, like PyTorch.
    fn add(self, a: u16, b: u16) -> u16 {
        let sum = self.value(a) as f32 + self.value(b) as f32;
        self.nearest(f64::from(sum))
    }
}

macro_rules! each {
    ($type:ty, $a:expr, $b:expr, $add:expr) => {{
        const BYTES: usize = size_of::<$type>();
        let read = |bytes: &[u8]| <$type>::from_le_bytes(bytes.try_into().unwrap());
        let pairs = $a.chunks(BYTES).zip($b.chunks(BYTES));
        let add: fn($type, $type) -> $type = $add;
        pairs.flat_map(|(a, b)| add(read(a), read(b)).to_le_bytes()).collect()
    }};
}

/// Can numbers of this kind be added?
pub fn has_sum((code, _, lanes): Kind) -> bool {
    lanes == 1 && matches!(code, 0 | 1 | 2 | 4 | 5 | 6)
}

/// Adds two lists element by element.
pub fn add(kind: Kind, a: &[u8], b: &[u8]) -> Vec<u8> {
    match (kind.0, kind.1) {
        (0 | 1, 8) => each!(u8, a, b, u8::wrapping_add),
        (0 | 1, 16) => each!(u16, a, b, u16::wrapping_add),
        (0 | 1, 32) => each!(u32, a, b, u32::wrapping_add),
        (0 | 1, 64) => each!(u64, a, b, u64::wrapping_add),
        (2, 16) | (5, 32) => each!(u16, a, b, |a, b| HALF.add(a, b)),
        (4, 16) => each!(u16, a, b, |a, b| BRAIN.add(a, b)),
        (2, 32) | (5, 64) => each!(f32, a, b, |a, b| a + b),
        (2, 64) | (5, 128) => each!(f64, a, b, |a, b| a + b),
        (6, 8) => each!(u8, a, b, |a, b| u8::from(a != 0 || b != 0)),
        _ => panic!("{kind:?} has no sum"),
    }
}

fn is_nan(kind: Kind, bytes: &[u8]) -> bool {
    let word = || u16::from_le_bytes(bytes.try_into().unwrap());
    match (kind.0, bytes.len()) {
        (2 | 5, 2) => HALF.value(word()).is_nan(),
        (4, 2) => BRAIN.value(word()).is_nan(),
        (2 | 5, 4) => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        (2 | 5, 8) => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => false,
    }
}

/// Are the bytes equal, except for NaN payloads?
pub fn is_same(kind: Kind, a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    if a == b {
        return true;
    }
    let number = if kind.0 == 5 { element_bytes(kind) / 2 } else { element_bytes(kind) };
    let pairs = a.chunks(number).zip(b.chunks(number));
    pairs.into_iter().all(|(a, b)| a == b || (is_nan(kind, a) && is_nan(kind, b)))
}

/// Numbers for interesting sums, from random bits.
pub fn draw(kind: Kind, random: &mut impl FnMut() -> u64, count: usize) -> Vec<u8> {
    let bytes = element_bytes(kind) * count;
    let number = if kind.0 == 5 { element_bytes(kind) / 2 } else { element_bytes(kind).max(1) };
    let mut made = Vec::with_capacity(bytes + 16);
    while made.len() < bytes {
        let bits = random();
        let value = match (kind.0, number) {
            (6, _) => bits & 1,
            (2 | 5, 2) if bits >> 60 != 0 => HALF.nearest(plain(bits)).into(),
            (4, 2) if bits >> 60 != 0 => BRAIN.nearest(plain(bits)).into(),
            (2 | 5, 4) if bits >> 60 != 0 => u64::from((plain(bits) as f32).to_bits()),
            (2 | 5, 8) if bits >> 60 != 0 => plain(bits).to_bits(),
            _ => bits,
        };
        made.extend_from_slice(&value.to_le_bytes()[..number.min(8)]);
    }
    made.truncate(bytes);
    made
}

/// A number of a magnitude at which additions round.
fn plain(bits: u64) -> f64 {
    (bits as i64 >> 40) as f64 * 2f64.powi((bits & 7) as i32 - 20)
}

#[test]
fn the_formats_are_right() {
    assert_eq!(HALF.value(0x3C00), 1.0);
    assert_eq!(HALF.value(0x0001), 2f64.powi(-24));
    assert_eq!(HALF.value(0x7BFF), 65504.0);
    assert_eq!(BRAIN.value(0x3F80), 1.0);
    assert_eq!(BRAIN.value(0xC0A0), -5.0);
    for format in [HALF, BRAIN] {
        for bits in 0..=u16::MAX {
            let value = format.value(bits);
            let again = format.nearest(value);
            assert!(again == bits || (value.is_nan() && format.value(again).is_nan()), "{bits:#x}");
        }
    }
    // A bfloat16 is the upper half of a float.
    for bits in (0..u32::MAX).step_by(65_537 * 3) {
        let value = f32::from_bits(bits);
        if !value.is_nan() {
            let rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
            assert_eq!(u32::from(BRAIN.nearest(value.into())), rounded, "{bits:#x}");
        }
    }
}

#[test]
fn halves_round_to_even() {
    let (one, step) = (0x3C00, 0x1000);
    assert_eq!(HALF.value(step), 2f64.powi(-11));
    assert_eq!(HALF.add(one, step), one);
    assert_eq!(HALF.add(0x3C01, step), 0x3C02);
    assert_eq!(HALF.add(0x7BFF, 0x4C00), 0x7C00);
    assert_eq!(HALF.add(0x7BFF, 0x4BFF), 0x7BFF);
    assert!(HALF.value(HALF.add(0x7C00, 0xFC00)).is_nan());
    assert_eq!(BRAIN.add(0x3F80, 0x3B80), 0x3F80);
    assert_eq!(add((6, 8, 1), &[0, 1, 1], &[0, 0, 1]), [0, 1, 1]);
    assert_eq!(add((0, 8, 1), &[250], &[10]), [4]);
}
