//! The calls for contexts that the host creates beside the primary ones.

use super::arguments::{peek, put, require};
use super::context::{Context, with_stack};
use super::entry::entry;
use super::leaks;
use super::machine::Machine;
use super::settings::check_flags;
use super::sync::lock;
use crate::base::code;
use cudarc::driver::sys::{CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxCreate_v2(
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> c_int {
    entry(|machine| create(machine, context, flags, device))
}

/// Creates a context and makes it current.
fn create(
    machine: &Machine,
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> Result<(), i32> {
    require(!context.is_null(), code::INVALID_VALUE)?;
    check_flags(flags)?;
    let primary = &machine.device(device)?.context;
    // Nothing works in a process whose contexts failed.
    primary.check()?;
    let created = machine.hardware.create_context(primary.device).ok_or(code::OUT_OF_MEMORY)?;
    lock(&created.settings).flags = flags;
    with_stack(machine.generation, |stack| stack.push(created.handle().addr()))
        .flatten()
        .inspect_err(|_| machine.hardware.note_destroyed(created))?;
    *lock(&created.retained) = 1;
    created.active.store(true, Ordering::Release);
    put!(context, created.handle())
}

/// Checks that no part of the device is requested: that needs a server of several processes.
fn check_affinity(count: c_int) -> Result<(), i32> {
    require(count >= 0, code::INVALID_VALUE)?;
    require(count == 0, code::UNSUPPORTED_EXEC_AFFINITY)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut CUcontext,
    _affinities: *mut CUexecAffinityParam,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        check_affinity(count)?;
        create(machine, context, flags, device)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxCreate_v4(
    context: *mut CUcontext,
    parameters: *mut CUctxCreateParams,
    flags: c_uint,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        if !parameters.is_null() {
            let parameters = peek!(parameters)?;
            check_affinity(parameters.numExecAffinityParams)?;
            // Devices have no graphics.
            require(parameters.cigParams.is_null(), code::NOT_SUPPORTED)?;
        }
        create(machine, context, flags, device)
    })
}

/// Destroys a context with everything in it.
fn destroy(machine: &Machine, context: &Context) -> Result<(), i32> {
    require(context.active.swap(false, Ordering::AcqRel), code::INVALID_CONTEXT)?;
    *lock(&context.retained) = 0;
    machine.schedule.drain_at_end(&[context], machine.config.kernel_time);
    leaks::report_context(machine, context);
    machine.destroy_objects_of(context);
    context.close();
    machine.hardware.note_destroyed(context);
    // Other threads of which it is the current one find that it is destroyed.
    with_stack(machine.generation, |stack| {
        if stack.last() == Some(context.handle().addr()) {
            stack.pop();
        }
    })
}

/// The context of a handle that the host created.
fn created(machine: &Machine, handle: CUcontext) -> Result<&Context, i32> {
    require(!handle.is_null(), code::INVALID_VALUE)?;
    let context = machine.context(handle)?;
    require(!machine.is_primary(context), code::INVALID_CONTEXT)?;
    Ok(context)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxDestroy_v2(context: CUcontext) -> c_int {
    entry(|machine| destroy(machine, created(machine, context)?))
}

/// Counts one use more of the current context.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxAttach(context: *mut CUcontext, flags: c_uint) -> c_int {
    entry(|machine| {
        require(!context.is_null() && flags == 0, code::INVALID_VALUE)?;
        let current = created(machine, machine.current()?.handle())?;
        *lock(&current.retained) += 1;
        put!(context, current.handle())
    })
}

/// Counts one use less of the current context, and destroys it after the last.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxDetach(context: CUcontext) -> c_int {
    entry(|machine| {
        let context = created(machine, context)?;
        require(machine.current()?.number == context.number, code::INVALID_CONTEXT)?;
        let mut uses = lock(&context.retained);
        if *uses > 1 {
            *uses -= 1;
            return Ok(());
        }
        drop(uses);
        destroy(machine, context)
    })
}
