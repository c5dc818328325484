//! Allocations that other processes use: publishes them in the slots of a device's file, and opens
//! those of another process. The file offset of an exported descriptor is that of its slot. The
//! descriptor and its duplicates hold the lock of the slot.

use super::config::GRANULARITY;
use super::physical::{Allocation, Extent, Physical, errno};
use super::slots::{META, SLOT, SLOTS, lock_slot};
use super::sync::lock;
use std::ffi::CString;
use std::ptr;
use std::sync::Arc;

/// Maximum number of pieces of a shared allocation.
const MOST_EXTENTS: usize = 250;
/// First word of a slot in use.
const MAGIC: u64 = 0x7463_7564_6173_6c74;

/// The contents of a slot.
#[derive(Clone, Copy)]
#[repr(C)]
struct Record {
    magic: u64,
    /// Id of the allocation, so that a reused slot is detected.
    id: u64,
    /// The ordinal of the device; which index it has differs with CUDA_VISIBLE_DEVICES.
    device: u64,
    handle_types: u64,
    count: u64,
    extents: [(u64, u64); MOST_EXTENTS],
}

const _: () = assert!(size_of::<Record>() <= SLOT, "it fits");

/// Writes the description of an allocation to a slot of its memory; returns the slot. `None`: no
/// slot is free, or the allocation has too many pieces.
pub(super) fn publish(allocation: &Allocation, ordinal: usize) -> Option<usize> {
    let physical = &allocation.physical;
    let mut slots = lock(&physical.slots);
    if let Some(slot) = allocation.slot.get() {
        return Some(*slot);
    }
    let alias = physical.alias().filter(|_| allocation.extents.len() <= MOST_EXTENTS)?;
    let slot = slots.take()?;
    let mut record = Record {
        magic: MAGIC,
        id: allocation.id,
        device: ordinal as u64,
        handle_types: allocation.handle_types.into(),
        count: allocation.extents.len() as u64,
        extents: [(0, 0); MOST_EXTENTS],
    };
    for (place, extent) in record.extents.iter_mut().zip(&allocation.extents) {
        *place = (extent.start as u64, extent.bytes as u64);
    }
    let place = ptr::with_exposed_provenance_mut::<Record>(alias + physical.bytes() + slot * SLOT);
    // SAFETY: the slot lies in the file and belongs to this allocation only.
    unsafe { place.write(record) };
    let _ = allocation.slot.set(slot);
    Some(slot)
}

/// Reopens a file by its name in /proc, so that it has locks of its own.
pub(super) fn open_again(process: u32, file: i32) -> Result<i32, i32> {
    let name = CString::new(format!("/proc/{process}/fd/{file}")).map_err(|_| libc::EINVAL)?;
    // SAFETY: the name ends with a NUL.
    let opened = unsafe { libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if opened < 0 { Err(errno()) } else { Ok(opened) }
}

/// Creates a descriptor that identifies an allocation in any process.
pub(super) fn export(allocation: &Allocation, ordinal: usize) -> Result<i32, i32> {
    let slot = publish(allocation, ordinal).ok_or(libc::ENOSPC)?;
    let offset = allocation.physical.bytes() + slot * SLOT;
    let file = open_again(std::process::id(), allocation.physical.file)?;
    // SAFETY: the descriptor is ours.
    let stands = unsafe { libc::lseek(file, offset as i64, libc::SEEK_SET) } == offset as i64;
    if !stands || !lock_slot(file, offset, libc::F_RDLCK) {
        let failed = errno();
        close(file);
        return Err(failed);
    }
    // CUDA does not document that it closes at exec; here it stays open.
    // SAFETY: the descriptor is ours.
    unsafe { libc::fcntl(file, libc::F_SETFD, 0) };
    Ok(file)
}

pub(super) fn close(file: i32) {
    // SAFETY: the caller owns the descriptor.
    unsafe { libc::close(file) };
}

/// The bytes of memory in a device's file; `None` if the file is not one.
pub(super) fn memory_of(file: i32) -> Option<usize> {
    // SAFETY: plain integers, to be written.
    let mut status = unsafe { std::mem::zeroed::<libc::stat>() };
    // SAFETY: `status` is writable.
    if unsafe { libc::fstat(file, &mut status) } != 0 {
        return None;
    }
    let bytes = usize::try_from(status.st_size).ok()?.checked_sub(META)?;
    bytes.is_multiple_of(GRANULARITY).then_some(bytes)
}

/// The allocation that a descriptor identifies; the caller keeps the descriptor.
pub(super) fn import(
    file: i32,
    device_of: impl Fn(u64) -> Option<usize>,
) -> Option<Arc<Allocation>> {
    // SAFETY: fcntl accepts any number.
    let own = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 0) };
    if own < 0 {
        return None;
    }
    // SAFETY: the descriptor is ours.
    let offset = unsafe { libc::lseek(own, 0, libc::SEEK_CUR) };
    adopt(own, usize::try_from(offset).ok(), None, device_of)
}

/// The allocation that the slot at `offset` describes; with `id`, only if the ids are equal. Takes
/// the descriptor.
pub(super) fn adopt(
    file: i32,
    offset: Option<usize>,
    id: Option<u64>,
    device_of: impl Fn(u64) -> Option<usize>,
) -> Option<Arc<Allocation>> {
    let found = offset.and_then(|offset| read(file, offset, id));
    let placed = found.and_then(|(record, bytes)| Some((device_of(record.device)?, record, bytes)));
    let Some((device, record, bytes)) = placed else {
        close(file);
        return None;
    };
    let physical = Physical::foreign(device, file, bytes);
    let pieces = record.extents.iter().take(record.count as usize);
    let extents: Vec<Extent> = pieces
        .map(|(start, bytes)| Extent { start: *start as usize, bytes: *bytes as usize })
        .collect();
    Arc::new(physical).adopt(extents, record.handle_types as u32).ok()
}

fn read(file: i32, offset: usize, id: Option<u64>) -> Option<(Box<Record>, usize)> {
    let bytes = memory_of(file)?;
    let is_slot = offset >= bytes && (offset - bytes).is_multiple_of(SLOT);
    if !is_slot || offset >= bytes + SLOT * SLOTS || !lock_slot(file, offset, libc::F_RDLCK) {
        return None;
    }
    // SAFETY: plain integers, to be written.
    let mut record = unsafe { Box::<Record>::new_zeroed().assume_init() };
    let size = size_of::<Record>();
    // SAFETY: the record has `size` bytes, and any bytes are valid integers.
    let read = unsafe { libc::pread(file, (&raw mut *record).cast(), size, offset as i64) };
    let is_inside = |(start, length): &(u64, u64)| {
        start.checked_add(*length).is_some_and(|end| end <= bytes as u64)
    };
    let is_whole = read == size as isize
        && record.magic == MAGIC
        && id.is_none_or(|id| id == record.id)
        && record.count as usize <= MOST_EXTENTS
        && record.extents.iter().take(record.count as usize).all(is_inside);
    is_whole.then_some((record, bytes))
}
