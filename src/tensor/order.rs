//! The order in which PyTorch counts the elements of a tensor. [`Tensor::ordered`] is the order of
//! TensorIterator for one operand. [`Tensor::ordered_with`] is that of `CUDA_tensor_apply2`, which
//! `bernoulli` with a tensor uses.
//!
//! The number of an element selects its random number. So the order must equal PyTorch's exactly.

use super::{MAX_DIMS, Tensor, compact};
use crate::base::error::{Error, Result};

/// The most dimensions that may remain after dimensions are merged, as in PyTorch.
pub const MAX_ORDERED: usize = 25;

/// The bound up to which PyTorch computes with 32 bits.
const MOST: i128 = i32::MAX as i128;

/// A dimension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dim {
    /// Number of elements.
    pub size: i64,
    /// Distance of neighbours, in elements.
    pub stride: i64,
}

/// A tensor whose elements are counted along the first dimension, then along the second, and so on.
#[derive(Clone, Copy, Debug)]
pub struct Ordered {
    /// Address of the element whose indices are all 0.
    pub address: u64,
    /// Bytes of an element.
    pub element_bytes: u64,
    len: usize,
    dims: [Dim; MAX_ORDERED],
}

/// Dimensions while they are sorted.
struct Dims {
    len: usize,
    dims: [Dim; MAX_DIMS],
}

impl Dims {
    fn of(shape: &[i64], strides: &[i64]) -> Dims {
        let mut dims = [Dim::default(); MAX_DIMS];
        for (dim, (size, stride)) in dims.iter_mut().zip(shape.iter().zip(strides)) {
            *dim = Dim { size: *size, stride: *stride };
        }
        Dims { len: shape.len(), dims }
    }

    fn as_slice(&self) -> &[Dim] {
        &self.dims[..self.len]
    }

    fn as_mut_slice(&mut self) -> &mut [Dim] {
        &mut self.dims[..self.len]
    }

    /// Does each address between the first and the last element have exactly one element?
    fn is_dense(&self) -> bool {
        let mut sorted = [Dim::default(); MAX_DIMS];
        sorted[..self.len].copy_from_slice(self.as_slice());
        let sorted = &mut sorted[..self.len];
        sorted.sort_unstable_by_key(|dim| (dim.size < 2, dim.stride));
        let mut expected = 1i64;
        sorted.iter().filter(|dim| dim.size >= 2).all(|dim| {
            let fits = dim.stride == expected;
            expected = expected.saturating_mul(dim.size);
            fits
        })
    }

    /// Merges adjacent dimensions that one stride can describe.
    fn coalesce(&mut self) {
        if self.len <= 1 {
            return;
        }
        let dims = &mut self.dims[..self.len];
        let mut last = 0;
        for index in 1..dims.len() {
            let (before, next) = (dims[last], dims[index]);
            let is_one = before.size == 1
                || next.size == 1
                || before.size.checked_mul(before.stride) == Some(next.stride);
            if is_one {
                if before.size == 1 {
                    dims[last].stride = next.stride;
                }
                dims[last].size *= next.size;
            } else {
                last += 1;
                dims[last] = next;
            }
        }
        self.len = last + 1;
    }
}

/// Indices of the dimensions, the smallest stride first. Not every pair can be compared, so that
/// the result depends on the algorithm: this is PyTorch's insertion sort.
fn sorted(shape: &[i64], strides: &[i64]) -> [usize; MAX_DIMS] {
    let len = shape.len();
    let mut order: [usize; MAX_DIMS] = std::array::from_fn(|index| index);
    order[..len].reverse();
    for index in 1..len {
        let mut moving = index;
        for place in (0..index).rev() {
            let (before, after) = (order[place], order[moving]);
            if strides[before] == 0 || strides[after] == 0 {
                continue;
            }
            if strides[before] < strides[after] {
                break;
            }
            if strides[before] > strides[after] || shape[before] > shape[after] {
                order.swap(place, moving);
                moving = place;
            }
        }
    }
    order
}

/// Strides of the copy that PyTorch makes on another device or in another type. A dense tensor
/// keeps its strides. Otherwise the copy is dense in the same order, with repeated elements written
/// out.
#[inline(never)]
pub fn strides_of_copy(shape: &[i64], strides: &[i64], copy: &mut [i64]) {
    copy.copy_from_slice(strides);
    if Dims::of(shape, strides).is_dense() {
        return;
    }
    let mut stride = 1i64;
    for index in &sorted(shape, strides)[..shape.len()] {
        copy[*index] = stride;
        stride = stride.saturating_mul(shape[*index]);
    }
}

const NEGATIVE: Error = Error::Invalid(
    "strides has a negative number: PyTorch has no order for such a tensor; pass the view that \
     begins at the other end",
);
const OVERLAPS: Error = Error::Invalid(
    "two elements of the tensor have one address, and it is to be written: give it strides that \
     keep them apart",
);
const PARTS_OF_BYTES: Error = Error::Invalid(
    "elements that are no whole number of bytes cannot be counted one by one; pass a type of 8 \
     bits or more",
);
const TOO_MANY: Error = Error::Invalid(
    "the tensor has more than 25 dimensions that cannot be merged: PyTorch supports no more",
);

impl Tensor {
    fn require_nonnegative_strides(&self) -> Result<()> {
        let falls = |(size, stride): (&i64, &i64)| *size > 1 && *stride < 0;
        // Without elements the order does not matter.
        if self.numel == 0 {
            return Ok(());
        }
        if self.shape().iter().zip(self.strides()).any(falls) { Err(NEGATIVE) } else { Ok(()) }
    }

    /// Bytes of an element. An error unless each element can be written separately.
    pub fn require_writable(&self) -> Result<u64> {
        let element_bytes = self.dtype.element_bytes().ok_or(PARTS_OF_BYTES)?;
        self.require_nonnegative_strides()?;
        if self.has_overlaps() {
            return Err(OVERLAPS);
        }
        Ok(element_bytes)
    }

    /// Do two of its elements share an address? False if the search takes too long.
    pub fn has_overlaps(&self) -> bool {
        self.numel > 1 && overlaps(self.shape(), self.strides())
    }

    /// Its elements in the order of TensorIterator for one operand, which is written.
    pub fn ordered(&self) -> Result<Ordered> {
        let element_bytes = self.require_writable()?;
        let mut dims = Dims::of(self.shape(), self.strides());
        // A dense tensor is counted in memory order, whatever its dimensions are.
        if self.is_compact() || dims.is_dense() {
            let numel = self.numel as i64;
            dims.dims[0] = Dim { size: numel, stride: 1 };
            dims.len = self.shape().len().min(1);
        } else {
            let order = sorted(self.shape(), self.strides());
            for (to, index) in dims.as_mut_slice().iter_mut().zip(order) {
                *to = Dim { size: self.shape()[index], stride: self.strides()[index] };
            }
            dims.coalesce();
        }
        Ordered::of(self.address, element_bytes, dims.as_slice().iter().copied())
    }

    /// This tensor, and another of the same shape that is read, in the order of
    /// `CUDA_tensor_apply2`. `converted`: PyTorch would first copy the other tensor into another
    /// type.
    pub fn ordered_with(&self, other: &Tensor, converted: bool) -> Result<(Ordered, Ordered)> {
        let element_bytes = self.require_writable()?;
        let other_bytes = other.dtype.element_bytes().ok_or(PARTS_OF_BYTES)?;
        if self.shape() != other.shape() {
            return Err(Error::Invalid(
                "p has another shape than the tensor; pass one of the same shape, with strides of \
                 0 where it repeats",
            ));
        }
        other.require_nonnegative_strides()?;
        if self.numel == 0 {
            let none = |tensor: &Tensor, bytes| {
                Ordered::of(tensor.address, bytes, [Dim { size: 0, stride: 1 }].into_iter())
            };
            return Ok((none(self, element_bytes)?, none(other, other_bytes)?));
        }
        let shape = self.shape();
        let len = shape.len();
        // The strides by which the dimensions are sorted: those of the tensors, or of copies of
        // them.
        let (mut own, mut others) = ([0i64; MAX_DIMS], [0i64; MAX_DIMS]);
        own[..len].copy_from_slice(self.strides());
        others[..len].copy_from_slice(other.strides());
        if may_overlap(shape, self.strides()) {
            compact(shape, &mut own);
        }
        if converted {
            strides_of_copy(shape, other.strides(), &mut others[..len]);
        }
        let mut order: [usize; MAX_DIMS] = std::array::from_fn(|index| index);
        for first in 0..len.saturating_sub(1) {
            for second in first + 1..len {
                let (i, j) = (order[first], order[second]);
                if shape[i] == 1 || shape[j] == 1 {
                    continue;
                }
                let rises = own[i] < own[j] || others[i] < others[j];
                let falls = own[i] > own[j] || others[i] > others[j];
                if rises && !falls {
                    order.swap(first, second);
                }
            }
        }
        let along = |tensor: &Tensor, bytes| {
            let fastest_first = order[..len].iter().rev();
            let dim = |index: &usize| Dim { size: shape[*index], stride: tensor.strides()[*index] };
            let mut dims = Dims { len: 0, dims: [Dim::default(); MAX_DIMS] };
            for dim in fastest_first.map(dim).filter(|dim| dim.size != 1) {
                dims.dims[dims.len] = dim;
                dims.len += 1;
            }
            dims.coalesce();
            Ordered::of(tensor.address, bytes, dims.as_slice().iter().copied())
        };
        Ok((along(self, element_bytes)?, along(other, other_bytes)?))
    }
}

impl Ordered {
    fn of(
        address: u64,
        element_bytes: u64,
        found: impl ExactSizeIterator<Item = Dim>,
    ) -> Result<Ordered> {
        let len = found.len();
        if len > MAX_ORDERED {
            return Err(TOO_MANY);
        }
        let mut dims = [Dim::default(); MAX_ORDERED];
        for (to, dim) in dims.iter_mut().zip(found) {
            *to = dim;
        }
        Ok(Ordered { address, element_bytes, len, dims })
    }

    /// Its dimensions, the fastest first; empty for a single element.
    pub fn dims(&self) -> &[Dim] {
        &self.dims[..self.len]
    }

    /// Number of elements.
    pub fn numel(&self) -> u64 {
        self.dims().iter().map(|dim| dim.size as u64).product()
    }

    /// Does PyTorch compute the addresses with 32 bits?
    pub fn fits_32_bits(&self) -> bool {
        let bytes = i128::from(self.element_bytes);
        let reach = |dim: &Dim| i128::from(dim.size - 1) * i128::from(dim.stride) * bytes;
        i128::from(self.numel()) <= MOST && self.dims().iter().map(reach).sum::<i128>() < MOST
    }

    /// Calls `body` with parts that 32 bits can address, in PyTorch's order. PyTorch halves the
    /// dimension with the largest extent until each part fits.
    pub fn for_each_part(&self, body: &mut dyn FnMut(&Ordered) -> Result<()>) -> Result<()> {
        let mut rest = *self;
        while !rest.fits_32_bits() {
            rest.split().for_each_part(body)?;
        }
        body(&rest)
    }

    /// Splits off the first half.
    fn split(&mut self) -> Ordered {
        let reach = |dim: &Dim| i128::from(dim.size - 1) * i128::from(dim.stride);
        // `max_by_key` returns the last maximum, like PyTorch.
        let furthest = (0..self.len).max_by_key(|index| reach(&self.dims[*index])).unwrap_or(0);
        let size = self.dims[furthest].size;
        let mut first = *self;
        first.narrow(furthest, 0, size / 2);
        self.narrow(furthest, size / 2, size - size / 2);
        first
    }

    fn narrow(&mut self, index: usize, start: i64, size: i64) {
        let dim = &mut self.dims[index];
        dim.size = size;
        // No overflow: the address is inside the tensor, whose range was checked.
        let bytes = (start as u64).wrapping_mul(dim.stride as u64).wrapping_mul(self.element_bytes);
        self.address = self.address.wrapping_add(bytes);
        if size == 1 {
            let mut dims = Dims { len: self.len, dims: [Dim::default(); MAX_DIMS] };
            dims.as_mut_slice().copy_from_slice(self.dims());
            dims.coalesce();
            self.len = dims.len;
            self.dims[..dims.len].copy_from_slice(dims.as_slice());
        }
    }
}

/// The dimensions with more than one element, the smallest stride first.
fn by_stride(shape: &[i64], strides: &[i64]) -> Dims {
    let mut dims = Dims { len: 0, dims: [Dim::default(); MAX_DIMS] };
    for (size, stride) in shape.iter().zip(strides).filter(|(size, _)| **size > 1) {
        dims.dims[dims.len] = Dim { size: *size, stride: stride.saturating_abs() };
        dims.len += 1;
    }
    dims.as_mut_slice().sort_unstable_by_key(|dim| dim.stride);
    dims
}

/// May elements share an address? False if the strides alone rule it out.
fn may_overlap(shape: &[i64], strides: &[i64]) -> bool {
    let mut reach = 0i128;
    by_stride(shape, strides).as_slice().iter().any(|dim| {
        let inside = i128::from(dim.stride) <= reach;
        reach += i128::from(dim.size - 1) * i128::from(dim.stride);
        inside
    })
}

/// The most steps of the search for shared addresses. Beyond them it reports none.
const MOST_STEPS: u32 = 10_000;

/// Do two elements share an address? If the search takes too long the answer is no. PyTorch detects
/// only strides of 0 in that case.
fn overlaps(shape: &[i64], strides: &[i64]) -> bool {
    if !may_overlap(shape, strides) {
        return false;
    }
    let dims = by_stride(shape, strides);
    // Two elements share an address if a combination of strides, not all zero times, sums to 0.
    let mut steps = 0;
    sum_is_reached(dims.as_slice(), 0, false, &mut steps)
}

/// Is `sum` a combination of these strides, each times at most `size - 1` in either direction? The
/// empty combination counts only if `is_used`: another stride is used already.
fn sum_is_reached(dims: &[Dim], sum: i128, is_used: bool, steps: &mut u32) -> bool {
    let Some((dim, lower)) = dims.split_last() else { return sum == 0 && is_used };
    *steps += 1;
    if *steps > MOST_STEPS {
        return false;
    }
    let (most, stride) = (i128::from(dim.size - 1), i128::from(dim.stride));
    if stride == 0 {
        return true;
    }
    let rest: i128 =
        lower.iter().map(|dim| i128::from(dim.size - 1) * i128::from(dim.stride)).sum();
    // The range within which the remaining strides can compensate.
    let least = (sum - rest).div_euclid(stride).max(-most);
    let last = (sum + rest).div_euclid(stride).min(most);
    // Until a stride is used, both signs are equivalent.
    let least = if is_used { least } else { least.max(0) };
    for times in least..=last {
        if sum_is_reached(lower, sum - times * stride, is_used || times != 0, steps) {
            return true;
        }
        if *steps > MOST_STEPS {
            break;
        }
    }
    false
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
