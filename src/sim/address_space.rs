//! The device address space that all devices and the host share: reservations, and what is mapped
//! into them. To the host its addresses are PROT_NONE; bytes are reached through
//! [`Allocation::locate`].

use super::code;
use super::config::{GRANULARITY, MAX_DEVICES};
use super::physical::{Allocation, insert_merged};
use super::pool::Pool;
use super::unit::Blocks;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Addresses are taken from the host in pieces of this size where it allows, so that a stale
/// device address stays recognisable as one.
const ARENA: usize = 4 << 40;
/// Where they are taken from if that is free: device addresses are the same in each run then, in
/// traces and in decisions of the host. Far from where systems and sanitizers put anything.
const FIRST: usize = 32 << 40;
const READ: u8 = 1;
const WRITE: u8 = 2;

/// Bit `p` of mask `d`: device `d` can reach what `cuMemAlloc` gave on device `p`.
pub(super) type PeerMasks = [AtomicU32; MAX_DEVICES];

/// Who may use a mapping.
#[derive(Clone)]
pub(super) enum Access {
    /// `cuMemAlloc`: its device, and those that enabled peer access to it.
    Peers,
    /// `cuMemSetAccess`: these protections, one for each device.
    Granted([u8; MAX_DEVICES]),
    /// A pool: the devices that it is shared with.
    Pool(Arc<Pool>),
}

/// What a reservation was made for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// `cuMemAddressReserve`.
    Virtual,
    /// `cuMemAlloc` on a device.
    Allocation(usize),
    /// A segment of a pool.
    Pool,
    /// What another process gave by `cuIpcGetMemHandle`, in a device's context: first address and
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

/// Who asks for bytes, and how.
#[derive(Clone, Copy)]
pub(super) struct Accessor {
    pub(super) device: usize,
    pub(super) write: bool,
    /// A copy, which the driver stages where the device cannot reach the memory itself.
    pub(super) staged: bool,
}

/// Bytes that follow each other in host memory.
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
#[derive(Default)]
pub(super) struct AddressSpace {
    /// Mapped PROT_NONE: start and length, as given to munmap, in order of creation.
    arenas: Vec<(usize, usize)>,
    free: BTreeMap<usize, usize>,
    reservations: BTreeMap<usize, Reservation>,
    mappings: BTreeMap<usize, Mapping>,
    /// What lies in the reservations of `cuMemAlloc`.
    pub(super) blocks: Blocks,
}

impl AddressSpace {
    /// Is this an address that was ever a device's?
    #[inline]
    pub(super) fn contains(&self, address: usize) -> bool {
        self.arenas.iter().any(|(start, bytes)| address.wrapping_sub(*start) < *bytes)
    }

    fn grow(&mut self, least: usize) -> Result<(), i32> {
        let least = least.checked_add(GRANULARITY).ok_or(code::OUT_OF_MEMORY)?;
        let mut bytes = ARENA.max(least);
        let last = self.arenas.last().map_or(FIRST, |(start, bytes)| start + bytes);
        loop {
            // SAFETY: reserves addresses that are not in use; the wish is no more than that.
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
                // Neighbouring arenas stay apart in `free` only by chance; joining them is harmless.
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

    /// Reserves addresses; `hint` is where the caller would like them, or 0.
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

    /// Says what a reservation is for.
    pub(super) fn rename(&mut self, address: usize, purpose: Purpose) {
        if let Some(found) = self.reservations.get_mut(&address) {
            found.purpose = purpose;
        }
    }

    /// Gives a reservation back; it must match exactly, and nothing may be mapped in it.
    pub(super) fn unreserve(&mut self, address: usize, bytes: usize) -> Result<(), i32> {
        let matches = self.reservations.get(&address).is_some_and(|found| found.bytes == bytes);
        if !matches || self.mappings.range(address..address + bytes).next().is_some() {
            return Err(code::INVALID_VALUE);
        }
        self.reservations.remove(&address);
        insert_merged(&mut self.free, address, bytes);
        Ok(())
    }

    /// The reservation around an address.
    pub(super) fn reservation(&self, address: usize) -> Option<(usize, Reservation)> {
        let (start, found) = self.reservations.range(..=address).next_back()?;
        (address - start < found.bytes).then_some((*start, *found))
    }

    /// The mapping around an address.
    pub(super) fn mapping(&self, address: usize) -> Option<(usize, &Mapping)> {
        let (start, found) = self.mappings.range(..=address).next_back()?;
        (address - start < found.bytes).then_some((*start, found))
    }

    /// Puts memory behind addresses, which must be reserved and without memory.
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

    /// Does the range begin and end with whole mappings? Holes between them do no harm (580.159).
    fn check_whole(&self, address: usize, bytes: usize) -> Result<(), i32> {
        let end = address.checked_add(bytes).ok_or(code::INVALID_VALUE)?;
        let begins = self.mappings.contains_key(&address);
        let last = self.mappings.range(address..end).next_back();
        let ends = last.is_some_and(|(start, last)| start + last.bytes == end);
        if begins && ends { Ok(()) } else { Err(code::INVALID_VALUE) }
    }

    /// Takes the memory from behind whole mappings; to be dropped outside the lock. Holes between
    /// them are nothing to unmap, and no error (580.159).
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

    /// Sets the protection of whole mappings for some devices, if `reachable` says that they can
    /// reach the memory's owner.
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
            Access::Pool(pool) => return if pool.is_reached_by(device) { READ | WRITE } else { 0 },
        };
        if device == owner || mask >> owner & 1 != 0 { READ | WRITE } else { 0 }
    }

    /// Is this virtual memory that its owner has access to, and the device has not? A copy that does
    /// not name the owner's context is refused there (seen with driver 580.159 on two devices).
    pub(super) fn is_out_of_reach(&self, address: usize, device: usize) -> bool {
        let Some((_, mapping)) = self.mapping(address) else { return false };
        let Access::Granted(granted) = &mapping.access else { return false };
        let has = |device: usize| granted.get(device).is_some_and(|access| *access != 0);
        has(mapping.allocation.device()) && !has(device)
    }

    /// Finds the bytes of a range, or the illegal access in it.
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
            let owner = mapping.allocation.device();
            if Self::protection(mapping, accessor.device, peers) & wanted == 0
                && !(accessor.staged && Self::protection(mapping, owner, peers) & wanted != 0)
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

    /// Removes what `cuMemAlloc` gave on a device; the memory is to be dropped outside the lock.
    pub(super) fn remove_allocations(&mut self, device: usize) -> Vec<Mapping> {
        let mut removed = Vec::new();
        let is_of_device = |_: &usize, found: &mut Reservation| match found.purpose {
            Purpose::Allocation(owner) | Purpose::Imported(owner, ..) => owner == device,
            Purpose::Virtual | Purpose::Pool => false,
        };
        self.blocks.forget(device);
        for (start, found) in self.reservations.extract_if(.., is_of_device) {
            let range = start..start + found.bytes;
            removed.extend(self.mappings.extract_if(range, |_, _| true).map(|(_, old)| old));
            insert_merged(&mut self.free, start, found.bytes);
        }
        removed
    }

    /// Live `cuMemAlloc` allocations of a device.
    pub(super) fn allocations_of(&self, device: usize) -> usize {
        let purpose = Purpose::Allocation(device);
        self.reservations.values().filter(|found| found.purpose == purpose).count()
    }

    /// Live mappings and reservations of virtual memory, and live `cuMemAlloc` allocations.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let reserved = self.reservations.values().filter(|found| found.purpose == Purpose::Virtual);
        let virtual_mappings =
            self.mappings.values().filter(|mapping| matches!(mapping.access, Access::Granted(_)));
        (virtual_mappings.count(), reserved.count(), self.blocks.len())
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        for (start, bytes) in &self.arenas {
            // SAFETY: the range is a PROT_NONE mapping of ours, in which nothing of the host lies.
            let _ = unsafe { libc::munmap(ptr::without_provenance_mut(*start), *bytes) };
        }
    }
}
