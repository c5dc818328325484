//! Section "Memory" of the header: events of the allocators, as they happen and in snapshots.

use super::boundary::{Sized_, boundary, out, struct_out};
use super::history::tcuda_frame_context;
use super::library::tcuda_destroy_fn;
use super::observer::{Registration, register, tcuda_observer};
use super::snapshot::{SNAPSHOTS, context_in, element, tcuda_memory_snapshot};
use super::status::tcuda_status;
use super::user_data::UserData;
use crate::base::error::{Error, Result};
use crate::base::frames::Stacks;
use crate::base::observers::next_number;
use crate::base::thread::try_box;
use crate::driver::sys::CUstream_st;
use crate::gpu::device::CPU;
use crate::memory::trace::listeners::{self, Listens};
use crate::memory::trace::ring::{Action, Event};
use crate::memory::trace::snapshot::{EventRange, Snapshot};
use std::ffi::{c_char, c_void};

/// What happened, by torch's names: TCUDA_ACTION_...
pub type tcuda_memory_action = i32;
/// "alloc": a block was allocated.
pub const TCUDA_ACTION_ALLOC: tcuda_memory_action = 0;
/// "free_requested": the host freed a block.
pub const TCUDA_ACTION_FREE_REQUESTED: tcuda_memory_action = 1;
/// "free_completed": the block can be allocated again.
pub const TCUDA_ACTION_FREE_COMPLETED: tcuda_memory_action = 2;
/// "segment_alloc": memory came from cuMemAlloc or another library's allocator.
pub const TCUDA_ACTION_SEGMENT_ALLOC: tcuda_memory_action = 3;
/// "segment_free": such memory goes back.
pub const TCUDA_ACTION_SEGMENT_FREE: tcuda_memory_action = 4;
/// "segment_map": memory was mapped.
pub const TCUDA_ACTION_SEGMENT_MAP: tcuda_memory_action = 5;
/// "segment_unmap": memory is unmapped.
pub const TCUDA_ACTION_SEGMENT_UNMAP: tcuda_memory_action = 6;
/// "snapshot": a snapshot was taken; later ones have this event.
pub const TCUDA_ACTION_SNAPSHOT: tcuda_memory_action = 7;
/// "oom": an allocation failed for want of memory.
pub const TCUDA_ACTION_OOM: tcuda_memory_action = 8;
/// "annotate": tcuda_memory_annotate.
pub const TCUDA_ACTION_ANNOTATE: tcuda_memory_action = 9;

const _: () = assert!(TCUDA_ACTION_ANNOTATE as usize + 1 == Action::ALL.len());

/// An event of an allocator.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_memory_event {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// First byte of the block or segment; NULL for TCUDA_ACTION_SNAPSHOT and _OOM.
    pub ptr: *mut c_void,
    /// Length: of a block as it was requested, of a segment as it is; for TCUDA_ACTION_SNAPSHOT the
    /// active bytes.
    pub bytes: u64,
    /// For TCUDA_ACTION_OOM what the driver reported as free, else 0.
    pub free_bytes: u64,
    /// Native handle of the stream; NULL: the default one.
    pub cu_stream: *mut CUstream_st,
    /// The first number of tcuda_mem_pool_id of the private pool; both are 0 if it is in none.
    pub pool_id0: u64,
    /// The second number of tcuda_mem_pool_id.
    pub pool_id1: u64,
    /// Microseconds since 1970.
    pub time_us: i64,
    /// What tcuda_frame_context_fn gave for the event; NULL: nothing, or nothing is recorded.
    pub context: *mut tcuda_frame_context,
    /// Text of tcuda_memory_metadata_set or tcuda_memory_annotate, or ""; "" for pinned memory.
    pub metadata: *const c_char,
    /// Text of tcuda_memory_compile_context_push, or ""; "" for pinned memory.
    pub compile_context: *const c_char,
    /// Ordinal; TCUDA_CPU_DEVICE for pinned memory.
    pub device: i32,
    /// TCUDA_ACTION_...
    pub action: tcuda_memory_action,
}

// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_memory_event {}

/// Called for an event. The event, its texts and its context are valid until it returns; it may
/// retain the context.
pub type tcuda_memory_event_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, event: *const tcuda_memory_event)>;

/// An event as C sees it; `stacks` has its texts.
fn event_of(
    device: i32,
    event: &Event,
    context: *mut tcuda_frame_context,
    stacks: &Stacks,
) -> tcuda_memory_event {
    let (pool_id0, pool_id1) = event.pool_id().pair();
    let is_oom = event.action == Action::OutOfMemory;
    tcuda_memory_event {
        struct_size: size_of::<tcuda_memory_event>(),
        ptr: if is_oom { std::ptr::null_mut() } else { event.address as *mut c_void },
        bytes: event.bytes,
        free_bytes: if is_oom { event.address } else { 0 },
        cu_stream: event.stream as *mut CUstream_st,
        pool_id0,
        pool_id1,
        time_us: event.time_us,
        context,
        metadata: stacks.text(event.metadata).as_ptr(),
        compile_context: stacks.text(event.compilation).as_ptr(),
        device,
        action: event.action as tcuda_memory_action,
    }
}

/// The host's function as a listener.
struct HostListener {
    callback: unsafe extern "C" fn(*mut c_void, *const tcuda_memory_event),
    user_data: UserData,
}

impl Listens for HostListener {
    fn event(&self, device: Option<i32>, event: &Event, stacks: &Stacks) {
        let context = stacks.context(event.stack);
        let context = context.map_or(std::ptr::null_mut(), |context| context.as_ptr().cast());
        let event = event_of(device.unwrap_or(CPU), event, context, stacks);
        // SAFETY: the host's own function with its own data.
        unsafe { (self.callback)(self.user_data.ptr(), &event) };
    }

    fn attached(&self) {
        self.user_data.take();
    }
}

/// Registers a function that is called for each event of the allocators: of the blocks and segments
/// of all devices, and of pinned memory, whether tcuda_memory_record_history is on or not.
/// tcuda_shutdown removes all such functions.
///
/// It is called on the thread of the event, on one thread at a time, with locks of tcuda held: the
/// events of an address come in their order, and new memory is not yet the host's. Memory that goes
/// back to the driver is still there at SEGMENT_FREE, and unmapped already at SEGMENT_UNMAP. The
/// callback must not call tcuda, which would be TCUDA_STATUS_INVALID_STATE, nor wait for a thread
/// that is in a call of tcuda. While one is registered, allocations and frees take the slow path.
/// (+: c10's attachAllocatorTraceTracker)
///
/// @param callback       not NULL
/// @param user_data      the caller's, passed to the callback; may be NULL
/// @param destroy        called with user_data once no thread can be in the callback; may be NULL
/// @param[out] observer  the caller's, to be destroyed; may be NULL: registered until
/// tcuda_shutdown
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_on_event(
    callback: tcuda_memory_event_fn,
    user_data: *mut c_void,
    destroy: tcuda_destroy_fn,
    observer: *mut *mut tcuda_observer,
) -> tcuda_status {
    boundary(|call| {
        let callback = callback.ok_or(Error::Null { name: "callback" })?;
        // Initialise: a registration ends at shutdown.
        call.gpus()?;
        let user_data = UserData::new(user_data, destroy);
        let host = try_box(HostListener { callback, user_data }, "a listener")?;
        let number = next_number();
        let attach = || listeners::attach(number, host);
        register(observer, Registration::MemoryEvents(number), attach)
    })
}

/// The history of a device in a snapshot, or of pinned memory.
fn history_of(snapshot: &Snapshot, device: i32) -> Result<&EventRange> {
    if device == CPU {
        return Ok(&snapshot.host);
    }
    let found = usize::try_from(device).ok().and_then(|index| snapshot.devices.get(index));
    found.ok_or(Error::InvalidDevice { device, count: snapshot.devices.len() as i32 })
}

/// Number of events of a device in a snapshot, or of pinned memory; 0 without history.
/// (torch.cuda.memory._snapshot)
///
/// @param snapshot    from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
/// @param device      ordinal, or TCUDA_CPU_DEVICE; others, also TCUDA_CURRENT_DEVICE, are
///                    TCUDA_STATUS_INVALID_DEVICE
/// @param[out] count  events that tcuda_memory_snapshot_event gives
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_snapshot_event_count(
    snapshot: *mut tcuda_memory_snapshot,
    device: i32,
    count: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        let snapshot = SNAPSHOTS.get(snapshot as usize, "snapshot", call)?;
        count.set(history_of(snapshot, device)?.events);
        Ok(())
    })
}

/// An event of a snapshot, whose texts and context are valid until the snapshot is destroyed.
/// (torch.cuda.memory._snapshot)
///
/// @param snapshot       from tcuda_memory_snapshot_create or tcuda_mem_pool_snapshot
/// @param device         as for tcuda_memory_snapshot_event_count
/// @param index          below the number of events; 0: the oldest
/// @param[in,out] event  start from TCUDA_INIT(tcuda_memory_event)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_snapshot_event(
    snapshot: *mut tcuda_memory_snapshot,
    device: i32,
    index: usize,
    event: *mut tcuda_memory_event,
) -> tcuda_status {
    boundary(|call| {
        let event = struct_out(event, "event")?;
        let snapshot = SNAPSHOTS.get(snapshot as usize, "snapshot", call)?;
        let found = element(snapshot.events_in(history_of(snapshot, device)?), index)?;
        let context = context_in(snapshot, found.stack);
        event.set(&event_of(device, found, context, &snapshot.stacks));
        Ok(())
    })
}
