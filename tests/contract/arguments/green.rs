//! Wrong arguments: green contexts. Handles that are none crash the driver.

use crate::Row;
use crate::bench::{Bench, cu, handle};
use crate::other_calls::{COUNT, Calls, NOTHING, SM, other};
use std::ptr::{null, null_mut};

pub const ROWS: &[Row] = crate::rows!["arguments":
    cuDeviceGetDevResource, cuCtxGetDevResource, cuGreenCtxGetDevResource, cuStreamGetDevResource,
    cuDevSmResourceSplitByCount, cuDevSmResourceSplit, cuDevResourceGenerateDesc, cuGreenCtxCreate,
    cuGreenCtxDestroy, cuCtxFromGreenCtx, cuGreenCtxGetId, cuGreenCtxStreamCreate,
    cuStreamGetGreenCtx, cuGreenCtxRecordEvent, cuGreenCtxWaitEvent,
];

/// Types that no resource has.
const UNKNOWN: [u32; 4] = [0, 2, 999, u32::MAX];

fn cuDeviceGetDevResource(bench: &Bench) {
    let (calls, mut found) = (Calls::find(bench), NOTHING);
    other!(bench, calls, cuDeviceGetDevResource(0, &mut found, SM) => 3);
    bench.start();
    for device in [-1, 4096] {
        other!(bench, calls, cuDeviceGetDevResource(device, &mut found, SM) => 101);
    }
    for kind in UNKNOWN {
        other!(bench, calls, cuDeviceGetDevResource(0, &mut found, kind) => 914);
    }
    other!(bench, calls, cuDeviceGetDevResource(0, null_mut(), SM) => 1);
    bench.is("untouched", found, NOTHING);
}

fn cuCtxGetDevResource(bench: &Bench) {
    let (calls, mut found) = (Calls::find(bench), NOTHING);
    other!(bench, calls, cuCtxGetDevResource(null_mut(), &mut found, SM) => 3);
    let context = bench.start();
    other!(bench, calls, cuCtxGetDevResource(null_mut(), &mut found, SM) => 201);
    for kind in UNKNOWN {
        other!(bench, calls, cuCtxGetDevResource(context, &mut found, kind) => 914);
    }
    bench.is("untouched", found, NOTHING);
}

fn cuGreenCtxGetDevResource(bench: &Bench) {
    let (calls, mut found) = (Calls::find(bench), NOTHING);
    other!(bench, calls, cuGreenCtxGetDevResource(null_mut(), &mut found, SM) => 3);
    bench.start();
    let [green, _] = calls.greens(bench);
    other!(bench, calls, cuGreenCtxGetDevResource(null_mut(), &mut found, SM) => 201);
    other!(bench, calls, cuGreenCtxGetDevResource(green, null_mut(), SM) => 1);
    for kind in UNKNOWN {
        other!(bench, calls, cuGreenCtxGetDevResource(green, &mut found, kind) => 914);
    }
    bench.is("untouched", found, NOTHING);
}

fn cuStreamGetDevResource(bench: &Bench) {
    let (calls, mut found) = (Calls::find(bench), NOTHING);
    bench.start();
    for kind in UNKNOWN.into_iter().chain([1000, 10_000]) {
        other!(bench, calls, cuStreamGetDevResource(null_mut(), &mut found, kind) => 914);
    }
    other!(bench, calls, cuStreamGetDevResource(null_mut(), null_mut(), SM) => 1);
    bench.is("untouched", found, NOTHING);
}

fn cuDevSmResourceSplitByCount(bench: &Bench) {
    let calls = Calls::find(bench);
    let (mut part, mut number) = (NOTHING, 1);
    let nothing = NOTHING;
    other!(bench, calls, cuDevSmResourceSplitByCount(
        &mut part, &mut number, &nothing, null_mut(), 0, 8) => 3);
    cu!(bench, cuInit(0) => 0);
    let whole = calls.whole(bench);
    other!(bench, calls, cuDevSmResourceSplitByCount(
        &mut part, null_mut(), &whole, null_mut(), 0, 8) => 1);
    other!(bench, calls, cuDevSmResourceSplitByCount(
        &mut part, &mut number, null(), null_mut(), 0, 8) => 1);
    other!(bench, calls, cuDevSmResourceSplitByCount(
        &mut part, &mut number, &nothing, null_mut(), 0, 8) => 914);
    other!(bench, calls, cuDevSmResourceSplitByCount(
        &mut part, &mut number, &nothing, null_mut(), 3, 8) => 914);
    for flags in [3, 7] {
        other!(bench, calls, cuDevSmResourceSplitByCount(
            &mut part, &mut number, &whole, null_mut(), flags, 8) => 1);
    }
    other!(bench, calls, cuDevSmResourceSplitByCount(
        &mut part, &mut number, &whole, null_mut(), 0, whole[COUNT] + 1) => 915);
    number = 0;
    other!(bench, calls, cuDevSmResourceSplitByCount(
        &mut part, &mut number, &nothing, null_mut(), 0, 8) => 1);
    bench.is("untouched", (part, number), (NOTHING, 0));
}

fn cuDevSmResourceSplit(bench: &Bench) {
    let calls = Calls::find(bench);
    cu!(bench, cuInit(0) => 0);
    let (whole, mut part, mut group) = (calls.whole(bench), NOTHING, [0; 16]);
    group[0] = 8;
    other!(bench, calls, cuDevSmResourceSplit(
        &mut part, 1, null(), null_mut(), 0, &mut group) => 1);
    other!(bench, calls, cuDevSmResourceSplit(
        &mut part, 1, &whole, null_mut(), 0, null_mut()) => 1);
    other!(bench, calls, cuDevSmResourceSplit(
        &mut part, 1, &NOTHING, null_mut(), 0, &mut group) => 914);
    group[0] = 3;
    other!(bench, calls, cuDevSmResourceSplit(
        &mut part, 1, &whole, null_mut(), 0, &mut group) => 1);
    bench.is("untouched", (part, group[0]), (NOTHING, 3));
}

fn cuDevResourceGenerateDesc(bench: &Bench) {
    let (calls, mut description, mut nothing) = (Calls::find(bench), null_mut(), NOTHING);
    other!(bench, calls, cuDevResourceGenerateDesc(&mut description, &mut nothing, 1) => 3);
    cu!(bench, cuInit(0) => 0);
    let mut whole = calls.whole(bench);
    other!(bench, calls, cuDevResourceGenerateDesc(null_mut(), &mut whole, 1) => 1);
    other!(bench, calls, cuDevResourceGenerateDesc(&mut description, null_mut(), 1) => 1);
    other!(bench, calls, cuDevResourceGenerateDesc(&mut description, &mut nothing, 1) => 914);
    bench.is("untouched", description.is_null(), true);
}

fn cuGreenCtxCreate(bench: &Bench) {
    let (calls, mut green) = (Calls::find(bench), handle(77));
    other!(bench, calls, cuGreenCtxCreate(&mut green, null_mut(), 0, 1) => 3);
    cu!(bench, cuInit(0) => 0);
    for flags in [0, 2, 3, 4, u32::MAX] {
        other!(bench, calls, cuGreenCtxCreate(&mut green, null_mut(), 0, flags) => 1);
    }
    for device in [-1, 4096] {
        other!(bench, calls, cuGreenCtxCreate(&mut green, null_mut(), device, 1) => 101);
        other!(bench, calls, cuGreenCtxCreate(&mut green, null_mut(), device, 0) => 101);
        other!(bench, calls, cuGreenCtxCreate(null_mut(), null_mut(), device, 1) => 1);
    }
    other!(bench, calls, cuGreenCtxCreate(null_mut(), null_mut(), 0, 1) => 1);
    bench.is("untouched", green.addr(), 77);
    let (mut flags, mut active) = (0, 9);
    cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) => 0);
    bench.is("nothing retained", active, 0);
}

fn cuGreenCtxDestroy(bench: &Bench) {
    let calls = Calls::find(bench);
    other!(bench, calls, cuGreenCtxDestroy(null_mut()) => 3);
    bench.start();
    other!(bench, calls, cuGreenCtxDestroy(null_mut()) => 201);
}

fn cuCtxFromGreenCtx(bench: &Bench) {
    let (calls, mut context) = (Calls::find(bench), handle(77));
    other!(bench, calls, cuCtxFromGreenCtx(&mut context, null_mut()) => 3);
    bench.start();
    let [green, _] = calls.greens(bench);
    other!(bench, calls, cuCtxFromGreenCtx(&mut context, null_mut()) => 201);
    other!(bench, calls, cuCtxFromGreenCtx(null_mut(), green) => 1);
    bench.is("untouched", context.addr(), 77);
}

fn cuGreenCtxGetId(bench: &Bench) {
    let (calls, mut id) = (Calls::find(bench), 77);
    other!(bench, calls, cuGreenCtxGetId(null_mut(), &mut id) => 3);
    bench.start();
    let [green, _] = calls.greens(bench);
    other!(bench, calls, cuGreenCtxGetId(green, null_mut()) => 1);
    other!(bench, calls, cuGreenCtxGetId(null_mut(), null_mut()) => 1);
    other!(bench, calls, cuGreenCtxGetId(null_mut(), &mut id) => 201);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    other!(bench, calls, cuGreenCtxGetId(null_mut(), &mut id) => 201);
    bench.is("untouched", id, 77);
}

fn cuGreenCtxStreamCreate(bench: &Bench) {
    let (calls, mut stream) = (Calls::find(bench), handle(77));
    other!(bench, calls, cuGreenCtxStreamCreate(&mut stream, null_mut(), 1, 0) => 201);
    bench.start();
    let [green, _] = calls.greens(bench);
    for flags in [0, 2, 3] {
        other!(bench, calls, cuGreenCtxStreamCreate(&mut stream, green, flags, 0) => 1);
    }
    other!(bench, calls, cuGreenCtxStreamCreate(null_mut(), green, 1, 0) => 1);
    other!(bench, calls, cuGreenCtxStreamCreate(&mut stream, null_mut(), 1, 0) => 201);
    // A GPU's driver may write a handle of ones.
    bench.is("no stream", matches!(stream.addr(), 77 | usize::MAX), true);
}

fn cuStreamGetGreenCtx(bench: &Bench) {
    let (calls, mut green) = (Calls::find(bench), handle(77));
    other!(bench, calls, cuStreamGetGreenCtx(null_mut(), &mut green) => 3);
    bench.start();
    other!(bench, calls, cuStreamGetGreenCtx(null_mut(), null_mut()) => 1);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    other!(bench, calls, cuStreamGetGreenCtx(null_mut(), &mut green) => 201);
    other!(bench, calls, cuStreamGetGreenCtx(null_mut(), null_mut()) => 1);
    bench.is("untouched", green.addr(), 77);
}

fn cuGreenCtxRecordEvent(bench: &Bench) {
    let calls = Calls::find(bench);
    other!(bench, calls, cuGreenCtxRecordEvent(null_mut(), null_mut()) => 201);
    bench.start();
    let ([green, _], event) = (calls.greens(bench), bench.event());
    other!(bench, calls, cuGreenCtxRecordEvent(null_mut(), event) => 201);
    other!(bench, calls, cuGreenCtxRecordEvent(null_mut(), null_mut()) => 201);
    other!(bench, calls, cuGreenCtxRecordEvent(green, null_mut()) => 400);
}

fn cuGreenCtxWaitEvent(bench: &Bench) {
    let calls = Calls::find(bench);
    other!(bench, calls, cuGreenCtxWaitEvent(null_mut(), null_mut()) => 201);
    bench.start();
    let ([green, _], event) = (calls.greens(bench), bench.event());
    other!(bench, calls, cuGreenCtxWaitEvent(null_mut(), event) => 201);
    other!(bench, calls, cuGreenCtxWaitEvent(green, null_mut()) => 400);
}
