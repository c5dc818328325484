//! The addresses and the physical memory of a device: reservations cut into slots, handles, and
//! access rights.
//!
//! The reservations of all devices are in one table (`registry`), which maps a pointer to its
//! arena.

use super::slots::{self, Window};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::base::waiting;
use crate::driver::sys::{
    CUdevice, CUdevice_attribute, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use crate::driver::{CudaError, Driver, code};
use crate::gpu::device::MAX_DEVICES;
use crate::memory::arena::Arena;
use crate::memory::arena::registry::Registry;
pub use crate::memory::arena::registry::Slot;
use crate::memory::backing::limit::Limit;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The most slots of one reservation.
pub const SLOTS: usize = 64;
/// The number of slots of the first reservation; halved if the process has few addresses left.
const FIRST_SLOTS: u64 = 8;
/// A device's first reservations have slots as large as an arena can need; those of later
/// reservations begin small.
const FULL_RESERVATIONS: usize = 2;
const MAX_RESERVATIONS: usize = 128;
/// Handles and growth are multiples of at least this many bytes.
const SMALLEST: u64 = 2 << 20;

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

/// The granularity and handle properties of the device.
#[derive(Clone, Copy)]
struct Properties {
    granularity: u64,
    properties: CUmemAllocationProp,
}

// SAFETY: plain data; its one pointer is for another system and stays NULL.
unsafe impl Send for Properties {}
// SAFETY: as above.
unsafe impl Sync for Properties {}

/// The virtual memory of a device.
pub struct VirtualMemory {
    driver: &'static Driver,
    ordinal: i32,
    device: CUdevice,
    slot_bytes: u64,
    is_supported: bool,
    properties: Once<Properties>,
    /// The limit of mapped memory.
    pub(in crate::memory) limit: Limit,
    /// Bit n: device n has access to this memory.
    peers: AtomicU64,
    /// Handles that the driver failed to release, to be tried again; 0: an empty place.
    unreleased: [AtomicU64; UNRELEASED],
    /// Reservations that begin as small slots.
    windows: Mutex<Vec<Windowed>>,
}

/// A window and its entries in the table.
struct Windowed {
    window: Window,
    _places: Vec<AtomicPtr<Arena>>,
}

const NO_ROOM: Error = Error::OutOfHostMemory("the slots of a device's addresses");

/// The number of unreleased handles that are remembered; more are leaked.
const UNRELEASED: usize = 32;

const _: () = assert!(MAX_DEVICES <= 64, "peers are bits");

impl VirtualMemory {
    pub(in crate::memory) fn new(
        driver: &'static Driver,
        ordinal: i32,
        device: CUdevice,
        total: u64,
    ) -> Result<VirtualMemory> {
        let peers = AtomicU64::new(0);
        let slot_bytes = (total.max(SMALLEST) / 2 * 3).next_power_of_two();
        let unreleased = [const { AtomicU64::new(0) }; UNRELEASED];
        let mut memory = VirtualMemory {
            driver,
            ordinal,
            device,
            slot_bytes,
            is_supported: true,
            properties: Once::new(Rank::ONCE),
            limit: Limit::new(),
            peers,
            unreleased,
            windows: Mutex::new(Rank::LEAF, Vec::new()),
        };
        let asked = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        memory.is_supported = memory.attribute(asked)?;
        Ok(memory)
    }

    fn attribute(&self, attribute: CUdevice_attribute) -> Result<bool> {
        let mut value = 0;
        // SAFETY: `value` is writable, the device exists.
        match unsafe { self.driver.cuDeviceGetAttribute(&mut value, attribute, self.device) } {
            Ok(()) => Ok(value != 0),
            Err(error) if error.code == code::INVALID_VALUE => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Does the device have virtual memory?
    pub(in crate::memory) fn is_supported(&self) -> bool {
        self.is_supported
    }

    /// Reads the device's properties once; fails if it has no virtual memory.
    pub(in crate::memory) fn prepare(&self) -> Result<()> {
        self.properties().map(|_| ())
    }

    fn properties(&self) -> Result<&Properties> {
        use CUdevice_attribute::*;
        self.properties.get_or_try_init(|| {
            if !self.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)? {
                return Err(Error::NotSupported {
                    what: "virtual memory (cuMemMap)",
                    by: "device",
                });
            }
            let mut properties = CUmemAllocationProp {
                type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
                location: self.location(self.ordinal_of_device()),
                win32HandleMetaData: std::ptr::null_mut(),
                allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                    compressionType: 0,
                    gpuDirectRDMACapable: 0,
                    usage: 0,
                    reserved: [0; 4],
                },
            };
            // Neither property can be added to an existing handle.
            if self.attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)? {
                properties.requestedHandleTypes =
                    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            }
            if self.attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)? {
                properties.allocFlags.gpuDirectRDMACapable = 1;
            }
            let mut granularity = 0;
            // SAFETY: `granularity` is writable, the properties are whole.
            unsafe {
                self.driver.cuMemGetAllocationGranularity(
                    &mut granularity,
                    &properties,
                    CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
                )
            }?;
            let granularity = (granularity as u64).max(SMALLEST).next_power_of_two();
            Ok(Properties { granularity, properties })
        })
    }

    /// CUmemLocation uses the ordinals of cuDeviceGet.
    fn ordinal_of_device(&self) -> i32 {
        self.device
    }

    fn location(&self, id: i32) -> CUmemLocation {
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id }
    }

    /// Handles and growth are multiples of this many bytes.
    #[inline]
    pub fn granularity(&self) -> u64 {
        self.properties.get().map_or(SMALLEST, |properties| properties.granularity)
    }

    /// Bytes of a slot: at least 1.5 times the device's memory, so that an arena runs out of memory
    /// before it runs out of addresses. The slots of all 128 pooled streams still fit in the 47-bit
    /// address space of a process.
    #[inline]
    pub(in crate::memory) fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Takes a vacant slot for a new arena. The caller holds the device's ledger, and publishes the
    /// slot or gives it back.
    pub(in crate::memory) fn take_slot(&self) -> Result<Slot> {
        if let Some(slot) = self.vacant() {
            return Ok(slot);
        }
        self.reserve()?;
        self.vacant().ok_or(Error::OutOfHostMemory("device addresses"))
    }

    fn vacant(&self) -> Option<Slot> {
        REGISTRY.vacant(self.ordinal).or_else(|| {
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

    /// Makes a slot vacant; nothing is mapped in it. The caller holds the device's ledger.
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

    /// Creates a handle and maps it, without access.
    pub(in crate::memory) fn create_mapped(&self, address: u64, bytes: u64) -> Result<u64> {
        let properties = self.properties()?.properties;
        self.retry_releases();
        let mut handle = 0;
        // SAFETY: `handle` is writable, the properties are whole.
        unsafe { self.driver.cuMemCreate(&mut handle, bytes as usize, &properties, 0) }?;
        // SAFETY: the addresses are of our reservation and unmapped, the handle has this size.
        if let Err(error) = unsafe { self.driver.cuMemMap(address, bytes as usize, 0, handle, 0) } {
            self.release(handle);
            return Err(error.into());
        }
        Ok(handle)
    }

    /// Maps a handle a second time, without access.
    pub(in crate::memory) fn map_second(
        &self,
        address: u64,
        bytes: u64,
        handle: u64,
    ) -> Result<()> {
        // SAFETY: the addresses are of our reservation and unmapped, the handle has this size.
        unsafe { self.driver.cuMemMap(address, bytes as usize, 0, handle, 0) }?;
        Ok(())
    }

    /// Unmaps whole second mappings.
    pub(in crate::memory) fn unmap_second(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: whole mappings of ours, no longer in use.
        unsafe { self.driver.cuMemUnmap(address, bytes as usize) }?;
        Ok(())
    }

    /// Unmaps a handle and gives its memory back; on failure it stays mapped.
    pub(in crate::memory) fn destroy_mapped(
        &self,
        address: u64,
        bytes: u64,
        handle: u64,
    ) -> Result<()> {
        // SAFETY: exactly one mapping of ours, no longer in use.
        unsafe { self.driver.cuMemUnmap(address, bytes as usize) }?;
        self.release(handle);
        Ok(())
    }

    /// Releases an unmapped handle, after those of earlier failures.
    fn release(&self, handle: u64) {
        self.retry_releases();
        self.try_release(handle);
    }

    /// Tries again to release the handles of earlier failures.
    pub(in crate::memory) fn retry_releases(&self) {
        for place in &self.unreleased {
            if place.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let handle = place.swap(0, Ordering::AcqRel);
            if handle != 0 && !self.try_release(handle) {
                return;
            }
        }
    }

    /// Releases a handle; on failure, remembers it.
    fn try_release(&self, handle: u64) -> bool {
        // SAFETY: ours, and on no list, so that it is released once.
        let released = unsafe { self.driver.cuMemRelease(handle) }.is_ok();
        let keep = |place: &AtomicU64| {
            place.compare_exchange(0, handle, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        released || {
            let _ = self.unreleased.iter().any(keep);
            false
        }
    }

    /// Gives this device and its peers access to a mapped range.
    pub(in crate::memory) fn allow_access(&self, address: u64, bytes: u64) -> Result<()> {
        let peers = self.peers.load(Ordering::Acquire);
        let mut access = [self.access(self.device); MAX_DEVICES + 1];
        let mut count = 1;
        for peer in (0..MAX_DEVICES as i32).filter(|peer| peers >> peer & 1 == 1) {
            access[count] = self.access(peer);
            count += 1;
        }
        // SAFETY: `count` descriptors are filled in, the range is mapped.
        unsafe { self.driver.cuMemSetAccess(address, bytes as usize, access.as_ptr(), count) }?;
        Ok(())
    }

    /// Gives a peer access to a mapped range.
    pub(in crate::memory) fn allow_peer(&self, address: u64, bytes: u64, peer: i32) -> Result<()> {
        let access = self.access(peer);
        // SAFETY: one descriptor, the range is mapped.
        unsafe { self.driver.cuMemSetAccess(address, bytes as usize, &access, 1) }?;
        Ok(())
    }

    /// Bit n: device n has access to all memory that is mapped from now on.
    pub(in crate::memory) fn peers(&self) -> u64 {
        self.peers.load(Ordering::Acquire)
    }

    /// Records that a peer gets access to all memory that is mapped from now on.
    pub(in crate::memory) fn add_peer(&self, peer: i32) {
        self.peers.fetch_or(1 << peer, Ordering::AcqRel);
    }

    pub(in crate::memory) fn access(&self, device: i32) -> CUmemAccessDesc {
        CUmemAccessDesc {
            location: self.location(device),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
    }

    /// Free and total memory, from the driver; the device's context is current.
    pub fn info(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are writable.
        unsafe { self.driver.cuMemGetInfo(&mut free, &mut total) }?;
        Ok((free as u64, total as u64))
    }

    /// Gives back the device's reservations, at shutdown; nothing is mapped. Tries twice, so that a
    /// transient failure leaves nothing behind.
    pub(in crate::memory) fn close(&self) {
        for _ in 0..2 {
            self.retry_releases();
        }
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
