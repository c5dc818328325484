//! Copies and fills, ordered on streams.

use crate::base::error::{Error, Result};
use crate::base::waiting;
use crate::driver::code;
use crate::driver::sync_debug;
use crate::driver::sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER, CUcontext, CUdeviceptr, CUmemorytype, CUpointer_attribute,
    CUstream,
};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory;
use crate::ops::fill::{self, FillPlan, Parameters};
use std::ffi::c_void;

const MEMORY_TYPE_DEVICE: u32 = 2;

/// The device of an address; `None` if it is not device memory.
pub fn device_of(gpus: &Gpus, address: u64) -> Result<Option<i32>> {
    if address == 0 {
        return Ok(None);
    }
    if let Some(device) = memory::device_of(address) {
        return Ok(Some(device));
    }
    // The query needs some context: that of the current device is used, unless that device is lost.
    let current = gpus.device(crate::gpu::device::CURRENT)?;
    let queried = query_in(gpus, current, address);
    match queried {
        Err(Error::Cuda(error)) if error.is_sticky() => {
            let is_other = |device: &&Device| !std::ptr::eq(*device, current);
            let mut others = gpus.devices.iter().filter(is_other);
            let answer = others.find_map(|device| {
                if device.has_context() { query_in(gpus, device, address).ok() } else { None }
            });
            answer.map_or(queried, Ok)
        }
        _ => queried,
    }
}

/// The driver's result in the context of a device.
fn query_in(gpus: &Gpus, device: &Device, address: u64) -> Result<Option<i32>> {
    let _context = device.enter()?;
    let mut kind = 0u32;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    if !pointer_attribute(gpus, &mut kind, attribute, address)? || kind != MEMORY_TYPE_DEVICE {
        return Ok(None);
    }
    let mut ordinal = 0i32;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    let known = pointer_attribute(gpus, &mut ordinal, attribute, address)?;
    Ok(known.then_some(ordinal))
}

/// The first address of the driver's allocation that contains an address.
pub fn start_of_range(gpus: &Gpus, address: u64) -> Result<Option<u64>> {
    let _relaxed = Relaxed::enter(gpus.driver());
    let _context = gpus.device(crate::gpu::device::CURRENT)?.enter()?;
    let mut start = 0u64;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
    let is_known = pointer_attribute(gpus, &mut start, attribute, address)?;
    Ok(is_known.then_some(start))
}

/// The memory of one driver allocation that contains an address: its first address and its end.
pub fn range_of(gpus: &Gpus, address: u64) -> Result<Option<(u64, u64)>> {
    use CUpointer_attribute::*;
    let _relaxed = Relaxed::enter(gpus.driver());
    let _context = gpus.device(crate::gpu::device::CURRENT)?.enter()?;
    let range = |start, length| -> Result<Option<(u64, u64)>> {
        let (mut first, mut bytes) = (0u64, 0usize);
        let is_known = pointer_attribute(gpus, &mut first, start, address)?
            && pointer_attribute(gpus, &mut bytes, length, address)?;
        Ok(is_known.then(|| (first, first.saturating_add(bytes as u64))))
    };
    // Of mapped memory, all reserved addresses.
    let range_start = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
    let Some(whole) = range(range_start, CU_POINTER_ATTRIBUTE_RANGE_SIZE)? else { return Ok(None) };
    // Of other memory, more than the allocation. Older drivers do not know it.
    let base = CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR;
    let mapping = range(base, CU_POINTER_ATTRIBUTE_MAPPING_SIZE)?.unwrap_or(whole);
    let (first, end) = (whole.0.max(mapping.0), whole.1.min(mapping.1));
    Ok((first..end).contains(&address).then_some((first, end)))
}

/// The driver's number of the allocation that contains an address: no two allocations of a process
/// have the same. 0 if the driver does not know the address, or has no number for it.
pub fn allocation_number(gpus: &Gpus, address: u64) -> Result<u64> {
    let _relaxed = Relaxed::enter(gpus.driver());
    let _context = gpus.device(crate::gpu::device::CURRENT)?.enter()?;
    let mut number = 0u64;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
    let is_known = pointer_attribute(gpus, &mut number, attribute, address)?;
    Ok(if is_known { number } else { 0 })
}

/// Is this range pinned host memory that a device's kernels can use at the same addresses?
pub fn is_mapped(gpus: &Gpus, device: &Device, first: u64, bytes: u64) -> Result<bool> {
    use CUpointer_attribute::*;
    let _relaxed = Relaxed::enter(gpus.driver());
    let _context = device.enter()?;
    let (mut address, mut start, mut length) = (0u64, 0u64, 0usize);
    let is_known =
        pointer_attribute(gpus, &mut address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, first)?
            && pointer_attribute(gpus, &mut start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, first)?
            && pointer_attribute(gpus, &mut length, CU_POINTER_ATTRIBUTE_RANGE_SIZE, first)?;
    let end = start.saturating_add(length as u64);
    Ok(is_known && address == first && first >= start && first.saturating_add(bytes) <= end)
}

/// An attribute of an address; false if the driver does not know the address.
fn pointer_attribute<T>(
    gpus: &Gpus,
    value: &mut T,
    attribute: CUpointer_attribute,
    address: u64,
) -> Result<bool> {
    let data = std::ptr::from_mut(value).cast::<c_void>();
    // SAFETY: `value` has the attribute's type; the driver only looks the address up.
    match unsafe { gpus.driver().cuPointerGetAttribute(data, attribute, address) } {
        Ok(()) => Ok(true),
        Err(error) if error.code == code::INVALID_VALUE => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The stream on which an operation runs: the given one, else the current one of the device of the
/// first address that is device memory, else of the current device.
pub fn stream_for<'a>(
    gpus: &'a Gpus,
    stream: Option<&'a Stream>,
    addresses: &[u64],
) -> Result<&'a Stream> {
    if let Some(stream) = stream {
        return Ok(stream);
    }
    if gpus.devices.len() > 1 {
        for address in addresses {
            if let Some(device) = device_of(gpus, *address)? {
                return Ok(gpus.device(device)?.streams.current());
            }
        }
    }
    Ok(gpus.device(crate::gpu::device::CURRENT)?.streams.current())
}

/// Runs work on memory of some devices in the order of a stream: on the stream itself if its device
/// owns, or can reach, any of that memory; else on a stream of the first of those devices.
fn on_owning_device(
    gpus: &Gpus,
    devices: [Option<i32>; 2],
    stream: &Stream,
    work: impl FnOnce(&Stream) -> Result<()>,
) -> Result<()> {
    let own = stream.device();
    let mut owners = devices.into_iter().flatten();
    match owners.clone().next() {
        Some(owner) if !owners.any(|owner| owner == own) => {
            if gpus.device(own)?.has_peer(owner) {
                return work(stream);
            }
            gpus.device(owner)?.streams.in_order_of(gpus, stream, work)
        }
        _ => work(stream),
    }
}

/// The devices of source and destination of a copy; not queried if there is only one device.
fn sides(gpus: &Gpus, dst: u64, src: u64) -> Result<[Option<i32>; 2]> {
    if gpus.devices.len() < 2 {
        return Ok([None, None]);
    }
    Ok([device_of(gpus, dst)?, device_of(gpus, src)?])
}

/// The contexts of source and destination, if their devices differ: given the contexts, the driver
/// stages the copy if necessary. A copy with contexts would invalidate a capture; one without needs
/// peer access.
fn two_contexts(
    gpus: &Gpus,
    devices: [Option<i32>; 2],
    stream: &Stream,
) -> Result<Option<(CUcontext, CUcontext)>> {
    match devices {
        [Some(to), Some(from)] if to != from => {
            if stream.is_capturing(gpus)? {
                let own = stream.device();
                let device = gpus.device(own)?;
                let reaches = |owner| owner == own || device.has_peer(owner);
                return if reaches(to) && reaches(from) {
                    Ok(None)
                } else {
                    Err(Error::Capturing {
                        operation: "tcuda_copy between two devices without peer access",
                        why: "call tcuda_device_enable_peer_access before the capture",
                    })
                };
            }
            Ok(Some((gpus.device(to)?.context()?, gpus.device(from)?.context()?)))
        }
        _ => Ok(None),
    }
}

/// Checks sync debug mode before a copy: it waits if the device cannot reach one of the addresses,
/// unless it is captured.
fn before(gpus: &Gpus, addresses: [u64; 2], stream: &Stream) -> Result<()> {
    if !sync_debug::is_on() || stream.is_capturing(gpus)? {
        return Ok(());
    }
    for address in addresses {
        if is_pageable(gpus, address)? {
            return sync_debug::check(sync_debug::PAGEABLE_COPY);
        }
    }
    Ok(())
}

/// Is it host memory that the driver does not know?
pub(crate) fn is_pageable(gpus: &Gpus, address: u64) -> Result<bool> {
    if memory::device_of(address).is_some() {
        return Ok(false);
    }
    let _context = gpus.device(crate::gpu::device::CURRENT)?.enter()?;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    Ok(!pointer_attribute(gpus, &mut 0u32, attribute, address)?)
}

/// Copies bytes, at least one, between any two addresses.
pub fn copy(gpus: &Gpus, dst: u64, src: u64, bytes: u64, stream: &Stream) -> Result<()> {
    if dst == src {
        return Ok(());
    }
    [dst, src].into_iter().try_for_each(memory::require_awake)?;
    before(gpus, [dst, src], stream)?;
    let devices = sides(gpus, dst, src)?;
    on_owning_device(gpus, devices, stream, |stream| {
        let contexts = two_contexts(gpus, devices, stream)?;
        let _context = gpus.device(stream.device())?.enter()?;
        let (driver, bytes, native) = (gpus.driver(), bytes as usize, stream.native());
        match contexts {
            // SAFETY: the caller's promise about the ranges; the stream is alive.
            Some((to, from)) => unsafe {
                driver.cuMemcpyPeerAsync(dst, to, src, from, bytes, native)
            },
            None => {
                // The driver waits for host memory that is not pinned.
                let _waiting = waiting::begin();
                // SAFETY: as above.
                unsafe { driver.cuMemcpyAsync(dst, src, bytes, native) }
            }
        }?;
        Ok(())
    })?;
    note_pinned(gpus, [dst, src], stream);
    Ok(())
}

/// Records the use of the library's pinned memory, so that it is not reused before the work is
/// done.
#[inline]
fn note_pinned<const N: usize>(gpus: &Gpus, addresses: [u64; N], stream: &Stream) {
    for address in addresses {
        gpus.pinned().used(gpus, address, stream);
    }
}

/// A rectangle of rows in memory.
#[derive(Clone, Copy)]
pub struct Rows {
    /// First byte.
    pub address: u64,
    /// Distance between two rows.
    pub pitch: u64,
}

/// Copies rows of `width` bytes; neither is 0.
pub fn copy_2d(
    gpus: &Gpus,
    dst: Rows,
    src: Rows,
    width: u64,
    rows: u64,
    stream: &Stream,
) -> Result<()> {
    for (name, pitch) in [("dst_pitch_bytes", dst.pitch), ("src_pitch_bytes", src.pitch)] {
        if pitch < width && rows > 1 {
            return Err(Error::OutOfRange {
                name,
                value: pitch as i64,
                allowed: "the distance of two rows cannot be below width_bytes",
            });
        }
    }
    [dst.address, src.address].into_iter().try_for_each(memory::require_awake)?;
    before(gpus, [dst.address, src.address], stream)?;
    let devices = sides(gpus, dst.address, src.address)?;
    on_owning_device(gpus, devices, stream, |stream| {
        let contexts = two_contexts(gpus, devices, stream)?;
        let _context = gpus.device(stream.device())?.enter()?;
        match contexts {
            Some((to, from)) => copy_2d_peer((dst, to), (src, from), width, rows, gpus, stream),
            None => copy_2d_plain(gpus, dst, src, width, rows, stream),
        }
    })?;
    note_pinned(gpus, [dst.address, src.address], stream);
    Ok(())
}

/// [`copy_2d`] where the stream's device reaches both sides; its context is current.
pub(crate) fn copy_2d_plain(
    gpus: &Gpus,
    dst: Rows,
    src: Rows,
    width: u64,
    rows: u64,
    stream: &Stream,
) -> Result<()> {
    let copy = CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcHost: std::ptr::null(),
        srcDevice: src.address,
        srcArray: std::ptr::null_mut(),
        srcPitch: src.pitch.max(width) as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        dstHost: std::ptr::null_mut(),
        dstDevice: dst.address,
        dstArray: std::ptr::null_mut(),
        dstPitch: dst.pitch.max(width) as usize,
        WidthInBytes: width as usize,
        Height: rows as usize,
    };
    // SAFETY: the caller's promise about the ranges; the stream is alive.
    unsafe { gpus.driver().cuMemcpy2DAsync(&copy, stream.native()) }?;
    Ok(())
}

/// Copies rows from one device to another.
fn copy_2d_peer(
    (dst, to): (Rows, CUcontext),
    (src, from): (Rows, CUcontext),
    width: u64,
    rows: u64,
    gpus: &Gpus,
    stream: &Stream,
) -> Result<()> {
    let copy = CUDA_MEMCPY3D_PEER {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: src.address,
        srcArray: std::ptr::null_mut(),
        srcContext: from,
        srcPitch: src.pitch.max(width) as usize,
        srcHeight: rows as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: dst.address,
        dstArray: std::ptr::null_mut(),
        dstContext: to,
        dstPitch: dst.pitch.max(width) as usize,
        dstHeight: rows as usize,
        WidthInBytes: width as usize,
        Height: rows as usize,
        Depth: 1,
    };
    // SAFETY: the caller's promise about the ranges; the stream is alive.
    unsafe { gpus.driver().cuMemcpy3DPeerAsync(&copy, stream.native()) }?;
    Ok(())
}

/// Writes a value repeatedly.
pub fn fill(gpus: &Gpus, ptr: u64, value: &[u8], count: u64, stream: &Stream) -> Result<()> {
    let total = (value.len() as u64).checked_mul(count);
    let plan = total.and_then(|total| fill::plan(ptr, value, total));
    let Some(plan) = plan else {
        return Err(if (1..=fill::LONGEST).contains(&value.len()) {
            Error::OutOfRange {
                name: "count",
                value: count as i64,
                allowed: "ptr + count * value_bytes leaves the address space",
            }
        } else {
            Error::OutOfRange {
                name: "value_bytes",
                value: value.len() as i64,
                allowed: "use 1 to 16",
            }
        });
    };
    memory::require_awake(ptr)?;
    let owner = if gpus.devices.len() > 1 { device_of(gpus, ptr)? } else { None };
    on_owning_device(gpus, [owner, None], stream, |stream| fill_by(gpus, ptr, plan, stream))?;
    note_pinned(gpus, [ptr], stream);
    Ok(())
}

fn fill_by(gpus: &Gpus, ptr: u64, plan: FillPlan, stream: &Stream) -> Result<()> {
    let device = gpus.device(stream.device())?;
    let _context = device.enter()?;
    let (driver, native) = (gpus.driver(), stream.native());
    match plan {
        FillPlan::Nothing => return Ok(()),
        // SAFETY: the caller's promise about the range; the stream is alive.
        FillPlan::Memset8 { value, count } => unsafe {
            driver.cuMemsetD8Async(ptr, value, count as usize, native)
        },
        // SAFETY: as above, and aligned.
        FillPlan::Memset16 { value, count } => unsafe {
            driver.cuMemsetD16Async(ptr, value, count as usize, native)
        },
        // SAFETY: as above, and aligned.
        FillPlan::Memset32 { value, count } => unsafe {
            driver.cuMemsetD32Async(ptr, value, count as usize, native)
        },
        FillPlan::Kernel { grid, parameters } => {
            return launch_fill(device, grid, parameters, native);
        }
    }?;
    Ok(())
}

fn launch_fill(device: &Device, grid: u32, parameters: Parameters, native: CUstream) -> Result<()> {
    let function = device.kernels().fill(device)?;
    let Parameters { mut dst, mut bytes, mut pattern, mut period } = parameters;
    let [a, b, c, d] = &mut pattern;
    let mut arguments = [
        std::ptr::from_mut::<CUdeviceptr>(&mut dst).cast::<c_void>(),
        std::ptr::from_mut(&mut bytes).cast(),
        std::ptr::from_mut(a).cast(),
        std::ptr::from_mut(b).cast(),
        std::ptr::from_mut(c).cast(),
        std::ptr::from_mut(d).cast(),
        std::ptr::from_mut(&mut period).cast(),
    ];
    // SAFETY: the kernel has these parameters, which the driver copies; the caller promises the
    // range.
    unsafe {
        device.driver().cuLaunchKernel(
            function,
            grid,
            1,
            1,
            fill::BLOCK,
            1,
            1,
            0,
            native,
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }?;
    Ok(())
}
