//! Errors that stay: how they come to be, and what is left of a context that has one.

use crate::Row;
use crate::bench::{Bench, UNIT, access, cu, host};
use std::ptr::null_mut;
use std::time::Duration;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["errors":
    illegal_write, illegal_read, write_to_read_only_memory, misaligned_access, trap, assertion,
    the_first_error_stays, queries_tell_of_it, work_before_it_is_done, work_behind_it_is_not,
    callbacks_behind_it, other_streams_share_it, another_thread_sees_it, without_a_current_context,
    refused_launches_leave_none, released_and_retained, retained_twice_and_released_once,
    reset, reset_of_a_healthy_context, freed_memory_of_a_kernel, unmapped_memory_of_a_kernel,
    it_is_of_the_whole_process,
];

/// A kernel on `stream` writes where nothing is mapped.
pub fn fail(bench: &Bench, writer: CUfunction, stream: CUstream) {
    let hole = bench.reserve(UNIT);
    bench.write(writer, hole, 1, stream, 0);
    cu!(bench, cuStreamSynchronize(stream) => 700);
}

fn illegal_write(bench: &Bench) {
    bench.start();
    let (writer, stream) = (bench.writer(), bench.stream(1));
    let hole = bench.reserve(UNIT);
    bench.write(writer, hole, 1, stream, 0);
    cu!(bench, cuStreamSynchronize(stream) => 700);
    cu!(bench, cuStreamSynchronize(stream) => 700);
    cu!(bench, cuCtxSynchronize() => 700);
}

fn illegal_read(bench: &Bench) {
    bench.start();
    let copier = bench.function(bench.module(), c"contract_copy");
    let (hole, address) = (bench.reserve(UNIT), bench.warm(64));
    bench.copy_word(copier, address, hole, null_mut());
    cu!(bench, cuCtxSynchronize() => 700);
}

fn write_to_read_only_memory(bench: &Bench) {
    bench.start();
    let writer = bench.writer();
    let address = bench.mapped(UNIT);
    bench.write(writer, address, 1, null_mut(), 0);
    cu!(bench, cuCtxSynchronize() => 0);
    cu!(bench, cuMemSetAccess(address, UNIT, &access(0, 1), 1) => 0);
    bench.write(writer, address, 1, null_mut(), 0);
    cu!(bench, cuCtxSynchronize() => 700);
}

fn misaligned_access(bench: &Bench) {
    bench.start();
    let (writer, address) = (bench.writer(), bench.warm(64));
    bench.write(writer, address + 1, 1, null_mut(), 0);
    cu!(bench, cuCtxSynchronize() => 716);
    cu!(bench, cuStreamQuery(null_mut()) => 716);
}

fn trap(bench: &Bench) {
    bench.start();
    let trap = bench.function(bench.module(), c"contract_trap");
    bench.launch(trap, null_mut(), 0);
    cu!(bench, cuCtxSynchronize() => 719);
    cu!(bench, cuStreamQuery(null_mut()) => 719);
}

fn assertion(bench: &Bench) {
    bench.start();
    let mut module = null_mut();
    cu!(bench, cuModuleLoadData(&mut module, crate::kernels::ASSERTION.as_ptr().cast()) => 0);
    let assertion = bench.function(module, c"contract_assertion");
    bench.launch(assertion, null_mut(), 0);
    cu!(bench, cuCtxSynchronize() => 710);
    cu!(bench, cuStreamQuery(null_mut()) => 710);
}

fn the_first_error_stays(bench: &Bench) {
    bench.start();
    let (writer, stream) = (bench.writer(), bench.stream(1));
    let trap = bench.function(bench.module(), c"contract_trap");
    bench.launch(trap, stream, 0);
    cu!(bench, cuStreamSynchronize(stream) => 719);
    bench.write(writer, 4096, 1, stream, 719);
    bench.launch(trap, stream, 719);
    cu!(bench, cuStreamSynchronize(stream) => 719);
}

/// Asks until the answer is no longer that it is not ready.
fn answer(mut ask: impl FnMut() -> i32) -> i32 {
    for _ in 0..2000 {
        let answer = ask();
        if answer != 600 {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    600
}

fn queries_tell_of_it(bench: &Bench) {
    bench.start();
    let (writer, stream, event) = (bench.writer(), bench.stream(1), bench.event());
    let hole = bench.reserve(UNIT);
    let gate = bench.hold(stream);
    bench.write(writer, hole, 1, stream, 0);
    cu!(bench, cuEventRecord(event, stream) => 0);
    gate.open();
    // SAFETY: the handles are alive.
    let query = || unsafe { bench.driver.cuStreamQuery(stream) };
    bench.is("cuStreamQuery", answer(|| query().map_or_else(|error| error.code, |()| 0)), 700);
    cu!(bench, cuEventQuery(event) => 700);
    cu!(bench, cuEventSynchronize(event) => 700);
    cu!(bench, cuStreamSynchronize(stream) => 700);
}

fn work_before_it_is_done(bench: &Bench) {
    bench.start();
    let (writer, stream, address) = (bench.writer(), bench.stream(1), bench.warm(64));
    let pinned = bench.pinned(64);
    cu!(bench, cuMemsetD8Async(address, 5, 64, stream) => 0);
    cu!(bench, cuMemcpyAsync(host(pinned), address, 64, stream) => 0);
    fail(bench, writer, stream);
    bench.is("bytes", (pinned[0], pinned[63]), (5, 5));
}

fn work_behind_it_is_not(bench: &Bench) {
    bench.start();
    let (writer, stream, address) = (bench.writer(), bench.stream(1), bench.warm(64));
    let (pinned, hole) = (bench.pinned(64), bench.reserve(UNIT));
    cu!(bench, cuMemsetD8Async(address, 5, 64, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    let gate = bench.hold(stream);
    bench.write(writer, hole, 1, stream, 0);
    cu!(bench, cuMemcpyAsync(host(pinned), address, 64, stream) => 0);
    gate.open();
    cu!(bench, cuStreamSynchronize(stream) => 700);
    bench.is("bytes", (pinned[0], pinned[63]), (0, 0));
}

fn callbacks_behind_it(bench: &Bench) {
    bench.start();
    let (writer, stream, hole) = (bench.writer(), bench.stream(1), bench.reserve(UNIT));
    let gate = bench.hold(stream);
    bench.write(writer, hole, 1, stream, 0);
    let count = bench.count(stream, 0);
    gate.open();
    cu!(bench, cuStreamSynchronize(stream) => 700);
    std::thread::sleep(Duration::from_millis(100));
    bench.is("called", count.get(), 0);
    bench.count(stream, 700);
}

fn other_streams_share_it(bench: &Bench) {
    bench.start();
    let (writer, stream, other) = (bench.writer(), bench.stream(1), bench.stream(1));
    let (event, unrecorded) = (bench.event(), bench.event());
    cu!(bench, cuEventRecord(event, other) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    fail(bench, writer, stream);
    cu!(bench, cuStreamQuery(other) => 700);
    cu!(bench, cuStreamSynchronize(other) => 700);
    cu!(bench, cuStreamQuery(null_mut()) => 700);
    cu!(bench, cuStreamSynchronize(null_mut()) => 700);
    cu!(bench, cuEventQuery(event) => 700);
    cu!(bench, cuEventSynchronize(event) => 700);
    cu!(bench, cuEventQuery(unrecorded) => 700);
    cu!(bench, cuEventSynchronize(unrecorded) => 700);
}

fn another_thread_sees_it(bench: &Bench) {
    let context = bench.start().addr();
    let stream = bench.stream(1);
    fail(bench, bench.writer(), stream);
    let stream = stream.addr();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut address, stream) = (0, crate::bench::handle(stream));
            cu!(bench, cuStreamQuery(stream) => 700);
            cu!(bench, cuMemAlloc(&mut address, 16) => 201);
            cu!(bench, cuCtxSetCurrent(crate::bench::handle(context)) => 0);
            cu!(bench, cuMemAlloc(&mut address, 16) => 700);
            cu!(bench, cuStreamQuery(stream) => 700);
        });
    });
}

fn without_a_current_context(bench: &Bench) {
    bench.start();
    let (stream, address, event) = (bench.stream(1), bench.warm(64), bench.event());
    fail(bench, bench.writer(), stream);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuMemAddressFree(0, 0) => 1);
    cu!(bench, cuStreamQuery(stream) => 700);
    cu!(bench, cuEventQuery(event) => 700);
    cu!(bench, cuEventRecord(event, stream) => 700);
    cu!(bench, cuMemsetD8Async(address, 1, 64, stream) => 700);
    cu!(bench, cuMemFree(address) => 700);
    cu!(bench, cuEventDestroy(event) => 700);
    cu!(bench, cuStreamDestroy(stream) => 700);
    let hole = bench.reserve(UNIT);
    cu!(bench, cuMemAddressFree(hole, UNIT) => 0);
}

fn refused_launches_leave_none(bench: &Bench) {
    bench.start();
    let (function, stream) = (bench.function(bench.module(), c"contract_nothing"), bench.stream(1));
    cu!(bench, cuLaunchKernel(
        function, 0, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()) => 1);
    cu!(bench, cuStreamQuery(stream) => 0);
    cu!(bench, cuLaunchKernel(
        function, 1, 1, 1, 2048, 1, 1, 0, stream, null_mut(), null_mut()) => 1);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    bench.launch(function, stream, 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn released_and_retained(bench: &Bench) {
    bench.start();
    fail(bench, bench.writer(), bench.stream(1));
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    let (mut flags, mut active) = (9, 9);
    cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) => 0);
    bench.is("active", active, 0);
    cu!(bench, cuMemAlloc(&mut 0, 16) => 709);
    // The process has lost the device for good.
    let mut context = crate::bench::handle(77);
    cu!(bench, cuDevicePrimaryCtxRetain(&mut context, 0) => 700);
    bench.is("untouched", context.addr() == 77 || context.is_null(), true);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 201);
}

fn retained_twice_and_released_once(bench: &Bench) {
    bench.start();
    bench.use_device(0);
    fail(bench, bench.writer(), bench.stream(1));
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    cu!(bench, cuCtxSynchronize() => 700);
    bench.use_device(0);
    cu!(bench, cuCtxSynchronize() => 700);
}

fn reset(bench: &Bench) {
    bench.start();
    fail(bench, bench.writer(), bench.stream(1));
    cu!(bench, cuDevicePrimaryCtxReset(0) => 0);
    let (mut flags, mut active) = (9, 9);
    cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) => 0);
    bench.is("active", active, 0);
    cu!(bench, cuMemAlloc(&mut 0, 16) => 709);
    cu!(bench, cuDevicePrimaryCtxRetain(&mut null_mut(), 0) => 700);
}

fn reset_of_a_healthy_context(bench: &Bench) {
    let context = bench.start();
    bench.use_device(0);
    let (stream, event) = (bench.stream(1), bench.event());
    cu!(bench, cuDevicePrimaryCtxReset(0) => 0);
    cu!(bench, cuStreamQuery(stream) => 709);
    cu!(bench, cuEventQuery(event) => 709);
    cu!(bench, cuMemAlloc(&mut 0, 16) => 709);
    let (mut flags, mut active) = (9, 9);
    cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) => 0);
    bench.is("active", active, 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 0);
    cu!(bench, cuDevicePrimaryCtxRelease(0) => 201);
    cu!(bench, cuDevicePrimaryCtxReset(0) => 0);
    bench.is("the same handle", bench.use_device(0) == context, true);
    bench.allocate(64);
}

fn freed_memory_of_a_kernel(bench: &Bench) {
    bench.start();
    let (writer, address) = (bench.writer(), bench.allocate(4 * UNIT));
    cu!(bench, cuMemFree(address) => 0);
    bench.write(writer, address, 1, null_mut(), 0);
    cu!(bench, cuCtxSynchronize() => 700);
}

fn unmapped_memory_of_a_kernel(bench: &Bench) {
    bench.start();
    let (writer, stream, address) = (bench.writer(), bench.stream(1), bench.mapped(UNIT));
    let gate = bench.hold(stream);
    bench.write(writer, address, 1, stream, 0);
    // Unmapping does not wait for the kernel.
    cu!(bench, cuMemUnmap(address, UNIT) => 0);
    gate.open();
    cu!(bench, cuStreamSynchronize(stream) => 700);
}

fn it_is_of_the_whole_process(bench: &Bench) {
    let context = bench.start();
    let mut count = 0;
    cu!(bench, cuDeviceGetCount(&mut count) => 0);
    if count < 2 {
        bench.skip("one device");
    }
    let (writer, pinned) = (bench.writer(), bench.pinned(64));
    bench.use_device(1);
    let (there, stream) = (bench.warm(64), bench.stream(1));
    cu!(bench, cuCtxSetCurrent(context) => 0);
    fail(bench, writer, bench.stream(1));
    cu!(bench, cuMemsetD8Async(there, 4, 64, stream) => 700);
    // The other device is broken as well.
    bench.use_device(1);
    cu!(bench, cuStreamSynchronize(stream) => 700);
    cu!(bench, cuMemcpyAsync(host(pinned), there, 64, stream) => 700);
}
