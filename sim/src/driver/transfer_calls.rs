//! The calls that queue copies and fills.

use super::address_space::{Accessor, Purpose};
use super::arguments::{peek, require};
use super::config::ScheduleKind;
use super::copy::{Copy, Fill, Place, Side, stage};
use super::entry::entry;
use super::machine::Machine;
use super::queue::{Action, Stream};
use super::sync::read;
use crate::base::code;
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUcontext, CUdeviceptr, CUmemorytype,
    CUstream,
};
use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};
use std::sync::Arc;

fn side(address: CUdeviceptr, pitch: usize, plane: usize) -> Side {
    Side { place: Place::Host(address as usize), pitch, plane }
}

/// Queues a copy. Pageable host memory is read now; a copy to it is waited for.
fn queue(machine: &Machine, stream: &Arc<Stream>, mut copy: Copy) -> Result<(), i32> {
    if copy.is_empty() {
        return Ok(());
    }
    copy.collapse();
    let (pageable_source, pageable_target) =
        (classify(machine, &copy, false)?, classify(machine, &copy, true)?);
    let (source, target) = (pageable_source.0, pageable_target.0);
    // A capture does not check that addresses are mapped, and a captured copy reads at launch.
    let records = machine.captures.records(stream)?;
    for (place, side, write) in [(&source, &copy.source, false), (&target, &copy.target, true)] {
        // A GPU's driver treats an unmapped address as a host address and crashes. Here such a copy
        // is queued, and its device fails when it runs.
        if let Place::Device(address) = place
            && !records
            && read(&machine.memory.space).mapping(*address).is_some()
        {
            let bytes = copy.extent(side).ok_or(code::INVALID_VALUE)?;
            let accessor = Accessor { device: stream.device, write, staged: true };
            is_mapped(machine, accessor, *address, bytes)?;
        }
    }
    let unchecked = [(&copy.source, pageable_source.1), (&copy.target, pageable_target.1)];
    for (side, _) in unchecked.into_iter().filter(|(_, pageable)| *pageable && !records) {
        // The driver crashes on such a copy.
        require(copy.is_mapped_in_host(side), code::INVALID_VALUE)?;
    }
    copy.source.place = source;
    copy.target.place = target;
    if machine.config.schedule != ScheduleKind::Immediate
        && pageable_source.1
        && !records
        && let Place::Host(start) = copy.source.place
    {
        let staged = stage(&copy, start)?;
        let plane = copy.width * copy.rows;
        copy.source = Side { place: Place::Staged(staged), pitch: copy.width, plane };
    }
    let point = machine.submit(stream, Vec::new(), Action::Copy(Box::new(copy)))?;
    if pageable_target.1 { machine.wait(&point) } else { Ok(()) }
}

/// True if the whole range of the call is mapped. If not, the driver refuses the call without side
/// effects (580.159). Memory that is unmapped later fails when the work runs.
fn is_mapped(
    machine: &Machine,
    accessor: Accessor,
    address: usize,
    bytes: usize,
) -> Result<(), i32> {
    if let Some((reservation, block)) = machine.block(address)
        && !matches!(reservation.purpose, Purpose::Virtual | Purpose::Module)
    {
        let (start, block) = block.ok_or(code::INVALID_VALUE)?;
        require(bytes <= block.bytes - (address - start), code::INVALID_VALUE)?;
    }
    machine.memory.translate(address, bytes, accessor).map(drop).map_err(|_| code::INVALID_VALUE)
}

/// The kind of address of one side, and whether it is pageable host memory.
fn classify(machine: &Machine, copy: &Copy, target: bool) -> Result<(Place, bool), i32> {
    let side = if target { &copy.target } else { &copy.source };
    let Place::Host(address) = side.place else { return Err(code::INVALID_VALUE) };
    let bytes = copy.extent(side).ok_or(code::INVALID_VALUE)?;
    require(address != 0 && address.checked_add(bytes).is_some(), code::INVALID_VALUE)?;
    if read(&machine.memory.space).contains(address) {
        return Ok((Place::Device(address), false));
    }
    Ok((Place::Host(address), !machine.memory.is_pinned(address, bytes)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        let device = machine.current().map_or(stream.device, |context| context.device);
        if bytes > 0 {
            within_reach(machine, [dst as usize, src as usize], device)?;
        }
        let (source, target) = (side(src, 0, 0), side(dst, 0, 0));
        queue(machine, &stream, Copy { source, target, width: bytes, rows: 1, depth: 1 })
    })
}

/// Checks that the current device can access both sides of a copy that names no contexts.
fn within_reach(machine: &Machine, sides: [usize; 2], device: usize) -> Result<(), i32> {
    let space = read(&machine.memory.space);
    let refused = sides.iter().any(|address| space.is_out_of_reach(*address, device));
    require(!refused, code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyPeerAsync(
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        let stream = machine.stream(stream)?;
        // The driver cannot record copies that name contexts (580.159).
        machine.captures.refuse(&stream)?;
        for context in [dst_context, src_context].into_iter().filter(|given| !given.is_null()) {
            require(machine.context(context)?.is_active(), code::INVALID_CONTEXT)?;
        }
        let (source, target) = (side(src, 0, 0), side(dst, 0, 0));
        queue(machine, &stream, Copy { source, target, width: bytes, rows: 1, depth: 1 })
    })
}

/// One side, as the parameter structs of CUDA describe it.
struct Described {
    kind: CUmemorytype,
    host: *const c_void,
    device: CUdeviceptr,
    x: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
}

impl Described {
    fn side(&self, width: usize, rows: usize, depth: usize) -> Result<Side, i32> {
        let base = match self.kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => self.host.expose_provenance(),
            CUmemorytype::CU_MEMORYTYPE_DEVICE | CUmemorytype::CU_MEMORYTYPE_UNIFIED => {
                self.device as usize
            }
            _ => return Err(code::INVALID_VALUE),
        };
        require(base != 0, code::INVALID_VALUE)?;
        let end = self.x.checked_add(width).ok_or(code::INVALID_VALUE)?;
        let pitch = if self.pitch == 0 { end } else { self.pitch };
        require(end <= pitch || (rows == 1 && self.y == 0), code::INVALID_VALUE)?;
        let bottom = self.y.checked_add(rows).ok_or(code::INVALID_VALUE)?;
        let height = if self.height == 0 { bottom } else { self.height };
        require(bottom <= height || (depth == 1 && self.z == 0), code::INVALID_VALUE)?;
        let start = || {
            let plane = pitch.checked_mul(height)?;
            let skipped = self.y.checked_mul(pitch)?.checked_add(self.z.checked_mul(plane)?)?;
            Some((base.checked_add(skipped)?.checked_add(self.x)?, plane))
        };
        let (start, plane) = start().ok_or(code::INVALID_VALUE)?;
        Ok(Side { place: Place::Host(start), pitch, plane })
    }
}

/// The copy that a node of a graph makes at each launch.
pub(super) fn copy_of_node(machine: &Machine, copy: &CUDA_MEMCPY3D) -> Result<Copy, i32> {
    let source = Described {
        kind: copy.srcMemoryType,
        host: copy.srcHost,
        device: copy.srcDevice,
        x: copy.srcXInBytes,
        y: copy.srcY,
        z: copy.srcZ,
        pitch: copy.srcPitch,
        height: copy.srcHeight,
    };
    let target = Described {
        kind: copy.dstMemoryType,
        host: copy.dstHost.cast_const(),
        device: copy.dstDevice,
        x: copy.dstXInBytes,
        y: copy.dstY,
        z: copy.dstZ,
        pitch: copy.dstPitch,
        height: copy.dstHeight,
    };
    let (width, rows, depth) = (copy.WidthInBytes, copy.Height, copy.Depth);
    require(width > 0 && rows > 0 && depth > 0, code::INVALID_VALUE)?;
    let (source, target) = (source.side(width, rows, depth)?, target.side(width, rows, depth)?);
    let mut copy = Copy { source, target, width, rows, depth };
    copy.collapse();
    let (source, _) = classify(machine, &copy, false)?;
    let (target, _) = classify(machine, &copy, true)?;
    (copy.source.place, copy.target.place) = (source, target);
    Ok(copy)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpy2DAsync_v2(
    copy: *const CUDA_MEMCPY2D,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        let device = machine.current()?.device;
        let stream = machine.stream(stream)?;
        let copy = peek!(copy)?;
        let source = Described {
            kind: copy.srcMemoryType,
            host: copy.srcHost,
            device: copy.srcDevice,
            x: copy.srcXInBytes,
            y: copy.srcY,
            z: 0,
            pitch: copy.srcPitch,
            height: 0,
        };
        let target = Described {
            kind: copy.dstMemoryType,
            host: copy.dstHost.cast_const(),
            device: copy.dstDevice,
            x: copy.dstXInBytes,
            y: copy.dstY,
            z: 0,
            pitch: copy.dstPitch,
            height: 0,
        };
        let (width, rows, depth) = (copy.WidthInBytes, copy.Height, 1);
        if width == 0 || rows == 0 {
            return Ok(());
        }
        let source = source.side(width, rows, depth)?;
        let target = target.side(width, rows, depth)?;
        let start = |side: &Side| match side.place {
            Place::Host(address) => address,
            _ => 0,
        };
        within_reach(machine, [start(&target), start(&source)], device)?;
        queue(machine, &stream, Copy { source, target, width, rows, depth })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpy3DPeerAsync(
    copy: *const CUDA_MEMCPY3D_PEER,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        let stream = machine.stream(stream)?;
        machine.captures.refuse(&stream)?;
        let copy = peek!(copy)?;
        let source = Described {
            kind: copy.srcMemoryType,
            host: copy.srcHost,
            device: copy.srcDevice,
            x: copy.srcXInBytes,
            y: copy.srcY,
            z: copy.srcZ,
            pitch: copy.srcPitch,
            height: copy.srcHeight,
        };
        let target = Described {
            kind: copy.dstMemoryType,
            host: copy.dstHost.cast_const(),
            device: copy.dstDevice,
            x: copy.dstXInBytes,
            y: copy.dstY,
            z: copy.dstZ,
            pitch: copy.dstPitch,
            height: copy.dstHeight,
        };
        let (width, rows, depth) = (copy.WidthInBytes, copy.Height, copy.Depth);
        if width == 0 || rows == 0 || depth == 0 {
            return Ok(());
        }
        let source = source.side(width, rows, depth)?;
        let target = target.side(width, rows, depth)?;
        queue(machine, &stream, Copy { source, target, width, rows, depth })
    })
}

fn queue_fill(stream: CUstream, fill: Fill) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        let records = machine.captures.records(&stream)?;
        let bytes = fill.count.checked_mul(fill.width).ok_or(code::INVALID_VALUE)?;
        if bytes == 0 && !records {
            return Ok(());
        }
        require(fill.address.is_multiple_of(fill.width), code::INVALID_VALUE)?;
        require(records || fill.address != 0, code::INVALID_VALUE)?;
        if bytes == 0 {
            return Ok(());
        }
        // A captured fill is checked when the graph is instantiated.
        if !records {
            is_fillable(machine, stream.device, &fill)?;
        }
        machine.submit(&stream, Vec::new(), Action::Fill(fill)).map(drop)
    })
}

/// Checks that the device can access the whole range.
pub(super) fn is_fillable(machine: &Machine, device: usize, fill: &Fill) -> Result<(), i32> {
    let bytes = fill.extent();
    let is_device = read(&machine.memory.space).contains(fill.address);
    require(is_device || machine.memory.is_pinned(fill.address, bytes), code::INVALID_VALUE)?;
    let accessor = Accessor { device, write: true, staged: false };
    is_mapped(machine, accessor, fill.address, bytes)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemsetD8Async(
    ptr: CUdeviceptr,
    value: c_uchar,
    count: usize,
    stream: CUstream,
) -> c_int {
    queue_fill(stream, Fill::row(ptr as usize, value.into(), 1, count))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemsetD16Async(
    ptr: CUdeviceptr,
    value: c_ushort,
    count: usize,
    stream: CUstream,
) -> c_int {
    queue_fill(stream, Fill::row(ptr as usize, value.into(), 2, count))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemsetD32Async(
    ptr: CUdeviceptr,
    value: c_uint,
    count: usize,
    stream: CUstream,
) -> c_int {
    queue_fill(stream, Fill::row(ptr as usize, value, 4, count))
}
