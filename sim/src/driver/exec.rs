//! Executable graphs: the chains of their operations, the streams that run these, and the memory
//! that a launch allocates.

use super::arguments::require;
use super::graph::{Conditional, Graph, Node, Task, Work};
use super::graph_memory::{Block, GraphMemory};
use super::handles::Handles;
use super::queue::{Action, Branch, Point, Stream};
use super::sync::{lock, read, write};
use super::user_object::UserObject;
use crate::base::code;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_ulonglong;
use std::sync::{Arc, Mutex, RwLock};

/// Flag of `cuGraphInstantiateWithFlags`: the memory of the last launch is freed at the next.
pub(super) const FREE_AT_LAUNCH: c_ulonglong = 1;

/// All executable graphs.
pub(super) struct Execs {
    pub(super) table: RwLock<Handles<Arc<Exec>>>,
    /// Destroyed ones with a launch that has not finished.
    retired: Mutex<Vec<Arc<Exec>>>,
}

impl Execs {
    pub(super) fn new() -> Execs {
        Execs { table: RwLock::new(Handles::new(10)), retired: Mutex::default() }
    }

    /// Removes those with work for a device whose context is destroyed.
    pub(super) fn forget_device(&self, device: usize) {
        let removed = write(&self.table).extract(|exec| !exec.chains.contains(&device));
        self.retire(removed);
    }

    /// Keeps removed executable graphs until their last launches have finished.
    pub(super) fn retire(&self, removed: Vec<Arc<Exec>>) {
        removed.iter().for_each(|exec| exec.close());
        lock(&self.retired).extend(removed);
        self.drop_finished();
    }

    /// Drops destroyed executable graphs without unfinished work, and their memory.
    pub(super) fn drop_finished(&self) {
        let over: Vec<Arc<Exec>> =
            lock(&self.retired).extract_if(.., |exec| exec.is_over()).collect();
        drop(over);
    }

    /// True unless the one with this ID was destroyed.
    pub(super) fn has(&self, id: u32) -> bool {
        read(&self.table).handle_of(|exec| exec.id == id).is_some()
    }

    /// True if a destroyed one may have unfinished work.
    pub(super) fn are_retired(&self) -> bool {
        !lock(&self.retired).is_empty()
    }
}

/// An executable graph.
pub(super) struct Exec {
    pub(super) id: u32,
    pub(super) flags: c_ulonglong,
    /// Changed by updates; the order stays the same.
    steps: RwLock<Arc<Vec<Step>>>,
    /// The user objects of its graph.
    _objects: Vec<Arc<UserObject>>,
    /// For each step: the chain in which it runs.
    pub(super) chain_of: Vec<usize>,
    /// For each chain: its device. The first chain runs on the stream of the launch if that has the
    /// same device.
    pub(super) chains: Vec<usize>,
    pub(super) launched: Mutex<Launched>,
}

/// The streams and the end of earlier launches.
#[derive(Default)]
pub(super) struct Launched {
    /// For each chain: the stream created for it.
    pub(super) streams: Vec<Option<Arc<Stream>>>,
    /// The end of the last launch: launches of one graph do not run concurrently.
    pub(super) last: Option<Point>,
}

/// A node of an executable graph. Nodes of child graphs precede the node that contains them.
#[derive(Clone)]
pub(super) struct Step {
    /// The id of its node in the graph.
    pub(super) id: u64,
    pub(super) handle: usize,
    pub(super) device: usize,
    /// Places of the steps that it depends on.
    pub(super) after: Vec<usize>,
    pub(super) task: Arc<Task>,
    /// Number of steps before this one that belong to its child graph.
    pub(super) inner: usize,
    /// False if it does nothing until it is enabled again.
    pub(super) is_enabled: bool,
}

impl Step {
    /// The steps of a graph. The error is a node of a cycle, or a conditional node with a body that
    /// cannot run.
    pub(super) fn all(graph: &Graph) -> Result<Vec<Step>, Arc<Node>> {
        let mut steps: Vec<Step> = Vec::new();
        let mut places: BTreeMap<usize, usize> = BTreeMap::new();
        for node in graph.sorted(BTreeSet::pop_first)? {
            let place_of = |number: &usize| places.get(number).copied();
            let mut after: Vec<usize> = node.after.iter().filter_map(place_of).collect();
            let mut inner = 0;
            if let Work::Child(child) = &node.task.work {
                let child = Step::all(child)?;
                inner = child.len();
                after = append(&mut steps, child, after);
            }
            places.insert(node.number, steps.len());
            let (id, handle, device) = (node.id, node.handle, node.device);
            let task = match &node.task.work {
                Work::Conditional(conditional) => {
                    let branch = branch_of(conditional).ok_or_else(|| Arc::clone(&node))?;
                    Arc::new(Work::Action(Action::Branch(Arc::new(branch))).into())
                }
                _ => Arc::clone(&node.task),
            };
            steps.push(Step { id, handle, device, after, task, inner, is_enabled: true });
        }
        Ok(steps)
    }

    /// What it does at a launch.
    pub(super) fn work(&self) -> &Work {
        const NOTHING: &Work = &Work::Action(Action::Nothing);
        if self.is_enabled { &self.task.work } else { NOTHING }
    }
}

/// A conditional node as it runs; `None` if a body has work that bodies cannot have, or a cycle.
fn branch_of(node: &Conditional) -> Option<Branch> {
    let bodies = node.bodies.iter().map(|body| actions(body)).collect::<Option<_>>()?;
    Some(Branch { condition: Arc::clone(&node.condition), kind: node.kind, bodies })
}

/// The work of a body: of nodes without an order, the last one first, so that a dependency which
/// is missing shows.
fn actions(graph: &Graph) -> Option<Vec<Action>> {
    let mut actions = Vec::new();
    for node in graph.sorted(BTreeSet::pop_last).ok()? {
        match &node.task.work {
            Work::Action(
                action @ (Action::Nothing
                | Action::Kernel(_)
                | Action::Copy(_)
                | Action::Fill(_)
                | Action::Branch(_)),
            ) => actions.push(action.for_next_launch()),
            Work::Child(child) => actions.extend(self::actions(child)?),
            Work::Conditional(inner) => actions.push(Action::Branch(Arc::new(branch_of(inner)?))),
            _ => return None,
        }
    }
    Some(actions)
}

/// Appends the steps of a child graph that come after others. Returns the places of the last ones.
fn append(steps: &mut Vec<Step>, child: Vec<Step>, after: Vec<usize>) -> Vec<usize> {
    let first = steps.len();
    let mut ends: BTreeSet<usize> = (first..first + child.len()).collect();
    for mut step in child {
        step.after.iter_mut().for_each(|before| *before += first);
        for before in &step.after {
            ends.remove(before);
        }
        if step.after.is_empty() {
            step.after.clone_from(&after);
        }
        steps.push(step);
    }
    if ends.is_empty() { after } else { ends.into_iter().collect() }
}

impl Exec {
    pub(super) fn new(
        id: u32,
        steps: Vec<Step>,
        flags: c_ulonglong,
        objects: Vec<Arc<UserObject>>,
    ) -> Exec {
        let (mut chain_of, mut chains, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (number, step) in steps.iter().enumerate() {
            // A step extends a chain whose last step it depends on, or begins a chain.
            let goes_on =
                step.after.iter().map(|before| chain_of[*before]).find(|chain: &usize| {
                    step.after.contains(&ends[*chain]) && chains[*chain] == step.device
                });
            let chain = goes_on.unwrap_or(chains.len());
            if chain == chains.len() {
                chains.push(step.device);
                ends.push(number);
            }
            ends[chain] = number;
            chain_of.push(chain);
        }
        let streams = vec![None; chains.len()];
        let launched = Mutex::new(Launched { streams, last: None });
        let steps = RwLock::new(Arc::new(steps));
        Exec { id, flags, steps, _objects: objects, chain_of, chains, launched }
    }

    /// The operations of the next launch.
    pub(super) fn steps(&self) -> Arc<Vec<Step>> {
        Arc::clone(&read(&self.steps))
    }

    /// Changes the operations of later launches.
    pub(super) fn edit<T>(&self, body: impl FnOnce(&mut [Step]) -> T) -> T {
        let mut steps = write(&self.steps);
        // Kept, since the last reference to a task may free memory, which needs no lock here.
        let before = Arc::clone(&steps);
        let all: &mut Vec<Step> = Arc::make_mut(&mut steps);
        let outcome = body(all);
        drop(steps);
        drop(before);
        outcome
    }

    /// Allocates the graph's memory. Fails if an earlier launch allocated it and it was not freed.
    pub(super) fn take_memory(&self, memory: &GraphMemory, steps: &[Step]) -> Result<(), i32> {
        if self.flags & FREE_AT_LAUNCH != 0 {
            free_blocks(memory, steps, false);
        }
        let taken = blocks(steps, false).any(|block| block.is_live());
        require(!taken, code::INVALID_VALUE)?;
        let known = blocks(steps, true).all(|block| {
            block.is_live() || blocks(steps, false).any(|own| Arc::ptr_eq(own, block))
        });
        require(known, code::INVALID_VALUE)?;
        blocks(steps, false).for_each(|block| block.take(memory));
        free_blocks(memory, steps, true);
        Ok(())
    }

    /// Destroys its streams; they end after their queued work.
    fn close(&self) {
        lock(&self.launched).streams.iter().flatten().for_each(|stream| stream.destroy());
    }

    fn is_over(&self) -> bool {
        lock(&self.launched).last.as_ref().is_none_or(Point::is_reached)
    }
}

/// The blocks that operations allocate, or with `frees`, free.
fn blocks(steps: &[Step], frees: bool) -> impl Iterator<Item = &Arc<Block>> {
    steps.iter().filter_map(move |step| match &step.task.work {
        Work::Allocate(block) if !frees => Some(block),
        Work::Free(block) if frees => Some(block),
        _ => None,
    })
}

/// Frees those blocks that are allocated.
fn free_blocks(memory: &GraphMemory, steps: &[Step], frees: bool) {
    for block in blocks(steps, frees) {
        let _ = block.free(memory);
    }
}
