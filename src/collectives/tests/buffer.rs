//! The memory of a tensor, with a pattern around and between its elements.

use super::api::{self, Outcome, Stream};
use super::random::Random;
use super::reference::{Array, Kind, element_bytes, numel, offsets};
use crate::ffi::tensor::*;
use std::ffi::c_void;

/// The kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Device(i32),
    Pinned,
    Pageable,
}

impl Place {
    /// The number for the C functions: a device, or that of the host.
    pub fn number(self) -> i32 {
        match self {
            Place::Device(device) => device,
            Place::Pinned | Place::Pageable => -2,
        }
    }

    fn device(self) -> tcuda_tensor_device {
        let (device_type, device_id) = match self {
            Place::Device(device) => (TCUDA_DEVICE_CUDA, device),
            Place::Pinned => (TCUDA_DEVICE_CUDA_HOST, 0),
            Place::Pageable => (TCUDA_DEVICE_CPU, 0),
        };
        tcuda_tensor_device { device_type, device_id }
    }
}

/// The layout of elements in memory.
#[derive(Clone, Debug)]
pub struct Layout {
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    /// Elements before the one whose indices are all 0.
    first: usize,
    /// Number of elements that the memory holds.
    whole: usize,
}

/// The irregularity of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Compact,
    /// Permuted dimensions, gaps and negative strides; each element has a unique address.
    Odd,
    /// The same, with some repeated dimensions; for reading only.
    Repeats,
}

impl Layout {
    pub fn choose(shape: &[i64], kind: Shape, random: &mut Random) -> Layout {
        let ndim = shape.len();
        let (mut strides, mut order) = (vec![0i64; ndim], (0..ndim).collect::<Vec<_>>());
        let is_odd = kind != Shape::Compact;
        if is_odd && random.one_in(2) {
            (1..ndim).for_each(|index| order.swap(index, random.below(index + 1)));
        }
        let mut next = if is_odd && random.one_in(3) { 2 } else { 1 };
        let mut backwards = 0;
        for dim in order.into_iter().rev() {
            if kind == Shape::Repeats && random.one_in(3) {
                continue;
            }
            strides[dim] = next;
            next *= shape[dim].max(1);
            if is_odd && random.one_in(3) {
                next += random.below(4) as i64;
            }
            if is_odd && shape[dim] > 1 && random.one_in(8) {
                backwards += strides[dim] * (shape[dim] - 1);
                strides[dim] = -strides[dim];
            }
            if is_odd && shape[dim] == 1 && random.one_in(2) {
                strides[dim] = random.below(999) as i64;
            }
        }
        let before = random.below(5);
        let reach = |(size, stride): (&i64, &i64)| (size - 1).max(0) * stride.abs();
        let span: i64 = shape.iter().zip(&strides).map(reach).sum();
        let first = before + backwards as usize;
        Layout {
            shape: shape.to_vec(),
            strides,
            first,
            whole: before + span as usize + 1 + random.below(5),
        }
    }

    /// The position of each element in memory, in elements.
    fn places(&self) -> impl Iterator<Item = usize> {
        let first = self.first as i64;
        offsets(&self.shape, &self.strides).into_iter().map(move |offset| (first + offset) as usize)
    }
}

/// The byte around elements.
const AROUND: u8 = 0xC7;

/// A block that contains a tensor.
pub struct Buffer {
    pub place: Place,
    pub kind: Kind,
    pub layout: Layout,
    /// Bytes of the block.
    pub address: usize,
    pub bytes: usize,
    /// The stream that owns the memory and orders writes to it.
    pub stream: Stream,
    is_based: bool,
    sizes: Box<[i64]>,
    pageable: Vec<u128>,
}

impl Buffer {
    pub fn new(
        place: Place,
        kind: Kind,
        layout: Layout,
        stream: Stream,
        random: &mut Random,
    ) -> Outcome<Buffer> {
        let bytes = layout.whole * element_bytes(kind);
        let mut pageable = Vec::new();
        let address = match place {
            Place::Device(device) => api::malloc(bytes, device, stream)?,
            Place::Pinned => api::host_malloc(bytes)?,
            Place::Pageable => {
                pageable = vec![0u128; bytes / 16 + 1];
                pageable.as_mut_ptr().expose_provenance()
            }
        };
        let sizes = layout.shape.iter().chain(&layout.strides).copied().chain([0]).collect();
        let is_based = random.one_in(2);
        Ok(Buffer { place, kind, layout, address, bytes, stream, is_based, sizes, pageable })
    }

    /// The tensor in the block.
    pub fn tensor(&mut self) -> tcuda_tensor {
        let (code, bits, lanes) = self.kind;
        let first = self.layout.first * element_bytes(self.kind);
        let (data, byte_offset) = if self.is_based { (0, first) } else { (first, 0) };
        let shape = self.sizes.as_mut_ptr();
        tcuda_tensor {
            data: (self.address + data) as *mut c_void,
            device: self.place.device(),
            ndim: self.layout.shape.len() as i32,
            dtype: tcuda_dtype { code, bits, lanes },
            shape,
            strides: shape.wrapping_add(self.layout.shape.len()),
            byte_offset: byte_offset as u64,
        }
    }

    /// An image of the block with these elements.
    pub fn image(&self, array: &Array) -> Vec<u8> {
        let element = element_bytes(self.kind);
        let mut image = vec![AROUND; self.bytes];
        for (place, value) in self.layout.places().zip(array.bytes.chunks(element.max(1))) {
            image[place * element..][..element].copy_from_slice(value);
        }
        image
    }

    /// The elements in an image of the block; an error if a byte around them was overwritten.
    pub fn read(&self, image: &[u8]) -> Outcome<Array> {
        let element = element_bytes(self.kind);
        let (mut bytes, mut is_element) = (Vec::new(), vec![false; self.layout.whole]);
        for place in self.layout.places() {
            bytes.extend_from_slice(&image[place * element..][..element]);
            is_element[place] = true;
        }
        for (place, _) in is_element.iter().enumerate().filter(|(_, is_element)| !**is_element) {
            if image[place * element..][..element].iter().any(|byte| *byte != AROUND) {
                return Err(format!(
                    "element {place} of the block is none of the tensor, and was written"
                ));
            }
        }
        Ok(Array { kind: self.kind, shape: self.layout.shape.clone(), bytes })
    }

    /// The elements of a source with repeated dimensions.
    pub fn repeated(&self, array: &Array) -> Array {
        match self.read(&self.image(array)) {
            Ok(array) => array,
            Err(why) => panic!("{why}"),
        }
    }

    /// The bytes of a block in host memory.
    pub fn host(&mut self) -> &mut [u8] {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.address);
        // SAFETY: a block of this many bytes in host memory, owned by this buffer.
        unsafe { std::slice::from_raw_parts_mut(start, self.bytes) }
    }

    pub fn free(&mut self) -> Outcome<()> {
        match self.place {
            Place::Device(_) => api::free(self.address),
            Place::Pinned => api::host_free(self.address),
            Place::Pageable => {
                self.pageable = Vec::new();
                Ok(())
            }
        }
    }
}

/// A tensor that the library filled in, as the host reads it.
pub struct Filled {
    pub kind: Kind,
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    /// The first byte of any element.
    pub lowest: usize,
    /// Bytes from there to the end of the last element.
    pub span: usize,
    first: usize,
}

impl Filled {
    pub fn of(tensor: &tcuda_tensor) -> Filled {
        let list = |from: *mut i64| -> Vec<i64> {
            // SAFETY: the library's sizes and strides, which have this many entries.
            (0..tensor.ndim as usize)
                .map(|index| unsafe { from.wrapping_add(index).read() })
                .collect()
        };
        let (shape, strides) = (list(tensor.shape), list(tensor.strides));
        let tcuda_dtype { code, bits, lanes } = tensor.dtype;
        let kind = (code, bits, lanes);
        let element = element_bytes(kind);
        let zero = tensor.data as usize + tensor.byte_offset as usize;
        if numel(&shape) == 0 {
            return Filled { kind, shape, strides, lowest: zero, span: 0, first: 0 };
        }
        let of = |wanted: fn(&i64) -> bool| -> usize {
            let sides = shape.iter().zip(&strides).filter(|(_, stride)| wanted(stride));
            sides.map(|(size, stride)| (size - 1) as usize * stride.unsigned_abs() as usize).sum()
        };
        let (below, above) = (of(|stride| *stride < 0), of(|stride| *stride > 0));
        let span = (below + above + 1) * element;
        Filled { kind, shape, strides, lowest: zero - below * element, span, first: below }
    }

    /// Is it dense, in any order of the dimensions?
    pub fn is_dense(&self) -> bool {
        self.span == numel(&self.shape) * element_bytes(self.kind)
    }

    /// The elements, from the bytes that begin at `lowest`.
    pub fn read(&self, bytes: &[u8]) -> Array {
        let element = element_bytes(self.kind);
        let mut found = Vec::new();
        for offset in offsets(&self.shape, &self.strides) {
            let place = (self.first as i64 + offset) as usize * element;
            found.extend_from_slice(&bytes[place..place + element]);
        }
        Array { kind: self.kind, shape: self.shape.clone(), bytes: found }
    }
}
