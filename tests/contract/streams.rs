//! Streams: creation, identity, states, and what becomes of destroyed ones.

use crate::Row;
use crate::bench::{Bench, LEGACY, PER_THREAD, cu, handle};
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["streams":
    create, priorities_are_clamped, destroy_the_defaults, ids, ids_are_not_recycled, contexts_of,
    fixed_handles, states, destroyed_with_pending_work, synchronize_waits, wait_event_arguments,
    null_outputs, per_thread_streams_differ,
    capture_status_of_idle_streams, destroying_does_not_wait,
];

fn create(bench: &Bench) {
    bench.start();
    let mut stream = handle(77);
    cu!(bench, cuStreamCreateWithPriority(&mut stream, 2, 0) => 1);
    cu!(bench, cuStreamCreateWithPriority(&mut stream, 0x10, 0) => 1);
    cu!(bench, cuStreamCreateWithPriority(null_mut(), 0, 0) => 1);
    bench.is("untouched", stream.addr(), 77);
    let (a, b) = (bench.stream(0), bench.stream(1));
    bench.is("two handles", a != b, true);
    cu!(bench, cuStreamDestroy(a) => 0);
    cu!(bench, cuStreamDestroy(b) => 0);
}

fn priorities_are_clamped(bench: &Bench) {
    bench.start();
    for (asked, expected) in [(0, 0), (-1, -1), (-5, -5), (-100, -5), (1, 0), (100, 0)] {
        let (mut stream, mut priority) = (null_mut(), 99);
        cu!(bench, cuStreamCreateWithPriority(&mut stream, 1, asked) => 0);
        cu!(bench, cuStreamGetPriority(stream, &mut priority) => 0);
        bench.is("priority", priority, expected);
    }
    for asked in [0, 1] {
        let (mut stream, mut flags) = (null_mut(), 99);
        cu!(bench, cuStreamCreateWithPriority(&mut stream, asked, 0) => 0);
        cu!(bench, cuStreamGetFlags(stream, &mut flags) => 0);
        bench.is("flags", flags, asked);
    }
    for fixed in [0, LEGACY, PER_THREAD] {
        let (mut priority, mut flags) = (99, 99);
        cu!(bench, cuStreamGetFlags(handle(fixed), &mut flags) => 0);
        bench.is("flags of a default stream", flags, 0);
        cu!(bench, cuStreamGetPriority(handle(fixed), &mut priority) => 0);
        bench.is("priority of a default stream", priority, 0);
    }
}

fn destroy_the_defaults(bench: &Bench) {
    bench.start();
    for fixed in [0, LEGACY, PER_THREAD] {
        cu!(bench, cuStreamDestroy(handle(fixed)) => 400);
        cu!(bench, cuStreamSynchronize(handle(fixed)) => 0);
    }
}

fn id(bench: &Bench, stream: CUstream) -> u64 {
    let mut id = 0;
    cu!(bench, cuStreamGetId(stream, &mut id) => 0);
    id
}

fn ids(bench: &Bench) {
    bench.start();
    let (a, b) = (bench.stream(0), bench.stream(1));
    bench.is("two ids", id(bench, a) != id(bench, b), true);
    bench.is("one id", id(bench, a) == id(bench, a), true);
    let fixed = [0, LEGACY, PER_THREAD].map(|number| id(bench, handle(number)));
    bench.is("legacy and NULL", fixed[0] == fixed[1], true);
    bench.is("legacy and per thread", fixed[1] != fixed[2], true);
    let other = std::thread::scope(|scope| {
        let context = {
            let mut context = null_mut();
            cu!(bench, cuCtxGetCurrent(&mut context) => 0);
            context.addr()
        };
        let thread = scope.spawn(move || {
            cu!(bench, cuCtxSetCurrent(handle(context)) => 0);
            id(bench, handle(PER_THREAD))
        });
        thread.join().unwrap()
    });
    bench.is("per thread, of another thread", other != fixed[2], true);
}

fn ids_are_not_recycled(bench: &Bench) {
    bench.start();
    let mut seen = Vec::new();
    for _ in 0..20 {
        let stream = bench.stream(1);
        seen.push(id(bench, stream));
        cu!(bench, cuStreamDestroy(stream) => 0);
    }
    seen.sort_unstable();
    seen.dedup();
    bench.is("different ids", seen.len(), 20);
}

fn contexts_of(bench: &Bench) {
    let ours = bench.start();
    for stream in [bench.stream(0), handle(0), handle(LEGACY), handle(PER_THREAD)] {
        let mut context = null_mut();
        cu!(bench, cuStreamGetCtx(stream, &mut context) => 0);
        bench.is("context", context == ours, true);
    }
}

fn fixed_handles(bench: &Bench) {
    bench.start();
    let (address, event) = (bench.warm(64), bench.event());
    for fixed in [0, LEGACY, PER_THREAD] {
        let stream = handle(fixed);
        cu!(bench, cuMemsetD8Async(address, fixed as u8 + 1, 64, stream) => 0);
        cu!(bench, cuEventRecord(event, stream) => 0);
        cu!(bench, cuStreamWaitEvent(stream, event, 0) => 0);
        bench.is("bytes", bench.fetch(address, 1, stream), vec![fixed as u8 + 1]);
        cu!(bench, cuStreamQuery(stream) => 0);
    }
}

fn states(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let stream = bench.stream(1);
    cu!(bench, cuStreamQuery(stream) => 0);
    let gate = bench.hold(stream);
    cu!(bench, cuStreamQuery(stream) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(stream) => 0);
    cu!(bench, cuStreamQuery(stream) => 0);
}

fn synchronize_waits(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (stream, other) = (bench.stream(1), bench.stream(1));
    let gate = bench.hold(stream);
    bench.waits("another stream", gate, false, || {
        cu!(bench, cuStreamSynchronize(other) => 0);
    });
    bench.waits("the stream", gate, true, || {
        cu!(bench, cuStreamSynchronize(stream) => 0);
    });
    let gate = bench.hold(stream);
    bench.waits("the context", gate, true, || {
        cu!(bench, cuCtxSynchronize() => 0);
    });
}

fn destroying_does_not_wait(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (stream, event) = (bench.stream(1), bench.event());
    let gate = bench.hold(stream);
    cu!(bench, cuEventRecord(event, stream) => 0);
    bench.waits("cuEventDestroy", gate, false, || {
        cu!(bench, cuEventDestroy(event) => 0);
    });
    bench.waits("cuStreamDestroy", gate, false, || {
        cu!(bench, cuStreamDestroy(stream) => 0);
    });
    bench.waits("cuStreamCreate", gate, false, || {
        bench.stream(1);
    });
    gate.open();
}

fn destroyed_with_pending_work(bench: &Bench) {
    bench.start();
    let (address, stream, event) = (bench.warm(64), bench.stream(1), bench.event());
    let gate = bench.hold(stream);
    cu!(bench, cuMemsetD8Async(address, 5, 64, stream) => 0);
    cu!(bench, cuEventRecord(event, stream) => 0);
    cu!(bench, cuStreamDestroy(stream) => 0);
    cu!(bench, cuEventQuery(event) => 600);
    gate.open();
    cu!(bench, cuEventSynchronize(event) => 0);
    bench.is("the work was done", bench.fetch(address, 1, bench.stream(1)), vec![5]);
}

fn wait_event_arguments(bench: &Bench) {
    bench.start();
    let (stream, event) = (bench.stream(1), bench.event());
    cu!(bench, cuEventRecord(event, stream) => 0);
    cu!(bench, cuStreamWaitEvent(stream, event, 1) => 401);
    cu!(bench, cuStreamWaitEvent(stream, event, 2) => 1);
    cu!(bench, cuStreamWaitEvent(stream, null_mut(), 0) => 400);
}

fn null_outputs(bench: &Bench) {
    bench.start();
    let stream = bench.stream(1);
    cu!(bench, cuStreamGetId(stream, null_mut()) => 1);
    cu!(bench, cuStreamGetPriority(stream, null_mut()) => 1);
    cu!(bench, cuStreamGetCtx(stream, null_mut()) => 1);
    cu!(bench, cuStreamIsCapturing(stream, null_mut()) => 1);
}

fn per_thread_streams_differ(bench: &Bench) {
    let context = bench.start().addr();
    bench.warm(64);
    let gate = bench.hold(handle(PER_THREAD));
    cu!(bench, cuStreamQuery(handle(PER_THREAD)) => 600);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cu!(bench, cuCtxSetCurrent(handle(context)) => 0);
            cu!(bench, cuStreamQuery(handle(PER_THREAD)) => 0);
            cu!(bench, cuStreamSynchronize(handle(PER_THREAD)) => 0);
        });
    });
    gate.open();
    cu!(bench, cuStreamSynchronize(handle(PER_THREAD)) => 0);
}

fn capture_status_of_idle_streams(bench: &Bench) {
    bench.start();
    for stream in [bench.stream(0), bench.stream(1), handle(0), handle(1), handle(2)] {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        cu!(bench, cuStreamIsCapturing(stream, &mut status) => 0);
        bench.is("status", status as u32, 0);
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        let mut id = 77;
        cu!(bench, cuStreamGetCaptureInfo(
            stream, &mut status, &mut id, null_mut(), null_mut(), null_mut()) => 0);
        bench.is("status and id", (status as u32, id), (0, 77));
        cu!(bench, cuStreamGetCaptureInfo(
            stream, &mut status, null_mut(), null_mut(), null_mut(), null_mut()) => 0);
        cu!(bench, cuStreamGetCaptureInfo(
            stream, null_mut(), null_mut(), null_mut(), null_mut(), null_mut()) => 1);
    }
}
