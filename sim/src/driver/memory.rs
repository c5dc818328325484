//! The memory of the machine: all devices' and, as far as they can access it, the host's. Finds the
//! bytes of a device's address, and allocates and frees memory of `cuMemAlloc`.

use super::address_space::{
    Access, Accessor, AddressSpace, Chunk, Chunks, Mapping, PeerMasks, Purpose,
};
use super::config::{GRANULARITY, MAX_DEVICES};
use super::host_memory::HostMemory;
use super::managed;
use super::physical::Physical;
use super::sync::{lock, read, write};
use super::unit::LARGEST_SHARED;
use crate::base::code;
use crate::exec::heap::Heap;
use crate::memory::Window;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// The memory of all devices, and what of the host's memory they can access.
pub(super) struct Memory {
    /// The physical memory of each device.
    pub(super) physical: Vec<Arc<Physical>>,
    pub(super) space: RwLock<AddressSpace>,
    pub(super) host: RwLock<HostMemory>,
    pub(super) peers: PeerMasks,
    /// The heaps of kernels' `malloc`, by device.
    pub(super) heaps: [OnceLock<Mutex<Heap>>; MAX_DEVICES],
    /// Memory for variables of modules, by device; the driver reserves it with a context.
    modules: [OnceLock<Arc<Physical>>; MAX_DEVICES],
    /// Managed memory, by device; it is not the device's own, and can be larger. Device 0's is also
    /// the memory of the host in pools.
    managed: [OnceLock<Arc<Physical>>; MAX_DEVICES],
    /// Start and id of the memory with `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, and of some that was
    /// freed.
    pub(super) synchronous: RwLock<BTreeMap<usize, u64>>,
}

/// Bytes for variables of modules, unless the device has more memory. They are addresses only until
/// they are used, and a module takes at least [`GRANULARITY`].
const MODULE_BYTES: usize = 1 << 30;
/// How many times the memory of a device its managed memory is.
const MANAGED_TIMES: usize = 4;

impl Memory {
    pub(super) fn new(physical: Vec<Arc<Physical>>) -> Memory {
        let space = RwLock::new(AddressSpace::new(physical.iter().map(|own| own.bytes).sum()));
        let (host, peers) = (RwLock::default(), PeerMasks::default());
        let (heaps, synchronous) = (Default::default(), RwLock::default());
        let (modules, managed) = (Default::default(), Default::default());
        Memory { physical, space, host, peers, heaps, modules, managed, synchronous }
    }

    /// Frees the memory of a context.
    pub(super) fn forget_context(&self, number: usize) {
        write(&self.host).clear(|owner| owner == number);
        let memory = write(&self.space).remove_allocations(number);
        drop(memory);
    }

    /// Ends what a device's primary context has: the heap of kernels, and access to other devices.
    pub(super) fn forget_device(&self, device: usize) {
        if let Some(heap) = self.heaps[device].get() {
            *lock(heap) = Heap::default();
        }
        self.peers[device].store(0, Ordering::Relaxed);
        for mask in &self.peers {
            mask.fetch_and(!(1 << device), Ordering::Relaxed);
        }
    }

    /// True if the whole range is pinned host memory.
    #[inline]
    pub(super) fn is_pinned(&self, address: usize, bytes: usize) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let host = read(&self.host);
        let mut at = address;
        // Registered ranges can be adjacent.
        while let Some((start, range)) = host.find(at) {
            at = start + range.bytes;
            if at >= end {
                return true;
            }
        }
        false
    }

    /// Reserves addresses and maps new memory of a device there.
    pub(super) fn allocate_mapped(
        &self,
        device: usize,
        bytes: usize,
        purpose: Purpose,
        access: Access,
    ) -> Result<usize, i32> {
        self.allocate_from(&self.physical[device], bytes, purpose, access)
    }

    /// The same in the memory that is set apart for modules.
    pub(super) fn allocate_for_modules(
        &self,
        device: usize,
        bytes: usize,
        purpose: Purpose,
        access: Access,
    ) -> Result<usize, i32> {
        let most = self.physical[device].bytes.max(MODULE_BYTES);
        let physical = set_apart(&self.modules[device], device, most, 0)?;
        self.allocate_from(physical, bytes, purpose, access)
    }

    /// Allocates managed memory.
    pub(super) fn allocate_managed(
        &self,
        device: usize,
        bytes: usize,
        purpose: Purpose,
    ) -> Result<usize, i32> {
        let address = self.allocate_for_host(device, bytes, purpose, Access::All)?;
        write(&self.space).managed.insert(address, bytes);
        Ok(address)
    }

    /// Allocates memory that the host accesses at the same address.
    pub(super) fn allocate_for_host(
        &self,
        device: usize,
        bytes: usize,
        purpose: Purpose,
        access: Access,
    ) -> Result<usize, i32> {
        let (most, poison) = self.physical[device].bytes_and_poison();
        let most = most.saturating_mul(MANAGED_TIMES);
        let physical = set_apart(&self.managed[device], device, most, poison)?;
        let address = self.allocate_from(physical, bytes, purpose, access)?;
        let space = read(&self.space);
        let mapped = space.mapping(address).map(|(_, mapping)| Arc::clone(&mapping.allocation));
        drop(space);
        if mapped.is_some_and(|allocation| allocation.map_at(address)) {
            return Ok(address);
        }
        self.free_mapped(address, bytes.next_multiple_of(GRANULARITY))?;
        Err(code::OUT_OF_MEMORY)
    }

    fn allocate_from(
        &self,
        physical: &Arc<Physical>,
        bytes: usize,
        purpose: Purpose,
        access: Access,
    ) -> Result<usize, i32> {
        let bytes = bytes.checked_next_multiple_of(GRANULARITY).ok_or(code::OUT_OF_MEMORY)?;
        let allocation = physical.allocate(bytes, 0)?;
        let mut space = write(&self.space);
        let address = space.reserve(bytes, 0, 0, purpose)?;
        space.map(address, Mapping { bytes, allocation, offset: 0, access })?;
        Ok(address)
    }

    /// Undoes [`allocate_mapped`](Self::allocate_mapped).
    pub(super) fn free_mapped(&self, address: usize, bytes: usize) -> Result<(), i32> {
        let mut space = write(&self.space);
        let is_managed = space.managed.remove(address, address + bytes);
        if is_managed || space.is_of_host_pool(address) {
            managed::hide(address, bytes);
        }
        let memory = space.unmap(address, bytes)?;
        space.unreserve(address, bytes)?;
        drop(space);
        drop(memory);
        Ok(())
    }

    /// Translates a device's address to host memory: device memory or pinned host memory.
    pub(super) fn translate(
        &self,
        address: usize,
        bytes: usize,
        accessor: Accessor,
    ) -> Result<Chunks, i32> {
        let space = read(&self.space);
        if space.contains(address) {
            return space.translate(address, bytes, accessor, &self.peers);
        }
        drop(space);
        if !self.is_pinned(address, bytes) {
            return Err(code::ILLEGAL_ADDRESS);
        }
        let mut chunks = Chunks::default();
        chunks.push(Chunk { address, bytes });
        Ok(chunks)
    }

    /// The contiguous memory around an address that a kernel accesses.
    pub(super) fn window(&self, address: usize, accessor: Accessor) -> Option<Window> {
        let space = read(&self.space);
        let (start, bytes, host) = if space.contains(address) {
            space.window(address, accessor, &self.peers)?
        } else {
            drop(space);
            let (start, range) = read(&self.host).find(address)?;
            (start, range.bytes, start)
        };
        let host = ptr::with_exposed_provenance_mut(host);
        Some(Window { start: start as u64, end: (start + bytes) as u64, host })
    }

    /// Allocates memory of a context on its device.
    pub(super) fn allocate_block(
        &self,
        owner: usize,
        device: usize,
        bytes: usize,
    ) -> Result<usize, i32> {
        if bytes <= LARGEST_SHARED
            && let Some(start) = write(&self.space).blocks.take(owner, bytes)
        {
            return Ok(start);
        }
        let purpose = Purpose::Allocation(owner);
        let start = self.allocate_mapped(device, bytes, purpose, Access::Peers)?;
        let unit = bytes.next_multiple_of(GRANULARITY);
        write(&self.space).blocks.add(owner, start, unit, bytes);
        Ok(start)
    }

    /// Frees the block that begins at an address.
    pub(super) fn free_block(&self, address: usize) -> Result<(), i32> {
        let empty = write(&self.space).blocks.remove(address)?;
        match empty {
            Some((start, bytes)) => self.free_mapped(start, bytes),
            None => Ok(()),
        }
    }
}

/// Memory that is created at its first use.
fn set_apart(
    place: &OnceLock<Arc<Physical>>,
    device: usize,
    bytes: usize,
    poison: u8,
) -> Result<&Arc<Physical>, i32> {
    if let Some(physical) = place.get() {
        return Ok(physical);
    }
    let fresh = Physical::new(device, bytes, poison).map_err(|_| code::OUT_OF_MEMORY)?;
    Ok(place.get_or_init(|| Arc::new(fresh)))
}

impl Drop for Memory {
    fn drop(&mut self) {
        write(&self.host).clear(|_| true);
    }
}
