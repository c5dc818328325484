//! Collectives of one process: torch.cuda.comm's verbs over tensors of several devices.

pub mod broadcast;
pub mod check;
pub mod coalesced;
pub mod form;
pub mod kernels;
pub mod members;
pub mod moves;
pub mod outs;
pub mod path;
pub mod pieces;
pub mod plain;
pub mod reduce;
pub mod team;
pub mod told;
pub mod ways;

pub use broadcast::{broadcast, broadcast_into};
pub use coalesced::{broadcast_coalesced, reduce_add_coalesced};
pub use pieces::{gather, gather_into, scatter, scatter_into};
pub use reduce::{reduce_add, reduce_add_into};

use crate::error::Result;
use crate::stream::Stream;
use crate::tensor::Tensor;

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

#[cfg(test)]
mod tests;
