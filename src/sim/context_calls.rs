//! The calls for primary contexts and for the calling thread's stack of contexts.

use super::arguments::{put, require};
use super::context::{Stack, with_stack};
use super::entry::entry;
use super::hardware::{GREATEST_PRIORITY, LEAST_PRIORITY};
use super::leaks;
use super::sync::lock;
use crate::driver::code;
use crate::driver::sys::{CUcontext, CUdevice};
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::Ordering;

/// `CU_CTX_SCHED_...` flags that `cuDevicePrimaryCtxGetState` reports.
const FLAGS: c_uint = 0;

pub(super) unsafe extern "C" fn retain(context: *mut CUcontext, device: CUdevice) -> c_int {
    entry(|machine| {
        let found = &machine.device(device)?.context;
        require(!context.is_null(), code::INVALID_VALUE)?;
        let mut retained = lock(&found.retained);
        // A process whose context failed cannot retain it again (580.159).
        if !found.is_active() {
            found.check()?;
        }
        *retained += 1;
        found.active.store(true, Ordering::Release);
        put!(context, found.handle())
    })
}

pub(super) unsafe extern "C" fn release(device: CUdevice) -> c_int {
    entry(|machine| {
        let context = &machine.device(device)?.context;
        let mut retained = lock(&context.retained);
        *retained = retained.checked_sub(1).ok_or(code::INVALID_CONTEXT)?;
        if *retained == 0 {
            context.active.store(false, Ordering::Release);
            machine.schedule.drain([context]);
            leaks::report_context(machine, context);
            machine.destroy_objects_of(context);
        }
        Ok(())
    })
}

/// Destroys a context regardless of its retain count. Each retain must still be released.
pub(super) unsafe extern "C" fn reset(device: CUdevice) -> c_int {
    entry(|machine| {
        let context = &machine.device(device)?.context;
        let _retained = lock(&context.retained);
        if context.active.swap(false, Ordering::AcqRel) {
            machine.schedule.drain([context]);
            machine.destroy_objects_of(context);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn state(
    device: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> c_int {
    entry(|machine| {
        require(!flags.is_null() && !active.is_null(), code::INVALID_VALUE)?;
        let context = &machine.device(device)?.context;
        put!(flags, FLAGS)?;
        put!(active, c_int::from(context.is_active()))
    })
}

pub(super) unsafe extern "C" fn enable_peer_access(peer: CUcontext, flags: c_uint) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        let peer = machine.context(peer)?;
        require(flags == 0, code::INVALID_VALUE)?;
        require(peer.is_active(), code::INVALID_CONTEXT)?;
        require(peer.device != context.device, code::PEER_ACCESS_UNSUPPORTED)?;
        let reachable = machine.config.can_access_peer(context.device, peer.device);
        require(reachable, code::PEER_ACCESS_UNSUPPORTED)?;
        let bit = 1 << peer.device;
        let before = machine.memory.peers[context.device].fetch_or(bit, Ordering::Relaxed);
        require(before & bit == 0, code::PEER_ACCESS_ALREADY_ENABLED)
    })
}

pub(super) unsafe extern "C" fn get_current(context: *mut CUcontext) -> c_int {
    entry(|machine| {
        require(!context.is_null(), code::INVALID_VALUE)?;
        let handle = with_stack(machine.generation, |stack| stack.last())?.unwrap_or(0);
        put!(context, ptr::without_provenance_mut(handle))
    })
}

pub(super) unsafe extern "C" fn set_current(context: CUcontext) -> c_int {
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

pub(super) unsafe extern "C" fn push_current(context: CUcontext) -> c_int {
    entry(|machine| {
        require(!context.is_null(), code::INVALID_VALUE)?;
        machine.context(context)?;
        with_stack(machine.generation, |stack| stack.push(context.addr()))?
    })
}

pub(super) unsafe extern "C" fn pop_current(context: *mut CUcontext) -> c_int {
    entry(|machine| {
        let popped = with_stack(machine.generation, Stack::pop)?.ok_or(code::INVALID_CONTEXT)?;
        if !context.is_null() {
            put!(context, ptr::without_provenance_mut(popped))?;
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn get_device(device: *mut CUdevice) -> c_int {
    entry(|machine| {
        require(!device.is_null(), code::INVALID_VALUE)?;
        let context = machine.top()?.ok_or(code::INVALID_CONTEXT)?;
        put!(device, context.device as CUdevice)
    })
}

pub(super) unsafe extern "C" fn synchronize() -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        machine.captures.refuse_wait_for_all(context.device)?;
        machine.schedule.drain([context]);
        context.check()?;
        machine.release_idle_memory();
        Ok(())
    })
}

/// Starts or stops the profiler; the machine has none, so only the context is checked.
pub(super) unsafe extern "C" fn profiler() -> c_int {
    entry(|machine| machine.current().map(drop))
}

pub(super) unsafe extern "C" fn priority_range(least: *mut c_int, greatest: *mut c_int) -> c_int {
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
