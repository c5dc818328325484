//! Tensors that a verb fills in: their memory while it is not yet certain that all goes well, and then
//! the host's.

use super::check::Home;
use crate::base::error::{Error, Result};
use crate::gpu::device::Device;
use crate::gpu::stream::Stream;
use crate::gpu::sync_debug;
use crate::runtime::Runtime;
use crate::tensor::bundle::{Bundle, MemberView, Site};
use crate::tensor::order::strides_of_copy;
use crate::tensor::owned::{self, Block};
use crate::tensor::{Dtype, MAX_DIMS, Parts, Place, Tensor};

/// Where an output is to be.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// In pinned memory.
    Host,
    /// On a device, in memory of a stream's.
    Device(&'a Device, &'a Stream),
}

impl<'a> Target<'a> {
    /// On which it is allocated and written, on a device.
    pub fn stream(&self) -> Option<&'a Stream> {
        match self {
            Target::Host => None,
            Target::Device(_, stream) => Some(stream),
        }
    }

    /// Where what is made there is.
    pub fn home(&self) -> Home {
        match self {
            Target::Host => Home::Pinned,
            Target::Device(device, _) => Home::Device(device.ordinal()),
        }
    }

    fn place(&self) -> Place {
        match self {
            Target::Host => Place::CudaHost,
            Target::Device(device, _) => Place::Cuda(device.ordinal()),
        }
    }
}

/// Is a tensor where an output is to be?
pub fn is_at(home: Home, target: Target<'_>) -> bool {
    match target {
        Target::Host => home.device().is_none(),
        Target::Device(device, _) => home == Home::Device(device.ordinal()),
    }
}

/// Outputs that are being made. Dropped, they give their memory back.
pub struct Draft<'a> {
    runtime: &'a Runtime,
    bundle: Bundle,
}

impl<'a> Draft<'a> {
    /// None yet, with host memory for so many.
    pub fn new(
        runtime: &'a Runtime,
        tensors: usize,
        sizes: usize,
        blocks: usize,
    ) -> Result<Draft<'a>> {
        Ok(Draft { runtime, bundle: Bundle::with_room(tensors, sizes, blocks)? })
    }

    /// A block for outputs: its number, and where it is.
    pub fn block(&mut self, target: Target<'_>, bytes: u64) -> Result<(u32, u64)> {
        let runtime = self.runtime;
        let block = match target {
            Target::Device(device, stream) => {
                let address = device.memory.allocate(runtime, device, stream, bytes)?;
                Block::of_device(runtime, address)
            }
            Target::Host => {
                sync_debug::before_uncaptured(runtime, sync_debug::HOST_RESULT)?;
                let bytes = usize::try_from(bytes)
                    .map_err(|_| Error::OutOfHostMemory("a tensor in pinned memory"))?;
                Block::of_host(runtime, runtime.host.allocate(runtime, bytes)? as u64)
            }
        };
        let added = self.bundle.add_block(block);
        if added.is_err() {
            // Nobody has used it.
            let _ = block.free_in(runtime);
        }
        Ok((added?, block.address()))
    }

    /// An output in a block of its own, with strides by which its elements fill it: `out` becomes that.
    pub fn dense(
        &mut self,
        target: Target<'_>,
        dtype: Dtype,
        sizes: (&[i64], &[i64]),
        out: &mut Tensor,
    ) -> Result<()> {
        // Any address will do to find the size.
        let (place, shape, strides) = (target.place(), sizes.0, Some(sizes.1));
        out.assign(Parts { data: 1, byte_offset: 0, place, dtype, shape, strides })?;
        let (first, end) = out.range()?;
        out.data = self.range(target, dtype, sizes, end - first)?;
        out.address = out.data;
        Ok(())
    }

    /// The same with the strides of a copy of a tensor.
    #[inline(never)]
    pub fn copy_of(&mut self, target: Target<'_>, tensor: &Tensor, out: &mut Tensor) -> Result<()> {
        let (shape, mut strides) = (tensor.shape(), [0; MAX_DIMS]);
        let strides = &mut strides[..shape.len()];
        strides_of_copy(shape, tensor.strides(), strides);
        self.dense(target, tensor.dtype, (shape, strides), out)
    }

    /// The same where it is known how many bytes that takes: where it is.
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

    /// An output in a block that was made before.
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

    /// The same with elements that lie side by side.
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

    /// An output that is an input, or a part of it.
    pub fn alias(&mut self, tensor: &Tensor) -> Result<()> {
        let sizes = (tensor.shape(), tensor.strides());
        self.alias_of(Site::of(tensor), sizes, tensor.read_only)
    }

    /// The same by where it is, its sizes and its strides.
    pub fn alias_of(&mut self, site: Site, sizes: (&[i64], &[i64]), read_only: bool) -> Result<()> {
        self.bundle.add(site, sizes, None, read_only)
    }

    /// All are made.
    pub fn finish(mut self) -> Result<Outs<'a>> {
        let len = self.bundle.len();
        let start = match len {
            0 => None,
            _ => Some(owned::insert_bundle(&mut self.bundle)?),
        };
        Ok(Outs { runtime: self.runtime, start, len })
    }
}

fn free(runtime: &Runtime, bundle: &Bundle) {
    for block in bundle.blocks() {
        // What failed before is the error to tell.
        let _ = block.free_in(runtime);
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        free(self.runtime, &self.bundle);
    }
}

/// Outputs that are made, and not yet the host's. Dropped, they give their memory back, in the order of
/// what was queued for them.
pub struct Outs<'a> {
    runtime: &'a Runtime,
    start: Option<usize>,
    len: usize,
}

impl Outs<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// They are the host's from now on, which gets them through `body`, one by one.
    pub fn hand_over(mut self, body: impl FnMut(MemberView)) {
        if let Some(start) = self.start.take() {
            owned::for_each_of_bundle(start, body);
        }
    }
}

impl Drop for Outs<'_> {
    fn drop(&mut self) {
        if let Some(bundle) = self.start.take().and_then(owned::withdraw_bundle) {
            free(self.runtime, &bundle);
        }
    }
}
