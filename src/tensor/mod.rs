//! Tensors: views of memory that the host owns, as DLPack describes them.
//!
//! A [`Tensor`] is checked once, when it is made: its sizes, its type, and that all its bytes have
//! addresses. [`Tensor::require_on`] checks that the memory belongs to the device.

pub mod bundle;
mod bundles;
pub mod dtype;
pub mod order;
pub mod owned;
mod ranges;

pub use dtype::Dtype;

use crate::base::error::{Error, Result};
use crate::base::inline_vec::Few;
use crate::gpu::gpus::Gpus;
use crate::memory;
use crate::ops::copy;
use crate::sanitizer::{self, Elements};
use std::mem::MaybeUninit;

/// The most dimensions of a view, as in PyTorch.
pub const MAX_DIMS: usize = sanitizer::MAX_DIMS;

/// The kind of memory, and its device: DLPack's `DLDevice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Pageable host memory.
    Cpu,
    /// Memory of a device.
    Cuda(i32),
    /// Pinned host memory.
    CudaHost,
    /// Managed memory, and its preferred device.
    Managed(i32),
}

impl Place {
    /// The place that has these numbers in DLPack.
    pub fn of(kind: i32, ordinal: i32) -> Result<Place> {
        let place = match kind {
            1 => Place::Cpu,
            2 => Place::Cuda(ordinal),
            3 => Place::CudaHost,
            13 => Place::Managed(ordinal),
            _ => {
                return Err(Error::OutOfRange {
                    name: "device.device_type",
                    value: kind.into(),
                    allowed: "use TCUDA_DEVICE_CPU, _CUDA, _CUDA_HOST or _CUDA_MANAGED",
                });
            }
        };
        if ordinal < 0 {
            return Err(Error::OutOfRange {
                name: "device.device_id",
                value: ordinal.into(),
                allowed: "a tensor names its device by its ordinal; use 0 for memory of the host",
            });
        }
        Ok(place)
    }

    /// The device type and device ID of DLPack.
    pub fn numbers(self) -> (i32, i32) {
        match self {
            Place::Cpu => (1, 0),
            Place::Cuda(ordinal) => (2, ordinal),
            Place::CudaHost => (3, 0),
            Place::Managed(ordinal) => (13, ordinal),
        }
    }

    /// The device, unless it is host memory.
    pub fn device(self) -> Option<i32> {
        match self {
            Place::Cuda(device) | Place::Managed(device) => Some(device),
            Place::Cpu | Place::CudaHost => None,
        }
    }
}

/// The fields of a view, unchecked.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    /// Start of the memory.
    pub data: u64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
    /// The kind of memory, and its device.
    pub place: Place,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Sizes, the slowest dimension first.
    pub shape: &'a [i64],
    /// Distance of neighbours in each dimension, in elements; `None`: contiguous.
    pub strides: Option<&'a [i64]>,
}

/// The fields of a view without sizes and strides, unchecked.
#[derive(Clone, Copy)]
pub struct Head {
    /// Start of the memory.
    pub data: u64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
    /// The kind of memory, and its device.
    pub place: Place,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Number of dimensions.
    pub ndim: usize,
}

/// A checked view of memory.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    /// Address of the element whose indices are all 0.
    pub address: u64,
    /// Start of the memory, as the host passed it.
    pub data: u64,
    /// The kind of memory, and its device.
    pub place: Place,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Number of elements.
    pub numel: u64,
    /// Must it not be written?
    pub read_only: bool,
    is_compact: bool,
    ndim: usize,
    /// The first `ndim` entries of `shape` and `strides` are initialised.
    shape: [MaybeUninit<i64>; MAX_DIMS],
    strides: [MaybeUninit<i64>; MAX_DIMS],
}

const UNINIT: [MaybeUninit<i64>; MAX_DIMS] = [const { MaybeUninit::uninit() }; MAX_DIMS];

const TOO_LARGE: Error = Error::Invalid(
    "the tensor has more bytes than there are addresses: check its shape, strides and byte_offset",
);

impl Tensor {
    /// A view without elements, dimensions and memory, to be set later.
    pub fn none() -> Tensor {
        Tensor {
            address: 0,
            data: 0,
            place: Place::Cpu,
            dtype: Dtype::new(dtype::code::UINT, 8),
            numel: 0,
            read_only: false,
            is_compact: true,
            ndim: 0,
            shape: UNINIT,
            strides: UNINIT,
        }
    }

    /// A view of these fields. Does not check that the memory belongs to the device.
    pub fn new(parts: Parts<'_>) -> Result<Tensor> {
        let mut tensor = Tensor::none();
        tensor.assign(parts)?;
        Ok(tensor)
    }

    /// Sets the view to these fields, like [`Tensor::new`]. On failure it must be set again before
    /// use.
    pub fn assign(&mut self, parts: Parts<'_>) -> Result<()> {
        let Parts { data, byte_offset, place, dtype, shape, strides } = parts;
        let head = Head { data, byte_offset, place, dtype, ndim: shape.len() };
        let strides = strides.map(|strides| move |index: usize| strides[index]);
        self.set(head, |index| shape[index], strides)
    }

    /// Like [`Tensor::assign`], with functions that return each size and stride.
    #[inline]
    pub fn set(
        &mut self,
        head: Head,
        size: impl Fn(usize) -> i64,
        stride: Option<impl Fn(usize) -> i64>,
    ) -> Result<()> {
        let Head { data, byte_offset, place, dtype, ndim } = head;
        dtype.check()?;
        if ndim > MAX_DIMS {
            return Err(too_many(ndim as i64));
        }
        (self.ndim, self.numel, self.read_only) = (0, 0, false);
        let (mut numel, mut is_empty) = (Some(1i64), false);
        for (index, to) in self.shape[..ndim].iter_mut().enumerate() {
            let size = size(index);
            if size < 0 {
                return Err(Error::OutOfRange {
                    name: "shape",
                    value: size,
                    allowed: "a size cannot be negative",
                });
            }
            is_empty |= size == 0;
            numel = numel.and_then(|numel| numel.checked_mul(size));
            to.write(size);
        }
        let numel = if is_empty { 0 } else { numel.ok_or(TOO_LARGE)? as u64 };
        // The sizes are initialised; the strides follow.
        match stride {
            Some(stride) => {
                for (index, to) in self.strides[..ndim].iter_mut().enumerate() {
                    to.write(stride(index));
                }
            }
            None => for_each_compact(ndim, size, |index, stride| {
                self.strides[index].write(stride);
            }),
        }
        self.ndim = ndim;
        (self.place, self.dtype, self.data, self.numel) = (place, dtype, data, numel);
        self.is_compact = self.compute_is_compact();
        if numel == 0 {
            // Without elements no address is used, so that any is valid.
            self.address = data.wrapping_add(byte_offset);
            return Ok(());
        }
        if data == 0 {
            return Err(Error::Null { name: "data" });
        }
        self.address = data.checked_add(byte_offset).ok_or(TOO_LARGE)?;
        self.range()?;
        Ok(())
    }

    /// Narrows the view to `size` elements of dimension `dim`, from index `start`.
    pub fn narrow(&mut self, dim: usize, start: i64, size: i64) -> Result<()> {
        self.shape[dim].write(size);
        self.numel = numel(self.shape())?;
        self.is_compact = self.compute_is_compact();
        let mut bits = 0;
        if self.numel > 0 {
            let elements = start.saturating_mul(self.strides()[dim]);
            bits = i128::from(elements) * i128::from(self.dtype.element_bits());
        }
        if bits.rem_euclid(8) != 0 {
            return Err(Error::Invalid(
                "a part of the tensor would begin inside a byte; its elements are less than one",
            ));
        }
        // No overflow: the address is inside the tensor, whose range was checked.
        self.address = self.address.wrapping_add((bits / 8) as u64);
        Ok(())
    }

    /// Sets `other` to a contiguous tensor of this shape and type at `address`.
    pub fn set_contiguous(&self, address: u64, other: &mut Tensor) -> Result<()> {
        let (dtype, place, shape) = (self.dtype, self.place, self.shape());
        other.assign(Parts { data: address, byte_offset: 0, place, dtype, shape, strides: None })
    }

    /// The same view, with `data` at its first element.
    pub fn without_offset(&self) -> Tensor {
        Tensor { data: if self.data == 0 { 0 } else { self.address }, ..*self }
    }

    /// Turns a tensor without dimensions into one with one dimension of size 1.
    #[inline(never)]
    pub fn require_dimension(&mut self) {
        if self.ndim == 0 {
            self.ndim = 1;
            self.shape[0].write(1);
            self.strides[0].write(1);
        }
    }

    /// Sizes, the slowest dimension first.
    pub fn shape(&self) -> &[i64] {
        // SAFETY: the first `ndim` entries are initialised.
        unsafe { std::slice::from_raw_parts(self.shape.as_ptr().cast(), self.ndim) }
    }

    /// Distance of neighbours in each dimension, in elements.
    pub fn strides(&self) -> &[i64] {
        // SAFETY: the first `ndim` entries are initialised.
        unsafe { std::slice::from_raw_parts(self.strides.as_ptr().cast(), self.ndim) }
    }

    /// Bytes of all elements together, if that is a whole number.
    pub fn whole_bytes(&self) -> Option<u64> {
        let bits = self.numel.checked_mul(self.dtype.element_bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// The first byte of any element, and the byte after the last one.
    pub fn range(&self) -> Result<(u64, u64)> {
        if self.numel == 0 {
            return Ok((self.address, self.address));
        }
        if self.is_compact()
            && let Some(bits) = self.numel.checked_mul(self.dtype.element_bits())
            && let Some(end) = self.address.checked_add(bits.div_ceil(8))
        {
            return Ok((self.address, end));
        }
        let (mut low, mut high) = (0i128, 0i128);
        for (size, stride) in self.shape().iter().zip(self.strides()) {
            // Each product is below 2^126 and a larger sum ends the loop, so that 64 of them do not
            // overflow.
            let reach = i128::from(size - 1) * i128::from(*stride);
            if reach < 0 {
                low += reach
            } else {
                high += reach
            }
            if high - low > 1 << 70 {
                return Err(TOO_LARGE);
            }
        }
        let bits = i128::from(self.dtype.element_bits());
        let first = i128::from(self.address) + (low * bits).div_euclid(8);
        let end = i128::from(self.address) + ((high + 1) * bits + 7).div_euclid(8);
        match (u64::try_from(first), u64::try_from(end)) {
            (Ok(first), Ok(end)) if end - first <= i64::MAX as u64 => Ok((first, end)),
            _ => Err(TOO_LARGE),
        }
    }

    /// Is it contiguous in row-major order?
    #[inline]
    pub fn is_compact(&self) -> bool {
        self.is_compact
    }

    fn compute_is_compact(&self) -> bool {
        let mut expected = 1i64;
        for (size, stride) in self.shape().iter().zip(self.strides()).rev() {
            if *size == 1 {
                continue;
            }
            if *stride != expected {
                return self.numel == 0;
            }
            expected = expected.wrapping_mul(*size);
        }
        true
    }

    /// The device that owns the memory. An error if no device owns it, if another device than
    /// `place` owns it, or if the tensor extends beyond the block that it begins in.
    pub fn require_on(&self, gpus: &Gpus) -> Result<i32> {
        let (device, owner) = match self.place {
            Place::Cuda(device) | Place::Managed(device) if self.numel == 0 => {
                return Ok(gpus.device(device)?.ordinal());
            }
            Place::Cuda(device) => {
                gpus.device(device)?;
                (device, copy::device_of(gpus, self.address)?)
            }
            // The owner of managed memory that the library did not allocate is what the host
            // declares.
            Place::Managed(device) => {
                gpus.device(device)?;
                (device, memory::device_of(self.address).or(Some(device)))
            }
            Place::Cpu | Place::CudaHost => {
                return Err(Error::Invalid(
                    "the tensor is in memory of the host; pass one of a device, with \
                     device.device_type = TCUDA_DEVICE_CUDA",
                ));
            }
        };
        match owner {
            Some(owner) if owner == device => (),
            Some(owner) => return Err(Error::TensorDevice { tensor: device, memory: owner }),
            None => {
                return Err(Error::InvalidPointer {
                    ptr: self.address as usize,
                    why: "is not memory of a device, as the tensor says",
                });
            }
        }
        self.require_inside(gpus)?;
        Ok(device)
    }

    /// An error if it begins in a block of the library and extends beyond it.
    fn require_inside(&self, gpus: &Gpus) -> Result<()> {
        let (first, end) = self.range()?;
        let Some((start, bytes)) = block_around(gpus, self.address)? else { return Ok(()) };
        if first < start || end - start > bytes {
            return Err(Error::Invalid(
                "the tensor leaves the block of memory that it begins in: check its shape, \
                 strides and byte_offset",
            ));
        }
        Ok(())
    }
}

/// A tensor in pageable host memory is ignored.
impl Elements for Tensor {
    fn is_ignored(&self) -> bool {
        self.place == Place::Cpu || self.numel == 0 || self.address == 0
    }

    fn range(&self) -> Option<(u64, u64)> {
        Tensor::range(self).ok()
    }

    fn is_compact(&self) -> bool {
        Tensor::is_compact(self)
    }

    fn dims(&self) -> (&[i64], &[i64]) {
        (self.shape(), self.strides())
    }

    fn element_bits(&self) -> u64 {
        self.dtype.element_bits()
    }
}

/// First address and bytes of the block of this library that holds an address; none: it is other
/// memory.
#[cold]
#[inline(never)]
pub fn block_around(gpus: &Gpus, address: u64) -> Result<Option<(u64, u64)>> {
    let block = memory::extent(address)?;
    if block.is_some() || !memory::has_uncached_blocks() {
        return Ok(block);
    }
    // Uncached blocks are known by their first address.
    match copy::start_of_range(gpus, address)? {
        Some(start) if start < address => {
            let block = memory::extent(start)?;
            Ok(block.filter(|(start, bytes)| address - start < *bytes))
        }
        _ => Ok(None),
    }
}

fn too_many(ndim: i64) -> Error {
    Error::OutOfRange { name: "ndim", value: ndim, allowed: "use 0 to 64" }
}

/// Checks a number of dimensions that the host passed.
pub fn ndim(ndim: i32) -> Result<usize> {
    match usize::try_from(ndim) {
        Ok(number) if number <= MAX_DIMS => Ok(number),
        _ => Err(too_many(ndim.into())),
    }
}

fn numel(shape: &[i64]) -> Result<u64> {
    if shape.contains(&0) {
        return Ok(0);
    }
    let product = shape.iter().try_fold(1i64, |product, size| product.checked_mul(*size));
    product.map(|numel| numel as u64).ok_or(TOO_LARGE)
}

/// Sizes or strides of a view.
pub type Sizes = Few<i64, MAX_DIMS>;

/// Computes the strides of a contiguous tensor, in row-major order.
pub fn compact(shape: &[i64], strides: &mut [i64]) {
    for_each_compact(shape.len(), |index| shape[index], |index, stride| strides[index] = stride);
}

fn for_each_compact(ndim: usize, size: impl Fn(usize) -> i64, mut body: impl FnMut(usize, i64)) {
    let mut stride = 1i64;
    for index in (0..ndim).rev() {
        body(index, stride);
        stride = stride.saturating_mul(size(index).max(1));
    }
}

#[cfg(test)]
mod tests;
