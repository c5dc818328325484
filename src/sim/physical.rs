//! Physical memory of a device: a sparse memory file, handed out by first fit, seen through one
//! alias mapping of the whole.

use super::code;
use super::config::GRANULARITY;
use super::lock;
use super::shared::{self, META, Slots};
use crate::base::file::Quiet;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes at the start of a granule that are filled where fresh memory is, and of how many granules.
pub(super) const SPOILED: usize = 16 << 10;
const SPOILED_GRANULES: usize = 16;

/// The memory of one device.
pub(super) struct Physical {
    pub(super) device: usize,
    pub(super) file: libc::c_int,
    pub(super) bytes: usize,
    /// Another process's memory, of which nothing is given out here.
    is_foreign: bool,
    /// What other processes may know of it, behind the memory.
    pub(super) slots: Mutex<Slots>,
    /// What was given back while other processes still had it: taken back when they have not.
    held_elsewhere: Mutex<Vec<(usize, Vec<Extent>)>>,
    /// What fresh memory is filled with; 0: it is left as the host gives it.
    poison: u8,
    used: AtomicUsize,
    free: Mutex<BTreeMap<usize, usize>>,
    /// Host address of the whole file, mapped at first use; `None` where the host refused.
    alias: OnceLock<Option<usize>>,
}

impl Physical {
    /// Memory of `bytes`; the error is an errno.
    pub(super) fn new(device: usize, bytes: usize, poison: u8) -> Result<Physical, i32> {
        // SAFETY: the name is NUL-terminated.
        let file =
            unsafe { libc::memfd_create(c"simulated device memory".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(errno());
        }
        let physical = Physical {
            device,
            file,
            bytes,
            is_foreign: false,
            slots: Mutex::default(),
            held_elsewhere: Mutex::default(),
            poison,
            used: AtomicUsize::new(0),
            free: Mutex::new(BTreeMap::from([(0, bytes)])),
            alias: OnceLock::new(),
        };
        // Beyond a limit (ulimit -f) that is an error, and no signal.
        let _quiet = Quiet::begin();
        // SAFETY: the descriptor is ours.
        if unsafe { libc::ftruncate(file, (bytes + META) as libc::off_t) } != 0 {
            return Err(errno());
        }
        Ok(physical)
    }

    /// Another process's memory, behind a descriptor that this takes.
    pub(super) fn foreign(device: usize, file: libc::c_int, bytes: usize) -> Physical {
        Physical {
            device,
            file,
            bytes,
            is_foreign: true,
            slots: Mutex::default(),
            held_elsewhere: Mutex::default(),
            poison: 0,
            used: AtomicUsize::new(0),
            free: Mutex::default(),
            alias: OnceLock::new(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn used(&self) -> usize {
        self.take_back();
        self.used.load(Ordering::Relaxed)
    }

    /// Takes back what no other process has any more.
    fn take_back(&self) {
        let mut held = lock(&self.held_elsewhere);
        held.retain_mut(|(slot, extents)| {
            let is_held = !shared::give_slot(self, *slot);
            if !is_held {
                extents.iter().for_each(|extent| self.release(extent.start, extent.bytes));
            }
            is_held
        });
    }

    /// Where offset 0 is seen by the host.
    #[inline]
    pub(super) fn alias(&self) -> Option<usize> {
        *self.alias.get_or_init(|| {
            // SAFETY: maps a file of ours at an address of the system's choice.
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
            // A core dump would fill every hole of the file.
            // SAFETY: the range is the mapping above.
            let _ = unsafe { libc::madvise(address, self.bytes + META, libc::MADV_DONTDUMP) };
            Some(address.expose_provenance())
        })
    }

    /// Takes `bytes`, a multiple of the granularity, at the lowest offset where they fit, so that
    /// neighbours in time tend to be neighbours in memory; in pieces where no hole is large enough,
    /// since device memory is paged and never too fragmented.
    /// `handle_types` are the kinds of handles that it can be exported as.
    pub(super) fn allocate(
        self: &Arc<Self>,
        bytes: usize,
        handle_types: u32,
    ) -> Result<Arc<Allocation>, i32> {
        debug_assert_eq!(bytes % GRANULARITY, 0);
        self.take_back();
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
            extents.iter().for_each(|extent| self.spoil(alias, extent));
        }
        let physical = Arc::clone(self);
        let id = next_id();
        let slot = OnceLock::new();
        Ok(Arc::new(Allocation { physical, extents, bytes, alias, id, handle_types, slot }))
    }

    /// Another process's allocation, in this memory of it.
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

    /// Fills the beginning of the first granules: all of it would cost the host memory.
    fn spoil(&self, alias: usize, extent: &Extent) {
        for granule in (0..extent.bytes).step_by(GRANULARITY).take(SPOILED_GRANULES) {
            let start = ptr::with_exposed_provenance_mut::<u8>(alias + extent.start + granule);
            // SAFETY: the granule lies in the file, and nobody else has it.
            unsafe { ptr::write_bytes(start, self.poison, SPOILED) };
        }
    }

    fn release(&self, offset: usize, bytes: usize) {
        // SAFETY: the range lies in the file and nobody maps it to a device address any more.
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
            // SAFETY: the mapping is ours, and no allocation is left that reaches into it.
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

/// Physical memory, which lives as long as a handle or a mapping holds it.
pub(super) struct Allocation {
    pub(super) physical: Arc<Physical>,
    pub(super) extents: Vec<Extent>,
    pub(super) bytes: usize,
    alias: usize,
    /// See [`next_id`].
    pub(super) id: u64,
    pub(super) handle_types: u32,
    /// Where other processes read what it is, once it was shared.
    pub(super) slot: OnceLock<usize>,
}

impl Allocation {
    pub(super) fn device(&self) -> usize {
        self.physical.device
    }

    /// The file that it lies in, and where that begins in the host's addresses.
    pub(super) fn file(&self) -> (libc::c_int, usize) {
        (self.physical.file, self.alias)
    }

    /// Host address of a byte, and how many bytes follow there.
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
            && !shared::give_slot(&self.physical, *slot)
        {
            let extents = std::mem::take(&mut self.extents);
            return lock(&self.physical.held_elsewhere).push((*slot, extents));
        }
        for extent in &self.extents {
            self.physical.release(extent.start, extent.bytes);
        }
    }
}

/// What tells one piece of memory from every other, also from earlier ones.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Puts a free range back, joined with its free neighbours.
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
