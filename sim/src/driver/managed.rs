//! Managed memory: the host and all devices access it at the same address. Keeps the advice that
//! the host gave for its pages.

use std::collections::BTreeMap;
use std::ptr;

/// Advice is for whole pages of the host.
pub(super) const PAGE: usize = 4096;

/// A place where pages can be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    Device(usize),
    Host,
    /// A NUMA node of the host.
    HostNode(i32),
}

/// What the host said about pages.
#[derive(Clone, Copy, Default)]
pub(super) struct Advice {
    pub(super) is_read_mostly: bool,
    pub(super) preferred: Option<Location>,
    /// The devices that access them, as bits; bit 31: the host.
    pub(super) accessed_by: u32,
    /// Where the host last requested them to be.
    pub(super) prefetched: Option<Location>,
}

/// The bit of the host in a set of devices.
pub(super) const HOST_BIT: u32 = 31;

/// The ranges of managed memory with their advice: end and advice by start.
#[derive(Default)]
pub(super) struct ManagedRanges {
    ranges: BTreeMap<usize, (usize, Advice)>,
}

impl ManagedRanges {
    /// Adds memory without advice.
    pub(super) fn insert(&mut self, start: usize, bytes: usize) {
        let end = start + bytes.next_multiple_of(PAGE);
        self.ranges.insert(start, (end, Advice::default()));
    }

    /// Removes the memory between two addresses; false if there is none.
    pub(super) fn remove(&mut self, start: usize, end: usize) -> bool {
        self.ranges.extract_if(start..end, |_, _| true).count() > 0
    }

    /// True if an address is in managed memory.
    pub(super) fn contains(&self, address: usize) -> bool {
        let before = self.ranges.range(..=address).next_back();
        before.is_some_and(|(_, (end, _))| address < *end)
    }

    /// The advice for the pages of a range, once for each part of it; `None` if a page is not
    /// managed memory.
    pub(super) fn advice(&self, address: usize, bytes: usize) -> Option<Vec<Advice>> {
        let (mut at, end) = pages(address, bytes)?;
        let mut found = Vec::new();
        while at < end {
            let (_, (next, advice)) = self.ranges.range(..=at).next_back()?;
            (at < *next).then(|| found.push(*advice))?;
            at = *next;
        }
        Some(found)
    }

    /// Changes the advice for the pages of a range. `None` changes nothing: a page is not managed
    /// memory.
    pub(super) fn advise(
        &mut self,
        address: usize,
        bytes: usize,
        change: impl Fn(&mut Advice),
    ) -> Option<()> {
        self.advice(address, bytes)?;
        let (start, end) = pages(address, bytes)?;
        self.split(start);
        self.split(end);
        self.ranges.range_mut(start..end).for_each(|(_, (_, advice))| change(advice));
        Some(())
    }

    /// Divides the range around an address there.
    fn split(&mut self, at: usize) {
        if let Some((start, (end, advice))) = self.ranges.range_mut(..at).next_back()
            && at < *end
            && *start < at
        {
            let rest = (*end, *advice);
            *end = at;
            self.ranges.insert(at, rest);
        }
    }
}

/// Start and end of the pages of a range.
fn pages(address: usize, bytes: usize) -> Option<(usize, usize)> {
    let end = address.checked_add(bytes)?.checked_next_multiple_of(PAGE)?;
    Some((address / PAGE * PAGE, end))
}

/// Makes device addresses inaccessible for the host again.
pub(super) fn hide(address: usize, bytes: usize) {
    // SAFETY: the range is part of the machine's address space, in which the host has no objects.
    let _ = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(address),
            bytes,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    };
}
