//! Capture over several streams: what joins, what must join again, and what must stay apart.

use crate::Row;
use crate::bench::{Bench, LEGACY, PER_THREAD, cu, handle};
use crate::capture::{FILL, GLOBAL, RELAXED};
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["capture":
    fork_and_join, diamond, not_joined, joined_without_work, joined_by_another, ended_elsewhere,
    fork_of_a_fork, work_after_the_join, two_captures_do_not_merge, events_from_outside,
    unrecorded_events, captured_events, captured_events_outside, destroyed_events, recorded_over,
    legacy_cannot_join, per_thread_joins, begin_on_a_joined_stream, joined_stream_is_broken_too,
    event_of_the_same_capture,
];

fn order(bench: &Bench, first: CUstream, second: CUstream) {
    let event = bench.event();
    cu!(bench, cuEventRecord(event, first) => 0);
    cu!(bench, cuStreamWaitEvent(second, event, 0) => 0);
    cu!(bench, cuEventDestroy(event) => 0);
}

fn fork_and_join(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(0));
    bench.begin(a);
    bench.fill(address, 1, a, 0);
    order(bench, a, b);
    bench.is("it joins", bench.capture_status(b), 1);
    let (first, second) = (bench.capture_info(a), bench.capture_info(b));
    bench.is("the same capture", (first.1, first.2) == (second.1, second.2), true);
    bench.fill(address, 2, b, 0);
    order(bench, b, a);
    bench.fill(address, 3, a, 0);
    bench.is("still joined", bench.capture_status(b), 1);
    let graph = bench.end(a);
    bench.is("shape", bench.shape(graph), (vec![FILL; 3], 3));
    bench.is("status", (bench.capture_status(a), bench.capture_status(b)), (0, 0));
    cu!(bench, cuStreamSynchronize(b) => 0);
    bench.is("bytes", bench.fetch(address, 1, a), vec![0]);
}

fn diamond(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    bench.begin(a);
    bench.fill(address, 1, a, 0);
    order(bench, a, b);
    bench.fill(address, 2, a, 0);
    bench.fill(address, 3, b, 0);
    order(bench, b, a);
    bench.fill(address, 4, a, 0);
    let graph = bench.end(a);
    bench.is("shape", bench.shape(graph), (vec![FILL; 4], 4));
}

fn not_joined(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    bench.begin(a);
    order(bench, a, b);
    bench.fill(address, 1, b, 0);
    bench.end_with(a, 904);
    bench.is("status", (bench.capture_status(a), bench.capture_status(b)), (0, 0));
    bench.fill(address, 2, b, 0);
    bench.is("bytes", bench.fetch(address, 1, b), vec![2]);
}

fn joined_without_work(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    bench.begin(a);
    order(bench, a, b);
    bench.fill(address, 1, a, 0);
    let graph = bench.end(a);
    bench.is("shape", bench.shape(graph), (vec![FILL], 0));
    bench.is("status", bench.capture_status(b), 0);
}

fn joined_by_another(bench: &Bench) {
    bench.start();
    let (address, a) = (bench.warm(64), bench.stream(1));
    let (b, c) = (bench.stream(1), bench.stream(1));
    bench.begin(a);
    order(bench, a, b);
    order(bench, a, c);
    bench.fill(address, 1, b, 0);
    bench.fill(address, 2, c, 0);
    // b's work reaches a through c.
    order(bench, b, c);
    bench.fill(address, 3, c, 0);
    order(bench, c, a);
    let graph = bench.end(a);
    bench.is("shape", bench.shape(graph), (vec![FILL; 3], 2));
}

fn ended_elsewhere(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    bench.begin(a);
    order(bench, a, b);
    bench.fill(address, 1, b, 0);
    bench.end_with(b, 903);
    bench.is("status", (bench.capture_status(a), bench.capture_status(b)), (2, 2));
    bench.end_with(a, 901);
}

fn fork_of_a_fork(bench: &Bench) {
    bench.start();
    let (address, a) = (bench.warm(64), bench.stream(1));
    let (b, c) = (bench.stream(1), bench.stream(1));
    bench.begin(a);
    order(bench, a, b);
    bench.fill(address, 1, b, 0);
    order(bench, b, c);
    bench.fill(address, 2, c, 0);
    order(bench, c, a);
    // What b has done is behind what c has done.
    let graph = bench.end(a);
    bench.is("shape", bench.shape(graph), (vec![FILL; 2], 1));
}

fn work_after_the_join(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    bench.begin(a);
    order(bench, a, b);
    bench.fill(address, 1, b, 0);
    order(bench, b, a);
    bench.fill(address, 2, b, 0);
    bench.end_with(a, 904);
}

fn two_captures_do_not_merge(bench: &Bench) {
    bench.start();
    let (address, a) = (bench.warm(64), bench.stream(1));
    let (b, event) = (bench.stream(1), bench.event());
    bench.begin(a);
    bench.begin(b);
    bench.fill(address, 1, a, 0);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 902);
    bench.is("status", (bench.capture_status(a), bench.capture_status(b)), (2, 2));
    let mut graph = null_mut();
    cu!(bench, cuStreamEndCapture(a, &mut graph) => 901);
    cu!(bench, cuStreamEndCapture(b, &mut graph) => 901);
}

fn events_from_outside(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (a, b, event) = (bench.stream(1), bench.stream(1), bench.event());
    cu!(bench, cuEventRecord(event, b) => 0);
    bench.begin(a);
    cu!(bench, cuStreamWaitEvent(a, event, 0) => 905);
    bench.is("status", bench.capture_status(a), 2);
    bench.end_with(a, 901);
    cu!(bench, cuStreamWaitEvent(a, event, 0) => 0);
    // Of the stream itself, before its capture.
    cu!(bench, cuEventRecord(event, a) => 0);
    bench.begin(a);
    cu!(bench, cuStreamWaitEvent(a, event, 0) => 905);
    bench.is("status", bench.capture_status(a), 2);
    bench.end_with(a, 901);
}

fn unrecorded_events(bench: &Bench) {
    bench.start();
    let (a, event) = (bench.stream(1), bench.event());
    bench.begin(a);
    cu!(bench, cuStreamWaitEvent(a, event, 0) => 0);
    bench.is("info", (bench.capture_info(a).0, bench.capture_info(a).3), (1, 0));
    bench.end(a);
}

fn captured_events(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (a, before) = (bench.stream(1), bench.event());
    cu!(bench, cuEventRecord(before, a) => 0);
    for mode in [GLOBAL, RELAXED] {
        for kind in ["query", "wait", "elapsed time"] {
            let event = bench.event();
            let mut ms = 7.0;
            cu!(bench, cuStreamBeginCapture(a, mode) => 0);
            cu!(bench, cuEventRecord(event, a) => 0);
            let given = match kind {
                "query" => cu!(bench, cuEventQuery(event) => 907),
                "wait" => cu!(bench, cuEventSynchronize(event) => 907),
                _ => cu!(bench, cuEventElapsedTime(&mut ms, before, event) => 907),
            };
            let breaks = kind != "elapsed time";
            bench.is(kind, (given, bench.capture_status(a)), (907, 1 + i32::from(breaks)));
            let mut graph = null_mut();
            cu!(bench, cuStreamEndCapture(a, &mut graph) => if breaks { 901 } else { 0 });
        }
    }
}

fn captured_events_outside(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    let event = bench.event();
    bench.begin(a);
    bench.fill(address, 1, a, 0);
    cu!(bench, cuEventRecord(event, a) => 0);
    // A record on a stream that is not captured takes it out again.
    cu!(bench, cuEventRecord(event, b) => 0);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 0);
    bench.is("status", (bench.capture_status(a), bench.capture_status(b)), (1, 0));
    let graph = bench.end(a);
    bench.is("shape", bench.shape(graph), (vec![FILL], 0));
    cu!(bench, cuEventSynchronize(event) => 0);
}

fn destroyed_events(bench: &Bench) {
    bench.start();
    let (address, a, event) = (bench.warm(64), bench.stream(1), bench.event());
    bench.begin(a);
    bench.fill(address, 1, a, 0);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuEventDestroy(event) => 0);
    bench.is("status", bench.capture_status(a), 1);
    let graph = bench.end(a);
    bench.is("shape", bench.shape(graph), (vec![FILL], 0));
}

fn recorded_over(bench: &Bench) {
    bench.start();
    let (address, a) = (bench.warm(64), bench.stream(1));
    let (b, event) = (bench.stream(1), bench.event());
    bench.begin(a);
    cu!(bench, cuEventRecord(event, a) => 0);
    bench.fill(address, 1, a, 0);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 0);
    bench.is("dependencies", bench.capture_info(b).3, 1);
    bench.fill(address, 2, b, 0);
    order(bench, b, a);
    let graph = bench.end(a);
    bench.is("shape", bench.shape(graph), (vec![FILL; 2], 1));
}

fn legacy_cannot_join(bench: &Bench) {
    bench.start();
    bench.warm(64);
    for flags in [0, 1] {
        for fixed in [0, LEGACY] {
            let (a, event) = (bench.stream(flags), bench.event());
            bench.begin(a);
            cu!(bench, cuEventRecord(event, a) => 0);
            let given = cu!(bench, cuStreamWaitEvent(handle(fixed), event, 0) => 906);
            bench.is("status", (given, bench.capture_status(a)), (906, 2));
            let mut graph = null_mut();
            cu!(bench, cuStreamEndCapture(a, &mut graph) => 901);
        }
    }
}

fn per_thread_joins(bench: &Bench) {
    bench.start();
    let (address, a, own) = (bench.warm(64), bench.stream(1), handle(PER_THREAD));
    bench.begin(a);
    order(bench, a, own);
    bench.is("status", bench.capture_status(own), 1);
    bench.fill(address, 1, own, 0);
    cu!(bench, cuStreamQuery(null_mut()) => 906);
    let mut graph = null_mut();
    cu!(bench, cuStreamEndCapture(a, &mut graph) => 901);
}

fn begin_on_a_joined_stream(bench: &Bench) {
    bench.start();
    let (a, b) = (bench.stream(1), bench.stream(1));
    bench.begin(a);
    order(bench, a, b);
    cu!(bench, cuStreamBeginCapture(b, GLOBAL) => 401);
    bench.is("status", (bench.capture_status(a), bench.capture_status(b)), (1, 1));
    bench.end(a);
}

fn joined_stream_is_broken_too(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    bench.begin(a);
    order(bench, a, b);
    cu!(bench, cuStreamSynchronize(b) => 900);
    bench.is("status", (bench.capture_status(a), bench.capture_status(b)), (2, 2));
    bench.fill(address, 1, b, 901);
    bench.fill(address, 1, a, 901);
    bench.end_with(b, 903);
    bench.is("status", (bench.capture_status(a), bench.capture_status(b)), (2, 2));
    bench.end_with(a, 901);
    bench.is("status", (bench.capture_status(a), bench.capture_status(b)), (0, 0));
    bench.fill(address, 4, b, 0);
    bench.is("bytes", bench.fetch(address, 1, b), vec![4]);
}

fn event_of_the_same_capture(bench: &Bench) {
    bench.start();
    let (address, a, event) = (bench.warm(64), bench.stream(1), bench.event());
    bench.begin(a);
    bench.fill(address, 1, a, 0);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuStreamWaitEvent(a, event, 0) => 0);
    bench.is("dependencies", bench.capture_info(a).3, 1);
    bench.fill(address, 2, a, 0);
    let graph = bench.end(a);
    bench.is("shape", bench.shape(graph), (vec![FILL; 2], 1));
}
