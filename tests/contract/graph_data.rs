//! What the driver tells of the nodes and edges of a captured graph.

use crate::Row;
use crate::bench::{Bench, MIB, cu, handle, host};
use crate::capture::{
    ALLOCATE, CALLBACK, CALLS, COPY, EVENT_RECORD, EVENT_WAIT, FILL, FREE, KERNEL, count,
};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use tcuda::driver::CudaError;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["graphs":
    kernel_parameters, names_and_parameters, copy_parameters, fill_parameters,
    callback_parameters, events_of_nodes, pool_memory_of_nodes, nodes_of_other_kinds,
    no_nodes, roots, dependents, data_of_edges, queries_during_a_capture, ids,
];

impl Bench {
    /// The first node of a kind.
    pub fn node(&self, graph: CUgraph, kind: i32) -> CUgraphNode {
        let mut nodes = [null_mut(); 16];
        let mut number = nodes.len();
        cu!(self, cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut number) => 0);
        let is_of_kind = |node: &CUgraphNode| {
            let mut found = 99;
            cu!(self, cuGraphNodeGetType(*node, (&raw mut found).cast()) => 0);
            found == kind
        };
        let found = nodes[..number].iter().copied().find(is_of_kind);
        found.unwrap_or_else(|| panic!("no node of kind {kind}"))
    }
}

fn kernel_parameters(bench: &Bench) {
    bench.start();
    let (address, stream, writer) = (bench.warm(64), bench.stream(1), bench.writer());
    bench.begin(stream);
    bench.write(writer, address, 7, stream, 0);
    let graph = bench.end(stream);
    let node = bench.node(graph, KERNEL);
    let mut found = MaybeUninit::<CUDA_KERNEL_NODE_PARAMS>::zeroed();
    cu!(bench, cuGraphKernelNodeGetParams(node, found.as_mut_ptr()) => 0);
    // SAFETY: numbers and pointers, which were zeroed and written.
    let found = unsafe { found.assume_init() };
    bench.is("the function", found.func == writer, true);
    let grid = [found.gridDimX, found.gridDimY, found.gridDimZ];
    let block = [found.blockDimX, found.blockDimY, found.blockDimZ];
    bench.is("dimensions", (grid, block, found.sharedMemBytes), ([1; 3], [1; 3], 0));
    cu!(bench, cuGraphKernelNodeGetParams(node, null_mut()) => 1);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn names_and_parameters(bench: &Bench) {
    bench.start();
    let writer = bench.writer();
    let (mut name, mut offset, mut bytes) = (null(), 77, 77);
    cu!(bench, cuFuncGetName(&mut name, writer) => 0);
    // SAFETY: the driver's text, which ends with a NUL.
    let name = unsafe { CStr::from_ptr(name) };
    bench.is("name", name.to_bytes(), b"contract_write");
    cu!(bench, cuFuncGetParamInfo(writer, 0, &mut offset, &mut bytes) => 0);
    bench.is("an address", (offset, bytes), (0, 8));
    cu!(bench, cuFuncGetParamInfo(writer, 1, &mut offset, &mut bytes) => 0);
    bench.is("a word", (offset, bytes), (8, 4));
    cu!(bench, cuFuncGetParamInfo(writer, 2, &mut offset, &mut bytes) => 1);
}

fn copy_parameters(bench: &Bench) {
    bench.start();
    let (from, to, stream) = (bench.warm(64), bench.warm(64), bench.stream(1));
    bench.begin(stream);
    cu!(bench, cuMemcpyAsync(to, from, 48, stream) => 0);
    let graph = bench.end(stream);
    let node = bench.node(graph, COPY);
    let mut words = [0u64; size_of::<CUDA_MEMCPY3D>() / 8];
    cu!(bench, cuGraphMemcpyNodeGetParams(node, words.as_mut_ptr().cast()) => 0);
    let kinds = (words[4] & 0xffff_ffff, words[15] & 0xffff_ffff);
    bench.is("unified addresses", kinds, (4, 4));
    bench.is("addresses", (words[6] == from, words[17] == to), (true, true));
    bench.is("extent", &words[22..], &[48, 1, 1]);
    cu!(bench, cuGraphDestroy(graph) => 0);

    let pinned = bench.pinned(64);
    bench.begin(stream);
    cu!(bench, cuMemcpyAsync(to, host(pinned), 40, stream) => 0);
    let graph = bench.end(stream);
    let node = bench.node(graph, COPY);
    cu!(bench, cuGraphMemcpyNodeGetParams(node, words.as_mut_ptr().cast()) => 0);
    bench.is("of the host", (words[4] & 0xffff_ffff, words[6] == host(pinned)), (4, true));
    bench.is("extent", &words[22..], &[40, 1, 1]);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn fill_parameters(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    bench.begin(stream);
    cu!(bench, cuMemsetD8Async(address, 7, 33, stream) => 0);
    let graph = bench.end(stream);
    let mut found = MaybeUninit::<CUDA_MEMSET_NODE_PARAMS>::zeroed();
    let node = bench.node(graph, FILL);
    cu!(bench, cuGraphMemsetNodeGetParams(node, found.as_mut_ptr()) => 0);
    // SAFETY: numbers, which were zeroed and written.
    let bytes = unsafe { found.assume_init() };
    bench.is("bytes", (bytes.dst == address, bytes.value, bytes.height), (true, 7, 1));
    bench.is("of bytes", bytes.elementSize as usize * bytes.width, 33);
    cu!(bench, cuGraphDestroy(graph) => 0);

    bench.begin(stream);
    cu!(bench, cuMemsetD32Async(address, 0x0102_0304, 9, stream) => 0);
    let graph = bench.end(stream);
    let node = bench.node(graph, FILL);
    cu!(bench, cuGraphMemsetNodeGetParams(node, found.as_mut_ptr()) => 0);
    // SAFETY: as above.
    let words = unsafe { found.assume_init() };
    let seen = (words.value, words.elementSize, words.width, words.height);
    bench.is("words", seen, (0x0102_0304, 4, 9, 1));
    cu!(bench, cuGraphMemsetNodeGetParams(node, null_mut()) => 1);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn callback_parameters(bench: &Bench) {
    bench.start();
    let stream = bench.stream(1);
    let argument = (&raw const CALLS).cast_mut().cast();
    bench.begin(stream);
    cu!(bench, cuLaunchHostFunc(stream, Some(count), argument) => 0);
    let graph = bench.end(stream);
    let node = bench.node(graph, CALLBACK);
    let mut found = MaybeUninit::<CUDA_HOST_NODE_PARAMS>::zeroed();
    cu!(bench, cuGraphHostNodeGetParams(node, found.as_mut_ptr()) => 0);
    // SAFETY: numbers and pointers, which were zeroed and written.
    let found = unsafe { found.assume_init() };
    let function = found.fn_.map(|function| function as usize);
    bench.is("function", function == Some(count as *const () as usize), true);
    bench.is("argument", found.userData == argument, true);
    cu!(bench, cuGraphHostNodeGetParams(node, null_mut()) => 1);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn events_of_nodes(bench: &Bench) {
    bench.start();
    let (stream, event, other) = (bench.stream(1), bench.event(), bench.event());
    bench.begin(stream);
    cu!(bench, cuEventRecordWithFlags(event, stream, 1) => 0);
    cu!(bench, cuStreamWaitEvent(stream, other, 1) => 0);
    let graph = bench.end(stream);
    let (record, wait) = (bench.node(graph, EVENT_RECORD), bench.node(graph, EVENT_WAIT));
    let mut found = handle(77);
    cu!(bench, cuGraphEventRecordNodeGetEvent(record, &mut found) => 0);
    bench.is("the recorded event", found == event, true);
    cu!(bench, cuGraphEventWaitNodeGetEvent(wait, &mut found) => 0);
    bench.is("the awaited event", found == other, true);
    cu!(bench, cuGraphEventRecordNodeGetEvent(wait, &mut found) => 1);
    cu!(bench, cuGraphEventWaitNodeGetEvent(record, &mut found) => 1);
    cu!(bench, cuGraphEventRecordNodeGetEvent(record, null_mut()) => 1);
    bench.is("untouched", found == other, true);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn pool_memory_of_nodes(bench: &Bench) {
    bench.start();
    let (stream, mut address) = (bench.stream(1), 0);
    bench.begin(stream);
    cu!(bench, cuMemAllocAsync(&mut address, MIB, stream) => 0);
    cu!(bench, cuMemFreeAsync(address, stream) => 0);
    let graph = bench.end(stream);
    let (allocation, free) = (bench.node(graph, ALLOCATE), bench.node(graph, FREE));
    let mut words = [0u64; size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>() / 8];
    cu!(bench, cuGraphMemAllocNodeGetParams(allocation, words.as_mut_ptr().cast()) => 0);
    let last = words.len() - 2;
    bench.is("bytes and address", (words[last], words[last + 1] == address), (MIB as u64, true));
    let mut freed = 77;
    cu!(bench, cuGraphMemFreeNodeGetParams(free, &mut freed) => 0);
    bench.is("freed", freed == address, true);
    cu!(bench, cuGraphMemFreeNodeGetParams(free, null_mut()) => 1);
    cu!(bench, cuGraphMemAllocNodeGetParams(allocation, null_mut()) => 1);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn nodes_of_other_kinds(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    bench.begin(stream);
    bench.fill(address, 1, stream, 0);
    cu!(bench, cuLaunchHostFunc(stream, Some(count), null_mut()) => 0);
    let graph = bench.end(stream);
    let (fill, callback) = (bench.node(graph, FILL), bench.node(graph, CALLBACK));
    let mut words = [0u64; 32];
    let mut found: CUgraph = handle(77);
    cu!(bench, cuGraphKernelNodeGetParams(fill, words.as_mut_ptr().cast()) => 1);
    cu!(bench, cuGraphMemcpyNodeGetParams(fill, words.as_mut_ptr().cast()) => 1);
    cu!(bench, cuGraphMemsetNodeGetParams(callback, words.as_mut_ptr().cast()) => 1);
    cu!(bench, cuGraphHostNodeGetParams(fill, words.as_mut_ptr().cast()) => 1);
    cu!(bench, cuGraphMemAllocNodeGetParams(fill, words.as_mut_ptr().cast()) => 1);
    cu!(bench, cuGraphMemFreeNodeGetParams(fill, words.as_mut_ptr()) => 1);
    cu!(bench, cuGraphChildGraphNodeGetGraph(fill, &mut found) => 1);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn no_nodes(bench: &Bench) {
    bench.start();
    let mut words = [0u64; 32];
    let (mut number, mut found, mut event) = (7, handle(77), handle(77));
    cu!(bench, cuGraphKernelNodeGetParams(null_mut(), words.as_mut_ptr().cast()) => 1);
    cu!(bench, cuGraphMemcpyNodeGetParams(null_mut(), words.as_mut_ptr().cast()) => 1);
    cu!(bench, cuGraphMemsetNodeGetParams(null_mut(), words.as_mut_ptr().cast()) => 1);
    cu!(bench, cuGraphHostNodeGetParams(null_mut(), words.as_mut_ptr().cast()) => 1);
    cu!(bench, cuGraphMemAllocNodeGetParams(null_mut(), words.as_mut_ptr().cast()) => 1);
    cu!(bench, cuGraphMemFreeNodeGetParams(null_mut(), words.as_mut_ptr()) => 1);
    cu!(bench, cuGraphEventRecordNodeGetEvent(null_mut(), &mut event) => 1);
    cu!(bench, cuGraphEventWaitNodeGetEvent(null_mut(), &mut event) => 1);
    cu!(bench, cuGraphChildGraphNodeGetGraph(null_mut(), &mut found) => 1);
    cu!(bench, cuGraphGetRootNodes(null_mut(), null_mut(), &mut number) => 1);
    cu!(bench, cuGraphNodeGetDependentNodes(null_mut(), null_mut(), &mut number) => 1);
    cu!(bench, cuGraphNodeGetDependentNodes_v2(
        null_mut(), null_mut(), null_mut(), &mut number) => 1);
    cu!(bench, cuGraphGetEdges_v2(
        null_mut(), null_mut(), null_mut(), null_mut(), &mut number) => 1);
    bench.is("untouched", (number, found.addr(), event.addr()), (7, 77, 77));
}

/// Two streams of one capture, which begin behind the same fill and join again.
fn forked(bench: &Bench) -> CUgraph {
    let (address, stream, other) = (bench.warm(256), bench.stream(1), bench.stream(1));
    let event = bench.event();
    bench.begin(stream);
    bench.fill(address, 1, stream, 0);
    cu!(bench, cuEventRecord(event, stream) => 0);
    cu!(bench, cuStreamWaitEvent(other, event, 0) => 0);
    bench.fill(address + 64, 2, stream, 0);
    bench.fill(address + 128, 3, other, 0);
    cu!(bench, cuEventRecord(event, other) => 0);
    cu!(bench, cuStreamWaitEvent(stream, event, 0) => 0);
    bench.fill(address, 4, stream, 0);
    bench.end(stream)
}

fn roots(bench: &Bench) {
    bench.start();
    let graph = forked(bench);
    let (mut nodes, mut number) = ([handle(77); 5], 0);
    cu!(bench, cuGraphGetRootNodes(graph, null_mut(), &mut number) => 0);
    bench.is("one root", number, 1);
    number = 5;
    cu!(bench, cuGraphGetRootNodes(graph, nodes.as_mut_ptr(), &mut number) => 0);
    bench.is("the first fill", (number, nodes[0] == bench.node(graph, FILL)), (1, true));
    bench.is("no more", nodes[1].addr(), 0);
    cu!(bench, cuGraphGetRootNodes(graph, nodes.as_mut_ptr(), null_mut()) => 1);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn dependents(bench: &Bench) {
    bench.start();
    let graph = forked(bench);
    let first = bench.node(graph, FILL);
    let (mut nodes, mut number, mut data) = ([handle(77); 5], 0, [77u64; 5]);
    cu!(bench, cuGraphNodeGetDependentNodes(first, null_mut(), &mut number) => 0);
    bench.is("two", number, 2);
    number = 5;
    cu!(bench, cuGraphNodeGetDependentNodes(first, nodes.as_mut_ptr(), &mut number) => 0);
    bench.is("two of five", (number, nodes[2].addr()), (2, 0));
    number = 1;
    cu!(bench, cuGraphNodeGetDependentNodes_v2(
        first, nodes.as_mut_ptr(), data.as_mut_ptr().cast(), &mut number) => 0);
    bench.is("one of two", (number, data[0]), (1, 0));
    number = 0;
    cu!(bench, cuGraphNodeGetDependentNodes(nodes[0], null_mut(), &mut number) => 0);
    bench.is("one", number, 1);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn data_of_edges(bench: &Bench) {
    bench.start();
    let graph = forked(bench);
    let (mut from, mut to, mut data) = ([handle(77); 5], [handle(77); 5], [77u64; 5]);
    let mut number = 0;
    cu!(bench, cuGraphGetEdges_v2(
        graph, null_mut(), null_mut(), null_mut(), &mut number) => 0);
    bench.is("edges", number, 4);
    number = 5;
    cu!(bench, cuGraphGetEdges_v2(
        graph, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr().cast(), &mut number) => 0);
    bench.is("four of five", (number, &data[..4]), (4, &[0; 4][..]));
    cu!(bench, cuGraphGetEdges_v2(
        graph, from.as_mut_ptr(), to.as_mut_ptr(), null_mut(), &mut number) => 0);
    bench.is("without data", number, 4);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

/// The graph of a capture may be looked at.
fn queries_during_a_capture(bench: &Bench) {
    bench.start();
    let (address, stream) = (bench.warm(64), bench.stream(1));
    bench.begin(stream);
    let (_, _, graph, dependencies) = bench.capture_info(stream);
    let mut number = 9;
    cu!(bench, cuGraphGetRootNodes(graph, null_mut(), &mut number) => 0);
    bench.is("nothing yet", (dependencies, number), (0, 0));
    bench.fill(address, 1, stream, 0);
    let mut root = [null_mut(); 1];
    number = 1;
    cu!(bench, cuGraphGetRootNodes(graph, root.as_mut_ptr(), &mut number) => 0);
    bench.is("a root", (number, root[0].is_null()), (1, false));
    bench.fill(address, 2, stream, 0);
    number = 9;
    cu!(bench, cuGraphNodeGetDependentNodes(root[0], null_mut(), &mut number) => 0);
    bench.is("a dependent", number, 1);
    let found = bench.end(stream);
    bench.is("the same graph", found == graph, true);
    bench.is("the same node", bench.node(found, FILL) == root[0], true);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

/// The upper half of a node's ID is the graph's, the lower one counts the nodes.
fn ids(bench: &Bench) {
    bench.start();
    let graph = forked(bench);
    let (mut exec, mut id, mut tools_id) = (null_mut(), 0, 0);
    let node = bench.node(graph, FILL);
    // SAFETY: the node is alive, and the number is writable.
    let asked = unsafe { bench.driver.cuGraphNodeGetToolsId(node, &mut tools_id) };
    if asked.is_err_and(|error| error.code == CudaError::MISSING) {
        bench.skip("the driver is older than CUDA 13.1");
    }
    cu!(bench, cuGraphNodeGetToolsId(node, &mut tools_id) => 0);
    cu!(bench, cuGraphNodeGetToolsId(node, null_mut()) => 1);
    cu!(bench, cuGraphNodeGetToolsId(null_mut(), &mut tools_id) => 1);
    cu!(bench, cuGraphInstantiateWithFlags(&mut exec, graph, 0) => 0);
    cu!(bench, cuGraphExecGetId(exec, &mut id) => 0);
    cu!(bench, cuGraphExecGetId(exec, null_mut()) => 1);
    cu!(bench, cuGraphExecGetId(null_mut(), &mut id) => 1);
    bench.is("another graph's", u64::from(id) != tools_id >> 32, true);
    cu!(bench, cuGraphExecDestroy(exec) => 0);
    cu!(bench, cuGraphDestroy(graph) => 0);
}
