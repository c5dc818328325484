//! The calls that return the IDs of graphs and nodes, by which profilers name them. They are of
//! CUDA 13.1, newer than the version that the driver tells.

use super::arguments::put;
use super::entry::entry;
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUgraphNode};
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::ptr;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeGetContainingGraph(
    node: CUgraphNode,
    graph: *mut CUgraph,
) -> c_int {
    entry(|machine| {
        let (found, _) = machine.node(node)?;
        put!(graph, ptr::without_provenance_mut(found.handle()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeGetLocalId(node: CUgraphNode, id: *mut c_uint) -> c_int {
    entry(|machine| {
        let (_, node) = machine.node(node)?;
        put!(id, node.number as c_uint)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeGetToolsId(
    node: CUgraphNode,
    id: *mut c_ulonglong,
) -> c_int {
    entry(|machine| {
        let (graph, node) = machine.node(node)?;
        put!(id, c_ulonglong::from(graph.id) << 32 | node.number as c_ulonglong)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphGetId(graph: CUgraph, id: *mut c_uint) -> c_int {
    entry(|machine| put!(id, machine.graph(graph)?.id))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecGetId(exec: CUgraphExec, id: *mut c_uint) -> c_int {
    entry(|machine| put!(id, machine.exec(exec)?.id))
}
