//! Operands of the rows, by the formulas of `scripts/gpu/instructions_gpu.py`.

/// Threads of a block.
pub const BLOCK: u64 = 64;

/// How a kind of operand is stored: the type of its register, and the digits of its hexadecimal
/// form in the answers.
pub struct Storage {
    pub register: &'static str,
    pub digits: usize,
}

/// The storage of a kind of operand.
pub fn storage(kind: &str) -> Storage {
    let (register, digits) = match kind {
        "pred" => ("pred", 1),
        "b8" | "s8" | "u8" | "b16" | "s16" | "u16" | "f16" | "bf16" | "all16" | "allf8"
        | "cf16" | "cbf16" => ("b16", 4),
        "b64" | "s64" | "u64" | "f64" | "c64" | "few64" => ("b64", 16),
        _ => ("b32", 8),
    };
    Storage { register, digits }
}

/// The generator of all values that are not special.
pub fn splitmix64(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn ones(bits: u32) -> u64 {
    if bits == 64 { u64::MAX } else { (1 << bits) - 1 }
}

fn integer_specials(bits: u32) -> Vec<u64> {
    let half = 1_u64 << (bits - 1);
    let root = 1_u64 << (bits / 2);
    let values = [
        0,
        1,
        2,
        3,
        ones(bits),
        ones(bits) - 1,
        half,
        half - 1,
        half + 1,
        half - 2,
        root - 1,
        root,
        root >> 1,
        (root >> 1) - 1,
        ones(bits) - (root >> 1) + 1,
        7,
        31,
        32,
        33,
        64,
        127,
        128,
        0x5555_5555_5555_5555,
        0xaaaa_aaaa_aaaa_aaaa,
        0x1234_5678_9abc_def0,
        0xfedc_ba98_7654_3210,
    ];
    values.iter().map(|value| value & ones(bits)).collect()
}

/// Bits of the exponent and of the mantissa.
fn format(kind: &str) -> Option<(u32, u32)> {
    match kind {
        "f16" => Some((5, 10)),
        "bf16" => Some((8, 7)),
        "f32" => Some((8, 23)),
        "f64" => Some((11, 52)),
        _ => None,
    }
}

fn float_specials(exponent: u32, mantissa: u32) -> Vec<u64> {
    let bias = ones(exponent - 1);
    let infinity = ones(exponent) << mantissa;
    let sign = 1_u64 << (exponent + mantissa);
    let unit = 1_u64 << mantissa;
    let one = bias << mantissa;
    let quiet = unit >> 1;
    let mut values = vec![0, one, 1, unit - 1, unit, infinity - 1, infinity, infinity | quiet];
    values.extend(values.clone().iter().map(|value| value | sign));
    values.extend([
        infinity | 1,
        infinity | sign | quiet | 5,
        infinity | (unit - 1),
        one - unit,
        one | quiet,
        (one + unit) | (quiet >> 1),
        one | sign | quiet,
        one - 1,
        one + 1,
        unit + 1,
        (2 * bias) << mantissa,
    ]);
    values
}

fn specials(kind: &str) -> Vec<u64> {
    match kind {
        "n32" => vec![
            0,
            1,
            2,
            7,
            8,
            15,
            16,
            24,
            31,
            32,
            33,
            48,
            63,
            64,
            65,
            255,
            256,
            0xffff_ffff,
            0x8000_0000,
        ],
        "pos32" => vec![0, 1, 2, 7, 8, 15, 16, 24, 31, 32, 33, 48, 63, 64, 65, 127, 128, 255],
        "off32" => vec![0, 1, 0xffff_ffff, 2, 0xffff_fffe, 3, 5, 0xffff_fffb, 32, 0xffff_ffe0, 16],
        "seg32" => {
            vec![0x1f, 0, 0x181f, 0x1c1f, 0x1e1f, 0x1f1f, 0x1800, 0x1c03, 0x100f, 0x0f, 0x101f]
        }
        "few32" => vec![0, 1, 2],
        "few64" => vec![0, 1, 1 << 32],
        "pred" => vec![0, 1],
        _ => match format(kind) {
            Some((exponent, mantissa)) => float_specials(exponent, mantissa),
            None => integer_specials(bits(kind)),
        },
    }
}

/// The bits of an integer's kind, "s32" as 32.
fn bits(kind: &str) -> u32 {
    kind[1..].parse().unwrap()
}

/// The bits that a random value of a kind may have, if its values are small.
fn random_mask(kind: &str) -> Option<u64> {
    match kind {
        "n32" => Some(63),
        "pos32" => Some(63),
        "off32" => Some(7),
        "seg32" => Some(0x1f1f),
        "few32" => Some(3),
        "few64" => Some((1 << 32) + 1),
        "pred" => Some(1),
        _ => None,
    }
}

fn random_float((exponent_bits, mantissa_bits): (u32, u32), r: u64, is_converted: bool) -> u64 {
    let bias = ones(exponent_bits - 1);
    let width = 1 + exponent_bits + mantissa_bits;
    let s = splitmix64(r);
    let mut mantissa = s & ones(mantissa_bits);
    if r >> 60 & 1 == 1 {
        // Few bits, so that sums and products are ties or close to them.
        mantissa &= 3 << (mantissa_bits - 2) | 3;
    }
    let exponent = match r >> 61 {
        0 | 1 => return s & ones(width),
        2 => 0,
        3 => bias / 2 - 4 + (s >> 56) % 8,
        _ if is_converted => (bias - 3 + (s >> 56) % 70).min(2 * bias),
        _ => bias - 8 + (s >> 56) % 16,
    };
    (s >> 55 & 1) << (width - 1) | exponent << mantissa_bits | mantissa
}

fn plain_operand(kind: &str, item: u64, index: u64, is_converted: bool) -> u64 {
    let values = specials(kind);
    if index == 0 && (item as usize) < values.len() {
        return values[item as usize];
    }
    let h = splitmix64(item * 8 + index);
    if h & 7 < if item < BLOCK { 4 } else { 2 } {
        return values[((h >> 8) % values.len() as u64) as usize];
    }
    let r = splitmix64(h);
    if let Some(mask) = random_mask(kind) {
        return r & mask;
    }
    if let Some(format) = format(kind) {
        return random_float(format, r, is_converted);
    }
    let bits = bits(kind);
    let mut s = splitmix64(r) & ones(bits);
    // Half of the integers are of any magnitude, of either sign.
    if r & 1 == 1 {
        s >>= (r >> 8) % u64::from(bits);
        if r & 2 == 2 {
            s ^= ones(bits);
        }
    }
    s
}

/// The value of input `index` of an item.
pub fn operand(kind: &str, item: u64, index: u64) -> u64 {
    match kind {
        "all16" | "allf8" => item.wrapping_mul(40503) & 0xffff,
        "lane32" => splitmix64(item * 8 + index) & 31,
        // The bits above the operand's eight are not looked at.
        "b8" | "s8" | "u8" => plain_operand("b8", item, index, false) | splitmix64(item) & 0xff00,
        "s16x2" | "u16x2" | "f16x2" | "bf16x2" => {
            let half = &kind[..kind.len() - 2];
            let high = plain_operand(half, item * 7 + 3, index + 4, false);
            plain_operand(half, item, index, false) | high << 16
        }
        "c32" => plain_operand("f32", item, index, true),
        "c64" => plain_operand("f64", item, index, true),
        "cf16" | "cbf16" => plain_operand(&kind[1..], item, index, true),
        _ => plain_operand(kind, item, index, false),
    }
}
