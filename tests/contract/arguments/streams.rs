//! Wrong arguments: streams and events.

use crate::Row;
use crate::bench::{Bench, cu, handle};
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["arguments":
    cuStreamCreateWithPriority, cuStreamDestroy, cuStreamQuery, cuStreamSynchronize,
    cuStreamWaitEvent, cuStreamGetPriority, cuStreamGetFlags, cuStreamGetCtx, cuStreamGetId,
    cuLaunchHostFunc, cuStreamIsCapturing, cuStreamGetCaptureInfo,
    cuStreamUpdateCaptureDependencies, cuThreadExchangeStreamCaptureMode, cuEventCreate,
    cuEventDestroy, cuEventRecord, cuEventRecordWithFlags, cuEventQuery, cuEventSynchronize,
    cuEventElapsedTime,
];

fn cuStreamCreateWithPriority(bench: &Bench) {
    let mut stream = handle(77);
    cu!(bench, cuStreamCreateWithPriority(&mut stream, 0, 0) => 3);
    bench.start();
    for flags in [2, 3, 4, 0x100, u32::MAX] {
        cu!(bench, cuStreamCreateWithPriority(&mut stream, flags, 0) => 1);
    }
    cu!(bench, cuStreamCreateWithPriority(null_mut(), 0, 0) => 1);
    cu!(bench, cuStreamCreateWithPriority(null_mut(), 2, 0) => 1);
    cu!(bench, cuStreamCreateWithPriority(&mut stream, 1, i32::MIN) => 0);
    cu!(bench, cuStreamCreateWithPriority(&mut stream, 1, i32::MAX) => 0);
}

fn cuStreamDestroy(bench: &Bench) {
    cu!(bench, cuStreamDestroy(null_mut()) => 400);
    bench.start();
    for fixed in [0, 1, 2] {
        cu!(bench, cuStreamDestroy(handle(fixed)) => 400);
    }
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuStreamDestroy(null_mut()) => 400);
}

fn cuStreamUpdateCaptureDependencies(bench: &Bench) {
    bench.start();
    let (stream, address) = (bench.stream(1), bench.warm(4));
    let update = |count, flags, expected| {
        cu!(bench, cuStreamUpdateCaptureDependencies(stream, null_mut(), count, flags)
            => expected);
    };
    // Not captured.
    update(0, 0, 401);
    update(0, 1, 401);
    bench.begin(stream);
    bench.fill(address, 1, stream, 0);
    update(0, 2, 1);
    update(1, 0, 1);
    update(0, 0, 0);
    let graph = bench.end(stream);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn cuStreamQuery(bench: &Bench) {
    for fixed in [0, 1, 2] {
        cu!(bench, cuStreamQuery(handle(fixed)) => 3);
    }
}

fn cuStreamSynchronize(bench: &Bench) {
    for fixed in [0, 1, 2] {
        cu!(bench, cuStreamSynchronize(handle(fixed)) => 3);
    }
}

fn cuStreamWaitEvent(bench: &Bench) {
    cu!(bench, cuStreamWaitEvent(null_mut(), null_mut(), 0) => 3);
    bench.start();
    let (event, stream) = (bench.event(), bench.stream(1));
    for stream in [stream, null_mut()] {
        cu!(bench, cuStreamWaitEvent(stream, null_mut(), 0) => 400);
        cu!(bench, cuStreamWaitEvent(stream, null_mut(), 2) => 1);
        cu!(bench, cuStreamWaitEvent(stream, event, 1) => 401);
        cu!(bench, cuStreamWaitEvent(stream, event, 2) => 1);
        cu!(bench, cuStreamWaitEvent(stream, event, u32::MAX) => 1);
    }
}

fn cuStreamGetPriority(bench: &Bench) {
    let mut priority = 77;
    cu!(bench, cuStreamGetPriority(null_mut(), &mut priority) => 3);
    bench.start();
    cu!(bench, cuStreamGetPriority(null_mut(), null_mut()) => 1);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuStreamGetPriority(null_mut(), &mut priority) => 201);
    bench.is("untouched", priority, 77);
}

fn cuStreamGetFlags(bench: &Bench) {
    let mut flags = 77;
    cu!(bench, cuStreamGetFlags(null_mut(), &mut flags) => 3);
    bench.start();
    cu!(bench, cuStreamGetFlags(null_mut(), null_mut()) => 1);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuStreamGetFlags(null_mut(), &mut flags) => 201);
    bench.is("untouched", flags, 77);
}

fn cuStreamGetCtx(bench: &Bench) {
    let mut context = handle(77);
    cu!(bench, cuStreamGetCtx(null_mut(), &mut context) => 3);
    bench.start();
    cu!(bench, cuStreamGetCtx(null_mut(), null_mut()) => 1);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuStreamGetCtx(null_mut(), &mut context) => 201);
    bench.is("untouched", context.addr(), 77);
}

fn cuStreamGetId(bench: &Bench) {
    let mut id = 77;
    cu!(bench, cuStreamGetId(null_mut(), &mut id) => 3);
    bench.start();
    cu!(bench, cuStreamGetId(null_mut(), null_mut()) => 1);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuStreamGetId(null_mut(), &mut id) => 201);
    bench.is("untouched", id, 77);
}

fn cuLaunchHostFunc(bench: &Bench) {
    cu!(bench, cuLaunchHostFunc(null_mut(), None, null_mut()) => 1);
    bench.start();
    for stream in [bench.stream(1), null_mut(), handle(1), handle(2)] {
        cu!(bench, cuLaunchHostFunc(stream, None, null_mut()) => 1);
    }
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    bench.count(null_mut(), 201);
}

fn cuStreamIsCapturing(bench: &Bench) {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cu!(bench, cuStreamIsCapturing(null_mut(), &mut status) => 3);
    bench.start();
    cu!(bench, cuStreamIsCapturing(null_mut(), null_mut()) => 1);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuStreamIsCapturing(null_mut(), &mut status) => 201);
    bench.is("untouched", status as u32, 1);
}

fn cuStreamGetCaptureInfo(bench: &Bench) {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    cu!(bench, cuStreamGetCaptureInfo(
        null_mut(), &mut status, null_mut(), null_mut(), null_mut(), null_mut()) => 3);
    bench.start();
    cu!(bench, cuStreamGetCaptureInfo(
        null_mut(), null_mut(), null_mut(), null_mut(), null_mut(), null_mut()) => 1);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuStreamGetCaptureInfo(
        null_mut(), &mut status, null_mut(), null_mut(), null_mut(), null_mut()) => 201);
}

fn cuThreadExchangeStreamCaptureMode(bench: &Bench) {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    cu!(bench, cuThreadExchangeStreamCaptureMode(&mut mode) => 3);
    bench.start();
    cu!(bench, cuThreadExchangeStreamCaptureMode(&mut mode) => 0);
    bench.is("what it was", mode as u32, 0);
    cu!(bench, cuThreadExchangeStreamCaptureMode(&mut mode) => 0);
    bench.is("what was set", mode as u32, 2);
}

fn cuEventCreate(bench: &Bench) {
    let mut event = handle(77);
    cu!(bench, cuEventCreate(&mut event, 0) => 3);
    bench.start();
    for flags in [4, 5, 8, 0x10, u32::MAX] {
        cu!(bench, cuEventCreate(&mut event, flags) => 1);
    }
    bench.is("untouched", event.addr(), 77);
    cu!(bench, cuEventCreate(null_mut(), 0) => 1);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuEventCreate(&mut event, 0) => 201);
    cu!(bench, cuEventCreate(&mut event, 8) => 201);
}

fn cuEventDestroy(bench: &Bench) {
    cu!(bench, cuEventDestroy(null_mut()) => 400);
    bench.start();
    cu!(bench, cuEventDestroy(null_mut()) => 400);
}

fn cuEventRecord(bench: &Bench) {
    cu!(bench, cuEventRecord(null_mut(), null_mut()) => 3);
    bench.start();
    let event = bench.event();
    for stream in [bench.stream(1), null_mut(), handle(1), handle(2)] {
        cu!(bench, cuEventRecord(null_mut(), stream) => 400);
    }
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    cu!(bench, cuEventRecord(event, null_mut()) => 201);
}

fn cuEventRecordWithFlags(bench: &Bench) {
    cu!(bench, cuEventRecordWithFlags(null_mut(), null_mut(), 0) => 3);
    bench.start();
    let (event, stream) = (bench.event(), bench.stream(1));
    cu!(bench, cuEventRecordWithFlags(null_mut(), stream, 0) => 400);
    cu!(bench, cuEventRecordWithFlags(null_mut(), stream, 1) => 400);
    cu!(bench, cuEventRecordWithFlags(null_mut(), stream, 2) => 400);
    cu!(bench, cuEventRecordWithFlags(event, stream, 1) => 401);
    for flags in [2, 3, 8, u32::MAX] {
        cu!(bench, cuEventRecordWithFlags(event, stream, flags) => 1);
    }
    cu!(bench, cuEventQuery(event) => 0);
}

fn cuEventQuery(bench: &Bench) {
    cu!(bench, cuEventQuery(null_mut()) => 400);
    bench.start();
    cu!(bench, cuEventQuery(null_mut()) => 400);
}

fn cuEventSynchronize(bench: &Bench) {
    cu!(bench, cuEventSynchronize(null_mut()) => 400);
    bench.start();
    cu!(bench, cuEventSynchronize(null_mut()) => 400);
}

fn cuEventElapsedTime(bench: &Bench) {
    let mut ms = 77.0;
    cu!(bench, cuEventElapsedTime(&mut ms, null_mut(), null_mut()) => 400);
    bench.start();
    let event = bench.event();
    cu!(bench, cuEventRecord(event, null_mut()) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    cu!(bench, cuEventElapsedTime(&mut ms, null_mut(), null_mut()) => 400);
    cu!(bench, cuEventElapsedTime(&mut ms, event, null_mut()) => 400);
    cu!(bench, cuEventElapsedTime(&mut ms, null_mut(), event) => 400);
    cu!(bench, cuEventElapsedTime(null_mut(), event, event) => 400);
    bench.is("untouched", ms, 77.0);
}
