//! Graphs: captured, replayed, updated and destroyed by the library.

use super::{on_call, on_destroy, take};
use crate::host::{Done, Failed, Memory, Stream, call, expect, fill, problem};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::driver::sys::{CUgraph_st, CUgraphExec_st};
use tcuda::ffi::callable::*;
use tcuda::ffi::generator::tcuda_random_manual_seed;
use tcuda::ffi::graph::*;
use tcuda::ffi::graph_conditional::*;
use tcuda::ffi::graph_data::*;
use tcuda::ffi::graph_hooks::*;
use tcuda::ffi::host::{tcuda_host_free, tcuda_host_malloc};
use tcuda::ffi::mem_pool::{tcuda_mem_pool, tcuda_mem_pool_destroy};
use tcuda::ffi::memory::*;
use tcuda::ffi::observer::tcuda_observer_destroy;
use tcuda::ffi::random::tcuda_random_uniform;
use tcuda::ffi::stream::{tcuda_stream, tcuda_stream_add_callback, tcuda_stream_wait_stream};
use tcuda::ffi::tensor::*;

pub(super) struct Graph(pub(super) *mut tcuda_graph);

impl Graph {
    pub(super) fn new(keep: i32) -> Result<Graph, Failed> {
        let mut graph = null_mut();
        call!(tcuda_graph_create(keep, &mut graph))?;
        Ok(Graph(graph))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = call!(tcuda_graph_destroy(self.0));
    }
}

/// Captures what `body` does; aborts where that fails.
pub(super) fn capture(
    graph: &Graph,
    stream: &Stream,
    pool: *mut tcuda_mem_pool,
    body: impl FnOnce() -> Done,
) -> Done {
    call!(tcuda_graph_capture_begin(graph.0, stream.0, pool, TCUDA_CAPTURE_GLOBAL))?;
    let done = body();
    if done.is_err() {
        let _ = call!(tcuda_graph_capture_abort(graph.0));
        return done;
    }
    call!(tcuda_graph_capture_end(graph.0))
}

pub fn graphs() -> Done {
    let [stream, branch, other] = [Stream::new(0, 0)?, Stream::new(0, 0)?, Stream::new(0, 0)?];
    let memory = Memory::new(3000, 0, stream.0)?;
    fill(memory.0, &[7], 3000, stream.0)?;
    stream.synchronize()?;
    let graph = Graph::new(0)?;
    capture(&graph, &stream, null_mut(), || {
        let own = Memory::new(3 << 20, 0, stream.0)?;
        fill(own.0, &[1], 1000, stream.0)?;
        call!(tcuda_stream_wait_stream(branch.0, stream.0))?;
        let shared = Memory::new(700, 0, branch.0)?;
        call!(tcuda_record_stream(shared.0, stream.0))?;
        fill(shared.0, &[2], 700, branch.0)?;
        call!(tcuda_stream_wait_stream(stream.0, branch.0))?;
        fill(memory.0, &[1, 2, 3], 1000, stream.0)
    })?;
    call!(tcuda_graph_replay(graph.0, other.0))?;
    expect(memory.0, &[1, 2, 3], 1000, other.0)?;
    let (kept, mut pool) = (Graph::new(1)?, null_mut());
    call!(tcuda_graph_pool(graph.0, &mut pool))?;
    let captured = capture(&kept, &stream, pool, || fill(memory.0, &[4, 5], 1000, stream.0));
    let freed = call!(tcuda_mem_pool_destroy(pool));
    captured.and(freed)?;
    call!(tcuda_graph_instantiate(kept.0))?;
    call!(tcuda_graph_replay(kept.0, stream.0))?;
    call!(tcuda_graph_update(kept.0, kept.0))?;
    call!(tcuda_graph_reset(graph.0))?;
    call!(tcuda_graph_replay(kept.0, stream.0))?;
    expect(memory.0, &[4, 5], 1000, stream.0)
}

/// Host functions in graphs.
pub fn functions() -> Done {
    let stream = Stream::new(0, 0)?;
    let memory = Memory::new(64, 0, stream.0)?;
    let add = || {
        let (call, destroy) = (Some(on_call as _), Some(on_destroy as _));
        take(call!(tcuda_stream_add_callback(stream.0, call, null_mut(), destroy)))
    };
    let (graph, source) = (Graph::new(1)?, Graph::new(1)?);
    for graph in [&graph, &source] {
        capture(graph, &stream, null_mut(), || {
            add()?;
            fill(memory.0, &[1], 64, stream.0)?;
            add()
        })?;
    }
    call!(tcuda_graph_replay(graph.0, stream.0))?;
    call!(tcuda_graph_update(graph.0, source.0))?;
    drop(source);
    call!(tcuda_graph_replay(graph.0, stream.0))?;
    call!(tcuda_graph_instantiate(graph.0))?;
    call!(tcuda_graph_replay(graph.0, null_mut()))?;
    drop(graph);
    stream.synchronize()
}

unsafe extern "C" fn on_step(
    _: *mut c_void,
    _: tcuda_graph_event,
    graph: *mut tcuda_graph,
    _: *mut CUgraph_st,
    _: *mut CUgraphExec_st,
) {
    let (mut template, mut exec) = (null_mut(), null_mut());
    let _ = call!(tcuda_graph_native(graph, &mut template, &mut exec));
}

/// Hooks, and objects that graphs keep.
pub fn hooks() -> Done {
    let stream = Stream::new(0, 0)?;
    let memory = Memory::new(64, 0, stream.0)?;
    let (graph, source) = (Graph::new(0)?, Graph::new(1)?);
    let destroy = Some(on_destroy as _);
    let mut observer = null_mut();
    let hook = |graph, observer| {
        let (hook, data) = (Some(on_step as _), null_mut());
        take(call!(tcuda_graph_on_event(graph, 63, hook, data, destroy, observer)))
    };
    hook(null_mut(), &mut observer)?;
    let done = (|| {
        hook(graph.0, null_mut())?;
        for graph in [&graph, &source] {
            take(call!(tcuda_graph_retain(graph.0, null_mut(), destroy, 1)))?;
            capture(graph, &stream, null_mut(), || fill(memory.0, &[1], 64, stream.0))?;
            call!(tcuda_graph_replay(graph.0, stream.0))?;
        }
        call!(tcuda_graph_update(graph.0, source.0))?;
        call!(tcuda_graph_replay(graph.0, stream.0))?;
        call!(tcuda_graph_reset(graph.0))
    })();
    let removed = call!(tcuda_observer_destroy(observer));
    drop((graph, source));
    done.and(removed)?;
    stream.synchronize()
}

/// An if in a loop, and work around it.
pub fn conditional_nodes() -> Done {
    let stream = Stream::new(0, 0)?;
    let (predicate, memory) = (Memory::new(1, 0, stream.0)?, Memory::new(64, 0, stream.0)?);
    let graph = Graph::new(0)?;
    capture(&graph, &stream, null_mut(), || {
        let (byte, mut body) = (predicate.0, null_mut());
        body_of(&graph, TCUDA_CONDITION_WHILE, byte, stream.0, &mut body, |body| {
            fill(memory.0, &[1], 64, body)?;
            body_of(&graph, TCUDA_CONDITION_IF, byte, body, &mut null_mut(), |inner| {
                let own = Memory::new(700, 0, inner)?;
                fill(own.0, &[2], 64, inner)?;
                fill(memory.0, &[2, 3], 32, inner)
            })?;
            fill(byte, &[0], 1, body)?;
            call!(tcuda_graph_conditional_set(graph.0, byte, null_mut()))
        })?;
        fill(memory.0, &[4], 1, stream.0)
    })?;
    fill(predicate.0, &[1], 1, stream.0)?;
    call!(tcuda_graph_replay(graph.0, stream.0))?;
    drop(graph);
    expect(memory.0, &[4], 1, stream.0)?;
    expect((memory.0 as usize + 2) as *mut c_void, &[2, 3], 31, stream.0)
}

/// Captures the body of a conditional node, which ends also where that fails.
fn body_of(
    graph: &Graph,
    condition: i32,
    predicate: *mut c_void,
    stream: *mut tcuda_stream,
    body: &mut *mut tcuda_stream,
    work: impl FnOnce(*mut tcuda_stream) -> Done,
) -> Done {
    let graph = graph.0;
    call!(tcuda_graph_conditional_begin(graph, condition, predicate, stream, body))?;
    let done = work(*body);
    let ended = call!(tcuda_graph_conditional_end(graph));
    done.and(ended)
}

/// Annotations, and nodes and edges as data.
pub fn data() -> Done {
    let (stream, branch) = (Stream::new(0, 0)?, Stream::new(0, 0)?);
    let memory = Memory::new(64, 0, stream.0)?;
    let graph = Graph::new(1)?;
    capture(&graph, &stream, null_mut(), || {
        call!(tcuda_graph_annotation_push(stream.0, c"outer".as_ptr()))?;
        fill(memory.0, &[1], 64, stream.0)?;
        call!(tcuda_stream_wait_stream(branch.0, stream.0))?;
        call!(tcuda_graph_annotation_push(stream.0, c"inner".as_ptr()))?;
        fill(memory.0, &[1, 2, 3], 20, stream.0)?;
        let (function, destroy) = (Some(on_call as _), Some(on_destroy as _));
        take(call!(tcuda_stream_add_callback(stream.0, function, null_mut(), destroy)))?;
        call!(tcuda_graph_annotation_pop(stream.0))?;
        fill(memory.0, &[2], 64, branch.0)?;
        let mut captured = null_mut();
        call!(tcuda_graph_capturing(branch.0, &mut captured))?;
        if captured != graph.0 {
            problem("the stream is captured into another graph".to_owned());
        }
        call!(tcuda_stream_wait_stream(stream.0, branch.0))
    })?;
    let (mut needed, mut count) = (0, 0);
    call!(tcuda_graph_data_json(graph.0, null_mut(), 0, &mut needed))?;
    let mut json = vec![0u8; 1 << 14];
    call!(tcuda_graph_data_json(graph.0, json.as_mut_ptr().cast(), json.len(), null_mut()))?;
    let json = String::from_utf8_lossy(&json);
    let inner = json.matches("[\"inner\", \"outer\"]").count();
    if (inner, json.matches("[\"outer\"]").count()) != (2, 2) {
        problem(format!("nodes have the wrong annotations: {json}"));
    }
    call!(tcuda_graph_data_dot(graph.0, null_mut(), 0, &mut needed))?;
    let mut pool = null_mut();
    call!(tcuda_graph_pools(graph.0, &mut pool, 1, &mut count))?;
    call!(tcuda_mem_pool_destroy(pool))?;
    call!(tcuda_graph_replay(graph.0, stream.0))?;
    drop(graph);
    stream.synchronize()
}

/// Pinned memory that graphs use.
pub fn pinned() -> Done {
    let (stream, mut block) = (Stream::new(0, 0)?, null_mut());
    let memory = Memory::new(64, 0, stream.0)?;
    call!(tcuda_host_malloc(64, &mut block))?;
    let graph = Graph::new(0);
    let captured = match &graph {
        Ok(graph) => capture(graph, &stream, null_mut(), || {
            call!(tcuda::ffi::copy::tcuda_copy(memory.0, block, 64, stream.0))
        }),
        Err(_) => Ok(()),
    };
    call!(tcuda_host_free(block))?;
    captured?;
    let graph = graph?;
    call!(tcuda_graph_replay(graph.0, stream.0))?;
    drop(graph);
    stream.synchronize()
}

fn bytes_of(data: *mut c_void, bits: u8, shape: &mut [i64; 1]) -> tcuda_tensor {
    let code = if bits == 8 { TCUDA_DTYPE_UINT } else { TCUDA_DTYPE_FLOAT };
    tcuda_tensor {
        data,
        device: tcuda_tensor_device { device_type: TCUDA_DEVICE_CUDA, device_id: 0 },
        ndim: 1,
        dtype: tcuda_dtype { code, bits, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

/// Random numbers in a graph, and again.
pub fn random() -> Done {
    let stream = Stream::new(0, 0)?;
    let memory = Memory::new(400, 0, stream.0)?;
    let mut shape = [100];
    let tensor = bytes_of(memory.0, 32, &mut shape);
    call!(tcuda_random_manual_seed(0, 5))?;
    let graph = Graph::new(0)?;
    capture(&graph, &stream, null_mut(), || {
        call!(tcuda_random_uniform(&tensor, 0.0, 1.0, null_mut(), stream.0))
    })?;
    call!(tcuda_graph_replay(graph.0, stream.0))?;
    call!(tcuda_graph_replay(graph.0, null_mut()))?;
    drop(graph);
    stream.synchronize()
}

const BYTES: usize = 3000;

/// Copies its input, whose sizes the output borrows.
unsafe extern "C" fn copies(
    runs: *mut c_void,
    inputs: *const tcuda_tensor,
    _: usize,
    stream: *mut tcuda_stream,
    outputs: *mut tcuda_tensor,
    _: usize,
) -> i32 {
    // SAFETY: the counter of the scenario, which outlives the callable.
    unsafe { *runs.cast::<u32>() += 1 };
    // SAFETY: one input, as the scenario says.
    let input = unsafe { inputs.read() };
    let mut data = null_mut();
    let made = call!(tcuda_malloc(BYTES, 0, stream, &mut data)).and_then(|()| {
        let copied = call!(tcuda::ffi::copy::tcuda_copy(data, input.data, BYTES, stream));
        if copied.is_err() {
            drop(Memory(data));
        }
        copied
    });
    if made.is_err() {
        return 1;
    }
    // SAFETY: one output, as the scenario says.
    unsafe { outputs.write(tcuda_tensor { data, ..input }) };
    0
}

struct Callable(*mut tcuda_graphed_callable);

impl Drop for Callable {
    fn drop(&mut self) {
        let _ = call!(tcuda_graphed_callable_destroy(self.0));
    }
}

/// Functions of the host, forward and backward.
pub fn callables() -> Done {
    let stream = Stream::new(0, 0)?;
    let memory = Memory::new(BYTES, 0, stream.0)?;
    fill(memory.0, &[7], BYTES, stream.0)?;
    let (mut shape, mut runs) = ([BYTES as i64], 0u32);
    let sample = bytes_of(memory.0, 8, &mut shape);
    let callable = tcuda_callable {
        struct_size: size_of::<tcuda_callable>(),
        forward: Some(copies),
        backward: Some(copies),
        user_data: (&raw mut runs).cast(),
        destroy: None,
        sample_inputs: &sample,
        num_inputs: 1,
        num_outputs: 1,
    };
    let mut made = [null_mut(); 2];
    let list = [callable, callable];
    let status = call!(tcuda_graphed_callable_create(list.as_ptr(), 2, null(), made.as_mut_ptr()));
    if status.is_err() && made != [null_mut(); 2] {
        problem("what failed wrote a handle".into());
    }
    status?;
    let [first, second] = made.map(Callable);
    let (mut output, mut last) = (sample, sample);
    fill(memory.0, &[8], BYTES, stream.0)?;
    call!(tcuda_graphed_callable_call(first.0, &sample, 1, stream.0, &mut output, 1))?;
    call!(tcuda_graphed_callable_call(second.0, &output, 1, stream.0, &mut last, 1))?;
    expect(last.data, &[8], BYTES, stream.0)?;
    call!(tcuda_graphed_callable_call_backward(second.0, &last, 1, stream.0, &mut output, 1))?;
    call!(tcuda_graphed_callable_call_backward(first.0, &output, 1, null_mut(), &mut last, 1))?;
    if runs != 16 {
        problem(format!("{runs} runs, not 16"));
    }
    stream.synchronize()
}
