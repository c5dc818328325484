//! A stream that is captured by the host, while the library allocates and frees beside it.

use crate::host::{Done, Failed, Memory, Stream, call, expect, fill, last_failure, problem};
use std::ptr::null_mut;
use tcuda::driver::sim;
use tcuda::driver::sys::{CUgraph, CUstream, CUstreamCaptureMode};
use tcuda::ffi::device::tcuda_device_set;
use tcuda::ffi::memory::*;
use tcuda::ffi::stream::*;

/// Makes a call of the host's own, which no fault reaches; it works.
macro_rules! own {
    ($call:ident($($arg:expr),*)) => {{
        let call = sim::table().ok().and_then(|table| table.$call);
        // SAFETY: the arguments are the driver's.
        let code = call.map_or(-1, |call| unsafe { call($($arg),*) });
        if code != 0 {
            problem(format!("{} gave {code}", stringify!($call)));
        }
    }};
}

pub struct Capture(CUstream);

impl Capture {
    pub fn begin(stream: &Stream) -> Result<Capture, Failed> {
        let mut native: CUstream = null_mut();
        call!(tcuda_stream_native(stream.0, (&raw mut native).cast()))?;
        own!(cuStreamBeginCapture(native, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL));
        Ok(Capture(native))
    }

    /// The graph, if nothing has broken the capture.
    fn end(self) -> Option<CUgraph> {
        let native = self.0;
        std::mem::forget(self);
        let (mut graph, end) = (null_mut(), sim::table().ok()?.cuStreamEndCapture?);
        // SAFETY: both are valid.
        let code = unsafe { end(native, &mut graph) };
        (code == 0).then_some(graph)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(graph) = Capture(self.0).end() {
            own!(cuGraphDestroy(graph));
        }
    }
}

pub fn captures() -> Done {
    // Calls of the host's own want a current context.
    call!(tcuda_device_set(0))?;
    let [stream, other] = [Stream::new(0, 0)?, Stream::new(0, 0)?];
    let memory = Memory::new(3000, 0, stream.0)?;
    fill(memory.0, &[7], 3000, stream.0)?;
    stream.synchronize()?;
    let capture = Capture::begin(&stream)?;
    fill(memory.0, &[1, 2, 3], 1000, stream.0)?;
    for bytes in [700, 90_000, 5 << 20] {
        let shared = Memory::new(bytes, 0, other.0)?;
        call!(tcuda_record_stream(shared.0, stream.0))?;
        drop(shared);
        drop(Memory::new(bytes, 0, stream.0)?);
        drop(Memory::new(bytes, 0, other.0)?);
    }
    call!(tcuda_memory_empty_cache())?;
    let Some(graph) = capture.end() else {
        problem(format!("no call failed, but the capture is broken: {}", last_failure()));
        return Ok(());
    };
    let mut exec = null_mut();
    own!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    own!(cuGraphDestroy(graph));
    let ran = expect(memory.0, &[7], 3000, stream.0).and_then(|()| {
        let mut native: CUstream = null_mut();
        call!(tcuda_stream_native(stream.0, (&raw mut native).cast()))?;
        own!(cuGraphLaunch(exec, native));
        expect(memory.0, &[1, 2, 3], 1000, stream.0)
    });
    own!(cuGraphExecDestroy(exec));
    ran
}
