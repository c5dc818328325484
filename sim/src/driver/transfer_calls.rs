//! The calls that queue copies.

use super::address_space::{Accessor, Purpose};
use super::arguments::{peek_checked, require};
use super::context::Context;
use super::copy::{Copy, Place, Side, stage};
use super::entry::entry;
use super::machine::Machine;
use super::queue::{Action, Stream};
use super::sync::read;
use crate::base::code;
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUcontext, CUdeviceptr, CUmemorytype,
    CUstream,
};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

fn side(address: CUdeviceptr, pitch: usize, plane: usize) -> Side {
    Side { place: Place::Host(address as usize), pitch, plane }
}

/// Queues a copy. Pageable host memory is read now; a copy to it is waited for.
pub(super) fn queue(machine: &Machine, stream: &Arc<Stream>, mut copy: Copy) -> Result<(), i32> {
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
    if pageable_source.1
        && !records
        && machine.schedule.may_defer(stream)
        && let Place::Host(start) = copy.source.place
    {
        let staged = stage(&copy, start)?;
        let plane = copy.width * copy.rows;
        copy.source = Side { place: Place::Staged(staged), pitch: copy.width, plane };
    }
    let reads_later = pageable_source.1 && matches!(copy.source.place, Place::Host(_));
    let point = machine.submit(stream, Vec::new(), Action::Copy(Box::new(copy)))?;
    // Another thread may have deferred it, although the source was not read.
    if pageable_target.1 || (reads_later && !point.is_reached()) {
        machine.wait(&point)?;
    }
    Ok(())
}

/// True if the whole range of the call is mapped. If not, the driver refuses the call without side
/// effects (580.159). Memory that is unmapped later fails when the work runs.
pub(super) fn is_mapped(
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
pub(super) fn classify(machine: &Machine, copy: &Copy, target: bool) -> Result<(Place, bool), i32> {
    let side = if target { &copy.target } else { &copy.source };
    let Place::Host(address) = side.place else { return Err(code::INVALID_VALUE) };
    let bytes = copy.extent(side).ok_or(code::INVALID_VALUE)?;
    require(address != 0 && address.checked_add(bytes).is_some(), code::INVALID_VALUE)?;
    if read(&machine.memory.space).contains(address) {
        return Ok((Place::Device(address), false));
    }
    Ok((Place::Host(address), !machine.memory.is_pinned(address, bytes)))
}

/// A copy of contiguous bytes.
pub(super) fn flat(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Copy {
    let (source, target) = (side(src, 0, 0), side(dst, 0, 0));
    Copy { source, target, width: bytes, rows: 1, depth: 1, is_unified: false }
}

/// Checks that an address which a call takes for a device's can be accessed by a device.
pub(super) fn check_device_address(machine: &Machine, address: CUdeviceptr) -> Result<(), i32> {
    let address = address as usize;
    let is_device = read(&machine.memory.space).contains(address);
    require(is_device || machine.memory.is_pinned(address, 1), code::INVALID_VALUE)
}

/// Queues a copy of contiguous bytes; those of `devices` must be addresses of a device.
fn queue_flat(
    [dst, src]: [CUdeviceptr; 2],
    bytes: usize,
    stream: CUstream,
    devices: &[CUdeviceptr],
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        let device = machine.current().map_or(stream.device, |context| context.device);
        if bytes > 0 {
            within_reach(machine, [dst as usize, src as usize], device)?;
            if !machine.captures.records(&stream)? {
                devices.iter().try_for_each(|address| check_device_address(machine, *address))?;
            }
        }
        let is_unified = devices.is_empty();
        queue(machine, &stream, Copy { is_unified, ..flat(dst, src, bytes) })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> c_int {
    queue_flat([dst, src], bytes, stream, &[])
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> c_int {
    queue_flat([dst, src.expose_provenance() as CUdeviceptr], bytes, stream, &[dst])
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> c_int {
    queue_flat([dst.expose_provenance() as CUdeviceptr, src], bytes, stream, &[src])
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> c_int {
    queue_flat([dst, src], bytes, stream, &[dst, src])
}

/// Checks that the current device can access both sides of a copy that names no contexts.
pub(super) fn within_reach(machine: &Machine, sides: [usize; 2], device: usize) -> Result<(), i32> {
    let space = read(&machine.memory.space);
    let refused = sides.iter().any(|address| space.is_out_of_reach(*address, device));
    require(!refused, code::INVALID_VALUE)
}

/// The contexts of a copy that names some; NULL names none.
pub(super) fn contexts(machine: &Machine, named: [CUcontext; 2]) -> Result<Vec<&Context>, i32> {
    let context = |handle| {
        let context = machine.context(handle)?;
        require(context.is_active(), code::INVALID_CONTEXT)?;
        Ok(context)
    };
    named.into_iter().filter(|handle| !handle.is_null()).map(context).collect()
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
        contexts(machine, [dst_context, src_context])?;
        queue(machine, &stream, flat(dst, src, bytes))
    })
}

/// One side, as the parameter structs of CUDA describe it.
struct Described {
    kind: CUmemorytype,
    host: usize,
    device: CUdeviceptr,
    x: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
}

/// A side of a parameter struct by its fields, and its plane and height.
macro_rules! described {
    ($copy:ident: $kind:ident $host:ident $device:ident $x:ident $y:ident $pitch:ident,
        $z:expr, $height:expr) => {
        Described {
            kind: $copy.$kind,
            host: $copy.$host.expose_provenance(),
            device: $copy.$device,
            x: $copy.$x,
            y: $copy.$y,
            z: $z,
            pitch: $copy.$pitch,
            height: $height,
        }
    };
}

/// The copy of two sides; `None` without bytes.
fn described(
    source: &Described,
    target: &Described,
    [width, rows, depth]: [usize; 3],
) -> Result<Option<Copy>, i32> {
    if width == 0 || rows == 0 || depth == 0 {
        return Ok(None);
    }
    let source = source.side(width, rows, depth)?;
    let target = target.side(width, rows, depth)?;
    Ok(Some(Copy { source, target, width, rows, depth, is_unified: false }))
}

/// The copy that `CUDA_MEMCPY2D` describes.
pub(super) fn copy_2d(copy: *const CUDA_MEMCPY2D) -> Result<Option<Copy>, i32> {
    let copy = peek_checked!(copy, srcMemoryType, dstMemoryType)?;
    let source = described!(copy: srcMemoryType srcHost srcDevice srcXInBytes srcY srcPitch, 0, 0);
    let target = described!(copy: dstMemoryType dstHost dstDevice dstXInBytes dstY dstPitch, 0, 0);
    described(&source, &target, [copy.WidthInBytes, copy.Height, 1])
}

/// The copy that a struct of three dimensions describes, with contexts or without. The driver
/// ignores levels of detail (580.159).
macro_rules! copy_3d {
    ($copy:ident) => {{
        let source = described!(
            $copy: srcMemoryType srcHost srcDevice srcXInBytes srcY srcPitch,
            $copy.srcZ, $copy.srcHeight);
        let target = described!(
            $copy: dstMemoryType dstHost dstDevice dstXInBytes dstY dstPitch,
            $copy.dstZ, $copy.dstHeight);
        described(&source, &target, [$copy.WidthInBytes, $copy.Height, $copy.Depth])
    }};
}

/// The copy that `CUDA_MEMCPY3D` describes.
pub(super) fn copy_3d(copy: *const CUDA_MEMCPY3D) -> Result<Option<Copy>, i32> {
    let copy = peek_checked!(copy, srcMemoryType, dstMemoryType)?;
    copy_3d!(copy)
}

/// The copy that `CUDA_MEMCPY3D_PEER` describes, and its contexts.
pub(super) fn copy_3d_peer(
    copy: *const CUDA_MEMCPY3D_PEER,
) -> Result<(Option<Copy>, [CUcontext; 2]), i32> {
    let copy = peek_checked!(copy, srcMemoryType, dstMemoryType)?;
    Ok((copy_3d!(copy)?, [copy.dstContext, copy.srcContext]))
}

/// Checks that the current device can access both sides of a copy that names no contexts.
pub(super) fn both_within_reach(machine: &Machine, copy: &Copy, device: usize) -> Result<(), i32> {
    let start = |side: &Side| match side.place {
        Place::Host(address) => address,
        Place::Device(_) | Place::Staged(_) => 0,
    };
    within_reach(machine, [start(&copy.target), start(&copy.source)], device)
}

impl Described {
    fn side(&self, width: usize, rows: usize, depth: usize) -> Result<Side, i32> {
        let base = match self.kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => self.host,
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
pub(super) fn copy_of_node(machine: &Machine, copy: *const CUDA_MEMCPY3D) -> Result<Copy, i32> {
    let mut copy = copy_3d(copy)?.ok_or(code::INVALID_VALUE)?;
    copy.collapse();
    let (source, _) = classify(machine, &copy, false)?;
    let (target, _) = classify(machine, &copy, true)?;
    (copy.source.place, copy.target.place) = (source, target);
    Ok(copy)
}

/// Queues a copy that names no contexts.
fn queue_described(stream: CUstream, copy: impl FnOnce() -> Result<Option<Copy>, i32>) -> c_int {
    entry(|machine| {
        let device = machine.current()?.device;
        let stream = machine.stream(stream)?;
        let Some(copy) = copy()? else { return Ok(()) };
        both_within_reach(machine, &copy, device)?;
        queue(machine, &stream, copy)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpy2DAsync_v2(
    copy: *const CUDA_MEMCPY2D,
    stream: CUstream,
) -> c_int {
    queue_described(stream, || copy_2d(copy))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpy3DAsync_v2(
    copy: *const CUDA_MEMCPY3D,
    stream: CUstream,
) -> c_int {
    queue_described(stream, || copy_3d(copy))
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
        match copy_3d_peer(copy)?.0 {
            Some(copy) => queue(machine, &stream, copy),
            None => Ok(()),
        }
    })
}
