//! Tensors of graphed callables: in the same place at each call.

use crate::base::error::{Error, Result};
use crate::gpu::device::Device;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::stream::Stream;
use crate::memory;
use crate::ops::copy;
use crate::ops::observed_ops;
use crate::runtime::Runtime;
use crate::sanitizer;
use crate::tensor::owned::{self, Lent, Sizes};
use crate::tensor::{Place, Tensor};

/// A tensor that stays where it is, with sizes that a host may look at.
pub struct Static {
    tensor: Tensor,
    sizes: Sizes,
}

impl Static {
    /// What a host has described.
    pub(super) fn of(tensor: &Tensor) -> Result<Static> {
        Ok(Static { tensor: *tensor, sizes: owned::sizes(tensor)? })
    }

    /// New memory for a tensor like another, and its address.
    pub(super) fn like(
        runtime: &Runtime,
        device: &Device,
        stream: &Stream,
        sample: &Tensor,
    ) -> Result<(Static, u64)> {
        let mut made = Static::of(sample)?;
        let (first, end) = sample.range()?;
        let block = device.memory.allocate(runtime, device, stream, end - first)?;
        made.tensor.address = block + (sample.address - first);
        made.tensor.data = made.tensor.address;
        made.tensor.place = Place::Cuda(device.ordinal());
        Ok((made, block))
    }

    /// The view.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Its sizes, as a host gets them.
    pub fn lent(&self) -> Lent {
        let shape = self.sizes.as_ptr().cast_mut();
        Lent { shape, strides: shape.wrapping_add(self.tensor.shape().len()) }
    }

    /// An error if another tensor cannot be copied here byte by byte.
    pub(super) fn require_alike(&self, other: &Tensor) -> Result<()> {
        let own = &self.tensor;
        if own.dtype != other.dtype || own.shape() != other.shape() {
            return Err(Error::Invalid(
                "a tensor has another dtype or shape than the sample that was captured; capture one \
                 callable for each",
            ));
        }
        let lie_alike = own
            .shape()
            .iter()
            .zip(own.strides().iter().zip(other.strides()))
            .all(|(size, (own, other))| *size == 1 || own == other);
        if own.numel > 0 && !lie_alike {
            return Err(Error::Invalid(
                "a tensor has other strides than the sample that was captured; pass it in the same \
                 layout",
            ));
        }
        Ok(())
    }

    /// Copies a tensor that is alike, unless it lies here already.
    pub(super) fn take(
        &self,
        runtime: &Runtime,
        other: &Tensor,
        stream: &Stream,
        operation: &'static str,
    ) -> Result<()> {
        if self.tensor.numel == 0 || self.tensor.address == other.address {
            return Ok(());
        }
        let ((to, end), (from, _)) = (self.tensor.range()?, other.range()?);
        match sanitizer::is_on() {
            true => observed_ops::copy_watched(runtime, (to, from, end - to), stream, operation),
            false => copy::copy(runtime, to, from, end - to, stream),
        }
    }

    /// Writes zeros.
    pub(super) fn clear(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        operation: &'static str,
    ) -> Result<()> {
        let (first, end) = self.tensor.range()?;
        if first == end {
            return Ok(());
        }
        match sanitizer::is_on() {
            true => {
                observed_ops::fill_watched(runtime, (first, &[0], end - first), stream, operation)
            }
            false => copy::fill(runtime, first, &[0], end - first, stream),
        }
    }
}

/// Blocks of ours, each once.
#[derive(Default)]
pub(super) struct Blocks(Vec<u64>);

impl Blocks {
    /// Room for more.
    pub(super) fn prepare(&mut self, more: usize) -> Result<()> {
        self.0.try_reserve(more).map_err(|_| Error::OutOfHostMemory("the tensors of a callable"))
    }

    /// One more, for which there is room.
    pub(super) fn push(&mut self, block: u64) {
        if block != 0 {
            self.0.push(block);
        }
    }

    fn has(&self, block: u64) -> bool {
        self.0.contains(&block)
    }

    /// The blocks of tensors that a host has made, but for those that are known; there is room.
    pub(super) fn add(&mut self, tensors: &[Option<Tensor>], known: Option<&Blocks>) {
        for tensor in tensors.iter().flatten().filter(|tensor| tensor.numel > 0) {
            // What is no memory of ours stays the host's.
            let Ok(Some((start, _))) = memory::extent(tensor.address) else { continue };
            if !self.has(start) && known.is_none_or(|known| !known.has(start)) {
                self.push(start);
            }
        }
    }

    /// Frees them; on these streams they were used as well.
    pub(super) fn free(&mut self, runtime: &Runtime, streams: &[HeldStream]) {
        for block in self.0.drain(..) {
            for stream in streams {
                let _ = memory::record_stream(block, stream);
            }
            let _ = memory::free(runtime, block);
        }
    }
}
