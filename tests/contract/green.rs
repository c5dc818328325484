//! Green contexts: resources, contexts, streams, order and ends.

use crate::Row;
use crate::bench::{Bench, LEGACY, PER_THREAD, cu, handle};
use crate::capture::{KERNEL, RELAXED};
use crate::other_calls::{COUNT, Calls, NOTHING, Resource, SM, other};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["green":
    resources, splits, splits_of_pairs, splits_again, changed_resources, descriptions,
    primary_context, contexts, ids, streams, streams_while_current, default_streams,
    objects_of_the_primary_context, order, waits_of_contexts, events_of_greens, captures,
    waits_during_captures, default_stream_captured, nodes_of_kernels, cooperative, destroyed,
    destroyed_while_current, destroyed_while_captured, reset, many, splits_of_groups,
    resources_of_streams,
];

/// Number, smallest part and multiple.
fn shown(resource: &Resource) -> [u32; 3] {
    [resource[COUNT], resource[COUNT + 1], resource[COUNT + 2]]
}

fn resources(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    let calls = Calls::find(bench);
    let whole = calls.whole(bench);
    let (mut count, mut flags, mut active) = (0, 0, 9);
    let multiprocessors = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    cu!(bench, cuDeviceGetAttribute(&mut count, multiprocessors as i32, 0) => 0);
    bench.is("all", (whole[0], shown(&whole)), (SM, [count as u32, 8, 8]));
    bench.is("no flags and no next one", &whole[COUNT + 3..], &[0; 9]);
    cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) => 0);
    bench.is("no context", active, 0);
}

fn splits(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    let calls = Calls::find(bench);
    let whole = calls.whole(bench);
    let all = whole[COUNT];
    for (least, size) in [(0, 8), (1, 8), (8, 8), (9, 16), (20, 24), (64, 64), (all, all)] {
        let (mut parts, mut rest, mut number) = ([NOTHING; 2], [7; 36], 1);
        other!(bench, calls, cuDevSmResourceSplitByCount(
            parts.as_mut_ptr(), &mut number, &whole, &mut rest, 0, least) => 0);
        bench.is("a group", (number, parts[0][0], shown(&parts[0])), (1, SM, [size, 0, 0]));
        bench.is("no other", parts[1], NOTHING);
        let kind = if size == all { 0 } else { SM };
        bench.is("rest", (rest[0], shown(&rest)), (kind, [all - size, 0, 0]));
    }
    let mut number = 77;
    other!(bench, calls, cuDevSmResourceSplitByCount(
        null_mut(), &mut number, &whole, null_mut(), 0, all / 2 / 8 * 8) => 0);
    bench.is("two halves", number, 2);
    other!(bench, calls, cuDevSmResourceSplitByCount(
        null_mut(), &mut number, &whole, null_mut(), 4, 64) => 0);
    bench.is("an unknown flag", number, all / 64);
}

fn splits_of_pairs(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    let calls = Calls::find(bench);
    let whole = calls.whole(bench);
    for (least, size) in [(0, 2), (1, 2), (2, 2), (3, 4), (10, 10)] {
        let mut number = 0;
        other!(bench, calls, cuDevSmResourceSplitByCount(
            null_mut(), &mut number, &whole, null_mut(), 1, least) => 0);
        bench.is("groups", number, whole[COUNT] / size);
        let (mut part, mut rest) = (NOTHING, NOTHING);
        number = 1;
        other!(bench, calls, cuDevSmResourceSplitByCount(
            &mut part, &mut number, &whole, &mut rest, 1, least) => 0);
        bench.is("a group", (shown(&part)[0], shown(&rest)[0]), (size, whole[COUNT] - size));
    }
}

fn splits_again(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let (parts, rest) = calls.parts(bench);
    let (mut part, mut number) = (NOTHING, 1);
    for from in [parts[0], rest] {
        other!(bench, calls, cuDevSmResourceSplitByCount(
            &mut part, &mut number, &from, null_mut(), 0, 8) => 915);
        other!(bench, calls, cuDevSmResourceSplitByCount(
            null_mut(), &mut number, &from, null_mut(), 0, 8) => 915);
    }
    bench.is("untouched", (part, number), (NOTHING, 1));
    let (green, other) = (calls.green(bench, &parts[0]), calls.green(bench, &rest));
    let mut found = NOTHING;
    other!(bench, calls, cuGreenCtxGetDevResource(other, &mut found, SM) => 0);
    bench.is("what is left, in pairs", shown(&found), [shown(&rest)[0], 2, 2]);
    other!(bench, calls, cuGreenCtxGetDevResource(green, &mut found, SM) => 0);
    bench.is("a group", shown(&found), [16, 8, 8]);
    let (mut halves, mut number) = ([NOTHING; 3], 3);
    other!(bench, calls, cuDevSmResourceSplitByCount(
        halves.as_mut_ptr(), &mut number, &found, null_mut(), 0, 5) => 0);
    bench.is("halves", (number, shown(&halves[1])), (2, [8, 0, 0]));
    other!(bench, calls, cuDevSmResourceSplitByCount(
        halves.as_mut_ptr(), &mut number, &found, null_mut(), 0, 17) => 915);
    let pair = calls.green(bench, &halves[0]);
    other!(bench, calls, cuGreenCtxGetDevResource(pair, &mut found, SM) => 0);
    bench.is("a half", shown(&found), [8, 8, 8]);
    for green in [pair, green, other] {
        other!(bench, calls, cuGreenCtxDestroy(green) => 0);
    }
}

fn changed_resources(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    let calls = Calls::find(bench);
    let (whole, (parts, _)) = (calls.whole(bench), calls.parts(bench));
    let (mut part, mut number, mut description) = (NOTHING, 1, null_mut());
    for resource in [whole, parts[0]] {
        let mut changed = resource;
        changed[COUNT] -= 8;
        other!(bench, calls, cuDevResourceGenerateDesc(&mut description, &mut changed, 1) => 915);
        other!(bench, calls, cuDevSmResourceSplitByCount(
            &mut part, &mut number, &changed, null_mut(), 0, 8) => 915);
    }
    let mut nothing = NOTHING;
    other!(bench, calls, cuDevResourceGenerateDesc(&mut description, &mut nothing, 1) => 914);
    bench.is("untouched", description.is_null(), true);
}

fn descriptions(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    let calls = Calls::find(bench);
    let (whole, (parts, rest)) = (calls.whole(bench), calls.parts(bench));
    let again = calls.parts(bench).0;
    let mut description = null_mut();
    let all = [[parts[0], parts[1]], [parts[0], rest], [parts[0]; 2], [parts[0], again[1]]];
    for mut resources in all.into_iter().chain([[whole, parts[0]], [whole; 2]]) {
        other!(bench, calls, cuDevResourceGenerateDesc(
            &mut description, resources.as_mut_ptr(), 2) => 0);
        bench.is("a description", description.is_null(), false);
    }
    let mut both = parts;
    let (mut green, mut found) = (null_mut(), NOTHING);
    other!(bench, calls, cuDevResourceGenerateDesc(&mut description, both.as_mut_ptr(), 2) => 0);
    other!(bench, calls, cuGreenCtxCreate(&mut green, description, 0, 1) => 0);
    other!(bench, calls, cuGreenCtxGetDevResource(green, &mut found, SM) => 0);
    bench.is("two groups", shown(&found), [32, 8, 8]);
    other!(bench, calls, cuGreenCtxDestroy(green) => 0);
    other!(bench, calls, cuGreenCtxCreate(&mut green, null_mut(), 0, 1) => 0);
    other!(bench, calls, cuGreenCtxGetDevResource(green, &mut found, SM) => 0);
    bench.is("all without a description", shown(&found), shown(&whole));
    other!(bench, calls, cuGreenCtxDestroy(green) => 0);
}

fn primary_context(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    let calls = Calls::find(bench);
    let state = || {
        let (mut flags, mut active) = (0, 9);
        cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) => 0);
        active
    };
    let greens = calls.greens(bench);
    bench.is("retained", state(), 1);
    let mut current = handle(77);
    cu!(bench, cuCtxGetCurrent(&mut current) => 0);
    bench.is("none is current", current.is_null(), true);
    other!(bench, calls, cuGreenCtxDestroy(greens[0]) => 0);
    bench.is("retained by the other", state(), 1);
    other!(bench, calls, cuGreenCtxDestroy(greens[1]) => 0);
    bench.is("released", state(), 0);
}

fn contexts(bench: &Bench) {
    let primary = bench.start();
    let calls = Calls::find(bench);
    let (whole, [green, other]) = (calls.whole(bench), calls.greens(bench));
    let (context, again) = (calls.context(bench, green), calls.context(bench, green));
    bench.is("one handle", context == again, true);
    let others = [primary, calls.context(bench, other)];
    bench.is("its own", others.contains(&context), false);
    let mut found = NOTHING;
    other!(bench, calls, cuCtxGetDevResource(context, &mut found, SM) => 0);
    bench.is("its part", shown(&found), [16, 8, 8]);
    other!(bench, calls, cuCtxGetDevResource(primary, &mut found, SM) => 0);
    bench.is("all", shown(&found), shown(&whole));
    let (mut current, mut device, mut least, mut greatest) = (null_mut(), 9, 9, 9);
    cu!(bench, cuCtxPushCurrent(context) => 0);
    cu!(bench, cuCtxGetCurrent(&mut current) => 0);
    bench.is("current", current == context, true);
    cu!(bench, cuCtxGetDevice(&mut device) => 0);
    cu!(bench, cuCtxGetStreamPriorityRange(&mut least, &mut greatest) => 0);
    bench.is("device and priorities", (device, least, greatest), (0, 0, -5));
    cu!(bench, cuCtxSynchronize() => 0);
    cu!(bench, cuCtxPopCurrent(&mut current) => 0);
    bench.is("popped", current == context, true);
    cu!(bench, cuCtxSetCurrent(context) => 0);
    cu!(bench, cuCtxSetCurrent(primary) => 0);
    for green in [green, other] {
        other!(bench, calls, cuGreenCtxDestroy(green) => 0);
    }
}

fn ids(bench: &Bench) {
    let primary = bench.start();
    let calls = Calls::find(bench);
    let [green, other] = calls.greens(bench);
    let context = calls.context(bench, green);
    let (mut id, mut of_context, mut of_other, mut of_primary) = (1, 2, 3, 4);
    other!(bench, calls, cuGreenCtxGetId(green, &mut id) => 0);
    other!(bench, calls, cuCtxGetId(context, &mut of_context) => 0);
    other!(bench, calls, cuGreenCtxGetId(other, &mut of_other) => 0);
    other!(bench, calls, cuCtxGetId(primary, &mut of_primary) => 0);
    bench.is("one of both", id == of_context, true);
    bench.is("no other's", [of_other, of_primary].contains(&id), false);
    other!(bench, calls, cuGreenCtxGetId(null_mut(), &mut id) => 201);
    cu!(bench, cuCtxSetCurrent(context) => 0);
    other!(bench, calls, cuGreenCtxGetId(null_mut(), &mut id) => 0);
    bench.is("the current one's", id == of_context, true);
    other!(bench, calls, cuCtxGetId(null_mut(), &mut id) => 0);
    bench.is("the current one's", id == of_context, true);
}

fn streams(bench: &Bench) {
    let primary = bench.start();
    let calls = Calls::find(bench);
    let [green, other] = calls.greens(bench);
    let (stream, plain, mut urgent) = (calls.stream(bench, green), bench.stream(1), null_mut());
    other!(bench, calls, cuGreenCtxStreamCreate(&mut urgent, other, 1, -7) => 0);
    let (mut priority, mut context, mut of) = (9, null_mut(), null_mut());
    cu!(bench, cuStreamGetPriority(urgent, &mut priority) => 0);
    bench.is("priority", priority, -5);
    bench.is("its own", calls.of(bench, stream) == green, true);
    bench.is("of the other", calls.of(bench, urgent) == other, true);
    bench.is("of none", calls.of(bench, plain).is_null(), true);
    bench.is("of none", calls.of(bench, null_mut()).is_null(), true);
    cu!(bench, cuStreamGetCtx(stream, &mut context) => 0);
    bench.is("context", context == calls.context(bench, green), true);
    other!(bench, calls, cuStreamGetCtx_v2(stream, &mut context, &mut of) => 0);
    bench.is("both", (context == primary, of == green), (true, true));
    other!(bench, calls, cuStreamGetCtx_v2(stream, &mut context, null_mut()) => 0);
    bench.is("the primary one", context == primary, true);
    other!(bench, calls, cuStreamGetCtx_v2(plain, &mut context, &mut of) => 0);
    bench.is("none", (context == primary, of.is_null()), (true, true));
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    bench.is("without a context", calls.of(bench, stream) == green, true);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    cu!(bench, cuStreamDestroy(stream) => 0);
}

fn streams_while_current(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let [green, other] = calls.greens(bench);
    let (before, context) = (bench.stream(1), calls.context(bench, green));
    cu!(bench, cuCtxPushCurrent(context) => 0);
    for flags in [0, 1] {
        let (stream, mut of) = (bench.stream(flags), null_mut());
        bench.is("of the green context", calls.of(bench, stream) == green, true);
        cu!(bench, cuStreamGetCtx(stream, &mut of) => 0);
        bench.is("context", of == context, true);
        cu!(bench, cuStreamDestroy(stream) => 0);
    }
    bench.is("of the one created in", calls.of(bench, before).is_null(), true);
    let stream = calls.stream(bench, other);
    bench.is("of the one named", calls.of(bench, stream) == other, true);
}

fn default_streams(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let [green, _] = calls.greens(bench);
    let (address, context) = (bench.warm(64), calls.context(bench, green));
    cu!(bench, cuCtxPushCurrent(context) => 0);
    let (mut ids, mut of) = ([0; 2], null_mut());
    for (id, fixed) in ids.iter_mut().zip([0, LEGACY]) {
        bench.is("its own", calls.of(bench, handle(fixed)) == green, true);
        cu!(bench, cuStreamGetCtx(handle(fixed), &mut of) => 0);
        bench.is("context", of == context, true);
        cu!(bench, cuStreamGetId(handle(fixed), id) => 0);
        cu!(bench, cuMemsetD8Async(address, 1, 64, handle(fixed)) => 0);
    }
    bench.is("one stream", ids[0] == ids[1], true);
    // There are none of threads.
    let mut found = null_mut();
    other!(bench, calls, cuStreamGetGreenCtx(handle(PER_THREAD), &mut found) => 400);
    cu!(bench, cuStreamGetCtx(handle(PER_THREAD), &mut of) => 400);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn objects_of_the_primary_context(bench: &Bench) {
    let primary = bench.start();
    let calls = Calls::find(bench);
    let [green, other] = calls.greens(bench);
    let stream = calls.stream(bench, other);
    cu!(bench, cuCtxPushCurrent(calls.context(bench, green)) => 0);
    let (address, event, writer) = (bench.allocate(64), bench.event(), bench.writer());
    cu!(bench, cuCtxPopCurrent(null_mut()) => 0);
    let mut owner: CUcontext = null_mut();
    let context = CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT;
    cu!(bench, cuPointerGetAttribute((&raw mut owner).cast(), context, address) => 0);
    bench.is("memory", owner == primary, true);
    // All goes with all streams.
    let plain = bench.stream(1);
    for on in [stream, plain, null_mut()] {
        bench.write(writer, address, 7, on, 0);
        cu!(bench, cuEventRecord(event, on) => 0);
        cu!(bench, cuStreamWaitEvent(stream, event, 0) => 0);
        cu!(bench, cuStreamWaitEvent(plain, event, 0) => 0);
    }
    cu!(bench, cuCtxSynchronize() => 0);
    other!(bench, calls, cuGreenCtxDestroy(green) => 0);
    cu!(bench, cuMemFree(address) => 0);
    cu!(bench, cuEventDestroy(event) => 0);
}

/// Streams of green contexts wait for none, whatever their flags, and none for them.
fn order(bench: &Bench) {
    let primary = bench.start();
    let calls = Calls::find(bench);
    let [green, _] = calls.greens(bench);
    let (address, context) = (bench.warm(256), calls.context(bench, green));
    let (of_primary, named) = (bench.stream(0), calls.stream(bench, green));
    cu!(bench, cuCtxSetCurrent(context) => 0);
    let blocking = bench.stream(0);
    let on_default = |context: CUcontext| {
        cu!(bench, cuCtxSetCurrent(context) => 0);
        null_mut()
    };
    let pairs = [
        ("default, blocking", context, null_mut(), context, blocking),
        ("blocking, default", context, blocking, context, null_mut()),
        ("default, named", context, null_mut(), context, named),
        ("legacy, blocking", primary, null_mut(), context, blocking),
        ("legacy, default", primary, null_mut(), context, null_mut()),
        ("default, legacy", context, null_mut(), primary, null_mut()),
        ("blocking, legacy", context, blocking, primary, null_mut()),
        ("default, primary's", context, null_mut(), primary, of_primary),
    ];
    for (what, first_context, first, second_context, second) in pairs {
        let _: CUstream = on_default(first_context);
        let gate = bench.hold(first);
        let _: CUstream = on_default(second_context);
        cu!(bench, cuMemsetD8Async(address, 1, 64, second) => 0);
        bench.waits(what, gate, false, || {
            cu!(bench, cuStreamSynchronize(second) => 0);
        });
        gate.open();
        cu!(bench, cuCtxSetCurrent(primary) => 0);
        cu!(bench, cuCtxSynchronize() => 0);
    }
}

fn waits_of_contexts(bench: &Bench) {
    let primary = bench.start();
    let calls = Calls::find(bench);
    let greens = calls.greens(bench);
    let streams = greens.map(|green| calls.stream(bench, green));
    let context = calls.context(bench, greens[0]);
    let plain = bench.stream(1);
    let cases = [
        ("the primary context for a green one", primary, streams[0], true),
        ("a green one for itself", context, streams[0], true),
        ("a green one for another", context, streams[1], false),
        ("a green one for the primary one", context, plain, false),
    ];
    for (what, current, busy, expected) in cases {
        cu!(bench, cuCtxSetCurrent(current) => 0);
        let gate = bench.hold(busy);
        bench.waits(what, gate, expected, || {
            cu!(bench, cuCtxSynchronize() => 0);
        });
        gate.open();
        cu!(bench, cuStreamSynchronize(busy) => 0);
    }
}

fn events_of_greens(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let greens = calls.greens(bench);
    let streams = greens.map(|green| calls.stream(bench, green));
    let (event, address, plain) = (bench.event(), bench.warm(64), bench.stream(1));
    let gate = bench.hold(streams[0]);
    other!(bench, calls, cuGreenCtxRecordEvent(greens[1], event) => 0);
    cu!(bench, cuEventSynchronize(event) => 0);
    other!(bench, calls, cuGreenCtxRecordEvent(greens[0], event) => 0);
    cu!(bench, cuEventQuery(event) => 600);
    other!(bench, calls, cuGreenCtxWaitEvent(greens[1], event) => 0);
    cu!(bench, cuMemsetD8Async(address, 1, 64, plain) => 0);
    cu!(bench, cuStreamSynchronize(plain) => 0);
    cu!(bench, cuMemsetD8Async(address, 1, 64, streams[1]) => 0);
    cu!(bench, cuStreamQuery(streams[1]) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(streams[1]) => 0);
    cu!(bench, cuEventQuery(event) => 0);
}

fn captures(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let greens = calls.greens(bench);
    let streams = greens.map(|green| calls.stream(bench, green));
    let (address, event, plain) = (bench.warm(256), bench.event(), bench.stream(1));
    cu!(bench, cuStreamBeginCapture(plain, RELAXED) => 0);
    bench.fill(address, 1, plain, 0);
    cu!(bench, cuEventRecord(event, plain) => 0);
    cu!(bench, cuStreamWaitEvent(streams[0], event, 0) => 0);
    bench.is("joined", bench.capture_status(streams[0]), 1);
    bench.is("of the same green context", calls.of(bench, streams[0]) == greens[0], true);
    bench.fill(address + 64, 2, streams[0], 0);
    cu!(bench, cuEventRecord(event, streams[0]) => 0);
    cu!(bench, cuStreamWaitEvent(plain, event, 0) => 0);
    let graph = bench.end(plain);
    let mut exec = null_mut();
    cu!(bench, cuGraphInstantiateWithFlags(&mut exec, graph, 0) => 0);
    for on in [plain, streams[0], streams[1], null_mut()] {
        cu!(bench, cuGraphLaunch(exec, on) => 0);
    }
    cu!(bench, cuCtxSynchronize() => 0);
    cu!(bench, cuGraphExecDestroy(exec) => 0);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

/// Only captures of a context's own streams refuse a wait for it.
fn waits_during_captures(bench: &Bench) {
    let primary = bench.start();
    let calls = Calls::find(bench);
    let greens = calls.greens(bench);
    let contexts = greens.map(|green| calls.context(bench, green));
    let (event, plain) = (bench.event(), bench.stream(1));
    let stream = calls.stream(bench, greens[0]);
    for (captured, refused) in [(stream, contexts[0]), (plain, primary)] {
        for current in [primary, contexts[0], contexts[1]] {
            cu!(bench, cuStreamBeginCapture(captured, RELAXED) => 0);
            cu!(bench, cuCtxSetCurrent(current) => 0);
            let (wait, end) = if current == refused { (900, 901) } else { (0, 0) };
            cu!(bench, cuCtxSynchronize() => wait);
            let mut graph = null_mut();
            cu!(bench, cuStreamEndCapture(captured, &mut graph) => end);
            bench.is("a graph", graph.is_null(), end != 0);
        }
        cu!(bench, cuCtxSetCurrent(primary) => 0);
    }
    for (green, end) in [(greens[1], 0), (greens[0], 901)] {
        let (wait, mut graph) = (if end == 0 { 0 } else { 900 }, null_mut());
        cu!(bench, cuStreamBeginCapture(stream, RELAXED) => 0);
        other!(bench, calls, cuGreenCtxRecordEvent(green, event) => wait);
        cu!(bench, cuStreamEndCapture(stream, &mut graph) => end);
        cu!(bench, cuStreamBeginCapture(stream, RELAXED) => 0);
        other!(bench, calls, cuGreenCtxWaitEvent(green, event) => wait);
        cu!(bench, cuStreamEndCapture(stream, &mut graph) => end);
    }
}

fn default_stream_captured(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let [green, _] = calls.greens(bench);
    cu!(bench, cuCtxPushCurrent(calls.context(bench, green)) => 0);
    cu!(bench, cuStreamBeginCapture(null_mut(), RELAXED) => 0);
    let graph = bench.end(null_mut());
    cu!(bench, cuGraphDestroy(graph) => 0);
}

/// The nodes of kernels name the context of their stream.
fn nodes_of_kernels(bench: &Bench) {
    let primary = bench.start();
    let calls = Calls::find(bench);
    let [green, _] = calls.greens(bench);
    let (address, writer) = (bench.warm(64), bench.writer());
    let streams =
        [(calls.stream(bench, green), calls.context(bench, green)), (bench.stream(1), primary)];
    for (stream, context) in streams {
        bench.begin(stream);
        bench.write(writer, address, 7, stream, 0);
        let graph = bench.end(stream);
        let mut found = MaybeUninit::<CUDA_KERNEL_NODE_PARAMS>::zeroed();
        let node = bench.node(graph, KERNEL);
        cu!(bench, cuGraphKernelNodeGetParams(node, found.as_mut_ptr()) => 0);
        // SAFETY: numbers and pointers, which were zeroed and written.
        let found = unsafe { found.assume_init() };
        bench.is("the context", found.ctx == context, true);
        cu!(bench, cuGraphDestroy(graph) => 0);
    }
}

fn cooperative(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let [green, _] = calls.greens(bench);
    let (stream, plain) = (calls.stream(bench, green), bench.stream(1));
    let (mut address, mut value, writer) = (bench.warm(64), 7u32, bench.writer());
    let mut parameters = [(&raw mut address).cast(), (&raw mut value).cast()];
    let mut most = 0;
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut most, writer, 1, 0) => 0);
    let fit = 16 * most as u32;
    for (blocks, on, expected) in [(fit, stream, 0), (fit + 1, stream, 720), (fit + 1, plain, 0)] {
        other!(bench, calls, cuLaunchCooperativeKernel(
            writer, blocks, 1, 1, 1, 1, 1, 0, on, parameters.as_mut_ptr()) => expected);
    }
    cu!(bench, cuCtxSynchronize() => 0);
}

fn destroyed(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let [green, other] = calls.greens(bench);
    let stream = calls.stream(bench, green);
    let (event, address) = (bench.event(), bench.warm(64));
    cu!(bench, cuMemsetD8Async(address, 9, 64, stream) => 0);
    other!(bench, calls, cuGreenCtxDestroy(green) => 0);
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("the work is done", bench.fetch(address, 2, null_mut()), vec![9, 9]);
    let (mut id, mut number, mut of) = (0, 0, null_mut());
    cu!(bench, cuStreamQuery(stream) => 709);
    cu!(bench, cuStreamSynchronize(stream) => 709);
    cu!(bench, cuStreamWaitEvent(stream, event, 0) => 709);
    cu!(bench, cuStreamGetId(stream, &mut id) => 709);
    cu!(bench, cuStreamGetPriority(stream, &mut number) => 709);
    cu!(bench, cuStreamGetCtx(stream, &mut of) => 709);
    cu!(bench, cuEventRecord(event, stream) => 709);
    cu!(bench, cuMemsetD8Async(address, 1, 64, stream) => 709);
    cu!(bench, cuStreamDestroy(stream) => 709);
    other!(bench, calls, cuStreamGetGreenCtx(stream, &mut null_mut()) => 709);
    other!(bench, calls, cuGreenCtxDestroy(green) => 709);
    let (mut found, mut made) = (NOTHING, null_mut());
    other!(bench, calls, cuGreenCtxGetDevResource(green, &mut found, SM) => 709);
    other!(bench, calls, cuGreenCtxStreamCreate(&mut made, green, 1, 0) => 709);
    // Its context must not become current: a GPU's driver ends the process when it is popped.
    other!(bench, calls, cuGreenCtxDestroy(other) => 0);
}

fn destroyed_while_current(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let [green, _] = calls.greens(bench);
    let (context, mut current, mut device) = (calls.context(bench, green), null_mut(), 9);
    cu!(bench, cuCtxPushCurrent(context) => 0);
    other!(bench, calls, cuGreenCtxDestroy(green) => 0);
    cu!(bench, cuCtxGetCurrent(&mut current) => 0);
    bench.is("current", current == context, true);
    cu!(bench, cuCtxSynchronize() => 709);
    cu!(bench, cuCtxGetDevice(&mut device) => 0);
    bench.is("device", device, 0);
    cu!(bench, cuCtxPopCurrent(&mut current) => 0);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn destroyed_while_captured(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let greens = calls.greens(bench);
    let (stream, plain, event) = (calls.stream(bench, greens[0]), bench.stream(1), bench.event());
    let mut graph = null_mut();
    cu!(bench, cuStreamBeginCapture(stream, RELAXED) => 0);
    other!(bench, calls, cuGreenCtxDestroy(greens[0]) => 0);
    cu!(bench, cuStreamEndCapture(stream, &mut graph) => 709);
    // A capture of another context in which its stream took part without work goes on.
    let stream = calls.stream(bench, greens[1]);
    cu!(bench, cuStreamBeginCapture(plain, RELAXED) => 0);
    cu!(bench, cuEventRecord(event, plain) => 0);
    cu!(bench, cuStreamWaitEvent(stream, event, 0) => 0);
    other!(bench, calls, cuGreenCtxDestroy(greens[1]) => 0);
    let graph = bench.end(plain);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn reset(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let greens = calls.greens(bench);
    let mut found = NOTHING;
    cu!(bench, cuDevicePrimaryCtxReset(0) => 800);
    for green in greens {
        other!(bench, calls, cuGreenCtxGetDevResource(green, &mut found, SM) => 0);
        other!(bench, calls, cuGreenCtxDestroy(green) => 0);
    }
    cu!(bench, cuDevicePrimaryCtxReset(0) => 0);
}

fn many(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let mut greens = vec![null_mut(); 200];
    for green in &mut greens {
        other!(bench, calls, cuGreenCtxCreate(green, null_mut(), 0, 1) => 0);
    }
    for green in greens {
        other!(bench, calls, cuGreenCtxDestroy(green) => 0);
    }
}

fn splits_of_groups(bench: &Bench) {
    cu!(bench, cuInit(0) => 0);
    let calls = Calls::find(bench);
    let whole = calls.whole(bench);
    let (mut parts, mut rest, mut groups) = ([NOTHING; 2], NOTHING, [[0; 16]; 2]);
    (groups[0][0], groups[0][1], groups[1][1]) = (8, 2, 2);
    other!(bench, calls, cuDevSmResourceSplit(
        parts.as_mut_ptr(), 2, &whole, &mut rest, 0, groups.as_mut_ptr()) => 0);
    bench.is("the first", (groups[0][0], parts[0][COUNT]), (8, 8));
    bench.is("all others", (groups[1][0], parts[1][COUNT]), (whole[COUNT] - 8, whole[COUNT] - 8));
    bench.is("no rest", rest[0], 0);
}

fn resources_of_streams(bench: &Bench) {
    bench.start();
    let calls = Calls::find(bench);
    let (whole, [green, _]) = (calls.whole(bench), calls.greens(bench));
    let (stream, mut found) = (calls.stream(bench, green), NOTHING);
    other!(bench, calls, cuStreamGetDevResource(stream, &mut found, SM) => 0);
    bench.is("the part", shown(&found), [16, 8, 8]);
    other!(bench, calls, cuStreamGetDevResource(null_mut(), &mut found, SM) => 0);
    bench.is("all", shown(&found), shown(&whole));
}
