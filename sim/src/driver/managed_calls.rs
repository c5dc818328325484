//! The calls for managed memory.

use super::address_space::Purpose;
use super::arguments::{peek, put, require};
use super::entry::entry;
use super::machine::Machine;
use super::managed::{Advice, HOST_BIT, Location};
use super::queue::{Action, Kind};
use super::sync::{read, write};
use crate::base::code;
use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUmem_range_attribute, CUmemLocation, CUstream};
use std::ffi::{c_int, c_uint, c_void};
use std::path::Path;

/// `CU_MEM_ATTACH_...`: all streams, the host, one stream.
const GLOBAL: c_uint = 1;
const HOST: c_uint = 2;
const SINGLE: c_uint = 4;
/// `CU_DEVICE_CPU` and `CU_DEVICE_INVALID`.
const DEVICE_CPU: c_int = -1;
const DEVICE_INVALID: c_int = -2;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocManaged(
    ptr: *mut CUdeviceptr,
    bytes: usize,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        machine.captures.refuse_unsafe()?;
        require(!ptr.is_null() && bytes > 0, code::INVALID_VALUE)?;
        require(matches!(flags, GLOBAL | HOST), code::INVALID_VALUE)?;
        let purpose = Purpose::Managed(context.number, bytes);
        let address = machine.memory.allocate_managed(context.device, bytes, purpose)?;
        machine.schedule.share_memory();
        put!(ptr, address as CUdeviceptr)
    })
}

/// The location of a device's number, where -1 means the host.
fn location_of(machine: &Machine, device: CUdevice) -> Result<Location, i32> {
    match device {
        DEVICE_CPU => Ok(Location::Host),
        _ => Ok(Location::Device(machine.device(device)?.context.device)),
    }
}

/// The location that the host describes.
pub(super) fn described(machine: &Machine, location: &CUmemLocation) -> Result<Location, i32> {
    match location.type_ as u32 {
        1 => Ok(Location::Device(machine.device(location.id)?.context.device)),
        2 => Ok(Location::Host),
        3 => {
            let node = format!("/sys/devices/system/node/node{}", location.id);
            let exists = location.id == 0 || Path::new(&node).exists();
            require(exists, code::INVALID_VALUE)?;
            Ok(Location::HostNode(location.id))
        }
        4 => Ok(Location::HostNode(0)),
        _ => Err(code::INVALID_VALUE),
    }
}

/// Changes the advice for a range.
fn advise(
    machine: &Machine,
    (address, bytes): (CUdeviceptr, usize),
    change: impl Fn(&mut Advice),
) -> Result<(), i32> {
    require(bytes > 0, code::INVALID_VALUE)?;
    let mut space = write(&machine.memory.space);
    space.managed.advise(address as usize, bytes, change).ok_or(code::INVALID_VALUE)
}

/// Queues the move of a range. All processors access the same bytes, so nothing moves; later work
/// of the stream comes after it.
fn prefetch(
    machine: &Machine,
    range: (CUdeviceptr, usize),
    to: impl FnOnce() -> Result<Location, i32>,
    stream: CUstream,
) -> Result<(), i32> {
    let stream = machine.stream(stream)?;
    machine.captures.refuse(&stream)?;
    let to = to()?;
    advise(machine, range, |advice| advice.prefetched = Some(to))?;
    machine.submit(&stream, Vec::new(), Action::Nothing).map(drop)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPrefetchAsync(
    ptr: CUdeviceptr,
    bytes: usize,
    device: CUdevice,
    stream: CUstream,
) -> c_int {
    entry(|machine| prefetch(machine, (ptr, bytes), || location_of(machine, device), stream))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPrefetchAsync_v2(
    ptr: CUdeviceptr,
    bytes: usize,
    location: CUmemLocation,
    flags: c_uint,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        require(flags == 0, code::INVALID_VALUE)?;
        prefetch(machine, (ptr, bytes), || described(machine, &location), stream)
    })
}

/// Applies an advice. The location is not read for advice without one.
fn apply(
    machine: &Machine,
    range: (CUdeviceptr, usize),
    advice: c_uint,
    location: impl FnOnce() -> Result<Location, i32>,
) -> Result<(), i32> {
    machine.current()?;
    let bit = |location| match location {
        Location::Device(device) => Ok(1u32 << device),
        Location::Host => Ok(1 << HOST_BIT),
        Location::HostNode(_) => Err(code::INVALID_VALUE),
    };
    match advice {
        1 => advise(machine, range, |advice| advice.is_read_mostly = true),
        2 => advise(machine, range, |advice| advice.is_read_mostly = false),
        3 => {
            let location = location()?;
            advise(machine, range, |advice| advice.preferred = Some(location))
        }
        4 => advise(machine, range, |advice| advice.preferred = None),
        5 => {
            let bit = bit(location()?)?;
            advise(machine, range, |advice| advice.accessed_by |= bit)
        }
        6 => {
            let bit = bit(location()?)?;
            advise(machine, range, |advice| advice.accessed_by &= !bit)
        }
        _ => Err(code::INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAdvise(
    ptr: CUdeviceptr,
    bytes: usize,
    advice: c_uint,
    device: CUdevice,
) -> c_int {
    entry(|machine| apply(machine, (ptr, bytes), advice, || location_of(machine, device)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAdvise_v2(
    ptr: CUdeviceptr,
    bytes: usize,
    advice: c_uint,
    location: CUmemLocation,
) -> c_int {
    entry(|machine| apply(machine, (ptr, bytes), advice, || described(machine, &location)))
}

/// The location that all parts of a range have, if there is one.
fn common(parts: &[Advice], of: impl Fn(&Advice) -> Option<Location>) -> Option<Location> {
    let first = parts.first().and_then(&of);
    first.filter(|_| parts.iter().all(|part| of(part) == first))
}

/// A location as the number of a device.
fn number(location: Option<Location>) -> c_int {
    match location {
        Some(Location::Device(device)) => device as c_int,
        Some(Location::Host) => DEVICE_CPU,
        Some(Location::HostNode(_)) | None => DEVICE_INVALID,
    }
}

/// The `CU_MEM_LOCATION_TYPE_...` of a location, and its id.
fn type_and_id(location: Option<Location>) -> (c_int, c_int) {
    match location {
        None => (0, DEVICE_INVALID),
        Some(Location::Device(device)) => (1, device as c_int),
        Some(Location::Host) => (2, DEVICE_CPU),
        Some(Location::HostNode(node)) => (3, node),
    }
}

/// Writes an attribute of a range.
fn attribute(data: *mut c_void, size: usize, attribute: u32, parts: &[Advice]) -> Result<(), i32> {
    let data = data.cast::<c_int>();
    let preferred = common(parts, |part| part.preferred);
    let prefetched = common(parts, |part| part.prefetched);
    if attribute == 3 {
        require(size > 0 && size.is_multiple_of(size_of::<c_int>()), code::INVALID_VALUE)?;
        let all = parts.iter().fold(u32::MAX, |all, part| all & part.accessed_by);
        let devices = (0..HOST_BIT).filter(|device| all >> device & 1 != 0);
        let host = (all >> HOST_BIT != 0).then_some(DEVICE_CPU);
        let mut found = devices.map(|device| device as c_int).chain(host);
        return (0..size / size_of::<c_int>()).try_for_each(|index| {
            put!(data.wrapping_add(index), found.next().unwrap_or(DEVICE_INVALID))
        });
    }
    require(size == size_of::<c_int>(), code::INVALID_VALUE)?;
    let value = match attribute {
        1 => c_int::from(parts.iter().all(|part| part.is_read_mostly)),
        2 => number(preferred),
        4 => number(prefetched),
        5 => type_and_id(preferred).0,
        6 => type_and_id(preferred).1,
        7 => type_and_id(prefetched).0,
        8 => type_and_id(prefetched).1,
        _ => return Err(code::INVALID_VALUE),
    };
    put!(data, value)
}

/// The advice for the parts of a range.
fn parts(machine: &Machine, ptr: CUdeviceptr, bytes: usize) -> Result<Vec<Advice>, i32> {
    machine.current()?;
    require(bytes > 0, code::INVALID_VALUE)?;
    let space = read(&machine.memory.space);
    space.managed.advice(ptr as usize, bytes).ok_or(code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemRangeGetAttribute(
    data: *mut c_void,
    size: usize,
    which: c_uint,
    ptr: CUdeviceptr,
    bytes: usize,
) -> c_int {
    entry(|machine| {
        let parts = parts(machine, ptr, bytes)?;
        attribute(data, size, which, &parts)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemRangeGetAttributes(
    data: *mut *mut c_void,
    sizes: *mut usize,
    which: *mut CUmem_range_attribute,
    count: usize,
    ptr: CUdeviceptr,
    bytes: usize,
) -> c_int {
    entry(|machine| {
        require(count > 0, code::INVALID_VALUE)?;
        let parts = parts(machine, ptr, bytes)?;
        (0..count).try_for_each(|index| {
            let (data, size) =
                (peek!(data.wrapping_add(index))?, peek!(sizes.wrapping_add(index))?);
            let which = peek!(which.cast::<u32>().wrapping_add(index))?;
            attribute(data, size, which, &parts)
        })
    })
}

/// Associates managed memory with streams. Devices and the host access managed memory at the same
/// time (CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS), so that only the order of streams remains.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamAttachMemAsync(
    stream: CUstream,
    ptr: CUdeviceptr,
    bytes: usize,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.refuse(&stream)?;
        require(matches!(flags, GLOBAL | HOST | SINGLE), code::INVALID_VALUE)?;
        require(flags != SINGLE || stream.kind != Kind::Legacy, code::INVALID_VALUE)?;
        let address = ptr as usize;
        require(read(&machine.memory.space).managed.contains(address), code::INVALID_VALUE)?;
        let (_, block) = machine.block(address).ok_or(code::INVALID_VALUE)?;
        let (start, block) = block.ok_or(code::INVALID_VALUE)?;
        // A part of an allocation cannot be associated.
        let is_whole = start == address && (bytes == 0 || bytes == block.bytes);
        require(is_whole, code::INVALID_VALUE)?;
        machine.submit(&stream, Vec::new(), Action::Nothing).map(drop)
    })
}
