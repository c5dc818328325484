//! The kernels of collective calls: their source on the CPU, beside the Rust functions of the
//! simulated machine, beside the plainest code that says what they do.

use proptest::prelude::*;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use tcuda::collectives::kernels;
use tcuda::collectives::path::loaded::Kernel;
use tcuda::collectives::path::table::{BLOCK, Table};
use tcuda::collectives::path::{Dim, Number, Part, Rows};
use tcuda::random::kernels::Memory;

type Run = unsafe extern "C" fn(*const c_char, u32, u32, *const u64) -> bool;

fn on_cpu() -> Run {
    // Compiled once, for all tests.
    static RUN: OnceLock<Run> = OnceLock::new();
    *RUN.get_or_init(|| {
        let address = super::function("comm_on_cpu.cc", c"comm_on_cpu");
        // SAFETY: the function has this signature.
        unsafe { std::mem::transmute::<*mut c_void, Run>(address) }
    })
}

/// Memory, its first byte at a multiple of 64; and a copy of it at the same addresses.
struct Place {
    bytes: Vec<u8>,
    first: usize,
}

impl Place {
    fn new(bytes: usize) -> Place {
        let bytes: Vec<u8> = (0..bytes + 64).map(|at| (at * 7 + at / 251) as u8).collect();
        let first = bytes.as_ptr().align_offset(64);
        Place { bytes, first }
    }

    fn address(&self, at: usize) -> u64 {
        self.bytes.as_ptr() as u64 + (self.first + at) as u64
    }
}

/// A copy, at the addresses of the first one.
struct Copy {
    start: u64,
    bytes: RefCell<Vec<u8>>,
}

impl Memory for Copy {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), i32> {
        let at = (address - self.start) as usize;
        bytes.copy_from_slice(&self.bytes.borrow()[at..at + bytes.len()]);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), i32> {
        let at = (address - self.start) as usize;
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// Runs a table both ways, with so many blocks; both came to what `expected` makes of the memory.
fn check(
    place: &mut Place,
    kernel: Kernel,
    table: &mut Table,
    grid: Option<u32>,
    expected: impl FnOnce(&mut [u8]),
) {
    let grid = grid.unwrap_or(table.grid());
    let (words, is_long) = table.close();
    let name: &CStr = kernel.name(is_long);
    let (first, start) = (place.first, place.bytes.as_ptr() as u64);
    let mut wanted = place.bytes.clone();
    let copy = Copy { start, bytes: place.bytes.clone().into() };
    expected(&mut wanted[first..]);
    let (length, body) = kernels::find(name.to_str().unwrap()).unwrap();
    body(&words[..length], &copy).unwrap();
    // SAFETY: the table leads to the memory, and is as long as the kernel's.
    let known = unsafe { on_cpu()(name.as_ptr(), grid, BLOCK, words.as_ptr()) };
    assert!(known, "{name:?}");
    let differs = |other: &[u8]| wanted.iter().zip(other).position(|(a, b)| a != b);
    assert_eq!(differs(&place.bytes), None, "on the CPU; memory begins at {first}");
    assert_eq!(differs(&copy.bytes.into_inner()), None, "in Rust; memory begins at {first}");
}

/// Where things begin: one after the other, each at a misalignment.
fn places(odds: &[usize], bytes: usize) -> (Vec<usize>, usize) {
    let each = (bytes + 16).next_multiple_of(64) + 64;
    let starts = odds.iter().enumerate().map(|(at, odd)| at * each + 32 + odd);
    (starts.collect(), odds.len() * each + 64)
}

fn part(address: u64) -> Part {
    Part { device: 0, address }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ranges_go_to_all_targets(
        odds in prop::collection::vec(
            prop_oneof![Just(0usize), Just(4), Just(8), 0..16usize],
            2..6,
        ),
        lengths in prop::collection::vec(prop_oneof![0..100usize, 1000..9000usize], 1..40),
        large: bool,
        grid in prop::option::of(1..9u32),
    ) {
        let total: usize = lengths.iter().map(|length| length + 3).sum();
        let (starts, bytes) = places(&odds, total);
        let mut place = Place::new(bytes);
        let others = starts[2..].iter().map(|start| place.address(*start));
        let first = place.address(starts[1]);
        let size = if large { 1 << 30 } else { 0 };
        let mut table = Table::with_targets(size, first, others).unwrap();
        let mut at = 0;
        let mut pieces = Vec::new();
        for length in &lengths {
            let (src, dst) = (place.address(starts[0] + at), place.address(starts[1] + at));
            prop_assert!(table.add_range(src, dst, *length as u64));
            pieces.push((at, *length));
            at += length + 3;
        }
        check(&mut place, Kernel::Spread, &mut table, grid, |memory| {
            for (at, length) in pieces {
                for target in &starts[1..] {
                    memory.copy_within(starts[0] + at..starts[0] + at + length, target + at);
                }
            }
        });
    }

    #[test]
    fn rows_are_copied(
        odds in [prop_oneof![Just(0usize), 0..16usize], prop_oneof![Just(0usize), 0..16usize]],
        shapes in prop::collection::vec(
            (1..300u64, 1..20u64, prop_oneof![Just(0u64), 0..40u64], 0..40u64, any::<bool>()),
            1..20,
        ),
        grid in prop::option::of(1..9u32),
    ) {
        let bytes: u64 = shapes.iter().map(|shape| (shape.0 + 60) * (shape.1 + 1)).sum();
        let (starts, bytes) = places(&odds, bytes as usize);
        let mut place = Place::new(bytes);
        let mut table = Table::new(Kernel::Rows, 1).unwrap();
        let (mut from, mut to, mut copies) = (starts[0] as u64, starts[1] as u64, Vec::new());
        for (width, rows, gap, other_gap, even) in &shapes {
            let even = |pitch: u64| if *even { pitch.next_multiple_of(16) } else { pitch };
            let (src_pitch, dst_pitch) = (even(width + gap), even(width + other_gap));
            let (src, dst) = (part(place.address(from as usize)), part(place.address(to as usize)));
            let entry = Rows { src, dst, width: *width, rows: *rows, src_pitch, dst_pitch };
            prop_assert!(table.add_rows(&entry));
            for row in 0..*rows {
                copies.push((from + row * src_pitch, to + row * dst_pitch, *width));
            }
            from += rows * src_pitch;
            to += rows * dst_pitch;
        }
        check(&mut place, Kernel::Rows, &mut table, grid, |memory| {
            for (from, to, width) in copies {
                memory.copy_within(from as usize..(from + width) as usize, to as usize);
            }
        });
    }

    #[test]
    fn elements_are_copied_in_any_order(
        pieces in prop::collection::vec(
            (0..5u32, prop::collection::vec((1..6u64, 0..3i64, any::<bool>()), 0..5)), 1..8),
        grid in prop::option::of(1..9u32),
    ) {
        let mut table = Table::new(Kernel::Strided, 1).unwrap();
        let each = 1 << 15;
        let mut place = Place::new(2 * each * pieces.len());
        let mut copies = Vec::new();
        for (index, (log, dims)) in pieces.iter().enumerate() {
            let element = 1u64 << log;
            let (from, to) = (2 * each * index, 2 * each * index + each);
            // The source has gaps and perhaps repeats itself or runs backwards; the target is
            // dense.
            let (mut step, mut dense, mut first, mut found) = (1i64, 1i64, 0i64, Vec::<Dim>::new());
            for (size, gap, backwards) in dims {
                let stride = (if *gap == 2 { 0 } else { step + gap }) * element as i64;
                let stride = if *backwards { -stride } else { stride };
                first -= stride.min(0) * (*size as i64 - 1);
                found.push((*size, stride, dense * element as i64));
                (step, dense) = ((step + 1) * *size as i64, dense * *size as i64);
            }
            let src = place.address(from + first as usize);
            let dst = place.address(to);
            prop_assert!(table.add_strided(src, dst, element, &found));
            copies.push((from as i64 + first, to as i64, element as usize, found));
        }
        check(&mut place, Kernel::Strided, &mut table, grid, |memory| {
            for (from, to, element, dims) in copies {
                let count: u64 = dims.iter().map(|dim| dim.0).product();
                for index in 0..count {
                    let (mut src, mut dst, mut rest) = (from, to, index);
                    for (size, src_stride, dst_stride) in &dims {
                        src += (rest % size) as i64 * src_stride;
                        dst += (rest % size) as i64 * dst_stride;
                        rest /= size;
                    }
                    let src = src as usize;
                    memory.copy_within(src..src + element, dst as usize);
                }
            }
        });
    }

    #[test]
    fn sums_are_added_in_order(
        number in 0..9usize,
        odds in prop::collection::vec(prop_oneof![Just(0usize), Just(8), 0..16usize], 2..8),
        lengths in prop::collection::vec(prop_oneof![0..40usize, 500..3000usize], 1..6),
        in_place: bool,
        grid in prop::option::of(1..9u32),
        seed: u64,
    ) {
        let number = Number::ALL[number];
        let size = number.bytes() as usize;
        let total: usize = lengths.iter().map(|length| (length + 1) * size).sum();
        let (starts, bytes) = places(&odds, total);
        let mut place = Place::new(bytes);
        // Numbers of little and of large magnitude, but no NaN, of which the payload is free.
        let mut state = seed | 1;
        for word in place.bytes.chunks_exact_mut(2) {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            word.copy_from_slice(&((state >> 40) as u16).to_le_bytes());
        }
        let target = if in_place { starts[1] } else { starts[0] };
        let sources = &starts[1..];
        let mut table = Table::of_sums(number, 0, sources.len()).unwrap();
        let (mut at, mut sums) = (0, Vec::new());
        for length in &lengths {
            let from = sources.iter().map(|start| place.address(start + at));
            let from: Vec<u64> = from.collect();
            let is_added =
                table.add_sum(place.address(target + at), *length as u64, from.iter().copied());
            prop_assert!(is_added);
            sums.push((at, *length));
            at += (length + 1) * size;
        }
        let first = place.first;
        for (at, length) in &sums {
            for start in sources {
                let from = first + start + at;
                tame(number, &mut place.bytes[from..from + length * size]);
            }
        }
        check(&mut place, Kernel::Sum(number), &mut table, grid, |memory| {
            for (at, length) in sums {
                for index in 0..length {
                    let at = at + index * size;
                    let value = |start: usize| memory[start + at..start + at + size].to_vec();
                    let mut sum = value(sources[0]);
                    for source in &sources[1..] {
                        sum = add(number, &sum, &value(*source));
                    }
                    if number == Number::Bool && sources.len() == 1 {
                        sum = value(sources[0]);
                    }
                    memory[target + at..target + at + size].copy_from_slice(&sum);
                }
            }
        });
    }
}

/// Makes numbers of bytes: no NaN and no infinity of the floating ones, 0 or 1 of Booleans.
fn tame(number: Number, bytes: &mut [u8]) {
    for value in bytes.chunks_exact_mut(number.bytes() as usize) {
        let last = value.len() - 1;
        match number {
            Number::Bool => value[0] &= 1,
            Number::F16 => value[last] &= 0xbf,
            Number::BF16 | Number::F32 | Number::F64 => value[last] &= 0xbf,
            _ => (),
        }
    }
}

/// The plainest sum.
fn add(number: Number, a: &[u8], b: &[u8]) -> Vec<u8> {
    let wide =
        |bytes: &[u8]| bytes.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
    let (a, b) = (wide(a), wide(b));
    let bits = match number {
        Number::Bool => u64::from(a + b != 0),
        Number::Int8 | Number::Int16 | Number::Int32 | Number::Int64 => a.wrapping_add(b),
        Number::F32 => (f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits().into(),
        Number::F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        Number::BF16 => short(a, b, 8),
        Number::F16 => short(a, b, 5),
    };
    bits.to_le_bytes()[..number.bytes() as usize].to_vec()
}

/// The nearest of all floats of 16 bits to the sum of two, the even one of two as near.
fn short(a: u64, b: u64, exponent_bits: u32) -> u64 {
    let digits = 15 - exponent_bits;
    let value = |bits: u64| {
        let (exponent, rest) =
            (bits >> digits & ((1 << exponent_bits) - 1), bits & ((1 << digits) - 1));
        let bias = (1i32 << (exponent_bits - 1)) - 1;
        let one = if exponent == 0 { 0 } else { 1 << digits };
        let power = exponent.max(1) as i32 - bias - digits as i32;
        (rest + one) as f64 * 2f64.powi(power) * if bits & 0x8000 == 0 { 1.0 } else { -1.0 }
    };
    // Exact: the numbers are short, and their exponents not far apart enough to matter but by
    // rounding.
    let sum = value(a) + value(b);
    if sum == 0.0 {
        return a & b & 0x8000;
    }
    let sign = if sum < 0.0 { 0x8000 } else { 0 };
    let (mut low, mut high) = (0u64, ((1 << exponent_bits) - 1) << digits);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if value(middle) <= sum.abs() { low = middle } else { high = middle }
    }
    let (below, above) = (sum.abs() - value(low), value(high) - sum.abs());
    let even = if low % 2 == 0 { low } else { high };
    sign | if below < above {
        low
    } else if above < below {
        high
    } else {
        even
    }
}
