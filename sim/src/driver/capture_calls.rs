//! The calls that begin, end and query captures.

use super::arguments::{peek, put, require};
use super::capture;
use super::entry::entry;
use crate::base::code;
use cudarc::driver::sys::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
    cuuint64_t,
};
use std::ffi::{c_int, c_uint};
use std::ptr;

/// `CU_STREAM_CAPTURE_STATUS_...`.
const NONE: c_uint = 0;
const ACTIVE: c_uint = 1;
const BROKEN: c_uint = 2;
/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`; 0 adds them.
const SET: c_uint = 1;

fn status_of(info: Option<&capture::Info>) -> c_uint {
    match info {
        None => NONE,
        Some(info) if info.broken => BROKEN,
        Some(_) => ACTIVE,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.captures.begin(&machine.graphs, &stream, mode, None)
    })
}

/// Reads the handles of nodes. The edges to them carry no data.
fn nodes(
    nodes: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Result<Vec<usize>, i32> {
    let read = |index| {
        if !data.is_null() {
            let data =
                peek!(data.wrapping_add(index).cast::<[u8; size_of::<CUgraphEdgeData>()]>())?;
            require(data.iter().all(|byte| *byte == 0), code::INVALID_VALUE)?;
        }
        Ok(peek!(nodes.wrapping_add(index))?.addr())
    };
    require(count == 0 || !nodes.is_null(), code::INVALID_VALUE)?;
    (0..count).map(read).collect()
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamBeginCaptureToGraph(
    stream: CUstream,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    mode: c_uint,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        let graph = machine.graph(graph)?;
        let after = graph.numbers(&nodes(dependencies, data, count)?).ok_or(code::INVALID_VALUE)?;
        machine.captures.begin(&machine.graphs, &stream, mode, Some((graph, after)))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamUpdateCaptureDependencies(
    stream: CUstream,
    dependencies: *mut CUgraphNode,
    count: usize,
    flags: c_uint,
) -> c_int {
    // SAFETY: the same promise.
    unsafe { cuStreamUpdateCaptureDependencies_v2(stream, dependencies, ptr::null(), count, flags) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamUpdateCaptureDependencies_v2(
    stream: CUstream,
    dependencies: *mut CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let stream = machine.stream(stream)?;
        require(flags <= SET, code::INVALID_VALUE)?;
        let nodes = nodes(dependencies, data, count)?;
        machine.captures.depend(&stream, &nodes, flags == SET)
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
    let data = ptr::null_mut();
    // SAFETY: the same promise; edges have no data that would be lost.
    unsafe { cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, data, count) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut cuuint64_t,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    data: *mut *const CUgraphEdgeData,
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
        // The driver has written the results above by then (580.159).
        require(data.is_null() || !dependencies.is_null(), code::INVALID_VALUE)?;
        if !dependencies.is_null() {
            put!(dependencies, info.dependencies.cast())?;
        }
        if !data.is_null() {
            put!(data, info.data.cast())?;
        }
        if !count.is_null() {
            put!(count, info.count)?;
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
