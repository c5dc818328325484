//! Stream capture: beginning, ending, what is recorded, and what an ended or broken capture leaves.

use crate::Row;
use crate::bench::{Bench, LEGACY, PER_THREAD, cu, handle, host};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["capture":
    begin, end, modes_of_threads, empty, states, on_the_captured_stream,
    destroying_the_stream, invalidated, wrong_thread, other_streams_go_on, two_captures,
    null_outputs, event_of_an_ended_capture, what_an_unsafe_call_breaks, unsafe_beside_two,
    thread_that_ends,
];

pub const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];
pub const GLOBAL: CUstreamCaptureMode = MODES[0];
pub const RELAXED: CUstreamCaptureMode = MODES[2];
/// Kinds of nodes.
pub const KERNEL: i32 = 0;
pub const COPY: i32 = 1;
pub const FILL: i32 = 2;
pub const CALLBACK: i32 = 3;
pub const EVENT_WAIT: i32 = 6;
pub const EVENT_RECORD: i32 = 7;
pub const ALLOCATE: i32 = 10;
pub const FREE: i32 = 11;

impl Bench {
    pub fn begin(&self, stream: CUstream) {
        cu!(self, cuStreamBeginCapture(stream, GLOBAL) => 0);
    }

    /// Ends a capture that went well.
    pub fn end(&self, stream: CUstream) -> CUgraph {
        let mut graph = null_mut();
        cu!(self, cuStreamEndCapture(stream, &mut graph) => 0);
        graph
    }

    /// Ends a capture that did not.
    #[track_caller]
    pub fn end_with(&self, stream: CUstream, expected: i32) {
        let mut graph = handle(77);
        cu!(self, cuStreamEndCapture(stream, &mut graph) => expected);
        self.is("no graph", graph.addr(), 0);
    }

    /// Of a stream: 0 none, 1 active, 2 invalidated.
    pub fn capture_status(&self, stream: CUstream) -> i32 {
        let mut status = 99;
        let out = (&raw mut status).cast::<CUstreamCaptureStatus>();
        cu!(self, cuStreamIsCapturing(stream, out) => 0);
        status
    }

    /// Status, id, graph and number of dependencies; what is not written stays 77.
    pub fn capture_info(&self, stream: CUstream) -> (i32, u64, CUgraph, usize) {
        let (mut status, mut id, mut graph) = (99, 77, handle(77));
        let (mut dependencies, mut count) = (std::ptr::null(), 77);
        let out = (&raw mut status).cast::<CUstreamCaptureStatus>();
        cu!(self, cuStreamGetCaptureInfo(
            stream, out, &mut id, &mut graph, &mut dependencies, &mut count) => 0);
        (status, id, graph, count)
    }

    /// The kinds of a graph's nodes, sorted, and the number of its edges.
    pub fn shape(&self, graph: CUgraph) -> (Vec<i32>, usize) {
        let (mut nodes, mut edges) = (0, 0);
        if graph.is_null() {
            return (Vec::new(), 0);
        }
        cu!(self, cuGraphGetNodes(graph, null_mut(), &mut nodes) => 0);
        cu!(self, cuGraphGetEdges(graph, null_mut(), null_mut(), &mut edges) => 0);
        let mut found = vec![null_mut(); nodes];
        if nodes > 0 {
            cu!(self, cuGraphGetNodes(graph, found.as_mut_ptr(), &mut nodes) => 0);
        }
        let kind = |node: &CUgraphNode| {
            let mut kind = 99;
            let out = (&raw mut kind).cast::<CUgraphNodeType>();
            cu!(self, cuGraphNodeGetType(*node, out) => 0);
            kind
        };
        let mut kinds: Vec<i32> = found.iter().map(kind).collect();
        kinds.sort_unstable();
        (kinds, edges)
    }

    pub fn fill(&self, address: u64, value: u8, stream: CUstream, expected: i32) {
        cu!(self, cuMemsetD8Async(address, value, 64, stream) => expected);
    }
}

pub static CALLS: AtomicU32 = AtomicU32::new(0);

pub unsafe extern "C" fn count(_: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
}

fn begin(bench: &Bench) {
    bench.start();
    for fixed in [0, LEGACY] {
        cu!(bench, cuStreamBeginCapture(handle(fixed), GLOBAL) => 900);
        cu!(bench, cuStreamBeginCapture(handle(fixed), RELAXED) => 900);
    }
    for (stream, mode) in [(bench.stream(0), 0), (bench.stream(1), 1), (handle(PER_THREAD), 2)] {
        cu!(bench, cuStreamBeginCapture(stream, MODES[mode]) => 0);
        cu!(bench, cuStreamBeginCapture(stream, MODES[mode]) => 401);
        bench.is("status", bench.capture_status(stream), 1);
        let graph = bench.end(stream);
        cu!(bench, cuGraphDestroy(graph) => 0);
        bench.is("status", bench.capture_status(stream), 0);
    }
}

fn end(bench: &Bench) {
    bench.start();
    let stream = bench.stream(1);
    bench.end_with_untouched(stream);
    bench.end_with_untouched(null_mut());
    bench.end_with_untouched(handle(PER_THREAD));
    bench.begin(stream);
    let graph = bench.end(stream);
    bench.is("a graph", graph.is_null(), false);
    bench.end_with_untouched(stream);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

impl Bench {
    fn end_with_untouched(&self, stream: CUstream) {
        let mut graph = handle(77);
        cu!(self, cuStreamEndCapture(stream, &mut graph) => 401);
        self.is("graph", graph.addr(), 0);
    }
}

fn modes_of_threads(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    let exchange = |new: i32, expected: i32| {
        let mut mode = new;
        let out = (&raw mut mode).cast::<CUstreamCaptureMode>();
        cu!(bench, cuThreadExchangeStreamCaptureMode(out) => 0);
        bench.is("mode before", mode, expected);
    };
    exchange(2, 0);
    exchange(1, 2);
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(2, 0));
    });
    exchange(0, 1);
    exchange(3, 0);
    exchange(0, 3);
}

fn empty(bench: &Bench) {
    bench.start();
    let stream = bench.stream(1);
    bench.begin(stream);
    let graph = bench.end(stream);
    bench.is("shape", bench.shape(graph), (vec![], 0));
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn states(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(0));
    bench.is("before", bench.capture_info(stream), (0, 77, handle(77), 77));
    bench.begin(stream);
    let (status, first, under_way, dependencies) = bench.capture_info(stream);
    bench.is("at first", (status, dependencies), (1, 0));
    bench.fill(address, 1, stream, 0);
    let (status, id, _, dependencies) = bench.capture_info(stream);
    bench.is("after a fill", (status, dependencies), (1, 1));
    bench.is("one id", id == first, true);
    let graph = bench.end(stream);
    bench.is("one graph", graph == under_way, true);
    bench.is("after", bench.capture_info(stream), (0, 77, handle(77), 77));
    bench.begin(stream);
    bench.is("another id", bench.capture_info(stream).1 != first, true);
    let second = bench.end(stream);
    bench.is("another graph", second != graph, true);
}

fn on_the_captured_stream(bench: &Bench) {
    bench.start();
    for mode in MODES {
        let (stream, event) = (bench.stream(1), bench.event());
        let (mut id, mut priority, mut context) = (0, 0, null_mut());
        cu!(bench, cuStreamBeginCapture(stream, mode) => 0);
        cu!(bench, cuStreamGetPriority(stream, &mut priority) => 0);
        bench.is("after a question", bench.capture_status(stream), 1);
        cu!(bench, cuStreamGetCtx(stream, &mut context) => 0);
        bench.is("after a question", bench.capture_status(stream), 1);
        cu!(bench, cuStreamGetId(stream, &mut id) => 900);
        bench.is("after a question", bench.capture_status(stream), 2);
        cu!(bench, cuStreamGetPriority(stream, &mut priority) => 901);
        cu!(bench, cuStreamGetCtx(stream, &mut context) => 901);
        cu!(bench, cuStreamGetId(stream, &mut id) => 900);
        bench.end_with(stream, 901);
        cu!(bench, cuStreamBeginCapture(stream, mode) => 0);
        cu!(bench, cuStreamQuery(stream) => 900);
        bench.is("after a query", bench.capture_status(stream), 2);
        bench.end_with(stream, 901);
        cu!(bench, cuStreamBeginCapture(stream, mode) => 0);
        cu!(bench, cuStreamSynchronize(stream) => 900);
        bench.is("after a wait", bench.capture_status(stream), 2);
        bench.end_with(stream, 901);
        cu!(bench, cuStreamBeginCapture(stream, mode) => 0);
        cu!(bench, cuEventRecord(event, stream) => 0);
        cu!(bench, cuCtxSynchronize() => 900);
        bench.is("after a wait for all", bench.capture_status(stream), 2);
        bench.end_with(stream, 901);
        cu!(bench, cuStreamSynchronize(stream) => 0);
    }
}

fn destroying_the_stream(bench: &Bench) {
    bench.start();
    let (stream, other, event) = (bench.stream(1), bench.stream(1), bench.event());
    bench.begin(stream);
    cu!(bench, cuEventRecord(event, stream) => 0);
    cu!(bench, cuStreamWaitEvent(other, event, 0) => 0);
    cu!(bench, cuStreamDestroy(other) => 0);
    bench.is("after one that joined", bench.capture_status(stream), 1);
    let mut graph = null_mut();
    cu!(bench, cuStreamEndCapture(stream, &mut graph) => 0);
    let address = bench.warm(64);
    bench.begin(stream);
    bench.fill(address, 1, stream, 0);
    cu!(bench, cuStreamDestroy(stream) => 0);
    // Nothing is left of the capture.
    let mut second = 0;
    cu!(bench, cuMemAlloc(&mut second, 64) => 0);
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("bytes", bench.fetch(address, 1, null_mut()), vec![0]);
}

fn invalidated(bench: &Bench) {
    bench.start();
    let (address, stream, other) = (bench.warm(64), bench.stream(0), bench.stream(1));
    let (event, before) = (bench.event(), bench.event());
    let writer = bench.writer();
    let mut memory = 0;
    bench.begin(stream);
    cu!(bench, cuEventRecord(before, stream) => 0);
    bench.fill(address, 1, stream, 0);
    cu!(bench, cuStreamQuery(stream) => 900);
    bench.is("info", bench.capture_info(stream).0, 2);
    bench.fill(address, 1, stream, 901);
    bench.write(writer, address, 1, stream, 901);
    cu!(bench, cuMemcpyAsync(address, address, 1, stream) => 901);
    cu!(bench, cuLaunchHostFunc(stream, Some(count), null_mut()) => 901);
    cu!(bench, cuEventRecord(event, stream) => 901);
    cu!(bench, cuStreamWaitEvent(stream, event, 0) => 901);
    cu!(bench, cuMemAllocAsync(&mut memory, 64, stream) => 901);
    cu!(bench, cuStreamQuery(stream) => 900);
    cu!(bench, cuStreamSynchronize(stream) => 900);
    cu!(bench, cuStreamBeginCapture(stream, GLOBAL) => 401);
    cu!(bench, cuStreamWaitEvent(other, before, 0) => 1);
    cu!(bench, cuEventQuery(before) => 1);
    // What is not safe in a capture is so until it is ended.
    cu!(bench, cuMemAlloc(&mut memory, 64) => 900);
    cu!(bench, cuMemsetD8Async(address, 1, 64, null_mut()) => 906);
    cu!(bench, cuCtxSynchronize() => 900);
    bench.end_with(stream, 901);
    bench.is("status", bench.capture_status(stream), 0);
    bench.fill(address, 7, stream, 0);
    bench.is("bytes", bench.fetch(address, 1, stream), vec![7]);
    cu!(bench, cuStreamWaitEvent(other, before, 0) => 1);
}

fn wrong_thread(bench: &Bench) {
    let context = bench.start().addr();
    let stream = bench.stream(1).addr();
    for (mode, expected) in [(0, 908), (1, 908), (2, 0)] {
        cu!(bench, cuStreamBeginCapture(handle(stream), MODES[mode]) => 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut graph = handle(77);
                cu!(bench, cuCtxSetCurrent(handle(context)) => 0);
                cu!(bench, cuStreamEndCapture(handle(stream), &mut graph) => expected);
                bench.is("no graph", graph.is_null(), expected != 0);
            });
        });
        let now = bench.capture_status(handle(stream));
        bench.is("status", now, 0);
    }
}

fn other_streams_go_on(bench: &Bench) {
    bench.start();
    let (address, second) = (bench.warm(64), bench.allocate(64));
    let (stream, blocking, free) = (bench.stream(0), bench.stream(0), bench.stream(1));
    cu!(bench, cuStreamBeginCapture(stream, RELAXED) => 0);
    bench.fill(address, 1, blocking, 0);
    bench.fill(second, 2, free, 0);
    let pinned = bench.pinned(64);
    cu!(bench, cuMemcpyAsync(host(pinned), address, 32, blocking) => 0);
    cu!(bench, cuStreamSynchronize(blocking) => 0);
    cu!(bench, cuMemcpyAsync(host(pinned) + 32, second, 32, free) => 0);
    cu!(bench, cuStreamSynchronize(free) => 0);
    bench.is("bytes", (pinned[0], pinned[32]), (1, 2));
    bench.is("status", bench.capture_status(stream), 1);
    let graph = bench.end(stream);
    bench.is("shape", bench.shape(graph), (vec![], 0));
}

fn two_captures(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(0), bench.stream(1));
    // Two at a time, of one thread.
    bench.begin(a);
    bench.begin(b);
    bench.fill(address, 1, a, 0);
    bench.fill(address, 2, b, 0);
    bench.fill(address, 3, b, 0);
    let first = bench.end(a);
    let second = bench.end(b);
    bench.is("first", bench.shape(first), (vec![FILL], 0));
    bench.is("second", bench.shape(second), (vec![FILL; 2], 1));
}

fn null_outputs(bench: &Bench) {
    bench.start();
    let stream = bench.stream(1);
    bench.begin(stream);
    cu!(bench, cuStreamIsCapturing(stream, null_mut()) => 1);
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    cu!(bench, cuStreamGetCaptureInfo(
        stream, &mut status, null_mut(), null_mut(), null_mut(), null_mut()) => 0);
    bench.is("status", status as u32, 1);
    cu!(bench, cuStreamGetCaptureInfo(
        stream, null_mut(), null_mut(), null_mut(), null_mut(), null_mut()) => 1);
    bench.is("status", bench.capture_status(stream), 1);
    cu!(bench, cuStreamEndCapture(stream, null_mut()) => 0);
    bench.is("status", bench.capture_status(stream), 0);
}

fn event_of_an_ended_capture(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    let (event, other) = (bench.event(), bench.event());
    let mut ms = 7.0;
    cu!(bench, cuEventRecord(other, b) => 0);
    bench.begin(a);
    bench.fill(address, 1, a, 0);
    cu!(bench, cuEventRecord(event, a) => 0);
    bench.end(a);
    // Of what was captured, nothing can be asked any more.
    cu!(bench, cuEventQuery(event) => 1);
    cu!(bench, cuEventSynchronize(event) => 1);
    cu!(bench, cuEventElapsedTime(&mut ms, other, event) => 1);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 1);
    bench.is("status", bench.capture_status(b), 0);
    bench.begin(b);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 1);
    bench.is("status", bench.capture_status(b), 2);
    bench.end_with(b, 901);
    // Recorded again, it is an event as any other.
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 0);
}

/// An unsafe call breaks every capture that forbids it, and no other.
fn what_an_unsafe_call_breaks(bench: &Bench) {
    bench.start();
    let streams = [bench.stream(1), bench.stream(1), bench.stream(1)];
    for (stream, mode) in streams.iter().zip(MODES) {
        cu!(bench, cuStreamBeginCapture(*stream, mode) => 0);
    }
    let mut memory = 0;
    cu!(bench, cuMemAlloc(&mut memory, 64) => 900);
    bench.is("statuses", streams.map(|stream| bench.capture_status(stream)), [2, 2, 1]);
    for stream in streams {
        // SAFETY: both are valid.
        let _ = unsafe { bench.driver.cuStreamEndCapture(stream, &mut null_mut()) };
    }
}

fn unsafe_beside_two(bench: &Bench) {
    let context = bench.start().addr();
    let (own, others) = (bench.stream(1).addr(), bench.stream(1).addr());
    let barrier = std::sync::Barrier::new(2);
    cu!(bench, cuStreamBeginCapture(handle(own), RELAXED) => 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cu!(bench, cuCtxSetCurrent(handle(context)) => 0);
            cu!(bench, cuStreamBeginCapture(handle(others), GLOBAL) => 0);
            barrier.wait();
            barrier.wait();
            bench.end_with(handle(others), 901);
        });
        barrier.wait();
        let mut memory = 0;
        cu!(bench, cuMemAlloc(&mut memory, 64) => 900);
        let statuses = [own, others].map(|stream| bench.capture_status(handle(stream)));
        bench.is("own and other", statuses, [1, 2]);
        barrier.wait();
    });
    bench.end(handle(own));
}

fn thread_that_ends(bench: &Bench) {
    let context = bench.start().addr();
    let stream = bench.stream(1).addr();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cu!(bench, cuCtxSetCurrent(handle(context)) => 0);
            cu!(bench, cuStreamBeginCapture(handle(stream), GLOBAL) => 0);
        });
    });
    bench.is("status", bench.capture_status(handle(stream)), 1);
    let mut memory = 0;
    cu!(bench, cuMemAlloc(&mut memory, 64) => 900);
    bench.is("status", bench.capture_status(handle(stream)), 2);
    bench.end_with(handle(stream), 901);
}
