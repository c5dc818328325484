//! What a kernel wrote, held back: a kernel whose writes are seen late has read early.

use super::address_space::Chunk;
use super::lock;
use std::ptr;
use std::sync::Mutex;

/// A kernel that writes more runs in one step.
const LIMIT: usize = 1 << 20;

/// Bytes at an address of the host's.
pub(super) struct Write {
    address: usize,
    bytes: Vec<u8>,
}

/// The ranges that a kernel writes, as they were before.
#[derive(Default)]
pub(super) struct Journal {
    before: Mutex<Vec<Write>>,
}

impl Write {
    fn read(address: usize, bytes: usize) -> Write {
        let start = ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: the range was checked when the kernel asked for it.
        Write { address, bytes: unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec() }
    }

    /// Puts the bytes in their place.
    pub(super) fn apply(&self) {
        let start = ptr::with_exposed_provenance_mut::<u8>(self.address);
        // SAFETY: the range was checked, lies in the alias of a device's memory or in pinned memory,
        // and nothing of it is borrowed between operations.
        unsafe { ptr::copy_nonoverlapping(self.bytes.as_ptr(), start, self.bytes.len()) };
    }
}

impl Journal {
    /// The kernel is about to write here.
    pub(super) fn note(&self, chunk: Chunk) {
        let mut before = lock(&self.before);
        let noted: usize = before.iter().map(|write| write.bytes.len()).sum();
        // One entry too many says that the journal is not whole.
        if noted <= LIMIT {
            let bytes = chunk.bytes.min(LIMIT + 1 - noted);
            before.push(Write::read(chunk.address, bytes));
        }
    }

    /// Undoes what the kernel wrote and gives it; `None` when it was too much.
    pub(super) fn undo(&self) -> Option<Vec<Write>> {
        let before = std::mem::take(&mut *lock(&self.before));
        if before.iter().map(|write| write.bytes.len()).sum::<usize>() > LIMIT {
            return None;
        }
        let now = |write: &Write| Write::read(write.address, write.bytes.len());
        let after = before.iter().map(now).collect();
        // Of ranges that overlap, the first was noted before either was written.
        before.iter().rev().for_each(Write::apply);
        Some(after)
    }
}
