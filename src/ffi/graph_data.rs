//! Section "Graphs" of the header: nodes, edges and annotations.

use super::boundary::{Call, TextOut, boundary, out, text, text_out};
use super::graph::{GRAPHS, tcuda_graph};
use super::status::tcuda_status;
use super::stream::{or_current, tcuda_stream};
use crate::base::error::Result;
use crate::graph::annotations;
use crate::graph::data::Format;
use std::ffi::c_char;

/// The nodes and edges of a template that is kept, or that a hook sees, as JSON (ASCII):
/// {"exec_graph_id", "nodes": [...], "edges": [...]}. IDs are null before CUDA 13.1, that of the
/// executable also while there is none.
///
/// A node: "index"; "node_type": "kernel", "memcpy", "memset", "host", "child_graph", "empty",
/// "wait_event", "event_record", "ext_semas_signal", "ext_semas_wait", "mem_alloc", "mem_free",
/// "batch_mem_op", "conditional", or CUDA's number; "tools_id", by which profilers name the node of
/// the executable: "graph_id" in its upper 32 bits, "node_id" in the lower; for kernels
/// "kernel_name", "grid_dim", "block_dim", "shared_mem_bytes" (dynamic), "parameters": [{"offset",
/// "bytes"}]; "event_ptr", CUDA's handle, or 0; "host_fn_addr", the function of
/// tcuda_stream_add_callback or CUDA's, or 0, and "host_fn_name", its symbol; "memory": {"dst",
/// "src", "bytes"} of a copy (0: an array), {"dst", "value", "element_bytes", "bytes"} of a fill,
/// {"ptr", "bytes"} of an allocation, {"ptr"} of its end; "dependencies" and "dependents", indices
/// of nodes; "annotations", the inner of two first; "child", for 16 levels of child graphs:
/// {"nodes", "edges"}. What does not apply, or is not known, is null.
///
/// An edge: "from", "to", indices of nodes; "from_port", "to_port", "type" of its data, which are 0
/// for one of full serialisation.
/// (torch.cuda.CUDAGraph.get_graph_data; torch.cuda.export_graph_data, which a hook of
/// TCUDA_GRAPH_INSTANTIATED does; torch.cuda.graph_annotations.get_kernel_annotations)
///
/// @param graph        that keeps its template, or that a hook sees
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_data_json(
    graph: *mut tcuda_graph,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| write_data(call, graph, text_out(buf, len, needed)?, Format::Json))
}

fn write_data(call: &Call, graph: *mut tcuda_graph, out: TextOut, format: Format) -> Result<()> {
    let text = GRAPHS.get(graph as usize, "graph", call)?.data(call.gpus()?, format)?;
    out.fill(|sink| sink(&text))
}

/// The nodes of tcuda_graph_data_json in the DOT language: kinds, kernels with their grids and
/// blocks, sizes of copies, and annotations. tcuda_graph_debug_dump has more of CUDA's details and
/// no annotations. (+)
///
/// @param graph        that keeps its template, or that a hook sees
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_data_dot(
    graph: *mut tcuda_graph,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| write_data(call, graph, text_out(buf, len, needed)?, Format::Dot))
}

/// Begins an annotation: nodes that are captured behind this point of the stream, also on streams
/// that join there, have its text in tcuda_graph_data_json and tcuda_graph_data_dot. No-op unless
/// tcuda captures the stream. An annotation that is open when the capture ends, ends there.
/// (torch.cuda.graph_annotations.mark_kernels; clear_kernel_annotations is tcuda_graph_reset. The
/// host may push stacks as texts, for get_kernel_py_stacks and dump_kernel_py_stacks)
///
/// @param stream      NULL is the current one
/// @param annotation  UTF-8, copied; not NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_annotation_push(
    stream: *mut tcuda_stream,
    annotation: *const c_char,
) -> tcuda_status {
    boundary(|call| {
        let annotation = text(annotation, "annotation")?;
        let stream = or_current(stream, call)?;
        annotations::push(call.gpus()?, stream, annotation)
    })
}

/// Ends the last annotation that was begun on a stream. No-op unless tcuda captures the stream;
/// TCUDA_STATUS_INVALID_STATE if none is open on it. (the end of
/// torch.cuda.graph_annotations.mark_kernels)
///
/// @param stream  NULL is the current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_annotation_pop(stream: *mut tcuda_stream) -> tcuda_status {
    boundary(|call| {
        let stream = or_current(stream, call)?;
        annotations::pop(call.gpus()?, stream)
    })
}

/// The graph that tcuda captures a stream into; NULL: none, or that of a graphed callable.
/// (torch.cuda.CUDAGraph.get_currently_capturing_graph)
///
/// @param stream      NULL is the current one
/// @param[out] graph  borrowed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_capturing(
    stream: *mut tcuda_stream,
    graph: *mut *mut tcuda_graph,
) -> tcuda_status {
    boundary(|call| {
        let graph = out(graph, "graph")?;
        let stream = or_current(stream, call)?;
        graph.set(annotations::graph_of(call.gpus()?, stream)? as *mut tcuda_graph);
        Ok(())
    })
}
