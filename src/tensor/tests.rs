use super::*;

const FLOAT: Dtype = Dtype::new(dtype::code::FLOAT, 32);

fn parts<'a>(shape: &'a [i64], strides: Option<&'a [i64]>) -> Parts<'a> {
    Parts { data: 0x1000, byte_offset: 16, place: Place::Cuda(0), dtype: FLOAT, shape, strides }
}

fn range(shape: &[i64], strides: &[i64]) -> (u64, u64) {
    Tensor::new(parts(shape, Some(strides))).unwrap().range().unwrap()
}

#[test]
fn missing_strides_mean_compact() {
    let tensor = Tensor::new(parts(&[2, 3, 4], None)).unwrap();
    assert_eq!(tensor.strides(), [12, 4, 1]);
    assert_eq!((tensor.numel, tensor.address), (24, 0x1010));
    assert_eq!(tensor.range().unwrap(), (0x1010, 0x1010 + 96));
    assert!(tensor.is_compact());
    let scalar = Tensor::new(parts(&[], None)).unwrap();
    assert_eq!((scalar.numel, scalar.range().unwrap()), (1, (0x1010, 0x1014)));
    assert!(scalar.is_compact());
}

#[test]
fn a_range_covers_exactly_the_elements() {
    assert_eq!(range(&[3, 4], &[10, 2]), (0x1010, 0x1010 + 4 * 27));
    assert_eq!(range(&[3, 4], &[-10, 2]), (0x1010 - 80, 0x1010 + 28));
    assert_eq!(range(&[3, 4], &[0, 0]), (0x1010, 0x1014));
    assert_eq!(range(&[0, 4], &[i64::MAX, i64::MIN]), (0x1010, 0x1010));
    let nibbles = Dtype::new(dtype::code::FLOAT4_E2M1FN, 4);
    let odd = Tensor::new(Parts { dtype: nibbles, ..parts(&[5], None) }).unwrap();
    assert_eq!(odd.range().unwrap(), (0x1010, 0x1013));
}

#[test]
fn unaddressable_views_are_refused() {
    let refused = |shape: &[i64], strides| Tensor::new(parts(shape, strides)).is_err();
    assert!(refused(&[-1], None));
    assert!(refused(&[1 << 32, 1 << 32], None));
    assert!(refused(&[1 << 61], None) && !refused(&[1 << 60], None));
    assert!(refused(&[2, 2], Some(&[i64::MAX, i64::MAX])));
    assert!(refused(&[2], Some(&[i64::MIN])) && refused(&[2], Some(&[-0x500])));
    assert!(refused(&[1 << 62; 2], Some(&[0, 0])));
    let many = [i64::MAX, 1].repeat(32);
    assert!(refused(&many, Some(&[i64::MAX; 64])));
    assert!(refused(&[1; 65], None) && !refused(&[1; 64], None));
    // With a size of 0 there is nothing that could overflow.
    assert!(!refused(&[0, i64::MAX, i64::MAX], None));
    assert!(Tensor::new(Parts { data: 0, ..parts(&[1], None) }).is_err());
    assert!(Tensor::new(Parts { data: 0, ..parts(&[0], None) }).is_ok());
    assert!(Tensor::new(Parts { byte_offset: u64::MAX, ..parts(&[1], None) }).is_err());
    assert!(ndim(-1).is_err() && ndim(65).is_err() && ndim(64).is_ok());
}

#[test]
fn compact_ignores_dimensions_of_size_one() {
    let is_compact =
        |shape, strides| Tensor::new(parts(shape, Some(strides))).unwrap().is_compact();
    assert!(is_compact(&[2, 1, 3], &[3, 999, 1]));
    assert!(!is_compact(&[2, 3], &[1, 2]));
    assert!(!is_compact(&[2, 3], &[4, 1]));
    assert!(is_compact(&[2, 0], &[5, 7]));
}

#[test]
fn places_have_dlpacks_numbers() {
    for kind in [1, 2, 3, 13] {
        assert_eq!(Place::of(kind, 0).unwrap().numbers(), (kind, 0));
    }
    assert_eq!(Place::of(2, 5).unwrap().device(), Some(5));
    assert_eq!(Place::of(3, 0).unwrap().device(), None);
    assert!(Place::of(4, 0).is_err() && Place::of(0, 0).is_err() && Place::of(2, -1).is_err());
}
