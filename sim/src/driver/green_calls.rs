//! The calls for green contexts.

use super::arguments::{put, require};
use super::context_calls::{release, retain};
use super::entry::{entry, entry_checked};
use super::event_calls::{record_after, wait_before};
use super::green::{self, Scope};
use super::hardware::{GREATEST_PRIORITY, LEAST_PRIORITY};
use super::leaks;
use super::machine::Machine;
use super::queue::Kind;
use super::resource_calls::everything;
use super::sync::write;
use crate::base::code;
use cudarc::driver::sys::{CUcontext, CUdevResourceDesc, CUdevice, CUevent, CUgreenCtx, CUstream};
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::ptr;

/// `CU_GREEN_CTX_DEFAULT_STREAM`, and `CU_STREAM_NON_BLOCKING`: the only flags.
const DEFAULT_STREAM: c_uint = 1;
const NON_BLOCKING: c_uint = 1;

/// Some calls check the handle before they check that the driver is initialised (580.159).
fn check_handle(green: CUgreenCtx) -> Result<(), i32> {
    require(!green.is_null(), code::INVALID_CONTEXT)
}

/// What a handle means.
fn scope(machine: &Machine, green: CUgreenCtx) -> Result<Scope<'_>, i32> {
    let green = machine.greens.find(green)?;
    machine.scope(green::context_of(green.partition.green))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGreenCtxCreate(
    green: *mut CUgreenCtx,
    description: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        require(!green.is_null(), code::INVALID_VALUE)?;
        let context = &machine.device(device)?.context;
        require(flags == DEFAULT_STREAM, code::INVALID_VALUE)?;
        let described = match description.is_null() {
            true => everything(machine, context.device),
            false => machine.greens.description(description).ok_or(code::INVALID_VALUE)?,
        };
        require(described.part.device == context.device, code::INVALID_VALUE)?;
        retain(context)?;
        let handle = machine.greens.create(context, &described);
        put!(green, ptr::without_provenance_mut(handle))
    })
}

/// Destroys a green context. Work that is queued still runs.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGreenCtxDestroy(green: CUgreenCtx) -> c_int {
    entry(|machine| {
        let green = machine.greens.find(green)?;
        leaks::report_green(machine, &green);
        require(machine.end_green(&green), code::CONTEXT_IS_DESTROYED)?;
        let context = &machine.hardware.devices[green.partition.part.device].context;
        // The host may have released the context too often.
        let _ = release(machine, context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxFromGreenCtx(
    context: *mut CUcontext,
    green: CUgreenCtx,
) -> c_int {
    entry(|machine| {
        let green = machine.greens.find(green)?;
        put!(context, green::context_of(green.partition.green))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGreenCtxGetId(green: CUgreenCtx, id: *mut c_ulonglong) -> c_int {
    entry(|machine| {
        require(!id.is_null(), code::INVALID_VALUE)?;
        let found = match green.is_null() {
            true => machine.current_scope()?.green.ok_or(code::INVALID_CONTEXT)?,
            false => machine.greens.find(green)?,
        };
        put!(id, found.partition.id)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGreenCtxStreamCreate(
    stream: *mut CUstream,
    green: CUgreenCtx,
    flags: c_uint,
    priority: c_int,
) -> c_int {
    entry_checked(check_handle(green), |machine| {
        let scope = scope(machine, green)?;
        require(!stream.is_null() && flags == NON_BLOCKING, code::INVALID_VALUE)?;
        let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
        put!(stream, create_stream(machine, &scope, Kind::NonBlocking, priority)?)
    })
}

/// Creates a stream of a context.
pub(super) fn create_stream(
    machine: &Machine,
    scope: &Scope<'_>,
    kind: Kind,
    priority: c_int,
) -> Result<CUstream, i32> {
    let mut streams = write(&machine.streams);
    // A green context that another thread destroys takes the streams that are in the table.
    scope.check()?;
    Ok(ptr::without_provenance_mut(streams.insert(scope.stream(kind, priority))))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetGreenCtx(
    stream: CUstream,
    green: *mut CUgreenCtx,
) -> c_int {
    entry(|machine| {
        require(!green.is_null(), code::INVALID_VALUE)?;
        let stream = machine.stream(stream)?;
        machine.captures.records(&stream)?;
        put!(green, ptr::without_provenance_mut(stream.green()))
    })
}

/// Records an event after all work of a green context.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent) -> c_int {
    entry_checked(check_handle(green), |machine| {
        record_after(machine, &scope(machine, green)?, event)
    })
}

/// All later work of a green context waits for an event.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGreenCtxWaitEvent(green: CUgreenCtx, event: CUevent) -> c_int {
    entry_checked(check_handle(green), |machine| {
        wait_before(machine, &scope(machine, green)?, event)
    })
}
