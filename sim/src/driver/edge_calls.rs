//! The calls for the dependencies between nodes of a graph.

use super::arguments::{peek, put, require};
use super::entry::entry;
use super::graph::{Graph, Node};
use super::graph_calls::{list, room};
use super::machine::Machine;
use crate::base::code;
use cudarc::driver::sys::{CUgraph, CUgraphEdgeData, CUgraphNode};
use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// The data of an edge at which the second node waits for all of the first one.
const WHOLE: CUgraphEdgeData =
    CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };

/// Writes the data of edges to an array of length `room`, unless it is NULL.
fn list_data(data: *mut CUgraphEdgeData, room: usize) -> Result<(), i32> {
    let places = (0..room).map(|index| data.wrapping_add(index));
    places.filter(|_| !data.is_null()).try_for_each(|place| put!(place, WHOLE))
}

/// Checks the data of edges; NULL stands for edges without data.
pub(super) fn check_data(data: *const CUgraphEdgeData, count: usize) -> Result<(), i32> {
    for index in (0..count).filter(|_| !data.is_null()) {
        let CUgraphEdgeData { from_port, to_port, type_, reserved } =
            peek!(data.wrapping_add(index))?;
        require(to_port == 0 && reserved == [0; 5], code::INVALID_VALUE)?;
        // A programmatic dependency begins before the end of a kernel.
        require(from_port == 0 && type_ == 0, code::NOT_SUPPORTED)?;
    }
    Ok(())
}

/// A node of this graph.
pub(super) fn member(
    machine: &Machine,
    graph: &Arc<Graph>,
    node: CUgraphNode,
) -> Result<usize, i32> {
    let (owner, node) = machine.node(node)?;
    require(Arc::ptr_eq(&owner, graph), code::INVALID_VALUE)?;
    Ok(node.number)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphGetEdges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> c_int {
    // SAFETY: the same promise.
    unsafe { cuGraphGetEdges_v2(graph, from, to, null_mut(), count) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphGetEdges_v2(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> c_int {
    entry(|machine| {
        let graph = machine.graph(graph)?;
        require(from.is_null() == to.is_null(), code::INVALID_VALUE)?;
        let nodes = graph.nodes();
        let edges = |node: &Arc<Node>| -> Vec<(usize, usize)> {
            graph.handles(&node.after).into_iter().map(|before| (before, node.handle)).collect()
        };
        let (before, after): (Vec<usize>, Vec<usize>) = nodes.iter().flat_map(edges).unzip();
        let room = room(count, from.is_null(), before.len())?;
        list(&before, from, room)?;
        list(&after, to, room)?;
        list_data(data, room.min(before.len()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeGetDependencies(
    node: CUgraphNode,
    dependencies: *mut CUgraphNode,
    count: *mut usize,
) -> c_int {
    // SAFETY: the same promise.
    unsafe { cuGraphNodeGetDependencies_v2(node, dependencies, null_mut(), count) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeGetDependencies_v2(
    node: CUgraphNode,
    dependencies: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> c_int {
    entry(|machine| {
        let (graph, node) = machine.node(node)?;
        let handles = graph.handles(&node.after);
        let room = room(count, dependencies.is_null(), handles.len())?;
        list(&handles, dependencies, room)?;
        list_data(data, room.min(handles.len()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeGetDependentNodes(
    node: CUgraphNode,
    dependents: *mut CUgraphNode,
    count: *mut usize,
) -> c_int {
    // SAFETY: the same promise.
    unsafe { cuGraphNodeGetDependentNodes_v2(node, dependents, null_mut(), count) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeGetDependentNodes_v2(
    node: CUgraphNode,
    dependents: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> c_int {
    entry(|machine| {
        let (graph, node) = machine.node(node)?;
        let nodes = graph.nodes();
        let later = nodes.iter().filter(|later| later.after.contains(&node.number));
        let handles: Vec<usize> = later.map(|later| later.handle).collect();
        let room = room(count, dependents.is_null(), handles.len())?;
        list(&handles, dependents, room)?;
        list_data(data, room.min(handles.len()))
    })
}

/// Adds or removes dependencies.
fn edit(
    machine: &Machine,
    graph: CUgraph,
    (from, to): (*const CUgraphNode, *const CUgraphNode),
    data: *const CUgraphEdgeData,
    count: usize,
    adds: bool,
) -> Result<(), i32> {
    let graph = machine.graph(graph)?;
    if count == 0 {
        return Ok(());
    }
    require(adds || !graph.has_memory(), code::NOT_SUPPORTED)?;
    check_data(data, count)?;
    let number = |list: *const CUgraphNode, index| {
        require(!list.is_null(), code::INVALID_VALUE)?;
        member(machine, &graph, peek!(list.wrapping_add(index))?)
    };
    let edge = |index| {
        let (from, to) = (number(from, index)?, number(to, index)?);
        require(from != to, code::INVALID_VALUE)?;
        Ok((from, to))
    };
    let edges: Vec<(usize, usize)> = (0..count).map(edge).collect::<Result<_, i32>>()?;
    graph.edit(&edges, adds)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphAddDependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> c_int {
    entry(|machine| edit(machine, graph, (from, to), null(), count, true))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphAddDependencies_v2(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> c_int {
    entry(|machine| edit(machine, graph, (from, to), data, count, true))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphRemoveDependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> c_int {
    entry(|machine| edit(machine, graph, (from, to), null(), count, false))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphRemoveDependencies_v2(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> c_int {
    entry(|machine| edit(machine, graph, (from, to), data, count, false))
}
