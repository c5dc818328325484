//! Tensors that one call fills in together: one piece of host memory has the sizes of all of them, and
//! several may lie in one block.

use super::owned::Block;
use super::{Dtype, Place, Tensor};
use crate::error::{Error, Result};

const NO_ROOM: Error = Error::OutOfHostMemory("tensors");

/// Where a tensor of a bundle is.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Start of the memory, as the host gets it.
    pub data: u64,
    /// From there to the first element.
    pub byte_offset: u64,
    /// Where it is.
    pub place: Place,
    /// What its elements are.
    pub dtype: Dtype,
}

impl Site {
    /// That of a tensor, or of a part of one, which may begin before what its host calls the start.
    pub fn of(tensor: &Tensor) -> Site {
        let (place, dtype) = (tensor.place, tensor.dtype);
        match tensor.address.checked_sub(tensor.data) {
            Some(byte_offset) => Site { data: tensor.data, byte_offset, place, dtype },
            None => Site { data: tensor.address, byte_offset: 0, place, dtype },
        }
    }
}

/// A tensor as the host gets it.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// Where it is.
    pub site: Site,
    /// Number of dimensions.
    pub ndim: usize,
    /// Sizes, then strides.
    pub shape: *mut i64,
    /// Strides.
    pub strides: *mut i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The host has it, and releases it.
    Lent,
    /// A capsule has it.
    MovedOut,
    /// It was released.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    /// Where its sizes begin among all.
    start: usize,
    ndim: usize,
    site: Site,
    /// Which of the blocks it is in; `None`: it is another tensor's memory.
    block: Option<u32>,
    read_only: bool,
    state: State,
}

#[derive(Debug)]
struct Counted {
    block: Block,
    /// Tensors in it that are left.
    tensors: usize,
}

/// Tensors that were filled in together.
#[derive(Debug, Default)]
pub struct Bundle {
    sizes: Vec<i64>,
    members: Vec<Member>,
    blocks: Vec<Counted>,
    /// Members that are not gone.
    left: usize,
}

impl Bundle {
    /// None yet, with host memory for so many.
    pub fn with_room(tensors: usize, sizes: usize, blocks: usize) -> Result<Bundle> {
        let mut bundle = Bundle::default();
        bundle.members.try_reserve_exact(tensors).map_err(|_| NO_ROOM)?;
        // Each has an address of its own, also without dimensions.
        let sizes = sizes.saturating_mul(2).saturating_add(tensors);
        bundle.sizes.try_reserve_exact(sizes).map_err(|_| NO_ROOM)?;
        bundle.blocks.try_reserve_exact(blocks).map_err(|_| NO_ROOM)?;
        Ok(bundle)
    }

    /// A block for tensors that are added after it; it goes with the last of these. On failure it is
    /// the caller's.
    pub fn add_block(&mut self, block: Block) -> Result<u32> {
        self.blocks.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.blocks.push(Counted { block, tensors: 0 });
        Ok(self.blocks.len() as u32 - 1)
    }

    /// A tensor in a block, or in memory that is not the bundle's.
    pub fn add(
        &mut self,
        site: Site,
        (shape, strides): (&[i64], &[i64]),
        block: Option<u32>,
        read_only: bool,
    ) -> Result<()> {
        let (start, ndim) = (self.sizes.len(), shape.len());
        self.sizes.try_reserve((2 * ndim).max(1)).map_err(|_| NO_ROOM)?;
        self.members.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.sizes.extend_from_slice(shape);
        self.sizes.extend_from_slice(strides);
        if ndim == 0 {
            self.sizes.push(0);
        }
        self.members.push(Member { start, ndim, site, block, read_only, state: State::Lent });
        self.left += 1;
        if let Some(counted) = block.and_then(|block| self.blocks.get_mut(block as usize)) {
            counted.tensors += 1;
        }
        Ok(())
    }

    /// How many tensors it has, and had.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Blocks that a tensor is left of, to be freed.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        self.blocks.iter().map(|counted| counted.block)
    }

    /// Where the sizes begin: what tells bundles apart.
    pub(super) fn start(&self) -> usize {
        self.sizes.as_ptr() as usize
    }

    /// How many tensors must not be written.
    pub(super) fn num_read_only(&self) -> usize {
        self.members.iter().filter(|member| member.read_only).count()
    }

    /// Its tensors as the host gets them.
    pub(super) fn given(&mut self) -> impl Iterator<Item = Given> {
        let sizes = self.sizes.as_mut_ptr();
        self.members.iter().map(move |member| {
            let shape = sizes.wrapping_add(member.start);
            let (site, ndim) = (member.site, member.ndim);
            Given { site, ndim, shape, strides: shape.wrapping_add(ndim) }
        })
    }

    /// The tensor with this shape, if it is not gone.
    pub(super) fn find(&self, shape: usize) -> Option<usize> {
        let bytes = shape.checked_sub(self.start())?;
        if !bytes.is_multiple_of(size_of::<i64>()) {
            return None;
        }
        let start = bytes / size_of::<i64>();
        let index = self.members.binary_search_by_key(&start, |member| member.start).ok()?;
        (self.members[index].state != State::Gone).then_some(index)
    }

    /// Does the host have a tensor, rather than a capsule? And its data, if so.
    pub(super) fn data_if_lent(&self, index: usize) -> Option<u64> {
        let member = &self.members[index];
        (member.state == State::Lent).then_some(member.site.data)
    }

    /// Must a tensor not be written?
    pub(super) fn is_read_only(&self, index: usize) -> bool {
        self.members[index].read_only
    }

    /// A capsule has a tensor from now on.
    pub(super) fn move_out(&mut self, index: usize) {
        self.members[index].state = State::MovedOut;
    }

    /// Ends a tensor: a block that nobody else is in, and whether no tensor is left.
    pub(super) fn end(&mut self, index: usize) -> (Option<Block>, bool) {
        let member = &mut self.members[index];
        member.state = State::Gone;
        self.left -= 1;
        let counted = member.block.and_then(|block| self.blocks.get_mut(block as usize));
        let free = counted.and_then(|counted| {
            counted.tensors -= 1;
            (counted.tensors == 0).then_some(counted.block)
        });
        (free, self.left == 0)
    }
}
