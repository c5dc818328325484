//! Distributions: how a Philox block becomes elements.

use super::arithmetic::{Acc, wide};
use super::element::{Element, F64, Float, Trials};
use std::marker::PhantomData;

/// A distribution for an element type.
pub trait Draw {
    /// Elements per Philox block.
    const DRAWS: usize;
    /// Bytes of an element.
    const BYTES: usize;

    /// Reads the kernels' `Scalars`.
    fn new(scalars: [u64; 4]) -> Self;
    /// The bits of the elements; the first [`DRAWS`](Self::DRAWS) count.
    fn draw(&self, words: [u32; 4]) -> [u64; 4];
}

/// `low + u*(high - low)`, with `low` in place of `high`.
pub struct Uniform<E: Float> {
    range: E::Acc,
    low: E::Acc,
    high: E::Acc,
}

impl<E: Float> Draw for Uniform<E> {
    const DRAWS: usize = E::Acc::DRAWS;
    const BYTES: usize = E::BYTES;

    fn new([range, low, high, _]: [u64; 4]) -> Self {
        Uniform { range: Acc::of(range), low: Acc::of(low), high: Acc::of(high) }
    }

    fn draw(&self, words: [u32; 4]) -> [u64; 4] {
        E::Acc::uniforms(words).map(|u| {
            let bits = E::of(Acc::fused(u, self.range, self.low));
            if E::to(bits) == self.high { E::of(self.low) } else { bits }
        })
    }
}

/// `mean + n*stddev`.
pub struct Normal<E: Float> {
    mean: E::Acc,
    stddev: E::Acc,
}

impl<E: Float> Normal<E> {
    fn values(&self, words: [u32; 4]) -> [E::Acc; 4] {
        E::Acc::normals(words).map(|n| Acc::fused(n, self.stddev, self.mean))
    }
}

impl<E: Float> Draw for Normal<E> {
    const DRAWS: usize = E::Acc::DRAWS;
    const BYTES: usize = E::BYTES;

    fn new([mean, stddev, ..]: [u64; 4]) -> Self {
        Normal { mean: Acc::of(mean), stddev: Acc::of(stddev) }
    }

    fn draw(&self, words: [u32; 4]) -> [u64; 4] {
        self.values(words).map(E::of)
    }
}

/// `exp(n)` of a normal number `n`.
pub struct LogNormal<E: Float>(Normal<E>);

impl<E: Float> Draw for LogNormal<E> {
    const DRAWS: usize = E::Acc::DRAWS;
    const BYTES: usize = E::BYTES;

    fn new(scalars: [u64; 4]) -> Self {
        LogNormal(Normal::new(scalars))
    }

    fn draw(&self, words: [u32; 4]) -> [u64; 4] {
        self.0.values(words).map(|n| E::of(n.exponential()))
    }
}

/// `-log(u)/rate`.
pub struct Exponential<E: Float>(E::Acc);

impl<E: Float> Draw for Exponential<E> {
    const DRAWS: usize = E::Acc::DRAWS;
    const BYTES: usize = E::BYTES;

    fn new([scale, ..]: [u64; 4]) -> Self {
        Exponential(Acc::of(scale))
    }

    fn draw(&self, words: [u32; 4]) -> [u64; 4] {
        E::Acc::uniforms(words).map(|u| E::of(Acc::product(self.0, u.exponential_log())))
    }
}

/// `median + sigma*tan(pi*(u - 1/2))`.
pub struct Cauchy<E: Float> {
    median: E::Acc,
    sigma: E::Acc,
}

impl<E: Float> Draw for Cauchy<E> {
    const DRAWS: usize = E::Acc::DRAWS;
    const BYTES: usize = E::BYTES;

    fn new([median, sigma, ..]: [u64; 4]) -> Self {
        Cauchy { median: Acc::of(median), sigma: Acc::of(sigma) }
    }

    fn draw(&self, words: [u32; 4]) -> [u64; 4] {
        let value = |u: E::Acc| Acc::fused(self.sigma, u.cauchy_tan(), self.median);
        E::Acc::uniforms(words).map(|u| E::of(value(u)))
    }
}

/// `ceil(log(u)/log(1 - p))`.
pub struct Geometric<E: Trials>(E::Acc);

impl<E: Trials> Draw for Geometric<E> {
    const DRAWS: usize = E::Acc::DRAWS;
    const BYTES: usize = E::BYTES;

    fn new([p, ..]: [u64; 4]) -> Self {
        Geometric(E::Acc::of(p).geometric_divisor())
    }

    fn draw(&self, words: [u32; 4]) -> [u64; 4] {
        E::Acc::uniforms(words).map(|u| E::of_trials(u.geometric(self.0)))
    }
}

/// `base + r % range`, with a 32-bit word `r`.
pub struct Integers32<E> {
    base: u64,
    range: u32,
    element: PhantomData<E>,
}

impl<E: Element> Draw for Integers32<E> {
    const DRAWS: usize = 4;
    const BYTES: usize = E::BYTES;

    fn new([base, range, ..]: [u64; 4]) -> Self {
        Integers32 { base, range: range as u32, element: PhantomData }
    }

    fn draw(&self, words: [u32; 4]) -> [u64; 4] {
        let rest = |word: u32| word.checked_rem(self.range).unwrap_or(word);
        words.map(|word| E::of_integer(self.base.wrapping_add(rest(word).into()) as i64))
    }
}

/// `base + r % range`, with two words as `r`; range 0 means 2^64.
pub struct Integers64<E> {
    base: u64,
    range: u64,
    element: PhantomData<E>,
}

impl<E: Element> Draw for Integers64<E> {
    const DRAWS: usize = 2;
    const BYTES: usize = E::BYTES;

    fn new([base, range, ..]: [u64; 4]) -> Self {
        Integers64 { base, range, element: PhantomData }
    }

    fn draw(&self, [x, y, z, w]: [u32; 4]) -> [u64; 4] {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let rest = |pair: u64| pair.checked_rem(self.range).unwrap_or(pair);
        [pair(x, y), pair(z, w), 0, 0]
            .map(|pair| E::of_integer(self.base.wrapping_add(rest(pair)) as i64))
    }
}

/// 1 if `u < p`, else 0.
pub struct Bernoulli<E> {
    threshold: u64,
    one: u64,
    element: PhantomData<E>,
}

impl<E: Element> Draw for Bernoulli<E> {
    const DRAWS: usize = 4;
    const BYTES: usize = E::BYTES;

    fn new([threshold, one, ..]: [u64; 4]) -> Self {
        Bernoulli { threshold, one, element: PhantomData }
    }

    fn draw(&self, words: [u32; 4]) -> [u64; 4] {
        words.map(|word| if u64::from(word) < self.threshold { self.one } else { 0 })
    }
}

/// [`Bernoulli`] with 53 bits, for doubles.
pub struct BernoulliF64 {
    threshold: u64,
    one: u64,
}

impl Draw for BernoulliF64 {
    const DRAWS: usize = 2;
    const BYTES: usize = F64::BYTES;

    fn new([threshold, one, ..]: [u64; 4]) -> Self {
        BernoulliF64 { threshold, one }
    }

    fn draw(&self, [x, y, z, w]: [u32; 4]) -> [u64; 4] {
        [wide(x, y), wide(z, w), 0, 0].map(|bits| if bits < self.threshold { self.one } else { 0 })
    }
}
