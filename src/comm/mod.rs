//! Collectives of one process: torch.cuda.comm's verbs over tensors of several devices.

pub mod outs;
pub mod path;
pub mod team;

use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::stream::Stream;
use crate::tensor::Tensor;
use outs::Outs;

/// A list of tensors that are read when they are needed.
#[derive(Clone, Copy)]
pub struct Tensors<'a> {
    /// How many there are.
    pub len: usize,
    /// The one of a number.
    pub read: &'a dyn Fn(usize) -> Result<Tensor>,
}

/// How a tensor is split.
#[derive(Clone, Copy)]
pub struct Split<'a> {
    /// Sizes of the pieces; `None`: equal ones, or those of the outputs.
    pub sizes: Option<&'a [i64]>,
    /// Along which dimension; negative: counted from the end.
    pub dim: i32,
    /// Streams that stand for current ones; none, or one for each piece.
    pub streams: &'a [Option<&'a Stream>],
}

const NOT_YET: Error = Error::NotSupported { what: "a collective", by: "library" };

/// A copy of a tensor on each device.
pub fn broadcast<'a>(_: &'a Runtime, _src: &Tensor, _devices: &[i32]) -> Result<Outs<'a>> {
    Err(NOT_YET)
}

/// A copy of a tensor in each output.
pub fn broadcast_into(_: &Runtime, _src: &Tensor, _outs: &[Tensor]) -> Result<()> {
    Err(NOT_YET)
}

/// Copies of many tensors on each device.
pub fn broadcast_coalesced<'a>(
    _: &'a Runtime,
    _tensors: Tensors<'_>,
    _devices: &[i32],
    _buffer_bytes: u64,
) -> Result<Outs<'a>> {
    Err(NOT_YET)
}

/// The sum of tensors.
pub fn reduce_add<'a>(_: &'a Runtime, _tensors: &[Tensor], _destination: i32) -> Result<Outs<'a>> {
    Err(NOT_YET)
}

/// The sum of tensors, in an output.
pub fn reduce_add_into(_: &Runtime, _tensors: &[Tensor], _out: &Tensor) -> Result<()> {
    Err(NOT_YET)
}

/// Sums of many tensors.
pub fn reduce_add_coalesced<'a>(
    _: &'a Runtime,
    _tensors: Tensors<'_>,
    _num_devices: usize,
    _destination: i32,
    _buffer_bytes: u64,
) -> Result<Outs<'a>> {
    Err(NOT_YET)
}

/// Pieces of a tensor, one on each device.
pub fn scatter<'a>(
    _: &'a Runtime,
    _tensor: &Tensor,
    _devices: &[i32],
    _split: Split<'_>,
) -> Result<Outs<'a>> {
    Err(NOT_YET)
}

/// Pieces of a tensor, in the outputs.
pub fn scatter_into(
    _: &Runtime,
    _tensor: &Tensor,
    _outs: &[Tensor],
    _split: Split<'_>,
) -> Result<()> {
    Err(NOT_YET)
}

/// Tensors, joined.
pub fn gather<'a>(
    _: &'a Runtime,
    _tensors: &[Tensor],
    _dim: i32,
    _destination: i32,
) -> Result<Outs<'a>> {
    Err(NOT_YET)
}

/// Tensors, joined in an output.
pub fn gather_into(_: &Runtime, _tensors: &[Tensor], _dim: i32, _out: &Tensor) -> Result<()> {
    Err(NOT_YET)
}

#[cfg(test)]
mod tests;
