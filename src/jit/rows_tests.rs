use super::*;

#[test]
fn division_by_multiplication_is_exact() {
    let numbers =
        [0, 1, 2, 3, 6, 7, 99, 1 << 16, 123_456_789, i32::MAX as u32 - 1, i32::MAX as u32];
    for divisor in (1..2000).chain(numbers.into_iter().filter(|number| *number > 0)) {
        let (magic, shift) = magic(divisor);
        let around = (1..50).map(|times| divisor.saturating_mul(times) & 0x7fff_ffff);
        for number in numbers.into_iter().chain(around.flat_map(|n| [n.max(1) - 1, n])) {
            let high = ((u64::from(number) * u64::from(magic)) >> 32) as u32;
            assert_eq!((high + number) >> shift, number / divisor, "{number} / {divisor}");
        }
    }
}

use crate::tensor::{Dtype, Parts, Place, Tensor};

fn tensor(address: u64, shape: &[i64], strides: Option<&[i64]>) -> Tensor {
    let (place, dtype) = (Place::Cuda(0), Dtype::new(2, 32));
    Tensor::new(Parts { data: address, byte_offset: 0, place, dtype, shape, strides }).unwrap()
}

/// Computes the offsets of each thread like the kernel, and checks that each element is accessed
/// once.
fn check(input: Tensor, expected: Layout) {
    let shape = [6, 40, 24];
    let (a, out) = (tensor(1 << 20, &shape, None), tensor(1 << 24, &shape, None));
    let mut part = Iteration::new();
    assert!(part.set(&[a, input], &[out]).unwrap());
    let kinds = [Kind::F32; 2];
    let layout = part.layout(&kinds, Kind::F32);
    assert_eq!(layout, expected);
    let Layout::Rows { width, is_deep, .. } = layout else {
        let (grid, len) = tile::write(&mut [0; SHAPE], &part, 2);
        // Two tiles side by side, two below, for six matrices.
        return assert_eq!((grid, len), (2 * 6, 4 + 4 * 8 + 6));
    };
    let unroll = rows_of_thread(width, kinds.into_iter());
    let mut words = [0; SHAPE];
    let (grid, len) = write(&mut words, &part, width, is_deep, unroll);
    let most = if is_deep { MAX_ORDERED_DIMS } else { SHALLOW };
    assert_eq!(len, 4 + most * 7 + 3);
    let [threads, rows, groups, dims] = [0, 1, 2, 3].map(|at| words[at]);
    assert!(grid * u64::from(THREADS) >= u64::from(threads));
    let (sizes, strides) = (&words[4..4 + most], &words[4 + 3 * most..]);
    let steps = &strides[4 * most..][..3];
    let mut found = Vec::new();
    for thread in 0..threads {
        let (mut at, mut offsets) = (thread, [0; 4]);
        for dim in 0..(dims as usize).max(if is_deep { 0 } else { SHALLOW }) {
            let index = at % sizes[dim];
            at /= sizes[dim];
            (0..4).for_each(|k| offsets[k] += index * strides[4 * dim + k]);
        }
        for row in 0..unroll {
            if offsets[3] + row * groups < rows {
                found.push([0, 1, 2].map(|k| u64::from(offsets[k] + row * steps[k])));
            }
        }
    }
    found.sort_by_key(|place| place[0]);
    let all: Vec<u64> = (0..6 * 40 * 24).step_by(width.into()).map(|n| n * 4).collect();
    assert_eq!(found.iter().map(|place| place[0]).collect::<Vec<_>>(), all);
    let lacking = 3 - input.shape().len();
    for [first, second, third] in found {
        assert_eq!(first, third);
        let number = (first / 4) as i64;
        let indices = [number / 960, number / 24 % 40, number % 24];
        let own = input.shape().iter().zip(input.strides()).zip(&indices[lacking..]);
        let place: i64 =
            own.map(|((size, stride), i)| if *size == 1 { 0 } else { i * stride }).sum();
        assert_eq!(second, place as u64 * 4);
    }
}

#[test]
fn every_thread_gets_its_rows() {
    let rows = |width, repeated, once, is_deep| Layout::Rows { width, repeated, once, is_deep };
    let at = |shape: &[i64]| tensor(1 << 22, shape, None);
    // A row, a row per first index, a column, and a value per row.
    check(at(&[24]), rows(4, 0, 2, false));
    check(at(&[6, 1, 24]), rows(4, 0, 2, true));
    check(at(&[40, 1]), rows(4, 2, 0, true));
    check(at(&[6, 40, 1]), rows(4, 2, 0, false));
    check(at(&[6, 1, 1]), rows(4, 2, 0, false));
    check(at(&[40, 24]), rows(4, 0, 2, false));
    // Transposed, every second element, and not aligned to a vector.
    check(tensor(1 << 22, &[6, 40, 24], Some(&[1, 6, 240])), rows(1, 0, 0, true));
    check(tensor(1 << 22, &[6, 40, 24], Some(&[1920, 48, 2])), rows(1, 0, 0, false));
    check(tensor(1 << 22, &[6, 40, 24], Some(&[2000, 1, 40])), Layout::Tiled { transposed: 2 });
    check(tensor((1 << 22) + 8, &[24], None), rows(2, 0, 2, false));
    check(tensor(1 << 22, &[6, 40, 24], Some(&[1040, 26, 1])), rows(2, 0, 0, false));
}
