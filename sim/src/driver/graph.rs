//! Graphs: operations and their dependencies.

use super::condition::Condition;
use super::event::Event;
use super::graph_memory::Block;
use super::handles::Handles;
use super::queue::{Action, BranchKind};
use super::sync::{lock, read, write};
use super::user_object::References;
use super::value::Batch;
use crate::base::code;
use cudarc::driver::sys::{CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUmemAccessDesc};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

/// The tables of graphs and of their nodes.
pub(super) struct Graphs {
    pub(super) graphs: Handles<Arc<Graph>>,
    pub(super) nodes: Handles<Place>,
    /// The last ID of a graph or an executable one.
    last_id: u32,
}

/// Where a node is: its graph, and its number there.
#[derive(Clone)]
pub(super) struct Place {
    graph: Weak<Graph>,
    number: usize,
}

/// A graph.
pub(super) struct Graph {
    /// Never reused, unlike the handle.
    pub(super) id: u32,
    handle: AtomicUsize,
    /// A node of another graph owns it: it is destroyed with that node.
    pub(super) is_owned: AtomicBool,
    /// The ID of the graph whose conditional node, or a node within, has this one as a body; else
    /// its own.
    pub(super) root: u32,
    /// The conditions that were created for it.
    pub(super) conditions: Mutex<Vec<Arc<Condition>>>,
    /// The ID of the last executable graph that was made of it; 0: none.
    pub(super) exec: AtomicU32,
    nodes: Mutex<Nodes>,
    /// The user objects that it keeps alive.
    pub(super) objects: Mutex<References>,
}

/// The nodes by number. A number is not used again.
#[derive(Clone, Default)]
struct Nodes {
    all: BTreeMap<usize, Arc<Node>>,
    next: usize,
}

/// An operation of a graph.
#[derive(Clone)]
pub(super) struct Node {
    /// Never reused, unlike the handle.
    pub(super) id: u64,
    /// The id of the node that it is a copy of.
    original: Option<u64>,
    pub(super) handle: usize,
    pub(super) number: usize,
    pub(super) device: usize,
    /// Numbers of the nodes that it depends on.
    pub(super) after: Vec<usize>,
    /// Replaced as a whole; executable graphs keep the one of their instantiation.
    pub(super) task: Arc<Task>,
}

/// Values of `CUkernelNodeAttrValue` by `CUkernelNodeAttrID`.
pub(super) type NodeAttributes = BTreeMap<c_uint, [u64; 8]>;

/// The work of a node, and what queries of its parameters return.
pub(super) struct Task {
    pub(super) work: Work,
    pub(super) given: Given,
    /// The attributes of a kernel that were set.
    pub(super) attributes: NodeAttributes,
    /// The list of a kernel's parameters that a query returned.
    pub(super) shown: OnceLock<Box<[usize]>>,
}

/// The parameters that the host gave for a node, as far as its work does not tell them.
pub(super) enum Given {
    Nothing,
    Copy(Box<CUDA_MEMCPY3D>),
    Fill(CUDA_MEMSET_NODE_PARAMS),
    /// A kernel's parameters in one buffer.
    Buffer,
    /// The devices that have access to allocated memory.
    Access(Vec<CUmemAccessDesc>),
}

// SAFETY: the pointers in it are only copied.
unsafe impl Send for Given {}
// SAFETY: as above.
unsafe impl Sync for Given {}

impl Task {
    pub(super) fn new(work: Work, given: Given) -> Task {
        Task { work, given, attributes: BTreeMap::new(), shown: OnceLock::new() }
    }
}

impl From<Work> for Task {
    fn from(work: Work) -> Task {
        Task::new(work, Given::Nothing)
    }
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
    /// Waits for values and writes values.
    Values(Batch),
    /// Runs the nodes of another graph.
    Child(Arc<Graph>),
    /// Runs nodes of other graphs by a condition.
    Conditional(Arc<Conditional>),
}

/// A conditional node.
pub(super) struct Conditional {
    pub(super) condition: Arc<Condition>,
    pub(super) kind: BranchKind,
    pub(super) bodies: Box<[Arc<Graph>]>,
    /// The handles of the bodies, which the host may read as long as the node exists.
    pub(super) handles: Box<[usize]>,
}

impl Drop for Conditional {
    fn drop(&mut self) {
        self.condition.is_used.store(false, Ordering::Relaxed);
    }
}

impl Work {
    /// `CU_GRAPH_NODE_TYPE_...`.
    pub(super) fn kind(&self) -> c_int {
        match self {
            Work::Action(Action::Kernel(_)) => 0,
            Work::Action(Action::Copy(_)) => 1,
            Work::Action(Action::Fill(_)) => 2,
            Work::Action(Action::HostFunction(_)) => 3,
            Work::Child(_) => 4,
            Work::Action(
                Action::Nothing
                | Action::Record(_)
                | Action::Writes(_)
                | Action::Callback(_)
                | Action::Reset(_)
                | Action::Value(_),
            ) => 5,
            Work::Wait(_) => 6,
            Work::Record(_) => 7,
            Work::Allocate(_) => 10,
            Work::Free(_) => 11,
            Work::Values(_) => 12,
            Work::Conditional(_) | Work::Action(Action::Branch(_)) => 13,
        }
    }

    fn is_of_memory(&self) -> bool {
        match self {
            Work::Allocate(_) | Work::Free(_) => true,
            Work::Child(child) => child.has_memory(),
            _ => false,
        }
    }
}

impl Graphs {
    pub(super) fn new() -> Graphs {
        Graphs { graphs: Handles::new(8), nodes: Handles::new(9), last_id: 0 }
    }

    /// The graph of a node's handle, and the node.
    pub(super) fn node(graphs: &RwLock<Graphs>, handle: usize) -> Option<(Arc<Graph>, Arc<Node>)> {
        let place = read(graphs).nodes.get(handle).cloned()?;
        let graph = place.graph.upgrade()?;
        let node = lock(&graph.nodes).all.get(&place.number).map(Arc::clone)?;
        Some((graph, node))
    }

    /// An ID for a graph or an executable one.
    pub(super) fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    /// Number of graphs that no node owns.
    pub(super) fn len(&self) -> usize {
        self.graphs.iter().filter(|graph| !graph.is_owned.load(Ordering::Relaxed)).count()
    }
}

impl Graph {
    /// Creates a graph in a table.
    pub(super) fn insert(graphs: &RwLock<Graphs>) -> Arc<Graph> {
        Graph::insert_within(graphs, None)
    }

    /// Creates a graph that is the body of a conditional node of another one.
    pub(super) fn insert_body(&self, graphs: &RwLock<Graphs>) -> Arc<Graph> {
        Graph::insert_within(graphs, Some(self.root))
    }

    fn insert_within(graphs: &RwLock<Graphs>, root: Option<u32>) -> Arc<Graph> {
        let mut table = write(graphs);
        let id = table.next_id();
        let graph = Arc::new(Graph {
            id,
            handle: AtomicUsize::new(0),
            is_owned: AtomicBool::new(root.is_some()),
            root: root.unwrap_or(id),
            conditions: Mutex::default(),
            exec: AtomicU32::new(0),
            nodes: Mutex::default(),
            objects: Mutex::default(),
        });
        let handle = table.graphs.insert(Arc::clone(&graph));
        graph.handle.store(handle, Ordering::Relaxed);
        graph
    }

    pub(super) fn handle(&self) -> usize {
        self.handle.load(Ordering::Relaxed)
    }

    /// Adds a node and returns its number.
    pub(super) fn add(
        self: &Arc<Self>,
        graphs: &RwLock<Graphs>,
        device: usize,
        after: Vec<usize>,
        task: Task,
    ) -> usize {
        self.add_copy(graphs, (device, after, Arc::new(task)), None)
    }

    fn add_copy(
        self: &Arc<Self>,
        graphs: &RwLock<Graphs>,
        (device, mut after, task): (usize, Vec<usize>, Arc<Task>),
        original: Option<u64>,
    ) -> usize {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut nodes = lock(&self.nodes);
        // The host may have removed a node that a capture's next one depends on.
        after.retain(|before| nodes.all.contains_key(before));
        let number = nodes.next;
        nodes.next += 1;
        let place = Place { graph: Arc::downgrade(self), number };
        let handle = write(graphs).nodes.insert(place);
        let node = Node { id, original, handle, number, device, after, task };
        nodes.all.insert(number, Arc::new(node));
        number
    }

    /// The nodes in the order in which they were added.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.nodes).all.values().cloned().collect()
    }

    /// The nodes in an order in which each follows its dependencies; `pick` takes one of those that
    /// may come next, by number. The error is a node of a cycle.
    pub(super) fn sorted(
        &self,
        pick: fn(&mut BTreeSet<usize>) -> Option<usize>,
    ) -> Result<Vec<Arc<Node>>, Arc<Node>> {
        let nodes = lock(&self.nodes).all.clone();
        let mut dependents: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for node in nodes.values() {
            for before in &node.after {
                dependents.entry(*before).or_default().push(node.number);
            }
        }
        let mut missing: BTreeMap<usize, usize> =
            nodes.values().map(|node| (node.number, node.after.len())).collect();
        let mut ready: BTreeSet<usize> =
            missing.iter().filter(|(_, count)| **count == 0).map(|(number, _)| *number).collect();
        let mut sorted = Vec::with_capacity(nodes.len());
        while let Some(number) = pick(&mut ready) {
            missing.remove(&number);
            sorted.extend(nodes.get(&number).cloned());
            for dependent in dependents.get(&number).into_iter().flatten() {
                let Some(count) = missing.get_mut(dependent) else { continue };
                *count -= 1;
                if *count == 0 {
                    ready.insert(*dependent);
                }
            }
        }
        match missing.first_key_value().and_then(|(number, _)| nodes.get(number)) {
            Some(node) => Err(Arc::clone(node)),
            None => Ok(sorted),
        }
    }

    /// The handles of nodes.
    pub(super) fn handles(&self, numbers: &[usize]) -> Vec<usize> {
        let nodes = lock(&self.nodes);
        numbers.iter().filter_map(|number| nodes.all.get(number)).map(|node| node.handle).collect()
    }

    /// The numbers of nodes; `None` if the graph does not have one.
    pub(super) fn numbers(&self, handles: &[usize]) -> Option<Vec<usize>> {
        let nodes = lock(&self.nodes);
        let number = |handle: &usize| {
            nodes.all.values().find(|node| node.handle == *handle).map(|node| node.number)
        };
        handles.iter().map(number).collect()
    }

    /// The numbers of some nodes and of all their ancestors.
    pub(super) fn ancestors(&self, ends: &[usize]) -> BTreeSet<usize> {
        let nodes = lock(&self.nodes);
        let (mut found, mut rest) = (BTreeSet::new(), ends.to_vec());
        while let Some(number) = rest.pop() {
            if found.insert(number) {
                rest.extend(nodes.all.get(&number).into_iter().flat_map(|node| &node.after));
            }
        }
        found
    }

    /// Replaces what a node does.
    pub(super) fn replace(
        &self,
        graphs: &RwLock<Graphs>,
        number: usize,
        device: usize,
        task: Task,
    ) -> Result<(), i32> {
        let mut nodes = lock(&self.nodes);
        let node = nodes.all.get_mut(&number).ok_or(code::INVALID_VALUE)?;
        let new = Node { device, task: Arc::new(task), ..Node::clone(node) };
        let old = std::mem::replace(node, Arc::new(new));
        drop(nodes);
        old.destroy_child(graphs);
        Ok(())
    }

    /// Adds dependencies, pairs of numbers, or removes them: all or none. Existing ones cannot be
    /// added, and others cannot be removed.
    pub(super) fn edit(&self, edges: &[(usize, usize)], adds: bool) -> Result<(), i32> {
        let mut nodes = lock(&self.nodes);
        let mut edited = nodes.clone();
        for (from, to) in edges {
            let node = edited.all.get_mut(to).ok_or(code::INVALID_VALUE)?;
            let node = Arc::make_mut(node);
            match node.after.iter().position(|before| before == from) {
                None if adds => node.after.push(*from),
                Some(found) if !adds => drop(node.after.remove(found)),
                _ => return Err(code::INVALID_VALUE),
            }
        }
        *nodes = edited;
        Ok(())
    }

    /// Removes a node and its dependencies.
    pub(super) fn remove(&self, graphs: &RwLock<Graphs>, number: usize) -> Result<(), i32> {
        let mut nodes = lock(&self.nodes);
        let removed = nodes.all.remove(&number).ok_or(code::INVALID_VALUE)?;
        for node in nodes.all.values_mut().filter(|node| node.after.contains(&number)) {
            Arc::make_mut(node).after.retain(|before| *before != number);
        }
        write(graphs).nodes.remove(removed.handle);
        drop(nodes);
        removed.destroy_child(graphs);
        Ok(())
    }

    /// The node that is the copy of another one, in a clone of that one's graph.
    pub(super) fn copy_of(&self, node: &Node) -> Option<usize> {
        let nodes = lock(&self.nodes);
        let found = nodes.all.values().find(|copy| copy.original == Some(node.id))?;
        Some(found.handle)
    }

    /// A copy of the graph and of its child graphs, with the same user objects.
    pub(super) fn duplicate(&self, graphs: &RwLock<Graphs>, is_owned: bool) -> Arc<Graph> {
        let copy = Graph::insert(graphs);
        copy.is_owned.store(is_owned, Ordering::Relaxed);
        *lock(&copy.objects) = lock(&self.objects).clone();
        let mut numbers = BTreeMap::new();
        let nodes = lock(&self.nodes).clone();
        for node in nodes.all.values() {
            let task = match &node.task.work {
                Work::Child(child) => Arc::new(Work::Child(child.duplicate(graphs, true)).into()),
                _ => Arc::clone(&node.task),
            };
            let number = copy.add_copy(graphs, (node.device, Vec::new(), task), Some(node.id));
            numbers.insert(node.number, number);
        }
        let mut copied = lock(&copy.nodes);
        for node in nodes.all.values() {
            let after = node.after.iter().filter_map(|before| numbers.get(before)).copied();
            if let Some(copy) = numbers.get(&node.number).and_then(|at| copied.all.get_mut(at)) {
                Arc::make_mut(copy).after = after.collect();
            }
        }
        drop(copied);
        copy
    }

    /// True if it or a child graph has nodes that allocate or free memory.
    pub(super) fn has_memory(&self) -> bool {
        self.nodes().iter().any(|node| node.task.work.is_of_memory())
    }

    /// True if it is a body of a conditional node, or has such nodes.
    pub(super) fn is_conditional(&self) -> bool {
        let is_it = |node: &Arc<Node>| match &node.task.work {
            Work::Conditional(_) => true,
            Work::Child(child) => child.is_conditional(),
            _ => false,
        };
        self.root != self.id || self.nodes().iter().any(is_it)
    }

    /// True if a node frees this memory.
    pub(super) fn frees(&self, block: &Arc<Block>) -> bool {
        self.nodes().iter().any(|node| match &node.task.work {
            Work::Free(freed) => Arc::ptr_eq(freed, block),
            _ => false,
        })
    }

    /// True if a graph is this one or one of its child graphs.
    pub(super) fn contains(&self, graph: &Graph) -> bool {
        std::ptr::eq(self, graph)
            || self.nodes().iter().any(|node| match &node.task.work {
                Work::Child(child) => child.contains(graph),
                _ => false,
            })
    }

    /// Removes the graph, its nodes and its child graphs from the tables.
    pub(super) fn destroy(&self, graphs: &RwLock<Graphs>) {
        let nodes = std::mem::take(&mut lock(&self.nodes).all);
        let objects = std::mem::take(&mut *lock(&self.objects));
        let conditions = std::mem::take(&mut *lock(&self.conditions));
        let mut tables = write(graphs);
        for node in nodes.values() {
            tables.nodes.remove(node.handle);
        }
        let graph = tables.graphs.remove(self.handle());
        drop(tables);
        nodes.values().for_each(|node| node.destroy_child(graphs));
        // The last reference may free memory, so it is dropped without a lock.
        drop((graph, nodes, objects, conditions));
    }
}

impl Node {
    /// Destroys the child graph that it owns.
    fn destroy_child(&self, graphs: &RwLock<Graphs>) {
        match &self.task.work {
            Work::Child(child) => child.destroy(graphs),
            Work::Conditional(node) => node.bodies.iter().for_each(|body| body.destroy(graphs)),
            _ => (),
        }
    }
}
