//! What takes the place of what a graph runs, and graphs in print.

use crate::Row;
use crate::bench::{Bench, cu};
use std::ffi::CString;
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["graph updates":
    update_takes_parameters_over, update_of_another_shape, update_by_its_own,
    update_beside_a_launch, printed_graphs,
];

/// Captures calls into a graph.
fn capture(bench: &Bench, stream: CUstream, calls: impl FnOnce()) -> CUgraph {
    bench.begin(stream);
    calls();
    bench.end(stream)
}

fn update(bench: &Bench, exec: CUgraphExec, graph: CUgraph, expected: i32) {
    // SAFETY: plain data, for which zero is a value.
    let mut info: CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
    cu!(bench, cuGraphExecUpdate(exec, graph, &mut info) => expected);
    // SAFETY: the first member is a number.
    let result = unsafe { (&raw const info).cast::<u32>().read() };
    bench.is("is refused", result != 0, expected != 0);
}

fn update_takes_parameters_over(bench: &Bench) {
    bench.start();
    let (address, stream, writer) = (bench.warm(64), bench.stream(1), bench.writer());
    let exec = bench.record(stream, || {
        bench.fill(address, 1, stream, 0);
        bench.write(writer, address + 4, 2, stream, 0);
    });
    let graph = capture(bench, stream, || {
        bench.fill(address, 3, stream, 0);
        bench.write(writer, address + 8, 4, stream, 0);
    });
    update(bench, exec, graph, 0);
    cu!(bench, cuGraphDestroy(graph) => 0);
    bench.fill(address, 0, stream, 0);
    cu!(bench, cuGraphLaunch(exec, stream) => 0);
    let bytes = bench.fetch(address, 64, stream);
    bench.is("bytes", (bytes[0], bytes[4], bytes[8], bytes[63]), (3, 3, 4, 3));
    cu!(bench, cuGraphExecDestroy(exec) => 0);
}

fn update_of_another_shape(bench: &Bench) {
    bench.start();
    let (address, stream, writer) = (bench.warm(64), bench.stream(1), bench.writer());
    let exec = bench.record(stream, || bench.fill(address, 1, stream, 0));
    let longer = capture(bench, stream, || {
        bench.fill(address, 2, stream, 0);
        bench.fill(address, 3, stream, 0);
    });
    let other = capture(bench, stream, || bench.write(writer, address, 4, stream, 0));
    update(bench, exec, longer, code_of_refusal());
    update(bench, exec, other, code_of_refusal());
    cu!(bench, cuGraphLaunch(exec, stream) => 0);
    bench.is("bytes", bench.fetch(address, 1, stream), vec![1]);
    for graph in [longer, other] {
        cu!(bench, cuGraphDestroy(graph) => 0);
    }
    cu!(bench, cuGraphExecDestroy(exec) => 0);
}

fn code_of_refusal() -> i32 {
    tcuda::driver::code::GRAPH_EXEC_UPDATE_FAILURE
}

fn update_by_its_own(bench: &Bench) {
    bench.start();
    let (address, stream, mut exec) = (bench.warm(64), bench.stream(1), null_mut());
    let graph = capture(bench, stream, || bench.fill(address, 1, stream, 0));
    cu!(bench, cuGraphInstantiateWithFlags(&mut exec, graph, 0) => 0);
    update(bench, exec, graph, 0);
    cu!(bench, cuGraphLaunch(exec, stream) => 0);
    bench.is("bytes", bench.fetch(address, 1, stream), vec![1]);
    cu!(bench, cuGraphDestroy(graph) => 0);
    cu!(bench, cuGraphExecDestroy(exec) => 0);
}

/// A launch that is under way runs what was there when it was made.
fn update_beside_a_launch(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    let second = bench.allocate(64);
    bench.fill(second, 0, stream, 0);
    let exec = bench.record(stream, || bench.fill(address, 1, stream, 0));
    let graph = capture(bench, stream, || bench.fill(second, 2, stream, 0));
    cu!(bench, cuGraphLaunch(exec, stream) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    bench.fill(address, 0, stream, 0);
    let gate = bench.hold(stream);
    cu!(bench, cuGraphLaunch(exec, stream) => 0);
    update(bench, exec, graph, 0);
    cu!(bench, cuGraphLaunch(exec, stream) => 0);
    gate.open();
    bench.is("first", bench.fetch(address, 1, stream), vec![1]);
    bench.is("second", bench.fetch(second, 1, stream), vec![2]);
    cu!(bench, cuGraphDestroy(graph) => 0);
    cu!(bench, cuGraphExecDestroy(exec) => 0);
}

fn printed_graphs(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    let graph = capture(bench, stream, || {
        bench.fill(address, 1, stream, 0);
        bench.fill(address, 2, stream, 0);
    });
    let path = std::env::temp_dir().join(format!("tcuda_contract_{}.dot", std::process::id()));
    let name = path.to_str().and_then(|path| CString::new(path).ok()).unwrap_or_default();
    cu!(bench, cuGraphDebugDotPrint(graph, name.as_ptr(), 1) => 0);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    bench.is("is a graph", text.contains("digraph"), true);
    bench.is("edges", text.matches("->").count(), 1);
    let _ = std::fs::remove_file(&path);
    cu!(bench, cuGraphDestroy(graph) => 0);
}
