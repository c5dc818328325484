//! The order of streams: what waits for what without being asked, and what does not.

use crate::Row;
use crate::bench::{Bench, PER_THREAD, cu, handle};
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["order":
    legacy_waits_for_blocking, blocking_waits_for_legacy, non_blocking_is_free,
    per_thread_waits_for_legacy, legacy_waits_for_per_thread, blocking_streams_are_free,
    legacy_between_two, record_on_legacy, wait_on_legacy, empty_legacy_orders,
    synchronize_legacy, query_legacy, synchronize_per_thread, callback_on_legacy, wait_of_an_event,
    wait_of_a_later_record, wait_of_an_unrecorded_event, chain_of_waits, context_waits_for_all,
    legacy_and_new_streams, synchronize_blocking_behind_legacy, copies_on_legacy,
];

fn filled(bench: &Bench, address: u64, value: u8, stream: CUstream) {
    cu!(bench, cuMemsetD8Async(address, value, 64, stream) => 0);
}

/// `first` is held, then fills with 1; `second` fills with 2: which is last?
fn last(bench: &Bench, first: CUstream, second: CUstream) -> u8 {
    let address = bench.warm(64);
    let gate = bench.hold(first);
    filled(bench, address, 1, first);
    filled(bench, address, 2, second);
    // Time for the second to run, if it does not wait.
    std::thread::sleep(std::time::Duration::from_millis(100));
    gate.open();
    cu!(bench, cuCtxSynchronize() => 0);
    bench.fetch(address, 1, null_mut())[0]
}

fn legacy_waits_for_blocking(bench: &Bench) {
    bench.start();
    bench.is("last", last(bench, bench.stream(0), null_mut()), 2);
}

fn blocking_waits_for_legacy(bench: &Bench) {
    bench.start();
    bench.is("last", last(bench, null_mut(), bench.stream(0)), 2);
}

fn non_blocking_is_free(bench: &Bench) {
    bench.start();
    bench.is("last", last(bench, null_mut(), bench.stream(1)), 1);
    bench.is("last", last(bench, bench.stream(1), null_mut()), 1);
}

fn per_thread_waits_for_legacy(bench: &Bench) {
    bench.start();
    bench.is("last", last(bench, null_mut(), handle(PER_THREAD)), 2);
}

fn legacy_waits_for_per_thread(bench: &Bench) {
    bench.start();
    bench.is("last", last(bench, handle(PER_THREAD), null_mut()), 2);
}

fn blocking_streams_are_free(bench: &Bench) {
    bench.start();
    bench.is("last", last(bench, bench.stream(0), bench.stream(0)), 1);
    bench.is("last", last(bench, bench.stream(0), handle(PER_THREAD)), 1);
    bench.is("last", last(bench, bench.stream(1), bench.stream(0)), 1);
}

fn legacy_between_two(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(0), bench.stream(0));
    let gate = bench.hold(a);
    filled(bench, address, 1, a);
    filled(bench, address, 2, null_mut());
    filled(bench, address, 3, b);
    cu!(bench, cuStreamQuery(b) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(b) => 0);
    bench.is("last", bench.fetch(address, 1, null_mut()), vec![3]);
}

fn record_on_legacy(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (a, b, event) = (bench.stream(0), bench.stream(1), bench.event());
    let gate = bench.hold(a);
    cu!(bench, cuEventRecord(event, null_mut()) => 0);
    cu!(bench, cuEventQuery(event) => 600);
    cu!(bench, cuEventRecord(event, b) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    gate.open();
}

fn wait_on_legacy(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(0));
    let event = bench.event();
    let gate = bench.hold(a);
    filled(bench, address, 1, a);
    cu!(bench, cuEventRecord(event, a) => 0);
    // The legacy stream waits, and with it the blocking ones after it.
    cu!(bench, cuStreamWaitEvent(null_mut(), event, 0) => 0);
    filled(bench, address, 2, b);
    std::thread::sleep(std::time::Duration::from_millis(100));
    gate.open();
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("last", bench.fetch(address, 1, null_mut()), vec![2]);
}

fn empty_legacy_orders(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(0), bench.stream(0));
    let event = bench.event();
    cu!(bench, cuEventRecord(event, b) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    let gate = bench.hold(a);
    filled(bench, address, 1, a);
    cu!(bench, cuStreamWaitEvent(null_mut(), event, 0) => 0);
    filled(bench, address, 2, b);
    std::thread::sleep(std::time::Duration::from_millis(100));
    gate.open();
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("last", bench.fetch(address, 1, null_mut()), vec![2]);
}

fn synchronize_legacy(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (blocking, free) = (bench.stream(0), bench.stream(1));
    let gate = bench.hold(free);
    bench.waits("for a non-blocking stream", gate, false, || {
        cu!(bench, cuStreamSynchronize(null_mut()) => 0);
    });
    gate.open();
    let gate = bench.hold(blocking);
    bench.waits("for a blocking stream", gate, true, || {
        cu!(bench, cuStreamSynchronize(null_mut()) => 0);
    });
    let gate = bench.hold(handle(PER_THREAD));
    bench.waits("for the thread's stream", gate, true, || {
        cu!(bench, cuStreamSynchronize(null_mut()) => 0);
    });
}

fn query_legacy(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (blocking, free) = (bench.stream(0), bench.stream(1));
    let gate = bench.hold(free);
    cu!(bench, cuStreamQuery(null_mut()) => 0);
    gate.open();
    cu!(bench, cuStreamSynchronize(free) => 0);
    let gate = bench.hold(blocking);
    cu!(bench, cuStreamQuery(null_mut()) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(blocking) => 0);
}

fn synchronize_per_thread(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let gate = bench.hold(null_mut());
    bench.waits("a per-thread stream behind the legacy one", gate, false, || {
        cu!(bench, cuStreamSynchronize(handle(PER_THREAD)) => 0);
    });
    gate.open();
}

fn synchronize_blocking_behind_legacy(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let stream = bench.stream(0);
    let gate = bench.hold(null_mut());
    cu!(bench, cuStreamQuery(stream) => 0);
    bench.waits("a blocking stream without work", gate, false, || {
        cu!(bench, cuStreamSynchronize(stream) => 0);
    });
    gate.open();
}

fn callback_on_legacy(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (a, b) = (bench.stream(0), bench.stream(0));
    let gate = bench.hold(a);
    cu!(bench, cuLaunchHostFunc(null_mut(), Some(nothing), null_mut()) => 0);
    cu!(bench, cuLaunchHostFunc(b, Some(nothing), null_mut()) => 0);
    cu!(bench, cuStreamQuery(b) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(b) => 0);
}

unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}

fn wait_of_an_event(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    let event = bench.event();
    let gate = bench.hold(a);
    filled(bench, address, 1, a);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 0);
    filled(bench, address, 2, b);
    cu!(bench, cuStreamQuery(b) => 600);
    std::thread::sleep(std::time::Duration::from_millis(50));
    gate.open();
    cu!(bench, cuStreamSynchronize(b) => 0);
    bench.is("last", bench.fetch(address, 1, b), vec![2]);
}

fn wait_of_a_later_record(bench: &Bench) {
    bench.start();
    let (address, a, b, c) = (bench.warm(64), bench.stream(1), bench.stream(1), bench.stream(1));
    let event = bench.event();
    let gate = bench.hold(a);
    filled(bench, address, 1, a);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 0);
    // What the wait means was settled above.
    cu!(bench, cuEventRecord(event, c) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    filled(bench, address, 2, b);
    cu!(bench, cuStreamQuery(b) => 600);
    // The other way round: a wait of the completed record does not wait for the held one.
    cu!(bench, cuStreamWaitEvent(c, event, 0) => 0);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuStreamSynchronize(c) => 0);
    cu!(bench, cuEventDestroy(event) => 0);
    gate.open();
    cu!(bench, cuStreamSynchronize(b) => 0);
    bench.is("last", bench.fetch(address, 1, b), vec![2]);
}

fn wait_of_an_unrecorded_event(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (a, b, event) = (bench.stream(1), bench.stream(1), bench.event());
    let gate = bench.hold(a);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 0);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuStreamSynchronize(b) => 0);
    cu!(bench, cuEventQuery(event) => 600);
    gate.open();
}

fn chain_of_waits(bench: &Bench) {
    bench.start();
    let address = bench.warm(64);
    let streams: Vec<CUstream> = (0..6).map(|index| bench.stream(index % 2)).collect();
    let gate = bench.hold(streams[0]);
    for (index, stream) in streams.iter().enumerate() {
        filled(bench, address, index as u8 + 1, *stream);
        let event = bench.event();
        cu!(bench, cuEventRecord(event, *stream) => 0);
        if let Some(next) = streams.get(index + 1) {
            cu!(bench, cuStreamWaitEvent(*next, event, 0) => 0);
        }
        cu!(bench, cuEventDestroy(event) => 0);
    }
    cu!(bench, cuStreamQuery(streams[5]) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(streams[5]) => 0);
    bench.is("last", bench.fetch(address, 1, streams[5]), vec![6]);
}

fn context_waits_for_all(bench: &Bench) {
    bench.start();
    bench.warm(64);
    for stream in [null_mut(), handle(PER_THREAD), bench.stream(0), bench.stream(1)] {
        let gate = bench.hold(stream);
        bench.waits("cuCtxSynchronize", gate, true, || {
            cu!(bench, cuCtxSynchronize() => 0);
        });
    }
}

fn legacy_and_new_streams(bench: &Bench) {
    bench.start();
    let address = bench.warm(64);
    let gate = bench.hold(null_mut());
    filled(bench, address, 1, null_mut());
    // Made after the legacy stream's work was queued.
    let stream = bench.stream(0);
    filled(bench, address, 2, stream);
    std::thread::sleep(std::time::Duration::from_millis(100));
    gate.open();
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("last", bench.fetch(address, 1, null_mut()), vec![2]);
}

fn copies_on_legacy(bench: &Bench) {
    bench.start();
    let (address, stream, pinned) = (bench.warm(64), bench.stream(0), bench.pinned(64));
    let gate = bench.hold(stream);
    filled(bench, address, 9, stream);
    cu!(bench, cuMemcpyAsync(crate::bench::host(pinned), address, 64, null_mut()) => 0);
    bench.is("not yet", pinned[0], 0);
    gate.open();
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("bytes", pinned[0], 9);
}
