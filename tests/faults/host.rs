//! The library's user: objects that are destroyed when they go, as a well-behaved host does, and a
//! note of whatever no fault excuses.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tcuda::ffi::copy::{tcuda_copy, tcuda_fill};
use tcuda::ffi::event::{tcuda_event, tcuda_event_create, tcuda_event_destroy};
use tcuda::ffi::library::tcuda_last_error;
use tcuda::ffi::memory::{tcuda_allocation, tcuda_allocation_destroy, tcuda_free, tcuda_malloc};
use tcuda::ffi::status::tcuda_status;
use tcuda::ffi::stream::{
    tcuda_stream, tcuda_stream_create, tcuda_stream_destroy, tcuda_stream_from_external,
    tcuda_stream_synchronize,
};

/// A call gave no TCUDA_STATUS_OK.
#[derive(Debug)]
pub struct Failed(pub tcuda_status);

pub type Done = Result<(), Failed>;

static PROBLEMS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LAST_FAILURE: Mutex<String> = Mutex::new(String::new());
/// Blocks whose tcuda_free failed.
static NOT_FREED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Handles of allocations that could not be destroyed.
static NOT_DESTROYED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes what must not be, whatever fails.
pub fn problem(text: String) {
    lock(&PROBLEMS).push(text);
}

pub fn take_problems() -> Vec<String> {
    std::mem::take(&mut lock(&PROBLEMS))
}

/// The last failed call, with its message.
pub fn last_failure() -> String {
    lock(&LAST_FAILURE).clone()
}

fn message() -> String {
    let text: *const c_char = tcuda_last_error();
    // SAFETY: a text of this thread, until its next call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

pub fn checked(status: tcuda_status, call: &str) -> Done {
    if status == tcuda_status::Ok {
        return Ok(());
    }
    // Also where a function of the host's is called by the library.
    let _in_driver = tcuda::base::host_faults::in_driver();
    let text = format!("{call} gave {status:?}: {}", message());
    if status == tcuda_status::Internal {
        problem(text.clone());
    }
    *lock(&LAST_FAILURE) = text;
    Err(Failed(status))
}

/// Makes one call of the library.
macro_rules! call {
    ($call:expr) => {{
        #[allow(unused_unsafe, reason = "some calls are safe")]
        // SAFETY: pointers are to what lives until the call is over, handles are looked up.
        let status = unsafe { $call };
        $crate::host::checked(status, stringify!($call))
    }};
}
pub(crate) use call;

/// A failed call leaves its output alone.
fn made<T>(made: Done, output: *mut T, what: &str) -> Done {
    if made.is_err() && !output.is_null() {
        problem(format!("the failed creation of {what} wrote its output"));
    }
    if made.is_ok() && output.is_null() {
        problem(format!("the creation of {what} wrote no output"));
    }
    made
}

pub struct Stream(pub *mut tcuda_stream);

// SAFETY: any thread may use a handle.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(device: i32, priority: i32) -> Result<Stream, Failed> {
        let mut stream = null_mut();
        let status = call!(tcuda_stream_create(device, priority, &mut stream));
        made(status, stream, "a stream").map(|()| Stream(stream))
    }

    pub fn external(device: i32, native: *mut c_void) -> Result<Stream, Failed> {
        let mut stream = null_mut();
        let status = call!(tcuda_stream_from_external(device, native.cast(), &mut stream));
        made(status, stream, "a wrapped stream").map(|()| Stream(stream))
    }

    pub fn synchronize(&self) -> Done {
        call!(tcuda_stream_synchronize(self.0))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = call!(tcuda_stream_destroy(self.0));
    }
}

pub struct Event(pub *mut tcuda_event);

impl Event {
    pub fn new(flags: u32) -> Result<Event, Failed> {
        let mut event = null_mut();
        let status = call!(tcuda_event_create(flags, &mut event));
        made(status, event, "an event").map(|()| Event(event))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = call!(tcuda_event_destroy(self.0));
    }
}

pub struct Memory(pub *mut c_void);

// SAFETY: any thread may use, and free, device memory.
unsafe impl Send for Memory {}

impl Memory {
    pub fn new(bytes: usize, device: i32, stream: *mut tcuda_stream) -> Result<Memory, Failed> {
        let mut memory = null_mut();
        let status = call!(tcuda_malloc(bytes, device, stream, &mut memory));
        made(status, memory, "memory").map(|()| Memory(memory))
    }

    pub fn at(&self, offset: usize) -> *mut c_void {
        self.0.wrapping_byte_add(offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Err(failed) = call!(tcuda_free(self.0)) {
            freeing_wants_no_memory(&failed);
            lock(&NOT_FREED).push(self.0 as usize);
        }
    }
}

/// A finalizer has no way to report that it found no host memory.
fn freeing_wants_no_memory(Failed(status): &Failed) {
    if *status == tcuda_status::OutOfHostMemory {
        problem(format!("freeing fails for want of host memory: {}", last_failure()));
    }
}

/// Destroys an allocation, now or once nothing fails any more.
pub fn destroy(allocation: *mut tcuda_allocation) {
    if let Err(failed) = call!(tcuda_allocation_destroy(allocation)) {
        freeing_wants_no_memory(&failed);
        lock(&NOT_DESTROYED).push(allocation as usize);
    }
}

/// Frees again what could not be freed while calls failed: it works, or was freed after all.
pub fn free_the_rest(is_lost: bool) {
    for allocation in std::mem::take(&mut *lock(&NOT_DESTROYED)) {
        if let Err(Failed(status)) = call!(tcuda_allocation_destroy(allocation as *mut _))
            && status != tcuda_status::InvalidHandle
            && !is_lost
        {
            problem(format!("an allocation outlives its destroy: {}", last_failure()));
        }
    }
    for address in std::mem::take(&mut *lock(&NOT_FREED)) {
        let again = call!(tcuda_free(address as *mut c_void));
        if let Err(Failed(status)) = again
            && status != tcuda_status::InvalidPointer
            && !is_lost
        {
            problem(format!("a block cannot be freed once all is well again: {}", last_failure()));
        }
    }
}

pub fn fill(memory: *mut c_void, value: &[u8], count: usize, stream: *mut tcuda_stream) -> Done {
    call!(tcuda_fill(memory, value.as_ptr().cast(), value.len(), count, stream))
}

pub fn copy(dst: *mut c_void, src: *const c_void, bytes: usize, stream: *mut tcuda_stream) -> Done {
    call!(tcuda_copy(dst, src, bytes, stream))
}

/// The memory holds these bytes over and over: a call that did not do its work said so.
pub fn expect(
    memory: *const c_void,
    value: &[u8],
    count: usize,
    stream: *mut tcuda_stream,
) -> Done {
    let bytes = value.len() * count;
    let mut got = vec![0xEEu8; bytes];
    copy(got.as_mut_ptr().cast(), memory, bytes, stream)?;
    call!(tcuda_stream_synchronize(stream))?;
    if got.chunks(value.len()).any(|part| part != value) {
        let first = got.chunks(value.len()).position(|part| part != value).unwrap_or(0);
        problem(format!("every call gave OK, but value {first} of {count} is not {value:?}"));
    }
    Ok(())
}

/// The current stream of the device.
pub const CURRENT: *mut tcuda_stream = null_mut();

/// Fills, reads back, and waits for an event: everything works again.
pub fn smoke() -> Done {
    let memory = Memory::new(5000, 0, CURRENT)?;
    let event = Event::new(1)?;
    fill(memory.0, &[0x5A], 5000, CURRENT)?;
    call!(tcuda::ffi::event::tcuda_event_record(event.0, null::<tcuda_stream>().cast_mut()))?;
    call!(tcuda::ffi::event::tcuda_event_synchronize(event.0))?;
    expect(memory.0, &[0x5A], 5000, CURRENT)
}
