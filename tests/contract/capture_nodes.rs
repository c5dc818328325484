//! What a capture records: which nodes calls become, and what they come after.

use crate::Row;
use crate::bench::{Bench, MIB, cu, host};
use crate::capture::{
    ALLOCATE, CALLBACK, CALLS, COPY, EVENT_RECORD, EVENT_WAIT, FILL, FREE, KERNEL, count,
};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["capture":
    recorded_and_not_executed, kinds_of_nodes, work_before_and_after, pageable_copies,
    external_events, pool_memory, pool_memory_of_others, copies_between_devices,
    described_copies, memory_from_a_pool, addresses_at_capture, launch_that_is_wrong,
    info_of_dependencies,
];

fn recorded_and_not_executed(bench: &Bench) {
    bench.start();
    let (address, stream, writer) = (bench.warm(64), bench.stream(0), bench.writer());
    let pinned = bench.pinned(64);
    let event = bench.event();
    bench.begin(stream);
    bench.fill(address, 1, stream, 0);
    bench.write(writer, address, 2, stream, 0);
    cu!(bench, cuMemcpyAsync(host(pinned), address, 64, stream) => 0);
    cu!(bench, cuLaunchHostFunc(stream, Some(count), null_mut()) => 0);
    cu!(bench, cuEventRecord(event, stream) => 0);
    let graph = bench.end(stream);
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("device memory", bench.fetch(address, 1, null_mut()), vec![0]);
    bench.is("pinned memory", pinned[0], 0);
    bench.is("callbacks", CALLS.load(Ordering::SeqCst), 0);
    bench.is("shape", bench.shape(graph), (vec![KERNEL, COPY, FILL, CALLBACK], 3));
}

fn kinds_of_nodes(bench: &Bench) {
    bench.start();
    let (address, stream, writer) = (bench.warm(4096), bench.stream(1), bench.writer());
    let (pinned, event) = (bench.pinned(4096), bench.event());
    let alone = |call: &dyn Fn()| {
        bench.begin(stream);
        call();
        let graph = bench.end(stream);
        let shape = bench.shape(graph);
        cu!(bench, cuGraphDestroy(graph) => 0);
        shape.0
    };
    let fills = alone(&|| {
        cu!(bench, cuMemsetD8Async(address, 1, 64, stream) => 0);
        cu!(bench, cuMemsetD16Async(address, 1, 64, stream) => 0);
        cu!(bench, cuMemsetD32Async(address, 1, 64, stream) => 0);
    });
    bench.is("fills", fills, vec![FILL; 3]);
    let copies = alone(&|| {
        cu!(bench, cuMemcpyAsync(address, address + 2048, 64, stream) => 0);
        cu!(bench, cuMemcpyAsync(address, host(pinned), 64, stream) => 0);
    });
    bench.is("copies", copies, vec![COPY; 2]);
    bench.is("kernels", alone(&|| bench.write(writer, address, 1, stream, 0)), vec![KERNEL]);
    let record = alone(&|| {
        cu!(bench, cuEventRecord(event, stream) => 0);
    });
    bench.is("a record", record, vec![]);
    let callback = alone(&|| {
        cu!(bench, cuLaunchHostFunc(stream, Some(count), null_mut()) => 0);
    });
    bench.is("a callback", callback, vec![CALLBACK]);
    let nothing = alone(&|| {
        cu!(bench, cuMemcpyAsync(address, address + 2048, 0, stream) => 0);
        cu!(bench, cuMemsetD8Async(address, 1, 0, stream) => 0);
    });
    bench.is("copies and fills of nothing", nothing, vec![]);
    let wrong = alone(&|| {
        cu!(bench, cuLaunchHostFunc(stream, None, null_mut()) => 1);
        cu!(bench, cuMemsetD16Async(address + 1, 1, 2, stream) => 1);
        bench.write(writer, address, 1, stream, 0);
    });
    bench.is("calls that are wrong by themselves", wrong, vec![KERNEL]);
    // A launch finds out whether memory is there, not the capture.
    let nowhere = alone(&|| {
        cu!(bench, cuMemsetD8Async(0, 1, 64, stream) => 0);
    });
    bench.is("a fill of NULL", nowhere, vec![FILL]);
}

fn work_before_and_after(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    let gate = bench.hold(stream);
    bench.fill(address, 1, stream, 0);
    // What is queued already is no part of it, and goes on.
    bench.begin(stream);
    bench.fill(address, 2, stream, 0);
    gate.open();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let graph = bench.end(stream);
    bench.is("shape", bench.shape(graph), (vec![FILL], 0));
    bench.is("first", bench.fetch(address, 1, stream), vec![1]);
    bench.fill(address, 3, stream, 0);
    bench.is("last", bench.fetch(address, 1, stream), vec![3]);
}

fn pageable_copies(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    let mut buffer = vec![5; 64];
    let pageable = buffer.as_mut_ptr().expose_provenance() as u64;
    bench.begin(stream);
    cu!(bench, cuMemcpyAsync(address, pageable, 64, stream) => 0);
    bench.is("after one to the device", bench.capture_status(stream), 1);
    cu!(bench, cuMemcpyAsync(pageable, address, 64, stream) => 0);
    bench.is("after one to the host", bench.capture_status(stream), 1);
    let graph = bench.end(stream);
    bench.is("shape", bench.shape(graph), (vec![COPY; 2], 1));
}

fn external_events(bench: &Bench) {
    bench.start();
    let (stream, event) = (bench.stream(1), bench.event());
    bench.begin(stream);
    cu!(bench, cuEventRecordWithFlags(event, stream, 1) => 0);
    cu!(bench, cuStreamWaitEvent(stream, event, 1) => 0);
    cu!(bench, cuEventRecordWithFlags(event, stream, 2) => 1);
    cu!(bench, cuStreamWaitEvent(stream, event, 2) => 1);
    bench.is("status", bench.capture_status(stream), 1);
    let graph = bench.end(stream);
    bench.is("shape", bench.shape(graph), (vec![EVENT_WAIT, EVENT_RECORD], 1));
    cu!(bench, cuEventQuery(event) => 0);
}

fn pool_memory(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let stream = bench.stream(1);
    let mut address = 0;
    bench.begin(stream);
    cu!(bench, cuMemAllocAsync(&mut address, MIB, stream) => 0);
    bench.is("an address", address != 0, true);
    bench.fill(address, 1, stream, 0);
    cu!(bench, cuMemFreeAsync(address, stream) => 0);
    let graph = bench.end(stream);
    bench.is("shape", bench.shape(graph), (vec![FILL, ALLOCATE, FREE], 2));
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn pool_memory_of_others(bench: &Bench) {
    bench.start();
    let (stream, other) = (bench.stream(1), bench.stream(1));
    let mut address = 0;
    cu!(bench, cuMemAllocAsync(&mut address, MIB, other) => 0);
    cu!(bench, cuStreamSynchronize(other) => 0);
    bench.begin(stream);
    cu!(bench, cuMemFreeAsync(address, stream) => 1);
    bench.is("after a free", bench.capture_status(stream), 1);
    let mut graph = null_mut();
    cu!(bench, cuStreamEndCapture(stream, &mut graph) => 0);
    cu!(bench, cuMemFreeAsync(address, other) => 0);
}

fn copies_between_devices(bench: &Bench) {
    let context = bench.start();
    let (address, stream) = (bench.warm(4096), bench.stream(1));
    for (to, from) in [(null_mut(), null_mut()), (context, context)] {
        bench.begin(stream);
        let given = cu!(bench, cuMemcpyPeerAsync(address, to, address + 2048, from, 64, stream)
            => 900);
        bench.is("status", (given, bench.capture_status(stream)), (900, 2));
        let mut graph = null_mut();
        cu!(bench, cuStreamEndCapture(stream, &mut graph) => 901);
    }
}

fn described_copies(bench: &Bench) {
    let context = bench.start();
    let (address, stream) = (bench.warm(4096), bench.stream(1));
    let device = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    let flat = CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: device,
        srcHost: null(),
        srcDevice: address,
        srcArray: null_mut(),
        srcPitch: 64,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: device,
        dstHost: null_mut(),
        dstDevice: address + 2048,
        dstArray: null_mut(),
        dstPitch: 64,
        WidthInBytes: 32,
        Height: 4,
    };
    let deep = CUDA_MEMCPY3D_PEER {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: device,
        srcHost: null(),
        srcDevice: address,
        srcArray: null_mut(),
        srcContext: context,
        srcPitch: 64,
        srcHeight: 4,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: device,
        dstHost: null_mut(),
        dstDevice: address + 2048,
        dstArray: null_mut(),
        dstContext: context,
        dstPitch: 64,
        dstHeight: 4,
        WidthInBytes: 32,
        Height: 4,
        Depth: 2,
    };
    bench.begin(stream);
    cu!(bench, cuMemcpy2DAsync(&flat, stream) => 0);
    let graph = bench.end(stream);
    bench.is("two dimensions", bench.shape(graph), (vec![COPY], 0));
    bench.begin(stream);
    let given = cu!(bench, cuMemcpy3DPeerAsync(&deep, stream) => 900);
    bench.is("three, between contexts", (given, bench.capture_status(stream)), (900, 2));
    let mut graph = null_mut();
    cu!(bench, cuStreamEndCapture(stream, &mut graph) => 901);
}

fn memory_from_a_pool(bench: &Bench) {
    bench.start();
    let (stream, mut pool) = (bench.stream(1), null_mut());
    cu!(bench, cuMemPoolCreate(&mut pool, &crate::bench::pool_properties(0)) => 0);
    let mut address = 0;
    bench.begin(stream);
    cu!(bench, cuMemAllocFromPoolAsync(&mut address, MIB, pool, stream) => 0);
    cu!(bench, cuMemFreeAsync(address, stream) => 0);
    // Freed once, in the graph.
    cu!(bench, cuMemFreeAsync(address, stream) => 1);
    bench.is("status", bench.capture_status(stream), 1);
    cu!(bench, cuMemAllocAsync(null_mut(), MIB, stream) => 1);
    bench.is("status", bench.capture_status(stream), 1);
    let graph = bench.end(stream);
    bench.is("shape", bench.shape(graph), (vec![ALLOCATE, FREE], 1));
}

fn addresses_at_capture(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    let empty = bench.reserve(crate::bench::UNIT);
    bench.begin(stream);
    cu!(bench, cuMemsetD8Async(empty, 1, 64, stream) => 0);
    cu!(bench, cuMemcpyAsync(address, empty, 64, stream) => 0);
    cu!(bench, cuMemsetD8Async(address, 1, 64 * MIB, stream) => 0);
    cu!(bench, cuMemsetD16Async(address + 1, 1, 2, stream) => 1);
    bench.is("status", bench.capture_status(stream), 1);
    let mut graph = null_mut();
    cu!(bench, cuStreamEndCapture(stream, &mut graph) => 0);
}

fn launch_that_is_wrong(bench: &Bench) {
    bench.start();
    let (stream, writer) = (bench.stream(1), bench.writer());
    bench.begin(stream);
    bench.launch_of_no_thread(writer, stream);
    bench.is("status", bench.capture_status(stream), 2);
    bench.end_with(stream, 901);
}

fn info_of_dependencies(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    let (fork, join) = (bench.event(), bench.event());
    bench.begin(a);
    cu!(bench, cuEventRecord(fork, a) => 0);
    cu!(bench, cuStreamWaitEvent(b, fork, 0) => 0);
    bench.is("joined at the start", bench.capture_info(b).3, 0);
    bench.fill(address, 1, a, 0);
    bench.fill(address, 2, b, 0);
    cu!(bench, cuEventRecord(join, b) => 0);
    cu!(bench, cuStreamWaitEvent(a, join, 0) => 0);
    bench.is("two branches", bench.capture_info(a).3, 2);
    cu!(bench, cuStreamWaitEvent(a, join, 0) => 0);
    bench.is("the same again", bench.capture_info(a).3, 2);
    bench.fill(address, 3, a, 0);
    bench.is("one end", bench.capture_info(a).3, 1);
    cu!(bench, cuStreamWaitEvent(a, join, 0) => 0);
    bench.is("what is behind already", bench.capture_info(a).3, 2);
    let graph = bench.end(a);
    bench.is("shape", bench.shape(graph), (vec![FILL; 3], 2));
}
