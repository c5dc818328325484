//! The most recent calls of a function. A call that matches one at other addresses needs no plan.
//! Each call still checks what depends on addresses: alignment, owner of the memory, and overlaps.

use super::MAX_SCALARS;
use super::iterate::MAX_OPERANDS;
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::gpu::gpus::Gpus;
use crate::memory;
use crate::ops::copy;
use crate::tensor::{self, Dtype, MAX_DIMS, Parts, Place, Tensor};
use std::mem::MaybeUninit;

/// Number of calls that are remembered.
const MAX: usize = 4;
/// Sizes and strides of all operands of a call.
const NUMBERS: usize = 64;
/// Words of a kernel shape.
const WORDS: usize = 64;
/// The vector width depends on the alignment of addresses up to this bound.
const ALIGNMENT: u64 = super::text::VECTOR_BYTES;

const _: () = assert!(MAX_SCALARS * 2 <= u64::BITS as usize);

/// A launch without its addresses and extra arguments.
#[derive(Clone, Copy)]
pub struct Launch {
    /// The kernel function.
    pub function: usize,
    /// Number of thread blocks.
    pub grid: u32,
    /// Number of elements.
    pub numel: u64,
}

/// An operand without its address.
#[derive(Clone, Copy)]
struct Operand {
    dtype: Dtype,
    ndim: u8,
    is_compact: bool,
    /// The address modulo [`ALIGNMENT`].
    misalignment: u8,
    /// Bytes of the operand before its address, and from the address on.
    before: u64,
    after: u64,
    /// For an output: a bit for each input that may have the same address.
    same: u8,
}

/// A remembered call.
struct RecordedCall {
    inputs: usize,
    len: usize,
    device: i32,
    /// Kinds of the extra arguments, as bits.
    scalars: u64,
    operands: [Operand; MAX_OPERANDS],
    /// For each operand its sizes, then its strides.
    numbers: [i64; NUMBERS],
    launch: Launch,
    /// Words of the kernel's shape; 0: none.
    words: usize,
    shape: [u32; WORDS],
}

/// The tensors of a new call, unchecked.
#[derive(Clone, Copy)]
pub struct UncheckedCall<'a> {
    /// Inputs, then outputs.
    pub operands: &'a [Parts<'a>],
    /// Number of inputs.
    pub inputs: usize,
}

/// The result of a search: the launch, and the addresses of the operands. Only the used entries are
/// initialised, because clearing all of them would dominate the cost.
pub struct RepeatedCall {
    /// The device of the call.
    pub device: i32,
    /// The launch.
    pub launch: Launch,
    words: usize,
    shape: [MaybeUninit<u32>; WORDS],
    len: usize,
    addresses: [MaybeUninit<u64>; MAX_OPERANDS],
    /// Bytes of each operand before its address, and from the address on.
    reach: [MaybeUninit<(u64, u64)>; MAX_OPERANDS],
}

#[derive(Default)]
struct List {
    recorded_calls: Vec<RecordedCall>,
    next: usize,
}

/// The most recent calls of a function.
pub struct Recent {
    list: Mutex<List>,
}

impl RecordedCall {
    fn of(
        tensors: &[&Tensor],
        inputs: usize,
        scalars: u64,
        launch: &Launch,
        shape: &[u32],
    ) -> Option<RecordedCall> {
        let nothing = Operand {
            dtype: tensors.first()?.dtype,
            ndim: 0,
            is_compact: false,
            misalignment: 0,
            before: 0,
            after: 0,
            same: 0,
        };
        let Place::Cuda(device) = tensors.first()?.place else { return None };
        let mut made = RecordedCall {
            inputs,
            len: tensors.len(),
            device,
            scalars,
            operands: [nothing; MAX_OPERANDS],
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
                misalignment: (tensor.address % ALIGNMENT) as u8,
                before: tensor.address - first,
                after: end - tensor.address,
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

    /// Stores the addresses of a call that matches this one. `false`: it does not match.
    #[inline]
    fn matches(&self, unchecked: &UncheckedCall<'_>, scalars: u64, to: &mut RepeatedCall) -> bool {
        let own = (self.inputs, self.len, self.scalars);
        if own != (unchecked.inputs, unchecked.operands.len(), scalars) {
            return false;
        }
        to.len = self.len;
        let mut numbers = &self.numbers[..];
        for (index, (operand, parts)) in self.operands.iter().zip(unchecked.operands).enumerate() {
            let address = parts.data.wrapping_add(parts.byte_offset);
            let is_like = parts.place == Place::Cuda(self.device)
                && parts.dtype == operand.dtype
                && parts.shape.len() == usize::from(operand.ndim)
                && address % ALIGNMENT == u64::from(operand.misalignment)
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
            to.reach[index].write((operand.before, operand.after));
            numbers = rest;
        }
        self.ranges_are_valid(to)
    }

    /// Do all bytes have addresses, and do outputs overlap no operand that they must not?
    fn ranges_are_valid(&self, found: &RepeatedCall) -> bool {
        let (addresses, reach) = (found.addresses(), found.reach());
        let range = |index: usize| {
            let (address, (before, after)) = (addresses[index], reach[index]);
            Some((address.checked_sub(before)?, address.checked_add(after)?))
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

impl RepeatedCall {
    /// A result without operands.
    pub fn new() -> RepeatedCall {
        RepeatedCall {
            device: 0,
            launch: Launch { function: 0, grid: 0, numel: 0 },
            words: 0,
            shape: [const { MaybeUninit::uninit() }; WORDS],
            len: 0,
            addresses: [const { MaybeUninit::uninit() }; MAX_OPERANDS],
            reach: [const { MaybeUninit::uninit() }; MAX_OPERANDS],
        }
    }

    /// The kernel's shape.
    pub fn shape(&self) -> &[u32] {
        // SAFETY: the first `words` entries are initialised.
        unsafe { std::slice::from_raw_parts(self.shape.as_ptr().cast(), self.words) }
    }

    /// The addresses of the operands.
    pub fn addresses(&self) -> &[u64] {
        // SAFETY: the first `len` entries are initialised.
        unsafe { std::slice::from_raw_parts(self.addresses.as_ptr().cast(), self.len) }
    }

    fn reach(&self) -> &[(u64, u64)] {
        // SAFETY: the first `len` entries are initialised.
        unsafe { std::slice::from_raw_parts(self.reach.as_ptr().cast(), self.len) }
    }

    /// Does the device own all of the memory, and is each operand inside its block?
    fn memory_is_valid(&self, gpus: &Gpus) -> bool {
        self.addresses().iter().zip(self.reach()).all(|(address, (before, after))| {
            let holds = |start: u64, bytes: u64| {
                let offset = address - start;
                *before <= offset && *after <= bytes.saturating_sub(offset)
            };
            match memory::cached_extent(*address) {
                Some((device, start, bytes)) => device == self.device && holds(start, bytes),
                None => self.uncached_memory_is_valid(gpus, *address, holds),
            }
        })
    }

    /// The same for memory that is not in the cache, and for memory of others.
    #[cold]
    #[inline(never)]
    fn uncached_memory_is_valid(
        &self,
        gpus: &Gpus,
        address: u64,
        holds: impl FnOnce(u64, u64) -> bool,
    ) -> bool {
        matches!(copy::device_of(gpus, address), Ok(Some(device)) if device == self.device)
            && match tensor::block_around(gpus, address) {
                Ok(Some((start, bytes))) => holds(start, bytes),
                Ok(None) => true,
                Err(_) => false,
            }
    }
}

/// Are the strides those of a contiguous tensor?
fn is_compact(tensor: &Tensor) -> bool {
    let mut strides = [0; MAX_DIMS];
    tensor::compact(tensor.shape(), &mut strides);
    tensor.strides() == &strides[..tensor.shape().len()]
}

/// Compares slices of equal length. For a few words this is faster than a `memcmp` call.
#[inline(always)]
fn equal(a: &[i64], b: &[i64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a == b)
}

impl Recent {
    /// No calls.
    pub const fn new() -> Recent {
        Recent { list: Mutex::new(Rank::LEAF, List { recorded_calls: Vec::new(), next: 0 }) }
    }

    /// Finds a matching call and fills in its launch. `false`: the call must be planned. This
    /// includes calls that come while another thread searches, and invalid calls.
    #[inline]
    pub fn find(
        &self,
        gpus: &Gpus,
        unchecked: &UncheckedCall<'_>,
        scalars: u64,
        to: &mut RepeatedCall,
    ) -> bool {
        let Some(list) = self.list.try_lock() else { return false };
        let Some(recorded) =
            list.recorded_calls.iter().find(|recorded| recorded.matches(unchecked, scalars, to))
        else {
            return false;
        };
        (to.device, to.launch, to.words) = (recorded.device, recorded.launch, recorded.words);
        for (to, word) in to.shape.iter_mut().zip(&recorded.shape[..recorded.words]) {
            to.write(*word);
        }
        // An arena's lock must be taken before this one.
        drop(list);
        to.memory_is_valid(gpus)
    }

    /// Remembers a call in place of the oldest. Without host memory for it nothing is remembered.
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
        let mut tensors = [first; MAX_OPERANDS];
        let all = inputs.iter().chain(outputs);
        tensors.iter_mut().zip(all).for_each(|(to, tensor)| *to = tensor);
        let Some(recorded) =
            RecordedCall::of(&tensors[..len], inputs.len(), scalars, launch, shape)
        else {
            return;
        };
        let Some(mut list) = self.list.try_lock() else { return };
        if list.recorded_calls.len() < MAX && list.recorded_calls.try_reserve_exact(MAX).is_ok() {
            list.recorded_calls.push(recorded);
        } else if !list.recorded_calls.is_empty() {
            let place = list.next % list.recorded_calls.len();
            list.recorded_calls[place] = recorded;
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
    fn only_matching_calls_are_repeated() {
        let (shape, other) = ([4, 8], [8, 4]);
        let first = [4096, 8192, 12288].map(|at| tensor(at, &shape, None));
        let tensors = first.map(|parts| Tensor::new(parts).unwrap());
        let launch = Launch { function: 7, grid: 1, numel: 32 };
        let all: Vec<&Tensor> = tensors.iter().collect();
        let recorded = RecordedCall::of(&all, 2, 0, &launch, &[1, 2]).unwrap();
        let takes = |operands: [Parts<'_>; 3], inputs: usize, scalars: u64| {
            recorded.matches(
                &UncheckedCall { operands: &operands, inputs },
                scalars,
                &mut RepeatedCall::new(),
            )
        };
        let [a, b, out] = first;
        assert!(takes(first, 2, 0));
        assert!(!takes(first, 1, 0) && !takes(first, 2, 1));
        // Other addresses match, if their alignment allows the same vector width.
        assert!(takes([tensor(16384, &shape, None), b, out], 2, 0));
        assert!(!takes([tensor(16392, &shape, None), b, out], 2, 0));
        // Contiguous strides may be given or omitted.
        assert!(takes([a, tensor(8192, &shape, Some(&[8, 1])), out], 2, 0));
        assert!(!takes([a, tensor(8192, &shape, Some(&[1, 4])), out], 2, 0));
        assert!(!takes([a, tensor(8192, &other, None), out], 2, 0));
        assert!(!takes([a, tensor(8192, &shape[1..], None), out], 2, 0));
        assert!(!takes([a, Parts { dtype: Dtype::new(0, 32), ..b }, out], 2, 0));
        assert!(!takes([a, Parts { place: Place::Cuda(1), ..b }, out], 2, 0));
        assert!(!takes([a, Parts { place: Place::Managed(0), ..b }, out], 2, 0));
        // An output may be an input, but must not overlap one partly, or leave the address space.
        assert!(takes([a, b, a], 2, 0));
        assert!(takes([a, b, tensor(8192 + 128, &shape, None)], 2, 0));
        assert!(!takes([a, b, tensor(8192 + 112, &shape, None)], 2, 0));
        assert!(!takes([a, b, tensor(u64::MAX - 15, &shape, None)], 2, 0));
        assert!(!takes([a, tensor(0, &shape, None), out], 2, 0));
    }
}
