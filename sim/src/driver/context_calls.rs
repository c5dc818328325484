//! The calls for primary contexts and for the calling thread's stack of contexts.

use super::arguments::{put, require};
use super::context::{Context, Stack, with_stack};
use super::entry::entry;
use super::hardware::{GREATEST_PRIORITY, LEAST_PRIORITY};
use super::leaks;
use super::machine::Machine;
use super::queue::{Point, Stream};
use super::settings::check_flags;
use super::sync::lock;
use crate::base::code;
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::Ordering;

/// Retains a primary context.
pub(super) fn retain(context: &Context) -> Result<(), i32> {
    let mut retained = lock(&context.retained);
    // A process whose context failed cannot retain it again (580.159).
    if !context.is_active() {
        context.check()?;
    }
    *retained += 1;
    context.active.store(true, Ordering::Release);
    Ok(())
}

/// Releases a primary context, which ends with the last one.
pub(super) fn release(machine: &Machine, context: &Context) -> Result<(), i32> {
    let mut retained = lock(&context.retained);
    *retained = retained.checked_sub(1).ok_or(code::INVALID_CONTEXT)?;
    if *retained == 0 {
        context.active.store(false, Ordering::Release);
        machine.schedule.drain_at_end(&[context], machine.config.kernel_time);
        leaks::report_context(machine, context);
        // There are some if the host released the context too often.
        for green in machine.greens.of_device(context.device) {
            machine.end_green(&green);
        }
        machine.destroy_objects_of(context);
        context.renew();
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut CUcontext,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        let found = &machine.device(device)?.context;
        require(!context.is_null(), code::INVALID_VALUE)?;
        retain(found)?;
        put!(context, found.handle())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> c_int {
    entry(|machine| release(machine, &machine.device(device)?.context))
}

/// Destroys a context regardless of its retain count. Each retain must still be released.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> c_int {
    entry(|machine| {
        let context = &machine.device(device)?.context;
        let _retained = lock(&context.retained);
        // Its green contexts would have nothing left (580.159).
        require(machine.greens.of_device(context.device).is_empty(), code::NOT_PERMITTED)?;
        if context.active.swap(false, Ordering::AcqRel) {
            machine.schedule.drain_at_end(&[context], machine.config.kernel_time);
            machine.destroy_objects_of(context);
            context.renew();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDevicePrimaryCtxSetFlags_v2(
    device: CUdevice,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let context = &machine.device(device)?.context;
        check_flags(flags)?;
        lock(&context.settings).flags = flags;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> c_int {
    entry(|machine| {
        require(!flags.is_null() && !active.is_null(), code::INVALID_VALUE)?;
        let context = &machine.device(device)?.context;
        put!(flags, lock(&context.settings).flags)?;
        put!(active, c_int::from(context.is_active()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        let peer = machine.context(peer)?;
        require(flags == 0, code::INVALID_VALUE)?;
        require(peer.is_active(), code::INVALID_CONTEXT)?;
        require(peer.device != context.device, code::PEER_ACCESS_UNSUPPORTED)?;
        let reachable = machine.can_access_peer(context.device, peer.device);
        require(reachable, code::PEER_ACCESS_UNSUPPORTED)?;
        let bit = 1 << peer.device;
        let before = machine.memory.peers[context.device].fetch_or(bit, Ordering::Relaxed);
        require(before & bit == 0, code::PEER_ACCESS_ALREADY_ENABLED)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxDisablePeerAccess(peer: CUcontext) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        let peer = machine.context(peer)?;
        let bit = 1 << peer.device;
        let before = machine.memory.peers[context.device].fetch_and(!bit, Ordering::Relaxed);
        require(before & bit != 0, code::PEER_ACCESS_NOT_ENABLED)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> c_int {
    entry(|machine| {
        require(!context.is_null(), code::INVALID_VALUE)?;
        let handle = with_stack(machine.generation, |stack| stack.last())?.unwrap_or(0);
        put!(context, ptr::without_provenance_mut(handle))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> c_int {
    entry(|machine| {
        if !context.is_null() {
            // A context that is not retained can be current; using it is refused (580.159).
            machine.context(context)?;
        }
        with_stack(machine.generation, |stack| {
            stack.pop();
            if context.is_null() { Ok(()) } else { stack.push(context.addr()) }
        })?
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> c_int {
    entry(|machine| {
        require(!context.is_null(), code::INVALID_VALUE)?;
        machine.context(context)?;
        with_stack(machine.generation, |stack| stack.push(context.addr()))?
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> c_int {
    entry(|machine| {
        let popped = with_stack(machine.generation, Stack::pop)?.ok_or(code::INVALID_CONTEXT)?;
        if !context.is_null() {
            put!(context, ptr::without_provenance_mut(popped))?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> c_int {
    entry(|machine| {
        require(!device.is_null(), code::INVALID_VALUE)?;
        let context = machine.top()?.ok_or(code::INVALID_CONTEXT)?;
        put!(device, context.device as CUdevice)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxSynchronize() -> c_int {
    entry(|machine| {
        let scope = machine.current_scope()?;
        machine.captures.refuse_wait_for_all(|stream| scope.owns(stream))?;
        let tails: Vec<Point> = scope.streams().iter().map(Stream::tail).collect();
        machine.schedule.reach(&tails);
        scope.context.check()?;
        machine.release_idle_memory();
        Ok(())
    })
}

/// Starts or stops the profiler; the machine has none, so only the context is checked.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuProfilerStart() -> c_int {
    entry(|machine| machine.current().map(drop))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuProfilerStop() -> c_int {
    entry(|machine| machine.current().map(drop))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        if !least.is_null() {
            put!(least, LEAST_PRIORITY)?;
        }
        if !greatest.is_null() {
            put!(greatest, GREATEST_PRIORITY)?;
        }
        Ok(())
    })
}
