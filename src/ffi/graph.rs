//! Section "Graphs" of the header.

use super::boundary::{Call, boundary, flag, out, out_list, terminated};
use super::generator::{subject, tcuda_generator};
use super::handle::Table;
use super::mem_pool::{MEM_POOLS, tcuda_mem_pool};
use super::status::tcuda_status;
use super::stream::{borrow, make_current, optional, or_current, tcuda_stream};
use crate::base::error::{Error, Result};
use crate::base::log::{self, Level};
use crate::base::waiting;
use crate::driver::sync_debug;
use crate::driver::sys::{CUgraph_st, CUgraphExec_st};
use crate::gpu::device::CURRENT;
use crate::gpu::gpus;
use crate::gpu::stream::Stream;
use crate::graph::{self, Graph};
use crate::memory;
use crate::memory::arena::pool::Pool;
use std::ffi::c_char;

/// Captured work, ready to replay. (torch.cuda.CUDAGraph)
pub struct tcuda_graph {
    _private: [u8; 0],
}

/// Which unsafe calls invalidate a capture: TCUDA_CAPTURE_..., CUDA's numbers.
pub type tcuda_capture_mode = i32;
/// Those of any thread.
pub const TCUDA_CAPTURE_GLOBAL: i32 = 0;
/// Those of the thread that captures.
pub const TCUDA_CAPTURE_THREAD_LOCAL: i32 = 1;
/// None.
pub const TCUDA_CAPTURE_RELAXED: i32 = 2;

pub(super) static GRAPHS: Table<Graph> = Table::new(8, "graph");

/// An empty graph. (torch.cuda.CUDAGraph, enable_debug_mode)
///
/// @param keep        1: the template stays after the capture, for tcuda_graph_update,
///                    tcuda_graph_debug_dump and changes by the host, and the graph becomes
///                    executable by tcuda_graph_instantiate or its first replay; 0: it is
///                    executable when its capture ends, and the template is destroyed
/// @param[out] graph  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_create(
    keep: i32,
    graph: *mut *mut tcuda_graph,
) -> tcuda_status {
    boundary(|call| {
        let graph = out(graph, "graph")?;
        let keep = flag(keep, "keep")?;
        let handle = GRAPHS.insert(Graph::new(keep))?;
        if let Some(made) = GRAPHS.known(handle, call.inside()) {
            made.set_handle(handle);
        }
        graph.set(handle as *mut tcuda_graph);
        Ok(())
    })
}

/// Destroys a graph. Replays that are under way continue; a capture that is under way is aborted.
/// The pool ends when nothing else holds it: then its memory serves new pools, after the replays,
/// or goes back to the driver with the next tcuda_memory_empty_cache.
/// (the end of a torch.cuda.CUDAGraph)
///
/// @param graph  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_graph_destroy(graph: *mut tcuda_graph) -> tcuda_status {
    boundary(|call| {
        if graph.is_null() {
            return Ok(());
        }
        let found = GRAPHS.get(graph as usize, "graph", call)?;
        waiting::refuse_in_callback()?;
        if let Some(gpus) = gpus::existing(call.inside()) {
            found.reset(gpus);
        }
        found.detach_hooks();
        GRAPHS.remove(graph as usize, "graph")
    })
}

/// Begins to capture the work of a stream, and of streams that come to wait for it, instead of
/// running it. Allocations of any thread on these streams come from the graph's pool, where memory
/// keeps its address as long as the pool exists. Pinned memory that is used on them stays until the
/// graph is destroyed. Blocks that several streams used and that are freed meanwhile are reused
/// only after the capture. tcuda_graph_replay fails with TCUDA_STATUS_CAPTURING. A call that waits
/// for a captured stream, or queries it, fails with it too, and invalidates the capture.
/// (torch.cuda.CUDAGraph.capture_begin)
///
/// @param graph       an empty graph
/// @param stream      not a default one; NULL is the current stream
/// @param pool        may be NULL: a new one. Graphs that share one reuse each other's memory: they
///                    must replay in the order of their captures, or not need earlier outputs
/// @param error_mode  TCUDA_CAPTURE_...: which threads' unsafe calls invalidate the capture, as
///                    cudaMalloc or a wait for any stream; calls that tcuda makes itself are safe
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_capture_begin(
    graph: *mut tcuda_graph,
    stream: *mut tcuda_stream,
    pool: *mut tcuda_mem_pool,
    error_mode: tcuda_capture_mode,
) -> tcuda_status {
    boundary(|call| {
        let graph = GRAPHS.get(graph as usize, "graph", call)?;
        let pool = shared_pool(pool, call)?;
        graph.capture_begin(call.gpus()?, or_current(stream, call)?, pool, error_mode)
    })
}

/// The pool of a handle, or `None` for NULL.
fn shared_pool(pool: *mut tcuda_mem_pool, call: &Call) -> Result<Option<Pool>> {
    match pool.is_null() {
        true => Ok(None),
        false => MEM_POOLS.get(pool as usize, "pool", call)?.share().map(Some),
    }
}

/// Ends the capture, on the thread that began it unless the mode was TCUDA_CAPTURE_RELAXED. If it
/// fails, or the capture was invalidated (TCUDA_STATUS_CAPTURE_INVALIDATED), the graph is empty and
/// the stream is usable again. A graph without work is logged as a warning.
/// Hooks run between its two parts. (torch.cuda.CUDAGraph.capture_end, capture_end_pre,
/// capture_end_post)
///
/// @param graph  that captures
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_capture_end(graph: *mut tcuda_graph) -> tcuda_status {
    boundary(|call| end_capture(graph, call))
}

fn end_capture(graph: *mut tcuda_graph, call: &Call) -> Result<()> {
    let graph = GRAPHS.get(graph as usize, "graph", call)?;
    if graph.capture_end(call.gpus()?)? {
        let line = "tcuda_graph_capture_end: The CUDA Graph is empty. This usually means that the \
                    graph was attempted to be captured on wrong device or stream.";
        log::write(Level::Warning, format_args!("{line}"));
    }
    Ok(())
}

/// Ends a capture without a graph, on any thread, also an invalidated one; the graph is empty and
/// the stream is usable again. No-op on an empty graph. (+)
///
/// @param graph  that captures, or is empty
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_capture_abort(graph: *mut tcuda_graph) -> tcuda_status {
    boundary(|call| GRAPHS.get(graph as usize, "graph", call)?.capture_abort(call.gpus()?))
}

/// tcuda_graph_capture_begin with the steps of torch.cuda.graph before it: waits for the stream's
/// device, empties the caches of device and pinned memory, and makes the stream and its device
/// current for this thread, so that what the thread queues is captured. Undo it by tcuda_graph_end;
/// where no graph is wanted, by tcuda_graph_capture_abort, tcuda_stream_set_current(previous) and
/// tcuda_device_set(previous_device). On failure the current stream and device are unchanged.
/// (torch.cuda.graph)
///
/// @param graph                 an empty graph
/// @param stream                not a default one; NULL is tcuda_graph_stream of the current device
/// @param pool                  may be NULL: a new one, as in tcuda_graph_capture_begin
/// @param error_mode            TCUDA_CAPTURE_..., as in tcuda_graph_capture_begin
/// @param[out] previous         the current stream of the stream's device; borrowed
/// @param[out] previous_device  the current device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_begin(
    graph: *mut tcuda_graph,
    stream: *mut tcuda_stream,
    pool: *mut tcuda_mem_pool,
    error_mode: tcuda_capture_mode,
    previous: *mut *mut tcuda_stream,
    previous_device: *mut i32,
) -> tcuda_status {
    boundary(|call| {
        let (previous, previous_device) =
            (out(previous, "previous")?, out(previous_device, "previous_device")?);
        let graph = GRAPHS.get(graph as usize, "graph", call)?;
        let pool = shared_pool(pool, call)?;
        let stream = optional(stream, call)?;
        let gpus = call.gpus()?;
        let device = gpus.device(stream.map_or(CURRENT, Stream::device))?;
        let stream = match stream {
            Some(stream) => stream,
            None => device.streams.for_captures(device)?,
        };
        let _documented = sync_debug::documented();
        device.synchronize_for_host()?;
        memory::empty_cache(gpus)?;
        gpus.pinned().empty_cache(gpus)?;
        let keep = |displaced: &Stream| Ok((borrow(displaced)?, std::ptr::from_ref(displaced)));
        let ((handle, displaced), before) = make_current(call, stream, keep)?;
        if let Err(error) = graph.capture_begin(gpus, stream, pool, error_mode) {
            // SAFETY: found by this call, which is not over.
            make_current(call, unsafe { &*displaced }, |_| Ok(()))?;
            gpus.set_current_device(before)?;
            return Err(error);
        }
        previous.set(handle);
        previous_device.set(before);
        Ok(())
    })
}

/// Ends what tcuda_graph_begin began: tcuda_graph_capture_end, then the previous stream and device
/// become current again, also if the capture fails. (the end of torch.cuda.graph)
///
/// @param graph            that captures
/// @param previous         from tcuda_graph_begin; NULL leaves the stream that is current
/// @param previous_device  from tcuda_graph_begin; negative leaves the stream's device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_end(
    graph: *mut tcuda_graph,
    previous: *mut tcuda_stream,
    previous_device: i32,
) -> tcuda_status {
    boundary(|call| {
        let previous = optional(previous, call)?;
        let gpus = call.gpus()?;
        if previous_device >= 0 {
            gpus.device(previous_device)?;
        }
        let ended = end_capture(graph, call);
        if let Some(previous) = previous {
            make_current(call, previous, |_| Ok(()))?;
        }
        if previous_device >= 0 {
            gpus.set_current_device(previous_device)?;
        }
        ended
    })
}

/// Makes a graph that keeps its template executable; again after the template was changed.
/// (torch.cuda.CUDAGraph.instantiate)
///
/// @param graph  that keeps its template
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_instantiate(graph: *mut tcuda_graph) -> tcuda_status {
    boundary(|call| GRAPHS.get(graph as usize, "graph", call)?.instantiate(call.gpus()?))
}

/// Copies the parameters of another graph into an executable one. Both must have the same
/// operations in the same order. Cheaper than making `source` executable. If CUDA refuses with
/// TCUDA_STATUS_CUDA_ERROR, `graph` is unchanged. Both graphs hold the memory of `source` from then
/// on. (+)
///
/// @param graph   is executable
/// @param source  keeps its template; it is not changed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_update(
    graph: *mut tcuda_graph,
    source: *mut tcuda_graph,
) -> tcuda_status {
    boundary(|call| {
        let graph = GRAPHS.get(graph as usize, "graph", call)?;
        let source = GRAPHS.get(source as usize, "source", call)?;
        graph.update(call.gpus()?, source)
    })
}

/// Queues all captured work; several replays of one graph run one after the other. Random numbers
/// continue as if the work had been queued again. (torch.cuda.CUDAGraph.replay)
///
/// @param graph   that can be launched
/// @param stream  of the graph's device, and not captured; NULL is the current one of that device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_replay(
    graph: *mut tcuda_graph,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let graph = GRAPHS.get(graph as usize, "graph", call)?;
        graph.replay(call.gpus()?, optional(stream, call)?)
    })
}

/// Destroys what was captured, and aborts a capture; the graph is empty again. Replays that are
/// under way continue. (torch.cuda.CUDAGraph.reset)
///
/// @param graph  in any state
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_reset(graph: *mut tcuda_graph) -> tcuda_status {
    boundary(|call| {
        let graph = GRAPHS.get(graph as usize, "graph", call)?;
        waiting::refuse_in_callback()?;
        graph.reset(call.gpus()?);
        Ok(())
    })
}

/// The stream of a device for captures: one of its pooled streams, the same each time; borrowed.
/// Memory of a pool is reused in stream order: capture graphs that share a pool on one stream.
/// (torch.cuda.graph.default_capture_stream)
///
/// @param device       ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] stream  borrowed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_stream(
    device: i32,
    stream: *mut *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = out(stream, "stream")?;
        let device = call.gpus()?.device(device)?;
        stream.set(borrow(device.streams.for_captures(device)?)?);
        Ok(())
    })
}

/// The pool of a captured graph, to capture others into. (torch.cuda.CUDAGraph.pool)
///
/// @param graph      that was captured
/// @param[out] pool  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_pool(
    graph: *mut tcuda_graph,
    pool: *mut *mut tcuda_mem_pool,
) -> tcuda_status {
    boundary(|call| {
        let pool = out(pool, "pool")?;
        let found = GRAPHS.get(graph as usize, "graph", call)?.pool()?;
        pool.set(MEM_POOLS.insert(found)? as *mut tcuda_mem_pool);
        Ok(())
    })
}

/// The pools that hold a captured graph's memory, tcuda_graph_pool's first. On failure none is
/// made. (torch.cuda.CUDAGraph.pools)
///
/// @param graph       that was captured
/// @param[out] pools  the caller's, to be destroyed; may be NULL if capacity is 0
/// @param capacity    length of the list
/// @param[out] count  number of pools
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_pools(
    graph: *mut tcuda_graph,
    pools: *mut *mut tcuda_mem_pool,
    capacity: usize,
    count: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        let pools = out_list(pools, capacity, "pools")?;
        let found = GRAPHS.get(graph as usize, "graph", call)?.pools()?;
        let all = found.len();
        let no_room = |_| Error::OutOfHostMemory("the pools of a graph");
        let mut made: Vec<usize> = Vec::new();
        made.try_reserve_exact(all.min(capacity)).map_err(no_room)?;
        for pool in found.into_iter().take(capacity) {
            match MEM_POOLS.insert(pool) {
                Ok(handle) => made.push(handle),
                Err(error) => {
                    made.iter().for_each(|handle| drop(MEM_POOLS.remove(*handle, "pool")));
                    return Err(error);
                }
            }
        }
        pools.set(made.into_iter().map(|handle| handle as *mut tcuda_mem_pool));
        count.set(all);
        Ok(())
    })
}

/// A new pool for graphs to share. (torch.cuda.graph_pool_handle)
///
/// @param[out] pool  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_pool_handle(pool: *mut *mut tcuda_mem_pool) -> tcuda_status {
    boundary(|_| {
        let pool = out(pool, "pool")?;
        pool.set(MEM_POOLS.insert(graph::pool_handle()?)? as *mut tcuda_mem_pool);
        Ok(())
    })
}

/// Writes a template that is kept, or that a hook sees, to a file in the DOT language, with all
/// details that CUDA has.
/// (torch.cuda.CUDAGraph.debug_dump; torch.cuda.export_dot, which a hook of
/// TCUDA_GRAPH_CAPTURE_ENDED does)
///
/// @param graph  that keeps its template, or that a hook sees
/// @param path   of the file, which is replaced
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_debug_dump(
    graph: *mut tcuda_graph,
    path: *const c_char,
) -> tcuda_status {
    boundary(|call| {
        let path = terminated(path, "path")?;
        GRAPHS.get(graph as usize, "graph", call)?.dump(call.gpus()?, path)
    })
}

/// Registers a generator with the next capture: each replay advances it and draws new numbers, as
/// if the work had been queued again. The default generator of the captured stream's device needs
/// no call. Before tcuda_graph_capture_begin; tcuda_graph_reset forgets it.
/// (torch.cuda.CUDAGraph.register_generator_state)
///
/// @param graph      an empty graph
/// @param generator  may be destroyed before the graph; NULL: the default one of the current device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_register_generator(
    graph: *mut tcuda_graph,
    generator: *mut tcuda_generator,
) -> tcuda_status {
    boundary(|call| {
        let graph = GRAPHS.get(graph as usize, "graph", call)?;
        graph.register(call.gpus()?, subject(generator, call)?)
    })
}

/// The driver's handles of a captured graph; borrowed, until it is reset or destroyed.
/// (torch.cuda.CUDAGraph.raw_cuda_graph, raw_cuda_graph_exec)
///
/// @param graph               that was captured
/// @param[out] cu_graph       the template, NULL unless it is kept or a hook sees it; may be NULL
/// @param[out] cu_graph_exec  what is launched, NULL before a kept one is executable; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_native(
    graph: *mut tcuda_graph,
    cu_graph: *mut *mut CUgraph_st,
    cu_graph_exec: *mut *mut CUgraphExec_st,
) -> tcuda_status {
    boundary(|call| {
        let (template, exec) = GRAPHS.get(graph as usize, "graph", call)?.native()?;
        if !cu_graph.is_null() {
            out(cu_graph, "cu_graph")?.set(template);
        }
        if !cu_graph_exec.is_null() {
            out(cu_graph_exec, "cu_graph_exec")?.set(exec);
        }
        Ok(())
    })
}

/// Is a stream being captured, by tcuda or by anything else, or is it in an invalidated capture
/// that has not ended? Creates no context. (torch.cuda.is_current_stream_capturing)
///
/// @param stream          NULL is the current stream
/// @param[out] capturing  whether it is
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_stream_is_capturing(
    stream: *mut tcuda_stream,
    capturing: *mut bool,
) -> tcuda_status {
    boundary(|call| {
        let capturing = out(capturing, "capturing")?;
        // Before the first use of the library there is no current stream to query.
        if stream.is_null() && gpus::existing(call.inside()).is_none() {
            capturing.set(false);
            return Ok(());
        }
        let stream = or_current(stream, call)?;
        capturing.set(graph::is_capturing(call.gpus()?, stream)?);
        Ok(())
    })
}
