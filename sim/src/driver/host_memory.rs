//! Pinned memory of the host.

use std::collections::BTreeMap;
use std::ptr;

/// A pinned range of the host.
#[derive(Clone, Copy)]
pub(super) struct HostRange {
    pub(super) bytes: usize,
    /// The number of the context.
    pub(super) owner: usize,
    /// True if `cuMemHostAlloc` allocated it, false if `cuMemHostRegister` registered it.
    pub(super) owned: bool,
    /// The flags of that call.
    pub(super) flags: u32,
    /// See [`next_id`](super::physical::next_id).
    pub(super) id: u64,
}

/// The pinned ranges of the host, by address.
#[derive(Default)]
pub(super) struct HostMemory {
    pub(super) ranges: BTreeMap<usize, HostRange>,
}

impl HostMemory {
    /// The range that contains an address.
    pub(super) fn find(&self, address: usize) -> Option<(usize, HostRange)> {
        let (start, found) = self.ranges.range(..=address).next_back()?;
        (address - start < found.bytes).then_some((*start, *found))
    }

    pub(super) fn overlaps(&self, address: usize, bytes: usize) -> bool {
        let before = self.ranges.range(..address + bytes).next_back();
        before.is_some_and(|(start, before)| start + before.bytes > address)
    }

    /// The range that begins at an address, if its `owned` is equal.
    pub(super) fn get(&self, address: usize, owned: bool) -> Option<HostRange> {
        self.ranges.get(&address).copied().filter(|found| found.owned == owned)
    }

    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Number of ranges of a context.
    pub(super) fn count_of(&self, owner: usize) -> usize {
        self.ranges.values().filter(|range| range.owner == owner).count()
    }

    /// Removes the ranges of the contexts for which `gone` is true, and frees owned ones.
    pub(super) fn clear(&mut self, gone: impl Fn(usize) -> bool) {
        for (address, range) in self.ranges.extract_if(.., |_, range| gone(range.owner)) {
            if range.owned {
                free_host(address, range.bytes);
            }
        }
    }
}

/// Frees memory of `cuMemHostAlloc`.
pub(super) fn free_host(address: usize, bytes: usize) {
    // SAFETY: the range is a mapping that `cuMemHostAlloc` made, and is no longer in the table.
    let _ = unsafe { libc::munmap(ptr::with_exposed_provenance_mut(address), bytes) };
}
