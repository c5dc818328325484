//! Physical memory of a device: a sparse memory file, allocated by first fit, with one alias
//! mapping of the whole file.

use super::config::GRANULARITY;
use super::host_calls::memory_file;
use super::slots::{META, Slots};
use super::sync::lock;
use crate::base::code;
use crate::base::signals::BlockedSignals;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes at the start of each granule that are filled in new memory, and the maximum number of
/// granules.
pub(super) const POISONED_BYTES: usize = 16 << 10;
const POISONED_GRANULES: usize = 16;

/// The memory of one device.
pub(super) struct Physical {
    pub(super) device: usize,
    pub(super) file: libc::c_int,
    pub(super) bytes: usize,
    /// True for another process's memory, from which this process does not allocate.
    is_foreign: bool,
    /// Slots after the memory in the file, which other processes read.
    pub(super) slots: Mutex<Slots>,
    /// Freed memory that other processes still use; it becomes free when they no longer do.
    freed_but_shared: Mutex<Vec<(usize, Vec<Extent>)>>,
    /// The byte that fills new memory; 0: new memory is zero, as the host provides it.
    poison: u8,
    used: AtomicUsize,
    free: Mutex<BTreeMap<usize, usize>>,
    /// Host address of the whole file, mapped at first use; `None` if the host refused.
    alias: OnceLock<Option<usize>>,
}

impl Physical {
    /// Memory of `bytes`; the error is an errno.
    pub(super) fn new(device: usize, bytes: usize, poison: u8) -> Result<Physical, i32> {
        let file = memory_file(c"simulated device memory");
        if file < 0 {
            return Err(errno());
        }
        let physical = Physical {
            device,
            file,
            bytes,
            is_foreign: false,
            slots: Mutex::default(),
            freed_but_shared: Mutex::default(),
            poison,
            used: AtomicUsize::new(0),
            free: Mutex::default(),
            alias: OnceLock::new(),
        };
        lock(&physical.free).insert(0, bytes);
        // Exceeding the file size limit (ulimit -f) is then an error instead of a signal.
        let _quiet = BlockedSignals::begin();
        // SAFETY: the descriptor is ours.
        if unsafe { libc::ftruncate(file, (bytes + META) as libc::off_t) } != 0 {
            return Err(errno());
        }
        Ok(physical)
    }

    /// Another process's memory; takes ownership of the descriptor.
    pub(super) fn foreign(device: usize, file: libc::c_int, bytes: usize) -> Physical {
        Physical {
            device,
            file,
            bytes,
            is_foreign: true,
            slots: Mutex::default(),
            freed_but_shared: Mutex::default(),
            poison: 0,
            used: AtomicUsize::new(0),
            free: Mutex::default(),
            alias: OnceLock::new(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn bytes_and_poison(&self) -> (usize, u8) {
        (self.bytes, self.poison)
    }

    pub(super) fn used(&self) -> usize {
        self.reclaim_shared();
        self.used.load(Ordering::Relaxed)
    }

    /// Frees memory that other processes no longer use.
    fn reclaim_shared(&self) {
        let mut held = lock(&self.freed_but_shared);
        held.retain_mut(|(slot, extents)| {
            let is_held = !self.give_slot(*slot);
            if !is_held {
                extents.iter().for_each(|extent| self.release(extent.start, extent.bytes));
            }
            is_held
        });
    }

    /// Frees a slot, unless another process still uses its allocation.
    fn give_slot(&self, slot: usize) -> bool {
        lock(&self.slots).give(slot, self.file, self.bytes, self.alias())
    }

    /// The host address of offset 0.
    #[inline]
    pub(super) fn alias(&self) -> Option<usize> {
        *self.alias.get_or_init(|| {
            // SAFETY: maps the machine's file at an address that the system chooses.
            let address = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    self.bytes + META,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_NORESERVE,
                    self.file,
                    0,
                )
            };
            if address == libc::MAP_FAILED {
                return None;
            }
            // A core dump would allocate every hole of the file.
            // SAFETY: the range is the mapping above.
            let _ = unsafe { libc::madvise(address, self.bytes + META, libc::MADV_DONTDUMP) };
            Some(address.expose_provenance())
        })
    }

    /// Allocates `bytes`, a multiple of the granularity, at the lowest offset where they fit. So
    /// allocations that follow each other tend to be adjacent. If no hole is large enough, the
    /// memory consists of several pieces: device memory is paged, so fragmentation never makes an
    /// allocation fail. `handle_types` are the kinds of handles that it can be exported as.
    pub(super) fn allocate(
        self: &Arc<Self>,
        bytes: usize,
        handle_types: u32,
    ) -> Result<Arc<Allocation>, i32> {
        debug_assert_eq!(bytes % GRANULARITY, 0);
        self.reclaim_shared();
        let alias = self.alias().ok_or(code::OUT_OF_MEMORY)?;
        let mut free = lock(&self.free);
        if bytes > self.bytes - self.used.load(Ordering::Relaxed) {
            return Err(code::OUT_OF_MEMORY);
        }
        let fit = free.iter().find(|(_, room)| **room >= bytes).map(|(start, _)| *start);
        let mut extents = Vec::with_capacity(1);
        let mut missing = bytes;
        while missing > 0 {
            let taken = match fit {
                Some(start) => free.remove(&start).map(|room| (start, room)),
                None => free.pop_first(),
            };
            let Some((start, room)) = taken else { break };
            let used = room.min(missing);
            if room > used {
                free.insert(start + used, room - used);
            }
            extents.push(Extent { start, bytes: used });
            missing -= used;
        }
        self.used.fetch_add(bytes, Ordering::Relaxed);
        drop(free);
        if self.poison != 0 {
            extents.iter().for_each(|extent| self.poison_start(alias, extent));
        }
        let physical = Arc::clone(self);
        let id = next_id();
        let slot = OnceLock::new();
        Ok(Arc::new(Allocation { physical, extents, bytes, alias, id, handle_types, slot }))
    }

    /// Creates another process's allocation in this memory.
    pub(super) fn adopt(
        self: Arc<Self>,
        extents: Vec<Extent>,
        handle_types: u32,
    ) -> Result<Arc<Allocation>, i32> {
        let alias = self.alias().ok_or(code::OUT_OF_MEMORY)?;
        let bytes = extents.iter().map(|extent| extent.bytes).sum();
        let (id, slot) = (next_id(), OnceLock::new());
        Ok(Arc::new(Allocation { physical: self, extents, bytes, alias, id, handle_types, slot }))
    }

    /// Fills the start of the first granules; filling everything would use too much host memory.
    fn poison_start(&self, alias: usize, extent: &Extent) {
        for granule in (0..extent.bytes).step_by(GRANULARITY).take(POISONED_GRANULES) {
            let start = ptr::with_exposed_provenance_mut::<u8>(alias + extent.start + granule);
            // SAFETY: the granule lies in the file and belongs to this allocation only.
            unsafe { ptr::write_bytes(start, self.poison, POISONED_BYTES) };
        }
    }

    fn release(&self, offset: usize, bytes: usize) {
        // SAFETY: the range lies in the file and is not mapped at any device address.
        let _ = unsafe {
            libc::fallocate(
                self.file,
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset as libc::off_t,
                bytes as libc::off_t,
            )
        };
        let mut free = lock(&self.free);
        insert_merged(&mut free, offset, bytes);
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(address) = self.alias.get().copied().flatten() {
            // SAFETY: the mapping belongs to `self`, and no allocation in it is alive.
            let _ = unsafe {
                libc::munmap(ptr::with_exposed_provenance_mut(address), self.bytes + META)
            };
        }
        // SAFETY: the descriptor is ours.
        let _ = unsafe { libc::close(self.file) };
    }
}

/// A contiguous piece of the memory.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// Physical memory, alive as long as a handle or mapping refers to it.
pub(super) struct Allocation {
    pub(super) physical: Arc<Physical>,
    pub(super) extents: Vec<Extent>,
    pub(super) bytes: usize,
    alias: usize,
    /// See [`next_id`].
    pub(super) id: u64,
    pub(super) handle_types: u32,
    /// The slot that describes it to other processes, once it is shared.
    pub(super) slot: OnceLock<usize>,
}

impl Allocation {
    pub(super) fn device(&self) -> usize {
        self.physical.device
    }

    /// Maps the memory at an address where nothing else is; false if the host refuses.
    pub(super) fn map_at(&self, mut address: usize) -> bool {
        self.extents.iter().all(|extent| {
            // SAFETY: the address is reserved for this memory, so the host has no objects there.
            let mapped = unsafe {
                libc::mmap(
                    ptr::without_provenance_mut(address),
                    extent.bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED,
                    self.physical.file,
                    extent.start as libc::off_t,
                )
            };
            address += extent.bytes;
            mapped != libc::MAP_FAILED
        })
    }

    /// Host address of a byte, and the number of contiguous bytes there.
    #[inline]
    pub(super) fn locate(&self, mut offset: usize) -> (usize, usize) {
        for extent in &self.extents {
            if offset < extent.bytes {
                return (self.alias + extent.start + offset, extent.bytes - offset);
            }
            offset -= extent.bytes;
        }
        (self.alias, 0)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.physical.is_foreign {
            return;
        }
        if let Some(slot) = self.slot.get()
            && !self.physical.give_slot(*slot)
        {
            let extents = std::mem::take(&mut self.extents);
            return lock(&self.physical.freed_but_shared).push((*slot, extents));
        }
        for extent in &self.extents {
            self.physical.release(extent.start, extent.bytes);
        }
    }
}

/// A number that no other piece of memory has or had.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Inserts a free range and merges it with adjacent free ranges.
pub(super) fn insert_merged(free: &mut BTreeMap<usize, usize>, mut start: usize, mut bytes: usize) {
    if let Some((before, room)) = free.range(..start).next_back().map(|(a, b)| (*a, *b))
        && before + room == start
    {
        free.remove(&before);
        (start, bytes) = (before, room + bytes);
    }
    if let Some(room) = free.remove(&(start + bytes)) {
        bytes += room;
    }
    free.insert(start, bytes);
}

/// The calling thread's errno.
pub(super) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fit_merges_and_punches_holes() {
        let physical = Arc::new(Physical::new(0, 8 * GRANULARITY, 0).unwrap());
        let first = physical.allocate(2 * GRANULARITY, 0).unwrap();
        let second = physical.allocate(2 * GRANULARITY, 0).unwrap();
        let start = first.locate(0).0;
        assert_eq!(second.locate(0).0, start + 2 * GRANULARITY);
        let byte = ptr::with_exposed_provenance_mut::<u8>(first.locate(5).0);
        // SAFETY: the address lies in the allocation.
        unsafe { byte.write(7) };
        drop(first);
        // SAFETY: the alias outlives the allocation.
        assert_eq!(unsafe { byte.read() }, 0, "the pages went back to the host");
        let third = physical.allocate(GRANULARITY, 0).unwrap();
        assert_eq!(third.locate(0), (start, GRANULARITY));
        assert_eq!(physical.allocate(6 * GRANULARITY, 0).err(), Some(code::OUT_OF_MEMORY));
        let pieces = physical.allocate(5 * GRANULARITY, 0).unwrap();
        assert_eq!(pieces.locate(0), (start + GRANULARITY, GRANULARITY));
        assert_eq!(pieces.locate(GRANULARITY).0, start + 4 * GRANULARITY);
        drop((second, third, pieces));
        assert_eq!(physical.used(), 0);
        assert_eq!(physical.allocate(8 * GRANULARITY, 0).map(|all| all.bytes), Ok(8 * GRANULARITY));
    }
}
