//! The calls for streams.

use super::arguments::{put, require};
use super::entry::{entry, entry_checked};
use super::event::Recorded;
use super::graph::Work;
use super::green::context_of;
use super::green_calls::create_stream;
use super::hardware::{GREATEST_PRIORITY, LEAST_PRIORITY};
use super::host_function::{Callback, HostFunction};
use super::machine::Machine;
use super::queue::{Action, Kind, Stream};
use super::sync::{read, write};
use crate::base::code;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUevent, CUgreenCtx, CUhostFn, CUresult, CUstream, CUstreamCallback,
};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::mem;
use std::ptr;
use std::sync::Arc;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> c_int {
    entry(|machine| {
        let scope = machine.current_scope()?;
        require(!stream.is_null() && flags <= NON_BLOCKING, code::INVALID_VALUE)?;
        let kind = if flags == NON_BLOCKING { Kind::NonBlocking } else { Kind::Blocking };
        // CUDA clamps a priority to the valid range.
        let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
        put!(stream, create_stream(machine, &scope, kind, priority)?)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> c_int {
    // SAFETY: the same promise.
    unsafe { cuStreamCreateWithPriority(stream, flags, LEAST_PRIORITY) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> c_int {
    entry_checked(require(!stream.is_null(), code::INVALID_HANDLE), |machine| {
        machine.usable()?;
        let mut streams = write(&machine.streams);
        // The default streams are not in the table, so they cannot be destroyed.
        machine.hardware.context_of(streams.find(stream.addr())?).check()?;
        let removed = streams.remove(stream.addr()).ok_or(code::INVALID_HANDLE)?;
        drop(streams);
        machine.captures.forget_stream(&machine.graphs, &removed);
        removed.destroy();
        Ok(())
    })
}

/// The streams whose work is ordered before the legacy stream's: its context's blocking streams.
fn ordered_before(machine: &Machine, stream: &Stream) -> Vec<Arc<Stream>> {
    if stream.kind != Kind::Legacy {
        return Vec::new();
    }
    let members = read(&machine.hardware.context_of(stream).members);
    members.iter().filter(|member| member.kind == Kind::Blocking).map(Arc::clone).collect()
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamQuery(stream: CUstream) -> c_int {
    entry(|machine| {
        machine.spend_query_time();
        let stream = machine.stream(stream)?;
        machine.captures.refuse_wait(&stream)?;
        let mut before = ordered_before(machine, &stream);
        before.push(Arc::clone(&stream));
        if let Some(busy) = before.iter().find(|before| !before.is_idle()) {
            machine.schedule.poll(&busy.tail());
            return Err(code::NOT_READY);
        }
        machine.hardware.context_of(&stream).check()
    })
}

/// Waits for all work of a stream.
pub(super) fn synchronize(machine: &Machine, stream: &Arc<Stream>) -> Result<(), i32> {
    for before in ordered_before(machine, stream) {
        machine.wait(&before.tail())?;
    }
    machine.wait(&stream.tail())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.refuse_wait(&stream)?;
        synchronize(machine, &stream)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamWaitEvent(
    stream: CUstream,
    event: CUevent,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        require(flags <= 1, code::INVALID_VALUE)?;
        let event = machine.event(event)?;
        if flags == 1 {
            // CU_EVENT_WAIT_EXTERNAL is for captures only.
            require(machine.captures.records(&stream)?, code::ILLEGAL_STATE)?;
            return machine.captures.add(&machine.graphs, &stream, Work::Wait(event));
        }
        if machine.captures.wait(&stream, &event.recorded(&machine.schedule))? {
            return Ok(());
        }
        match event.recorded(&machine.schedule) {
            Recorded::At(mark) if !mark.is_reached() => {
                let waits = vec![mark.point()];
                machine.submit(&stream, waits, Action::Nothing).map(drop)
            }
            // Even an empty operation of the legacy stream orders the blocking streams.
            _ if stream.kind == Kind::Legacy => {
                machine.submit(&stream, Vec::new(), Action::Nothing).map(drop)
            }
            _ => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetPriority(
    stream: CUstream,
    priority: *mut c_int,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.records(&stream)?;
        put!(priority, stream.priority)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.records(&stream)?;
        put!(flags, if stream.kind == Kind::NonBlocking { NON_BLOCKING } else { 0 })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.records(&stream)?;
        let green = stream.partition.as_ref().map(|partition| context_of(partition.green));
        put!(context, green.unwrap_or_else(|| machine.hardware.context_of(&stream).handle()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetCtx_v2(
    stream: CUstream,
    context: *mut CUcontext,
    green: *mut CUgreenCtx,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.records(&stream)?;
        require(!context.is_null() || !green.is_null(), code::INVALID_VALUE)?;
        if !context.is_null() {
            put!(context, machine.hardware.context_of(&stream).handle())?;
        }
        if !green.is_null() {
            put!(green, ptr::without_provenance_mut(stream.green()))?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetId(stream: CUstream, id: *mut c_ulonglong) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.refuse(&stream)?;
        put!(id, stream.id)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetDevice(
    stream: CUstream,
    device: *mut CUdevice,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.refuse(&stream)?;
        put!(device, stream.device as CUdevice)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamAddCallback(
    handle: CUstream,
    function: CUstreamCallback,
    user_data: *mut c_void,
    flags: c_uint,
) -> c_int {
    entry_checked(require(function.is_some() && flags == 0, code::INVALID_VALUE), |machine| {
        let stream = machine.stream(handle)?;
        machine.captures.refuse(&stream)?;
        let function = function.ok_or(code::INVALID_VALUE)?;
        // SAFETY: CUresult is passed as its number.
        let function = unsafe {
            mem::transmute::<
                unsafe extern "C" fn(CUstream, CUresult, *mut c_void),
                unsafe extern "C" fn(CUstream, c_int, *mut c_void),
            >(function)
        };
        let action = Action::Callback(Callback { function, stream: handle, user_data });
        machine.submit(&stream, Vec::new(), action).map(drop)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchHostFunc(
    stream: CUstream,
    function: CUhostFn,
    user_data: *mut c_void,
) -> c_int {
    entry_checked(require(function.is_some(), code::INVALID_VALUE), |machine| {
        let stream = machine.stream(stream)?;
        let function = function.ok_or(code::INVALID_VALUE)?;
        let action = Action::HostFunction(HostFunction { function, user_data });
        machine.submit(&stream, Vec::new(), action).map(drop)
    })
}
