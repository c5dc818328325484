//! The calls of the library, as C makes them: handles are numbers, outcomes are statuses.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use tcuda::driver::sys::CUstream_st;
use tcuda::ffi::event::*;
use tcuda::ffi::memory::*;
use tcuda::ffi::snapshot::*;
use tcuda::ffi::statistics::*;
use tcuda::ffi::status::*;
use tcuda::ffi::stream::*;
use tcuda::ffi::{copy, device, library, limits};

/// A handle, or a device address; 0 is NULL.
pub type Handle = usize;

pub const OK: i32 = 0;
pub const INVALID_POINTER: i32 = 3;
pub const NOT_READY: i32 = 6;
pub const OUT_OF_MEMORY: i32 = 20;
pub const DEVICE_LOST: i32 = 41;

/// A status that is not OK, with its sentence.
#[derive(Debug, Clone)]
pub struct Failure {
    pub status: i32,
    pub text: String,
}

pub type Outcome<T> = Result<T, Failure>;

fn done(status: tcuda_status) -> Outcome<()> {
    let status = status as i32;
    if status == OK {
        return Ok(());
    }
    // SAFETY: a NUL-terminated text, valid until this thread's next failure.
    let text = unsafe { CStr::from_ptr(library::tcuda_last_error()) };
    Err(Failure { status, text: text.to_string_lossy().into_owned() })
}

/// A call whose last argument is one output, which a failure leaves as it was.
macro_rules! get {
    ($initial:expr, $function:ident($($argument:expr),*)) => {{
        let mut value = $initial;
        // SAFETY: handles are checked by the library; the output is writable.
        let outcome = done(unsafe { $function($($argument,)* &mut value) });
        assert!(outcome.is_ok() || value == $initial, "an output of a failed call was written");
        outcome.map(|()| value)
    }};
}

/// What an output is before a call: nothing that a call would give.
const UNTOUCHED: usize = 0x5a5a_5a5a;

macro_rules! call {
    ($function:expr; $($argument:expr),*) => {
        // SAFETY: handles are checked by the library; ranges are the model's own.
        done(unsafe { $function($($argument),*) })
    };
}

fn stream(handle: Handle) -> *mut tcuda_stream {
    handle as *mut tcuda_stream
}

fn event(handle: Handle) -> *mut tcuda_event {
    handle as *mut tcuda_event
}

pub fn select(options: &str) -> Outcome<()> {
    let options = CString::new(options).unwrap();
    call!(library::tcuda_backend_select; c"sim".as_ptr(), options.as_ptr())
}

pub fn configure(text: &str) {
    let text = CString::new(text).unwrap();
    call!(limits::tcuda_allocator_config_set; text.as_ptr()).unwrap();
}

pub fn shutdown() -> usize {
    let mut live = 0;
    call!(library::tcuda_shutdown; &mut live).unwrap();
    live
}

/// Rules of failures, instead of those that are set; "" takes them back.
pub fn faults(rules: &str) {
    let rules = CString::new(rules).unwrap();
    call!(library::tcuda_backend_faults; rules.as_ptr()).unwrap();
}

/// How often rules have fired.
pub fn fault_count() -> u64 {
    use library::tcuda_backend_fault_count;
    get!(0, tcuda_backend_fault_count()).unwrap()
}

pub fn device_set(device: i32) -> Outcome<()> {
    done(device::tcuda_device_set(device))
}

pub fn device_current() -> i32 {
    use device::tcuda_device_current;
    get!(-2, tcuda_device_current()).unwrap()
}

pub fn device_synchronize(device: i32) -> Outcome<()> {
    done(device::tcuda_device_synchronize(device))
}

pub fn can_access_peer(device: i32, peer: i32) -> bool {
    use device::tcuda_device_can_access_peer;
    get!(false, tcuda_device_can_access_peer(device, peer)).unwrap()
}

pub fn enable_peer_access(device: i32, peer: i32) -> Outcome<()> {
    done(device::tcuda_device_enable_peer_access(device, peer))
}

pub fn device_of(address: u64) -> i32 {
    use device::tcuda_device_of;
    get!(-2, tcuda_device_of(address as *const c_void)).unwrap()
}

pub fn stream_create(device: i32, priority: i32) -> Outcome<Handle> {
    get!(UNTOUCHED as *mut tcuda_stream, tcuda_stream_create(device, priority))
        .map(|found| found as Handle)
}

pub fn stream_from_external(device: i32, native: usize) -> Outcome<Handle> {
    let native = native as *mut CUstream_st;
    get!(UNTOUCHED as *mut tcuda_stream, tcuda_stream_from_external(device, native))
        .map(|found| found as Handle)
}

pub fn stream_default(device: i32) -> Handle {
    get!(UNTOUCHED as *mut tcuda_stream, tcuda_stream_default(device)).unwrap() as Handle
}

pub fn stream_native(handle: Handle) -> usize {
    get!(UNTOUCHED as *mut CUstream_st, tcuda_stream_native(stream(handle))).unwrap() as usize
}

pub fn stream_id(handle: Handle) -> i64 {
    get!(0, tcuda_stream_id(stream(handle))).unwrap()
}

pub fn stream_destroy(handle: Handle) -> Outcome<()> {
    call!(tcuda_stream_destroy; stream(handle))
}

pub fn stream_set_current(handle: Handle) -> Outcome<()> {
    call!(tcuda_stream_set_current; stream(handle))
}

pub fn stream_query(handle: Handle) -> Outcome<bool> {
    get!(false, tcuda_stream_query(stream(handle)))
}

pub fn stream_synchronize(handle: Handle) -> Outcome<()> {
    call!(tcuda_stream_synchronize; stream(handle))
}

pub fn stream_wait_stream(handle: Handle, other: Handle) -> Outcome<()> {
    call!(tcuda_stream_wait_stream; stream(handle), stream(other))
}

pub fn event_create(flags: u32) -> Outcome<Handle> {
    get!(UNTOUCHED as *mut tcuda_event, tcuda_event_create(flags)).map(|found| found as Handle)
}

pub fn event_destroy(handle: Handle) -> Outcome<()> {
    call!(tcuda_event_destroy; event(handle))
}

pub fn event_record(handle: Handle, on: Handle) -> Outcome<()> {
    call!(tcuda_event_record; event(handle), stream(on))
}

pub fn event_wait(handle: Handle, on: Handle) -> Outcome<()> {
    call!(tcuda_event_wait; event(handle), stream(on))
}

pub fn event_query(handle: Handle) -> Outcome<bool> {
    get!(false, tcuda_event_query(event(handle)))
}

pub fn event_synchronize(handle: Handle) -> Outcome<()> {
    call!(tcuda_event_synchronize; event(handle))
}

pub fn event_device(handle: Handle) -> i32 {
    get!(-2, tcuda_event_device(event(handle))).unwrap()
}

pub fn event_elapsed_ms(start: Handle, end: Handle) -> Outcome<f32> {
    get!(-1.0, tcuda_event_elapsed_ms(event(start), event(end)))
}

pub fn malloc(bytes: u64, device: i32, on: Handle) -> Outcome<u64> {
    get!(UNTOUCHED as *mut c_void, tcuda_malloc(bytes as usize, device, stream(on)))
        .map(|found| found as u64)
}

pub fn free(address: u64) -> Outcome<()> {
    call!(tcuda_free; address as *mut c_void)
}

pub fn record_stream(address: u64, on: Handle) -> Outcome<()> {
    call!(tcuda_record_stream; address as *mut c_void, stream(on))
}

pub fn empty_cache() -> Outcome<()> {
    done(tcuda_memory_empty_cache())
}

/// Free and total bytes of a device.
pub fn memory_info(device: i32) -> (u64, u64) {
    let (mut free, mut total) = (0, 0);
    call!(tcuda_memory_info; device, &mut free, &mut total).unwrap();
    (free as u64, total as u64)
}

pub fn reset_peak(device: i32) {
    done(tcuda_memory_reset_peak(device)).unwrap();
}

pub fn reset_accumulated(device: i32) {
    done(tcuda_memory_reset_accumulated(device)).unwrap();
}

pub fn statistics(device: i32) -> tcuda_memory_statistics {
    // SAFETY: plain integers, for which zero is a value.
    let mut stats: tcuda_memory_statistics = unsafe { std::mem::zeroed() };
    stats.struct_size = size_of::<tcuda_memory_statistics>();
    call!(tcuda_memory_stats; device, &mut stats).unwrap();
    stats
}

pub fn fill(address: u64, byte: u8, count: usize, on: Handle) -> Outcome<()> {
    let value = ptr::from_ref(&byte).cast::<c_void>();
    call!(copy::tcuda_fill; address as *mut c_void, value, 1, count, stream(on))
}

pub fn copy(to: u64, from: u64, bytes: usize, on: Handle) -> Outcome<()> {
    call!(copy::tcuda_copy; to as *mut c_void, from as *const c_void, bytes, stream(on))
}

/// Everything that a snapshot has.
pub fn snapshot() -> Outcome<(Vec<tcuda_segment_info>, Vec<tcuda_block_info>)> {
    let handle = get!(UNTOUCHED as *mut tcuda_memory_snapshot, tcuda_memory_snapshot_create(0))?;
    let (mut segments, mut blocks) = (0, 0);
    call!(tcuda_memory_snapshot_counts; handle, &mut segments, &mut blocks)?;
    let segments = (0..segments)
        .map(|index| {
            // SAFETY: plain integers and pointers, for which zero is a value.
            let mut segment: tcuda_segment_info = unsafe { std::mem::zeroed() };
            segment.struct_size = size_of::<tcuda_segment_info>();
            call!(tcuda_memory_snapshot_segment; handle, index, &mut segment).map(|()| segment)
        })
        .collect::<Outcome<Vec<_>>>()?;
    let blocks = (0..blocks)
        .map(|index| {
            // SAFETY: plain integers and pointers, for which zero is a value.
            let mut block: tcuda_block_info = unsafe { std::mem::zeroed() };
            block.struct_size = size_of::<tcuda_block_info>();
            call!(tcuda_memory_snapshot_block; handle, index, &mut block).map(|()| block)
        })
        .collect::<Outcome<Vec<_>>>()?;
    call!(tcuda_memory_snapshot_destroy; handle)?;
    Ok((segments, blocks))
}

/// Streams of the host's own, which it makes with the driver, as a user of CUDA would.
pub mod native {
    use tcuda::driver::sys::CUstream;

    fn with_driver<R>(device: i32, body: impl FnOnce(&tcuda::driver::Driver) -> R) -> R {
        let before = super::device_current();
        super::device_set(device).unwrap();
        let inside = tcuda::base::thread::enter().unwrap();
        let result = body(tcuda::gpu::gpus::existing_driver(&inside).unwrap());
        drop(inside);
        super::device_set(before).unwrap();
        result
    }

    pub fn create(device: i32, is_blocking: bool) -> usize {
        with_driver(device, |driver| {
            let mut native: CUstream = std::ptr::null_mut();
            let flags = u32::from(!is_blocking);
            // SAFETY: the output is writable, the device's context current.
            unsafe { driver.cuStreamCreateWithPriority(&mut native, flags, 0) }.unwrap();
            native as usize
        })
    }

    pub fn destroy(device: i32, native: usize) {
        with_driver(device, |driver| {
            // SAFETY: made by `create`, and destroyed once.
            unsafe { driver.cuStreamDestroy(native as CUstream) }.unwrap();
        });
    }
}
