//! Graphs: captured, replayed, updated and destroyed by the library.

use crate::host::{Done, Failed, Memory, Stream, call, expect, fill};
use std::ptr::null_mut;
use tcuda::ffi::graph::*;
use tcuda::ffi::host::{tcuda_host_free, tcuda_host_malloc};
use tcuda::ffi::mem_pool::{tcuda_mem_pool, tcuda_mem_pool_destroy};
use tcuda::ffi::memory::*;
use tcuda::ffi::stream::tcuda_stream_wait_stream;

struct Graph(*mut tcuda_graph);

impl Graph {
    fn new(keep: i32) -> Result<Graph, Failed> {
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
fn capture(
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
