//! The registry of arenas by address. The reservations of all devices are in one fixed table, so
//! that a few comparisons and a shift lead from a pointer to its arena, without a lock.
//!
//! An entry is written before the count that publishes it. Of the first entry, which is read
//! without the count, the length is written last. Entries change afterwards only at shutdown, when
//! no thread is inside. The slots of an entry are filled and emptied one by one. An entry with many
//! slots has a table of its own.

use crate::base::sync::{self, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A reservation: `bytes >> shift` slots of equal size.
struct Reservation<T, const SLOTS: usize> {
    base: AtomicU64,
    bytes: AtomicU64,
    shift: AtomicU32,
    device: AtomicU32,
    arenas: [AtomicPtr<T>; SLOTS],
    /// A table of its own with a place for each slot; NULL: `arenas` is the table.
    table: AtomicPtr<AtomicPtr<T>>,
}

impl<T, const SLOTS: usize> Reservation<T, SLOTS> {
    /// The table entry of a slot.
    #[inline]
    fn place(&self, index: usize) -> &AtomicPtr<T> {
        let table = self.table.load(Ordering::Acquire);
        if table.is_null() {
            return &self.arenas[index];
        }
        // SAFETY: the table has a place for each slot of the reservation.
        let place = unsafe { table.add(index) };
        // SAFETY: the table lives as long as the reservation.
        unsafe { &*place }
    }

    /// The content of the slot of an address, and the offset in the slot.
    #[inline]
    fn slot_of_any(&self, address: u64) -> Option<(*const T, u64)> {
        let bytes = self.bytes.load(Ordering::Acquire);
        let offset = address.wrapping_sub(self.base.load(Ordering::Relaxed));
        if offset >= bytes {
            return None;
        }
        let shift = self.shift.load(Ordering::Relaxed);
        let arena = self.place((offset >> shift) as usize).load(Ordering::Acquire);
        Some((arena, offset & ((1 << shift) - 1)))
    }

    /// Does the work of [`Reservation::slot_of_any`] if the reservation has no table of its own.
    #[inline(always)]
    fn slot_of(&self, address: u64) -> Option<(*const T, u64)> {
        // The length is written last.
        let bytes = self.bytes.load(Ordering::Acquire);
        let offset = address.wrapping_sub(self.base.load(Ordering::Relaxed));
        if offset >= bytes {
            return None;
        }
        let shift = self.shift.load(Ordering::Relaxed);
        let arena = self.arenas[(offset >> shift) as usize].load(Ordering::Acquire);
        Some((arena, offset & ((1 << shift) - 1)))
    }
}

/// A slot that is being assigned to an arena.
#[derive(Clone, Copy)]
pub struct Slot {
    pub(in crate::memory) reservation: usize,
    pub(in crate::memory) index: usize,
    /// Table entries that it has.
    pub(in crate::memory) count: usize,
    /// First address.
    pub base: u64,
    /// Length.
    pub bytes: u64,
}

/// The table of reservations.
pub struct Registry<T, const RESERVATIONS: usize, const SLOTS: usize> {
    entries: [Reservation<T, SLOTS>; RESERVATIONS],
    count: AtomicUsize,
}

impl<T, const RESERVATIONS: usize, const SLOTS: usize> Registry<T, RESERVATIONS, SLOTS> {
    sync::constant! {
        /// An empty table.
        pub fn new() -> Registry<T, RESERVATIONS, SLOTS> {
            Registry {
                entries: sync::repeat!(Reservation {
                    base: AtomicU64::new(0),
                    bytes: AtomicU64::new(0),
                    shift: AtomicU32::new(0),
                    device: AtomicU32::new(0),
                    arenas: sync::repeat!(AtomicPtr::new(std::ptr::null_mut())),
                    table: AtomicPtr::new(std::ptr::null_mut()),
                }),
                count: AtomicUsize::new(0),
            }
        }
    }

    #[inline]
    fn known(&self) -> &[Reservation<T, SLOTS>] {
        &self.entries[..self.count.load(Ordering::Acquire)]
    }

    /// The arena whose slot holds an address, and the offset in it.
    #[inline]
    pub fn arena_of(&self, address: u64) -> Option<(*const T, u64)> {
        // Most processes have one device, and one reservation.
        let found = match self.entries[0].slot_of(address) {
            Some(found) => found,
            None => self.known().iter().skip(1).find_map(|entry| entry.slot_of_any(address))?,
        };
        (!found.0.is_null()).then_some(found)
    }

    /// The device whose reservation holds an address.
    pub fn device_of(&self, address: u64) -> Option<i32> {
        let holds = |entry: &&Reservation<T, SLOTS>| {
            let offset = address.wrapping_sub(entry.base.load(Ordering::Relaxed));
            offset < entry.bytes.load(Ordering::Relaxed)
        };
        let entry = self.known().iter().find(holds)?;
        Some(entry.device.load(Ordering::Relaxed) as i32)
    }

    /// Reservations that a device has.
    pub fn reservations_of(&self, device: i32) -> usize {
        self.known().iter().filter(|e| e.device.load(Ordering::Relaxed) as i32 == device).count()
    }

    /// Is the table full?
    pub fn is_full(&self) -> bool {
        self.known().len() == RESERVATIONS
    }

    /// Adds a reservation of equal slots. The caller serialises additions, and the table has room.
    pub fn add(&self, device: i32, base: u64, bytes: u64, slot_bytes: u64) {
        self.add_with(device, base, bytes, slot_bytes, std::ptr::null_mut());
    }

    /// Adds a reservation with a table of its own, which has a NULL entry for each slot and lives
    /// until the reservation is removed. It is not the first reservation. Returns its number.
    pub fn add_with(
        &self,
        device: i32,
        base: u64,
        bytes: u64,
        slot_bytes: u64,
        table: *mut AtomicPtr<T>,
    ) -> usize {
        let index = self.known().len();
        let Some(entry) = self.entries.get(index) else { return index };
        entry.table.store(table, Ordering::Release);
        entry.base.store(base, Ordering::Relaxed);
        entry.shift.store(slot_bytes.trailing_zeros(), Ordering::Relaxed);
        entry.device.store(device as u32, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Release);
        self.count.store(index + 1, Ordering::Release);
        index
    }

    /// A slot of a device that has no arena and is not `but`, in a reservation without a table of
    /// its own. The caller holds the device's ledger.
    pub fn vacant(&self, device: i32, but: Option<&Slot>) -> Option<Slot> {
        let is_but = |place| but.is_some_and(|slot| (slot.reservation, slot.index) == place);
        let entries = self.known().iter().enumerate();
        let is_its = |entry: &Reservation<T, SLOTS>| {
            entry.device.load(Ordering::Relaxed) as i32 == device
                && entry.table.load(Ordering::Relaxed).is_null()
        };
        entries.filter(|(_, entry)| is_its(entry)).find_map(|(reservation, entry)| {
            let bytes = 1 << entry.shift.load(Ordering::Relaxed);
            let slots = (entry.bytes.load(Ordering::Relaxed) / bytes) as usize;
            let is_vacant = |index: &usize| entry.arenas[*index].load(Ordering::Relaxed).is_null();
            let index = (0..slots).find(|at| is_vacant(at) && !is_but((reservation, *at)))?;
            let base = entry.base.load(Ordering::Relaxed) + index as u64 * bytes;
            Some(Slot { reservation, index, count: 1, base, bytes })
        })
    }

    /// The slot of a reservation with a table of its own, with `count` entries from `index`.
    pub fn slot_at(&self, reservation: usize, index: usize, count: usize) -> Slot {
        let entry = &self.entries[reservation];
        let shift = entry.shift.load(Ordering::Relaxed);
        let base = entry.base.load(Ordering::Relaxed) + ((index as u64) << shift);
        Slot { reservation, index, count, base, bytes: (count as u64) << shift }
    }

    /// Makes an arena reachable by the addresses of a slot; NULL: the slot has no arena any more.
    /// One thread at a time changes a slot.
    pub fn publish(&self, slot: &Slot, arena: *mut T) {
        let entry = &self.entries[slot.reservation];
        for index in slot.index..slot.index + slot.count {
            entry.place(index).store(arena, Ordering::Release);
        }
    }

    /// Removes the reservations of a device, and passes each to `body`. No thread is inside; the
    /// caller serialises it with additions.
    pub fn remove(&self, device: i32, mut body: impl FnMut(u64, u64)) {
        for entry in self.known() {
            if entry.device.load(Ordering::Relaxed) as i32 != device {
                continue;
            }
            let bytes = entry.bytes.swap(0, Ordering::AcqRel);
            entry.table.store(std::ptr::null_mut(), Ordering::Release);
            for arena in &entry.arenas {
                arena.store(std::ptr::null_mut(), Ordering::Release);
            }
            if bytes > 0 {
                body(entry.base.load(Ordering::Relaxed), bytes);
            }
        }
        // Entries of closed devices are reused once all devices are closed.
        if self.entries.iter().all(|entry| entry.bytes.load(Ordering::Relaxed) == 0) {
            self.count.store(0, Ordering::Release);
        }
    }
}
