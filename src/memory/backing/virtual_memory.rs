//! The physical memory of a device: handles, their mappings, and access rights.

use crate::base::error::{Error, Result};
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::driver::sys::{
    CUdevice, CUdevice_attribute, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use crate::driver::{Driver, code};
use crate::gpu::device::MAX_DEVICES;
pub use crate::memory::backing::limit::Limit;
use std::sync::atomic::{AtomicU64, Ordering};

/// Handles and growth are multiples of at least this many bytes.
pub(in crate::memory) const SMALLEST: u64 = 2 << 20;

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
    device: CUdevice,
    is_supported: bool,
    properties: Once<Properties>,
    /// The limit of mapped memory.
    pub(in crate::memory) limit: Limit,
    /// Bit n: device n has access to this memory.
    peers: AtomicU64,
    /// Handles that the driver failed to release, to be tried again; 0: an empty place.
    unreleased: [AtomicU64; UNRELEASED],
}

/// The number of unreleased handles that are remembered; more are leaked.
const UNRELEASED: usize = 32;

const _: () = assert!(MAX_DEVICES <= 64, "peers are bits");

impl VirtualMemory {
    pub(in crate::memory) fn new(
        driver: &'static Driver,
        device: CUdevice,
    ) -> Result<VirtualMemory> {
        let peers = AtomicU64::new(0);
        let unreleased = [const { AtomicU64::new(0) }; UNRELEASED];
        let mut memory = VirtualMemory {
            driver,
            device,
            is_supported: true,
            properties: Once::new(Rank::ONCE),
            limit: Limit::new(),
            peers,
            unreleased,
        };
        let asked = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        memory.is_supported = memory.attribute(asked)?;
        Ok(memory)
    }

    fn attribute(&self, attribute: CUdevice_attribute) -> Result<bool> {
        let mut value = 0;
        // SAFETY: `value` is writable, the device exists.
        match unsafe { self.driver.cuDeviceGetAttribute(&mut value, attribute as i32, self.device) }
        {
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

    /// Tries twice to release what is left, at shutdown.
    pub(in crate::memory) fn close(&self) {
        for _ in 0..2 {
            self.retry_releases();
        }
    }
}
