use super::*;
use crate::tensor::{Dtype, Parts, Place, dtype::code};

fn view(data: u64, bits: u8, shape: &[i64], strides: Option<&[i64]>) -> Tensor {
    let dtype = Dtype::new(if bits < 8 { code::INT } else { code::FLOAT }, bits);
    Tensor::new(Parts { data, byte_offset: 0, place: Place::Cpu, dtype, shape, strides }).unwrap()
}

fn form(src: &Tensor, dst: &Tensor) -> Form {
    Form::of(src, dst).unwrap().unwrap()
}

/// (source, destination) address of each byte.
fn bytes_of(form: View<'_>) -> Vec<(u64, u64)> {
    let mut found = vec![(form.src, form.dst)];
    for (size, src, dst) in form.dims {
        let steps = |from: &(u64, u64)| {
            let from = *from;
            let step = move |index: u64| {
                let at = |start: u64, stride: i64| start.wrapping_add_signed(stride * index as i64);
                (at(from.0, *src), at(from.1, *dst))
            };
            (0..*size).map(step).collect::<Vec<_>>()
        };
        found = found.iter().flat_map(steps).collect();
    }
    let all = |from: &(u64, u64)| {
        let from = *from;
        (0..form.width).map(move |byte| (from.0 + byte, from.1 + byte))
    };
    let mut found: Vec<_> = found.iter().flat_map(all).collect();
    found.sort_unstable();
    found
}

/// The same, computed element by element.
fn expected(src: &Tensor, dst: &Tensor) -> Vec<(u64, u64)> {
    let bytes = src.dtype.element_bytes().unwrap();
    let mut found = Vec::new();
    for number in 0..src.numel as i64 {
        let (mut rest, mut from, mut to) = (number, 0, 0);
        for (index, size) in src.shape().iter().enumerate().rev() {
            from += rest % size * src.strides()[index];
            to += rest % size * dst.strides()[index];
            rest /= size;
        }
        let at = |start: u64, elements: i64| start.wrapping_add_signed(elements * bytes as i64);
        found.extend((0..bytes).map(|b| (at(src.address, from) + b, at(dst.address, to) + b)));
    }
    found.sort_unstable();
    found
}

#[test]
fn contiguous_in_both_is_one_range() {
    let (src, dst) = (view(1000, 32, &[2, 3, 4], None), view(5000, 32, &[2, 3, 4], None));
    let plain = form(&src, &dst);
    assert!(plain.is_range() && plain.width == 96 && plain.rows() == Some((1, 96, 96)));
    // Also with permuted dimensions, negative strides, and sizes of 1.
    let turned = |data| view(data, 32, &[4, 1, 2, 3], Some(&[6, 77, 3, 1]));
    assert!(form(&turned(1000), &turned(5000)).is_range());
    let backwards = |data| view(data, 32, &[2, 3], Some(&[-3, -1]));
    let form = form(&backwards(1020), &backwards(5020));
    assert!(form.is_range() && (form.src, form.dst) == (1000, 5000));
    assert!(Form::of(&view(0, 32, &[0, 3], None), &view(0, 32, &[0, 3], None)).unwrap().is_none());
}

#[test]
fn a_part_of_a_matrix_is_rows() {
    let (src, dst) = (view(1000, 32, &[5, 2], Some(&[7, 1])), view(5000, 32, &[5, 2], None));
    let rows = form(&src, &dst);
    assert_eq!((rows.rows(), rows.width), (Some((5, 28, 8)), 8));
    assert_eq!(rows.num_rows(), 1);
    // Repeated or overlapping rows are not a set of rows.
    let repeated = form(&view(1000, 32, &[5, 2], Some(&[0, 1])), &dst);
    assert_eq!(repeated.rows(), None);
    assert_eq!(repeated.num_rows(), 5);
}

#[test]
fn every_layout_moves_each_byte_once() {
    let shapes: [&[i64]; 7] =
        [&[], &[6], &[2, 3], &[3, 1, 2], &[2, 3, 2], &[2, 2, 2, 2], &[2, 1, 2, 2, 2, 2, 2]];
    let mut state = 1u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    for _ in 0..3000 {
        let shape = shapes[next(7) as usize];
        // Destination strides: each dimension extends beyond all denser ones, in any order and
        // direction.
        let mut order: Vec<usize> = (0..shape.len()).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, next(index as u64 + 1) as usize);
        }
        let (mut strides, mut reach) = (vec![0i64; shape.len()], 1i64);
        for index in order {
            strides[index] = if next(3) == 0 { -reach } else { reach };
            reach *= shape[index];
            reach += i64::from(next(2) == 0) * next(3) as i64;
        }
        let any: Vec<i64> = shape.iter().map(|_| next(9) as i64 - 3).collect();
        let bits = [8, 16, 32, 64][next(4) as usize];
        let code = |bits| if bits == 8 { code::UINT } else { code::FLOAT };
        let make = |data, strides: &[i64]| {
            let dtype = Dtype::new(code(bits), bits);
            let place = Place::Cpu;
            let strides = Some(strides);
            Tensor::new(Parts { data, byte_offset: 0, place, dtype, shape, strides }).unwrap()
        };
        let src = make(1 << 20, if next(2) == 0 { &strides } else { &any });
        let dst = make((2 << 20) + next(3), &strides);
        let form = form(&src, &dst);
        assert_eq!(bytes_of(form.view()), expected(&src, &dst));
        assert_eq!(form.bytes(), src.numel * u64::from(bits) / 8);
        // Both halves through contiguous memory.
        let (there, back) = (form.packing(3 << 20).unwrap(), form.unpacking(3 << 20).unwrap());
        assert_eq!((there.bytes(), back.bytes()), (form.bytes(), form.bytes()));
        let (mut there, mut back) = (bytes_of(there.view()), bytes_of(back.view()));
        there.sort_unstable_by_key(|pair| pair.1);
        back.sort_unstable();
        let whole = there.iter().zip(&back).all(|(there, back)| there.1 == back.0);
        assert!(whole && there[0].1 == 3 << 20);
        let mut both: Vec<_> = there.iter().zip(&back).map(|(a, b)| (a.0, b.1)).collect();
        both.sort_unstable();
        assert_eq!(both, expected(&src, &dst));
        // In parts, and in elements.
        let (mut parts, mut calls) = (Vec::new(), 0);
        form.for_each_rows(&mut |part| {
            assert!(part.rows().is_some());
            calls += 1;
            parts.extend(bytes_of(part));
            Ok(())
        })
        .unwrap();
        parts.sort_unstable();
        assert_eq!(parts, expected(&src, &dst));
        assert_eq!(calls, form.num_rows());
        let elements = form.elements().unwrap().unwrap();
        let whole = View { width: elements.element, dims: elements.dims(), ..form.view() };
        assert_eq!(bytes_of(whole), expected(&src, &dst));
        let all = elements.dims().iter().fold(whole.src | whole.dst, |all, dim| {
            all | dim.1.unsigned_abs() | dim.2.unsigned_abs()
        });
        assert!(all % elements.element == 0);
    }
}

#[test]
fn elements_below_a_byte_are_refused_unless_whole() {
    let (src, dst) = (view(1000, 4, &[2, 6], None), view(5000, 4, &[2, 6], None));
    assert_eq!(form(&src, &dst).width, 6);
    let column = view(1000, 4, &[2, 1], Some(&[6, 1]));
    assert!(Form::of(&column, &view(5000, 4, &[2, 1], None)).is_err());
    let half = view(1000, 4, &[2, 2], Some(&[6, 1]));
    let rows = form(&half, &view(5000, 4, &[2, 2], None));
    assert_eq!(rows.rows(), Some((2, 3, 1)));
    assert!(Form::of(&view(1000, 4, &[3], None), &view(5000, 4, &[3], None)).is_err());
}

#[test]
fn forms_have_more_dimensions_than_kernels_take() {
    let shape = [2; MAX_ELEMENT_DIMS + 1];
    let reversed: Vec<i64> = (0..shape.len()).map(|dim| 1 << dim).collect();
    let src = view(1 << 40, 32, &shape, Some(&reversed));
    let form = form(&src, &view(2 << 40, 32, &shape, None));
    assert_eq!((form.dims().len(), form.bytes()), (shape.len(), 4 << shape.len()));
    assert!(form.elements().unwrap().is_none());
    assert_eq!(form.packing(form.dst).unwrap().dims(), form.dims());
    assert!(form.unpacking(3 << 40).unwrap().is_range());
}
