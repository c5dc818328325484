//! The addresses of a device: reservations, cut into slots for its arenas.
//!
//! The reservations of all devices are in one table (`registry.rs`), which maps a pointer to its
//! arena.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::waiting;
use crate::driver::sys::CUdeviceptr;
use crate::driver::{CudaError, Driver, code};
use crate::memory::arena::Arena;
use crate::memory::arena::registry::{Registry, Slot};
use crate::memory::arena::slots::{self, Window};
use crate::memory::backing::virtual_memory::SMALLEST;
use std::sync::atomic::AtomicPtr;

/// The most slots of one reservation.
pub const SLOTS: usize = 64;
/// The number of slots of the first reservation; halved if the process has few addresses left.
const FIRST_SLOTS: u64 = 8;
/// A device's first reservations have slots as large as an arena can need; those of later
/// reservations begin small.
const FULL_RESERVATIONS: usize = 2;
const MAX_RESERVATIONS: usize = 128;

static REGISTRY: Registry<Arena, MAX_RESERVATIONS, SLOTS> = Registry::new();
/// Held while a reservation is added to the table or removed.
static ADDING: Mutex<()> = Mutex::new(Rank::LEAF, ());

/// The arena whose slot holds an address, and the offset in it.
#[inline]
pub fn arena_of(address: u64) -> Option<(&'static Arena, u64)> {
    waiting::assert_awake();
    let (arena, _) = REGISTRY.arena_of(address)?;
    // SAFETY: an arena that ends leaves the table, and lives as long as a call may have found it.
    let arena = unsafe { &*arena };
    // Units are counted from the start of the arena's first slot.
    Some((arena, address - arena.base))
}

/// The device whose reservation holds an address.
pub fn device_of(address: u64) -> Option<i32> {
    REGISTRY.device_of(address)
}

/// A window and its entries in the table.
struct Windowed {
    window: Window,
    _places: Vec<AtomicPtr<Arena>>,
}

const NO_ROOM: Error = Error::OutOfHostMemory("the slots of a device's addresses");

/// The reservations of a device.
pub struct Addresses {
    driver: &'static Driver,
    ordinal: i32,
    slot_bytes: u64,
    /// Reservations that begin as small slots.
    windows: Mutex<Vec<Windowed>>,
}

impl Addresses {
    /// No reservations yet, for a device with this much memory.
    pub(in crate::memory) fn new(driver: &'static Driver, ordinal: i32, total: u64) -> Addresses {
        let slot_bytes = (total.max(SMALLEST) / 2 * 3).next_power_of_two();
        Addresses { driver, ordinal, slot_bytes, windows: Mutex::new(Rank::LEAF, Vec::new()) }
    }

    /// Bytes of a slot: at least 1.5 times the device's memory, so that an arena runs out of memory
    /// before it runs out of addresses. The slots of all 128 pooled streams still fit in the 47-bit
    /// address space of a process.
    #[inline]
    pub(in crate::memory) fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Takes two vacant slots for the arenas of a new heap. The caller holds the device's ledger,
    /// and publishes the slots or gives them back.
    pub(in crate::memory) fn take_slots(&self) -> Result<[Slot; 2]> {
        let first = self.take_slot(None)?;
        let second = self.take_slot(Some(&first)).inspect_err(|_| self.give_slot(&first))?;
        Ok([first, second])
    }

    /// Takes a vacant slot other than `but`, which is not published yet.
    fn take_slot(&self, but: Option<&Slot>) -> Result<Slot> {
        if let Some(slot) = self.vacant(but) {
            return Ok(slot);
        }
        self.reserve()?;
        self.vacant(but).ok_or(Error::OutOfHostMemory("device addresses"))
    }

    fn vacant(&self, but: Option<&Slot>) -> Option<Slot> {
        REGISTRY.vacant(self.ordinal, but).or_else(|| {
            let mut windows = self.windows.lock();
            windows.iter_mut().find_map(|Windowed { window, .. }| {
                let (index, count) = window.take_smallest()?;
                Some(REGISTRY.slot_at(window.reservation, index, count))
            })
        })
    }

    /// Takes a slot of at least `bytes` above the one in which an arena grows, at a distance from
    /// the arena's base that units can express. The caller publishes it or gives it back.
    pub(in crate::memory) fn take_larger(&self, slot: &Slot, bytes: u64) -> Option<Slot> {
        let mut windows = self.windows.lock();
        let is_it = |windowed: &&mut Windowed| windowed.window.reservation == slot.reservation;
        let window = &mut windows.iter_mut().find(is_it)?.window;
        let places = bytes.div_ceil(slot.bytes / slot.count as u64);
        let (index, count) = window.take_above(slot, places)?;
        Some(REGISTRY.slot_at(window.reservation, index, count))
    }

    /// Enters an arena in the table, at the addresses of a slot.
    pub(in crate::memory) fn publish(&self, slot: &Slot, arena: *const Arena) {
        REGISTRY.publish(slot, arena.cast_mut());
    }

    /// Makes a slot vacant; nothing is mapped in it, and the caller alone has it.
    pub(in crate::memory) fn give_slot(&self, slot: &Slot) {
        REGISTRY.publish(slot, std::ptr::null_mut());
        let mut windows = self.windows.lock();
        let mut all = windows.iter_mut().map(|windowed| &mut windowed.window);
        if let Some(window) = all.find(|window| window.reservation == slot.reservation) {
            window.give(slot.index, slot.count);
        }
    }

    fn reserve(&self) -> Result<()> {
        let own = REGISTRY.reservations_of(self.ordinal);
        let is_window = own >= FULL_RESERVATIONS;
        if is_window {
            let mut windows = self.windows.lock();
            windows.try_reserve(1).map_err(|_| NO_ROOM)?;
        }
        let adding = ADDING.lock();
        if REGISTRY.is_full() {
            return Err(Error::OutOfHostMemory("device addresses: too many reservations"));
        }
        let mut slot = self.slot_bytes();
        let smallest = (slot / 64).max(SMALLEST);
        // Each reservation of a device has twice the slots of the previous one. Few streams take
        // few addresses, which other devices need as well, and many streams need few entries in the
        // table.
        let mut slots = match is_window {
            true => (slots::LONGEST / slot).clamp(1, FIRST_SLOTS),
            false => (FIRST_SLOTS << own).min(SLOTS as u64),
        };
        let base = loop {
            let mut base: CUdeviceptr = 0;
            // SAFETY: `base` is writable.
            let reserved = unsafe {
                self.driver.cuMemAddressReserve(&mut base, (slot * slots) as usize, 0, 0, 0)
            };
            match reserved {
                Ok(()) => break base,
                Err(error) if error.code == CudaError::MISSING => return Err(error.into()),
                Err(error) if slots == 1 && slot <= smallest => {
                    return Err(match error.code {
                        code::OUT_OF_MEMORY => Error::OutOfAddresses,
                        _ => error.into(),
                    });
                }
                // Few addresses are left: fewer slots, then smaller ones.
                Err(_) if slots == 1 => slot /= 2,
                Err(_) => slots /= 2,
            }
        };
        if !is_window {
            REGISTRY.add(self.ordinal, base, slot * slots, slot);
            return Ok(());
        }
        let top = slots::levels(slot);
        let (bytes, smallest) = (slot * slots, slot >> (slots::STEP * top));
        let mut places = Vec::new();
        if places.try_reserve_exact((bytes / smallest) as usize).is_err() {
            // SAFETY: reserved with this size, and nothing is mapped in it.
            let _ = unsafe { self.driver.cuMemAddressFree(base, bytes as usize) };
            return Err(NO_ROOM);
        }
        places.resize_with((bytes / smallest) as usize, AtomicPtr::default);
        let table = places.as_mut_ptr();
        let reservation = REGISTRY.add_with(self.ordinal, base, bytes, smallest, table);
        drop(adding);
        let window = Window::new(reservation, slots as usize, top);
        self.windows.lock().push(Windowed { window, _places: places });
        Ok(())
    }

    /// Gives back the device's reservations, at shutdown; nothing is mapped. Tries twice, so that a
    /// transient failure leaves nothing behind.
    pub(in crate::memory) fn close(&self) {
        let adding = ADDING.lock();
        REGISTRY.remove(self.ordinal, |base, bytes| {
            for _ in 0..2 {
                // SAFETY: reserved with this size, and nothing is mapped in it.
                if unsafe { self.driver.cuMemAddressFree(base, bytes as usize) }.is_ok() {
                    break;
                }
            }
        });
        drop(adding);
        // The table no longer points to these entries.
        self.windows.lock().clear();
    }
}
