use super::*;
use crate::tensor::{Parts, Place, dtype::code};

fn format(shape: &[i64], strides: &[i64]) -> Format {
    let (place, dtype) = (Place::Cpu, Dtype::new(code::FLOAT, 32));
    let parts = Parts { data: 8, byte_offset: 0, place, dtype, shape, strides: Some(strides) };
    Format::of(&Tensor::new(parts).unwrap())
}

#[test]
fn memory_formats_are_pytorchs() {
    let is_last = |shape: &[i64], strides: &[i64]| format(shape, strides) == Format::ChannelsLast;
    assert!(is_last(&[2, 3, 4, 5], &[60, 1, 15, 3]));
    assert!(!is_last(&[2, 3, 4, 5], &[60, 20, 5, 1]));
    assert!(is_last(&[2, 3, 4, 5, 6], &[360, 1, 90, 18, 3]));
    // With one channel or one pixel: contiguous if it could be either.
    assert!(!is_last(&[7, 1, 1, 1], &[1, 1, 1, 1]));
    assert!(is_last(&[7, 1, 4, 1], &[4, 1, 1, 1]));
    assert!(!is_last(&[7, 1, 4, 1], &[4, 4, 1, 1]));
    assert!(!is_last(&[2, 3, 4], &[12, 1, 3]));
    let mut strides = [0; 4];
    Format::ChannelsLast.strides(&[2, 3, 4, 5], &mut strides);
    assert_eq!(strides, [60, 1, 15, 3]);
}
