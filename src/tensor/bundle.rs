//! Bundles: tensors that one call fills in together. One allocation of host memory has their
//! metadata and sizes. Several tensors may share a block.

use super::owned::Block;
use super::{Dtype, Place, Tensor, compact};
use crate::base::error::{Error, Result};

const NO_ROOM: Error = Error::OutOfHostMemory("tensors");

/// The place of a tensor of a bundle in memory.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Start of the memory, as the host sees it.
    pub data: u64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
    /// The kind of memory, and its device.
    pub place: Place,
    /// Type of the elements.
    pub dtype: Dtype,
}

impl Site {
    /// The site of a tensor. A part of a tensor may begin before its `data`; then `byte_offset` is
    /// 0.
    pub fn of(tensor: &Tensor) -> Site {
        let (place, dtype) = (tensor.place, tensor.dtype);
        match tensor.address.checked_sub(tensor.data) {
            Some(byte_offset) => Site { data: tensor.data, byte_offset, place, dtype },
            None => Site { data: tensor.address, byte_offset: 0, place, dtype },
        }
    }
}

/// A tensor of a bundle, with pointers to its sizes.
#[derive(Clone, Copy, Debug)]
pub struct MemberView {
    /// The place in memory.
    pub site: Site,
    /// Number of dimensions.
    pub ndim: usize,
    /// Points to the sizes; the strides follow them.
    pub shape: *mut i64,
    /// Points to the strides.
    pub strides: *mut i64,
}

/// The host holds it, and releases it.
const HELD_BY_HOST: u8 = 0;
/// A DLPack capsule holds it.
const MOVED_OUT: u8 = 1;
/// It was released.
const RELEASED: u8 = 2;

/// The metadata of a tensor.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Index of its first size, counted from the first size of the bundle.
    start: usize,
    ndim: u8,
    site: Site,
    /// Index of its block; `None`: its memory belongs to another tensor.
    block: Option<u32>,
    read_only: bool,
    state: u8,
}

/// Words that encode a [`Member`].
const MEMBER_WORDS: usize = 6;
/// Words that encode a block.
const BLOCK_WORDS: usize = 4;

impl Member {
    fn words(&self) -> [i64; MEMBER_WORDS] {
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

    fn of(words: &[i64; MEMBER_WORDS]) -> Member {
        let low = |word: usize| words[word] as u32;
        let high = |word: usize| (words[word] as u64 >> 32) as u32;
        let [ndim, state, read_only, bits] = low(4).to_le_bytes();
        let dtype = Dtype { code: high(5) as u8, bits, lanes: low(5) as u16 };
        // `words` wrote a valid place.
        let place = Place::of(low(3) as i32, high(3) as i32).unwrap_or(Place::Cpu);
        let site = Site { data: words[1] as u64, byte_offset: words[2] as u64, place, dtype };
        let block = Some(high(4)).filter(|block| *block != u32::MAX);
        let (start, read_only) = (words[0] as usize, read_only != 0);
        Member { start, ndim, site, block, read_only, state }
    }
}

/// The state alone, without decoding the other fields.
fn state_of(words: &[i64; MEMBER_WORDS]) -> u8 {
    (words[4] >> 8) as u8
}

fn set_state(words: &mut [i64; MEMBER_WORDS], state: u8) {
    words[4] = words[4] & !(0xff << 8) | i64::from(state) << 8;
}

/// Tensors that were filled in together.
#[derive(Debug, Default)]
pub struct Bundle {
    /// The members, then the blocks (each with its number of tensors), then the sizes.
    words: Vec<i64>,
    /// Capacity for tensors. `tensors` is how many there are.
    room: u32,
    tensors: u32,
    /// Capacity for blocks. `blocks` is how many there are.
    block_room: u32,
    blocks: u32,
    /// Words of sizes that are in use.
    sizes: u32,
    /// Members that are not released.
    left: u32,
    /// Members that must not be written.
    read_only: u32,
    /// The member that is probably released next: hosts release tensors in order.
    next: u32,
}

impl Bundle {
    /// An empty bundle without memory.
    pub(super) const fn none() -> Bundle {
        let (room, tensors, block_room, blocks) = (0, 0, 0, 0);
        let (sizes, left, read_only, next) = (0, 0, 0, 0);
        let words = Vec::new();
        Bundle { words, room, tensors, block_room, blocks, sizes, left, read_only, next }
    }

    /// An empty bundle with host memory for this many tensors, sizes and blocks.
    pub fn with_room(tensors: usize, sizes: usize, blocks: usize) -> Result<Bundle> {
        let (Ok(room), Ok(block_room)) = (u32::try_from(tensors), u32::try_from(blocks)) else {
            return Err(NO_ROOM);
        };
        if u32::try_from(sizes.saturating_mul(2).saturating_add(tensors)).is_err() {
            return Err(NO_ROOM);
        }
        let mut bundle = Bundle { room, block_room, ..Bundle::none() };
        let first = bundle.first();
        // Each tensor takes at least one word of sizes, so that its address is unique.
        let sizes = sizes.saturating_mul(2).saturating_add(tensors);
        let words = first.saturating_add(sizes);
        bundle.words.try_reserve_exact(words).map_err(|_| NO_ROOM)?;
        bundle.words.resize(words, 0);
        Ok(bundle)
    }

    /// Word at which the sizes begin.
    fn first(&self) -> usize {
        self.room as usize * MEMBER_WORDS + self.block_room as usize * BLOCK_WORDS
    }

    fn members(&self) -> &[[i64; MEMBER_WORDS]] {
        self.words[..self.tensors as usize * MEMBER_WORDS].as_chunks().0
    }

    fn member_mut(&mut self, index: usize) -> &mut [i64; MEMBER_WORDS] {
        &mut self.words.as_chunks_mut().0[index]
    }

    fn block_mut(&mut self, index: u32) -> Option<&mut [i64; BLOCK_WORDS]> {
        let first = self.room as usize * MEMBER_WORDS;
        let blocks = &mut self.words[first..first + self.blocks as usize * BLOCK_WORDS];
        blocks.as_chunks_mut().0.get_mut(index as usize)
    }

    /// Adds a block for tensors that are added later. The block is freed with the last of them. On
    /// failure the caller keeps it.
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

    /// Adds a tensor in a block of the bundle, or in memory that the bundle does not own.
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

    /// Adds a contiguous tensor.
    pub fn add_compact(&mut self, site: Site, shape: &[i64], block: Option<u32>) -> Result<()> {
        let (own_shape, own_strides) = self.add_one(site, shape.len(), block, false)?;
        own_shape.copy_from_slice(shape);
        compact(shape, own_strides);
        Ok(())
    }

    /// Adds a tensor with `ndim` dimensions; returns its slices for sizes and strides.
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
        let member =
            Member { start, ndim: ndim as u8, site, block, read_only, state: HELD_BY_HOST };
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

    /// Number of tensors, released ones included.
    pub fn len(&self) -> usize {
        self.tensors as usize
    }

    /// Does the bundle have no tensors?
    pub fn is_empty(&self) -> bool {
        self.tensors == 0
    }

    /// Its blocks. They are all allocated while no tensor is released.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        let first = self.room as usize * MEMBER_WORDS;
        let blocks = &self.words[first..first + self.blocks as usize * BLOCK_WORDS];
        blocks.as_chunks::<BLOCK_WORDS>().0.iter().map(Block::of_words)
    }

    /// Address of the first size, which identifies the bundle.
    pub(super) fn start(&self) -> usize {
        self.words.as_ptr() as usize + self.first() * size_of::<i64>()
    }

    /// Number of tensors that must not be written.
    pub(super) fn num_read_only(&self) -> usize {
        self.read_only as usize
    }

    /// Its tensors, with pointers to their sizes.
    pub(super) fn member_views(&mut self) -> impl Iterator<Item = MemberView> {
        let sizes = self.words.as_mut_ptr().wrapping_add(self.first());
        self.members().iter().map(move |words| {
            let Member { start, ndim, site, .. } = Member::of(words);
            let (shape, ndim) = (sizes.wrapping_add(start), ndim.into());
            MemberView { site, ndim, shape, strides: shape.wrapping_add(ndim) }
        })
    }

    /// Index of the tensor whose shape is at this address, if it is not released.
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
        (state_of(&members[index]) != RELEASED).then_some(index)
    }

    /// The `data` of a tensor that the host holds; `None` if a capsule holds it.
    pub(super) fn data_if_held(&self, index: usize) -> Option<u64> {
        let words = &self.members()[index];
        (state_of(words) == HELD_BY_HOST).then_some(words[1] as u64)
    }

    /// Must this tensor not be written?
    pub(super) fn is_read_only(&self, index: usize) -> bool {
        self.read_only > 0 && Member::of(&self.members()[index]).read_only
    }

    /// Marks a tensor as held by a capsule.
    pub(super) fn move_out(&mut self, index: usize) {
        set_state(self.member_mut(index), MOVED_OUT);
    }

    /// Releases a tensor. Returns its block if no other tensor is in it, and whether it was the
    /// last tensor of the bundle.
    pub(super) fn end(&mut self, index: usize) -> (Option<Block>, bool) {
        let words = self.member_mut(index);
        set_state(words, RELEASED);
        // `u32::MAX` for memory that the bundle does not own: no block has that index.
        let block = (words[4] as u64 >> 32) as u32;
        self.left -= 1;
        self.next = index as u32 + 1;
        let free = self.block_mut(block).and_then(|words| {
            words[BLOCK_WORDS - 1] -= 1;
            (words[BLOCK_WORDS - 1] == 0).then(|| Block::of_words(words))
        });
        (free, self.left == 0)
    }
}
