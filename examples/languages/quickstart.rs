// The quickstart in Rust, by declarations of what it uses; bindgen makes all of them from tcuda.h.
//
// A status is an integer, not an enum of Rust: later versions may add values. Handles are opaque.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

#[repr(C)]
struct Stream([u8; 0]);

#[link(name = "tcuda")]
unsafe extern "C" {
    fn tcuda_malloc(bytes: usize, device: i32, stream: *mut Stream, ptr: *mut *mut c_void)
    -> c_int;
    fn tcuda_free(ptr: *mut c_void) -> c_int;
    fn tcuda_fill(
        ptr: *mut c_void,
        value: *const c_void,
        value_bytes: usize,
        count: usize,
        stream: *mut Stream,
    ) -> c_int;
    fn tcuda_copy(dst: *mut c_void, src: *const c_void, bytes: usize, stream: *mut Stream)
    -> c_int;
    fn tcuda_stream_synchronize(stream: *mut Stream) -> c_int;
    fn tcuda_memory_allocated(device: i32, bytes: *mut usize) -> c_int;
    fn tcuda_shutdown(live_handles: *mut usize) -> c_int;
    fn tcuda_last_error() -> *const c_char;
}

fn check(status: c_int) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: a NUL-terminated text of this thread.
    let text = unsafe { CStr::from_ptr(tcuda_last_error()) };
    Err(text.to_string_lossy().into_owned())
}

fn main() -> Result<(), String> {
    let mut host = [0.0f32; 1000];
    let (value, bytes) = (1.5f32, size_of_val(&host));
    let (mut memory, mut allocated) = (null_mut(), 0);
    // SAFETY: the outputs are writable, and `host` is not used before the stream is done.
    unsafe {
        check(tcuda_malloc(bytes, 0, null_mut(), &mut memory))?;
        check(tcuda_fill(memory, (&raw const value).cast(), 4, host.len(), null_mut()))?;
        check(tcuda_copy(host.as_mut_ptr().cast(), memory, bytes, null_mut()))?;
        check(tcuda_stream_synchronize(null_mut()))?;
        check(tcuda_memory_allocated(0, &mut allocated))?;
        println!("{} ... {}, {allocated} bytes allocated", host[0], host[host.len() - 1]);
        check(tcuda_free(memory))?;
        check(tcuda_shutdown(null_mut()))
    }
}
