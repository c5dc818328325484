//! Tensors that the library filled in: what goes when they are released.
//!
//! A tensor has no field for its owner, so that its shape says who that is: it is memory of ours, one of
//! its own for each such tensor, and leads to the rest in a table. The table outlives a shutdown, since
//! what others lent must be given back all the same.

use super::{Parts, Place, Tensor};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::lock::{Held, Mutex};
use crate::memory;
use crate::rank::{self, Rank};
use crate::runtime::{self, Runtime};
use crate::stream::Stream;
use crate::tensor::Dtype;
use crate::thread::Inside;
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
            rank::before_host_function();
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
}

impl Block {
    /// Gives it back in the order of its stream; after a shutdown it is gone already.
    pub fn free(self, inside: &Inside) -> Result<()> {
        match runtime::existing(inside).filter(|runtime| runtime.generation == self.generation) {
            Some(runtime) if self.address != 0 => memory::free(runtime, self.address),
            _ => Ok(()),
        }
    }
}

/// Whose memory a tensor has.
#[derive(Debug)]
enum Source {
    Block(Block),
    Loan(Loan),
}

/// Sizes, then strides.
pub type Sizes = Box<[i64]>;

/// What a tensor has that the library filled in.
#[derive(Debug)]
pub struct Entry {
    source: Source,
    /// What the tensor's shape and strides lead to.
    _sizes: Sizes,
    data: u64,
    read_only: bool,
}

type Entries = HashMap<usize, Entry, BuildHasherDefault<DefaultHasher>>;

/// By the addresses of shapes.
static TABLE: Mutex<Entries> =
    Mutex::new(Rank::LEAF, Entries::with_hasher(BuildHasherDefault::new()));
/// Entries that must not be written, so that nobody looks where there are none.
static READ_ONLY: AtomicUsize = AtomicUsize::new(0);

/// Holds the table still for a fork.
pub(crate) struct Still(#[expect(dead_code, reason = "held")] Held<'static, Entries>);

pub(crate) fn hold() -> Still {
    Still(TABLE.hold())
}

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
    let shape = sizes.as_mut_ptr();
    let strides = shape.wrapping_add(tensor.shape().len());
    let mut table = TABLE.lock();
    table.try_reserve(1).map_err(|_| NO_ROOM)?;
    table.insert(shape as usize, Entry { source, _sizes: sizes, data: tensor.data, read_only });
    READ_ONLY.fetch_add(usize::from(read_only), Ordering::Relaxed);
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
        let block = Block { address, generation: runtime.generation };
        insert(&tensor, Source::Block(block), false).map(|lent| (tensor, lent))
    });
    if made.is_err() && address != 0 {
        // Nobody has used it.
        let _ = memory::free(runtime, address);
    }
    made
}

/// Takes the tensor with this shape and data out of the table.
pub fn take(shape: usize, data: u64) -> Result<Entry> {
    let mut table = TABLE.lock();
    match table.get(&shape) {
        Some(entry) if entry.data == data => (),
        Some(_) => {
            return Err(Error::Invalid(
                "the tensor's data is not what tcuda wrote there; put that back, and use byte_offset \
                 to begin elsewhere",
            ));
        }
        None => return Err(NOT_OURS),
    }
    let entry = table.remove(&shape).ok_or(NOT_OURS)?;
    READ_ONLY.fetch_sub(usize::from(entry.read_only), Ordering::Relaxed);
    if table.is_empty() {
        // So that nothing is left of it at the end.
        *table = Entries::default();
    }
    Ok(entry)
}

impl Entry {
    /// Gives back what the tensor had.
    pub fn end(self, inside: &Inside) -> Result<()> {
        match self.source {
            Source::Block(block) => block.free(inside),
            Source::Loan(loan) => {
                loan.end();
                Ok(())
            }
        }
    }
}

/// Must a tensor with this shape not be written?
pub fn is_read_only(shape: usize) -> bool {
    READ_ONLY.load(Ordering::Relaxed) != 0
        && TABLE.lock().get(&shape).is_some_and(|entry| entry.read_only)
}

/// What a tensor becomes when it is moved out.
#[derive(Debug)]
pub enum Moved {
    /// The loan that it came from.
    Loan(Loan),
    /// A block of ours, with the sizes and strides of the tensor.
    Block(Block),
}

/// Was a tensor with this shape filled in by the library?
pub fn is_ours(shape: usize) -> bool {
    TABLE.lock().contains_key(&shape)
}

/// Moves a tensor that the library filled in out of the table.
pub fn take_out(shape: usize, data: u64) -> Result<Moved> {
    Ok(match take(shape, data)?.source {
        Source::Block(block) => Moved::Block(block),
        Source::Loan(loan) => Moved::Loan(loan),
    })
}

/// The block at which a tensor of the host's own begins, to be moved out with it.
pub fn block_of(runtime: &Runtime, tensor: &Tensor) -> Result<Block> {
    let block = Block { address: tensor.data, generation: runtime.generation };
    if tensor.data != 0 {
        memory::find(tensor.data)?;
        tensor.require_on(runtime)?;
    }
    Ok(block)
}

#[cfg(test)]
#[path = "owned_tests.rs"]
mod tests;
