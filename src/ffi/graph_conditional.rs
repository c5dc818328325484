//! Section "Graphs" of the header: conditional nodes.

use super::boundary::{boundary, out};
use super::graph::{GRAPHS, tcuda_graph};
use super::status::tcuda_status;
use super::stream::{borrow, optional, tcuda_stream};
use crate::base::error::{Error, Result};
use crate::graph::Condition;
use std::ffi::c_void;

/// What the condition of a node does: TCUDA_CONDITION_IF or TCUDA_CONDITION_WHILE, CUDA's numbers.
pub type tcuda_condition = i32;
/// The body runs once if the condition holds.
pub const TCUDA_CONDITION_IF: i32 = 0;
/// The body runs again as long as the condition holds.
pub const TCUDA_CONDITION_WHILE: i32 = 1;

fn condition_of(number: tcuda_condition) -> Result<Condition> {
    match number {
        TCUDA_CONDITION_IF => Ok(Condition::If),
        TCUDA_CONDITION_WHILE => Ok(Condition::While),
        _ => Err(Error::OutOfRange {
            name: "condition",
            value: number.into(),
            allowed: "use TCUDA_CONDITION_IF or TCUDA_CONDITION_WHILE",
        }),
    }
}

fn address(predicate: *const c_void) -> Result<u64> {
    match predicate.is_null() {
        true => Err(Error::Null { name: "predicate" }),
        false => Ok(predicate as u64),
    }
}

/// Begins the body of a conditional node in a capture that is under way. Each replay reads the
/// byte at `predicate` when it comes to the node, and runs the body if it is not 0. The body's work
/// is captured on a stream of its own, which is current on this thread until
/// tcuda_graph_conditional_end. Work that is queued on `stream` afterwards comes after the node.
/// Bodies may contain conditional nodes, which begin on the body's stream. Before that, the stream
/// must wait for the streams that wait for it. Allocations in a body come from the graph's pool.
///
/// A body has kernels, copies and fills, all of the graph's device. If it has anything else, or if
/// its capture is invalidated, tcuda_graph_conditional_end fails, and then
/// tcuda_graph_capture_end with TCUDA_STATUS_CAPTURE_INVALIDATED. Random numbers are
/// TCUDA_STATUS_NOT_SUPPORTED there, and annotations are ignored. TCUDA_STATUS_NOT_SUPPORTED before
/// CUDA 12.3. (torch.cuda.CUDAGraph.begin_capture_to_if_node, begin_capture_to_while_node)
///
/// @param graph      is being captured; on the thread that began that, unless its mode was
///                   TCUDA_CAPTURE_RELAXED
/// @param condition  TCUDA_CONDITION_IF; or TCUDA_CONDITION_WHILE, which ends only if its body sets
///                   the condition, by tcuda_graph_conditional_set
/// @param predicate  one byte, a bool of C, in memory that kernels of the device can read; work
///                   before the node may write it. Valid as long as the graph is replayed
/// @param stream     captured into the graph, within a body its stream; NULL is the current one
/// @param[out] body  may be NULL; the body's stream, borrowed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_conditional_begin(
    graph: *mut tcuda_graph,
    condition: tcuda_condition,
    predicate: *const c_void,
    stream: *mut tcuda_stream,
    body: *mut *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let graph = GRAPHS.get(graph as usize, "graph", call)?;
        let (condition, predicate) = (condition_of(condition)?, address(predicate)?);
        let body = if body.is_null() { None } else { Some(out(body, "body")?) };
        let stream = optional(stream, call)?;
        let made = graph.conditional_begin(call.gpus()?, condition, predicate, stream, borrow)?;
        if let Some(body) = body {
            body.set(made);
        }
        Ok(())
    })
}

/// Sets the condition of the node whose body is being captured, behind the work of a stream: each
/// time that a replay comes here, it reads the byte at `predicate`, and a loop goes on after this
/// run of its body if it is not 0. (torch.cuda.CUDAGraph.set_conditional_handle_for_current_node)
///
/// @param graph      a body of it is being captured
/// @param predicate  as in tcuda_graph_conditional_begin; the body's work may write it
/// @param stream     the stream of the innermost body, or one that waits for it; NULL is the
///                   current one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_conditional_set(
    graph: *mut tcuda_graph,
    predicate: *const c_void,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let graph = GRAPHS.get(graph as usize, "graph", call)?;
        let predicate = address(predicate)?;
        graph.conditional_set(call.gpus()?, predicate, optional(stream, call)?)
    })
}

/// Ends the innermost body, on the thread that began it. The stream that was current before is
/// current again, also if the body fails. (torch.cuda.CUDAGraph.end_capture_to_conditional_node)
///
/// @param graph  a body of it is being captured
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_graph_conditional_end(graph: *mut tcuda_graph) -> tcuda_status {
    boundary(|call| GRAPHS.get(graph as usize, "graph", call)?.conditional_end(call.gpus()?))
}
