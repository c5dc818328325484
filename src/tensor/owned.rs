//! Tensors that the library filled in: what goes when they are released.
//!
//! A tensor has no field for its owner, so that its shape says who that is: it is memory of ours, one of
//! its own for each such tensor, and leads to the rest in a table. The table outlives a shutdown, since
//! what others lent must be given back all the same.

use super::bundle::{Bundle, Given};
use super::bundles::Bundles;
use super::ranges::{Range, Ranges};
use super::{Parts, Place, Tensor};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::thread::Inside;
use crate::base::waiting;
use crate::gpu::device::Device;
use crate::gpu::stream::Stream;
use crate::memory;
use crate::runtime::{self, Runtime};
use crate::tensor::Dtype;
use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What another library lent, and how it is given back.
#[derive(Clone, Copy, Debug)]
pub struct Loan {
    /// What the function takes.
    pub object: *mut c_void,
    /// Gives it back.
    pub deleter: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: whoever lends lets any thread give it back.
unsafe impl Send for Loan {}

impl Loan {
    /// Gives it back.
    fn end(self) {
        if let Some(deleter) = self.deleter {
            let _waiting = waiting::in_host_function();
            // SAFETY: the lender's promise, kept once: the table had it once.
            unsafe { deleter(self.object) };
        }
    }
}

/// A block of ours, in one life of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    address: u64,
    generation: u64,
    /// Of pinned memory, not of a device's.
    is_pinned: bool,
}

impl Block {
    /// Memory of a device.
    pub fn of_device(runtime: &Runtime, address: u64) -> Block {
        Block { address, generation: runtime.generation, is_pinned: false }
    }

    /// Pinned memory of the host.
    pub fn of_host(runtime: &Runtime, address: u64) -> Block {
        Block { address, generation: runtime.generation, is_pinned: true }
    }

    /// Where it begins.
    pub fn address(self) -> u64 {
        self.address
    }

    /// As a bundle has it.
    pub(super) fn words(self) -> [i64; 3] {
        [self.address as i64, self.generation as i64, self.is_pinned.into()]
    }

    /// From that.
    pub(super) fn of_words([address, generation, is_pinned, _]: &[i64; 4]) -> Block {
        let (address, generation) = (*address as u64, *generation as u64);
        Block { address, generation, is_pinned: *is_pinned != 0 }
    }

    /// Gives it back in the order of its stream; after a shutdown it is gone already.
    pub fn free(self, inside: &Inside) -> Result<()> {
        runtime::existing(inside).map_or(Ok(()), |runtime| self.free_in(runtime))
    }

    /// The same where the runtime is known.
    pub fn free_in(self, runtime: &Runtime) -> Result<()> {
        match self.address {
            0 => Ok(()),
            _ if runtime.generation != self.generation => Ok(()),
            address if self.is_pinned => {
                let _uncancelled = waiting::uncancelled();
                runtime.host.free(runtime, address as usize)
            }
            address => memory::free(runtime, address),
        }
    }
}

/// Whose memory a tensor has.
#[derive(Debug)]
enum Source {
    Block(Block),
    Loan(Loan),
    /// It is another tensor's, or others of its bundle are in its block.
    Others,
}

/// Sizes, then strides.
pub type Sizes = Box<[i64]>;

/// What a tensor has that the library filled in.
#[derive(Debug)]
struct Entry {
    source: Source,
    /// What the tensor's shape and strides lead to.
    sizes: Sizes,
    data: u64,
    /// Its bytes, if it must not be written.
    read_only: Option<Range>,
}

type Entries = HashMap<usize, Entry, BuildHasherDefault<DefaultHasher>>;

/// Tensors that the library filled in.
struct Filled {
    /// Single ones, by the addresses of their shapes.
    entries: Entries,
    /// Bytes of those of them that must not be written.
    read_only: Ranges,
    /// Those that were filled in together, by where their sizes begin.
    bundles: Bundles,
}

static TABLE: Mutex<Filled> = Mutex::new(
    Rank::LEAF,
    Filled {
        entries: Entries::with_hasher(BuildHasherDefault::new()),
        read_only: Ranges::new(),
        bundles: Bundles::new(),
    },
);
/// Tensors that must not be written, so that nobody looks where there are none.
static READ_ONLY: AtomicUsize = AtomicUsize::new(0);

const NO_ROOM: Error = Error::OutOfHostMemory("a tensor");
const NOT_OURS: Error = Error::Invalid(
    "the tensor is not one that tcuda filled in, or was released already; one of the host's own needs \
     no release",
);

/// What a tensor's own shape and strides are, as the host gets them.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    /// Sizes.
    pub shape: *mut i64,
    /// Strides.
    pub strides: *mut i64,
}

/// Room for sizes and strides, filled; one element at least, so that it has an address.
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

fn insert(tensor: &Tensor, source: Source, read_only: bool) -> Result<Lent> {
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
    Ok(Lent { shape, strides })
}

/// Keeps what another library lent as a tensor; on failure it stays the caller's.
pub fn adopt(tensor: &Tensor, loan: Loan, read_only: bool) -> Result<Lent> {
    insert(tensor, Source::Loan(loan), read_only)
}

/// Memory for a tensor of our own, its elements side by side.
pub fn allocate(
    runtime: &Runtime,
    device: &Device,
    stream: &Stream,
    dtype: Dtype,
    shape: &[i64],
) -> Result<(Tensor, Lent)> {
    // Any address will do to find the size.
    let place = Place::Cuda(device.ordinal());
    let parts = Parts { data: 1, byte_offset: 0, place, dtype, shape, strides: None };
    let (first, end) = Tensor::new(parts)?.range()?;
    let address = device.memory.allocate(runtime, device, stream, end - first)?;
    let made = Tensor::new(Parts { data: address, ..parts }).and_then(|tensor| {
        let block = Block::of_device(runtime, address);
        insert(&tensor, Source::Block(block), false).map(|lent| (tensor, lent))
    });
    if made.is_err() && address != 0 {
        // Nobody has used it.
        let _ = memory::free(runtime, address);
    }
    made
}

/// What a tensor had that is no more.
#[derive(Debug)]
pub struct Taken {
    source: Source,
}

const NOT_ITS_DATA: Error = Error::Invalid(
    "the tensor's data is not what tcuda wrote there; put that back, and use byte_offset to begin \
     elsewhere",
);

impl Filled {
    /// An error unless the host has the tensor, with this data.
    fn require_lent(&self, (bundle, member): (usize, usize), data: u64) -> Result<()> {
        match self.bundles.of(bundle).data_if_lent(member) {
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
            // So that nothing is left of it at the end.
            self.entries = Entries::default();
        }
        Ok(Some(entry))
    }

    /// Ends a tensor of a bundle; with the last one the bundle goes to `gone`, to be dropped when no
    /// lock is held.
    fn end_member(&mut self, (index, member): (usize, usize), gone: &mut Bundle) -> Source {
        let bundle = self.bundles.of_mut(index);
        if bundle.is_read_only(member) {
            READ_ONLY.fetch_sub(1, Ordering::Relaxed);
        }
        let (block, is_last) = bundle.end(member);
        if is_last {
            *gone = self.bundles.remove(index);
        }
        block.map_or(Source::Others, Source::Block)
    }
}

/// Takes the tensor with this shape and data out of the table.
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
    table.require_lent(member, data)?;
    let source = table.end_member(member, &mut gone);
    drop(table);
    Ok(Taken { source })
}

impl Taken {
    /// Gives back what the tensor had.
    pub fn end(self, inside: &Inside) -> Result<()> {
        match self.source {
            Source::Block(block) => block.free(inside),
            Source::Loan(loan) => {
                loan.end();
                Ok(())
            }
            Source::Others => Ok(()),
        }
    }
}

/// Puts tensors that were filled in together into the table, before the host has them; gives what
/// names them. On failure they stay where they are.
pub fn insert_bundle(bundle: &mut Bundle) -> Result<usize> {
    let (start, read_only) = (bundle.start(), bundle.num_read_only());
    let mut table = TABLE.lock();
    table.bundles.insert(bundle)?;
    READ_ONLY.fetch_add(read_only, Ordering::Relaxed);
    Ok(start)
}

/// Calls `body` with each tensor of a bundle that the host does not have yet, in their order.
pub fn for_each_of_bundle(start: usize, body: impl FnMut(Given)) {
    let mut table = TABLE.lock();
    if let Some(index) = table.bundles.starting_at(start) {
        table.bundles.of_mut(index).given().for_each(body);
    }
}

/// Takes a bundle back that the host did not get.
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

/// Must a tensor with this shape not be written? What the library filled in says so itself; a tensor of
/// the host's own must not share a byte with a read-only one that the library filled in.
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
    view.range().is_ok_and(|range| table.read_only.meets(range))
}

/// What a capsule has of a tensor's.
#[derive(Clone, Copy, Debug)]
pub enum Share {
    /// A block for itself.
    Block(Block),
    /// The part of a bundle's tensor, by where its shape was.
    Member(usize),
    /// What another library lent, seen in another way than it was lent.
    Loan(Loan),
}

impl Share {
    /// Gives it back, as for the tensor.
    pub fn end(self, inside: &Inside) -> Result<()> {
        match self {
            Share::Block(block) => block.free(inside),
            Share::Loan(loan) => {
                loan.end();
                Ok(())
            }
            Share::Member(shape) => {
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

/// What a tensor becomes when it is moved out.
#[derive(Debug)]
pub enum Moved {
    /// The loan that it came from.
    Loan(Loan),
    /// Memory of ours, with the sizes and strides of the tensor.
    Ours(Share),
}

/// Was a tensor with this shape filled in by the library?
pub fn is_ours(shape: usize) -> bool {
    let table = TABLE.lock();
    table.entries.contains_key(&shape) || table.bundles.find(shape).is_some()
}

/// Moves a tensor that the library filled in out of the table.
pub fn take_out(shape: usize, data: u64) -> Result<Moved> {
    let mut table = TABLE.lock();
    if let Some(entry) = table.take_entry(shape, data)? {
        return Ok(match entry.source {
            Source::Loan(loan) => Moved::Loan(loan),
            Source::Block(block) => Moved::Ours(Share::Block(block)),
            Source::Others => return Err(NOT_OURS),
        });
    }
    let (bundle, member) = table.bundles.find(shape).ok_or(NOT_OURS)?;
    table.require_lent((bundle, member), data)?;
    table.bundles.of_mut(bundle).move_out(member);
    Ok(Moved::Ours(Share::Member(shape)))
}

/// The block at which a tensor of the host's own begins, to be moved out with it.
pub fn block_of(runtime: &Runtime, tensor: &Tensor) -> Result<Block> {
    let block = Block::of_device(runtime, tensor.data);
    if tensor.data != 0 {
        memory::find(tensor.data)?;
        tensor.require_on(runtime)?;
    }
    Ok(block)
}

#[cfg(test)]
#[path = "owned_tests.rs"]
mod tests;
