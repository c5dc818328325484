//! Operations of streams on single values in memory: waits until a value satisfies a condition, and
//! writes of values.

use super::address_space::Accessor;
use super::arguments::require;
use super::memory::Memory;
use crate::base::code;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An operation as `CUstreamBatchMemOpParams` describes it: the kind, the address, the value and
/// the flags. The two halves of the first word are the kind and the flags of a barrier.
pub(super) type Described = [u64; 6];

/// `CU_STREAM_WAIT_VALUE_FLUSH`.
const FLUSH: u32 = 1 << 30;

/// What an operation does with the value in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Waits until the value minus the given one is not negative.
    AtLeast,
    /// Waits until the values are equal.
    Equal,
    /// Waits until the values have a bit in common.
    CommonBit,
    /// Waits until a bit is in neither of the values.
    MissingBit,
    Write,
    /// Nothing: operations of a stream run in order.
    Barrier,
}

/// An operation on a value.
#[derive(Clone, Copy)]
pub(super) struct ValueOperation {
    kind: Kind,
    pub(super) address: usize,
    value: u64,
    /// True for a value of 64 bits, false for one of 32.
    is_wide: bool,
}

/// The operations that a node of a graph runs in order.
pub(super) struct Batch {
    /// The number of its context.
    pub(super) context: usize,
    /// As the host described them.
    pub(super) described: Vec<Described>,
    pub(super) operations: Vec<ValueOperation>,
}

impl ValueOperation {
    /// Reads an operation. Which memory the address means is not checked.
    pub(super) fn read(described: &Described) -> Result<ValueOperation, i32> {
        let [kind, address, value, flags, ..] = *described;
        let (number, of_barrier) = (kind as u32, (kind >> 32) as u32);
        let (is_wide, flags) = (matches!(number, 4 | 5), flags as u32);
        let kind = match (number, flags & !FLUSH) {
            (1 | 4, 0) => Kind::AtLeast,
            (1 | 4, 1) => Kind::Equal,
            (1 | 4, 2) => Kind::CommonBit,
            (1 | 4, 3) => Kind::MissingBit,
            // The driver refuses CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER (580.159).
            (2 | 5, _) if flags == 0 => Kind::Write,
            (6, _) if of_barrier <= 1 => Kind::Barrier,
            // Devices cannot flush writes of other devices.
            (3, _) => return Err(code::NOT_SUPPORTED),
            _ => return Err(code::INVALID_VALUE),
        };
        let value = if is_wide { value } else { value & u64::from(u32::MAX) };
        let read = ValueOperation { kind, address: address as usize, value, is_wide };
        require(read.address.is_multiple_of(read.bytes().max(1)), code::INVALID_VALUE)?;
        require(read.is_write() || flags & FLUSH == 0, code::NOT_SUPPORTED)?;
        Ok(read)
    }

    /// Bytes of memory that it accesses.
    pub(super) fn bytes(&self) -> usize {
        match self.kind {
            Kind::Barrier => 0,
            _ if self.is_wide => 8,
            _ => 4,
        }
    }

    pub(super) fn is_write(&self) -> bool {
        self.kind == Kind::Write
    }

    /// The host address of its value.
    fn place(&self, memory: &Memory, device: usize) -> Result<usize, i32> {
        let accessor = Accessor { device, write: self.is_write(), staged: false };
        let chunks = memory.translate(self.address, self.bytes(), accessor)?;
        // Memory is mapped in pages, so an aligned value is in one chunk.
        chunks.iter().next().map(|chunk| chunk.address).ok_or(code::ILLEGAL_ADDRESS)
    }

    /// True unless it waits for another value than that in memory.
    pub(super) fn is_satisfied(&self, memory: &Memory, device: usize) -> Result<bool, i32> {
        if matches!(self.kind, Kind::Write | Kind::Barrier) {
            return Ok(true);
        }
        let place = self.place(memory, device)?;
        let found = if self.is_wide {
            // SAFETY: the memory was checked and is aligned; what else writes it does not matter.
            let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(place)) };
            word.load(Ordering::SeqCst)
        } else {
            // SAFETY: as above.
            let word = unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(place)) };
            word.load(Ordering::SeqCst).into()
        };
        Ok(self.accepts(found))
    }

    /// True if a wait for a value ends with this one.
    fn accepts(&self, found: u64) -> bool {
        match self.kind {
            Kind::AtLeast if self.is_wide => found.wrapping_sub(self.value).cast_signed() >= 0,
            Kind::AtLeast => (found as u32).wrapping_sub(self.value as u32).cast_signed() >= 0,
            Kind::Equal => found == self.value,
            Kind::CommonBit => found & self.value != 0,
            Kind::MissingBit if self.is_wide => !(found | self.value) != 0,
            Kind::MissingBit => !(found as u32 | self.value as u32) != 0,
            Kind::Write | Kind::Barrier => true,
        }
    }

    /// Runs it. A wait was satisfied before.
    pub(super) fn run(&self, memory: &Memory, device: usize) -> Result<(), i32> {
        if self.kind == Kind::Barrier {
            return Ok(());
        }
        let place = self.place(memory, device)?;
        if !self.is_write() {
            return Ok(());
        }
        if self.is_wide {
            // SAFETY: as for reading it, and the memory is writable.
            let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(place)) };
            word.store(self.value, Ordering::SeqCst);
        } else {
            // SAFETY: as above.
            let word = unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(place)) };
            word.store(self.value as u32, Ordering::SeqCst);
        }
        Ok(())
    }
}

impl Batch {
    pub(super) fn new(context: usize, described: Vec<Described>) -> Result<Batch, i32> {
        let operations: Result<_, i32> = described.iter().map(ValueOperation::read).collect();
        Ok(Batch { context, operations: operations?, described })
    }

    /// True if it has the same context and the same kinds of operations as another one.
    pub(super) fn has_shape_of(&self, other: &Batch) -> bool {
        let kinds = |batch: &Batch| -> Vec<u32> {
            batch.described.iter().map(|[kind, ..]| *kind as u32).collect()
        };
        self.context == other.context && kinds(self) == kinds(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation without an address.
    fn wait(kind: u64, value: u64, flags: u64) -> ValueOperation {
        ValueOperation::read(&[kind, 0, value, flags, 0, 0]).unwrap()
    }

    #[test]
    fn conditions_hold_modulo_the_width() {
        let narrow = wait(1, 0x8000_0006, 0);
        assert!(narrow.accepts(5) && narrow.accepts(0x8000_0006));
        assert!(!narrow.accepts(6) && !narrow.accepts(0x8000_0005));
        let wide = wait(4, 1 << 63 | 6, 0);
        assert!(wide.accepts(5) && !wide.accepts(6) && !wide.accepts(0x8000_0006));
        assert!(wait(1, 1 << 32, 1).accepts(0), "the upper half is ignored");
        assert!(!wait(4, 1 << 32, 1).accepts(0));
        assert!(wait(1, 6, 2).accepts(2) && !wait(1, 6, 2).accepts(1));
        assert!(!wait(1, 0xffff_0000, 3).accepts(0xffff) && wait(1, 0, 3).accepts(0xffff));
        assert!(wait(4, 0xffff_0000, 3).accepts(0xffff));
    }

    #[test]
    fn descriptions_are_checked() {
        let status = |described: Described| ValueOperation::read(&described).map(drop);
        for (kind, address, flags, expected) in [
            (1, 4, 0, Ok(())),
            (1, 2, 0, Err(code::INVALID_VALUE)),
            (4, 4, 0, Err(code::INVALID_VALUE)),
            (5, 8, 0, Ok(())),
            (1, 4, 4, Err(code::INVALID_VALUE)),
            (1, 4, 1 << 30, Err(code::NOT_SUPPORTED)),
            (2, 4, 1, Err(code::INVALID_VALUE)),
            (2, 4, 1 << 30, Err(code::INVALID_VALUE)),
            (3, 0, 0, Err(code::NOT_SUPPORTED)),
            (6, 0, 0, Ok(())),
            (1 << 32 | 6, 0, 0, Ok(())),
            (2 << 32 | 6, 0, 0, Err(code::INVALID_VALUE)),
            (7, 0, 0, Err(code::INVALID_VALUE)),
        ] {
            assert_eq!(status([kind, address, 0, flags, 0, 0]), expected, "{kind} {flags}");
        }
    }
}
