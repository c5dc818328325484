//! Section "Streams and events" of the header: events.

use super::boundary::{Call, boundary, boundary_without_guard, given, out};
use super::handle::Table;
use super::status::tcuda_status;
use super::stream::{or_current, tcuda_stream, wait_event};
use crate::base::error::Result;
use crate::driver::sys::CUevent_st;
use crate::gpu::event::Event;
use crate::gpu::gpus;

/// A point in a stream.
pub struct tcuda_event {
    _private: [u8; 0],
}

/// Flag of tcuda_event_create: can be timed.
pub const TCUDA_EVENT_TIMING: u32 = 1;
/// Flag of tcuda_event_create: synchronising sleeps instead of spinning.
pub const TCUDA_EVENT_BLOCKING: u32 = 2;
/// Flag of tcuda_event_create: has a handle for other processes; excludes TIMING.
pub const TCUDA_EVENT_INTERPROCESS: u32 = 4;
/// Flag of tcuda_event_create: a node of its own when recorded or waited on in a capture.
pub const TCUDA_EVENT_EXTERNAL: u32 = 8;

/// Gives another process access to an event: plain data, to be sent.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_ipc_event_handle {
    /// Opaque to the host.
    pub bytes: [u8; 64],
}

pub(super) static EVENTS: Table<Event> = Table::new(2, "event");

/// An event; it gets its device and CUevent at the first record. (torch.cuda.Event)
///
/// @param flags        TCUDA_EVENT_... combined, or 0
/// @param[out] event   the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_event_create(
    flags: u32,
    event: *mut *mut tcuda_event,
) -> tcuda_status {
    boundary(|_| {
        let event = out(event, "event")?;
        event.set(EVENTS.insert(Event::new(flags)?)? as *mut tcuda_event);
        Ok(())
    })
}

/// Recycles an event; streams that wait for it still do. (the end of a torch.cuda.Event)
///
/// @param event  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_event_destroy(event: *mut tcuda_event) -> tcuda_status {
    boundary(|_| if event.is_null() { Ok(()) } else { EVENTS.remove(event as usize, "event") })
}

/// Captures the present end of a stream's queue; a second record replaces it. The first record
/// binds the event to the stream's device. (torch.cuda.Event.record)
///
/// @param event   not NULL
/// @param stream  NULL is the current stream
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_event_record(
    event: *mut tcuda_event,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let event = EVENTS.get(event as usize, "event", call)?;
        event.record(call.gpus()?, or_current(stream, call)?)
    })
}

/// The result where the library is not initialised yet.
#[cold]
#[inline(never)]
fn query_first(call: &Call, event: &Event) -> Result<bool> {
    match call.gpus() {
        Ok(gpus) => event.query(gpus),
        Err(error) => event.unless_recorded(error, true),
    }
}

/// Has the recorded work completed? True if it was never recorded. (torch.cuda.Event.query)
///
/// @param event      not NULL
/// @param[out] done  whether it has
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_event_query(
    event: *mut tcuda_event,
    done: *mut bool,
) -> tcuda_status {
    boundary_without_guard(|call| {
        let done = out(done, "done")?;
        let event = EVENTS.get(event as usize, "event", call)?;
        match gpus::existing(call.inside()) {
            Some(gpus) => done.set(event.query(gpus)?),
            None => done.set(query_first(call, event)?),
        }
        Ok(())
    })
}

/// Waits until the recorded work has completed; returns at once if it was never recorded.
/// (torch.cuda.Event.synchronize)
///
/// @param event  not NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_event_synchronize(event: *mut tcuda_event) -> tcuda_status {
    boundary(|call| {
        let event = EVENTS.get(event as usize, "event", call)?;
        match call.gpus() {
            Ok(gpus) => event.synchronize(gpus),
            Err(error) => event.unless_recorded(error, ()),
        }
    })
}

/// tcuda_stream_wait_event, event first; no-op if it was never recorded. (torch.cuda.Event.wait)
///
/// @param event   not NULL
/// @param stream  that waits; NULL is the current stream
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_event_wait(
    event: *mut tcuda_event,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| wait_event(call, EVENTS.get(event as usize, "event", call)?, stream))
}

/// Time between two TIMING events that have completed; TCUDA_STATUS_NOT_READY before that.
/// (torch.cuda.Event.elapsed_time)
///
/// @param start            the earlier event, with TCUDA_EVENT_TIMING
/// @param end              the later event, with TCUDA_EVENT_TIMING
/// @param[out] elapsed_ms  milliseconds from `start` to `end`
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_event_elapsed_ms(
    start: *mut tcuda_event,
    end: *mut tcuda_event,
    elapsed_ms: *mut f32,
) -> tcuda_status {
    boundary(|call| {
        let elapsed_ms = out(elapsed_ms, "elapsed_ms")?;
        let start = EVENTS.get(start as usize, "start", call)?;
        let end = EVENTS.get(end as usize, "end", call)?;
        elapsed_ms.set(start.elapsed_ms(call.gpus()?, end)?);
        Ok(())
    })
}

/// Ordinal of an event's device, -1 before the first record. (torch.cuda.Event.device)
///
/// @param event        not NULL
/// @param[out] device  its ordinal, or -1
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_event_device(
    event: *mut tcuda_event,
    device: *mut i32,
) -> tcuda_status {
    boundary(|call| {
        let device = out(device, "device")?;
        device.set(EVENTS.get(event as usize, "event", call)?.device().unwrap_or(-1));
        Ok(())
    })
}

/// The CUevent, NULL before the first record; borrowed. (torch.cuda.Event.cuda_event)
///
/// @param event          not NULL
/// @param[out] cu_event  borrowed; NULL before the first record
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_event_native(
    event: *mut tcuda_event,
    cu_event: *mut *mut CUevent_st,
) -> tcuda_status {
    boundary(|call| {
        let cu_event = out(cu_event, "cu_event")?;
        cu_event.set(EVENTS.get(event as usize, "event", call)?.native());
        Ok(())
    })
}

/// Handle of an INTERPROCESS event for other processes, which open it with
/// tcuda_event_from_ipc_handle. An event that was never recorded is bound to this thread's current
/// device. Destroy the event after the others have destroyed theirs. (torch.cuda.Event.ipc_handle)
///
/// @param event        with TCUDA_EVENT_INTERPROCESS
/// @param[out] handle  plain data, to be sent to the other process
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_event_ipc_handle(
    event: *mut tcuda_event,
    handle: *mut tcuda_ipc_event_handle,
) -> tcuda_status {
    boundary(|call| {
        let handle = out(handle, "handle")?;
        let event = EVENTS.get(event as usize, "event", call)?;
        let bytes = event.ipc_handle(call.gpus()?)?;
        handle.set(tcuda_ipc_event_handle { bytes });
        Ok(())
    })
}

/// Opens another process's event, which can be waited for, queried and recorded here.
/// (torch.cuda.Event.from_ipc_handle)
///
/// @param device      ordinal of the event's device here, or TCUDA_CURRENT_DEVICE
/// @param handle      what tcuda_event_ipc_handle wrote in the other process
/// @param[out] event  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_event_from_ipc_handle(
    device: i32,
    handle: *const tcuda_ipc_event_handle,
    event: *mut *mut tcuda_event,
) -> tcuda_status {
    boundary(|call| {
        let (event, handle) = (out(event, "event")?, given(handle, "handle")?);
        let opened = Event::open(call.gpus()?, device, &handle.bytes)?;
        event.set(EVENTS.insert(opened)? as *mut tcuda_event);
        Ok(())
    })
}
