//! Sharing with other processes: by handles, which are plain data naming an open file of the
//! exporting process, and by descriptors.

use super::address_space::{Access, Mapping, Purpose};
use super::arguments::{put, require};
use super::context::Context;
use super::entry::{entry, entry_checked};
use super::event::Event;
use super::physical::Physical;
use super::shared_event::SharedEvent;
use super::sync::{read, write};
use super::{shared, slots};
use crate::base::code;
use cudarc::driver::sys::{
    CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUmemAllocationHandleType,
    CUmemGenericAllocationHandle,
};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Magic numbers of memory and event handles.
const MEMORY: u64 = 0x7463_7564_616d_656d;
const EVENT: u64 = 0x7463_7564_6165_7674;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEERS: c_uint = 1;

/// The contents of a handle.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct HandleData {
    magic: u64,
    process: u32,
    file: i32,
    /// Offset in the file of the slot or event.
    offset: u64,
    /// Id of the allocation or event.
    id: u64,
    /// The ordinal of the device.
    device: u64,
    /// Offset of a block in its allocation; `bytes` is its length.
    start: u64,
    bytes: u64,
    /// Checksum of the fields above: a changed handle is invalid.
    sum: u64,
}

const _: () = assert!(size_of::<HandleData>() == 64 && size_of::<CUipcMemHandle>() == 64);

impl HandleData {
    fn sum(&self) -> u64 {
        let ends = (u64::from(self.process) << 32) | u64::from(self.file as u32);
        let all = [self.magic, ends, self.offset, self.id, self.device, self.start, self.bytes];
        all.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| {
            (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        })
    }

    fn bytes(mut self) -> [c_char; 64] {
        self.sum = self.sum();
        // SAFETY: 64 bytes without padding, either way.
        unsafe { std::mem::transmute::<HandleData, [c_char; 64]>(self) }
    }

    /// Decodes a handle of another process. A handle of this process cannot be opened. Invalid
    /// handles return the status `unknown`.
    fn of(bytes: [c_char; 64], magic: u64, unknown: c_int) -> Result<HandleData, i32> {
        // SAFETY: 64 bytes, and any bytes are valid integers.
        let words = unsafe { std::mem::transmute::<[c_char; 64], HandleData>(bytes) };
        require(words.magic == magic && words.sum == words.sum(), unknown)?;
        require(words.process != std::process::id(), code::INVALID_CONTEXT)?;
        Ok(words)
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuIpcGetMemHandle(
    handle: *mut CUipcMemHandle,
    ptr: CUdeviceptr,
) -> c_int {
    entry_checked(require(ptr != 0, code::INVALID_VALUE), |machine| {
        require(!handle.is_null(), code::INVALID_VALUE)?;
        let address = ptr as usize;
        let (reservation, block) = machine.block(address).ok_or(code::INVALID_VALUE)?;
        let Purpose::Allocation(owner) = reservation.purpose else {
            return Err(code::INVALID_VALUE);
        };
        let (start, block) = block.ok_or(code::INVALID_VALUE)?;
        let space = read(&machine.memory.space);
        let (base, mapping) = space.mapping(start).ok_or(code::INVALID_VALUE)?;
        let allocation = &mapping.allocation;
        let ordinal = machine.hardware.devices[machine.hardware.owner(owner).device].ordinal;
        let slot = shared::publish(allocation, ordinal).ok_or(code::OUT_OF_MEMORY)?;
        let words = HandleData {
            magic: MEMORY,
            process: std::process::id(),
            file: allocation.physical.file,
            offset: (allocation.physical.bytes() + slot * slots::SLOT) as u64,
            id: allocation.id,
            device: ordinal as u64,
            start: (start - base) as u64,
            bytes: block.bytes as u64,
            sum: 0,
        };
        put!(handle, CUipcMemHandle { reserved: words.bytes() })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    ptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        require(!ptr.is_null() && flags == LAZY_PEERS, code::INVALID_VALUE)?;
        let words = HandleData::of(handle.reserved, MEMORY, code::INVALID_VALUE)?;
        let owner = machine.device_of(words.device).ok_or(code::INVALID_VALUE)?;
        if owner != context.device {
            // The flag asks for access between the devices.
            let reachable = machine.can_access_peer(context.device, owner);
            require(reachable, code::PEER_ACCESS_UNSUPPORTED)?;
            machine.memory.peers[context.device].fetch_or(1 << owner, Ordering::Relaxed);
        }
        let file =
            shared::open_again(words.process, words.file).map_err(|_| code::INVALID_VALUE)?;
        let device_of = |ordinal| machine.device_of(ordinal);
        let found = shared::adopt(file, Some(words.offset as usize), Some(words.id), device_of);
        let allocation = found.ok_or(code::INVALID_VALUE)?;
        let (start, length, bytes) = (words.start as usize, words.bytes as usize, allocation.bytes);
        let end = start.checked_add(length).ok_or(code::INVALID_VALUE)?;
        require(end <= bytes, code::INVALID_VALUE)?;
        let mut space = write(&machine.memory.space);
        let base = space.reserve(bytes, 0, 0, Purpose::Imported(context.number, 0, 0))?;
        let purpose = Purpose::Imported(context.number, base + start, length);
        space.rename(base, purpose);
        space.map(base, Mapping { bytes, allocation, offset: 0, access: Access::Peers })?;
        put!(ptr, (base + start) as CUdeviceptr)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuIpcCloseMemHandle(ptr: CUdeviceptr) -> c_int {
    entry(|machine| {
        machine.usable()?;
        let address = ptr as usize;
        let found = read(&machine.memory.space).reservation(address);
        let (base, reservation) = found.ok_or(code::INVALID_VALUE)?;
        let Purpose::Imported(owner, start, _) = reservation.purpose else {
            return Err(code::INVALID_VALUE);
        };
        require(start == address, code::INVALID_VALUE)?;
        let context = machine.hardware.owner(owner);
        context.check()?;
        machine.schedule.drain([context]);
        machine.memory.free_mapped(base, reservation.bytes)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuIpcGetEventHandle(
    handle: *mut CUipcEventHandle,
    event: CUevent,
) -> c_int {
    entry_checked(require(!event.is_null(), code::INVALID_VALUE), |machine| {
        require(!handle.is_null(), code::INVALID_VALUE)?;
        let event = machine.event(event)?;
        let shared = event.shared.as_ref().ok_or(code::INVALID_HANDLE)?;
        let words = HandleData {
            magic: EVENT,
            process: std::process::id(),
            file: machine.memory.physical[event.device].file,
            offset: shared.event.offset as u64,
            id: shared.event.number(),
            device: machine.hardware.devices[event.device].ordinal as u64,
            ..HandleData::default()
        };
        // Another process may wait for the event while this one makes no call.
        machine.schedule.share_events();
        put!(handle, CUipcEventHandle { reserved: words.bytes() })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuIpcOpenEventHandle(
    event: *mut CUevent,
    handle: CUipcEventHandle,
) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        require(!event.is_null(), code::INVALID_VALUE)?;
        let words = HandleData::of(handle.reserved, EVENT, code::MAP_FAILED)?;
        require(machine.device_of(words.device) == Some(context.device), code::INVALID_VALUE)?;
        let opened = Arc::new(open_shared(context, &words)?);
        machine.schedule.share_events();
        let created = write(&machine.events).insert(opened);
        put!(event, ptr::without_provenance_mut(created))
    })
}

fn open_shared(context: &Context, words: &HandleData) -> Result<Event, i32> {
    let file = shared::open_again(words.process, words.file).map_err(|_| code::INVALID_VALUE)?;
    let Some(bytes) = shared::memory_of(file) else {
        shared::close(file);
        return Err(code::INVALID_VALUE);
    };
    let memory = Arc::new(Physical::foreign(context.device, file, bytes));
    let offset = words.offset as usize;
    let is_place = offset.is_multiple_of(slots::EVENT) && offset <= slots::META - slots::EVENT;
    require(is_place, code::INVALID_VALUE)?;
    // SAFETY: pidfd_open accepts any process id.
    let creator = unsafe { libc::syscall(libc::SYS_pidfd_open, words.process, 0) };
    require(creator >= 0, code::INVALID_VALUE)?;
    let shared = SharedEvent::at(&memory, offset, Some(creator as c_int))?;
    require(shared.number() == words.id, code::INVALID_VALUE)?;
    Ok(Event::new(context, false, Some(shared)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> c_int {
    entry(|machine| {
        require(!shareable.is_null() && flags == 0, code::INVALID_VALUE)?;
        let found = read(&machine.handles).get(handle as usize).map(Arc::clone);
        let allocation = found.ok_or(code::INVALID_VALUE)?;
        let is_file = kind == CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // Memory is exported only as a handle type requested at its creation.
        require(is_file && allocation.handle_types & kind.0 != 0, code::INVALID_VALUE)?;
        let ordinal = machine.hardware.devices[allocation.device()].ordinal;
        let file = shared::export(&allocation, ordinal).map_err(|_| code::OPERATING_SYSTEM)?;
        put!(shareable.cast::<c_int>(), file)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> c_int {
    entry(|machine| {
        let is_file = kind == CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        require(!handle.is_null() && is_file, code::INVALID_VALUE)?;
        let file = shareable.addr() as c_int;
        // SAFETY: fcntl accepts any number.
        let is_open = unsafe { libc::fcntl(file, libc::F_GETFD) } >= 0;
        // The status of driver 580.
        require(is_open, code::UNKNOWN)?;
        let found = shared::import(file, |ordinal| machine.device_of(ordinal));
        let imported = write(&machine.handles).insert(found.ok_or(code::INVALID_VALUE)?);
        put!(handle, imported as CUmemGenericAllocationHandle)
    })
}
