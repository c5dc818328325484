//! The form of a copy: the addresses of elements in two memories, in as few dimensions as possible,
//! with the contiguous bytes as the innermost part.

use super::path::{Dim, Rows};
use crate::base::error::{Error, Result};
use crate::base::inline_vec::Few;
use crate::tensor::Tensor;

/// The most dimensions of elements that a kernel supports.
pub const MAX_ELEMENT_DIMS: usize = 25;

/// Dimensions that are stored without heap memory.
const INLINE_DIMS: usize = 4;

/// The elements of a view, and where each goes in another view.
pub struct Form {
    /// Address of the first byte to read.
    pub src: u64,
    /// Address where it is written: the lowest address that is written.
    pub dst: u64,
    /// Bytes that are contiguous in both memories.
    pub width: u64,
    /// (size, source stride, destination stride), in bytes. Destination strides rise: the densest
    /// dimension is the first.
    dims: Few<Dim, INLINE_DIMS>,
}

/// A dimension in bits, while a form is built.
#[derive(Clone, Copy, Default)]
struct Bits {
    size: i128,
    src: i128,
    dst: i128,
}

const PARTS_OF_BYTES: Error = Error::Invalid(
    "elements of less than a byte must be contiguous and fill whole bytes, in all tensors that a \
     collective reads and writes",
);

/// Converts bits to bytes.
fn bytes(bits: i128) -> Result<i64> {
    match bits.rem_euclid(8) {
        // The range of a view was checked.
        0 => i64::try_from(bits / 8).map_err(|_| PARTS_OF_BYTES),
        _ => Err(PARTS_OF_BYTES),
    }
}

impl Form {
    /// The form of a copy from `src` to `dst`, which have the same shape and type. `None`: no
    /// elements. Each element of `dst` must have a unique address.
    #[inline(never)]
    pub fn of(src: &Tensor, dst: &Tensor) -> Result<Option<Form>> {
        debug_assert!(src.shape() == dst.shape() && src.dtype == dst.dtype);
        if src.numel == 0 {
            return Ok(None);
        }
        if src.is_compact() && dst.is_compact() {
            let bytes = src.whole_bytes().ok_or(PARTS_OF_BYTES)?;
            return Ok(Some(Form::range(src.address, dst.address, bytes)));
        }
        let element = i128::from(src.dtype.element_bits());
        let mut found = Few::<Bits, INLINE_DIMS>::new();
        let (mut src_shift, mut dst_shift) = (0i128, 0i128);
        for ((size, from), to) in src.shape().iter().zip(src.strides()).zip(dst.strides()) {
            if *size == 1 {
                continue;
            }
            let size = i128::from(*size);
            let (mut from, mut to) = (i128::from(*from) * element, i128::from(*to) * element);
            if to < 0 {
                // Start at the other end, so that the stride is positive.
                src_shift += (size - 1) * from;
                dst_shift += (size - 1) * to;
                (from, to) = (-from, -to);
            }
            found.push(Bits { size, src: from, dst: to })?;
        }
        found.sort_unstable_by_key(|dim| (dim.dst, dim.src));
        let (mut width, mut kept) = (element, 0);
        for index in 0..found.len() {
            let dim = found[index];
            if kept == 0 && dim.src == width && dim.dst == width {
                width *= dim.size;
            } else if kept > 0 && follows(&found[kept - 1], &dim) {
                found[kept - 1].size *= dim.size;
            } else {
                found[kept] = dim;
                kept += 1;
            }
        }
        let mut form = Form::range(
            src.address.wrapping_add_signed(bytes(src_shift)?),
            dst.address.wrapping_add_signed(bytes(dst_shift)?),
            bytes(width)? as u64,
        );
        for dim in &found[..kept] {
            form.dims.push((dim.size as u64, bytes(dim.src)?, bytes(dim.dst)?))?;
        }
        Ok(Some(form))
    }

    /// The form of contiguous bytes.
    pub fn range(src: u64, dst: u64, bytes: u64) -> Form {
        Form { src, dst, width: bytes, dims: Few::new() }
    }

    /// The form of rows of bytes.
    pub fn of_rows(rows: &Rows) -> Result<Form> {
        let mut form = Form::range(rows.src.address, rows.dst.address, rows.width);
        if rows.rows > 1 {
            form.dims.push((rows.rows, rows.src_pitch as i64, rows.dst_pitch as i64))?;
        }
        Ok(form)
    }

    /// The dimensions around the contiguous bytes, the densest in the destination first.
    pub fn dims(&self) -> &[Dim] {
        &self.dims
    }

    /// A view of the whole form.
    fn view(&self) -> View<'_> {
        View { src: self.src, dst: self.dst, width: self.width, dims: &self.dims }
    }

    /// Is it contiguous in both memories?
    pub fn is_range(&self) -> bool {
        self.dims.is_empty()
    }

    /// Are source and destination of every element the same?
    pub fn is_identity(&self) -> bool {
        self.src == self.dst && self.dims().iter().all(|dim| dim.1 == dim.2)
    }

    /// The first byte that is read, and the bytes up to the last one.
    pub fn read(&self) -> (u64, u64) {
        self.reach(self.src, |dim| dim.1)
    }

    /// The first byte that is written, and the bytes up to the last one.
    pub fn written(&self) -> (u64, u64) {
        self.reach(self.dst, |dim| dim.2)
    }

    fn reach(&self, start: u64, stride: impl Fn(&Dim) -> i64) -> (u64, u64) {
        let (mut first, mut bytes) = (start, self.width);
        for dim in self.dims() {
            let all = stride(dim).saturating_mul(dim.0 as i64 - 1);
            first = first.wrapping_add_signed(all.min(0));
            bytes = bytes.saturating_add(all.unsigned_abs());
        }
        (first, bytes)
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> u64 {
        self.dims().iter().map(|dim| dim.0).product::<u64>() * self.width
    }

    /// The form as one set of rows: see [`View::rows`].
    pub fn rows(&self) -> Option<(u64, u64, u64)> {
        self.view().rows()
    }

    /// The form that packs: from the source to contiguous memory at `to`, in destination order.
    pub fn packing(&self, to: u64) -> Result<Form> {
        self.joined(self.src, to, |dim, packed| (dim.0, dim.1, packed))
    }

    /// The form that unpacks: from contiguous memory at `from` to the destination.
    pub fn unpacking(&self, from: u64) -> Result<Form> {
        self.joined(from, self.dst, |dim, packed| (dim.0, packed, dim.2))
    }

    /// A form with changed dimensions, merged where possible. `change` gets each dimension and its
    /// packed stride in bytes.
    fn joined(&self, src: u64, dst: u64, change: impl Fn(&Dim, i64) -> Dim) -> Result<Form> {
        let mut joined = Form::range(src, dst, self.width);
        let mut packed = self.width as i64;
        for dim in self.dims() {
            let dim = change(dim, packed);
            packed = packed.saturating_mul(dim.0 as i64);
            let is_next = |stride: i64| stride >= 0 && stride as u64 == joined.width;
            if joined.is_range() && is_next(dim.1) && is_next(dim.2) {
                joined.width *= dim.0;
            } else {
                joined.dims.push(dim)?;
            }
        }
        Ok(joined)
    }

    /// The form in elements of 1, 2, 4, 8 or 16 bytes: the largest that all addresses and strides
    /// are multiples of. `None`: too many dimensions for a kernel.
    #[inline(never)]
    pub fn elements(&self) -> Result<Option<Elements>> {
        let all = self.dims().iter().fold(self.src | self.dst | self.width, |all, dim| {
            all | dim.1.unsigned_abs() | dim.2.unsigned_abs()
        });
        let element = 1u64 << all.trailing_zeros().min(4);
        let inner = (self.width / element, element as i64, element as i64);
        let inner = (inner.0 > 1).then_some(inner);
        let mut elements = Elements { element, dims: Few::new() };
        elements.dims.fill(inner.into_iter().chain(self.dims().iter().copied()))?;
        Ok(Some(elements).filter(|elements| elements.dims.len() <= MAX_ELEMENT_DIMS))
    }

    /// Calls `body` with parts that are rows of constant pitch, or single rows.
    pub fn for_each_rows(&self, body: &mut dyn FnMut(View<'_>) -> Result<()>) -> Result<()> {
        self.view().for_each_rows(body)
    }

    /// Number of calls that [`Form::for_each_rows`] makes to `body`.
    pub fn num_rows(&self) -> u64 {
        let first = View { dims: &self.dims[..self.dims.len().min(1)], ..self.view() };
        let inner = usize::from(first.rows().is_some() && !self.is_range());
        self.dims[inner..].iter().fold(1, |calls, dim| calls.saturating_mul(dim.0))
    }
}

/// A part of a form, with some of its dimensions.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Address of the first byte to read.
    pub src: u64,
    /// Address where it is written.
    pub dst: u64,
    /// Bytes that are contiguous in both memories.
    pub width: u64,
    dims: &'a [Dim],
}

impl View<'_> {
    /// (number of rows, source pitch, destination pitch), if each pitch is at least the length of a
    /// row.
    pub fn rows(&self) -> Option<(u64, u64, u64)> {
        match *self.dims {
            [] => Some((1, self.width, self.width)),
            [(rows, src, dst)] => {
                let is_apart = |pitch: i64| pitch >= 0 && pitch as u64 >= self.width;
                (is_apart(src) && is_apart(dst)).then_some((rows, src as u64, dst as u64))
            }
            _ => None,
        }
    }

    fn for_each_rows(self, body: &mut dyn FnMut(View<'_>) -> Result<()>) -> Result<()> {
        // Iterates over the last dimension, because the others are denser.
        let ((size, src, dst), dims) = match self.dims.split_last() {
            Some((last, dims)) if self.rows().is_none() => (*last, dims),
            _ => return body(self),
        };
        let mut part = View { dims, ..self };
        for _ in 0..size {
            part.for_each_rows(body)?;
            part.src = part.src.wrapping_add_signed(src);
            part.dst = part.dst.wrapping_add_signed(dst);
        }
        Ok(())
    }
}

/// A form in elements.
pub struct Elements {
    /// Bytes of an element.
    pub element: u64,
    dims: Few<Dim, { INLINE_DIMS + 1 }>,
}

impl Elements {
    /// The dimensions.
    pub fn dims(&self) -> &[Dim] {
        &self.dims
    }
}

/// Can one dimension be merged with the next outer one, in both memories?
fn follows(inner: &Bits, outer: &Bits) -> bool {
    inner.size * inner.src == outer.src && inner.size * inner.dst == outer.dst
}

#[cfg(test)]
#[path = "form_tests.rs"]
mod tests;
