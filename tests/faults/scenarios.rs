//! What hosts do, each ending at its first failure after destroying what it made.

mod captures;
mod comm;
mod communicators;
mod direct;
mod graphs;
mod green;
mod history;
mod ipc;
mod jit;
mod limits;
mod memory;
mod native_stream;
mod random;
mod sanitizer;
pub mod tools;
mod torch;
mod work;

use crate::host::{CURRENT, Done, Event, Failed, Memory, Stream, call, expect, fill, problem};
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, Ordering};
use tcuda::ffi::device::*;
use tcuda::ffi::event::*;
use tcuda::ffi::library::*;
use tcuda::ffi::memory::*;
use tcuda::ffi::stream::*;

/// A piece of a host's life, on a machine with these options.
pub struct Scenario {
    pub name: &'static str,
    pub options: &'static str,
    pub run: fn() -> Done,
    /// Handles that it leaves on purpose.
    pub leaves: usize,
    /// Does it reset accumulated statistics?
    pub resets: bool,
}

impl Scenario {
    pub fn devices(&self) -> i32 {
        if self.options.contains("devices=2") { 2 } else { 1 }
    }
}

const fn on(options: &'static str, name: &'static str, run: fn() -> Done) -> Scenario {
    Scenario { name, options, run, leaves: 0, resets: false }
}

const ONE: &str = "memory=256MiB";
const SMALL: &str = "memory=64MiB";
const UNMAPPED: &str = "memory=256MiB,virtual_memory=none";
const SMALL_UNMAPPED: &str = "memory=64MiB,virtual_memory=none";
const TWO: &str = "devices=2,memory=128MiB";
const TWO_APART: &str = "devices=2,memory=128MiB,peers=none";
const LATE: &str = "memory=256MiB,schedule=threads";
const TWO_LATE: &str = "devices=2,memory=128MiB,schedule=threads";

pub const SCENARIOS: &[Scenario] = &[
    on(TWO, "devices", devices),
    on(ONE, "pooled_streams", pooled_streams),
    on(ONE, "external_streams", external_streams),
    on(ONE, "per_thread_streams", per_thread_streams),
    on(ONE, "events", events),
    on(TWO, "events_of_two", events_of_two),
    on(ONE, "callbacks", callbacks),
    on(LATE, "late_callbacks", callbacks),
    on(ONE, "log_callback", log_callback),
    Scenario { leaves: 3, ..on(ONE, "live_handles", live_handles) },
    on(ONE, "copies", work::copies),
    on(TWO, "peers", work::peers),
    on(TWO_APART, "peers_apart", work::peers),
    on(ONE, "fills", work::fills),
    on(LATE, "late_work", work::fills),
    on(ONE, "captures", captures::captures),
    on(LATE, "late_captures", captures::captures),
    on(ONE, "graphs", graphs::graphs),
    on(LATE, "late_graphs", graphs::graphs),
    on(UNMAPPED, "graphs_in_segments", graphs::graphs),
    on(ONE, "pinned_in_graphs", graphs::pinned),
    on(ONE, "checkpoint", work::checkpoint),
    on(ONE, "stream_routes", work::stream_routes),
    on(ONE, "registered", work::registered),
    on(ONE, "managed", work::managed),
    on(LATE, "late_managed", work::managed),
    on(ONE, "green_contexts", green::contexts),
    on(TWO_LATE, "late_green_contexts", green::contexts),
    on(ONE, "files", work::files),
    on(LATE, "late_files", work::files),
    on(ONE, "hooks_of_graphs", graphs::hooks),
    on(LATE, "late_hooks_of_graphs", graphs::hooks),
    on(ONE, "conditional_nodes", graphs::conditional_nodes),
    on(LATE, "late_conditional_nodes", graphs::conditional_nodes),
    on(ONE, "data_of_graphs", graphs::data),
    on(LATE, "late_data_of_graphs", graphs::data),
    on(ONE, "functions_in_graphs", graphs::functions),
    on(LATE, "late_functions_in_graphs", graphs::functions),
    on(ONE, "random_in_graphs", graphs::random),
    on(ONE, "graphed_callables", graphs::callables),
    on(LATE, "late_graphed_callables", graphs::callables),
    on(ONE, "exports", ipc::exports),
    on(UNMAPPED, "exports_of_segments", ipc::exports),
    on(ONE, "threads", work::threads),
    on(ONE, "threads_at_once", work::threads_at_once),
    on(LATE, "late_threads_at_once", work::threads_at_once),
    on(ONE, "record_stream", memory::record_stream),
    on(LATE, "late_record_stream", memory::record_stream),
    on(ONE, "growth", memory::growth),
    on(ONE, "aliases", memory::aliases),
    on(SMALL, "aliases_of_all", memory::aliases),
    on(LATE, "late_aliases", memory::aliases),
    on(ONE, "sharing", memory::sharing),
    on(SMALL, "sharing_of_all", memory::sharing),
    on(LATE, "late_sharing", memory::sharing),
    on(ONE, "history", history::history),
    on(SMALL, "out_of_memory", memory::out_of_memory),
    on(SMALL, "reclaim", memory::reclaim),
    on(TWO, "empty_cache", memory::empty_cache),
    on(ONE, "allocations", memory::allocations),
    Scenario { resets: true, ..on(ONE, "statistics", memory::statistics) },
    on(UNMAPPED, "record_stream_in_segments", memory::record_stream),
    on(UNMAPPED, "growth_in_segments", memory::growth),
    on(SMALL_UNMAPPED, "reclaim_in_segments", memory::reclaim),
    on(UNMAPPED, "allocations_in_segments", memory::allocations),
    on(SMALL, "limits", limits::limits),
    on(SMALL, "observers", limits::observers),
    on(SMALL, "uncached", direct::uncached),
    on(SMALL, "driver_pool", direct::driver_pool),
    on(LATE, "late_driver_pool", direct::driver_pool),
    on(SMALL, "pluggable", direct::pluggable),
    on(ONE, "native_stream", native_stream::free_on),
    on(UNMAPPED, "native_stream_in_segments", native_stream::free_on),
    on(ONE, "torch", torch::blocks_and_graphs),
    on(LATE, "late_torch", torch::blocks_and_graphs),
    on(ONE, "random", random::fills),
    on(LATE, "late_random", random::fills),
    on(TWO, "communicators", communicators::communicators),
    on(TWO_LATE, "late_communicators", communicators::communicators),
    on(ONE, "capsules", random::capsules),
    on(TWO, "collectives", comm::verbs),
    on(TWO_APART, "collectives_apart", comm::verbs),
    on(TWO, "coalesced_collectives", comm::coalesced),
    on(TWO_APART, "coalesced_collectives_apart", comm::coalesced),
    on(TWO, "collectives_into", comm::into),
    on(TWO_APART, "collectives_into_apart", comm::into),
    on(TWO, "odd_collectives", comm::odd),
    on(TWO_APART, "odd_collectives_apart", comm::odd),
    on(TWO_LATE, "late_collectives", comm::verbs),
    on(TWO, "captured_collectives", comm::captured),
    on(ONE, "ranges", tools::ranges),
    on(LATE, "late_ranges", tools::ranges),
    on(ONE, "ranges_of_graphs", tools::ranges_of_graphs),
    on(LATE, "late_ranges_of_graphs", tools::ranges_of_graphs),
    on(TWO, "telemetry", tools::telemetry),
    on(TWO, "blas", tools::blas),
    on(ONE, "functions", jit::functions),
    on(ONE, "linked_kernels", jit::linked),
    on(ONE, "sanitizer", sanitizer::sanitizer),
    on(LATE, "late_sanitizer", sanitizer::sanitizer),
    on(TWO, "watched_collectives", || sanitizer::watched(comm::odd)),
    on(LATE, "watched_record_stream", || sanitizer::watched(memory::record_stream)),
    on(ONE, "watched_torch", || sanitizer::watched(torch::blocks_and_graphs)),
];

fn devices() -> Done {
    let (mut flag, mut count, mut device, mut other) = (false, 0, 0, 0);
    let mut text = [0 as c_char; 300];
    call!(tcuda_is_available(&mut flag))?;
    call!(tcuda_init())?;
    call!(tcuda_is_initialized(&mut flag))?;
    // A thread's current device outlives a shutdown.
    call!(tcuda_device_set(0))?;
    call!(tcuda_device_count(&mut count))?;
    call!(tcuda_device_name(0, text.as_mut_ptr(), text.len(), null_mut()))?;
    call!(tcuda_device_capability(1, &mut device, &mut other))?;
    // SAFETY: plain data, for which zero is a value.
    let mut info: tcuda_device_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<tcuda_device_info>();
    call!(tcuda_device_properties(0, &mut info))?;
    call!(tcuda_arch_list(text.as_mut_ptr(), text.len(), null_mut()))?;
    call!(tcuda_gencode_flags(text.as_mut_ptr(), text.len(), null_mut()))?;
    call!(tcuda_device_exchange(1, &mut device))?;
    call!(tcuda_device_current(&mut other))?;
    if (count, device, other) != (2, 0, 1) {
        problem(format!("{count} devices, device {device} was current, {other} is"));
    }
    call!(tcuda_device_synchronize(1))?;
    call!(tcuda_device_set(0))?;
    call!(tcuda_stream_priority_range(0, &mut device, &mut other))?;
    let (mut free, mut total) = (0, 0);
    call!(tcuda_memory_info(1, &mut free, &mut total))
}

fn pooled_streams() -> Done {
    let streams = [Stream::new(0, 0)?, Stream::new(0, -1)?, Stream::new(-1, -100)?];
    let (mut done, mut id, mut native) = (false, 0, null_mut());
    let (mut previous, mut device) = (null_mut(), 0);
    for stream in &streams {
        call!(tcuda_stream_id(stream.0, &mut id))?;
        call!(tcuda_stream_native(stream.0, &mut native))?;
        call!(tcuda_stream_exchange(stream.0, &mut previous, &mut device))?;
        call!(tcuda_stream_wait_stream(stream.0, streams[0].0))?;
        call!(tcuda_stream_query(stream.0, &mut done))?;
        stream.synchronize()?;
    }
    call!(tcuda_stream_current(0, &mut previous))?;
    call!(tcuda_stream_default(0, &mut previous))?;
    call!(tcuda_stream_set_current(previous))
}

/// A stream of the host's own, by the driver.
struct Native(*mut c_void);

impl Native {
    fn new() -> Result<Native, Failed> {
        call!(tcuda_device_set(0))?;
        let mut stream = null_mut();
        let table = tcuda::driver::sim::table();
        if let Some(create) = table.ok().and_then(|table| table.cuStreamCreateWithPriority) {
            // SAFETY: `stream` is writable, and the device's context is current.
            if unsafe { create(&mut stream, 1, 0) } != 0 {
                problem("the host cannot create its own stream".into());
            }
        }
        Ok(Native(stream.cast()))
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        let table = tcuda::driver::sim::table();
        if let Some(destroy) = table.ok().and_then(|table| table.cuStreamDestroy) {
            // SAFETY: created by `new`, and destroyed once.
            unsafe { destroy(self.0.cast()) };
        }
    }
}

fn external_streams() -> Done {
    let native = Native::new()?;
    let stream = Stream::external(0, native.0)?;
    let again = Stream::external(0, native.0)?;
    let own = Stream::new(0, 0)?;
    let memory = Memory::new(100_000, 0, own.0)?;
    fill(memory.0, &[1], 100_000, own.0)?;
    call!(tcuda_stream_wait_stream(stream.0, own.0))?;
    call!(tcuda_record_stream(memory.0, stream.0))?;
    let other = Memory::new(3000, 0, stream.0)?;
    fill(other.0, &[2, 3], 1500, stream.0)?;
    expect(other.0, &[2, 3], 1500, again.0)?;
    drop(again);
    drop(stream);
    drop(memory);
    let memory = Memory::new(100_000, 0, own.0)?;
    fill(memory.0, &[4], 100_000, own.0)?;
    expect(memory.0, &[4], 100_000, own.0)
}

fn per_thread_streams() -> Done {
    let stream = Stream::external(0, std::ptr::without_provenance_mut(2))?;
    let memory = Memory::new(70_000, 0, stream.0)?;
    fill(memory.0, &[7, 8, 9, 10], 17_500, stream.0)?;
    let event = Event::new(0)?;
    call!(tcuda_event_record(event.0, stream.0))?;
    call!(tcuda_event_wait(event.0, CURRENT))?;
    expect(memory.0, &[7, 8, 9, 10], 17_500, stream.0)
}

fn events() -> Done {
    let (first, last, plain) = (Event::new(1)?, Event::new(3)?, Event::new(0)?);
    let stream = Stream::new(0, 0)?;
    let (mut done, mut elapsed, mut device, mut native) = (false, 0.0, 0, null_mut());
    call!(tcuda_event_query(first.0, &mut done))?;
    call!(tcuda_event_wait(plain.0, stream.0))?;
    for _ in 0..2 {
        call!(tcuda_event_record(first.0, stream.0))?;
        call!(tcuda_stream_record_event(stream.0, plain.0))?;
        call!(tcuda_stream_wait_event(CURRENT, plain.0))?;
        call!(tcuda_event_record(last.0, CURRENT))?;
    }
    call!(tcuda_event_synchronize(last.0))?;
    call!(tcuda_event_query(last.0, &mut done))?;
    call!(tcuda_event_elapsed_ms(first.0, last.0, &mut elapsed))?;
    call!(tcuda_event_device(last.0, &mut device))?;
    call!(tcuda_event_native(last.0, &mut native))?;
    drop(first);
    let again = Event::new(1)?;
    call!(tcuda_event_record(again.0, stream.0))?;
    stream.synchronize()
}

fn events_of_two() -> Done {
    let streams = [Stream::new(0, 0)?, Stream::new(1, 0)?];
    let events = [Event::new(0)?, Event::new(0)?];
    let memory = Memory::new(5000, 1, streams[1].0)?;
    call!(tcuda_event_record(events[0].0, streams[0].0))?;
    call!(tcuda_event_wait(events[0].0, streams[1].0))?;
    fill(memory.0, &[3], 5000, streams[1].0)?;
    call!(tcuda_event_record(events[1].0, streams[1].0))?;
    call!(tcuda_event_wait(events[1].0, streams[0].0))?;
    call!(tcuda_stream_wait_stream(streams[0].0, streams[1].0))?;
    expect(memory.0, &[3], 5000, streams[1].0)?;
    call!(tcuda_event_synchronize(events[1].0))
}

/// Callbacks that the library took and that were destroyed; calls of them.
static TAKEN: AtomicI64 = AtomicI64::new(0);
static DESTROYED: AtomicI64 = AtomicI64::new(0);

unsafe extern "C" fn on_call(_user_data: *mut c_void) {}

unsafe extern "C" fn on_destroy(_user_data: *mut c_void) {
    DESTROYED.fetch_add(1, Ordering::Relaxed);
}

/// After a shutdown every callback that was taken is destroyed, once, and no other.
pub fn check_callbacks() {
    let (taken, destroyed) =
        (TAKEN.swap(0, Ordering::Relaxed), DESTROYED.swap(0, Ordering::Relaxed));
    if taken != destroyed {
        problem(format!("{taken} callbacks were taken, {destroyed} destroyed"));
    }
}

fn take(added: Done) -> Done {
    if added.is_ok() {
        TAKEN.fetch_add(1, Ordering::Relaxed);
    }
    added
}

fn callbacks() -> Done {
    let stream = Stream::new(0, 0)?;
    for _ in 0..6 {
        let data = null_mut();
        take(call!(tcuda_stream_add_callback(stream.0, Some(on_call), data, Some(on_destroy))))?;
    }
    take(call!(tcuda_stream_add_callback(CURRENT, Some(on_call), null_mut(), Some(on_destroy))))?;
    stream.synchronize()?;
    call!(tcuda_device_synchronize(0))
}

unsafe extern "C" fn on_line(_data: *mut c_void, _level: tcuda_log_level, _line: *const c_char) {}

fn log_callback() -> Done {
    let (level, data) = (4, null_mut());
    take(call!(tcuda_set_log_callback(level, Some(on_line), data, Some(on_destroy))))?;
    let logged = log_something();
    // It stays when it cannot be replaced: with the fault gone it can.
    if call!(tcuda_set_log_callback(0, None, null_mut(), None)).is_err() {
        let _ = call!(tcuda_backend_faults(std::ptr::null()));
        call!(tcuda_set_log_callback(0, None, null_mut(), None))?;
    }
    logged
}

fn log_something() -> Done {
    let memory = Memory::new(5 << 20, 0, CURRENT)?;
    fill(memory.0, &[1], 9000, CURRENT)?;
    let level = 3;
    take(call!(tcuda_set_log_callback(level, Some(on_line), null_mut(), Some(on_destroy))))?;
    expect(memory.0, &[1], 9000, CURRENT)
}

fn live_handles() -> Done {
    let stream = Stream::new(0, 0)?;
    let native = std::mem::ManuallyDrop::new(Stream::new(0, 0)?);
    let event = std::mem::ManuallyDrop::new(Event::new(0)?);
    call!(tcuda_event_record(event.0, native.0))?;
    let mut allocation = null_mut();
    call!(tcuda_allocation_create(50_000, 0, stream.0, &mut allocation))?;
    let mut memory = null_mut();
    call!(tcuda_allocation_pointer(allocation, &mut memory))?;
    fill(memory, &[1], 50_000, native.0)?;
    let mut done = false;
    call!(tcuda_stream_query(native.0, &mut done))
}
