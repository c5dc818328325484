//! Collectives within one process: the operations of `torch.cuda.comm` on tensors of several
//! devices.

pub mod broadcast;
pub mod check;
pub mod coalesced;
mod contexts;
pub mod contiguous;
pub mod dispatch;
pub mod fallback;
pub mod gather;
pub mod layout;
pub mod members;
pub mod moves;
pub mod outputs;
pub mod path;
pub mod pieces;
pub mod reduce;
pub mod sanitizer_events;
pub mod sums;
pub mod team;
pub mod teams;

pub use broadcast::{broadcast, broadcast_into};
pub use coalesced::broadcast_coalesced;
pub use gather::{gather, gather_into};
pub use pieces::{scatter, scatter_into};
pub use reduce::{reduce_add, reduce_add_into};
pub use sums::reduce_add_coalesced;

use crate::base::error::{Error, Result};
use crate::gpu::stream::Stream;
use crate::tensor::Tensor;

/// A list of tensors that are read on demand.
#[derive(Clone, Copy)]
pub struct Tensors<'a> {
    /// Number of tensors.
    pub len: usize,
    /// Sets the argument to the tensor with this index.
    pub read: &'a dyn Fn(usize, &mut Tensor) -> Result<()>,
}

impl Tensors<'_> {
    /// Reads all tensors.
    fn all(&self) -> Result<Vec<Tensor>> {
        let mut all = Vec::new();
        all.try_reserve_exact(self.len).map_err(|_| NO_ROOM)?;
        for index in 0..self.len {
            all.push(Tensor::none());
            (self.read)(index, &mut all[index])?;
        }
        Ok(all)
    }
}

const NO_ROOM: Error = Error::OutOfHostMemory("the tensors of a collective call");

/// How a tensor is split.
#[derive(Clone, Copy)]
pub struct Split<'a> {
    /// Sizes of the pieces; `None`: equal sizes, or the sizes of the outputs.
    pub sizes: Option<&'a [i64]>,
    /// The dimension; negative: counted from the end.
    pub dim: i32,
    /// Streams to use instead of the current ones: none, or one entry per piece.
    pub streams: &'a [Option<&'a Stream>],
}

#[cfg(test)]
mod tests;
