//! Green contexts.

use crate::host::{Done, Memory, call, expect, fill};
use std::ptr::{null, null_mut};
use tcuda::ffi::green_context::*;
use tcuda::ffi::stream::{tcuda_stream, tcuda_stream_destroy};

struct Partition(*mut tcuda_sm_partition);

impl Drop for Partition {
    fn drop(&mut self) {
        let _ = call!(tcuda_sm_partition_destroy(self.0));
    }
}

struct Context(*mut tcuda_green_context);

impl Drop for Context {
    fn drop(&mut self) {
        let _ = call!(tcuda_green_context_destroy(self.0));
    }
}

struct GreenStream(*mut tcuda_stream);

impl Drop for GreenStream {
    fn drop(&mut self) {
        let _ = call!(tcuda_stream_destroy(self.0));
    }
}

fn stream_in(context: &Context) -> Result<GreenStream, crate::host::Failed> {
    let mut stream = GreenStream(null_mut());
    call!(tcuda_green_context_stream_create(context.0, &mut stream.0))?;
    Ok(stream)
}

/// Two parts, work on both, and a thread that sets one.
pub fn contexts() -> Done {
    let mut whole = Partition(null_mut());
    call!(tcuda_sm_partition_from_device(0, &mut whole.0))?;
    let (mut parts, mut rest, mut count) = ([null_mut(); 2], Partition(null_mut()), 0);
    call!(tcuda_sm_partition_split(
        whole.0,
        32,
        0,
        2,
        parts.as_mut_ptr(),
        &mut count,
        &mut rest.0
    ))?;
    let parts = parts.map(Partition);
    let mut contexts = [Context(null_mut()), Context(null_mut())];
    for (context, part) in contexts.iter_mut().zip(&parts) {
        call!(tcuda_green_context_create(0, part.0, null(), &mut context.0))?;
    }
    let mut own = Partition(null_mut());
    call!(tcuda_green_context_partition(contexts[0].0, &mut own.0))?;
    let streams = [stream_in(&contexts[0])?, stream_in(&contexts[1])?];
    let memory = Memory::new(9000, 0, streams[0].0)?;
    fill(memory.0, &[1, 2, 3], 3000, streams[0].0)?;
    expect(memory.0, &[1, 2, 3], 3000, streams[0].0)?;
    call!(tcuda_green_context_set(contexts[1].0))?;
    let outcome = fill(memory.0, &[4], 9000, null_mut())
        .and_then(|()| expect(memory.0, &[4], 9000, null_mut()));
    call!(tcuda_green_context_pop(contexts[1].0))?;
    outcome
}
