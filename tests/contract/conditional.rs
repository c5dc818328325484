//! Conditional nodes of graphs.

use crate::Row;
use crate::bench::{Bench, cu};
use std::ffi::{CStr, c_void};
use std::ptr::{from_mut, null, null_mut};
use tcuda::driver::code::NOT_SUPPORTED;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["conditional nodes":
    handles, nodes_and_their_handles, nodes_of_every_kind, an_if, an_if_with_an_else, a_loop,
    a_switch, values_between_launches, a_loop_within_a_loop, what_bodies_cannot_have,
    graphs_within_bodies, bodies_are_the_nodes, one_executable_at_a_time, an_update, in_a_capture,
];

/// Sets a condition to a word in memory, or to whether that is below a limit, after adding 1 to it.
const PTX: &CStr = c".version 7.8
.target sm_52
.address_size 64
.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);
.visible .entry contract_set(.param .u64 handle, .param .u64 from)
{
    .reg .b64 %handle, %from;
    .reg .b32 %value;
    ld.param.u64 %handle, [handle];
    ld.param.u64 %from, [from];
    ld.global.u32 %value, [%from];
    {
        .param .b64 one;
        .param .b32 two;
        st.param.b64 [one], %handle;
        st.param.b32 [two], %value;
        call.uni cudaGraphSetConditional, (one, two);
    }
    ret;
}
.visible .entry contract_count(.param .u64 handle, .param .u64 counter, .param .u32 limit)
{
    .reg .b64 %handle, %counter;
    .reg .b32 %value, %limit;
    .reg .pred %p;
    ld.param.u64 %handle, [handle];
    ld.param.u64 %counter, [counter];
    ld.param.u32 %limit, [limit];
    ld.global.u32 %value, [%counter];
    add.u32 %value, %value, 1;
    st.global.u32 [%counter], %value;
    setp.lt.u32 %p, %value, %limit;
    selp.u32 %value, 1, 0, %p;
    {
        .param .b64 one;
        .param .b32 two;
        st.param.b64 [one], %handle;
        st.param.b32 [two], %value;
        call.uni cudaGraphSetConditional, (one, two);
    }
    ret;
}
.visible .entry contract_add(.param .u64 counter)
{
    .reg .b64 %counter;
    .reg .b32 %value;
    ld.param.u64 %counter, [counter];
    ld.global.u32 %value, [%counter];
    add.u32 %value, %value, 1;
    st.global.u32 [%counter], %value;
    ret;
}
";

const IF: i32 = 0;
const WHILE: i32 = 1;
const SWITCH: i32 = 2;
const INVALID: i32 = 1;
const INVALID_CONTEXT: i32 = 201;

/// The kernels, 64 words of memory and a stream.
struct Site<'a> {
    bench: &'a Bench,
    set: CUfunction,
    count: CUfunction,
    add: CUfunction,
    words: u64,
    stream: CUstream,
    context: CUcontext,
}

impl<'a> Site<'a> {
    fn new(bench: &'a Bench) -> Site<'a> {
        bench.start();
        let words = bench.warm(256);
        let stream = bench.stream(1);
        let mut module = null_mut();
        cu!(bench, cuModuleLoadData(&mut module, PTX.as_ptr().cast()) => 0);
        let mut context = null_mut();
        cu!(bench, cuCtxGetCurrent(&mut context) => 0);
        let [set, count, add] = [c"contract_set", c"contract_count", c"contract_add"]
            .map(|name| bench.function(module, name));
        Site { bench, set, count, add, words, stream, context }
    }

    fn graph(&self) -> CUgraph {
        // The table has no call for an empty graph.
        self.bench.begin(self.stream);
        self.bench.end(self.stream)
    }

    fn handle(&self, graph: CUgraph, default: Option<u32>) -> u64 {
        let mut handle = 0;
        let (value, flags) = (default.unwrap_or(0), u32::from(default.is_some()));
        cu!(self.bench, cuGraphConditionalHandleCreate(
            &mut handle, graph, self.context, value, flags,
        ) => 0);
        handle
    }

    /// Adds a node after another one, or none. Returns it and its bodies.
    #[track_caller]
    fn node(
        &self,
        graph: CUgraph,
        after: CUgraphNode,
        (handle, kind, size): (u64, i32, u32),
        context: CUcontext,
        expected: i32,
    ) -> (CUgraphNode, Vec<CUgraph>) {
        // SAFETY: plain data, for which zero is a value.
        let mut params: CUgraphNodeParams = unsafe { std::mem::zeroed() };
        params.type_ = CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        params.__bindgen_anon_1.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
            handle,
            type_: CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF,
            size,
            phGraph_out: null_mut(),
            ctx: context,
        };
        // SAFETY: the member that was just set; written as a number, since the driver gets any.
        let place = unsafe { &raw mut params.__bindgen_anon_1.conditional.type_ };
        // SAFETY: an enum of this size.
        unsafe { place.cast::<i32>().write(kind) };
        let (mut node, count) = (null_mut(), usize::from(!after.is_null()));
        cu!(self.bench, cuGraphAddNode(
            &mut node, graph, &after, null(), count, &mut params,
        ) => expected);
        if expected != 0 {
            return (node, Vec::new());
        }
        // SAFETY: the member that was set, of plain data.
        let list = unsafe { params.__bindgen_anon_1.conditional.phGraph_out };
        let body = |index: usize| {
            let place = list.wrapping_add(index);
            // SAFETY: the driver's list of as many graphs.
            unsafe { place.read() }
        };
        (node, (0..size as usize).map(body).collect())
    }

    /// Adds a child graph with one kernel after a node, or after none.
    #[track_caller]
    fn kernel(
        &self,
        graph: CUgraph,
        after: CUgraphNode,
        function: CUfunction,
        mut words: [u64; 3],
    ) -> CUgraphNode {
        let mut arguments = words.each_mut().map(|word| from_mut(word).cast::<c_void>());
        self.bench.begin(self.stream);
        cu!(self.bench, cuLaunchKernel(
            function, 1, 1, 1, 1, 1, 1, 0, self.stream, arguments.as_mut_ptr(), null_mut(),
        ) => 0);
        let child = self.bench.end(self.stream);
        let node = self.child(graph, after, child, 0);
        cu!(self.bench, cuGraphDestroy(child) => 0);
        node
    }

    #[track_caller]
    fn child(
        &self,
        graph: CUgraph,
        after: CUgraphNode,
        child: CUgraph,
        expected: i32,
    ) -> CUgraphNode {
        let (mut node, count) = (null_mut(), usize::from(!after.is_null()));
        cu!(self.bench, cuGraphAddChildGraphNode(&mut node, graph, &after, count, child)
            => expected);
        node
    }

    /// Adds 1 to a word.
    #[track_caller]
    fn add(&self, graph: CUgraph, after: CUgraphNode, word: u64) -> CUgraphNode {
        self.kernel(graph, after, self.add, [self.words + 4 * word, 0, 0])
    }

    #[track_caller]
    fn executable(&self, graph: CUgraph, expected: i32) -> CUgraphExec {
        let mut exec = null_mut();
        cu!(self.bench, cuGraphInstantiateWithFlags(&mut exec, graph, 0) => expected);
        exec
    }

    /// Launches after the first word was set; the first words afterwards.
    #[track_caller]
    fn launch(&self, exec: CUgraphExec, first: u32) -> [u32; 4] {
        self.bench.store(self.words, &first.to_le_bytes(), self.stream);
        cu!(self.bench, cuGraphLaunch(exec, self.stream) => 0);
        let bytes = self.bench.fetch(self.words, 16, self.stream);
        let word = |index: usize| bytes[4 * index..][..4].try_into().map_or(0, u32::from_le_bytes);
        [0, 1, 2, 3].map(word)
    }

    /// A graph whose node has bodies that add 1 to the second word and those after it. The first
    /// word is the condition.
    #[track_caller]
    fn chooses(&self, kind: i32, size: u32) -> (CUgraph, CUgraphExec) {
        let graph = self.graph();
        let handle = self.handle(graph, None);
        let first = self.kernel(graph, null_mut(), self.set, [handle, self.words, 0]);
        let (_, bodies) = self.node(graph, first, (handle, kind, size), self.context, 0);
        for (body, word) in bodies.into_iter().zip(1..) {
            self.add(body, null_mut(), word);
        }
        (graph, self.executable(graph, 0))
    }

    fn destroy(&self, graph: CUgraph, exec: CUgraphExec) {
        cu!(self.bench, cuGraphExecDestroy(exec) => 0);
        cu!(self.bench, cuGraphDestroy(graph) => 0);
    }
}

fn handles(bench: &Bench) {
    let site = Site::new(bench);
    let (graph, mut handle) = (site.graph(), 0);
    let mut create = |graph, context, flags, expected| {
        cu!(bench, cuGraphConditionalHandleCreate(&mut handle, graph, context, 5, flags)
            => expected);
    };
    for flags in [0, 1] {
        create(graph, site.context, flags, 0);
    }
    for flags in [2, 3, u32::MAX] {
        create(graph, site.context, flags, INVALID);
    }
    create(null_mut(), site.context, 0, INVALID);
    create(graph, null_mut(), 0, INVALID_CONTEXT);
    cu!(bench, cuGraphConditionalHandleCreate(null_mut(), graph, site.context, 0, 0) => INVALID);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn nodes_and_their_handles(bench: &Bench) {
    let site = Site::new(bench);
    let (graph, other) = (site.graph(), site.graph());
    let handle = site.handle(graph, None);
    let node = |graph, handle, context, expected| {
        site.node(graph, null_mut(), (handle, IF, 1), context, expected)
    };
    node(graph, 0, site.context, INVALID);
    node(graph, handle + 77, site.context, INVALID);
    node(other, handle, site.context, INVALID);
    node(graph, handle, null_mut(), INVALID_CONTEXT);
    node(graph, handle, site.context, 0);
    node(graph, handle, site.context, INVALID);
    cu!(bench, cuGraphDestroy(graph) => 0);
    node(other, handle, site.context, INVALID);
    cu!(bench, cuGraphDestroy(other) => 0);
}

fn nodes_of_every_kind(bench: &Bench) {
    let site = Site::new(bench);
    let graph = site.graph();
    for (kind, size, expected) in [
        (IF, 0, INVALID),
        (IF, 3, INVALID),
        (WHILE, 0, INVALID),
        (WHILE, 2, INVALID),
        (SWITCH, 0, INVALID),
        (3, 1, INVALID),
        (-1, 1, INVALID),
        (IF, 1, 0),
        (IF, 2, 0),
        (WHILE, 1, 0),
        (SWITCH, 1, 0),
        (SWITCH, 5, 0),
    ] {
        let handle = site.handle(graph, None);
        let (node, bodies) =
            site.node(graph, null_mut(), (handle, kind, size), site.context, expected);
        if expected == 0 {
            let mut found = 0;
            cu!(bench, cuGraphNodeGetType(node, from_mut::<i32>(&mut found).cast()) => 0);
            bench.is("kind", found, 13);
            bench.is("bodies", bodies.len(), size as usize);
        }
    }
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn an_if(bench: &Bench) {
    let site = Site::new(bench);
    let (graph, exec) = site.chooses(IF, 1);
    for (value, expected) in [(0, 0), (1, 1), (2, 2), (0, 2), (u32::MAX, 3)] {
        bench.is("runs", site.launch(exec, value)[1], expected);
    }
    site.destroy(graph, exec);
}

fn an_if_with_an_else(bench: &Bench) {
    let site = Site::new(bench);
    let (graph, exec) = site.chooses(IF, 2);
    for (value, expected) in [(0, [0, 0, 1]), (1, [1, 1, 1]), (2, [2, 2, 1])] {
        bench.is("runs", site.launch(exec, value)[..3].to_vec(), expected.to_vec());
    }
    site.destroy(graph, exec);
}

fn a_switch(bench: &Bench) {
    let site = Site::new(bench);
    let (graph, exec) = site.chooses(SWITCH, 3);
    for (value, expected) in [(1, [0, 1, 0]), (0, [1, 1, 0]), (2, [1, 1, 1]), (3, [1, 1, 1])] {
        bench.is("runs", site.launch(exec, value)[1..].to_vec(), expected.to_vec());
    }
    site.destroy(graph, exec);
}

/// The body counts in the first word, and goes on below a limit.
fn a_loop(bench: &Bench) {
    let site = Site::new(bench);
    let graph = site.graph();
    let handle = site.handle(graph, Some(1));
    let (_, bodies) = site.node(graph, null_mut(), (handle, WHILE, 1), site.context, 0);
    let counted = site.kernel(bodies[0], null_mut(), site.count, [handle, site.words, 5]);
    site.add(bodies[0], counted, 1);
    let exec = site.executable(graph, 0);
    bench.is("from 0", site.launch(exec, 0)[..2].to_vec(), vec![5, 5]);
    bench.is("from 3", site.launch(exec, 3)[..2].to_vec(), vec![5, 7]);
    bench.is("from 7", site.launch(exec, 7)[..2].to_vec(), vec![8, 8]);
    site.destroy(graph, exec);
}

/// Without a default the value stays, and is 0 at first; the default is ignored then.
fn values_between_launches(bench: &Bench) {
    let site = Site::new(bench);
    let (graph, mut handle) = (site.graph(), 0);
    cu!(bench, cuGraphConditionalHandleCreate(&mut handle, graph, site.context, 1, 0) => 0);
    let (node, bodies) = site.node(graph, null_mut(), (handle, IF, 1), site.context, 0);
    site.add(bodies[0], null_mut(), 1);
    site.kernel(graph, node, site.set, [handle, site.words, 0]);
    let exec = site.executable(graph, 0);
    for (value, expected) in [(1, 0), (1, 1), (0, 2), (0, 2), (1, 2), (1, 3)] {
        bench.is("runs", site.launch(exec, value)[1], expected);
    }
    site.destroy(graph, exec);

    let graph = site.graph();
    let handle = site.handle(graph, Some(1));
    let (node, bodies) = site.node(graph, null_mut(), (handle, IF, 1), site.context, 0);
    site.add(bodies[0], null_mut(), 2);
    site.kernel(graph, node, site.set, [handle, site.words, 0]);
    let exec = site.executable(graph, 0);
    for expected in [1, 2, 3] {
        bench.is("runs by default", site.launch(exec, 0)[2], expected);
    }
    site.destroy(graph, exec);
}

/// The default of the inner loop is set at the launch, and not by the outer loop. Its handle may be
/// of the body or of the whole graph.
fn a_loop_within_a_loop(bench: &Bench) {
    let site = Site::new(bench);
    for of_body in [true, false] {
        let graph = site.graph();
        let outer = site.handle(graph, Some(1));
        let (_, bodies) = site.node(graph, null_mut(), (outer, WHILE, 1), site.context, 0);
        let inner = site.handle(if of_body { bodies[0] } else { graph }, Some(1));
        let (node, inside) = site.node(bodies[0], null_mut(), (inner, WHILE, 1), site.context, 0);
        site.kernel(bodies[0], node, site.count, [outer, site.words, 3]);
        site.kernel(inside[0], null_mut(), site.count, [inner, site.words + 4, 1]);
        let exec = site.executable(graph, 0);
        let before = site.launch(exec, 0);
        bench.is("outer", before[0], 3);
        let after = site.launch(exec, 0);
        bench.is("runs of the inner one", after[1] - before[1], 1);
        site.destroy(graph, exec);
    }
}

extern "C" fn nothing(_: *mut c_void) {}

fn what_bodies_cannot_have(bench: &Bench) {
    let site = Site::new(bench);
    for kind in 0..3 {
        let graph = site.graph();
        let handle = site.handle(graph, Some(1));
        let (_, bodies) = site.node(graph, null_mut(), (handle, IF, 1), site.context, 0);
        site.add(bodies[0], null_mut(), 1);
        let event = bench.event();
        bench.begin(site.stream);
        match kind {
            0 => cu!(bench, cuLaunchHostFunc(site.stream, Some(nothing), null_mut()) => 0),
            1 => cu!(bench, cuEventRecordWithFlags(event, site.stream, 1) => 0),
            _ => cu!(bench, cuMemsetD8Async(site.words, 0, 4, site.stream) => 0),
        };
        let child = bench.end(site.stream);
        site.child(bodies[0], null_mut(), child, 0);
        let expected = if kind == 2 { 0 } else { INVALID };
        let exec = site.executable(graph, expected);
        if expected == 0 {
            cu!(bench, cuGraphExecDestroy(exec) => 0);
        }
        for graph in [child, graph] {
            cu!(bench, cuGraphDestroy(graph) => 0);
        }
    }
}

fn graphs_within_bodies(bench: &Bench) {
    let site = Site::new(bench);
    let (graph, other) = (site.graph(), site.graph());
    let handle = site.handle(graph, Some(1));
    let (_, bodies) = site.node(graph, null_mut(), (handle, IF, 1), site.context, 0);
    site.child(other, null_mut(), graph, NOT_SUPPORTED);
    site.child(other, null_mut(), bodies[0], NOT_SUPPORTED);
    // An empty graph, twice.
    let first = site.child(bodies[0], null_mut(), other, 0);
    site.child(bodies[0], first, other, 0);
    let exec = site.executable(graph, 0);
    site.launch(exec, 0);
    site.destroy(graph, exec);
    cu!(bench, cuGraphDestroy(other) => 0);
}

fn bodies_are_the_nodes(bench: &Bench) {
    let site = Site::new(bench);
    let graph = site.graph();
    let handle = site.handle(graph, Some(1));
    let (node, bodies) = site.node(graph, null_mut(), (handle, IF, 1), site.context, 0);
    cu!(bench, cuGraphDestroy(bodies[0]) => INVALID);
    site.executable(bodies[0], NOT_SUPPORTED);
    let mut child = null_mut();
    cu!(bench, cuGraphChildGraphNodeGetGraph(node, &mut child) => INVALID);
    let mut count = 9;
    cu!(bench, cuGraphGetNodes(bodies[0], null_mut(), &mut count) => 0);
    bench.is("nodes", count, 0);
    cu!(bench, cuGraphDestroy(graph) => 0);
}

fn one_executable_at_a_time(bench: &Bench) {
    let site = Site::new(bench);
    let (graph, exec) = site.chooses(IF, 1);
    site.executable(graph, NOT_SUPPORTED);
    cu!(bench, cuGraphExecDestroy(exec) => 0);
    let exec = site.executable(graph, 0);
    bench.is("runs", site.launch(exec, 1)[1], 1);
    site.destroy(graph, exec);
}

fn an_update(bench: &Bench) {
    let site = Site::new(bench);
    let make = |word| {
        let graph = site.graph();
        let handle = site.handle(graph, Some(1));
        let (_, bodies) = site.node(graph, null_mut(), (handle, IF, 1), site.context, 0);
        site.add(bodies[0], null_mut(), word);
        graph
    };
    let (graph, source) = (make(1), make(2));
    let exec = site.executable(graph, 0);
    bench.is("before", site.launch(exec, 0)[1..3].to_vec(), vec![1, 0]);
    // SAFETY: plain data, for which zero is a value.
    let mut info: CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
    cu!(bench, cuGraphExecUpdate(exec, source, &mut info) => 0);
    bench.is("after", site.launch(exec, 0)[1..3].to_vec(), vec![1, 1]);
    for graph in [graph, source] {
        cu!(bench, cuGraphDestroy(graph) => 0);
    }
    bench.is("without the graphs", site.launch(exec, 0)[1..3].to_vec(), vec![1, 2]);
    cu!(bench, cuGraphExecDestroy(exec) => 0);
}

/// As a library captures it: the node is added to the graph under capture, and its body is another
/// capture.
fn in_a_capture(bench: &Bench) {
    let site = Site::new(bench);
    let (stream, other) = (site.stream, bench.stream(1));
    bench.begin(stream);
    let frontier = || {
        let (mut status, mut id, mut graph) = (0i32, 0, null_mut());
        let (mut nodes, mut count) = (null(), 0);
        let out = from_mut(&mut status).cast();
        cu!(bench, cuStreamGetCaptureInfo(
            stream, out, &mut id, &mut graph, &mut nodes, &mut count,
        ) => 0);
        // SAFETY: the driver's list of `count` nodes.
        let last = if count == 0 { null_mut() } else { unsafe { nodes.read() } };
        (graph, last)
    };
    let (graph, _) = frontier();
    let handle = site.handle(graph, None);
    let mut words = [handle, site.words];
    let mut arguments = words.each_mut().map(|word| from_mut(word).cast::<c_void>());
    cu!(bench, cuLaunchKernel(
        site.set, 1, 1, 1, 1, 1, 1, 0, stream, arguments.as_mut_ptr(), null_mut(),
    ) => 0);
    let (_, last) = frontier();
    let (mut node, bodies) = site.node(graph, last, (handle, IF, 1), site.context, 0);
    cu!(bench, cuStreamUpdateCaptureDependencies(stream, &mut node, 1, 1) => 0);
    bench.is("the node is the last one", frontier().1 == node, true);
    bench.begin(other);
    bench.fill(site.words + 4, 7, other, 0);
    let body = bench.end(other);
    site.child(bodies[0], null_mut(), body, 0);
    cu!(bench, cuGraphDestroy(body) => 0);
    bench.fill(site.words + 8, 9, stream, 0);
    let graph = bench.end(stream);
    let exec = site.executable(graph, 0);
    bench.is("not", site.launch(exec, 0)[1] as u8, 0);
    bench.is("it runs", site.launch(exec, 1)[1] as u8, 7);
    bench.is("after it", site.launch(exec, 0)[2] as u8, 9);
    site.destroy(graph, exec);
}
