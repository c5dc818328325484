//! The calls that begin, end and query captures.

use super::arguments::{peek, put};
use super::capture;
use super::entry::entry;
use cudarc::driver::sys::{
    CUgraph, CUgraphNode, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, cuuint64_t,
};
use std::ffi::{c_int, c_uint};
use std::ptr;

/// `CU_STREAM_CAPTURE_STATUS_...`.
const NONE: c_uint = 0;
const ACTIVE: c_uint = 1;
const BROKEN: c_uint = 2;

fn status_of(info: Option<&capture::Info>) -> c_uint {
    match info {
        None => NONE,
        Some(info) if info.broken => BROKEN,
        Some(_) => ACTIVE,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamBeginCapture_v2(
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.begin(&machine.graphs, &stream, mode as c_uint)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        let outcome = machine.captures.end(&machine.graphs, &stream);
        // `graph` may be NULL. Without a graph, NULL is written.
        if !graph.is_null() {
            put!(graph, ptr::without_provenance_mut(outcome.unwrap_or(0)))?;
        }
        outcome.map(drop)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamIsCapturing(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        let info = machine.captures.info(&stream)?;
        put!(status.cast::<c_uint>(), status_of(info.as_ref()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut cuuint64_t,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    count: *mut usize,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        let info = machine.captures.info(&stream)?;
        put!(status.cast::<c_uint>(), status_of(info.as_ref()))?;
        // CUDA writes the other results only for a capturing stream.
        let Some(info) = info.filter(|info| !info.broken) else { return Ok(()) };
        if !id.is_null() {
            put!(id, info.id)?;
        }
        if !graph.is_null() {
            put!(graph, ptr::without_provenance_mut(info.graph))?;
        }
        if !dependencies.is_null() {
            put!(dependencies, info.dependencies.0.cast())?;
        }
        if !count.is_null() {
            put!(count, info.dependencies.1)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(
    mode: *mut CUstreamCaptureMode,
) -> c_int {
    entry(|_| {
        // Read as an integer, since a host may pass any value.
        let mode = mode.cast::<c_uint>();
        let new = peek!(mode)?;
        put!(mode, capture::exchange_mode(new))
    })
}
