//! Graphs: operations and their dependencies, and the calls that query them.

use super::arguments::{put, require};
use super::event::Event;
use super::graph_memory::Block;
use super::handles::Handles;
use super::queue::Action;
use super::replay::Exec;
use super::sync::{lock, read, write};
use super::{Machine, entry};
use crate::driver::code;
use crate::driver::sys::{CUgraph, CUgraphNode, CUgraphNodeType};
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The tables of graphs, nodes (with their kind) and executable graphs.
pub(super) struct Graphs {
    pub(super) graphs: Handles<Arc<Graph>>,
    nodes: Handles<c_int>,
    pub(super) execs: Handles<Arc<Exec>>,
}

/// A graph; each node depends on earlier nodes only.
pub(super) struct Graph {
    handle: AtomicUsize,
    nodes: Mutex<Vec<Arc<Node>>>,
}

/// An operation of a graph.
pub(super) struct Node {
    pub(super) handle: usize,
    pub(super) device: usize,
    /// Numbers of the nodes that it depends on.
    pub(super) after: Vec<usize>,
    pub(super) work: Work,
}

/// What a node does at each launch.
pub(super) enum Work {
    Action(Action),
    /// Records an event.
    Record(Arc<Event>),
    /// Waits for the point that the event has at the launch.
    Wait(Arc<Event>),
    Allocate(Arc<Block>),
    Free(Arc<Block>),
}

impl Work {
    /// `CU_GRAPH_NODE_TYPE_...`.
    pub(super) fn kind(&self) -> c_int {
        match self {
            Work::Action(Action::Kernel(_)) => 0,
            Work::Action(Action::Copy(_)) => 1,
            Work::Action(Action::Fill(_)) => 2,
            Work::Action(Action::HostFunction(_)) => 3,
            Work::Action(Action::Nothing | Action::Record(_) | Action::Writes(_)) => 5,
            Work::Wait(_) => 6,
            Work::Record(_) => 7,
            Work::Allocate(_) => 10,
            Work::Free(_) => 11,
        }
    }
}

impl Graphs {
    pub(super) fn new() -> Graphs {
        Graphs { graphs: Handles::new(8), nodes: Handles::new(9), execs: Handles::new(10) }
    }

    /// Number of graphs and executable graphs that the host has not destroyed.
    pub(super) fn len(&self) -> usize {
        self.graphs.len() + self.execs.len()
    }
}

impl Graph {
    /// Creates a graph in the machine's table.
    pub(super) fn insert(machine: &Machine) -> Arc<Graph> {
        let graph = Arc::new(Graph { handle: AtomicUsize::new(0), nodes: Mutex::default() });
        let handle = write(&machine.graphs).graphs.insert(Arc::clone(&graph));
        graph.handle.store(handle, Ordering::Relaxed);
        graph
    }

    pub(super) fn handle(&self) -> usize {
        self.handle.load(Ordering::Relaxed)
    }

    /// Adds a node and returns its number.
    pub(super) fn add(
        &self,
        machine: &Machine,
        device: usize,
        after: Vec<usize>,
        work: Work,
    ) -> usize {
        let handle = write(&machine.graphs).nodes.insert(work.kind());
        let mut nodes = lock(&self.nodes);
        nodes.push(Arc::new(Node { handle, device, after, work }));
        nodes.len() - 1
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.nodes).clone()
    }

    /// The handles of nodes.
    pub(super) fn handles(&self, numbers: &[usize]) -> Vec<usize> {
        let nodes = lock(&self.nodes);
        numbers.iter().filter_map(|number| nodes.get(*number)).map(|node| node.handle).collect()
    }

    /// For each node: true if it is one of `ends` or an ancestor of one.
    pub(super) fn ancestors(&self, ends: &[usize]) -> Vec<bool> {
        let nodes = lock(&self.nodes);
        let mut found = vec![false; nodes.len()];
        for end in ends {
            found[*end] = true;
        }
        for number in (0..nodes.len()).rev() {
            if found[number] {
                nodes[number].after.iter().for_each(|before| found[*before] = true);
            }
        }
        found
    }

    /// Removes the graph and its nodes from the tables.
    pub(super) fn destroy(&self, machine: &Machine) {
        let nodes = std::mem::take(&mut *lock(&self.nodes));
        let mut graphs = write(&machine.graphs);
        for node in &nodes {
            graphs.nodes.remove(node.handle);
        }
        let graph = graphs.graphs.remove(self.handle());
        drop(graphs);
        // The last reference may free memory, so it is dropped without a lock.
        drop((graph, nodes));
    }
}

pub(super) fn get(machine: &Machine, graph: CUgraph) -> Result<Arc<Graph>, i32> {
    read(&machine.graphs).graphs.get(graph.addr()).map(Arc::clone).ok_or(code::INVALID_VALUE)
}

pub(super) unsafe extern "C" fn destroy(graph: CUgraph) -> c_int {
    entry(|machine| {
        get(machine, graph)?.destroy(machine);
        Ok(())
    })
}

/// Writes handles to the host's array of length `room`; the rest is filled with NULL.
fn list(handles: &[usize], out: *mut CUgraphNode, room: usize) -> Result<(), i32> {
    for index in 0..room {
        let handle = handles.get(index).copied().unwrap_or(0);
        put!(out.wrapping_add(index), ptr::without_provenance_mut(handle))?;
    }
    Ok(())
}

/// Handles the count argument. If the host only queries the count, stores it; otherwise returns how
/// many handles to write.
fn room(count: *mut usize, counts_only: bool, found: usize) -> Result<usize, i32> {
    let room = super::arguments::peek!(count)?;
    require(counts_only || room > 0, code::INVALID_VALUE)?;
    put!(count, if counts_only { found } else { found.min(room) })?;
    Ok(if counts_only { 0 } else { room })
}

pub(super) unsafe extern "C" fn get_nodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> c_int {
    entry(|machine| {
        let handles: Vec<usize> =
            get(machine, graph)?.nodes().iter().map(|node| node.handle).collect();
        let room = room(count, nodes.is_null(), handles.len())?;
        list(&handles, nodes, room)
    })
}

pub(super) unsafe extern "C" fn get_edges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> c_int {
    entry(|machine| {
        let nodes = get(machine, graph)?.nodes();
        require(from.is_null() == to.is_null(), code::INVALID_VALUE)?;
        let edge = |node: &Arc<Node>| -> Vec<(usize, usize)> {
            node.after.iter().map(|before| (nodes[*before].handle, node.handle)).collect()
        };
        let (before, after): (Vec<usize>, Vec<usize>) = nodes.iter().flat_map(edge).unzip();
        let room = room(count, from.is_null(), before.len())?;
        list(&before, from, room)?;
        list(&after, to, room)
    })
}

pub(super) unsafe extern "C" fn node_type(node: CUgraphNode, kind: *mut CUgraphNodeType) -> c_int {
    entry(|machine| {
        let found = read(&machine.graphs).nodes.get(node.addr()).copied();
        put!(kind.cast::<c_int>(), found.ok_or(code::INVALID_VALUE)?)
    })
}
