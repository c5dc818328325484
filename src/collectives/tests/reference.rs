//! Reference implementations on plain host arrays: simple, and independent of the library.

use super::number;

/// Code, bits and lanes of an element type, as in DLPack.
pub type Kind = (u8, u8, u16);

/// A contiguous array in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub kind: Kind,
    pub shape: Vec<i64>,
    pub bytes: Vec<u8>,
}

/// Bytes of an element.
pub fn element_bytes((_, bits, lanes): Kind) -> usize {
    usize::from(bits) * usize::from(lanes) / 8
}

pub fn numel(shape: &[i64]) -> usize {
    shape.iter().product::<i64>() as usize
}

/// Offset of each element in elements, in row-major order of `shape`.
pub fn offsets(shape: &[i64], strides: &[i64]) -> Vec<i64> {
    let mut offsets = vec![0];
    for (size, stride) in shape.iter().zip(strides) {
        offsets = offsets
            .iter()
            .flat_map(|start| (0..*size).map(move |index| start + index * stride))
            .collect();
    }
    offsets
}

impl Array {
    /// `length` indices along `dim`, from `start`.
    pub fn narrow(&self, dim: usize, start: i64, length: i64) -> Array {
        let element = element_bytes(self.kind);
        let inner = numel(&self.shape[dim + 1..]) * element;
        let outer = numel(&self.shape[..dim]);
        let mut bytes = Vec::new();
        for row in 0..outer {
            let first = (row * self.shape[dim] as usize + start as usize) * inner;
            bytes.extend_from_slice(&self.bytes[first..first + length as usize * inner]);
        }
        let mut shape = self.shape.clone();
        shape[dim] = length;
        Array { kind: self.kind, shape, bytes }
    }

    /// Concatenates arrays along `dim`.
    pub fn join(parts: &[Array], dim: usize) -> Array {
        let mut shape = parts[0].shape.clone();
        shape[dim] = parts.iter().map(|part| part.shape[dim]).sum();
        let mut bytes = Vec::new();
        for row in 0..numel(&shape[..dim]) {
            for part in parts {
                let inner = numel(&part.shape[dim..]) * element_bytes(part.kind);
                bytes.extend_from_slice(&part.bytes[row * inner..(row + 1) * inner]);
            }
        }
        Array { kind: parts[0].kind, shape, bytes }
    }

    /// The sum ((a + b) + c) + ..., rounded after each step.
    pub fn sum(parts: &[&Array]) -> Array {
        let mut sum = parts[0].clone();
        for part in &parts[1..] {
            sum.bytes = number::add(sum.kind, &sum.bytes, &part.bytes);
        }
        sum
    }

    /// Are the numbers equal? All NaNs count as equal.
    pub fn is_same(&self, other: &Array) -> bool {
        self.kind == other.kind
            && self.shape == other.shape
            && number::is_same(self.kind, &self.bytes, &other.bytes)
    }
}

/// PyTorch's `chunk`: equal parts, rounded up, so that there may be fewer.
pub fn equal_parts(size: i64, parts: usize) -> Vec<i64> {
    if size == 0 {
        return vec![0; parts];
    }
    let most = (size + parts as i64 - 1) / parts as i64;
    let mut sizes = Vec::new();
    let mut left = size;
    while left > 0 {
        sizes.push(left.min(most));
        left -= most;
    }
    sizes
}

/// PyTorch's order of additions: the last tensor on the destination, then the others.
pub fn order_of_sum(places: &[i32], destination: i32) -> Option<Vec<usize>> {
    let root = places.iter().rposition(|place| *place == destination)?;
    let others = (0..places.len()).filter(|index| *index != root);
    Some(std::iter::once(root).chain(others).collect())
}

/// Groups of tensors that share a block, as PyTorch's `take_tensors` makes them.
pub fn groups(tensors: &[(Kind, usize)], limit: usize) -> Vec<Vec<usize>> {
    let mut open: Vec<(Kind, Vec<usize>, usize)> = Vec::new();
    let mut full = Vec::new();
    for (index, (kind, bytes)) in tensors.iter().enumerate() {
        let known = open.iter().position(|group| group.0 == *kind);
        let place = known.unwrap_or_else(|| {
            open.push((*kind, Vec::new(), 0));
            open.len() - 1
        });
        let (_, members, held) = &mut open[place];
        if *held > 0 && *held + bytes > limit {
            full.push(std::mem::take(members));
            *held = 0;
        }
        members.push(index);
        *held += bytes;
    }
    full.extend(open.into_iter().map(|group| group.1).filter(|group| !group.is_empty()));
    full
}

#[test]
fn parts_are_pytorchs() {
    assert_eq!(equal_parts(10, 4), [3, 3, 3, 1]);
    assert_eq!(equal_parts(9, 4), [3, 3, 3]);
    assert_eq!(equal_parts(5, 4), [2, 2, 1]);
    assert_eq!(equal_parts(2, 4), [1, 1]);
    assert_eq!(equal_parts(0, 3), [0, 0, 0]);
}

#[test]
fn parts_joined_are_the_whole() {
    let bytes = (0..60).collect();
    let whole = Array { kind: (0, 16, 1), shape: vec![2, 5, 3], bytes };
    for (dim, size) in [(0, 2), (1, 5), (2, 3)] {
        let mut start = 0;
        let parts: Vec<Array> = equal_parts(size, 2)
            .into_iter()
            .map(|length| {
                start += length;
                whole.narrow(dim, start - length, length)
            })
            .collect();
        assert_eq!(Array::join(&parts, dim), whole);
    }
    assert_eq!(whole.narrow(1, 4, 1).bytes, [24, 25, 26, 27, 28, 29, 54, 55, 56, 57, 58, 59]);
}

#[test]
fn groups_are_take_tensors() {
    let (a, b) = ((2, 32, 1), (0, 8, 1));
    let sizes = [(a, 4), (b, 1), (a, 8), (a, 30), (b, 1), (a, 1)];
    assert_eq!(groups(&sizes, 12), [vec![0, 2], vec![3], vec![5], vec![1, 4]]);
    assert_eq!(groups(&sizes, 1000), [vec![0, 2, 3, 5], vec![1, 4]]);
    assert_eq!(order_of_sum(&[0, 1, 0, 2], 0), Some(vec![2, 0, 1, 3]));
    assert_eq!(order_of_sum(&[0, 1], 2), None);
}
