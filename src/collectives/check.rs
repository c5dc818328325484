//! PyTorch's checks of the arguments of collectives, and its meaning of device numbers.

use crate::base::error::{Error, Result, Trait, Which};
use crate::base::text::Text;
use crate::collectives::outputs::Target;
use crate::driver::sync_debug;
use crate::gpu::device::CPU;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::gpu::waits;
use crate::tensor::{Dtype, Place, Tensor, dtype::code};
use std::fmt::{self, Write};

/// The kind of memory of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of a device.
    Device(i32),
    /// Pinned host memory.
    Pinned,
    /// Pageable host memory.
    Pageable,
}

impl MemoryKind {
    /// The kind that the tensor declares; an error if it is wrong.
    pub fn of(gpus: &Gpus, tensor: &Tensor) -> Result<MemoryKind> {
        let kind = match tensor.place {
            Place::Cuda(_) | Place::Managed(_) => {
                return tensor.require_on(gpus).map(MemoryKind::Device);
            }
            Place::CudaHost => MemoryKind::Pinned,
            Place::Cpu => MemoryKind::Pageable,
        };
        // The host itself may read or write the memory.
        match crate::ops::copy::device_of(gpus, tensor.address)? {
            Some(device) if tensor.numel > 0 => Err(Error::HostTensor { memory: device }),
            _ => {
                if kind == MemoryKind::Pageable && tensor.numel > 0 {
                    waits::check_uncaptured(gpus, sync_debug::PAGEABLE_COPY)?;
                }
                Ok(kind)
            }
        }
    }

    /// The device, if it is device memory.
    pub fn device(self) -> Option<i32> {
        match self {
            MemoryKind::Device(device) => Some(device),
            MemoryKind::Pinned | MemoryKind::Pageable => None,
        }
    }
}

/// The current stream of a device on this thread.
pub fn current(gpus: &Gpus, device: i32) -> Result<&Stream> {
    gpus.device(device)?.streams.current().on_this_thread(gpus)
}

/// The destination of an output: a device on its current stream, or the host.
pub fn target(gpus: &Gpus, device: i32) -> Result<Target<'_>> {
    if device == CPU {
        return Ok(Target::Host);
    }
    let device = gpus.device(device)?;
    Ok(Target::Device(device, device.streams.current().on_this_thread(gpus)?))
}

/// Converts a dimension that may count from the end.
pub fn dimension(dim: i32, ndim: usize) -> Result<usize> {
    let ndim = ndim as i64;
    let index = if dim < 0 { i64::from(dim) + ndim } else { i64::from(dim) };
    if (0..ndim).contains(&index) {
        return Ok(index as usize);
    }
    Err(Error::OutOfRange {
        name: "dim",
        value: dim.into(),
        allowed: "the tensor has fewer dimensions; negative ones count from the end",
    })
}

/// An error if a list is empty.
pub fn require_some(name: &'static str, len: usize) -> Result<()> {
    match len {
        0 => Err(Error::OutOfRange { name, value: 0, allowed: "use 1 or more" }),
        _ => Ok(()),
    }
}

/// An error unless the tensor has this type.
pub fn require_dtype(which: Which, tensor: &Tensor, expected: Dtype) -> Result<()> {
    if tensor.dtype == expected {
        return Ok(());
    }
    Err(Error::TensorMismatch {
        which,
        what: Trait::Type,
        expected: written(&Type(expected)),
        got: written(&Type(tensor.dtype)),
    })
}

/// An error unless the tensor has this shape.
pub fn require_shape(which: Which, tensor: &Tensor, expected: &[i64]) -> Result<()> {
    if tensor.shape() == expected {
        return Ok(());
    }
    Err(Error::TensorMismatch {
        which,
        what: Trait::Shape,
        expected: written(&Shape(expected)),
        got: written(&Shape(tensor.shape())),
    })
}

/// An error if two elements of an output share an address.
pub fn require_no_overlap(tensor: &Tensor) -> Result<()> {
    if !tensor.is_compact() && tensor.has_overlaps() {
        return Err(Error::Invalid(
            "two elements of a tensor that is to be written have one address: give it strides that \
             keep them apart",
        ));
    }
    Ok(())
}

/// A text buffer of fixed size.
struct Line {
    bytes: [u8; 128],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let Some(place) = self.bytes.get_mut(self.len) else { return Err(fmt::Error) };
            *place = byte;
            self.len += 1;
        }
        Ok(())
    }
}

fn written(what: &dyn fmt::Display) -> Text<40> {
    let mut line = Line { bytes: [0; 128], len: 0 };
    // A longer text is cut, which [`Text`] would do too.
    let _ = write!(line, "{what}");
    Text::new(std::str::from_utf8(&line.bytes[..line.len]).unwrap_or(""))
}

struct Shape<'a>(&'a [i64]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, size) in self.0.iter().enumerate() {
            write!(f, "{}{size}", if index > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

struct Type(Dtype);

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dtype { code, bits, lanes } = self.0;
        match code {
            code::INT => write!(f, "int{bits}")?,
            code::UINT => write!(f, "uint{bits}")?,
            code::FLOAT => write!(f, "float{bits}")?,
            code::BFLOAT => write!(f, "bfloat{bits}")?,
            code::COMPLEX => write!(f, "complex{bits}")?,
            code::BOOL => write!(f, "bool")?,
            code => write!(f, "code {code} of {bits} bits")?,
        }
        if lanes > 1 { write!(f, " x {lanes}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatch_texts_are_formatted() {
        assert_eq!(written(&Shape(&[])).as_str(), "[]");
        assert_eq!(written(&Shape(&[2, 3])).as_str(), "[2, 3]");
        let long = written(&Shape(&[i64::MAX; 64]));
        assert!(
            long.as_str().starts_with("[9223372036854775807, ") && long.as_str().ends_with("...")
        );
        assert_eq!(written(&Type(Dtype::new(code::BFLOAT, 16))).as_str(), "bfloat16");
        let pair = Dtype { code: code::FLOAT4_E2M1FN, bits: 4, lanes: 2 };
        assert_eq!(written(&Type(pair)).as_str(), "code 17 of 4 bits x 2");
    }

    #[test]
    fn dimensions_count_from_either_end() {
        assert_eq!([dimension(0, 3).unwrap(), dimension(-1, 3).unwrap()], [0, 2]);
        assert!(dimension(3, 3).is_err() && dimension(-4, 3).is_err() && dimension(0, 0).is_err());
        assert!(dimension(i32::MIN, 3).is_err());
    }
}
