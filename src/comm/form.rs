//! How the elements of one view lie in two memories: in as few dimensions as they can be told by, the
//! bytes that lie side by side in both first.

use super::path::{Dim, Rows};
use crate::error::{Error, Result};
use crate::few::Few;
use crate::tensor::{MAX_DIMS, Tensor};
use std::mem::MaybeUninit;

/// The most dimensions of elements that a kernel takes.
pub const MOST_ELEMENT_DIMS: usize = 25;

/// Elements of a view, and where each goes in another.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The first byte that is read.
    pub src: u64,
    /// Where it goes: the lowest address that is written.
    pub dst: u64,
    /// Bytes that lie side by side in both.
    pub width: u64,
    len: usize,
    /// (size, bytes from one to the next in the source, the same where it is written, which rises); the
    /// one that is written most densely first.
    dims: [MaybeUninit<Dim>; MAX_DIMS],
}

const UNKNOWN: [MaybeUninit<Dim>; MAX_DIMS] = [const { MaybeUninit::uninit() }; MAX_DIMS];

/// A dimension while it is looked at, in bits.
#[derive(Clone, Copy, Default)]
struct Bits {
    size: i128,
    src: i128,
    dst: i128,
}

const PARTS_OF_BYTES: Error = Error::Invalid(
    "elements of less than a byte must lie side by side in whole bytes, in all that a collective \
     reads and writes",
);

/// A number of bits, in bytes.
fn bytes(bits: i128) -> Result<i64> {
    match bits.rem_euclid(8) {
        // Views are checked to have addresses.
        0 => i64::try_from(bits / 8).map_err(|_| PARTS_OF_BYTES),
        _ => Err(PARTS_OF_BYTES),
    }
}

impl Form {
    /// How the elements of `src` go to those of `dst`, of the same shape and type; `None`: there are
    /// none. Every element of `dst` has an address of its own.
    // What it needs of the stack is not to be its callers', which go on with the form.
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
        let mut found = Few::<Bits, MAX_DIMS>::new();
        let (mut src_shift, mut dst_shift) = (0i128, 0i128);
        for ((size, from), to) in src.shape().iter().zip(src.strides()).zip(dst.strides()) {
            if *size == 1 {
                continue;
            }
            let size = i128::from(*size);
            let (mut from, mut to) = (i128::from(*from) * element, i128::from(*to) * element);
            if to < 0 {
                // From the other end.
                src_shift += (size - 1) * from;
                dst_shift += (size - 1) * to;
                (from, to) = (-from, -to);
            }
            found.push(Bits { size, src: from, dst: to })?;
        }
        found.sort_by_key(|dim| dim.dst);
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
        let mut form = Form {
            src: src.address.wrapping_add_signed(bytes(src_shift)?),
            dst: dst.address.wrapping_add_signed(bytes(dst_shift)?),
            width: bytes(width)? as u64,
            len: kept,
            dims: UNKNOWN,
        };
        for (to, dim) in form.dims.iter_mut().zip(&found[..kept]) {
            to.write((dim.size as u64, bytes(dim.src)?, bytes(dim.dst)?));
        }
        Ok(Some(form))
    }

    /// Bytes that lie side by side in both.
    pub fn range(src: u64, dst: u64, bytes: u64) -> Form {
        Form { src, dst, width: bytes, len: 0, dims: UNKNOWN }
    }

    /// Rows, as [`Form::rows`] tells them.
    pub fn of_rows(rows: &Rows) -> Form {
        let mut form = Form::range(rows.src.address, rows.dst.address, rows.width);
        if rows.rows > 1 {
            form.dims[0].write((rows.rows, rows.src_pitch as i64, rows.dst_pitch as i64));
            form.len = 1;
        }
        form
    }

    /// The dimensions of what lies side by side, the one that is written most densely first.
    pub fn dims(&self) -> &[Dim] {
        // SAFETY: as many were written.
        unsafe { std::slice::from_raw_parts(self.dims.as_ptr().cast(), self.len) }
    }

    fn dims_mut(&mut self) -> &mut [Dim] {
        // SAFETY: as many were written.
        unsafe { std::slice::from_raw_parts_mut(self.dims.as_mut_ptr().cast(), self.len) }
    }

    /// Is it one range of bytes in both?
    pub fn is_range(&self) -> bool {
        self.len == 0
    }

    /// Is every element where it goes already?
    pub fn stays(&self) -> bool {
        self.src == self.dst && self.dims().iter().all(|dim| dim.1 == dim.2)
    }

    /// The same to another place of the same layout.
    pub fn sent_to(&self, dst: u64) -> Form {
        Form { dst, ..*self }
    }

    /// The first byte that is read, and how many there are up to the last.
    pub fn read(&self) -> (u64, u64) {
        self.reach(self.src, |dim| dim.1)
    }

    /// The same of those that are written.
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

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.dims().iter().map(|dim| dim.0).product::<u64>() * self.width
    }

    /// Rows whose distance is at least their length: how many, and the distances.
    pub fn rows(&self) -> Option<(u64, u64, u64)> {
        match *self.dims() {
            [] => Some((1, self.width, self.width)),
            [(rows, src, dst)] => {
                let is_apart = |pitch: i64| pitch >= 0 && pitch as u64 >= self.width;
                (is_apart(src) && is_apart(dst)).then_some((rows, src as u64, dst as u64))
            }
            _ => None,
        }
    }

    /// From the source to where the same elements lie side by side, in the order in which they are
    /// written.
    pub fn packing(&self, to: u64) -> Form {
        let mut packing = Form { dst: to, ..*self };
        let mut bytes = self.width as i64;
        for dim in packing.dims_mut() {
            dim.2 = bytes;
            bytes = bytes.saturating_mul(dim.0 as i64);
        }
        packing.joined()
    }

    /// The other half: from there to where they are written.
    pub fn unpacking(&self, from: u64) -> Form {
        let mut unpacking = Form { src: from, ..*self };
        let mut bytes = self.width as i64;
        for dim in unpacking.dims_mut() {
            dim.1 = bytes;
            bytes = bytes.saturating_mul(dim.0 as i64);
        }
        unpacking.joined()
    }

    /// Takes together what became one.
    fn joined(mut self) -> Form {
        let mut kept = 0;
        for index in 0..self.len {
            let dim = self.dims()[index];
            let is_next = |stride: i64, bytes: u64| stride >= 0 && stride as u64 == bytes;
            if kept == 0 && is_next(dim.1, self.width) && is_next(dim.2, self.width) {
                self.width *= dim.0;
            } else {
                self.dims[kept].write(dim);
                kept += 1;
            }
        }
        self.len = kept;
        self
    }

    /// The same as elements of 1, 2, 4, 8 or 16 bytes, as large as all addresses and distances are
    /// multiples of; `None`: in more dimensions than a kernel takes.
    pub fn elements(&self) -> Option<Elements> {
        let all = self.dims().iter().fold(self.src | self.dst | self.width, |all, dim| {
            all | dim.1.unsigned_abs() | dim.2.unsigned_abs()
        });
        let element = 1u64 << all.trailing_zeros().min(4);
        let mut elements = Elements { element, len: 0, dims: [(1, 0, 0); MOST_ELEMENT_DIMS] };
        let inner = (self.width / element, element as i64, element as i64);
        let dims = (inner.0 > 1).then_some(&inner).into_iter().chain(self.dims());
        for dim in dims {
            *elements.dims.get_mut(elements.len)? = *dim;
            elements.len += 1;
        }
        Some(elements)
    }

    /// Calls `body` with parts that are rows of one distance, as far as two dimensions reach, and with
    /// single rows where they do not.
    pub fn for_each_rows(&self, body: &mut dyn FnMut(&Form) -> Result<()>) -> Result<()> {
        if self.rows().is_some() {
            return body(self);
        }
        // The last is taken apart: the others are the denser ones.
        let (size, src, dst) = self.dims()[self.len - 1];
        let mut part = Form { len: self.len - 1, ..*self };
        for _ in 0..size {
            part.for_each_rows(body)?;
            part.src = part.src.wrapping_add_signed(src);
            part.dst = part.dst.wrapping_add_signed(dst);
        }
        Ok(())
    }

    /// How many calls of `body` [`Form::for_each_rows`] makes.
    pub fn num_rows(&self) -> u64 {
        let first = Form { len: self.len.min(1), ..*self };
        let inner = usize::from(first.rows().is_some() && self.len > 0);
        self.dims()[inner..].iter().fold(1, |calls, dim| calls.saturating_mul(dim.0))
    }
}

/// A form in elements.
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    /// Bytes of an element.
    pub element: u64,
    len: usize,
    dims: [Dim; MOST_ELEMENT_DIMS],
}

impl Elements {
    /// Its dimensions.
    pub fn dims(&self) -> &[Dim] {
        &self.dims[..self.len]
    }
}

/// Does a dimension go on where another ends, in both memories?
fn follows(inner: &Bits, outer: &Bits) -> bool {
    inner.size * inner.src == outer.src && inner.size * inner.dst == outer.dst
}

#[cfg(test)]
#[path = "form_tests.rs"]
mod tests;
