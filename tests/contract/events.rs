//! Events: unrecorded, recorded, recorded again, destroyed.

use crate::Row;
use crate::bench::{Bench, cu, handle};
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["events":
    flags, unrecorded, recorded, recorded_again, two_records_in_one_stream, elapsed_time,
    elapsed_time_needs_timing, elapsed_time_of_the_unfinished, record_flags, null_events,
    destroyed_events_still_order, synchronize_waits, blocking_events, events_on_default_streams,
];

fn with_flags(bench: &Bench, flags: u32) -> CUevent {
    let mut event = null_mut();
    cu!(bench, cuEventCreate(&mut event, flags) => 0);
    event
}

fn flags(bench: &Bench) {
    bench.start();
    let mut event = handle(77);
    for good in [0, 1, 2, 3, 6, 7] {
        cu!(bench, cuEventCreate(&mut event, good) => 0);
        cu!(bench, cuEventDestroy(event) => 0);
    }
    event = handle(77);
    for bad in [4, 5, 8, 16, 0x8000_0000] {
        cu!(bench, cuEventCreate(&mut event, bad) => 1);
    }
    cu!(bench, cuEventCreate(null_mut(), 0) => 1);
    bench.is("untouched", event.addr(), 77);
}

fn unrecorded(bench: &Bench) {
    bench.start();
    let (event, stream) = (bench.event(), bench.stream(1));
    let mut ms = 7.0;
    cu!(bench, cuEventQuery(event) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    cu!(bench, cuStreamWaitEvent(stream, event, 0) => 0);
    cu!(bench, cuEventElapsedTime(&mut ms, event, event) => 400);
    bench.is("untouched", ms, 7.0);
    cu!(bench, cuEventDestroy(event) => 0);
}

fn recorded(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (event, stream) = (bench.event(), bench.stream(1));
    let gate = bench.hold(stream);
    cu!(bench, cuEventRecord(event, stream) => 0);
    cu!(bench, cuEventQuery(event) => 600);
    gate.open();
    cu!(bench, cuEventSynchronize(event) => 0);
    cu!(bench, cuEventQuery(event) => 0);
}

fn recorded_again(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (event, a, b) = (bench.event(), bench.stream(1), bench.stream(1));
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    let gate = bench.hold(b);
    cu!(bench, cuEventRecord(event, b) => 0);
    cu!(bench, cuEventQuery(event) => 600);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    cu!(bench, cuEventQuery(event) => 0);
    gate.open();
}

fn two_records_in_one_stream(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (event, stream) = (bench.event(), bench.stream(1));
    cu!(bench, cuEventRecord(event, stream) => 0);
    let gate = bench.hold(stream);
    cu!(bench, cuEventRecord(event, stream) => 0);
    cu!(bench, cuEventQuery(event) => 600);
    gate.open();
    cu!(bench, cuEventSynchronize(event) => 0);
}

fn elapsed_time(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (start, end, stream) = (bench.event(), bench.event(), bench.stream(1));
    let mut ms = 7.0;
    cu!(bench, cuEventRecord(start, stream) => 0);
    cu!(bench, cuEventSynchronize(start) => 0);
    let gate = bench.hold(stream);
    cu!(bench, cuEventRecord(end, stream) => 0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    gate.open();
    cu!(bench, cuEventSynchronize(end) => 0);
    cu!(bench, cuEventElapsedTime(&mut ms, start, end) => 0);
    bench.is("at least what it was held", ms >= 19.0, true);
    cu!(bench, cuEventElapsedTime(&mut ms, end, start) => 0);
    bench.is("negative the other way", ms <= -19.0, true);
    cu!(bench, cuEventElapsedTime(&mut ms, start, start) => 0);
    bench.is("of one event", ms, 0.0);
    cu!(bench, cuEventElapsedTime(null_mut(), start, end) => 400);
    cu!(bench, cuEventElapsedTime(&mut ms, start, null_mut()) => 400);
    cu!(bench, cuEventElapsedTime(&mut ms, null_mut(), end) => 400);
}

fn elapsed_time_needs_timing(bench: &Bench) {
    bench.start();
    let (timed, untimed, stream) = (bench.event(), with_flags(bench, 2), bench.stream(1));
    let mut ms = 7.0;
    cu!(bench, cuEventRecord(timed, stream) => 0);
    cu!(bench, cuEventRecord(untimed, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    cu!(bench, cuEventElapsedTime(&mut ms, timed, untimed) => 400);
    cu!(bench, cuEventElapsedTime(&mut ms, untimed, timed) => 400);
    cu!(bench, cuEventElapsedTime(&mut ms, untimed, untimed) => 400);
    let unrecorded = bench.event();
    cu!(bench, cuEventElapsedTime(&mut ms, timed, unrecorded) => 400);
    cu!(bench, cuEventElapsedTime(&mut ms, unrecorded, timed) => 400);
}

fn elapsed_time_of_the_unfinished(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (start, end, stream) = (bench.event(), bench.event(), bench.stream(1));
    let mut ms = 7.0;
    cu!(bench, cuEventRecord(start, stream) => 0);
    let gate = bench.hold(stream);
    cu!(bench, cuEventRecord(end, stream) => 0);
    cu!(bench, cuEventElapsedTime(&mut ms, start, end) => 600);
    cu!(bench, cuEventElapsedTime(&mut ms, end, start) => 600);
    cu!(bench, cuEventElapsedTime(&mut ms, end, end) => 600);
    gate.open();
    cu!(bench, cuEventSynchronize(end) => 0);
    cu!(bench, cuEventElapsedTime(&mut ms, start, end) => 0);
}

fn record_flags(bench: &Bench) {
    bench.start();
    let (event, stream) = (bench.event(), bench.stream(1));
    cu!(bench, cuEventRecordWithFlags(event, stream, 0) => 0);
    cu!(bench, cuEventRecordWithFlags(event, stream, 1) => 401);
    cu!(bench, cuEventRecordWithFlags(event, stream, 2) => 1);
    cu!(bench, cuEventRecordWithFlags(event, null_mut(), 0) => 0);
}

fn null_events(bench: &Bench) {
    bench.start();
    let stream = bench.stream(1);
    cu!(bench, cuEventQuery(null_mut()) => 400);
    cu!(bench, cuEventSynchronize(null_mut()) => 400);
    cu!(bench, cuEventRecord(null_mut(), stream) => 400);
    cu!(bench, cuEventDestroy(null_mut()) => 400);
}

fn destroyed_events_still_order(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    let event = bench.event();
    let gate = bench.hold(a);
    cu!(bench, cuMemsetD8Async(address, 1, 64, a) => 0);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 0);
    cu!(bench, cuEventDestroy(event) => 0);
    cu!(bench, cuMemsetD8Async(address, 2, 64, b) => 0);
    // Its handle may come back for another event.
    for _ in 0..4 {
        let other = bench.event();
        cu!(bench, cuEventRecord(other, null_mut()) => 0);
        cu!(bench, cuEventSynchronize(other) => 0);
    }
    cu!(bench, cuStreamQuery(b) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(b) => 0);
    bench.is("last", bench.fetch(address, 1, b), vec![2]);
}

fn synchronize_waits(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (early, late, stream) = (bench.event(), bench.event(), bench.stream(1));
    cu!(bench, cuEventRecord(early, stream) => 0);
    let gate = bench.hold(stream);
    cu!(bench, cuEventRecord(late, stream) => 0);
    bench.waits("for an earlier point", gate, false, || {
        cu!(bench, cuEventSynchronize(early) => 0);
    });
    bench.waits("for a later point", gate, true, || {
        cu!(bench, cuEventSynchronize(late) => 0);
    });
}

fn blocking_events(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (event, stream) = (with_flags(bench, 1), bench.stream(1));
    let gate = bench.hold(stream);
    cu!(bench, cuEventRecord(event, stream) => 0);
    bench.waits("a blocking event", gate, true, || {
        cu!(bench, cuEventSynchronize(event) => 0);
    });
}

fn events_on_default_streams(bench: &Bench) {
    bench.start();
    let event = bench.event();
    for fixed in [0, 1, 2] {
        cu!(bench, cuEventRecord(event, handle(fixed)) => 0);
        cu!(bench, cuEventSynchronize(event) => 0);
        cu!(bench, cuStreamWaitEvent(handle(fixed), event, 0) => 0);
    }
}
