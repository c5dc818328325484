//! The device address space that all devices and the host share: reservations and the memory mapped
//! into them. For the host these addresses are PROT_NONE; [`Allocation::locate`] finds their bytes.

use super::config::{GRANULARITY, MAX_DEVICES};
use super::managed::{self, ManagedRanges};
use super::physical::{Allocation, insert_merged};
use super::unit::Blocks;
use crate::base::code;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Address ranges are reserved from the host in pieces of this many times the memory of all devices
/// if possible, so that a stale device address is recognised as a device address.
const PIECE_TIMES: usize = 64;
/// The largest piece, unless one reservation needs more. Tools such as valgrind take time for each
/// byte of a piece.
const MAX_PIECE: usize = 4 << 40;
/// The preferred address of the first piece. Device addresses are then the same in each run, in
/// traces and in decisions of the host. Systems and sanitizers map nothing near it.
const FIRST: usize = 32 << 40;
const READ: u8 = 1;
const WRITE: u8 = 2;

/// Bit `p` of mask `d`: device `d` can access `cuMemAlloc` memory of device `p`.
pub(super) type PeerMasks = [AtomicU32; MAX_DEVICES];

/// The devices that may access a mapping.
#[derive(Clone)]
pub(super) enum Access {
    /// `cuMemAlloc`: the owning device, and devices with peer access to it.
    Peers,
    /// `cuMemSetAccess`: these protections, one for each device.
    Granted([u8; MAX_DEVICES]),
    /// Managed memory: all devices.
    All,
    /// A pool: the devices that have access to the pool.
    Pool(Arc<PoolAccess>),
}

impl Access {
    /// True for memory of the host in a pool. The host accesses it at the same address.
    pub(super) fn is_of_host_pool(&self) -> bool {
        matches!(self, Access::Pool(pool) if pool.device.is_none())
    }
}

/// The devices that may access the memory of a pool.
pub(super) struct PoolAccess {
    /// The device of the memory; `None`: memory of the host.
    pub(super) device: Option<usize>,
    /// The handle of the pool.
    pub(super) handle: usize,
    /// Bit `d`: device `d` has access.
    pub(super) mask: AtomicU32,
}

impl PoolAccess {
    pub(super) fn is_reached_by(&self, device: usize) -> bool {
        self.mask.load(Ordering::Relaxed) >> device & 1 != 0
    }
}

/// The kind of call that made a reservation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// `cuMemAddressReserve`.
    Virtual,
    /// `cuMemAlloc` in the context of a number.
    Allocation(usize),
    /// `cuMemAllocManaged` in the context of a number, and the requested bytes.
    Managed(usize, usize),
    /// A segment of a pool.
    Pool,
    /// Variables of a module.
    Module,
    /// Memory that `cuIpcOpenMemHandle` imported into a context: its number, and first address and
    /// bytes of the block.
    Imported(usize, usize, usize),
}

/// A range of addresses.
#[derive(Clone, Copy)]
pub(super) struct Reservation {
    pub(super) bytes: usize,
    pub(super) purpose: Purpose,
}

/// A range of addresses with memory behind it.
pub(super) struct Mapping {
    pub(super) bytes: usize,
    pub(super) allocation: Arc<Allocation>,
    pub(super) offset: usize,
    pub(super) access: Access,
}

/// The device that accesses memory, and the kind of access.
#[derive(Clone, Copy)]
pub(super) struct Accessor {
    pub(super) device: usize,
    pub(super) write: bool,
    /// True for a copy: the driver stages it if the device cannot access the memory itself.
    pub(super) staged: bool,
}

/// A contiguous range of host memory.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub(super) address: usize,
    pub(super) bytes: usize,
}

/// The pieces of a range, in order; almost always one.
#[derive(Default)]
pub(super) struct Chunks {
    first: Option<Chunk>,
    rest: Vec<Chunk>,
}

impl Chunks {
    pub(super) fn push(&mut self, chunk: Chunk) {
        match self.rest.last_mut().or(self.first.as_mut()) {
            None => self.first = Some(chunk),
            Some(last) if last.address + last.bytes == chunk.address => last.bytes += chunk.bytes,
            Some(_) => self.rest.push(chunk),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Chunk> {
        self.first.iter().chain(&self.rest).copied()
    }
}

/// All device addresses.
pub(super) struct AddressSpace {
    /// Bytes of a piece.
    piece: usize,
    /// PROT_NONE mappings, oldest first: start and length, as munmap takes them.
    arenas: Vec<(usize, usize)>,
    free: BTreeMap<usize, usize>,
    reservations: BTreeMap<usize, Reservation>,
    mappings: BTreeMap<usize, Mapping>,
    /// The blocks in the reservations of `cuMemAlloc`.
    pub(super) blocks: Blocks,
    /// The managed memory.
    pub(super) managed: ManagedRanges,
}

impl AddressSpace {
    /// Addresses for devices that have this memory together.
    pub(super) fn new(memory: usize) -> AddressSpace {
        AddressSpace {
            piece: memory.saturating_mul(PIECE_TIMES).min(MAX_PIECE),
            arenas: Vec::new(),
            free: BTreeMap::new(),
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            blocks: Blocks::default(),
            managed: ManagedRanges::default(),
        }
    }

    /// True if this address is in a range that was ever used for device memory.
    #[inline]
    pub(super) fn contains(&self, address: usize) -> bool {
        self.arenas.iter().any(|(start, bytes)| address.wrapping_sub(*start) < *bytes)
    }

    fn grow(&mut self, least: usize) -> Result<(), i32> {
        let least = least.checked_add(GRANULARITY).ok_or(code::OUT_OF_MEMORY)?;
        let mut bytes = self.piece.max(least);
        let last = self.arenas.last().map_or(FIRST, |(start, bytes)| start + bytes);
        loop {
            // SAFETY: reserves addresses that are not in use; `last` is only a hint.
            let start = unsafe {
                libc::mmap(
                    ptr::without_provenance_mut(last),
                    bytes,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if start != libc::MAP_FAILED {
                let start = start.addr();
                self.arenas.push((start, bytes));
                let aligned = start.next_multiple_of(GRANULARITY);
                let room = (start + bytes - aligned) / GRANULARITY * GRANULARITY;
                // Adjacent arenas may merge in `free`, which is harmless.
                insert_merged(&mut self.free, aligned, room);
                return Ok(());
            }
            if bytes == least {
                return Err(code::OUT_OF_MEMORY);
            }
            bytes = (bytes / 2).max(least);
        }
    }

    fn fit(&self, bytes: usize, alignment: usize, hint: usize) -> Option<(usize, usize)> {
        if hint != 0
            && hint.is_multiple_of(alignment)
            && let Some((start, room)) = self.free.range(..=hint).next_back()
            && hint - start < *room
            && *room - (hint - start) >= bytes
        {
            return Some((*start, hint));
        }
        self.free.iter().find_map(|(start, room)| {
            let at = start.checked_next_multiple_of(alignment)?;
            (at - start <= *room && *room - (at - start) >= bytes).then_some((*start, at))
        })
    }

    /// Reserves addresses; `hint` is the preferred address, or 0.
    pub(super) fn reserve(
        &mut self,
        bytes: usize,
        alignment: usize,
        hint: usize,
        purpose: Purpose,
    ) -> Result<usize, i32> {
        let alignment = alignment.max(GRANULARITY);
        if self.fit(bytes, alignment, hint).is_none() {
            self.grow(bytes.checked_add(alignment).ok_or(code::OUT_OF_MEMORY)?)?;
        }
        let (start, at) = self.fit(bytes, alignment, hint).ok_or(code::OUT_OF_MEMORY)?;
        let room = self.free.remove(&start).ok_or(code::UNKNOWN)?;
        if at > start {
            self.free.insert(start, at - start);
        }
        if start + room > at + bytes {
            self.free.insert(at + bytes, start + room - at - bytes);
        }
        self.reservations.insert(at, Reservation { bytes, purpose });
        Ok(at)
    }

    /// Sets the purpose of a reservation.
    pub(super) fn rename(&mut self, address: usize, purpose: Purpose) {
        if let Some(found) = self.reservations.get_mut(&address) {
            found.purpose = purpose;
        }
    }

    /// Frees a reservation. It must match exactly and contain no mapping.
    pub(super) fn unreserve(&mut self, address: usize, bytes: usize) -> Result<(), i32> {
        let matches = self.reservations.get(&address).is_some_and(|found| found.bytes == bytes);
        if !matches || self.mappings.range(address..address + bytes).next().is_some() {
            return Err(code::INVALID_VALUE);
        }
        self.reservations.remove(&address);
        insert_merged(&mut self.free, address, bytes);
        Ok(())
    }

    /// The reservation that contains an address.
    pub(super) fn reservation(&self, address: usize) -> Option<(usize, Reservation)> {
        let (start, found) = self.reservations.range(..=address).next_back()?;
        (address - start < found.bytes).then_some((*start, *found))
    }

    /// The mapping that contains an address.
    pub(super) fn mapping(&self, address: usize) -> Option<(usize, &Mapping)> {
        let (start, found) = self.mappings.range(..=address).next_back()?;
        (address - start < found.bytes).then_some((*start, found))
    }

    /// Maps memory at addresses, which must be reserved and unmapped.
    pub(super) fn map(&mut self, address: usize, mapping: Mapping) -> Result<(), i32> {
        let bytes = mapping.bytes;
        let (start, reservation) = self.reservation(address).ok_or(code::INVALID_VALUE)?;
        if bytes > reservation.bytes - (address - start) {
            return Err(code::INVALID_VALUE);
        }
        let before = self.mappings.range(..address + bytes).next_back();
        if before.is_some_and(|(start, before)| start + before.bytes > address) {
            return Err(code::INVALID_VALUE);
        }
        self.mappings.insert(address, mapping);
        Ok(())
    }

    /// Checks that a mapping starts at the beginning of the range and one ends at its end. Unmapped
    /// gaps between them are allowed (580.159).
    fn check_whole(&self, address: usize, bytes: usize) -> Result<(), i32> {
        let end = address.checked_add(bytes).ok_or(code::INVALID_VALUE)?;
        let begins = self.mappings.contains_key(&address);
        let last = self.mappings.range(address..end).next_back();
        let ends = last.is_some_and(|(start, last)| start + last.bytes == end);
        if begins && ends { Ok(()) } else { Err(code::INVALID_VALUE) }
    }

    /// Unmaps whole mappings; the caller drops them outside the lock. Unmapped gaps between them
    /// are no error (580.159).
    pub(super) fn unmap(&mut self, address: usize, bytes: usize) -> Result<Vec<Mapping>, i32> {
        let end = address.checked_add(bytes).ok_or(code::INVALID_VALUE)?;
        let starts_inside = self.mapping(address).is_some_and(|(start, _)| start != address);
        let last = self.mappings.range(address..end).next_back();
        let ends_inside = last.is_some_and(|(start, last)| start + last.bytes > end);
        if starts_inside || ends_inside {
            return Err(code::INVALID_VALUE);
        }
        let range = address..address + bytes;
        Ok(self.mappings.extract_if(range, |_, _| true).map(|(_, mapping)| mapping).collect())
    }

    /// Sets the protection of whole mappings for some devices, if `reachable` is true for each
    /// device and the memory's owner.
    pub(super) fn set_access(
        &mut self,
        address: usize,
        bytes: usize,
        rights: &[(usize, u8)],
        reachable: impl Fn(usize, usize) -> bool,
    ) -> Result<(), i32> {
        self.check_whole(address, bytes)?;
        let range = (Bound::Included(address), Bound::Excluded(address + bytes));
        for (_, mapping) in self.mappings.range(range) {
            if !matches!(mapping.access, Access::Granted(_)) {
                return Err(code::INVALID_VALUE);
            }
            let owner = mapping.allocation.device();
            if rights.iter().any(|(device, _)| *device != owner && !reachable(*device, owner)) {
                return Err(code::INVALID_DEVICE);
            }
        }
        for (_, mapping) in self.mappings.range_mut(range) {
            if let Access::Granted(granted) = &mut mapping.access {
                for (device, protection) in rights {
                    granted[*device] = *protection;
                }
            }
        }
        Ok(())
    }

    /// The protection of a mapping for a device.
    pub(super) fn protection(mapping: &Mapping, device: usize, peers: &PeerMasks) -> u8 {
        let owner = mapping.allocation.device();
        let mask = match &mapping.access {
            Access::Granted(granted) => return granted.get(device).copied().unwrap_or(0),
            Access::Peers => peers.get(device).map_or(0, |mask| mask.load(Ordering::Relaxed)),
            Access::All => return READ | WRITE,
            Access::Pool(pool) => return if pool.is_reached_by(device) { READ | WRITE } else { 0 },
        };
        if device == owner || mask >> owner & 1 != 0 { READ | WRITE } else { 0 }
    }

    /// True if the driver can stage copies of the memory: its owner can access it, or the host.
    fn is_stageable(mapping: &Mapping, wanted: u8, peers: &PeerMasks) -> bool {
        let owner = mapping.allocation.device();
        mapping.access.is_of_host_pool() || Self::protection(mapping, owner, peers) & wanted != 0
    }

    /// True if an address is in memory of the host in a pool.
    pub(super) fn is_of_host_pool(&self, address: usize) -> bool {
        self.mapping(address).is_some_and(|(_, mapping)| mapping.access.is_of_host_pool())
    }

    /// True for memory of a pool, and virtual memory, that its owner can access and the device
    /// cannot. The driver refuses a copy of it that does not name the owner's context (seen with
    /// driver 580.159 on two devices).
    pub(super) fn is_out_of_reach(&self, address: usize, device: usize) -> bool {
        let Some((_, mapping)) = self.mapping(address) else { return false };
        let has = |device: usize| match &mapping.access {
            Access::Granted(granted) => granted.get(device).is_some_and(|access| *access != 0),
            Access::Pool(pool) => pool.device.is_none() || pool.is_reached_by(device),
            Access::Peers | Access::All => true,
        };
        has(mapping.allocation.device()) && !has(device)
    }

    /// Translates a device range to host ranges; fails on an illegal access in it.
    pub(super) fn translate(
        &self,
        mut address: usize,
        bytes: usize,
        accessor: Accessor,
        peers: &PeerMasks,
    ) -> Result<Chunks, i32> {
        let wanted = if accessor.write { WRITE } else { READ };
        let end = address.checked_add(bytes).ok_or(code::ILLEGAL_ADDRESS)?;
        let mut chunks = Chunks::default();
        while address < end {
            let (start, mapping) = self.mapping(address).ok_or(code::ILLEGAL_ADDRESS)?;
            if Self::protection(mapping, accessor.device, peers) & wanted == 0
                && !(accessor.staged && Self::is_stageable(mapping, wanted, peers))
            {
                return Err(code::ILLEGAL_ADDRESS);
            }
            let inside = address - start;
            let (host, contiguous) = mapping.allocation.locate(mapping.offset + inside);
            let length = contiguous.min(mapping.bytes - inside).min(end - address);
            if length == 0 {
                return Err(code::ILLEGAL_ADDRESS);
            }
            chunks.push(Chunk { address: host, bytes: length });
            address += length;
        }
        Ok(chunks)
    }

    /// The contiguous memory around a device address, as device addresses and the host's address;
    /// `None` on an illegal access.
    pub(super) fn window(
        &self,
        address: usize,
        accessor: Accessor,
        peers: &PeerMasks,
    ) -> Option<(usize, usize, usize)> {
        let wanted = if accessor.write { WRITE } else { READ };
        let (start, mapping) = self.mapping(address)?;
        if Self::protection(mapping, accessor.device, peers) & wanted == 0 {
            return None;
        }
        let inside = address - start;
        let whole = |offset: usize| {
            let (host, contiguous) = mapping.allocation.locate(mapping.offset + offset);
            (start + offset, contiguous.min(mapping.bytes - offset), host)
        };
        // The memory can consist of several pieces; most often the first is all.
        let first = whole(0);
        Some(if inside < first.1 { first } else { whole(inside) })
    }

    /// Removes the `cuMemAlloc` allocations of a context; the caller drops their memory outside the
    /// lock.
    pub(super) fn remove_allocations(&mut self, context: usize) -> Vec<Mapping> {
        let mut removed = Vec::new();
        let is_of_context = |_: &usize, found: &mut Reservation| match found.purpose {
            Purpose::Allocation(owner)
            | Purpose::Managed(owner, _)
            | Purpose::Imported(owner, ..) => owner == context,
            Purpose::Virtual | Purpose::Pool | Purpose::Module => false,
        };
        self.blocks.forget(context);
        for (start, found) in self.reservations.extract_if(.., is_of_context) {
            let range = start..start + found.bytes;
            if self.managed.remove(range.start, range.end) {
                managed::hide(start, found.bytes);
            }
            removed.extend(self.mappings.extract_if(range, |_, _| true).map(|(_, old)| old));
            insert_merged(&mut self.free, start, found.bytes);
        }
        removed
    }

    /// Live `cuMemAlloc` and `cuMemAllocManaged` allocations of a context.
    pub(super) fn allocations_of(&self, context: usize) -> usize {
        let is_of_context = |found: &&Reservation| match found.purpose {
            Purpose::Allocation(owner) | Purpose::Managed(owner, _) => owner == context,
            _ => false,
        };
        self.reservations.values().filter(is_of_context).count()
    }

    /// Live mappings and reservations of virtual memory, and live `cuMemAlloc` and
    /// `cuMemAllocManaged` allocations.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let reserved = self.reservations.values().filter(|found| found.purpose == Purpose::Virtual);
        let virtual_mappings =
            self.mappings.values().filter(|mapping| matches!(mapping.access, Access::Granted(_)));
        let is_managed = |found: &&Reservation| matches!(found.purpose, Purpose::Managed(..));
        let managed = self.reservations.values().filter(is_managed).count();
        (virtual_mappings.count(), reserved.count(), self.blocks.len() + managed)
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        for (start, bytes) in &self.arenas {
            // SAFETY: the range is a PROT_NONE mapping of the machine, without objects of the host.
            let _ = unsafe { libc::munmap(ptr::without_provenance_mut(*start), *bytes) };
        }
    }
}
