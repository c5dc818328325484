//! The kernels of `kernels/comm_*.cu` as Rust functions, for the simulated machine.

use super::path::Number;
use super::path::table::{FEW, MANY};
use crate::random::kernels::Memory;
use crate::random::number::{bfloat_of, half_of, of_bfloat, of_half};
use crate::sim;

/// Runs a kernel for its whole grid, with the words of its table.
pub type Body = fn(&[u64], &dyn Memory) -> Result<(), i32>;

/// Bytes that are copied at a time.
const PART: usize = 1 << 10;

fn low(word: u64) -> u64 {
    word & u64::from(u32::MAX)
}

/// A word of the table; 0 past its end.
fn word(words: &[u64], index: u64) -> u64 {
    words.get(index as usize).copied().unwrap_or(0)
}

fn move_bytes(memory: &dyn Memory, src: u64, dsts: &[u64], bytes: u64) -> Result<(), i32> {
    let mut buffer = [0; PART];
    let mut at = 0;
    while at < bytes {
        let part = &mut buffer[..(bytes - at).min(PART as u64) as usize];
        memory.read(src + at, part)?;
        dsts.iter().try_for_each(|dst| memory.write(dst.wrapping_add(at), part))?;
        at += part.len() as u64;
    }
    Ok(())
}

fn spread(words: &[u64], memory: &dyn Memory) -> Result<(), i32> {
    let (entries, targets) = (low(word(words, 0)), word(words, 0) >> 32);
    for entry in 0..entries {
        let at = 1 + targets + 3 * entry;
        let (src, dst) = (word(words, at), word(words, at + 1));
        let mut dsts = [dst; crate::gpu::device::MAX_DEVICES];
        for target in 1..targets {
            dsts[target as usize] = dst.wrapping_add(word(words, 1 + target));
        }
        move_bytes(memory, src, &dsts[..targets as usize], low(word(words, at + 2)))?;
    }
    Ok(())
}

fn rows(words: &[u64], memory: &dyn Memory) -> Result<(), i32> {
    for entry in 0..low(word(words, 0)) {
        let at = 2 + 6 * entry;
        for row in 0..low(word(words, at + 5)) {
            let src = word(words, at).wrapping_add(row.wrapping_mul(word(words, at + 3)));
            let dst = word(words, at + 1).wrapping_add(row.wrapping_mul(word(words, at + 4)));
            move_bytes(memory, src, &[dst], word(words, at + 2))?;
        }
    }
    Ok(())
}

fn strided(words: &[u64], memory: &dyn Memory) -> Result<(), i32> {
    for entry in 0..low(word(words, 0)) {
        let at = low(word(words, 2 + entry));
        let (elements, dims) = (low(word(words, at + 2)), word(words, at + 2) >> 32);
        let bytes = 1usize << word(words, at + 3);
        for element in 0..elements {
            let (mut src, mut dst, mut rest) = (word(words, at), word(words, at + 1), element);
            for dim in 0..dims {
                let first = at + 4 + 3 * dim;
                let size = word(words, first).max(1);
                src = src.wrapping_add((rest % size).wrapping_mul(word(words, first + 1)));
                dst = dst.wrapping_add((rest % size).wrapping_mul(word(words, first + 2)));
                rest /= size;
            }
            let mut value = [0; 16];
            memory.read(src, &mut value[..bytes])?;
            memory.write(dst, &value[..bytes])?;
        }
    }
    Ok(())
}

/// Adds the second numbers to the first; both are of one type.
type Add = fn(&mut [u8], &[u8]);

fn each<const SIZE: usize>(
    sums: &mut [u8],
    others: &[u8],
    add: impl Fn([u8; SIZE], [u8; SIZE]) -> [u8; SIZE],
) {
    let (sums, _) = sums.as_chunks_mut::<SIZE>();
    let (others, _) = others.as_chunks::<SIZE>();
    for (sum, other) in sums.iter_mut().zip(others) {
        *sum = add(*sum, *other);
    }
}

/// Bytes of a number, and the function that adds it.
fn arithmetic(number: Number) -> (u64, Add) {
    macro_rules! by {
        ($number:ty) => {
            (size_of::<$number>() as u64, |a, b| {
                each(a, b, |a, b| {
                    (<$number>::from_le_bytes(a).wrapping_add(<$number>::from_le_bytes(b)))
                        .to_le_bytes()
                })
            })
        };
    }
    macro_rules! by_float {
        ($number:ty) => {
            (size_of::<$number>() as u64, |a, b| {
                each(a, b, |a, b| {
                    (<$number>::from_le_bytes(a) + <$number>::from_le_bytes(b)).to_le_bytes()
                })
            })
        };
    }
    macro_rules! by_short_float {
        ($to:ident, $of:ident) => {
            (2, |a, b| {
                each(a, b, |a, b| {
                    $of($to(u16::from_le_bytes(a)) + $to(u16::from_le_bytes(b))).to_le_bytes()
                })
            })
        };
    }
    match number {
        Number::Bool => (1, |a, b| each(a, b, |[a], [b]| [u8::from(a | b != 0)])),
        Number::Int8 => by!(u8),
        Number::Int16 => by!(u16),
        Number::Int32 => by!(u32),
        Number::Int64 => by!(u64),
        Number::F16 => by_short_float!(of_half, half_of),
        Number::BF16 => by_short_float!(of_bfloat, bfloat_of),
        Number::F32 => by_float!(f32),
        Number::F64 => by_float!(f64),
    }
}

fn sum(number: Number, words: &[u64], memory: &dyn Memory) -> Result<(), i32> {
    let (entries, sources) = (low(word(words, 0)), word(words, 0) >> 32);
    let (bytes, add) = arithmetic(number);
    for entry in 0..entries {
        let at = 2 + (2 + sources) * entry;
        let (dst, total) = (word(words, at), low(word(words, at + 1)) * bytes);
        let (mut sums, mut others) = ([0; PART], [0; PART]);
        for done in (0..total).step_by(PART) {
            let part = (total - done).min(PART as u64) as usize;
            memory.read(word(words, at + 2) + done, &mut sums[..part])?;
            for source in 1..sources {
                memory.read(word(words, at + 2 + source) + done, &mut others[..part])?;
                add(&mut sums[..part], &others[..part]);
            }
            memory.write(dst + done, &sums[..part])?;
        }
    }
    Ok(())
}

/// The kernels: names and bodies.
macro_rules! kernels {
    ($($name:literal $body:expr;)*) => {
        /// The number of words of a kernel's table, and its body.
        pub fn find(name: &str) -> Option<(usize, Body)> {
            match name {
                $(concat!("tcuda_comm_", $name) => Some((FEW, $body)),)*
                $(concat!("tcuda_comm_", $name, "_many") => Some((MANY, $body)),)*
                _ => None,
            }
        }

        /// Registers the kernels with the simulated machine.
        pub fn register_simulated() {
            $(sim::register_kernel(concat!("tcuda_comm_", $name), &[8 * FEW], |launch| {
                run(launch, $body)
            });
            sim::register_kernel(concat!("tcuda_comm_", $name, "_many"), &[8 * MANY], |launch| {
                run(launch, $body)
            });)*
        }
    };
}

fn run(launch: &sim::Launch, body: Body) -> Result<(), i32> {
    let mut words = vec![0; MANY];
    let (parts, _) = launch.param(0).as_chunks();
    for (word, bytes) in words.iter_mut().zip(parts) {
        *word = u64::from_le_bytes(*bytes);
    }
    body(&words, launch)
}

kernels! {
    "spread" spread;
    "rows" rows;
    "strided" strided;
    "sum_bool" |words, memory| sum(Number::Bool, words, memory);
    "sum_b8" |words, memory| sum(Number::Int8, words, memory);
    "sum_b16" |words, memory| sum(Number::Int16, words, memory);
    "sum_b32" |words, memory| sum(Number::Int32, words, memory);
    "sum_b64" |words, memory| sum(Number::Int64, words, memory);
    "sum_f16" |words, memory| sum(Number::F16, words, memory);
    "sum_bf16" |words, memory| sum(Number::BF16, words, memory);
    "sum_f32" |words, memory| sum(Number::F32, words, memory);
    "sum_f64" |words, memory| sum(Number::F64, words, memory);
}
