//! The calls for events.

use super::arguments::{put, require};
use super::entry::{entry, entry_checked};
use super::event::{Event, Recorded};
use super::graph::Work;
use super::green::Scope;
use super::machine::Machine;
use super::queue::{Kind, Mark, Stream};
use super::shared_event::SharedEvent;
use super::sync::write;
use crate::base::code;
use cudarc::driver::sys::{CUcontext, CUevent, CUstream};
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_INTERPROCESS`.
const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;

/// All flags, with `CU_EVENT_BLOCKING_SYNC`.
const KNOWN: c_uint = 1 | DISABLE_TIMING | INTERPROCESS;

/// The recorded point of an event, for a query by the host.
fn queried_mark(machine: &Machine, event: &Event) -> Result<Option<Arc<Mark>>, i32> {
    let mark = match event.recorded(&machine.schedule) {
        Recorded::Captured(captured) => {
            return Err(machine.captures.refuse_event(&captured, true));
        }
        Recorded::Never => None,
        Recorded::At(mark) => Some(mark),
    };
    machine.captures.refuse_unsafe()?;
    Ok(mark)
}

/// Some calls check the event handle before they check that the driver is initialised.
fn check_handle(event: CUevent) -> Result<(), i32> {
    require(!event.is_null(), code::INVALID_HANDLE)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        require(!event.is_null() && flags & !KNOWN == 0, code::INVALID_VALUE)?;
        let shareable = flags & INTERPROCESS == 0 || flags & DISABLE_TIMING != 0;
        require(shareable, code::INVALID_VALUE)?;
        let shared = match flags & INTERPROCESS {
            0 => None,
            _ => Some(SharedEvent::create(&machine.memory.physical[context.device])?),
        };
        let created = Event::new(context, flags & DISABLE_TIMING == 0, shared);
        let handle = write(&machine.events).insert(Arc::new(created));
        put!(event, ptr::without_provenance_mut(handle))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> c_int {
    entry_checked(check_handle(event), |machine| {
        machine.usable()?;
        let mut events = write(&machine.events);
        machine.hardware.owner(events.find(event.addr())?.context).check()?;
        events.remove(event.addr()).map(drop).ok_or(code::INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> c_int {
    // SAFETY: the same promise.
    unsafe { cuEventRecordWithFlags(event, stream, 0) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventRecordWithFlags(
    event: CUevent,
    stream: CUstream,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        let event = machine.event(event)?;
        require(flags <= 1, code::INVALID_VALUE)?;
        require(event.context == stream.context, code::INVALID_HANDLE)?;
        if flags == 1 {
            // CU_EVENT_RECORD_EXTERNAL is for captures only.
            require(machine.captures.records(&stream)?, code::ILLEGAL_STATE)?;
            return machine.captures.add(&machine.graphs, &stream, Work::Record(event));
        }
        if machine.captures.mark(&stream, &event)? {
            return Ok(());
        }
        machine.record(&event, &stream, Vec::new()).map(drop)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventQuery(event: CUevent) -> c_int {
    entry_checked(check_handle(event), |machine| {
        machine.spend_query_time();
        let event = machine.event(event)?;
        let waiting = queried_mark(machine, &event)?.filter(|mark| !mark.is_reached());
        machine.hardware.owner(event.context).check()?;
        let Some(mark) = waiting else { return Ok(()) };
        machine.schedule.poll(&mark.point());
        Err(code::NOT_READY)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> c_int {
    entry_checked(check_handle(event), |machine| {
        let event = machine.event(event)?;
        match queried_mark(machine, &event)? {
            Some(mark) => machine.wait(&mark.point()),
            None => machine.hardware.owner(event.context).check(),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> c_int {
    entry_checked(check_handle(start).and(check_handle(end)), |machine| {
        require(!milliseconds.is_null(), code::INVALID_HANDLE)?;
        let (start, end) = (machine.event(start)?, machine.event(end)?);
        require(start.context == end.context, code::INVALID_HANDLE)?;
        machine.hardware.owner(start.context).check()?;
        let mark = |event: &Event| match event.recorded(&machine.schedule) {
            Recorded::At(mark) if mark.timed => Ok(mark),
            Recorded::At(_) | Recorded::Never => Err(code::INVALID_HANDLE),
            Recorded::Captured(captured) => Err(machine.captures.refuse_event(&captured, false)),
        };
        let (start, end) = (mark(&start)?, mark(&end)?);
        require(start.is_reached() && end.is_reached(), code::NOT_READY)?;
        let time = |mark: &Mark| mark.time.load(Ordering::Relaxed) as f64;
        put!(milliseconds, ((time(&end) - time(&start)) / 1e6) as f32)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuEventElapsedTime_v2(
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> c_int {
    // SAFETY: the same promise.
    unsafe { cuEventElapsedTime(milliseconds, start, end) }
}

/// The context of a handle. It need not be current.
fn usable(machine: &Machine, context: CUcontext) -> Result<Scope<'_>, i32> {
    require(machine.context(context)?.is_active(), code::INVALID_CONTEXT)?;
    machine.scope(context)
}

/// Records an event after all work of a context, green or not.
pub(super) fn record_after(
    machine: &Machine,
    scope: &Scope<'_>,
    event: CUevent,
) -> Result<(), i32> {
    let event = machine.event(event)?;
    let context = scope.context;
    require(event.context == context.number, code::INVALID_HANDLE)?;
    machine.captures.refuse_wait_for_all(|stream| scope.owns(stream))?;
    let streams = scope.streams();
    let before = streams.iter().filter(|stream| !stream.is_idle()).map(Stream::tail).collect();
    let own = scope.stream(Kind::NonBlocking, 0);
    let recorded = machine.record(&event, &own, before).map(drop);
    // It ends after the record.
    own.destroy();
    recorded
}

/// All later work of a context, green or not, waits for an event.
pub(super) fn wait_before(machine: &Machine, scope: &Scope<'_>, event: CUevent) -> Result<(), i32> {
    let event = machine.event(event)?;
    machine.captures.refuse_wait_for_all(|stream| scope.owns(stream))?;
    match event.recorded(&machine.schedule) {
        Recorded::Never => {}
        Recorded::At(mark) => scope.context.barrier.add(scope.green_id(), mark.point()),
        Recorded::Captured(captured) => {
            return Err(machine.captures.refuse_event(&captured, true));
        }
    }
    Ok(())
}

/// Records an event after all work of a context.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxRecordEvent(context: CUcontext, event: CUevent) -> c_int {
    entry(|machine| record_after(machine, &usable(machine, context)?, event))
}

/// All later work of a context waits for an event.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxWaitEvent(context: CUcontext, event: CUevent) -> c_int {
    entry(|machine| wait_before(machine, &usable(machine, context)?, event))
}
