//! Tensors that the library filled in, and what is freed when they are released.
//!
//! A tensor has no field for its owner. Its shape identifies it: the library allocates a shape for
//! each such tensor, and a table maps its address to the owner. The table outlives a shutdown,
//! because tensors of other libraries must still be returned to them.

use super::bundle::{Bundle, MemberView};
use super::bundles::Bundles;
use super::ranges::{Range, Ranges};
use super::{Parts, Place, Tensor};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::thread::Inside;
use crate::base::waiting;
use crate::gpu::device::Device;
use crate::gpu::gpus::{self, Gpus};
use crate::gpu::stream::Stream;
use crate::memory;
use crate::tensor::Dtype;
use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A tensor that another library passed to this one, as `DLManagedTensor` describes it.
#[derive(Clone, Copy, Debug)]
pub struct ForeignTensor {
    /// The argument of `deleter`.
    pub object: *mut c_void,
    /// Returns the tensor to the other library.
    pub deleter: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: DLPack lets any thread call the deleter.
unsafe impl Send for ForeignTensor {}

impl ForeignTensor {
    /// Returns it to the other library.
    fn end(self) {
        if let Some(deleter) = self.deleter {
            let _waiting = waiting::in_host_function();
            // SAFETY: DLPack's contract; called once, because the table held it once.
            unsafe { deleter(self.object) };
        }
    }
}

/// A block of the library, of one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    address: u64,
    generation: u64,
    /// Pinned host memory instead of device memory.
    is_pinned: bool,
}

impl Block {
    /// A block of device memory.
    pub fn of_device(gpus: &Gpus, address: u64) -> Block {
        Block { address, generation: gpus.generation, is_pinned: false }
    }

    /// A block of pinned host memory.
    pub fn of_host(gpus: &Gpus, address: u64) -> Block {
        Block { address, generation: gpus.generation, is_pinned: true }
    }

    /// The first address.
    pub fn address(self) -> u64 {
        self.address
    }

    /// Encodes it for a bundle.
    pub(super) fn words(self) -> [i64; 3] {
        [self.address as i64, self.generation as i64, self.is_pinned.into()]
    }

    /// Decodes what [`Block::words`] encoded.
    pub(super) fn of_words([address, generation, is_pinned, _]: &[i64; 4]) -> Block {
        let (address, generation) = (*address as u64, *generation as u64);
        Block { address, generation, is_pinned: *is_pinned != 0 }
    }

    /// Frees it in the order of its stream. Does nothing if its generation has ended.
    pub fn free(self, inside: &Inside) -> Result<()> {
        gpus::existing(inside).map_or(Ok(()), |gpus| self.free_in(gpus))
    }

    /// The same with a known runtime.
    pub fn free_in(self, gpus: &Gpus) -> Result<()> {
        match self.address {
            0 => Ok(()),
            _ if gpus.generation != self.generation => Ok(()),
            address if self.is_pinned => {
                let _uncancelled = waiting::uncancelled();
                gpus.pinned().free(gpus, address as usize)
            }
            address => memory::free(gpus, address),
        }
    }
}

/// The owner of a tensor's memory.
#[derive(Debug)]
enum Source {
    Block(Block),
    Foreign(ForeignTensor),
    /// Another tensor owns the memory, or others of its bundle still share its block.
    Shared,
}

/// Sizes, then strides.
pub type Sizes = Box<[i64]>;

/// A tensor that the library filled in by itself, not in a bundle.
#[derive(Debug)]
struct Entry {
    source: Source,
    /// The tensor's shape and strides point here.
    sizes: Sizes,
    data: u64,
    /// Its bytes, if it must not be written.
    read_only: Option<Range>,
}

type Entries = HashMap<usize, Entry, BuildHasherDefault<DefaultHasher>>;

/// The tensors that the library filled in.
struct TensorTable {
    /// Single tensors, by the addresses of their shapes.
    entries: Entries,
    /// Bytes of the single tensors that must not be written.
    read_only: Ranges,
    /// Bundles, by the addresses of their first sizes.
    bundles: Bundles,
}

static TABLE: Mutex<TensorTable> = Mutex::new(
    Rank::LEAF,
    TensorTable {
        entries: Entries::with_hasher(BuildHasherDefault::new()),
        read_only: Ranges::new(),
        bundles: Bundles::new(),
    },
);
/// Number of tensors that must not be written. At zero no check takes the lock.
static READ_ONLY: AtomicUsize = AtomicUsize::new(0);

const NO_ROOM: Error = Error::OutOfHostMemory("a tensor");
const NOT_OURS: Error = Error::Invalid(
    "the tensor is not one that tcuda filled in, or was released already; one of the host's own \
     needs no release",
);

/// Pointers to the shape and strides of a tensor, for the host.
#[derive(Clone, Copy, Debug)]
pub struct SizePointers {
    /// Points to the sizes.
    pub shape: *mut i64,
    /// Points to the strides.
    pub strides: *mut i64,
}

/// Allocates and fills sizes and strides. At least one element, so that the address is unique.
pub fn sizes(tensor: &Tensor) -> Result<Sizes> {
    let ndim = tensor.shape().len();
    let mut sizes = Vec::new();
    sizes.try_reserve_exact((2 * ndim).max(1)).map_err(|_| NO_ROOM)?;
    sizes.extend_from_slice(tensor.shape());
    sizes.extend_from_slice(tensor.strides());
    if ndim == 0 {
        sizes.push(0);
    }
    Ok(sizes.into_boxed_slice())
}

fn insert(tensor: &Tensor, source: Source, read_only: bool) -> Result<SizePointers> {
    let mut sizes = sizes(tensor)?;
    let read_only = if read_only { Some(tensor.range()?) } else { None };
    let shape = sizes.as_mut_ptr();
    let strides = shape.wrapping_add(tensor.shape().len());
    let mut table = TABLE.lock();
    table.entries.try_reserve(1).map_err(|_| NO_ROOM)?;
    if let Some(range) = read_only {
        table.read_only.insert(range)?;
    }
    let entry = Entry { source, sizes, data: tensor.data, read_only };
    table.entries.insert(shape as usize, entry);
    READ_ONLY.fetch_add(usize::from(read_only.is_some()), Ordering::Relaxed);
    Ok(SizePointers { shape, strides })
}

/// Registers a tensor of another library. On failure the caller keeps it.
pub fn adopt(tensor: &Tensor, foreign: ForeignTensor, read_only: bool) -> Result<SizePointers> {
    insert(tensor, Source::Foreign(foreign), read_only)
}

/// Allocates and registers a contiguous tensor.
pub fn allocate(
    gpus: &Gpus,
    device: &Device,
    stream: &Stream,
    dtype: Dtype,
    shape: &[i64],
) -> Result<(Tensor, SizePointers)> {
    // The size does not depend on the address.
    let place = Place::Cuda(device.ordinal());
    let parts = Parts { data: 1, byte_offset: 0, place, dtype, shape, strides: None };
    let (first, end) = Tensor::new(parts)?.range()?;
    let address = device.memory().allocate(gpus, device, stream, end - first)?;
    let made = Tensor::new(Parts { data: address, ..parts }).and_then(|tensor| {
        let block = Block::of_device(gpus, address);
        insert(&tensor, Source::Block(block), false).map(|pointers| (tensor, pointers))
    });
    if made.is_err() && address != 0 {
        // No work uses it yet.
        let _ = memory::free(gpus, address);
    }
    made
}

/// The memory of a tensor that was removed from the table.
#[derive(Debug)]
pub struct Taken {
    source: Source,
}

const NOT_ITS_DATA: Error = Error::Invalid(
    "the tensor's data is not what tcuda wrote there; put that back, and use byte_offset to begin \
     elsewhere",
);

impl TensorTable {
    /// An error unless the host holds the tensor, with this `data`.
    fn require_held(&self, (bundle, member): (usize, usize), data: u64) -> Result<()> {
        match self.bundles.of(bundle).data_if_held(member) {
            Some(known) if known == data => Ok(()),
            Some(_) => Err(NOT_ITS_DATA),
            None => Err(NOT_OURS),
        }
    }

    fn take_entry(&mut self, shape: usize, data: u64) -> Result<Option<Entry>> {
        match self.entries.get(&shape) {
            None => return Ok(None),
            Some(entry) if entry.data == data => (),
            Some(_) => return Err(NOT_ITS_DATA),
        }
        let entry = self.entries.remove(&shape).ok_or(NOT_OURS)?;
        if let Some(range) = entry.read_only {
            self.read_only.remove(range);
            READ_ONLY.fetch_sub(1, Ordering::Relaxed);
        }
        if self.entries.is_empty() {
            // Returns the memory, so that a leak check at the end finds none.
            self.entries = Entries::default();
        }
        Ok(Some(entry))
    }

    /// Releases a tensor of a bundle. With the last tensor the bundle moves to `gone`, which the
    /// caller drops when it holds no lock.
    fn end_member(&mut self, (index, member): (usize, usize), gone: &mut Bundle) -> Source {
        let bundle = self.bundles.of_mut(index);
        if bundle.is_read_only(member) {
            READ_ONLY.fetch_sub(1, Ordering::Relaxed);
        }
        let (block, is_last) = bundle.end(member);
        if is_last {
            *gone = self.bundles.remove(index);
        }
        block.map_or(Source::Shared, Source::Block)
    }
}

/// Removes the tensor with this shape and data from the table.
pub fn take(shape: usize, data: u64) -> Result<Taken> {
    let mut gone = Bundle::none();
    let mut table = TABLE.lock();
    if !table.entries.is_empty()
        && let Some(Entry { source, sizes, .. }) = table.take_entry(shape, data)?
    {
        drop(table);
        drop(sizes);
        return Ok(Taken { source });
    }
    let member = table.bundles.find(shape).ok_or(NOT_OURS)?;
    table.require_held(member, data)?;
    let source = table.end_member(member, &mut gone);
    drop(table);
    Ok(Taken { source })
}

impl Taken {
    /// Frees the memory, or returns it to the other library.
    pub fn end(self, inside: &Inside) -> Result<()> {
        match self.source {
            Source::Block(block) => block.free(inside),
            Source::Foreign(tensor) => {
                tensor.end();
                Ok(())
            }
            Source::Shared => Ok(()),
        }
    }
}

/// Registers a bundle before the host receives its tensors. Returns the address that identifies it.
/// On failure the caller keeps it.
pub fn insert_bundle(bundle: &mut Bundle) -> Result<usize> {
    let (start, read_only) = (bundle.start(), bundle.num_read_only());
    let mut table = TABLE.lock();
    table.bundles.insert(bundle)?;
    READ_ONLY.fetch_add(read_only, Ordering::Relaxed);
    Ok(start)
}

/// Calls `body` with each tensor of a bundle that the host has not received yet, in order.
pub fn for_each_of_bundle(start: usize, body: impl FnMut(MemberView)) {
    let mut table = TABLE.lock();
    if let Some(index) = table.bundles.starting_at(start) {
        table.bundles.of_mut(index).member_views().for_each(body);
    }
}

/// Removes a bundle that the host has not received.
pub fn withdraw_bundle(start: usize) -> Option<Bundle> {
    let mut table = TABLE.lock();
    let index = table.bundles.starting_at(start)?;
    let bundle = table.bundles.remove(index);
    READ_ONLY.fetch_sub(bundle.num_read_only(), Ordering::Relaxed);
    Some(bundle)
}

/// Is there any tensor that must not be written?
#[inline]
pub fn has_read_only() -> bool {
    READ_ONLY.load(Ordering::Relaxed) != 0
}

/// Must this tensor not be written? The table has the answer for tensors that the library filled
/// in. Any other tensor must not share a byte with a read-only tensor of the table.
pub fn is_read_only(shape: usize, view: &Tensor) -> bool {
    if !has_read_only() {
        return false;
    }
    let table = TABLE.lock();
    if let Some(entry) = table.entries.get(&shape) {
        return entry.read_only.is_some();
    }
    if let Some((bundle, member)) = table.bundles.find(shape) {
        return table.bundles.of(bundle).is_read_only(member);
    }
    view.range().is_ok_and(|range| table.read_only.overlaps(range))
}

/// What a DLPack capsule owns of a tensor.
#[derive(Clone, Copy, Debug)]
pub enum CapsuleMemory {
    /// A whole block.
    Block(Block),
    /// A tensor of a bundle, by the address of its shape.
    Member(usize),
    /// A tensor of another library, as a different view of it.
    Foreign(ForeignTensor),
}

impl CapsuleMemory {
    /// Releases it like the tensor.
    pub fn end(self, inside: &Inside) -> Result<()> {
        match self {
            CapsuleMemory::Block(block) => block.free(inside),
            CapsuleMemory::Foreign(tensor) => {
                tensor.end();
                Ok(())
            }
            CapsuleMemory::Member(shape) => {
                let mut gone = Bundle::none();
                let source = {
                    let mut table = TABLE.lock();
                    let member = table.bundles.find(shape);
                    member.map(|member| table.end_member(member, &mut gone))
                };
                source.map_or(Ok(()), |source| Taken { source }.end(inside))
            }
        }
    }
}

/// What a tensor becomes when it moves into a capsule.
#[derive(Debug)]
pub enum Moved {
    /// The tensor of another library that it was made from.
    Foreign(ForeignTensor),
    /// Memory of the library; the capsule takes the sizes and strides too.
    Ours(CapsuleMemory),
}

/// Did the library fill in the tensor with this shape?
pub fn is_ours(shape: usize) -> bool {
    let table = TABLE.lock();
    table.entries.contains_key(&shape) || table.bundles.find(shape).is_some()
}

/// Moves a tensor that the library filled in to a capsule.
pub fn move_out(shape: usize, data: u64) -> Result<Moved> {
    let mut table = TABLE.lock();
    if let Some(entry) = table.take_entry(shape, data)? {
        return Ok(match entry.source {
            Source::Foreign(tensor) => Moved::Foreign(tensor),
            Source::Block(block) => Moved::Ours(CapsuleMemory::Block(block)),
            Source::Shared => return Err(NOT_OURS),
        });
    }
    let (bundle, member) = table.bundles.find(shape).ok_or(NOT_OURS)?;
    table.require_held((bundle, member), data)?;
    table.bundles.of_mut(bundle).move_out(member);
    Ok(Moved::Ours(CapsuleMemory::Member(shape)))
}

/// The block at which a tensor of the host begins. The capsule takes it with the tensor.
pub fn block_of(gpus: &Gpus, tensor: &Tensor) -> Result<Block> {
    let block = Block::of_device(gpus, tensor.data);
    if tensor.data != 0 {
        memory::find(tensor.data)?;
        tensor.require_on(gpus)?;
    }
    Ok(block)
}

#[cfg(test)]
#[path = "owned_tests.rs"]
mod tests;
