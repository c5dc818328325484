//! Tensors that one call fills in together: one piece of host memory has all that is known of them and
//! their sizes, and several may lie in one block.

use super::owned::Block;
use super::{Dtype, Place, Tensor, compact};
use crate::base::error::{Error, Result};

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

/// The host has it, and releases it.
const LENT: u8 = 0;
/// A capsule has it.
const MOVED_OUT: u8 = 1;
/// It was released.
const GONE: u8 = 2;

/// A tensor.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Where its sizes begin among all.
    start: usize,
    ndim: u8,
    site: Site,
    /// Which of the blocks it is in; `None`: it is another tensor's memory.
    block: Option<u32>,
    read_only: bool,
    state: u8,
}

/// Words of a tensor.
const MEMBER: usize = 6;
/// Words of a block.
const BLOCK: usize = 4;

impl Member {
    fn words(&self) -> [i64; MEMBER] {
        let Site { data, byte_offset, place, dtype } = self.site;
        let (kind, device) = place.numbers();
        let block = self.block.map_or(u32::MAX, |block| block);
        let bytes = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32) as i64;
        [
            self.start as i64,
            data as i64,
            byte_offset as i64,
            bytes(kind as u32, device as u32),
            bytes(
                u32::from_le_bytes([self.ndim, self.state, self.read_only.into(), dtype.bits]),
                block,
            ),
            bytes(dtype.lanes.into(), dtype.code.into()),
        ]
    }

    fn of(words: &[i64; MEMBER]) -> Member {
        let low = |word: usize| words[word] as u32;
        let high = |word: usize| (words[word] as u64 >> 32) as u32;
        let [ndim, state, read_only, bits] = low(4).to_le_bytes();
        let dtype = Dtype { code: high(5) as u8, bits, lanes: low(5) as u16 };
        // As it was written.
        let place = Place::of(low(3) as i32, high(3) as i32).unwrap_or(Place::Cpu);
        let site = Site { data: words[1] as u64, byte_offset: words[2] as u64, place, dtype };
        let block = Some(high(4)).filter(|block| *block != u32::MAX);
        let (start, read_only) = (words[0] as usize, read_only != 0);
        Member { start, ndim, site, block, read_only, state }
    }
}

/// The state of a tensor, without the rest.
fn state_of(words: &[i64; MEMBER]) -> u8 {
    (words[4] >> 8) as u8
}

fn set_state(words: &mut [i64; MEMBER], state: u8) {
    words[4] = words[4] & !(0xff << 8) | i64::from(state) << 8;
}

/// Tensors that were filled in together.
#[derive(Debug, Default)]
pub struct Bundle {
    /// The tensors, then the blocks with how many tensors are in each, then the sizes.
    words: Vec<i64>,
    /// For how many tensors there is room, and how many there are.
    room: u32,
    tensors: u32,
    /// The same of blocks.
    block_room: u32,
    blocks: u32,
    /// Words of sizes that are taken.
    sizes: u32,
    /// Members that are not gone.
    left: u32,
    /// Members that must not be written.
    read_only: u32,
    /// Which is likely to be asked for next: hosts release them in their order.
    next: u32,
}

impl Bundle {
    /// Nothing.
    pub(super) const fn none() -> Bundle {
        let (room, tensors, block_room, blocks) = (0, 0, 0, 0);
        let (sizes, left, read_only, next) = (0, 0, 0, 0);
        let words = Vec::new();
        Bundle { words, room, tensors, block_room, blocks, sizes, left, read_only, next }
    }

    /// None yet, with host memory for so many.
    pub fn with_room(tensors: usize, sizes: usize, blocks: usize) -> Result<Bundle> {
        let (Ok(room), Ok(block_room)) = (u32::try_from(tensors), u32::try_from(blocks)) else {
            return Err(NO_ROOM);
        };
        if u32::try_from(sizes.saturating_mul(2).saturating_add(tensors)).is_err() {
            return Err(NO_ROOM);
        }
        let mut bundle = Bundle { room, block_room, ..Bundle::none() };
        let first = bundle.first();
        // Each has an address of its own, also without dimensions.
        let sizes = sizes.saturating_mul(2).saturating_add(tensors);
        let words = first.saturating_add(sizes);
        bundle.words.try_reserve_exact(words).map_err(|_| NO_ROOM)?;
        bundle.words.resize(words, 0);
        Ok(bundle)
    }

    /// Where the sizes begin.
    fn first(&self) -> usize {
        self.room as usize * MEMBER + self.block_room as usize * BLOCK
    }

    fn members(&self) -> &[[i64; MEMBER]] {
        self.words[..self.tensors as usize * MEMBER].as_chunks().0
    }

    fn member_mut(&mut self, index: usize) -> &mut [i64; MEMBER] {
        &mut self.words.as_chunks_mut().0[index]
    }

    fn block_mut(&mut self, index: u32) -> Option<&mut [i64; BLOCK]> {
        let first = self.room as usize * MEMBER;
        let blocks = &mut self.words[first..first + self.blocks as usize * BLOCK];
        blocks.as_chunks_mut().0.get_mut(index as usize)
    }

    /// A block for tensors that are added after it; it goes with the last of these. On failure it is
    /// the caller's.
    pub fn add_block(&mut self, block: Block) -> Result<u32> {
        if self.blocks == self.block_room {
            return Err(NO_ROOM);
        }
        let index = self.blocks;
        self.blocks += 1;
        if let Some(words) = self.block_mut(index) {
            let [address, generation, is_pinned] = block.words();
            *words = [address, generation, is_pinned, 0];
        }
        Ok(index)
    }

    /// A tensor in a block, or in memory that is not the bundle's.
    pub fn add(
        &mut self,
        site: Site,
        (shape, strides): (&[i64], &[i64]),
        block: Option<u32>,
        read_only: bool,
    ) -> Result<()> {
        let (own_shape, own_strides) = self.add_one(site, shape.len(), block, read_only)?;
        own_shape.copy_from_slice(shape);
        own_strides.copy_from_slice(strides);
        Ok(())
    }

    /// The same of elements that lie side by side.
    pub fn add_compact(&mut self, site: Site, shape: &[i64], block: Option<u32>) -> Result<()> {
        let (own_shape, own_strides) = self.add_one(site, shape.len(), block, false)?;
        own_shape.copy_from_slice(shape);
        compact(shape, own_strides);
        Ok(())
    }

    /// One of so many dimensions, and where its sizes and strides go.
    fn add_one(
        &mut self,
        site: Site,
        ndim: usize,
        block: Option<u32>,
        read_only: bool,
    ) -> Result<(&mut [i64], &mut [i64])> {
        let (first, start) = (self.first(), self.sizes as usize);
        let end = start + (2 * ndim).max(1);
        if self.tensors == self.room || first + end > self.words.len() {
            return Err(NO_ROOM);
        }
        let member = Member { start, ndim: ndim as u8, site, block, read_only, state: LENT };
        *self.member_mut(self.tensors as usize) = member.words();
        self.tensors += 1;
        self.left += 1;
        self.read_only += u32::from(read_only);
        self.sizes = end as u32;
        if let Some([.., tensors]) = block.and_then(|block| self.block_mut(block)) {
            *tensors += 1;
        }
        Ok(self.words[first + start..][..2 * ndim].split_at_mut(ndim))
    }

    /// How many tensors it has, and had.
    pub fn len(&self) -> usize {
        self.tensors as usize
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.tensors == 0
    }

    /// Blocks that a tensor is left of, to be freed.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        let first = self.room as usize * MEMBER;
        let blocks = &self.words[first..first + self.blocks as usize * BLOCK];
        blocks.as_chunks::<BLOCK>().0.iter().map(Block::of_words)
    }

    /// Where the sizes begin: what tells bundles apart.
    pub(super) fn start(&self) -> usize {
        self.words.as_ptr() as usize + self.first() * size_of::<i64>()
    }

    /// How many tensors must not be written.
    pub(super) fn num_read_only(&self) -> usize {
        self.read_only as usize
    }

    /// Its tensors as the host gets them.
    pub(super) fn given(&mut self) -> impl Iterator<Item = Given> {
        let sizes = self.words.as_mut_ptr().wrapping_add(self.first());
        self.members().iter().map(move |words| {
            let Member { start, ndim, site, .. } = Member::of(words);
            let (shape, ndim) = (sizes.wrapping_add(start), ndim.into());
            Given { site, ndim, shape, strides: shape.wrapping_add(ndim) }
        })
    }

    /// The tensor with this shape, if it is not gone.
    pub(super) fn find(&self, shape: usize) -> Option<usize> {
        let bytes = shape.checked_sub(self.start())?;
        let start = (bytes / size_of::<i64>()) as i64;
        let is_inside = start < i64::from(self.sizes);
        if !is_inside || !bytes.is_multiple_of(size_of::<i64>()) {
            return None;
        }
        let members = self.members();
        let next = self.next as usize;
        let index = match members.get(next) {
            Some([first, ..]) if *first == start => next,
            _ => members.binary_search_by_key(&start, |[first, ..]| *first).ok()?,
        };
        (state_of(&members[index]) != GONE).then_some(index)
    }

    /// Does the host have a tensor, rather than a capsule? And its data, if so.
    pub(super) fn data_if_lent(&self, index: usize) -> Option<u64> {
        let words = &self.members()[index];
        (state_of(words) == LENT).then_some(words[1] as u64)
    }

    /// Must a tensor not be written?
    pub(super) fn is_read_only(&self, index: usize) -> bool {
        self.read_only > 0 && Member::of(&self.members()[index]).read_only
    }

    /// A capsule has a tensor from now on.
    pub(super) fn move_out(&mut self, index: usize) {
        set_state(self.member_mut(index), MOVED_OUT);
    }

    /// Ends a tensor: a block that nobody else is in, and whether no tensor is left.
    pub(super) fn end(&mut self, index: usize) -> (Option<Block>, bool) {
        let words = self.member_mut(index);
        set_state(words, GONE);
        // Of others' memory it is the number of none.
        let block = (words[4] as u64 >> 32) as u32;
        self.left -= 1;
        self.next = index as u32 + 1;
        let free = self.block_mut(block).and_then(|words| {
            words[BLOCK - 1] -= 1;
            (words[BLOCK - 1] == 0).then(|| Block::of_words(words))
        });
        (free, self.left == 0)
    }
}
