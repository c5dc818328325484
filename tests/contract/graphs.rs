//! Graphs: what a launch does, when, and in what order.

use crate::Row;
use crate::bench::{Bench, MIB, cu, handle, host};
use crate::capture::{CALLS, count};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["graphs":
    launched_many_times, parameters_are_taken_at_capture, memory_is_read_at_launch,
    launches_wait_for_their_stream, launches_of_one_wait_for_each_other, two_of_one_graph,
    branches_and_their_join, legacy_waits_for_launches, empty_launches, callbacks_at_each_launch,
    exec_destroyed_before_its_end, graph_destroyed_before_its_launch, null_arguments,
    nodes_and_edges, events_recorded_at_launch, launched_in_a_capture, pool_memory_of_a_graph,
    pool_memory_that_stays, instantiate_flags, destroyed_stream_and_graph, launch_is_no_wait,
    pool_memory_outlives_its_graph, pool_memory_freed_at_launch, pool_memory_freed_by_another,
    nothing_behind_an_address,
];

impl Bench {
    /// Captures calls and makes them a graph that can be launched.
    pub fn record(&self, stream: CUstream, calls: impl FnOnce()) -> CUgraphExec {
        self.begin(stream);
        calls();
        let graph = self.end(stream);
        let mut exec = null_mut();
        cu!(self, cuGraphInstantiateWithFlags(&mut exec, graph, 0) => 0);
        cu!(self, cuGraphDestroy(graph) => 0);
        exec
    }

    fn play(&self, exec: CUgraphExec, stream: CUstream) {
        cu!(self, cuGraphLaunch(exec, stream) => 0);
    }
}

fn launched_many_times(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    let second = bench.allocate(64);
    let exec = bench.record(stream, || {
        cu!(bench, cuMemcpyAsync(second, address, 64, stream) => 0);
        bench.fill(address, 9, stream, 0);
    });
    for value in 1..4 {
        bench.fill(address, value, stream, 0);
        bench.play(exec, stream);
        bench.is("copied", bench.fetch(second, 1, stream), vec![value]);
        bench.is("filled", bench.fetch(address, 1, stream), vec![9]);
    }
    cu!(bench, cuGraphExecDestroy(exec) => 0);
}

fn parameters_are_taken_at_capture(bench: &Bench) {
    bench.start();
    let (address, stream, writer) = (bench.warm(64), bench.stream(1), bench.writer());
    let mut exec = null_mut();
    for value in [5, 6] {
        exec = bench.record(stream, || bench.write(writer, address, value, stream, 0));
    }
    bench.play(exec, stream);
    bench.is("bytes", bench.fetch(address, 4, stream), vec![6, 0, 0, 0]);
    cu!(bench, cuGraphExecDestroy(exec) => 0);
}

fn memory_is_read_at_launch(bench: &Bench) {
    bench.start();
    let (address, stream, pinned) = (bench.warm(64), bench.stream(1), bench.pinned(64));
    let mut pageable = vec![1; 64];
    let source = pageable.as_mut_ptr().expose_provenance() as u64;
    pinned.fill(1);
    let exec = bench.record(stream, || {
        cu!(bench, cuMemcpyAsync(address, host(pinned), 32, stream) => 0);
        cu!(bench, cuMemcpyAsync(address + 32, source, 32, stream) => 0);
    });
    pinned.fill(2);
    // SAFETY: nothing reads the buffer meanwhile.
    unsafe {
        std::slice::from_raw_parts_mut(
            std::ptr::with_exposed_provenance_mut::<u8>(source as usize),
            64,
        )
    }
    .fill(3);
    bench.play(exec, stream);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    let bytes = bench.fetch(address, 64, stream);
    bench.is("from pinned and pageable memory", (bytes[0], bytes[32]), (2, 3));
    drop(pageable);
}

fn launches_wait_for_their_stream(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    let exec = bench.record(stream, || bench.fill(address, 2, stream, 0));
    bench.play(exec, stream);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    let gate = bench.hold(stream);
    bench.fill(address, 1, stream, 0);
    bench.play(exec, stream);
    cu!(bench, cuStreamQuery(stream) => 600);
    let pinned = bench.pinned(64);
    let other = bench.stream(1);
    cu!(bench, cuMemcpyAsync(host(pinned), address, 64, other) => 0);
    cu!(bench, cuStreamSynchronize(other) => 0);
    bench.is("before", pinned[0], 2);
    gate.open();
    cu!(bench, cuStreamSynchronize(stream) => 0);
    bench.is("after", bench.fetch(address, 1, stream), vec![2]);
    // And what comes after a launch waits for it.
    bench.fill(address, 1, stream, 0);
    let late = bench.record(stream, || {
        cu!(bench, cuLaunchHostFunc(stream, Some(pause), null_mut()) => 0);
        bench.fill(address, 3, stream, 0);
    });
    bench.play(late, stream);
    cu!(bench, cuMemcpyAsync(host(pinned), address, 64, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    bench.is("behind a launch", pinned[0], 3);
}

unsafe extern "C" fn pause(_: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(50));
}

fn launches_of_one_wait_for_each_other(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    let exec = bench.record(a, || bench.fill(address, 2, a, 0));
    bench.play(exec, a);
    cu!(bench, cuStreamSynchronize(a) => 0);
    let gate = bench.hold(a);
    bench.play(exec, a);
    bench.play(exec, b);
    std::thread::sleep(std::time::Duration::from_millis(50));
    cu!(bench, cuStreamQuery(b) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(b) => 0);
    cu!(bench, cuStreamSynchronize(a) => 0);
}

fn two_of_one_graph(bench: &Bench) {
    bench.start();
    let (address, a, b) = (bench.warm(64), bench.stream(1), bench.stream(1));
    bench.begin(a);
    bench.fill(address, 2, a, 0);
    let graph = bench.end(a);
    let (mut first, mut second) = (null_mut(), null_mut());
    cu!(bench, cuGraphInstantiateWithFlags(&mut first, graph, 0) => 0);
    cu!(bench, cuGraphInstantiateWithFlags(&mut second, graph, 0) => 0);
    bench.is("two", first != second, true);
    for exec in [first, second] {
        bench.play(exec, a);
    }
    cu!(bench, cuStreamSynchronize(a) => 0);
    let gate = bench.hold(a);
    bench.play(first, a);
    bench.play(second, b);
    cu!(bench, cuStreamSynchronize(b) => 0);
    gate.open();
}

fn branches_and_their_join(bench: &Bench) {
    bench.start();
    let (address, a) = (bench.warm(64), bench.stream(1));
    let (b, fork, join) = (bench.stream(1), bench.event(), bench.event());
    let exec = bench.record(a, || {
        bench.fill(address, 1, a, 0);
        cu!(bench, cuEventRecord(fork, a) => 0);
        cu!(bench, cuStreamWaitEvent(b, fork, 0) => 0);
        cu!(bench, cuLaunchHostFunc(b, Some(pause), null_mut()) => 0);
        cu!(bench, cuMemsetD8Async(address, 2, 32, b) => 0);
        cu!(bench, cuMemsetD8Async(address + 32, 3, 32, a) => 0);
        cu!(bench, cuEventRecord(join, b) => 0);
        cu!(bench, cuStreamWaitEvent(a, join, 0) => 0);
        cu!(bench, cuMemsetD8Async(address + 16, 4, 32, a) => 0);
    });
    for _ in 0..3 {
        bench.play(exec, a);
        let bytes = bench.fetch(address, 64, a);
        bench.is("bytes", [bytes[0], bytes[16], bytes[47], bytes[48]], [2, 4, 4, 3]);
    }
}

fn legacy_waits_for_launches(bench: &Bench) {
    bench.start();
    let (address, blocking) = (bench.warm(64), bench.stream(0));
    let exec = bench.record(blocking, || {
        cu!(bench, cuLaunchHostFunc(blocking, Some(pause), null_mut()) => 0);
        bench.fill(address, 1, blocking, 0);
    });
    bench.play(exec, blocking);
    bench.fill(address, 2, null_mut(), 0);
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("legacy last", bench.fetch(address, 1, null_mut()), vec![2]);
    let gate = bench.hold(null_mut());
    bench.fill(address, 3, null_mut(), 0);
    bench.play(exec, blocking);
    std::thread::sleep(std::time::Duration::from_millis(100));
    gate.open();
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("launch last", bench.fetch(address, 1, null_mut()), vec![1]);
    bench.play(exec, null_mut());
    cu!(bench, cuStreamSynchronize(null_mut()) => 0);
}

fn empty_launches(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (a, b) = (bench.stream(1), bench.stream(1));
    let exec = bench.record(a, || {});
    bench.play(exec, a);
    cu!(bench, cuStreamSynchronize(a) => 0);
    let gate = bench.hold(b);
    bench.play(exec, b);
    cu!(bench, cuStreamQuery(b) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(b) => 0);
}

fn callbacks_at_each_launch(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let stream = bench.stream(1);
    let exec = bench.record(stream, || {
        cu!(bench, cuLaunchHostFunc(stream, Some(count), null_mut()) => 0);
        cu!(bench, cuLaunchHostFunc(stream, Some(count), null_mut()) => 0);
    });
    for launches in 1..4 {
        bench.play(exec, stream);
        cu!(bench, cuStreamSynchronize(stream) => 0);
        bench.is("calls", CALLS.load(Ordering::SeqCst), 2 * launches);
    }
}

fn exec_destroyed_before_its_end(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    let exec = bench.record(stream, || {
        bench.fill(address, 5, stream, 0);
        cu!(bench, cuMemsetD8Async(address + 32, 6, 32, stream) => 0);
    });
    let gate = bench.hold(stream);
    bench.play(exec, stream);
    bench.waits("cuGraphExecDestroy", gate, false, || {
        cu!(bench, cuGraphExecDestroy(exec) => 0);
    });
    gate.open();
    let bytes = bench.fetch(address, 64, stream);
    bench.is("bytes", (bytes[0], bytes[32]), (5, 6));
}

fn graph_destroyed_before_its_launch(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    // `record` destroys the graph, and the stream of the capture is not needed either.
    let exec = bench.record(stream, || bench.fill(address, 5, stream, 0));
    cu!(bench, cuStreamDestroy(stream) => 0);
    let other = bench.stream(0);
    bench.play(exec, other);
    bench.is("bytes", bench.fetch(address, 1, other), vec![5]);
}

fn null_arguments(bench: &Bench) {
    bench.start();
    let (stream, mut number, mut exec) = (bench.stream(1), 7, null_mut());
    bench.begin(stream);
    let graph = bench.end(stream);
    cu!(bench, cuGraphDestroy(null_mut()) => 1);
    cu!(bench, cuGraphGetNodes(null_mut(), null_mut(), &mut number) => 1);
    cu!(bench, cuGraphGetNodes(graph, null_mut(), null_mut()) => 1);
    cu!(bench, cuGraphGetEdges(null_mut(), null_mut(), null_mut(), &mut number) => 1);
    cu!(bench, cuGraphGetEdges(graph, null_mut(), null_mut(), null_mut()) => 1);
    let mut kind = 99;
    cu!(bench, cuGraphNodeGetType(null_mut(), (&raw mut kind).cast()) => 1);
    cu!(bench, cuGraphInstantiateWithFlags(null_mut(), graph, 0) => 1);
    cu!(bench, cuGraphInstantiateWithFlags(&mut exec, null_mut(), 0) => 1);
    cu!(bench, cuGraphLaunch(null_mut(), stream) => 1);
    cu!(bench, cuGraphExecDestroy(null_mut()) => 1);
    bench.is("untouched", (number, kind), (7, 99));
}

fn nodes_and_edges(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    bench.begin(stream);
    for value in 0..3 {
        bench.fill(address, value, stream, 0);
    }
    let graph = bench.end(stream);
    let mut nodes = [handle(77); 5];
    let mut number = 2;
    cu!(bench, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut number) => 0);
    bench.is("two of three", (number, nodes[1].addr() != 77, nodes[2].addr()), (2, true, 77));
    number = 5;
    cu!(bench, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut number) => 0);
    bench.is("three of three", (number, nodes[2].addr() != 77, nodes[3].addr()), (3, true, 0));
    let (mut from, mut to) = ([handle(77); 5], [handle(77); 5]);
    number = 1;
    cu!(bench, cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut number) => 0);
    bench.is("one of two", (number, from[1].addr()), (1, 77));
    number = 5;
    cu!(bench, cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut number) => 0);
    bench.is("two of two", (number, from[2].addr(), to[2].addr()), (2, 0, 0));
    let chain = nodes[..3].iter().filter(|node| from.contains(node)).count();
    bench.is("nodes that others follow", chain, 2);
    number = 5;
    cu!(bench, cuGraphGetEdges(graph, from.as_mut_ptr(), null_mut(), &mut number) => 1);
}

fn events_recorded_at_launch(bench: &Bench) {
    bench.start();
    let (address, stream, event) = (bench.warm(64), bench.stream(1), bench.event());
    let exec = bench.record(stream, || {
        bench.fill(address, 1, stream, 0);
        cu!(bench, cuEventRecordWithFlags(event, stream, 1) => 0);
    });
    cu!(bench, cuEventQuery(event) => 0);
    let gate = bench.hold(stream);
    bench.play(exec, stream);
    cu!(bench, cuEventQuery(event) => 600);
    gate.open();
    cu!(bench, cuEventSynchronize(event) => 0);
    bench.is("bytes", bench.fetch(address, 1, bench.stream(1)), vec![1]);
    // A wait in a graph is for what the event holds at the launch.
    let (other, waiter) = (bench.stream(1), bench.stream(1));
    let waits = bench.record(waiter, || {
        cu!(bench, cuStreamWaitEvent(waiter, event, 1) => 0);
        bench.fill(address, 2, waiter, 0);
    });
    let gate = bench.hold(other);
    cu!(bench, cuEventRecord(event, other) => 0);
    bench.play(waits, waiter);
    std::thread::sleep(std::time::Duration::from_millis(50));
    cu!(bench, cuStreamQuery(waiter) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(waiter) => 0);
    bench.is("bytes", bench.fetch(address, 1, waiter), vec![2]);
}

fn launched_in_a_capture(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    let inner = bench.record(stream, || bench.fill(address, 1, stream, 0));
    bench.begin(stream);
    cu!(bench, cuGraphLaunch(inner, stream) => 900);
    bench.is("status", bench.capture_status(stream), 2);
    cu!(bench, cuGraphLaunch(inner, stream) => 900);
    bench.end_with(stream, 901);
    bench.play(inner, stream);
    bench.is("bytes", bench.fetch(address, 1, stream), vec![1]);
}

fn pool_memory_of_a_graph(bench: &Bench) {
    bench.start();
    let (result, stream) = (bench.warm(64), bench.stream(1));
    let mut address = 0;
    let exec = bench.record(stream, || {
        cu!(bench, cuMemAllocAsync(&mut address, MIB, stream) => 0);
        bench.fill(address, 8, stream, 0);
        cu!(bench, cuMemcpyAsync(result, address, 64, stream) => 0);
        cu!(bench, cuMemFreeAsync(address, stream) => 0);
    });
    for _ in 0..3 {
        bench.fill(result, 1, stream, 0);
        bench.play(exec, stream);
        bench.is("bytes", bench.fetch(result, 1, stream), vec![8]);
    }
    cu!(bench, cuGraphExecDestroy(exec) => 0);
}

fn pool_memory_that_stays(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let stream = bench.stream(1);
    let mut address = 0;
    let exec = bench.record(stream, || {
        cu!(bench, cuMemAllocAsync(&mut address, MIB, stream) => 0);
        bench.fill(address, 8, stream, 0);
    });
    bench.play(exec, stream);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    bench.is("bytes", bench.fetch(address, 1, stream), vec![8]);
    cu!(bench, cuGraphLaunch(exec, stream) => 1);
    cu!(bench, cuMemFreeAsync(address, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    bench.play(exec, stream);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    cu!(bench, cuMemFreeAsync(address, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn instantiate_flags(bench: &Bench) {
    bench.start();
    let stream = bench.stream(1);
    bench.begin(stream);
    let graph = bench.end(stream);
    for (flags, expected) in [(0, 0), (1, 0), (8, 0), (16, 1), (1 << 40, 1)] {
        let mut exec = handle(77);
        let given = cu!(bench, cuGraphInstantiateWithFlags(&mut exec, graph, flags) => expected);
        if given == 0 {
            cu!(bench, cuGraphExecDestroy(exec) => 0);
        }
    }
}

fn destroyed_stream_and_graph(bench: &Bench) {
    bench.start();
    let (address, stream, writer) = (bench.warm(64), bench.stream(1), bench.writer());
    let exec = bench.record(stream, || bench.write(writer, address, 7, stream, 0));
    let gate = bench.hold(stream);
    bench.play(exec, stream);
    cu!(bench, cuStreamDestroy(stream) => 0);
    cu!(bench, cuGraphExecDestroy(exec) => 0);
    gate.open();
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("bytes", bench.fetch(address, 1, null_mut()), vec![7]);
}

fn launch_is_no_wait(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    let exec = bench.record(stream, || bench.fill(address, 1, stream, 0));
    bench.play(exec, stream);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    let gate = bench.hold(stream);
    bench.waits("cuGraphLaunch", gate, false, || bench.play(exec, stream));
    gate.open();
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn pool_memory_outlives_its_graph(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let stream = bench.stream(1);
    let mut address = 0;
    let exec = bench.record(stream, || {
        cu!(bench, cuMemAllocAsync(&mut address, MIB, stream) => 0);
        bench.fill(address, 8, stream, 0);
    });
    bench.play(exec, stream);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    cu!(bench, cuGraphExecDestroy(exec) => 0);
    bench.fill(address + 32, 9, stream, 0);
    let bytes = bench.fetch(address, 64, stream);
    bench.is("bytes", (bytes[0], bytes[63]), (8, 9));
    cu!(bench, cuMemFree(address) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn pool_memory_freed_at_launch(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (stream, mut address, mut exec) = (bench.stream(1), 0, null_mut());
    bench.begin(stream);
    cu!(bench, cuMemAllocAsync(&mut address, MIB, stream) => 0);
    bench.fill(address, 8, stream, 0);
    let graph = bench.end(stream);
    // CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    cu!(bench, cuGraphInstantiateWithFlags(&mut exec, graph, 1) => 0);
    for _ in 0..3 {
        bench.play(exec, stream);
        bench.is("bytes", bench.fetch(address, 1, stream), vec![8]);
    }
    cu!(bench, cuMemFreeAsync(address, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn pool_memory_freed_by_another(bench: &Bench) {
    bench.start();
    bench.warm(64);
    let (stream, mut address) = (bench.stream(1), 0);
    let takes = bench.record(stream, || {
        cu!(bench, cuMemAllocAsync(&mut address, MIB, stream) => 0);
        bench.fill(address, 8, stream, 0);
    });
    let gives = bench.record(stream, || {
        cu!(bench, cuMemFreeAsync(address, stream) => 0);
    });
    for _ in 0..3 {
        bench.play(takes, stream);
        bench.is("bytes", bench.fetch(address, 1, stream), vec![8]);
        bench.play(gives, stream);
        cu!(bench, cuStreamSynchronize(stream) => 0);
    }
}

fn nothing_behind_an_address(bench: &Bench) {
    bench.start();
    let (stream, mut exec) = (bench.stream(1), null_mut());
    bench.begin(stream);
    bench.fill(0, 1, stream, 0);
    let graph = bench.end(stream);
    cu!(bench, cuGraphInstantiateWithFlags(&mut exec, graph, 0) => 1);
}
