//! The calls that copy on the default stream. They wait for the copy, except where both sides are a
//! device's memory, and where pageable memory was read.

use super::address_space::AddressSpace;
use super::copy::{Copy, Place, Side};
use super::entry::entry;
use super::machine::Machine;
use super::pointer_calls::is_synchronous;
use super::queue::{Action, Stream};
use super::stream_calls::synchronize;
use super::sync::read;
use super::transfer_calls::{
    both_within_reach, check_device_address, contexts, copy_2d, copy_3d, copy_3d_peer, flat, queue,
};
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUcontext, CUdeviceptr,
};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// The default stream. Inside a capture that forbids waits, a copy on it is refused.
fn default_stream(machine: &Machine) -> Result<Arc<Stream>, i32> {
    let stream = machine.stream(ptr::null_mut())?;
    machine.captures.refuse_wait(&stream)?;
    Ok(stream)
}

/// Runs a copy on the default stream.
fn run(machine: &Machine, stream: &Arc<Stream>, copy: Copy) -> Result<(), i32> {
    let is_device = |space: &AddressSpace, side: &Side| match side.place {
        Place::Host(address) => space.contains(address) && !space.is_of_host_pool(address),
        Place::Device(_) | Place::Staged(_) => true,
    };
    let space = read(&machine.memory.space);
    let (from_device, to_device) =
        (is_device(&space, &copy.source), is_device(&space, &copy.target));
    drop(space);
    if from_device && to_device {
        let waits = [&copy.source, &copy.target].into_iter().any(
            |side| matches!(side.place, Place::Host(address) if is_synchronous(machine, address)),
        );
        queue(machine, stream, copy)?;
        return if waits { machine.wait(&stream.tail()) } else { Ok(()) };
    }
    // Pageable memory is read after the work before the copy.
    synchronize(machine, stream)?;
    let is_staged = to_device && is_pageable(machine, &copy);
    queue(machine, stream, copy)?;
    if is_staged { Ok(()) } else { machine.wait(&stream.tail()) }
}

/// True if the source is pageable memory of the host.
fn is_pageable(machine: &Machine, copy: &Copy) -> bool {
    let (Place::Host(address), Some(bytes)) = (&copy.source.place, copy.extent(&copy.source))
    else {
        return false;
    };
    !read(&machine.memory.space).contains(*address) && !machine.memory.is_pinned(*address, bytes)
}

/// Copies contiguous bytes; those of `devices` must be addresses of a device.
fn copy_flat([dst, src]: [CUdeviceptr; 2], bytes: usize, devices: &[CUdeviceptr]) -> c_int {
    entry(|machine| {
        let device = machine.current()?.device;
        let stream = default_stream(machine)?;
        if bytes == 0 {
            return Ok(());
        }
        let copy = flat(dst, src, bytes);
        both_within_reach(machine, &copy, device)?;
        devices.iter().try_for_each(|address| check_device_address(machine, *address))?;
        run(machine, &stream, copy)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpy(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
) -> c_int {
    copy_flat([dst, src], bytes, &[])
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyHtoD_v2(
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
) -> c_int {
    copy_flat([dst, src.expose_provenance() as CUdeviceptr], bytes, &[dst])
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyDtoH_v2(
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
) -> c_int {
    copy_flat([dst.expose_provenance() as CUdeviceptr, src], bytes, &[src])
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyDtoD_v2(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
) -> c_int {
    copy_flat([dst, src], bytes, &[dst, src])
}

/// Copies with a struct that names no contexts.
fn copy_described(copy: impl FnOnce() -> Result<Option<Copy>, i32>) -> c_int {
    entry(|machine| {
        let device = machine.current()?.device;
        let stream = default_stream(machine)?;
        let Some(copy) = copy()? else { return Ok(()) };
        both_within_reach(machine, &copy, device)?;
        run(machine, &stream, copy)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D) -> c_int {
    copy_described(|| copy_2d(copy))
}

/// The same, since pitches need no alignment here.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D) -> c_int {
    copy_described(|| copy_2d(copy))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpy3D_v2(copy: *const CUDA_MEMCPY3D) -> c_int {
    copy_described(|| copy_3d(copy))
}

/// Runs a copy after all work of the contexts that it names, and before their later work.
fn copy_peer(machine: &Machine, named: [CUcontext; 2], copy: Copy) -> Result<(), i32> {
    let stream = default_stream(machine)?;
    let contexts = contexts(machine, named)?;
    contexts.iter().try_for_each(|context| machine.captures.refuse_wait(&context.legacy))?;
    let tails = contexts.iter().flat_map(|context| context.streams());
    let waits = tails.map(|stream| stream.tail()).filter(|tail| !tail.is_reached()).collect();
    machine.submit(&stream, waits, Action::Nothing)?;
    run(machine, &stream, copy)?;
    for context in contexts.iter().filter(|context| !Arc::ptr_eq(&context.legacy, &stream)) {
        machine.submit(&context.legacy, vec![stream.tail()], Action::Nothing)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpyPeer(
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    bytes: usize,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        [dst, src].iter().try_for_each(|address| {
            if bytes == 0 { Ok(()) } else { check_device_address(machine, *address) }
        })?;
        copy_peer(machine, [dst_context, src_context], flat(dst, src, bytes))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemcpy3DPeer(copy: *const CUDA_MEMCPY3D_PEER) -> c_int {
    entry(|machine| {
        machine.current()?;
        match copy_3d_peer(copy)? {
            (Some(copy), contexts) => copy_peer(machine, contexts, copy),
            (None, _) => Ok(()),
        }
    })
}
