//! The calls that create, query, print and destroy graphs, and update executable ones.

use super::arguments::{peek, put, require};
use super::entry::entry;
use super::exec::Step;
use super::exec_calls;
use super::graph::Graph;
use super::graph::{Node, Work};
use super::machine::Machine;
use super::queue::Action;
use crate::base::code;
use cudarc::driver::sys::{
    CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUgraphNode, CUgraphNodeType,
};
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{fs, ptr};

/// `CU_GRAPH_EXEC_UPDATE_...`.
const SUCCESS: c_uint = 0;
const TOPOLOGY_CHANGED: c_uint = 2;
const NODE_TYPE_CHANGED: c_uint = 3;
const PARAMETERS_CHANGED: c_uint = 5;
const NOT_SUPPORTED: c_uint = 6;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint) -> c_int {
    entry(|machine| {
        require(!graph.is_null() && flags == 0, code::INVALID_VALUE)?;
        put!(graph, ptr::without_provenance_mut(Graph::insert(&machine.graphs).handle()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphClone(clone: *mut CUgraph, graph: CUgraph) -> c_int {
    entry(|machine| {
        let graph = machine.graph(graph)?;
        require(!clone.is_null(), code::INVALID_VALUE)?;
        require(!graph.has_memory() && !graph.is_conditional(), code::NOT_SUPPORTED)?;
        let made = graph.duplicate(&machine.graphs, false);
        put!(clone, ptr::without_provenance_mut(made.handle()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeFindInClone(
    found: *mut CUgraphNode,
    node: CUgraphNode,
    clone: CUgraph,
) -> c_int {
    entry(|machine| {
        let (_, node) = machine.node(node)?;
        let copy = machine.graph(clone)?.copy_of(&node).ok_or(code::INVALID_VALUE)?;
        put!(found, ptr::without_provenance_mut(copy))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> c_int {
    entry(|machine| {
        let graph = machine.graph(graph)?;
        // A child graph is destroyed with its node.
        require(!graph.is_owned.load(Ordering::Relaxed), code::INVALID_VALUE)?;
        graph.destroy(&machine.graphs);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphDestroyNode(node: CUgraphNode) -> c_int {
    entry(|machine| {
        let (graph, node) = machine.node(node)?;
        require(!graph.has_memory(), code::NOT_SUPPORTED)?;
        graph.remove(&machine.graphs, node.number)
    })
}

/// Writes handles to the host's array of length `room`; the rest is filled with NULL.
pub(super) fn list(handles: &[usize], out: *mut CUgraphNode, room: usize) -> Result<(), i32> {
    for index in 0..room {
        let handle = handles.get(index).copied().unwrap_or(0);
        put!(out.wrapping_add(index), ptr::without_provenance_mut(handle))?;
    }
    Ok(())
}

/// Handles the count argument. If the host only queries the count, stores it; otherwise returns how
/// many handles to write.
pub(super) fn room(count: *mut usize, counts_only: bool, found: usize) -> Result<usize, i32> {
    let room = peek!(count)?;
    require(counts_only || room > 0, code::INVALID_VALUE)?;
    put!(count, if counts_only { found } else { found.min(room) })?;
    Ok(if counts_only { 0 } else { room })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphGetNodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> c_int {
    entry(|machine| {
        let handles: Vec<usize> =
            machine.graph(graph)?.nodes().iter().map(|node| node.handle).collect();
        let room = room(count, nodes.is_null(), handles.len())?;
        list(&handles, nodes, room)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphGetRootNodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> c_int {
    entry(|machine| {
        let all = machine.graph(graph)?.nodes();
        let roots = all.iter().filter(|node| node.after.is_empty());
        let handles: Vec<usize> = roots.map(|node| node.handle).collect();
        let room = room(count, nodes.is_null(), handles.len())?;
        list(&handles, nodes, room)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeGetType(
    node: CUgraphNode,
    kind: *mut CUgraphNodeType,
) -> c_int {
    entry(|machine| {
        let (_, node) = machine.node(node)?;
        put!(kind.cast::<c_int>(), node.task.work.kind())
    })
}

/// The places of the steps that belong to no child graph in the list.
fn outermost(steps: &[Step]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut end = steps.len();
    while let Some(last) = end.checked_sub(1) {
        places.push(last);
        end = last - steps[last].inner;
    }
    places.reverse();
    places
}

/// The first difference in the numbers of nodes and in the places of child graphs: the reason why
/// operations cannot replace others, and the index of the node.
fn compare_shapes(old: &[Step], new: &[Step]) -> Option<(c_uint, usize)> {
    let (olds, news) = (outermost(old), outermost(new));
    if olds.len() != news.len() {
        return Some((TOPOLOGY_CHANGED, 0));
    }
    olds.into_iter().zip(news).find_map(|(at, to)| {
        let is_child = |step: &Step| matches!(step.task.work, Work::Child(_));
        match (is_child(&old[at]), is_child(&new[to])) {
            (true, true) => {
                compare_shapes(&old[at - old[at].inner..at], &new[to - new[to].inner..to])
            }
            (false, false) => None,
            _ => Some((NODE_TYPE_CHANGED, new[to].handle)),
        }
    })
}

/// The reason why operations cannot replace others, and the index of the first that cannot; 0: they
/// can.
fn compare(old: &[Step], new: &[Step]) -> (c_uint, usize) {
    if let Some(found) = compare_shapes(old, new) {
        return found;
    }
    for (old, new) in old.iter().zip(new) {
        let of_memory = |step: &Step| matches!(step.task.work, Work::Allocate(_) | Work::Free(_));
        let found = if old.after != new.after {
            TOPOLOGY_CHANGED
        } else if old.task.work.kind() != new.task.work.kind() {
            NODE_TYPE_CHANGED
        } else if of_memory(new) {
            NOT_SUPPORTED
        } else if old.device != new.device || !have_same_values(&old.task.work, &new.task.work) {
            PARAMETERS_CHANGED
        } else {
            SUCCESS
        };
        if found != SUCCESS {
            return (found, new.handle);
        }
    }
    (SUCCESS, 0)
}

/// True unless both are operations on values, of different kinds, or conditional nodes with
/// different bodies.
fn have_same_values(old: &Work, new: &Work) -> bool {
    match (old, new) {
        (Work::Values(old), Work::Values(new)) => new.has_shape_of(old),
        (Work::Action(Action::Branch(old)), Work::Action(Action::Branch(new))) => {
            new.has_shape_of(old)
        }
        _ => true,
    }
}

/// True if operations can replace others.
pub(super) fn can_replace(old: &[Step], new: &[Step]) -> bool {
    compare(old, new).0 == SUCCESS
}

/// Replaces operations by others that can replace them. Their nodes stay the same.
pub(super) fn replace(old: &mut [Step], new: Vec<Step>) {
    for (old, new) in old.iter_mut().zip(new) {
        old.task = new.task;
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecUpdate_v2(
    exec: CUgraphExec,
    graph: CUgraph,
    info: *mut CUgraphExecUpdateResultInfo,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        let exec = machine.exec(exec)?;
        let graph = machine.graph(graph)?;
        let steps = Step::all(&graph).map_err(|_| code::INVALID_VALUE)?;
        exec_calls::can_run(machine, &steps)?;
        let (found, node) = compare(&exec.steps(), &steps);
        // Written field by field, since the result is a plain integer here.
        put!(info.cast::<c_uint>(), found)?;
        let nodes_of_info = info.wrapping_byte_add(size_of::<usize>()).cast::<usize>();
        put!(nodes_of_info, node)?;
        put!(nodes_of_info.wrapping_add(1), 0)?;
        require(found == SUCCESS, code::GRAPH_EXEC_UPDATE_FAILURE)?;
        exec.edit(|old| replace(old, steps));
        Ok(())
    })
}

const _: () = assert!(size_of::<CUgraphExecUpdateResultInfo>() == 3 * size_of::<usize>());

/// The readable name and details of a node.
fn label(work: &Work) -> (&'static str, String) {
    match work {
        Work::Action(Action::Kernel(launch)) => {
            let size = |[x, y, z]: [u32; 3]| format!("{x}x{y}x{z}");
            (
                "KERNEL",
                format!("grid {} block {}", size(launch.shape.grid), size(launch.shape.block)),
            )
        }
        Work::Action(Action::Copy(copy)) => {
            ("MEMCPY", format!("{} x {} x {} bytes", copy.width, copy.rows, copy.depth))
        }
        Work::Action(Action::Fill(fill)) => {
            let (count, width, value) = (fill.count, fill.width, fill.value);
            ("MEMSET", format!("{count} x {width} bytes of {value:#x}"))
        }
        Work::Action(Action::HostFunction(_)) => ("HOST", String::new()),
        Work::Action(
            Action::Nothing
            | Action::Record(_)
            | Action::Writes(_)
            | Action::Callback(_)
            | Action::Reset(_)
            | Action::Value(_),
        ) => ("EMPTY", String::new()),
        Work::Values(batch) => ("BATCH_MEM_OP", format!("{} operations", batch.operations.len())),
        Work::Wait(_) => ("EVENT_WAIT", String::new()),
        Work::Record(_) => ("EVENT_RECORD", String::new()),
        Work::Allocate(block) => ("MEM_ALLOC", format!("{} bytes", block.bytes)),
        Work::Child(child) => ("CHILD", format!("{} nodes", child.nodes().len())),
        Work::Conditional(node) => ("CONDITIONAL", format!("{} bodies", node.bodies.len())),
        Work::Action(Action::Branch(_)) => ("CONDITIONAL", String::new()),
        Work::Free(block) => ("MEM_FREE", format!("{} bytes", block.bytes)),
    }
}

/// A graph in DOT: its nodes in the order of their creation, then its edges.
fn text(nodes: &[Arc<Node>]) -> Result<String, std::fmt::Error> {
    let mut dot = String::from("digraph dot {\nsubgraph cluster_0 {\n");
    for node in nodes {
        let (number, (kind, what)) = (node.number, label(&node.task.work));
        writeln!(dot, "\"node_{number}\"[shape=\"record\" label=\"{{{kind}|{what}}}\"];")?;
    }
    for node in nodes {
        let number = node.number;
        for before in &node.after {
            writeln!(dot, "\"node_{before}\" -> \"node_{number}\";")?;
        }
    }
    dot.push_str("}\n}\n");
    Ok(dot)
}

fn write_to(machine: &Machine, graph: CUgraph, path: *const c_char) -> Result<(), i32> {
    let nodes = machine.graph(graph)?.nodes();
    require(!ptr::eq(path, ptr::null()), code::INVALID_VALUE)?;
    // SAFETY: not NULL, and NUL-terminated by the host's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let text = text(&nodes).map_err(|_| code::UNKNOWN)?;
    fs::write(OsStr::from_bytes(path.to_bytes()), text).map_err(|_| code::OPERATING_SYSTEM)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphDebugDotPrint(
    graph: CUgraph,
    path: *const c_char,
    _flags: c_uint,
) -> c_int {
    entry(|machine| write_to(machine, graph, path))
}
