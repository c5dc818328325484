//! PyTorch, which gets no status: a block that does not come ends the scenario.

use super::captures::Capture;
use crate::host::{Done, Failed, Stream, call, checked, fill, problem};
use std::ffi::c_void;
use std::ptr::null_mut;
use tcuda::driver::sys::CUstream;
use tcuda::ffi::device::tcuda_device_set;
use tcuda::ffi::status::tcuda_status;
use tcuda::ffi::stream::tcuda_stream_native;
use tcuda::ffi::torch::*;

struct Block(*mut c_void);

impl Block {
    fn new(bytes: isize, stream: CUstream) -> Result<Block, Failed> {
        // SAFETY: a stream that is alive.
        let block = unsafe { tcuda_torch_malloc(bytes, 0, stream.cast()) };
        if block.is_null() {
            checked(tcuda_status::CudaError, "tcuda_torch_malloc")?;
        }
        Ok(Block(block))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: what `new` got.
        unsafe { tcuda_torch_free(self.0, 0, 0, null_mut()) };
    }
}

fn native_of(stream: &Stream) -> Result<CUstream, Failed> {
    let mut native: CUstream = null_mut();
    call!(tcuda_stream_native(stream.0, (&raw mut native).cast()))?;
    Ok(native)
}

pub fn blocks_and_graphs() -> Done {
    tcuda_torch_init(1);
    // Calls of the host's own want a current context.
    call!(tcuda_device_set(0))?;
    let [stream, other] = [Stream::new(0, 0)?, Stream::new(0, 0)?];
    let natives = [native_of(&stream)?, native_of(&other)?];
    for bytes in [700, 90_000, 5 << 20] {
        let block = Block::new(bytes, natives[0])?;
        fill(block.0, &[7], bytes as usize, stream.0)?;
        // SAFETY: a live block, and a stream that is alive.
        unsafe { tcuda_torch_record_stream(block.0, natives[1].cast()) };
        drop(block);
        drop(Block::new(bytes, null_mut())?);
    }
    tcuda_torch_reset();
    // SAFETY: the filter is not looked at.
    unsafe { tcuda_torch_begin_allocate_to_pool(0, 1, 0, null_mut()) };
    let captured = captured(&stream, natives);
    tcuda_torch_end_allocate_to_pool(0, 1, 0);
    tcuda_torch_release_pool(0, 1, 0);
    tcuda_torch_reset();
    captured
}

fn captured(stream: &Stream, natives: [CUstream; 2]) -> Done {
    let capture = Capture::begin(stream)?;
    let kept = Block::new(3000, natives[0])?;
    fill(kept.0, &[1, 2, 3], 1000, stream.0)?;
    let mut length = 0;
    // SAFETY: a live block, and an output of ours.
    let base = unsafe { tcuda_torch_base_alloc(kept.0, &mut length) };
    if base.is_null() || length < 3000 {
        problem(format!("a block in a segment of {length} bytes at {base:?}"));
    }
    drop(Block::new(2 << 20, natives[0])?);
    drop(Block::new(2 << 20, natives[1])?);
    drop(capture);
    Ok(())
}
