//! The last calls of a function: another one like them, at whatever addresses, needs no plan. What
//! depends on addresses is looked at each time: their alignment, whose memory they are, and overlaps.

use super::MOST_SCALARS;
use super::iterate::MOST_OPERANDS;
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::memory;
use crate::ops::copy;
use crate::runtime::Runtime;
use crate::tensor::{self, Dtype, MAX_DIMS, Parts, Place, Tensor};
use std::mem::MaybeUninit;

/// Calls that are remembered.
const MOST: usize = 4;
/// Sizes and strides of all operands of one.
const NUMBERS: usize = 64;
/// Words of a shape that are remembered.
const WORDS: usize = 64;
/// What addresses are a multiple of decides how much is read at a time; more than this nothing does.
const ALIGNMENT: u64 = super::text::VECTOR_BYTES;

const _: () = assert!(MOST_SCALARS * 2 <= u64::BITS as usize);

/// A launch, but for its addresses and extra arguments.
#[derive(Clone, Copy)]
pub struct Launch {
    /// The kernel.
    pub function: usize,
    /// Blocks.
    pub grid: u32,
    /// Elements.
    pub numel: u64,
}

/// An operand, but for its address.
#[derive(Clone, Copy)]
struct Operand {
    dtype: Dtype,
    ndim: u8,
    is_compact: bool,
    /// The address beyond a multiple of [`ALIGNMENT`].
    beyond: u8,
    /// Bytes before the address, and from there on.
    before: u64,
    behind: u64,
    /// Of an output: the inputs, a bit for each, that may be at its address.
    same: u8,
}

/// A call.
struct Memo {
    inputs: usize,
    len: usize,
    device: i32,
    /// Kinds of the extra arguments.
    scalars: u64,
    operands: [Operand; MOST_OPERANDS],
    /// The sizes of the first operand, its strides, and so on.
    numbers: [i64; NUMBERS],
    launch: Launch,
    /// Words of the kernel's shape; 0: it has none.
    words: usize,
    shape: [u32; WORDS],
}

/// Tensors of a call, unchecked.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Inputs, then outputs.
    pub operands: &'a [Parts<'a>],
    /// How many are inputs.
    pub inputs: usize,
}

/// What is found: the launch, and where the operands are. Only what there is of them is written, since
/// to clear room for all of them would cost more than all the rest.
pub struct Again {
    /// The device of all.
    pub device: i32,
    /// What is launched.
    pub launch: Launch,
    words: usize,
    shape: [MaybeUninit<u32>; WORDS],
    len: usize,
    addresses: [MaybeUninit<u64>; MOST_OPERANDS],
    /// Bytes of each before its address, and from there on.
    reach: [MaybeUninit<(u64, u64)>; MOST_OPERANDS],
}

#[derive(Default)]
struct List {
    memos: Vec<Memo>,
    next: usize,
}

/// The last calls of a function.
pub struct Recent {
    list: Mutex<List>,
}

impl Memo {
    fn of(
        tensors: &[&Tensor],
        inputs: usize,
        scalars: u64,
        launch: &Launch,
        shape: &[u32],
    ) -> Option<Memo> {
        let nothing = Operand {
            dtype: tensors.first()?.dtype,
            ndim: 0,
            is_compact: false,
            beyond: 0,
            before: 0,
            behind: 0,
            same: 0,
        };
        let Place::Cuda(device) = tensors.first()?.place else { return None };
        let mut made = Memo {
            inputs,
            len: tensors.len(),
            device,
            scalars,
            operands: [nothing; MOST_OPERANDS],
            numbers: [0; NUMBERS],
            launch: *launch,
            words: shape.len(),
            shape: [0; WORDS],
        };
        made.shape.get_mut(..shape.len())?.copy_from_slice(shape);
        let mut at = 0;
        for (index, tensor) in tensors.iter().enumerate() {
            let (first, end) = tensor.range().ok()?;
            let (shape, strides) = (tensor.shape(), tensor.strides());
            let is_same = |other: &&Tensor| {
                (other.shape(), other.strides()) == (shape, strides)
                    && other.dtype.element_bytes() == tensor.dtype.element_bytes()
            };
            let same = tensors[..inputs.min(index)].iter().enumerate();
            made.operands[index] = Operand {
                dtype: tensor.dtype,
                ndim: shape.len() as u8,
                is_compact: is_compact(tensor),
                beyond: (tensor.address % ALIGNMENT) as u8,
                before: tensor.address - first,
                behind: end - tensor.address,
                same: same.map(|(bit, other)| u8::from(is_same(other)) << bit).sum(),
            };
            for list in [shape, strides] {
                made.numbers.get_mut(at..at + list.len())?.copy_from_slice(list);
                at += list.len();
            }
            if tensor.place != Place::Cuda(device) {
                return None;
            }
        }
        Some(made)
    }

    /// Takes the operands, if they are like those of this call.
    #[inline]
    fn take(&self, asked: &Asked<'_>, scalars: u64, to: &mut Again) -> bool {
        let own = (self.inputs, self.len, self.scalars);
        if own != (asked.inputs, asked.operands.len(), scalars) {
            return false;
        }
        to.len = self.len;
        let mut numbers = &self.numbers[..];
        for (index, (operand, parts)) in self.operands.iter().zip(asked.operands).enumerate() {
            let address = parts.data.wrapping_add(parts.byte_offset);
            let is_like = parts.place == Place::Cuda(self.device)
                && parts.dtype == operand.dtype
                && parts.shape.len() == usize::from(operand.ndim)
                && address % ALIGNMENT == u64::from(operand.beyond)
                && (parts.data != 0 && address >= parts.data);
            let Some((shape, rest)) = numbers.split_at_checked(parts.shape.len()) else {
                return false;
            };
            if !is_like || !equal(parts.shape, shape) {
                return false;
            }
            let Some((strides, rest)) = rest.split_at_checked(shape.len()) else { return false };
            let is_like = match parts.strides {
                None => operand.is_compact,
                Some(given) => equal(given, strides),
            };
            if !is_like {
                return false;
            }
            to.addresses[index].write(address);
            to.reach[index].write((operand.before, operand.behind));
            numbers = rest;
        }
        self.may_lie(to)
    }

    /// Do the bytes of the operands have addresses, and does no output share any that it must not?
    fn may_lie(&self, found: &Again) -> bool {
        let (addresses, reach) = (found.addresses(), found.reach());
        let range = |index: usize| {
            let (address, (before, behind)) = (addresses[index], reach[index]);
            Some((address.checked_sub(before)?, address.checked_add(behind)?))
        };
        for output in self.inputs..addresses.len() {
            let Some((first, end)) = range(output) else { return false };
            for other in 0..output {
                let Some((start, stop)) = range(other) else { return false };
                let is_same = addresses[other] == addresses[output]
                    && other < self.inputs
                    && self.operands[output].same >> other & 1 == 1;
                if first < stop && start < end && !is_same {
                    return false;
                }
            }
        }
        true
    }
}

impl Again {
    /// Nothing yet.
    pub fn new() -> Again {
        Again {
            device: 0,
            launch: Launch { function: 0, grid: 0, numel: 0 },
            words: 0,
            shape: [const { MaybeUninit::uninit() }; WORDS],
            len: 0,
            addresses: [const { MaybeUninit::uninit() }; MOST_OPERANDS],
            reach: [const { MaybeUninit::uninit() }; MOST_OPERANDS],
        }
    }

    /// The kernel's shape.
    pub fn shape(&self) -> &[u32] {
        // SAFETY: so many were written.
        unsafe { std::slice::from_raw_parts(self.shape.as_ptr().cast(), self.words) }
    }

    /// Where the operands are.
    pub fn addresses(&self) -> &[u64] {
        // SAFETY: so many were written.
        unsafe { std::slice::from_raw_parts(self.addresses.as_ptr().cast(), self.len) }
    }

    fn reach(&self) -> &[(u64, u64)] {
        // SAFETY: so many were written.
        unsafe { std::slice::from_raw_parts(self.reach.as_ptr().cast(), self.len) }
    }

    /// Is all of it memory of that device, and what begins in a block of ours inside that block?
    fn is_there(&self, runtime: &Runtime) -> bool {
        self.addresses().iter().zip(self.reach()).all(|(address, (before, behind))| {
            let holds = |start: u64, bytes: u64| {
                let offset = address - start;
                *before <= offset && *behind <= bytes.saturating_sub(offset)
            };
            match memory::cached_extent(*address) {
                Some((device, start, bytes)) => device == self.device && holds(start, bytes),
                None => self.is_there_elsewhere(runtime, *address, holds),
            }
        })
    }

    /// The same for memory that is not of the cache: others' as well.
    #[cold]
    fn is_there_elsewhere(
        &self,
        runtime: &Runtime,
        address: u64,
        holds: impl FnOnce(u64, u64) -> bool,
    ) -> bool {
        matches!(copy::device_of(runtime, address), Ok(Some(device)) if device == self.device)
            && match tensor::block_around(runtime, address) {
                Ok(Some((start, bytes))) => holds(start, bytes),
                Ok(None) => true,
                Err(_) => false,
            }
    }
}

/// Are the strides those of elements side by side?
fn is_compact(tensor: &Tensor) -> bool {
    let mut strides = [0; MAX_DIMS];
    tensor::compact(tensor.shape(), &mut strides);
    tensor.strides() == &strides[..tensor.shape().len()]
}

/// Of lists that are as long: a call to compare memory costs more than these few words.
#[inline(always)]
fn equal(a: &[i64], b: &[i64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a == b)
}

impl Recent {
    /// None yet.
    pub const fn new() -> Recent {
        Recent { list: Mutex::new(Rank::LEAF, List { memos: Vec::new(), next: 0 }) }
    }

    /// Fills in what such a call launched before; `false`: it is to be planned. That goes also for
    /// whoever comes while another thread looks, and for what must be refused.
    #[inline]
    pub fn find(&self, runtime: &Runtime, asked: &Asked<'_>, scalars: u64, to: &mut Again) -> bool {
        let Some(list) = self.list.try_lock() else { return false };
        let Some(memo) = list.memos.iter().find(|memo| memo.take(asked, scalars, to)) else {
            return false;
        };
        (to.device, to.launch, to.words) = (memo.device, memo.launch, memo.words);
        for (to, word) in to.shape.iter_mut().zip(&memo.shape[..memo.words]) {
            to.write(*word);
        }
        // An arena's lock comes before this one.
        drop(list);
        to.is_there(runtime)
    }

    /// Remembers a call, instead of the one that was remembered first; where there is no memory for
    /// it, it is planned again the next time.
    #[cold]
    pub fn add(
        &self,
        inputs: &[Tensor],
        outputs: &[Tensor],
        scalars: u64,
        launch: &Launch,
        shape: &[u32],
    ) {
        let (Some(first), len) = (inputs.first(), inputs.len() + outputs.len()) else { return };
        let mut tensors = [first; MOST_OPERANDS];
        let all = inputs.iter().chain(outputs);
        tensors.iter_mut().zip(all).for_each(|(to, tensor)| *to = tensor);
        let Some(memo) = Memo::of(&tensors[..len], inputs.len(), scalars, launch, shape) else {
            return;
        };
        let Some(mut list) = self.list.try_lock() else { return };
        if list.memos.len() < MOST && list.memos.try_reserve_exact(MOST).is_ok() {
            list.memos.push(memo);
        } else if !list.memos.is_empty() {
            let place = list.next % list.memos.len();
            list.memos[place] = memo;
            list.next = place + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor<'a>(data: u64, shape: &'a [i64], strides: Option<&'a [i64]>) -> Parts<'a> {
        let (place, dtype) = (Place::Cuda(0), Dtype::new(2, 32));
        Parts { data, byte_offset: 0, place, dtype, shape, strides }
    }

    #[test]
    fn only_calls_that_are_alike_are_found() {
        let (shape, other) = ([4, 8], [8, 4]);
        let first = [4096, 8192, 12288].map(|at| tensor(at, &shape, None));
        let tensors = first.map(|parts| Tensor::new(parts).unwrap());
        let launch = Launch { function: 7, grid: 1, numel: 32 };
        let all: Vec<&Tensor> = tensors.iter().collect();
        let memo = Memo::of(&all, 2, 0, &launch, &[1, 2]).unwrap();
        let takes = |operands: [Parts<'_>; 3], inputs: usize, scalars: u64| {
            memo.take(&Asked { operands: &operands, inputs }, scalars, &mut Again::new())
        };
        let [a, b, out] = first;
        assert!(takes(first, 2, 0));
        assert!(!takes(first, 1, 0) && !takes(first, 2, 1));
        // Elsewhere, but not where another vector would be read.
        assert!(takes([tensor(16384, &shape, None), b, out], 2, 0));
        assert!(!takes([tensor(16392, &shape, None), b, out], 2, 0));
        // Strides may be said or not.
        assert!(takes([a, tensor(8192, &shape, Some(&[8, 1])), out], 2, 0));
        assert!(!takes([a, tensor(8192, &shape, Some(&[1, 4])), out], 2, 0));
        assert!(!takes([a, tensor(8192, &other, None), out], 2, 0));
        assert!(!takes([a, tensor(8192, &shape[1..], None), out], 2, 0));
        assert!(!takes([a, Parts { dtype: Dtype::new(0, 32), ..b }, out], 2, 0));
        assert!(!takes([a, Parts { place: Place::Cuda(1), ..b }, out], 2, 0));
        assert!(!takes([a, Parts { place: Place::Managed(0), ..b }, out], 2, 0));
        // An output may be an input, but share no part of one, nor leave the addresses.
        assert!(takes([a, b, a], 2, 0));
        assert!(takes([a, b, tensor(8192 + 128, &shape, None)], 2, 0));
        assert!(!takes([a, b, tensor(8192 + 112, &shape, None)], 2, 0));
        assert!(!takes([a, b, tensor(u64::MAX - 15, &shape, None)], 2, 0));
        assert!(!takes([a, tensor(0, &shape, None), out], 2, 0));
    }
}
