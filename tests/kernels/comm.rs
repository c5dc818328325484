//! The kernels of collective calls, beside the plainest code that says what they do.

use super::machine::{BFLOAT, HALF, bytes_of, file, program, run};
use proptest::prelude::*;
use tcuda::collectives::path::loaded::Kernel;
use tcuda::collectives::path::table::{BLOCK, Table};
use tcuda::collectives::path::{Dim, Number, Part, Rows};
use tcuda_sim::host::HostMachine;

/// A buffer of a machine, and what it holds at first.
struct Place {
    machine: HostMachine,
    bytes: Vec<u8>,
    start: u64,
}

impl Place {
    fn new(bytes: usize) -> Place {
        let bytes: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut machine = HostMachine::default();
        let start = machine.add(&bytes);
        Place { machine, bytes, start }
    }

    fn address(&self, at: usize) -> u64 {
        self.start + at as u64
    }
}

/// Runs a table with so many blocks: it makes of the memory what `expected` does.
fn check(
    place: &mut Place,
    kernel: Kernel,
    table: &mut Table,
    grid: Option<u32>,
    expected: impl FnOnce(&mut [u8]),
) {
    let grid = grid.unwrap_or(table.grid());
    let (words, is_long) = table.close();
    let name = kernel.name(is_long).to_str().unwrap();
    let image = match kernel {
        Kernel::Spread | Kernel::Rows | Kernel::Strided => "comm_copy",
        Kernel::Sum(Number::F16 | Number::BF16 | Number::F32 | Number::F64) => "comm_sum_floats",
        Kernel::Sum(_) => "comm_sum_integers",
    };
    let Place { machine, bytes, start } = place;
    machine.put(*start, bytes);
    run(machine, program(image, || file(image)), name, [grid, BLOCK], &bytes_of(words));
    let found = machine.get(*start);
    expected(bytes);
    assert_eq!(bytes.iter().zip(&found).position(|(a, b)| a != b), None, "{name}");
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
        // From six on, the table may be a long one.
        lengths in prop::collection::vec(prop_oneof![0..40usize, 500..3000usize], 1..12),
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
        for (at, length) in &sums {
            for start in sources {
                let from = start + at;
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
        // Exact, or the smaller number is too small to change the sum.
        Number::F16 => HALF.nearest(HALF.value(a as u16) + HALF.value(b as u16)).into(),
        Number::BF16 => BFLOAT.nearest(BFLOAT.value(a as u16) + BFLOAT.value(b as u16)).into(),
    };
    bits.to_le_bytes()[..number.bytes() as usize].to_vec()
}
