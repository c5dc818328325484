//! Delayed kernel writes: the kernel reads in the first step, and its writes become visible in the
//! second.

use super::address_space::Chunk;
use super::sync::lock;
use std::ptr;
use std::sync::Mutex;

/// Maximum bytes in a journal; a kernel that writes more runs in one step.
const LIMIT: usize = 1 << 20;

/// Bytes for an address of the host.
pub(super) struct Write {
    address: usize,
    bytes: Vec<u8>,
}

/// The ranges that a kernel writes, with their contents before the kernel.
#[derive(Default)]
pub(super) struct Journal {
    before: Mutex<Vec<Write>>,
}

impl Write {
    fn read(address: usize, bytes: usize) -> Write {
        let start = ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: the range was checked when the kernel requested it.
        Write { address, bytes: unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec() }
    }

    /// Writes the bytes to memory.
    pub(super) fn apply(&self) {
        let start = ptr::with_exposed_provenance_mut::<u8>(self.address);
        // SAFETY: the range was checked and lies in the alias of a device's memory or in pinned
        // memory; no part of it is borrowed between operations.
        unsafe { ptr::copy_nonoverlapping(self.bytes.as_ptr(), start, self.bytes.len()) };
    }
}

impl Journal {
    /// Saves a range that the kernel is about to write.
    pub(super) fn note(&self, chunk: Chunk) {
        let mut before = lock(&self.before);
        let noted: usize = before.iter().map(|write| write.bytes.len()).sum();
        // An entry past the limit marks the journal as incomplete.
        if noted <= LIMIT {
            let bytes = chunk.bytes.min(LIMIT + 1 - noted);
            before.push(Write::read(chunk.address, bytes));
        }
    }

    /// Undoes the kernel's writes and returns them; `None` if they exceed the limit.
    pub(super) fn undo(&self) -> Option<Vec<Write>> {
        let before = std::mem::take(&mut *lock(&self.before));
        if before.iter().map(|write| write.bytes.len()).sum::<usize>() > LIMIT {
            return None;
        }
        let now = |write: &Write| Write::read(write.address, write.bytes.len());
        let after = before.iter().map(now).collect();
        // Of overlapping ranges, the first was saved before either was written.
        before.iter().rev().for_each(Write::apply);
        Some(after)
    }
}
