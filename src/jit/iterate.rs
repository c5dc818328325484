//! Iteration over several tensors: broadcasting, order and merging of dimensions like PyTorch, and
//! parts for which 32-bit offsets suffice.

use super::kind::Kind;
use super::rows;
use super::text::{Layout, MAX_ORDERED_DIMS, MAX_TENSORS, VECTOR_BYTES};
use crate::base::error::{Error, Result};
use crate::base::place::try_box_at;
use crate::tensor::{MAX_DIMS, Tensor};
use std::mem::MaybeUninit;

/// The most operands: inputs and outputs.
pub const MAX_OPERANDS: usize = 2 * MAX_TENSORS;

/// The bound of 32-bit computation, as in PyTorch.
const MAX: i128 = i32::MAX as i128;

/// A dimension, with the stride of each operand in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dim {
    /// Number of indices.
    pub size: u64,
    /// Strides of the inputs, then of the outputs.
    pub strides: [i64; MAX_OPERANDS],
}

const NONE: Dim = Dim { size: 1, strides: [0; MAX_OPERANDS] };

/// The operands of a call, and the dimensions over which it iterates.
#[derive(Clone, Copy)]
pub struct Iteration {
    /// Address of the first element of each operand.
    pub addresses: [u64; MAX_OPERANDS],
    /// Bytes of an element of each operand.
    sizes: [u64; MAX_OPERANDS],
    operands: usize,
    inputs: usize,
    /// The first `len` are initialised; to initialise all would cost more than the rest.
    dims: [MaybeUninit<Dim>; MAX_ORDERED_DIMS],
    len: usize,
}

const NO_ROOM: Error = Error::OutOfHostMemory("the parts of a call");
const TOO_MANY: Error = Error::Invalid(
    "the tensors have more than 25 dimensions that cannot be merged: PyTorch supports no more",
);
const MISMATCH: Error = Error::Invalid(
    "the shapes of the inputs do not broadcast: from the last dimension on, two sizes must be \
     equal, or one of them 1",
);
const WRONG_SHAPE: Error = Error::Invalid(
    "an output has another shape than the inputs have together: pass one of the broadcast shape",
);
const NEGATIVE_STRIDE: Error = Error::Invalid(
    "strides has a negative number: PyTorch has no order for such a tensor; pass the view that \
     begins at the other end",
);
const PARTIAL: Error = Error::Invalid(
    "an output shares part of its memory with an input: what is written there would be read; pass \
     the whole tensor, or a copy",
);
const SHARED: Error = Error::Invalid("two outputs share memory: give each its own");
const MISALIGNED: Error =
    Error::Invalid("the address of a tensor's elements must be a multiple of their size");

/// The broadcast shape of the inputs.
fn broadcast<'a>(inputs: &[Tensor], shape: &'a mut [i64; MAX_DIMS]) -> Result<&'a [i64]> {
    let ndim = inputs.iter().map(|input| input.shape().len()).max().unwrap_or(0);
    let shape = &mut shape[..ndim];
    shape.fill(1);
    for input in inputs {
        let start = ndim - input.shape().len();
        for (to, size) in shape[start..].iter_mut().zip(input.shape()) {
            if *to == 1 {
                *to = *size;
            } else if *size != 1 && size != to {
                return Err(MISMATCH);
            }
        }
    }
    Ok(shape)
}

/// Does each address between the first and the last element have exactly one element?
fn is_dense(tensor: &Tensor) -> bool {
    let (first, end) = match tensor.range() {
        Ok(range) => range,
        Err(_) => return false,
    };
    let bytes = tensor.dtype.element_bytes().unwrap_or(0);
    // The bytes match the number of elements. Outputs have no overlaps.
    end - first == tensor.numel.saturating_mul(bytes) && !repeats(tensor)
}

fn repeats(tensor: &Tensor) -> bool {
    tensor.shape().iter().zip(tensor.strides()).any(|(size, stride)| *size > 1 && *stride == 0)
}

/// An error if an output partly overlaps another operand. Like PyTorch, it checks dense tensors
/// only.
fn check_overlap(inputs: &[Tensor], outputs: &[Tensor]) -> Result<()> {
    for (index, output) in outputs.iter().enumerate() {
        let (first, end) = output.range()?;
        let meets = |other: &Tensor| -> Result<bool> {
            let (start, stop) = other.range()?;
            Ok(first < stop && start < end)
        };
        for other in &outputs[..index] {
            if meets(other)? && is_dense(output) && is_dense(other) {
                return Err(SHARED);
            }
        }
        for input in inputs {
            if !meets(input)? || !is_dense(output) || !is_dense(input) {
                continue;
            }
            let is_whole = input.range()? == (first, end) && is_same(input, output);
            if !is_whole {
                return Err(PARTIAL);
            }
        }
    }
    Ok(())
}

fn is_same(a: &Tensor, b: &Tensor) -> bool {
    let of = |tensor: &Tensor| tensor.dtype.element_bytes();
    let mut strides = a.strides().iter().zip(b.strides()).zip(a.shape());
    a.shape() == b.shape() && of(a) == of(b) && strides.all(|((a, b), size)| *size == 1 || a == b)
}

impl Iteration {
    /// An iteration without operands.
    pub fn new() -> Iteration {
        Iteration {
            addresses: [0; MAX_OPERANDS],
            sizes: [1; MAX_OPERANDS],
            operands: 0,
            inputs: 0,
            dims: [const { MaybeUninit::uninit() }; MAX_ORDERED_DIMS],
            len: 0,
        }
    }

    /// An iteration without operands, in heap memory.
    pub fn boxed() -> Result<Box<Iteration>> {
        let write = |place: *mut Iteration| {
            // SAFETY: `place` has space for it.
            unsafe { place.write(Iteration::new()) };
            Ok(())
        };
        // SAFETY: `write` initialises all of it.
        unsafe { try_box_at("the dimensions of a call", write) }
    }

    /// Checks the shapes, and sorts the dimensions. `false`: there are no elements.
    pub fn set(&mut self, inputs: &[Tensor], outputs: &[Tensor]) -> Result<bool> {
        let mut room = [0; MAX_DIMS];
        let shape = broadcast(inputs, &mut room)?;
        for output in outputs {
            if output.shape() != shape {
                return Err(WRONG_SHAPE);
            }
            output.require_writable()?;
        }
        if outputs.iter().any(|output| output.numel == 0) {
            return Ok(false);
        }
        check_overlap(inputs, outputs)?;
        (self.operands, self.inputs) = (inputs.len() + outputs.len(), inputs.len());
        for (index, tensor) in inputs.iter().chain(outputs).enumerate() {
            let bytes = tensor.dtype.element_bytes().unwrap_or(1);
            self.addresses[index] = tensor.address;
            self.sizes[index] = bytes;
            if !tensor.address.is_multiple_of(bytes) {
                return Err(MISALIGNED);
            }
            let mut dims = tensor.shape().iter().zip(tensor.strides());
            if dims.any(|(size, stride)| *size > 1 && *stride < 0) {
                return Err(NEGATIVE_STRIDE);
            }
        }
        self.order(shape, inputs, outputs)?;
        Ok(true)
    }

    fn push(&mut self, dim: Dim) -> Result<()> {
        self.dims.get_mut(self.len).ok_or(TOO_MANY)?.write(dim);
        self.len += 1;
        Ok(())
    }

    /// Sorts the dimensions, the fastest first, and merges adjacent ones.
    fn order(&mut self, shape: &[i64], inputs: &[Tensor], outputs: &[Tensor]) -> Result<()> {
        // The common case: all operands are contiguous and need no order.
        let is_flat = |tensor: &Tensor| tensor.shape() == shape && tensor.is_compact();
        if inputs.iter().chain(outputs).all(is_flat) {
            let mut dim = Dim { size: outputs.first().map_or(1, |output| output.numel), ..NONE };
            for (to, bytes) in dim.strides.iter_mut().zip(self.sizes).take(self.operands) {
                *to = bytes as i64;
            }
            return self.push(dim);
        }
        let sizes = self.sizes;
        let dim = |place: u8| {
            let mut dim = Dim { size: shape[usize::from(place)] as u64, ..NONE };
            for (index, tensor) in inputs.iter().chain(outputs).enumerate() {
                let lacking = shape.len() - tensor.shape().len();
                let Some(own) = usize::from(place).checked_sub(lacking) else { continue };
                if tensor.shape()[own] != 1 {
                    // No overflow: the range of the tensor was checked.
                    dim.strides[index] = tensor.strides()[own].wrapping_mul(sizes[index] as i64);
                }
            }
            dim
        };
        let mut places = [0; MAX_DIMS];
        let mut len = 0;
        for (place, _) in shape.iter().enumerate().rev().filter(|(_, size)| **size != 1) {
            places[len] = place as u8;
            len += 1;
        }
        let places = &mut places[..len];
        for index in 1..len {
            let (mut moving, of_moving) = (index, dim(places[index]));
            for place in (0..index).rev() {
                match self.compare(&dim(places[place]), &of_moving) {
                    std::cmp::Ordering::Greater => {
                        places.swap(place, moving);
                        moving = place;
                    }
                    std::cmp::Ordering::Less => break,
                    std::cmp::Ordering::Equal => (),
                }
            }
        }
        let operands = self.operands;
        for place in places {
            let dim = dim(*place);
            let joins = |last: &Dim| {
                let pairs = last.strides.iter().zip(&dim.strides).take(operands);
                let size = last.size as i64;
                pairs.clone().all(|(inner, outer)| inner.checked_mul(size) == Some(*outer))
            };
            match self.len.checked_sub(1).map(|last| self.dim_mut(last)) {
                Some(last) if joins(last) => last.size *= dim.size,
                _ => self.push(dim)?,
            }
        }
        Ok(())
    }

    /// Compares two dimensions by the first operand that decides, outputs first. The greater is the
    /// outer dimension.
    fn compare(&self, before: &Dim, after: &Dim) -> std::cmp::Ordering {
        let order = (self.inputs..self.operands).chain(0..self.inputs);
        for index in order {
            let (first, second) = (before.strides[index], after.strides[index]);
            if first == 0 || second == 0 {
                continue;
            }
            if first != second {
                return first.cmp(&second);
            }
            if before.size > after.size {
                return std::cmp::Ordering::Greater;
            }
        }
        std::cmp::Ordering::Equal
    }

    /// Its dimensions, the fastest first.
    pub fn dims(&self) -> &[Dim] {
        let first = self.dims.as_ptr().cast();
        // SAFETY: the first `len` entries are initialised.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }

    fn dim_mut(&mut self, index: usize) -> &mut Dim {
        let place = &mut self.dims[..self.len][index];
        // SAFETY: the index is below `len`.
        unsafe { place.assume_init_mut() }
    }

    /// Number of elements.
    pub fn numel(&self) -> u64 {
        self.dims().iter().map(|dim| dim.size).product()
    }

    /// Bytes of an element of an operand.
    pub fn element_bytes(&self, index: usize) -> u64 {
        self.sizes[index]
    }

    /// Number of inputs and outputs.
    pub fn operands(&self) -> usize {
        self.operands
    }

    /// The memory layout of the operands.
    pub fn layout(&self, kinds: &[Kind], common: Kind) -> Layout {
        let [first, rest @ ..] = self.dims() else { return self.flat(kinds, common, u8::MAX) };
        let mut singles = 0u8;
        for index in 0..self.operands {
            let stride = first.strides[index];
            if index < self.inputs && self.dims().iter().all(|dim| dim.strides[index] == 0) {
                singles |= 1 << index;
            } else if !rest.is_empty() || stride != self.sizes[index] as i64 {
                return rows::layout(self, kinds, common);
            }
        }
        self.flat(kinds, common, singles)
    }

    fn flat(&self, kinds: &[Kind], common: Kind, singles: u8) -> Layout {
        let all = (1u16 << self.inputs) - 1;
        let singles = singles & all as u8;
        let of_inputs = kinds.iter().enumerate().filter(|(i, _)| singles >> i & 1 == 0);
        let largest = of_inputs.map(|(_, kind)| kind.bytes()).chain([common.bytes()]).max();
        let mut width = VECTOR_BYTES / largest.unwrap_or(VECTOR_BYTES);
        for index in 0..self.operands {
            let is_single = index < self.inputs && singles >> index & 1 == 1;
            while !is_single && !self.addresses[index].is_multiple_of(width * self.sizes[index]) {
                width /= 2;
            }
        }
        Layout::Flat { width: width as u8, singles }
    }

    /// Are 32-bit offsets sufficient?
    pub fn fits_32_bits(&self) -> bool {
        let reach = |index: usize| {
            let each = |dim: &Dim| i128::from(dim.size - 1) * i128::from(dim.strides[index]);
            self.dims().iter().map(each).sum::<i128>()
        };
        i128::from(self.numel()) <= MAX && (0..self.operands).all(|index| reach(index) < MAX)
    }

    /// Calls `body` with parts for which 32-bit offsets suffice.
    pub fn for_each_part(&self, body: &mut dyn FnMut(&Iteration) -> Result<()>) -> Result<()> {
        // In heap memory, because an iteration is too large for the stack. The next part is the
        // last.
        let mut parts = Vec::new();
        parts.try_reserve(2).map_err(|_| NO_ROOM)?;
        parts.extend_from_slice(std::slice::from_ref(self));
        while let Some(part) = parts.last() {
            if part.fits_32_bits() {
                body(part)?;
                parts.truncate(parts.len() - 1);
                continue;
            }
            parts.try_reserve(1).map_err(|_| NO_ROOM)?;
            parts.extend_from_within(parts.len() - 1..);
            if let [.., rest, first] = &mut parts[..] {
                rest.split(first);
            }
        }
        Ok(())
    }

    /// Halves the dimension with the largest extent. `first` is a copy that becomes the first half.
    fn split(&mut self, first: &mut Iteration) {
        let reach = |dim: &Dim| {
            let furthest = dim.strides[..self.operands].iter().max().copied().unwrap_or(0);
            i128::from(dim.size - 1) * i128::from(furthest.max(1))
        };
        let dims = self.dims().iter().enumerate();
        let furthest = dims.max_by_key(|(_, dim)| reach(dim)).map_or(0, |(index, _)| index);
        let half = self.dims()[furthest].size / 2;
        first.dim_mut(furthest).size = half;
        self.dim_mut(furthest).size -= half;
        for index in 0..self.operands {
            let bytes = (half as i64).wrapping_mul(self.dims()[furthest].strides[index]);
            self.addresses[index] = self.addresses[index].wrapping_add(bytes as u64);
        }
    }
}

#[cfg(test)]
#[path = "iterate_tests.rs"]
mod tests;
