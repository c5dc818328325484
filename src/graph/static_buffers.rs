//! Tensors of graphed callables, at the same addresses in each call.

use crate::base::error::{Error, Result};
use crate::gpu::device::Device;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory;
use crate::ops::copy;
use crate::ops::observed_ops;
use crate::sanitizer;
use crate::tensor::owned::{self, SizePointers, Sizes};
use crate::tensor::{Place, Tensor};

/// A tensor at a fixed address, with sizes that the host may read.
pub struct StaticTensor {
    tensor: Tensor,
    sizes: Sizes,
}

impl StaticTensor {
    /// A tensor that the host has described.
    pub(super) fn of(tensor: &Tensor) -> Result<StaticTensor> {
        Ok(StaticTensor { tensor: *tensor, sizes: owned::sizes(tensor)? })
    }

    /// Allocates a tensor like another; returns it with the address of its block.
    pub(super) fn like(
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        sample: &Tensor,
    ) -> Result<(StaticTensor, u64)> {
        let mut made = StaticTensor::of(sample)?;
        let (first, end) = sample.range()?;
        let block = device.memory().allocate(gpus, device, stream, end - first)?;
        made.tensor.address = block + (sample.address - first);
        made.tensor.data = made.tensor.address;
        made.tensor.place = Place::Cuda(device.ordinal());
        Ok((made, block))
    }

    /// The view of the tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Pointers to its sizes, for the host.
    pub fn size_pointers(&self) -> SizePointers {
        let shape = self.sizes.as_ptr().cast_mut();
        SizePointers { shape, strides: shape.wrapping_add(self.tensor.shape().len()) }
    }

    /// An error unless another tensor can be copied into this one byte by byte.
    pub(super) fn require_same_layout(&self, other: &Tensor) -> Result<()> {
        let own = &self.tensor;
        if own.dtype != other.dtype || own.shape() != other.shape() {
            return Err(Error::Invalid(
                "a tensor has another dtype or shape than the sample that was captured; capture \
                 one callable for each",
            ));
        }
        let strides_match = own
            .shape()
            .iter()
            .zip(own.strides().iter().zip(other.strides()))
            .all(|(size, (own, other))| *size == 1 || own == other);
        if own.numel > 0 && !strides_match {
            return Err(Error::Invalid(
                "a tensor has other strides than the sample that was captured; pass it in the same \
                 layout",
            ));
        }
        Ok(())
    }

    /// Copies a tensor of the same layout, unless it is the same memory.
    pub(super) fn take(
        &self,
        gpus: &Gpus,
        other: &Tensor,
        stream: &Stream,
        operation: &'static str,
    ) -> Result<()> {
        if self.tensor.numel == 0 || self.tensor.address == other.address {
            return Ok(());
        }
        let ((to, end), (from, _)) = (self.tensor.range()?, other.range()?);
        match sanitizer::is_on() {
            true => observed_ops::copy_observed(gpus, (to, from, end - to), stream, operation),
            false => copy::copy(gpus, to, from, end - to, stream),
        }
    }

    /// Fills it with zeros.
    pub(super) fn clear(
        &self,
        gpus: &Gpus,
        stream: &Stream,
        operation: &'static str,
    ) -> Result<()> {
        let (first, end) = self.tensor.range()?;
        if first == end {
            return Ok(());
        }
        match sanitizer::is_on() {
            true => {
                observed_ops::fill_observed(gpus, (first, &[0], end - first), stream, operation)
            }
            false => copy::fill(gpus, first, &[0], end - first, stream),
        }
    }
}

/// Blocks of the library, each once.
#[derive(Default)]
pub(super) struct Blocks(Vec<u64>);

impl Blocks {
    /// Reserves space for more.
    pub(super) fn prepare(&mut self, more: usize) -> Result<()> {
        self.0.try_reserve(more).map_err(|_| Error::OutOfHostMemory("the tensors of a callable"))
    }

    /// Adds a block; there is space.
    pub(super) fn push(&mut self, block: u64) {
        if block != 0 {
            self.0.push(block);
        }
    }

    fn has(&self, block: u64) -> bool {
        self.0.contains(&block)
    }

    /// Adds the blocks of tensors that the host made, except those in `known`; there is space.
    pub(super) fn add(&mut self, tensors: &[Option<Tensor>], known: Option<&Blocks>) {
        for tensor in tensors.iter().flatten().filter(|tensor| tensor.numel > 0) {
            // Memory that the library did not allocate stays the host's.
            let Ok(Some((start, _))) = memory::extent(tensor.address) else { continue };
            if !self.has(start) && known.is_none_or(|known| !known.has(start)) {
                self.push(start);
            }
        }
    }

    /// Frees them, in the order of these streams too.
    pub(super) fn free(&mut self, gpus: &Gpus, streams: &[HeldStream]) {
        for block in self.0.drain(..) {
            for stream in streams {
                let _ = memory::record_stream(block, stream);
            }
            let _ = memory::free(gpus, block);
        }
    }
}
