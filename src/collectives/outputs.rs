//! The outputs of a collective: while they are made, and until the host receives them.

use super::check::MemoryKind;
use crate::base::error::{Error, Result};
use crate::driver::sync_debug;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::gpu::waits;
use crate::tensor::bundle::{Bundle, MemberView, Site};
use crate::tensor::order::strides_of_copy;
use crate::tensor::owned::{self, Block};
use crate::tensor::{Dtype, MAX_DIMS, Parts, Place, Tensor};

/// The destination of an output.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// Pinned host memory.
    Host,
    /// Memory of a device, allocated on a stream.
    Device(&'a Device, &'a Stream),
}

impl<'a> Target<'a> {
    /// The stream on which it is allocated and written; `None` for the host.
    pub fn stream(&self) -> Option<&'a Stream> {
        match self {
            Target::Host => None,
            Target::Device(_, stream) => Some(stream),
        }
    }

    /// The memory kind of outputs there.
    pub fn kind(&self) -> MemoryKind {
        match self {
            Target::Host => MemoryKind::Pinned,
            Target::Device(device, _) => MemoryKind::Device(device.ordinal()),
        }
    }

    fn place(&self) -> Place {
        match self {
            Target::Host => Place::CudaHost,
            Target::Device(device, _) => Place::Cuda(device.ordinal()),
        }
    }
}

/// Is the tensor already where the output is to be?
pub fn is_at(kind: MemoryKind, target: Target<'_>) -> bool {
    match target {
        Target::Host => kind.device().is_none(),
        Target::Device(device, _) => kind == MemoryKind::Device(device.ordinal()),
    }
}

/// Outputs that are being made. Dropping it frees their memory.
pub struct Draft<'a> {
    gpus: &'a Gpus,
    bundle: Bundle,
}

impl<'a> Draft<'a> {
    /// No outputs, with host memory for this many tensors, sizes and blocks.
    pub fn new(gpus: &'a Gpus, tensors: usize, sizes: usize, blocks: usize) -> Result<Draft<'a>> {
        Ok(Draft { gpus, bundle: Bundle::with_room(tensors, sizes, blocks)? })
    }

    /// Allocates a block for outputs. Returns its index and its address.
    pub fn block(&mut self, target: Target<'_>, bytes: u64) -> Result<(u32, u64)> {
        let gpus = self.gpus;
        let block = match target {
            Target::Device(device, stream) => {
                let address = device.memory().allocate(gpus, device, stream, bytes)?;
                Block::of_device(gpus, address)
            }
            Target::Host => {
                waits::check_uncaptured(gpus, sync_debug::HOST_RESULT)?;
                let bytes = usize::try_from(bytes)
                    .map_err(|_| Error::OutOfHostMemory("a tensor in pinned memory"))?;
                Block::of_host(gpus, gpus.pinned().allocate(gpus, bytes)? as u64)
            }
        };
        let added = self.bundle.add_block(block);
        if added.is_err() {
            // No work uses it yet.
            let _ = block.free_in(gpus);
        }
        Ok((added?, block.address()))
    }

    /// Adds an output in a block of its own, and sets `out` to it. Its strides must be dense.
    pub fn dense(
        &mut self,
        target: Target<'_>,
        dtype: Dtype,
        sizes: (&[i64], &[i64]),
        out: &mut Tensor,
    ) -> Result<()> {
        // The size does not depend on the address.
        let (place, shape, strides) = (target.place(), sizes.0, Some(sizes.1));
        out.assign(Parts { data: 1, byte_offset: 0, place, dtype, shape, strides })?;
        let (first, end) = out.range()?;
        out.data = self.range(target, dtype, sizes, end - first)?;
        out.address = out.data;
        Ok(())
    }

    /// Adds an output with the strides of a copy of `tensor`, and sets `out` to it.
    #[inline(never)]
    pub fn copy_of(&mut self, target: Target<'_>, tensor: &Tensor, out: &mut Tensor) -> Result<()> {
        let (shape, mut strides) = (tensor.shape(), [0; MAX_DIMS]);
        let strides = &mut strides[..shape.len()];
        strides_of_copy(shape, tensor.strides(), strides);
        self.dense(target, tensor.dtype, (shape, strides), out)
    }

    /// Adds an output in a block of its own of `bytes` bytes. Returns its address.
    pub fn range(
        &mut self,
        target: Target<'_>,
        dtype: Dtype,
        sizes: (&[i64], &[i64]),
        bytes: u64,
    ) -> Result<u64> {
        let (block, address) = match bytes {
            0 => (None, 0),
            bytes => self.block(target, bytes).map(|(block, address)| (Some(block), address))?,
        };
        self.slice(target, dtype, sizes, block, address)?;
        Ok(address)
    }

    /// Adds an output in an existing block.
    pub fn slice(
        &mut self,
        target: Target<'_>,
        dtype: Dtype,
        sizes: (&[i64], &[i64]),
        block: Option<u32>,
        address: u64,
    ) -> Result<()> {
        let site = Site { data: address, byte_offset: 0, place: target.place(), dtype };
        self.bundle.add(site, sizes, block, false)
    }

    /// Adds a contiguous output in an existing block.
    pub fn compact(
        &mut self,
        target: Target<'_>,
        dtype: Dtype,
        shape: &[i64],
        block: Option<u32>,
        address: u64,
    ) -> Result<()> {
        let site = Site { data: address, byte_offset: 0, place: target.place(), dtype };
        self.bundle.add_compact(site, shape, block)
    }

    /// Adds an output that is an input, or a part of one.
    pub fn alias(&mut self, tensor: &Tensor) -> Result<()> {
        let sizes = (tensor.shape(), tensor.strides());
        self.alias_of(Site::of(tensor), sizes, tensor.read_only)
    }

    /// The same for a site with sizes and strides.
    pub fn alias_of(&mut self, site: Site, sizes: (&[i64], &[i64]), read_only: bool) -> Result<()> {
        self.bundle.add(site, sizes, None, read_only)
    }

    /// Registers the outputs.
    pub fn finish(mut self) -> Result<Outputs<'a>> {
        let len = self.bundle.len();
        let start = match len {
            0 => None,
            _ => Some(owned::insert_bundle(&mut self.bundle)?),
        };
        Ok(Outputs { gpus: self.gpus, start, len })
    }
}

fn free(gpus: &Gpus, bundle: &Bundle) {
    for block in bundle.blocks() {
        // The caller reports an earlier error.
        let _ = block.free_in(gpus);
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        free(self.gpus, &self.bundle);
    }
}

/// Registered outputs that the host has not received. Dropping it frees their memory, in the order
/// of the queued work.
pub struct Outputs<'a> {
    gpus: &'a Gpus,
    start: Option<usize>,
    len: usize,
}

impl Outputs<'_> {
    /// Number of outputs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Are there no outputs?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Passes each output to the host through `body`. The host then owns them.
    pub fn pass_to_host(mut self, body: impl FnMut(MemberView)) {
        if let Some(start) = self.start.take() {
            owned::for_each_of_bundle(start, body);
        }
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        if let Some(bundle) = self.start.take().and_then(owned::withdraw_bundle) {
            free(self.gpus, &bundle);
        }
    }
}
