//! Delayed kernel writes: the kernel reads in the first step, and its writes become visible in the
//! second.

use super::address_space::Chunk;
use super::sync::lock;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Mutex;

/// Maximum bytes in a journal; a kernel that writes more runs in one step.
const LIMIT: usize = 1 << 20;

/// Bytes for an address of the host.
pub(super) struct Write {
    address: usize,
    bytes: Vec<u8>,
}

/// The pages that a kernel writes, with their contents before the kernel.
#[derive(Default)]
pub(super) struct Journal {
    before: Mutex<BTreeMap<usize, Write>>,
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
    /// Saves a page that the kernel is about to write, unless it is saved.
    pub(super) fn note(&self, page: Chunk) {
        let mut before = lock(&self.before);
        // A page past the limit marks the journal as incomplete.
        if before.len() * page.bytes <= LIMIT {
            before.entry(page.address).or_insert_with(|| Write::read(page.address, page.bytes));
        }
    }

    /// Undoes the kernel's writes and returns them; `None` if they exceed the limit. A byte that
    /// the kernel wrote without changing it is not a write: without a race, no other operation
    /// changes it meanwhile.
    pub(super) fn undo(&self) -> Option<Vec<Write>> {
        let before = std::mem::take(&mut *lock(&self.before));
        if before.values().map(|write| write.bytes.len()).sum::<usize>() > LIMIT {
            return None;
        }
        let mut after = Vec::new();
        for old in before.values() {
            let now = Write::read(old.address, old.bytes.len());
            let mut rest = 0;
            while let Some(first) =
                (rest..now.bytes.len()).find(|at| now.bytes[*at] != old.bytes[*at])
            {
                let same = |at: &usize| now.bytes[*at] == old.bytes[*at];
                rest = (first..now.bytes.len()).find(same).unwrap_or(now.bytes.len());
                let (address, bytes) = (old.address + first, now.bytes[first..rest].to_vec());
                after.push(Write { address, bytes });
            }
        }
        before.values().for_each(Write::apply);
        Some(after)
    }
}
