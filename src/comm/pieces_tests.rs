use super::*;
use crate::tensor::{Dtype, Parts, Place, dtype::code};

#[test]
fn pieces_are_pytorchs() {
    let sizes = |size, count| equal_sizes(size, count).unwrap();
    assert_eq!(sizes(12, 4), [3, 3, 3, 3]);
    assert_eq!(sizes(13, 4), [4, 4, 4, 1]);
    // Fewer than asked for.
    assert_eq!(sizes(5, 4), [2, 2, 1]);
    assert_eq!(sizes(3, 5), [1, 1, 1]);
    assert_eq!(sizes(0, 3), [0, 0, 0]);
    assert_eq!(sizes(i64::MAX, 1), [i64::MAX]);
}

#[test]
fn sizes_must_be_those_of_the_whole() {
    let check = |sizes: &[i64], size| require_sum(sizes.iter().copied(), size, "sizes");
    assert!(check(&[1, 2], 3).is_ok() && check(&[0, 3, 0], 3).is_ok());
    assert!(check(&[1, 2], 4).is_err() && check(&[4, -1], 3).is_err());
    assert!(check(&[i64::MAX, i64::MAX], i64::MAX - 1).is_err());
}

fn format(shape: &[i64], strides: &[i64]) -> Format {
    let (place, dtype) = (Place::Cpu, Dtype::new(code::FLOAT, 32));
    let parts = Parts { data: 8, byte_offset: 0, place, dtype, shape, strides: Some(strides) };
    Format::of(&Tensor::new(parts).unwrap())
}

#[test]
fn formats_are_told_as_pytorch_tells_them() {
    let is_last = |shape: &[i64], strides: &[i64]| format(shape, strides) == Format::ChannelsLast;
    assert!(is_last(&[2, 3, 4, 5], &[60, 1, 15, 3]));
    assert!(!is_last(&[2, 3, 4, 5], &[60, 20, 5, 1]));
    assert!(is_last(&[2, 3, 4, 5, 6], &[360, 1, 90, 18, 3]));
    // Of one channel, or one pixel: contiguous where it could be either.
    assert!(!is_last(&[7, 1, 1, 1], &[1, 1, 1, 1]));
    assert!(is_last(&[7, 1, 4, 1], &[4, 1, 1, 1]));
    assert!(!is_last(&[7, 1, 4, 1], &[4, 4, 1, 1]));
    assert!(!is_last(&[2, 3, 4], &[12, 1, 3]));
    let mut strides = [0; 4];
    Format::ChannelsLast.strides(&[2, 3, 4, 5], &mut strides);
    assert_eq!(strides, [60, 1, 15, 3]);
}
