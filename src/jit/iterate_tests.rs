use super::*;
use crate::tensor::{Dtype, Parts, Place};

fn tensor(address: u64, shape: &[i64], strides: Option<&[i64]>) -> Tensor {
    let dtype = Dtype::new(2, 32);
    let place = Place::Cuda(0);
    Tensor::new(Parts { data: address, byte_offset: 0, place, dtype, shape, strides }).unwrap()
}

fn of(inputs: &[Tensor], outputs: &[Tensor]) -> Result<Option<Iteration>> {
    let mut made = Iteration::new();
    Ok(made.set(inputs, outputs)?.then_some(made))
}

const F: [Kind; 2] = [Kind::F32, Kind::F32];

#[test]
fn contiguous_dimensions_are_merged() {
    let (a, b) = (tensor(1 << 20, &[4, 5, 6], None), tensor(2 << 20, &[5, 1], None));
    let out = tensor(3 << 20, &[4, 5, 6], None);
    let made = of(&[a, a], &[out]).unwrap().unwrap();
    assert_eq!((made.dims().len(), made.numel()), (1, 120));
    assert_eq!(made.layout(&F, Kind::F32), Layout::Flat { width: 4, singles: 0 });
    let made = of(&[a, b], &[out]).unwrap().unwrap();
    let dims: Vec<(u64, [i64; 3])> =
        made.dims().iter().map(|dim| (dim.size, [0, 1, 2].map(|i| dim.strides[i]))).collect();
    assert_eq!(dims, [(6, [4, 0, 4]), (5, [24, 4, 24]), (4, [120, 0, 120])]);
    assert_eq!(
        made.layout(&F, Kind::F32),
        Layout::Rows { width: 2, repeated: 2, once: 0, is_deep: true }
    );
    // Dense, in any order of the dimensions.
    let (a, out) =
        (tensor(1 << 20, &[4, 5], Some(&[1, 4])), tensor(3 << 20, &[4, 5], Some(&[1, 4])));
    let one = tensor((2 << 20) + 4, &[], None);
    let made = of(&[a, one], &[out]).unwrap().unwrap();
    assert_eq!(made.layout(&F, Kind::F32), Layout::Flat { width: 4, singles: 2 });
    // An address that is not a multiple of the vector size.
    let (a, out) = (tensor((1 << 20) + 8, &[20], None), tensor(3 << 20, &[20], None));
    let made = of(&[a, a], &[out]).unwrap().unwrap();
    assert_eq!(made.layout(&F, Kind::F32), Layout::Flat { width: 2, singles: 0 });
}

#[test]
fn shapes_broadcast_as_pytorchs() {
    let input = |shape: &[i64]| tensor(1 << 20, shape, None);
    let out = |shape: &[i64]| tensor(1 << 30, shape, None);
    assert!(of(&[input(&[3, 1]), input(&[4])], &[out(&[3, 4])]).is_ok());
    assert!(of(&[input(&[3, 1]), input(&[4])], &[out(&[4])]).is_err());
    assert!(of(&[input(&[3]), input(&[4])], &[out(&[4])]).is_err());
    assert!(of(&[input(&[3, 0]), input(&[1])], &[out(&[3, 0])]).unwrap().is_none());
    assert!(of(&[input(&[0]), input(&[2])], &[out(&[0])]).is_err());
    let made = of(&[input(&[]), input(&[1, 1])], &[out(&[1, 1])]).unwrap().unwrap();
    assert_eq!((made.dims().len(), made.numel()), (0, 1));
    assert!(matches!(made.layout(&F, Kind::F32), Layout::Flat { singles: 3, .. }));
}

#[test]
fn outputs_that_partly_overlap_are_refused() {
    let at = |address: u64| tensor(address, &[100], None);
    assert!(of(&[at(4096)], &[at(4096)]).is_ok());
    assert!(of(&[at(4096)], &[at(4096 + 4)]).is_err());
    assert!(of(&[at(4096)], &[at(4096 + 400)]).is_ok());
    assert!(of(&[at(8192)], &[at(4096), at(4096)]).is_err());
    let twisted = tensor(4096, &[10, 10], Some(&[1, 10]));
    assert!(of(&[twisted], &[tensor(4096, &[10, 10], None)]).is_err());
    let repeated = tensor(8192, &[10], Some(&[0]));
    assert!(of(&[tensor(4096, &[10], None)], &[repeated]).is_err());
    assert!(of(&[repeated], &[tensor(4096, &[10], None)]).is_ok());
}

#[test]
fn large_tensors_are_split() {
    let (wide, out) = (
        tensor(1 << 40, &[3 << 20, 600], Some(&[1024, 1])),
        tensor(1 << 44, &[3 << 20, 600], None),
    );
    let made = of(&[wide], &[out]).unwrap().unwrap();
    let (mut parts, mut elements, mut next) = (0, 0, 1 << 44);
    made.for_each_part(&mut |part| {
        assert!(part.fits_32_bits());
        assert_eq!(part.addresses[1], next);
        parts += 1;
        elements += part.numel();
        next += part.numel() * 4;
        Ok(())
    })
    .unwrap();
    assert_eq!(elements, (3 << 20) * 600);
    assert!(parts >= 6, "{parts}");
}
