//! Executable graphs. A launch queues the operations of the graph: one chain on the stream itself,
//! concurrent chains on streams that belong to the graph. So every schedule orders them like other
//! work, and no more strictly than the graph's dependencies.

use super::arguments::{put, require};
use super::copy::Fill;
use super::graph::{self, Node, Work};
use super::graph_memory::Block;
use super::physical::POISONED_BYTES;
use super::queue::{Action, Kind, Point, Stream};
use super::sync::{lock, read, write};
use super::{Machine, capture, entry, schedule, stream, transfer};
use crate::driver::code;
use crate::driver::sys::{CUgraph, CUgraphExec, CUstream};
use std::ffi::{c_int, c_ulonglong};
use std::ptr;
use std::sync::{Arc, Mutex, RwLock};

/// Flags of `cuGraphInstantiateWithFlags`: free at launch; all four are free at launch, upload,
/// device launch, node priority.
const FREE_AT_LAUNCH: c_ulonglong = 1;
const FLAGS: c_ulonglong = 0xf;

/// An executable graph.
pub(super) struct Exec {
    flags: c_ulonglong,
    /// Replaced by an update; the order stays the same.
    nodes: RwLock<Vec<Arc<Node>>>,
    /// For each node: the chain in which it runs.
    chain_of: Vec<usize>,
    /// For each chain: its device. The first chain runs on the stream of the launch if that has the
    /// same device.
    chains: Vec<usize>,
    launched: Mutex<Launched>,
}

/// The streams and the end of earlier launches.
#[derive(Default)]
struct Launched {
    /// For each chain: the stream created for it.
    streams: Vec<Option<Arc<Stream>>>,
    /// The end of the last launch: launches of one graph do not run concurrently.
    last: Option<Point>,
}

impl Exec {
    fn new(nodes: Vec<Arc<Node>>, flags: c_ulonglong) -> Exec {
        let (mut chain_of, mut chains, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (number, node) in nodes.iter().enumerate() {
            // A node extends a chain whose last node it depends on, or begins a chain.
            let goes_on =
                node.after.iter().map(|before| chain_of[*before]).find(|chain: &usize| {
                    node.after.contains(&ends[*chain]) && chains[*chain] == node.device
                });
            let chain = goes_on.unwrap_or(chains.len());
            if chain == chains.len() {
                chains.push(node.device);
                ends.push(number);
            }
            ends[chain] = number;
            chain_of.push(chain);
        }
        let streams = vec![None; chains.len()];
        let launched = Mutex::new(Launched { streams, last: None });
        Exec { flags, nodes: RwLock::new(nodes), chain_of, chains, launched }
    }

    /// The operations of the next launch.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        read(&self.nodes).clone()
    }

    /// Replaces the operations of later launches.
    pub(super) fn replace(&self, nodes: Vec<Arc<Node>>) {
        let before = std::mem::replace(&mut *write(&self.nodes), nodes);
        drop(before);
    }

    /// Allocates the graph's memory. Fails if an earlier launch allocated it and it was not freed.
    fn take_memory(&self, machine: &Machine, nodes: &[Arc<Node>]) -> Result<(), i32> {
        if self.flags & FREE_AT_LAUNCH != 0 {
            free_blocks(machine, nodes, false);
        }
        let taken = blocks(nodes, false).any(|block| block.is_live());
        require(!taken, code::INVALID_VALUE)?;
        let known = blocks(nodes, true).all(|block| {
            block.is_live() || blocks(nodes, false).any(|own| Arc::ptr_eq(own, block))
        });
        require(known, code::INVALID_VALUE)?;
        blocks(nodes, false).for_each(|block| block.take(machine));
        free_blocks(machine, nodes, true);
        Ok(())
    }

    fn launch(&self, machine: &Arc<Machine>, stream: &Arc<Stream>) -> Result<(), i32> {
        let mut launched = lock(&self.launched);
        let nodes = self.nodes();
        require(can_copy(&nodes), code::INVALID_VALUE)?;
        self.take_memory(machine, &nodes)?;
        let before = launched.last.iter().filter(|last| !last.is_reached()).cloned().collect();
        let start = schedule::submit(machine, stream, before, Action::Nothing)?;
        let mut chains: Vec<Option<Arc<Stream>>> = vec![None; self.chains.len()];
        let mut points: Vec<Point> = Vec::with_capacity(nodes.len());
        for (node, chain) in nodes.iter().zip(&self.chain_of) {
            let mut waits: Vec<Point> = Vec::new();
            let chain = match &mut chains[*chain] {
                Some(chain) => chain,
                empty => {
                    waits.push(start.clone());
                    let own = *chain > 0 || self.chains[*chain] != stream.device;
                    let made = &mut launched.streams[*chain];
                    let chain = if own { own_stream(machine, made, node.device) } else { stream };
                    empty.insert(Arc::clone(chain))
                }
            };
            let elsewhere = |point: &&Point| !Arc::ptr_eq(&point.stream, chain);
            waits.retain(|point| elsewhere(&point));
            waits.extend(node.after.iter().map(|n| &points[*n]).filter(elsewhere).cloned());
            points.push(queue(machine, chain, waits, &node.work)?);
        }
        let tails: Vec<Point> = chains
            .iter()
            .flatten()
            .filter(|chain| !Arc::ptr_eq(chain, stream))
            .map(Stream::tail)
            .collect();
        if !tails.is_empty() {
            schedule::submit(machine, stream, tails, Action::Nothing)?;
        }
        launched.last = Some(stream.tail());
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
fn blocks(nodes: &[Arc<Node>], frees: bool) -> impl Iterator<Item = &Arc<Block>> {
    nodes.iter().filter_map(move |node| match &node.work {
        Work::Allocate(block) if !frees => Some(block),
        Work::Free(block) if frees => Some(block),
        _ => None,
    })
}

/// Frees those blocks that are allocated.
fn free_blocks(machine: &Machine, nodes: &[Arc<Node>], frees: bool) {
    for block in blocks(nodes, frees) {
        let _ = block.free(machine);
    }
}

fn own_stream<'a>(
    machine: &Machine,
    made: &'a mut Option<Arc<Stream>>,
    device: usize,
) -> &'a Arc<Stream> {
    made.get_or_insert_with(|| {
        let stream = Stream::new(device, Kind::NonBlocking, 0);
        machine.context_of(&stream).add_stream(&stream);
        stream
    })
}

/// Queues the work of a node.
fn queue(
    machine: &Arc<Machine>,
    stream: &Arc<Stream>,
    mut waits: Vec<Point>,
    work: &Work,
) -> Result<Point, i32> {
    let action = match work {
        Work::Action(action) => action.for_next_launch(),
        Work::Record(event) => return event.record_at(machine, stream, waits),
        Work::Wait(event) => {
            waits.extend(event.point().filter(|point| !point.is_reached()));
            Action::Nothing
        }
        Work::Allocate(_) => Action::Nothing,
        // If the schedule poisons memory, freed memory is overwritten.
        Work::Free(block) => match machine.adversary.poison() {
            0 => Action::Nothing,
            poison => {
                let (address, count) = (block.address, block.bytes.min(POISONED_BYTES));
                Action::Fill(Fill { address, value: poison.into(), width: 1, count })
            }
        },
    };
    schedule::submit(machine, stream, waits, action)
}

/// Checks that the memory which the nodes fill is mapped.
pub(super) fn can_run(machine: &Machine, nodes: &[Arc<Node>]) -> Result<(), i32> {
    nodes.iter().try_for_each(|node| match &node.work {
        Work::Action(Action::Fill(fill)) => transfer::is_fillable(machine, node.device, fill),
        _ => Ok(()),
    })
}

/// True if the host memory that the nodes copy is mapped.
fn can_copy(nodes: &[Arc<Node>]) -> bool {
    nodes.iter().all(|node| match &node.work {
        Work::Action(Action::Copy(copy)) => {
            [&copy.source, &copy.target].into_iter().all(|side| copy.is_mapped_in_host(side))
        }
        _ => true,
    })
}

pub(super) fn get(machine: &Machine, exec: CUgraphExec) -> Result<Arc<Exec>, i32> {
    read(&machine.graphs).execs.get(exec.addr()).map(Arc::clone).ok_or(code::INVALID_VALUE)
}

pub(super) unsafe extern "C" fn instantiate(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        capture::refuse_unsafe(machine)?;
        require(!exec.is_null() && flags & !FLAGS == 0, code::INVALID_VALUE)?;
        let nodes = graph::get(machine, graph)?.nodes();
        can_run(machine, &nodes)?;
        let made = Arc::new(Exec::new(nodes, flags));
        let handle = write(&machine.graphs).execs.insert(made);
        put!(exec, ptr::without_provenance_mut(handle))
    })
}

pub(super) unsafe extern "C" fn launch(exec: CUgraphExec, stream: CUstream) -> c_int {
    entry(|machine| {
        let found = get(machine, exec)?;
        let stream = stream::get(machine, stream)?;
        // A launch cannot be captured in another graph (580.159).
        capture::refuse(machine, &stream)?;
        found.launch(machine, &stream)
    })
}

pub(super) unsafe extern "C" fn destroy(exec: CUgraphExec) -> c_int {
    entry(|machine| {
        capture::refuse_unsafe(machine)?;
        let removed = write(&machine.graphs).execs.remove(exec.addr());
        retire(machine, vec![removed.ok_or(code::INVALID_VALUE)?]);
        Ok(())
    })
}

/// Removes executable graphs with work for a device whose context is destroyed.
pub(super) fn forget_device(machine: &Machine, device: usize) {
    let removed = write(&machine.graphs).execs.extract(|exec| !exec.chains.contains(&device));
    retire(machine, removed);
}

/// Keeps removed executable graphs until their last launches have finished.
fn retire(machine: &Machine, removed: Vec<Arc<Exec>>) {
    removed.iter().for_each(|exec| exec.close());
    lock(&machine.retired_execs).extend(removed);
    drop_finished(machine);
}

/// Drops destroyed executable graphs without unfinished work, and their memory.
pub(super) fn drop_finished(machine: &Machine) {
    let over: Vec<Arc<Exec>> =
        lock(&machine.retired_execs).extract_if(.., |exec| exec.is_over()).collect();
    drop(over);
}
