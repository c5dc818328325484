//! Converts words to uniform and normal numbers, like `kernels/random.cuh`. Results are exact where
//! the GPU's operations follow IEEE. The GPU approximates log2, exp, sin and cos; here they are
//! correctly rounded, so that the last bits differ.

use crate::random::recipe::{uniform32, uniform64};

/// The type in which PyTorch computes elements: `f32` or `f64`.
pub trait Acc: Copy + PartialEq {
    /// Elements per Philox block.
    const DRAWS: usize;

    /// Decodes a word of `Scalars`.
    fn of(word: u64) -> Self;
    /// `a*b + c`, rounded once.
    fn fused(a: Self, b: Self, c: Self) -> Self;
    /// `a*b`.
    fn product(a: Self, b: Self) -> Self;
    /// Uniform numbers in (0, 1]; the first [`DRAWS`](Self::DRAWS) count.
    fn uniforms(words: [u32; 4]) -> [Self; 4];
    /// Normal numbers with mean 0 and standard deviation 1; the first [`DRAWS`](Self::DRAWS) count.
    fn normals(words: [u32; 4]) -> [Self; 4];
    /// `exp(self)`.
    fn exponential(self) -> Self;
    /// The logarithm of a uniform number, but never 0.
    fn exponential_log(self) -> Self;
    /// `tan(pi*(u - 1/2))` of a uniform number `u`.
    fn cauchy_tan(self) -> Self;
    /// The divisor of [`geometric`](Self::geometric), from a probability.
    fn geometric_divisor(self) -> Self;
    /// The number of trials, from a uniform number.
    fn geometric(self, divisor: Self) -> Self;
}

fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// The logarithm, from a correctly rounded log2.
fn fast_log(a: f32) -> f32 {
    f64::from(a).log2() as f32 * f(0x3f31_7218)
}

/// The logarithm of a number between 2^-33 and 1.
fn log_of_uniform(u: f32) -> f32 {
    let bits = u.to_bits();
    let exponent = bits.wrapping_sub(0x3f2a_aaab) & 0xff80_0000;
    let x = f(bits.wrapping_sub(exponent)) - 1.0;
    let coefficients = [
        0x3e10_39f6,
        0xbdf8_cdcc,
        0x3e0f_2955,
        0xbe2a_d8b9,
        0x3e4c_ed0b,
        0xbe7f_ff22,
        0x3eaa_aa78,
        0xbf00_0000,
    ];
    let p = coefficients.iter().fold(f(0xbe05_5027), |p, next| p.mul_add(x, f(*next)));
    let p = (x * p).mul_add(x, x);
    (exponent as i32 as f32).mul_add(f(0x33b1_7218), p)
}

fn normal_pair(x: u32, y: u32) -> [f32; 2] {
    let v = (y as f32).mul_add(f(0x30c9_0fdb), f(0x3049_0fdb));
    let s = (log_of_uniform(uniform32(x)) * -2.0).sqrt();
    let (sine, cosine) = f64::from(v).sin_cos();
    [sine as f32 * s, cosine as f32 * s]
}

impl Acc for f32 {
    const DRAWS: usize = 4;

    fn of(word: u64) -> f32 {
        f(word as u32)
    }

    fn fused(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    fn product(a: f32, b: f32) -> f32 {
        a * b
    }

    fn uniforms(words: [u32; 4]) -> [f32; 4] {
        words.map(uniform32)
    }

    fn normals([x, y, z, w]: [u32; 4]) -> [f32; 4] {
        let ([a, b], [c, d]) = (normal_pair(x, y), normal_pair(z, w));
        [a, b, c, d]
    }

    fn exponential(self) -> f32 {
        f64::from(self * f(0x3fb8_aa3b)).exp2() as f32
    }

    fn exponential_log(self) -> f32 {
        if self >= f(0x3f7f_ffff) { f(0xb380_0000) } else { fast_log(self) }
    }

    fn cauchy_tan(self) -> f32 {
        let u = if self > f(0x3f7f_fffe) { f(0x3f7f_fffe) } else { self };
        let u = if u < f(0x3400_0000) { f(0x3400_0000) } else { u };
        let (sine, cosine) = f64::from((u - 0.5) * f(0x4049_0fdb)).sin_cos();
        sine as f32 / cosine as f32
    }

    fn geometric_divisor(self) -> f32 {
        fast_log(1.0 - self)
    }

    fn geometric(self, divisor: f32) -> f32 {
        (fast_log(self) / divisor).ceil()
    }
}

/// The 53 bits of two words.
pub fn wide(x: u32, y: u32) -> u64 {
    u64::from(x) ^ u64::from(y) << 21
}

impl Acc for f64 {
    const DRAWS: usize = 2;

    fn of(word: u64) -> f64 {
        f64::from_bits(word)
    }

    fn fused(a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }

    fn product(a: f64, b: f64) -> f64 {
        a * b
    }

    fn uniforms([x, y, z, w]: [u32; 4]) -> [f64; 4] {
        [uniform64(wide(x, y)), uniform64(wide(z, w)), 0.0, 0.0]
    }

    fn normals([x, y, z, w]: [u32; 4]) -> [f64; 4] {
        let (scale, half) = (f64::from_bits(0x3cb << 52), f64::from_bits(0x3ca << 52));
        let v = (wide(z, w) as f64).mul_add(scale, half);
        let s = (uniform64(wide(x, y)).ln() * -2.0).sqrt();
        // The angle is v half turns. Whole and quarter turns are removed first, so that the product
        // with pi loses little precision.
        let quarters = (v * 2.0).round();
        let (sine, cosine) = ((v - quarters / 2.0) * std::f64::consts::PI).sin_cos();
        let (sine, cosine) = match quarters as u8 % 4 {
            0 => (sine, cosine),
            1 => (cosine, -sine),
            2 => (-sine, -cosine),
            _ => (-cosine, sine),
        };
        [sine * s, cosine * s, 0.0, 0.0]
    }

    fn exponential(self) -> f64 {
        self.exp()
    }

    fn exponential_log(self) -> f64 {
        if self >= 1.0 - f64::EPSILON / 2.0 { -f64::EPSILON / 2.0 } else { self.ln() }
    }

    fn cauchy_tan(self) -> f64 {
        ((self - 0.5) * std::f64::consts::PI).tan()
    }

    fn geometric_divisor(self) -> f64 {
        (-self).ln_1p()
    }

    fn geometric(self, divisor: f64) -> f64 {
        (self.ln() / divisor).ceil()
    }
}
