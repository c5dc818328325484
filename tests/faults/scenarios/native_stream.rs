//! Memory for native streams: blocks of one stream that another frees.

use crate::host::{Done, Failed, Stream, call, expect, fill, problem};
use std::ffi::c_void;
use std::ptr::null_mut;
use tcuda::driver::sys::CUstream_st;
use tcuda::ffi::device::tcuda_device_set;
use tcuda::ffi::memory::{tcuda_free, tcuda_memory_empty_cache};
use tcuda::ffi::native_stream::*;
use tcuda::ffi::ort::*;
use tcuda::ffi::stream::*;

type Native = *mut CUstream_st;

fn allocated(bytes: usize, native: Native) -> Result<*mut c_void, Failed> {
    let mut block = null_mut();
    let made = call!(tcuda_malloc_native(bytes, 0, native, &mut block));
    if made.is_err() && !block.is_null() {
        problem("a failed allocation wrote its output".into());
    }
    made.map(|()| block)
}

/// Frees a block on a stream. If that fails, the block is still there.
fn freed(block: *mut c_void, native: Native) -> Done {
    let freed = call!(tcuda_free_on(block, native));
    if freed.is_err() {
        call!(tcuda_free(block))?;
    }
    freed
}

/// Writes a block on two streams, and frees it on the second.
fn used(bytes: usize, streams: [(&Stream, Native); 2]) -> Done {
    let block = allocated(bytes, streams[0].1)?;
    let is_used = (|| {
        fill(block, &[1], bytes, streams[0].0.0)?;
        call!(tcuda_stream_wait_stream(streams[1].0.0, streams[0].0.0))?;
        fill(block, &[2], bytes, streams[1].0.0)?;
        expect(block, &[2], bytes, streams[1].0.0)
    })();
    freed(block, streams[1].1)?;
    is_used
}

pub fn free_on() -> Done {
    // Calls of the host's own want a current context.
    call!(tcuda_device_set(0))?;
    let [first, second] = [Stream::new(0, 0)?, Stream::new(0, 0)?];
    let mut natives: [Native; 2] = [null_mut(); 2];
    for (native, stream) in natives.iter_mut().zip([&first, &second]) {
        call!(tcuda_stream_native(stream.0, native))?;
    }
    let (first, second) = ((&first, natives[0]), (&second, natives[1]));
    for bytes in [700, 5 << 20] {
        used(bytes, [first, second])?;
        used(bytes, [second, first])?;
    }
    let block = tcuda_ort_malloc(3000);
    // SAFETY: NULL or a block.
    unsafe { tcuda_ort_free(block) };
    tcuda_ort_empty_cache();
    call!(tcuda_memory_empty_cache())
}
