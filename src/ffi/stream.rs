//! Section "Streams and events" of the header: streams.

use super::boundary::{Call, boundary, boundary_without_guard, out};
use super::event::{EVENTS, tcuda_event};
use super::handle::Table;
use super::library::tcuda_destroy_fn;
use super::status::tcuda_status;
use crate::base::error::{Error, Result};
use crate::base::thread::{self, Inside};
use crate::driver::sys::CUstream_st;
use crate::gpu::device::CURRENT;
use crate::gpu::event::Event;
use crate::gpu::external_registry;
use crate::gpu::gpus;
use crate::gpu::stream::Stream;
use crate::observe::turn;
use crate::ops::callback::{self, Callback};
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// An ordered queue of device work.
pub struct tcuda_stream {
    _private: [u8; 0],
}

/// Runs on a driver thread in stream order. As for host functions of CUDA, it must not call CUDA or
/// tcuda, nor wait for work of a device. A call of tcuda that waits for the device, calls the
/// driver or uses a graph returns TCUDA_STATUS_INVALID_STATE there and does nothing. So
/// tcuda_graph_destroy and tcuda_graphed_callable_destroy leave the handle valid, and tcuda_free
/// leaves the block allocated where another thread waits for the block's stream; call them again
/// from another thread.
pub type tcuda_host_fn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// The object behind a stream's handle.
pub struct StreamRef {
    stream: *const Stream,
    borrowed: bool,
}

// SAFETY: streams are shared by all threads and outlive their handles.
unsafe impl Send for StreamRef {}
// SAFETY: as above.
unsafe impl Sync for StreamRef {}

impl StreamRef {
    /// Is it a handle from _current, _default or _exchange?
    pub(super) fn is_borrowed(&self) -> bool {
        self.borrowed
    }

    #[inline]
    fn stream(&self) -> &Stream {
        // SAFETY: streams live as long as their handles and as the calls that found them.
        unsafe { &*self.stream }
    }
}

pub(super) static STREAMS: Table<StreamRef> = Table::new(1, "stream");

/// The stream of a handle that may not be NULL.
#[inline]
pub(super) fn required<'a>(
    stream: *mut tcuda_stream,
    name: &'static str,
    call: &'a Call,
) -> Result<&'a Stream> {
    Ok(STREAMS.get(stream as usize, name, call)?.stream())
}

/// [`required`] without an error: `None` for an invalid handle.
#[inline(always)]
pub(super) fn known(stream: *mut tcuda_stream, inside: &Inside) -> Option<&Stream> {
    STREAMS.known(stream as usize, inside).map(StreamRef::stream)
}

/// The stream of a handle; NULL is `None`: a current one.
#[inline]
pub(super) fn optional(stream: *mut tcuda_stream, call: &Call) -> Result<Option<&Stream>> {
    if stream.is_null() { Ok(None) } else { required(stream, "stream", call).map(Some) }
}

/// The stream of a handle; NULL is the current one of the current device.
#[inline(always)]
pub(super) fn or_current(stream: *mut tcuda_stream, call: &Call) -> Result<&Stream> {
    match optional(stream, call)? {
        Some(stream) => Ok(stream),
        None => Ok(call.gpus()?.device(crate::gpu::device::CURRENT)?.streams.current()),
    }
}

pub(super) fn own(stream: &Stream) -> Result<*mut tcuda_stream> {
    let handle = STREAMS.insert(StreamRef { stream, borrowed: false })?;
    stream.add_handle();
    Ok(handle as *mut tcuda_stream)
}

/// The one borrowed handle of a stream.
#[inline]
pub(super) fn borrow(stream: &Stream) -> Result<*mut tcuda_stream> {
    let known = stream.handle.load(Ordering::Acquire);
    if known != 0 { Ok(known as *mut tcuda_stream) } else { first_borrow(stream) }
}

static FORGET_HANDLE: external_registry::ForgetHandle =
    |handle| drop(STREAMS.remove(handle, "stream"));

#[cold]
fn first_borrow(stream: &Stream) -> Result<*mut tcuda_stream> {
    let new = STREAMS.insert(StreamRef { stream, borrowed: true })?;
    external_registry::FORGET_HANDLE.install(Some(&FORGET_HANDLE));
    match stream.handle.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(new as *mut tcuda_stream),
        Err(first) => {
            STREAMS.remove(new, "stream")?;
            Ok(first as *mut tcuda_stream)
        }
    }
}

/// One of 32 pooled streams per priority, round robin: the 33rd is the first again.
/// (torch.cuda.Stream)
///
/// @param device       ordinal, or TCUDA_CURRENT_DEVICE; INVALID_DEVICE for other negative ones
/// @param priority     0, or lower for more urgent; clamped to tcuda_stream_priority_range
/// @param[out] stream  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_create(
    device: i32,
    priority: i32,
    stream: *mut *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = out(stream, "stream")?;
        let device = call.gpus()?.device(device)?;
        stream.set(own(device.streams.next(device, priority)?)?);
        Ok(())
    })
}

/// Gives a stream back to its pool; queued work continues. A no-op on borrowed handles.
/// (the end of a torch.cuda.Stream)
///
/// @param stream  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_stream_destroy(stream: *mut tcuda_stream) -> tcuda_status {
    boundary(|call| {
        if stream.is_null() {
            return Ok(());
        }
        let handle = STREAMS.get(stream as usize, "stream", call)?;
        if handle.borrowed {
            return Ok(());
        }
        // The handle's object is removed with it; the stream itself lives on.
        let wrapped = handle.stream;
        STREAMS.remove(stream as usize, "stream")?;
        // SAFETY: found by this call, which is not over.
        unsafe { &*wrapped }.remove_handle(call.gpus()?)
    })
}

/// Wraps a native stream, which must outlive the handle and is not destroyed with it. Before its
/// last handle is destroyed the stream must no longer be any thread's current stream: memory that
/// was used on it then waits for the work that it holds at that moment, and for nothing later. When
/// the last handle from this function is destroyed, the library forgets the stream, and handles of
/// it from tcuda_stream_current and tcuda_stream_exchange become stale.
/// (torch.cuda.ExternalStream, torch.cuda.get_stream_from_external)
///
/// @param device     the device of the stream, whose primary context it must belong to
/// @param cu_stream  may be NULL: the device's default stream
/// @param[out] stream  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_from_external(
    device: i32,
    cu_stream: *mut CUstream_st,
    stream: *mut *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = out(stream, "stream")?;
        let gpus = call.gpus()?;
        let device = gpus.device(device)?;
        stream.set(own(device.streams.external(device, cu_stream)?)?);
        device.streams.forget_ended(gpus, false);
        Ok(())
    })
}

/// This thread's current stream of a device; borrowed. Compare streams by their ids.
/// (torch.cuda.current_stream)
///
/// @param device       ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] stream  borrowed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_current(
    device: i32,
    stream: *mut *mut tcuda_stream,
) -> tcuda_status {
    let block = thread::block();
    // A handle is a number: returning this thread's cached one does not require to be inside.
    let is_known = gpus::is_present(block.known_in.load(Ordering::Relaxed));
    if is_known && matches!(device, CURRENT | 0) && !stream.is_null() {
        let handle = block.known_stream.load(Ordering::Relaxed);
        // SAFETY: not NULL, and writable by the caller's promise.
        unsafe { stream.write_unaligned(handle as *mut tcuda_stream) };
        return tcuda_status::Ok;
    }
    find_current(device, stream)
}

#[inline(never)]
fn find_current(device: i32, stream: *mut *mut tcuda_stream) -> tcuda_status {
    boundary(|call| {
        let stream = out(stream, "stream")?;
        let gpus = call.gpus()?;
        let handle = borrow(gpus.device(device)?.streams.current())?;
        // A backend that schedules threads must see each call.
        if gpus.devices.len() == 1 && !turn::is_installed() {
            let block = thread::block();
            block.known_stream.store(handle as usize, Ordering::Relaxed);
            block.known_in.store(gpus.generation, Ordering::Relaxed);
        }
        stream.set(handle);
        Ok(())
    })
}

/// The device's default (legacy NULL) stream; borrowed. (torch.cuda.default_stream)
///
/// @param device       ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] stream  borrowed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_default(
    device: i32,
    stream: *mut *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = out(stream, "stream")?;
        stream.set(borrow(call.gpus()?.device(device)?.streams.default())?);
        Ok(())
    })
}

/// Makes a stream and its device current. Returns what `keep` makes of the previous stream, and the
/// previous device.
#[inline(always)]
pub(super) fn make_current<R>(
    call: &Call,
    stream: &Stream,
    keep: impl FnOnce(&Stream) -> Result<R>,
) -> Result<(R, i32)> {
    let gpus = call.gpus()?;
    let (before, own) = (gpus.current_device()?, stream.device());
    let kept = gpus.device_of(stream)?.streams.replace_current(stream, |displaced| {
        let kept = keep(displaced)?;
        if before != own {
            gpus.set_current_device(own)?;
        }
        Ok(kept)
    })?;
    Ok((kept, before))
}

/// Makes a stream and its device current for this thread. (torch.cuda.set_stream)
///
/// @param stream  NULL: the one that is current, which changes nothing, also without a driver
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_set_current(stream: *mut tcuda_stream) -> tcuda_status {
    boundary(|call| match optional(stream, call)? {
        Some(stream) => make_current(call, stream, |_| Ok(())).map(|_| ()),
        None => Ok(()),
    })
}

/// The current stream of the current device; `None` where there is no device.
#[cold]
#[inline(never)]
fn current_with_device(call: &Call) -> Result<Option<&Stream>> {
    let Some(gpus) = call.gpus_if_any()? else { return Ok(None) };
    Ok(Some(gpus.device(CURRENT)?.streams.current()))
}

/// tcuda_stream_set_current that also returns what was current before. Undo it by
/// tcuda_stream_set_current(previous), then tcuda_device_set(previous_device) if that is another
/// device than the stream's. (torch.cuda.stream, torch.cuda.StreamContext)
///
/// @param stream                NULL: the one that is current, which changes nothing
/// @param[out] previous         the current stream of the stream's device, borrowed; without a
///                              device NULL, as `stream` must be then
/// @param[out] previous_device  the current device; without one -1
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_exchange(
    stream: *mut tcuda_stream,
    previous: *mut *mut tcuda_stream,
    previous_device: *mut i32,
) -> tcuda_status {
    boundary_without_guard(|call| {
        let previous = out(previous, "previous")?;
        let previous_device = out(previous_device, "previous_device")?;
        let stream = match optional(stream, call)? {
            Some(stream) => stream,
            None => match current_with_device(call)? {
                Some(stream) => stream,
                None => {
                    previous.set(std::ptr::null_mut());
                    previous_device.set(CURRENT);
                    return Ok(());
                }
            },
        };
        let (displaced, device) = make_current(call, stream, borrow)?;
        previous.set(displaced);
        previous_device.set(device);
        Ok(())
    })
}

/// Has all queued work finished? (torch.cuda.Stream.query)
///
/// @param stream     NULL is the current stream
/// @param[out] done  whether it has
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_query(
    stream: *mut tcuda_stream,
    done: *mut bool,
) -> tcuda_status {
    boundary(|call| {
        let done = out(done, "done")?;
        done.set(or_current(stream, call)?.query(call.gpus()?)?);
        Ok(())
    })
}

/// Waits for all queued work. TCUDA_STATUS_WOULD_SYNCHRONIZE in mode TCUDA_SYNC_DEBUG_ERROR.
/// (torch.cuda.Stream.synchronize)
///
/// @param stream  NULL is the current stream
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_synchronize(stream: *mut tcuda_stream) -> tcuda_status {
    boundary(|call| or_current(stream, call)?.synchronize_for_host(call.gpus()?))
}

/// Makes a stream wait for an event. No-op, without a driver, if the event was never recorded.
pub(super) fn wait_event(call: &Call, event: &Event, stream: *mut tcuda_stream) -> Result<()> {
    match call.gpus() {
        Ok(gpus) => event.wait(gpus, or_current(stream, call)?),
        Err(error) => {
            optional(stream, call)?;
            event.unless_recorded(error, ())
        }
    }
}

/// Work queued from now on waits for an event; the host does not. No-op if it was never recorded.
/// (torch.cuda.Stream.wait_event)
///
/// @param stream  that waits; NULL is the current stream
/// @param event   not NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_wait_event(
    stream: *mut tcuda_stream,
    event: *mut tcuda_event,
) -> tcuda_status {
    boundary(|call| wait_event(call, EVENTS.get(event as usize, "event", call)?, stream))
}

/// Work queued from now on waits for what `other` holds now; any two devices.
/// (torch.cuda.Stream.wait_stream)
///
/// @param stream, other  NULL: the current stream of the current device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_wait_stream(
    stream: *mut tcuda_stream,
    other: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let (stream, other) = (or_current(stream, call)?, or_current(other, call)?);
        stream.wait_stream_for_host(call.gpus()?, other)
    })
}

/// tcuda_event_record, stream first. (torch.cuda.Stream.record_event)
///
/// @param stream  NULL is the current stream
/// @param event   not NULL; a second record replaces the first
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_record_event(
    stream: *mut tcuda_stream,
    event: *mut tcuda_event,
) -> tcuda_status {
    boundary(|call| {
        let event = EVENTS.get(event as usize, "event", call)?;
        event.record(call.gpus()?, or_current(stream, call)?)
    })
}

/// Creates an event and records it: tcuda_event_create, then tcuda_event_record.
/// (torch.cuda.Stream.record_event without an event)
///
/// @param stream      NULL is the current stream
/// @param flags       TCUDA_EVENT_... combined; 0 is torch's event
/// @param[out] event  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_record_new_event(
    stream: *mut tcuda_stream,
    flags: u32,
    event: *mut *mut tcuda_event,
) -> tcuda_status {
    boundary(|call| {
        let event = out(event, "event")?;
        let made = Event::new(flags)?;
        made.record(call.gpus()?, or_current(stream, call)?)?;
        event.set(EVENTS.insert(made)? as *mut tcuda_event);
        Ok(())
    })
}

/// Queues a call of a host function, which runs once the stream gets there. `destroy` runs after
/// it, and also when the function never runs because the device was lost. In a capture of a
/// tcuda_graph the function runs at each replay, and `destroy` once: when no graph contains it any
/// more, neither this one nor one that was updated by it, and the replays are over. A capture that
/// was begun without tcuda refuses it with TCUDA_STATUS_CAPTURING. (+)
///
/// @param stream     NULL is the current stream
/// @param callback   the host function
/// @param user_data  the caller's, passed to the callback; may be NULL
/// @param destroy    called with user_data, once; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_add_callback(
    stream: *mut tcuda_stream,
    callback: tcuda_host_fn,
    user_data: *mut c_void,
    destroy: tcuda_destroy_fn,
) -> tcuda_status {
    boundary(|call| {
        let function = callback.ok_or(Error::Null { name: "callback" })?;
        let stream = or_current(stream, call)?;
        callback::add(call.gpus()?, stream, Callback { function, user_data, destroy })
    })
}

/// Ordinal of a stream's device. (torch.cuda.Stream.device, device_index)
///
/// @param stream       NULL is the current stream
/// @param[out] device  its ordinal
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_device(
    stream: *mut tcuda_stream,
    device: *mut i32,
) -> tcuda_status {
    boundary(|call| {
        let device = out(device, "device")?;
        device.set(or_current(stream, call)?.device());
        Ok(())
    })
}

/// Priority that the stream has. (torch.cuda.Stream.priority)
///
/// @param stream         NULL is the current stream
/// @param[out] priority  0, or less if it is more urgent
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_priority(
    stream: *mut tcuda_stream,
    priority: *mut i32,
) -> tcuda_status {
    boundary(|call| {
        let priority = out(priority, "priority")?;
        priority.set(or_current(stream, call)?.priority());
        Ok(())
    })
}

/// torch's id of a stream: 0 for default streams; equal for equal streams of a device.
/// (torch.cuda.Stream.stream_id)
///
/// @param stream   NULL is the current stream
/// @param[out] id  0 for default streams
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_id(stream: *mut tcuda_stream, id: *mut i64) -> tcuda_status {
    boundary(|call| {
        let id = out(id, "id")?;
        id.set(or_current(stream, call)?.id());
        Ok(())
    })
}

/// The CUstream, NULL for default streams; borrowed. (torch.cuda.Stream.cuda_stream)
///
/// @param stream          NULL is the current stream
/// @param[out] cu_stream  borrowed; NULL for default streams
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_native(
    stream: *mut tcuda_stream,
    cu_stream: *mut *mut CUstream_st,
) -> tcuda_status {
    boundary(|call| {
        let cu_stream = out(cu_stream, "cu_stream")?;
        cu_stream.set(or_current(stream, call)?.native());
        Ok(())
    })
}

/// Priorities of a device: least urgent (0) and most urgent (0 to -3).
/// (torch.cuda.Stream.priority_range)
///
/// @param device         ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] least     0
/// @param[out] greatest  0 to -3
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_priority_range(
    device: i32,
    least: *mut i32,
    greatest: *mut i32,
) -> tcuda_status {
    boundary(|call| {
        let (least, greatest) = (out(least, "least")?, out(greatest, "greatest")?);
        let device = call.gpus()?.device(device)?;
        let range = device.streams.priority_range(device)?;
        least.set(range.0);
        greatest.set(range.1);
        Ok(())
    })
}
