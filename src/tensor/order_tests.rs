use super::*;
use crate::tensor::{Dtype, Parts, Place};
use proptest::prelude::*;
use std::collections::HashSet;

const BASE: u64 = 1 << 40;

fn tensor(shape: &[i64], strides: &[i64], bits: u8) -> Tensor {
    let (place, dtype) = (Place::Cuda(0), Dtype::new(2, bits));
    Tensor::new(Parts { data: BASE, byte_offset: 0, place, dtype, shape, strides: Some(strides) })
        .unwrap()
}

fn dims(shape: &[i64], strides: &[i64]) -> Vec<(i64, i64)> {
    let ordered = tensor(shape, strides, 32).ordered().unwrap();
    ordered.dims().iter().map(|dim| (dim.size, dim.stride)).collect()
}

/// Offsets of the elements, in elements and in the order in which they are counted.
fn offsets(ordered: &Ordered) -> Vec<u64> {
    (0..ordered.numel())
        .map(|mut index| {
            let mut offset = (ordered.address - BASE) / ordered.element_bytes;
            for dim in ordered.dims() {
                offset += index % dim.size as u64 * dim.stride as u64;
                index /= dim.size as u64;
            }
            offset
        })
        .collect()
}

#[test]
fn dense_tensors_are_one_range() {
    assert_eq!(dims(&[], &[]), []);
    assert_eq!(dims(&[5], &[1]), [(5, 1)]);
    assert_eq!(dims(&[2, 3, 4], &[12, 4, 1]), [(24, 1)]);
    assert_eq!(dims(&[2, 3, 4], &[1, 2, 6]), [(24, 1)]);
    assert_eq!(dims(&[2, 1, 4], &[4, 77, 1]), [(8, 1)]);
    assert_eq!(dims(&[1, 1], &[7, 9]), [(1, 1)]);
}

#[test]
fn other_tensors_are_counted_along_the_smallest_stride() {
    assert_eq!(dims(&[4, 3], &[10, 2]), [(3, 2), (4, 10)]);
    assert_eq!(dims(&[3, 4], &[2, 10]), [(3, 2), (4, 10)]);
    // Contiguous rows merge into one dimension.
    assert_eq!(dims(&[4, 3, 5], &[30, 5, 1]), [(15, 1), (4, 30)]);
    assert_eq!(dims(&[3, 4, 5], &[1, 100, 3]), [(15, 1), (4, 100)]);
    assert_eq!(dims(&[6], &[3]), [(6, 3)]);
    // A dimension of size 1 merges with its neighbour.
    assert_eq!(dims(&[4, 1, 3], &[10, 0, 2]), [(3, 2), (4, 10)]);
    assert_eq!(dims(&[4, 1, 3], &[10, 3, 2]), [(3, 2), (4, 10)]);
}

#[test]
fn elements_that_share_an_address_are_refused() {
    let refused = |shape: &[i64], strides: &[i64]| tensor(shape, strides, 32).ordered().is_err();
    assert!(refused(&[2], &[0]) && !refused(&[1], &[0]));
    assert!(refused(&[3, 3], &[1, 1]));
    assert!(refused(&[3, 4], &[3, 1]) && !refused(&[3, 3], &[3, 1]));
    // Offsets 0 2 4 and 3 5 7: the rows interleave and share no address.
    assert!(!refused(&[2, 3], &[3, 2]) && refused(&[2, 4], &[6, 2]));
    assert!(refused(&[2, 2, 2], &[1, 2, 3]) && !refused(&[2, 2, 2], &[1, 2, 4]));
    assert!(refused(&[1 << 20, 1 << 20, 1 << 20], &[1 << 10, 3, 1]));
    assert!(refused(&[2], &[-1]) && !refused(&[1], &[-1]));
    // The search gives up soon and reports no overlap.
    let odd: Vec<i64> = (0..20).map(|index| 1_000_003 + 2 * index * index).collect();
    let _ = refused(&[2; 20], &odd);
    let powers: Vec<i64> = (0..26).map(|index| 3i64.pow(index)).collect();
    assert!(refused(&[2; 26], &powers) && !refused(&[2; 25], &powers[..25]));
}

#[test]
fn large_tensors_are_halved_where_they_reach_furthest() {
    let parts = |shape: &[i64], strides: &[i64], bits| {
        let mut parts = Vec::new();
        let mut note = |part: &Ordered| {
            parts.push(((part.address - BASE) / part.element_bytes, part.numel()));
            Ok(())
        };
        tensor(shape, strides, bits).ordered().unwrap().for_each_part(&mut note).unwrap();
        parts
    };
    assert_eq!(parts(&[1 << 29], &[1], 32), [(0, 1 << 29)]);
    let half = (1 << 28) + 1;
    assert_eq!(parts(&[(1 << 29) + 2], &[1], 32), [(0, half), (half, half)]);
    // The first half is the smaller one.
    assert_eq!(parts(&[(1 << 29) + 1], &[1], 32), [(0, 1 << 28), (1 << 28, half)]);
    let quarters = [(0, 1 << 28), (1 << 28, 1 << 28), (2 << 28, 1 << 28), (3 << 28, 1 << 28)];
    assert_eq!(parts(&[1 << 30], &[1], 64), quarters);
    // Few elements, far apart: each becomes a part.
    assert_eq!(parts(&[3], &[1 << 30], 32), [(0, 1), (1 << 30, 1), (2 << 30, 1)]);
    let far = [(0, 8), (1 << 33, 8)];
    assert_eq!(parts(&[2, 8], &[1 << 33, 2], 32), far);
}

#[test]
fn pairs_are_sorted_by_both() {
    let order = |shape: &[i64], own: &[i64], other: &[i64], converted| {
        let pair = tensor(shape, own, 32).ordered_with(&tensor(shape, other, 32), converted);
        let (own, other) = pair.unwrap();
        (offsets(&own), offsets(&other))
    };
    // Row-major where the two disagree, memory order where they agree.
    let (own, other) = order(&[2, 3], &[3, 1], &[3, 1], false);
    assert_eq!((own, other), ((0..6).collect(), (0..6).collect()));
    let (own, other) = order(&[2, 3], &[1, 2], &[1, 2], false);
    assert_eq!((own, other), ((0..6).collect(), (0..6).collect()));
    let (own, other) = order(&[2, 3], &[1, 2], &[3, 1], false);
    assert_eq!((own, other), (vec![0, 2, 4, 1, 3, 5], (0..6).collect()));
    // One row for all.
    let (own, other) = order(&[2, 3], &[3, 1], &[0, 1], true);
    assert_eq!((own, other), ((0..6).collect(), vec![0, 1, 2, 0, 1, 2]));
    let (own, other) = order(&[2, 3], &[1, 2], &[0, 0], false);
    assert_eq!((own, other), ((0..6).collect(), vec![0; 6]));
    // A converted tensor is sorted by the strides of its copy. Here that is row-major; its own
    // strides of 0 would not order the dimensions.
    let (own, other) = order(&[2, 3], &[1, 2], &[0, 0], true);
    assert_eq!((own, other), (vec![0, 2, 4, 1, 3, 5], vec![0; 6]));
    let (own, other) = order(&[2, 3], &[1, 2], &[1, 0], true);
    assert_eq!((own, other), (vec![0, 2, 4, 1, 3, 5], vec![0, 0, 0, 1, 1, 1]));
    let (own, other) = order(&[2, 3], &[1, 2], &[2, 4], true);
    assert_eq!((own, other), ((0..6).collect(), vec![0, 2, 4, 6, 8, 10]));
    let empty = tensor(&[i64::MAX, 0, 2, i64::MAX], &[0; 4], 32);
    assert_eq!(empty.ordered().unwrap().numel(), 0);
    assert_eq!(empty.ordered_with(&empty, true).unwrap().1.numel(), 0);
    let shapes = tensor(&[2, 3], &[3, 1], 32).ordered_with(&tensor(&[3, 2], &[2, 1], 32), false);
    assert!(shapes.is_err());
}

proptest! {
    #[test]
    fn every_element_is_counted_once(
        sizes in proptest::collection::vec((1i64..4, 0i64..30), 0..5),
    ) {
        let shape: Vec<i64> = sizes.iter().map(|pair| pair.0).collect();
        let strides: Vec<i64> = sizes.iter().map(|pair| pair.1).collect();
        let mut expected = vec![0u64];
        for (size, stride) in &sizes {
            expected = expected
                .iter()
                .flat_map(|offset| (0..*size).map(move |index| offset + (index * stride) as u64))
                .collect();
        }
        let distinct: HashSet<u64> = expected.iter().copied().collect();
        let ordered = tensor(&shape, &strides, 32).ordered();
        prop_assert_eq!(ordered.is_ok(), distinct.len() == expected.len());
        if let Ok(ordered) = ordered {
            let found: HashSet<u64> = offsets(&ordered).into_iter().collect();
            prop_assert_eq!(found, distinct);
            let (own, other) = tensor(&shape, &strides, 32)
                .ordered_with(&tensor(&shape, &strides, 64), true)
                .unwrap();
            prop_assert_eq!(offsets(&own), offsets(&other));
        }
    }
}
