//! Graphs: operations and their dependencies.

use super::event::Event;
use super::graph_memory::Block;
use super::handles::Handles;
use super::queue::Action;
use super::sync::{lock, write};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// The tables of graphs and nodes (with their kind).
pub(super) struct Graphs {
    pub(super) graphs: Handles<Arc<Graph>>,
    pub(super) nodes: Handles<c_int>,
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
            Work::Action(
                Action::Nothing | Action::Record(_) | Action::Writes(_) | Action::Callback(_),
            ) => 5,
            Work::Wait(_) => 6,
            Work::Record(_) => 7,
            Work::Allocate(_) => 10,
            Work::Free(_) => 11,
        }
    }
}

impl Graphs {
    pub(super) fn new() -> Graphs {
        Graphs { graphs: Handles::new(8), nodes: Handles::new(9) }
    }
}

impl Graph {
    /// Creates a graph in a table.
    pub(super) fn insert(graphs: &RwLock<Graphs>) -> Arc<Graph> {
        let graph = Arc::new(Graph { handle: AtomicUsize::new(0), nodes: Mutex::default() });
        let handle = write(graphs).graphs.insert(Arc::clone(&graph));
        graph.handle.store(handle, Ordering::Relaxed);
        graph
    }

    pub(super) fn handle(&self) -> usize {
        self.handle.load(Ordering::Relaxed)
    }

    /// Adds a node and returns its number.
    pub(super) fn add(
        &self,
        graphs: &RwLock<Graphs>,
        device: usize,
        after: Vec<usize>,
        work: Work,
    ) -> usize {
        let handle = write(graphs).nodes.insert(work.kind());
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

    /// The numbers of nodes; `None` if the graph does not have one.
    pub(super) fn numbers(&self, handles: &[usize]) -> Option<Vec<usize>> {
        let nodes = lock(&self.nodes);
        let number = |handle: &usize| nodes.iter().position(|node| node.handle == *handle);
        handles.iter().map(number).collect()
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
    pub(super) fn destroy(&self, graphs: &RwLock<Graphs>) {
        let nodes = std::mem::take(&mut *lock(&self.nodes));
        let mut tables = write(graphs);
        for node in &nodes {
            tables.nodes.remove(node.handle);
        }
        let graph = tables.graphs.remove(self.handle());
        drop(tables);
        // The last reference may free memory, so it is dropped without a lock.
        drop((graph, nodes));
    }
}
