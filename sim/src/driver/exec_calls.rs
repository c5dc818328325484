//! The calls that instantiate, launch and destroy executable graphs. A launch queues the operations
//! of the graph: one chain on the stream itself, concurrent chains on streams that belong to the
//! graph. So every schedule orders them like other work, and no more strictly than the graph's
//! dependencies.

use super::arguments::{put, require};
use super::copy::Fill;
use super::entry::entry;
use super::exec::Exec;
use super::fill_calls;
use super::graph::{Node, Work};
use super::machine::Machine;
use super::physical::POISONED_BYTES;
use super::queue::{Action, Kind, Point, Stream};
use super::sync::{lock, write};
use crate::base::code;
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstream};
use std::ffi::{c_int, c_ulonglong};
use std::ptr;
use std::sync::Arc;

/// All flags of `cuGraphInstantiateWithFlags`: free at launch, upload, device launch, node
/// priority.
const FLAGS: c_ulonglong = 0xf;

/// Queues the operations of a graph.
fn queue_all(machine: &Machine, exec: &Exec, stream: &Arc<Stream>) -> Result<(), i32> {
    let mut launched = lock(&exec.launched);
    let nodes = exec.nodes();
    require(can_copy(&nodes), code::INVALID_VALUE)?;
    exec.take_memory(&machine.graph_memory, &nodes)?;
    let before = launched.last.iter().filter(|last| !last.is_reached()).cloned().collect();
    let start = machine.submit(stream, before, Action::Nothing)?;
    let mut chains: Vec<Option<Arc<Stream>>> = vec![None; exec.chains.len()];
    let mut points: Vec<Point> = Vec::with_capacity(nodes.len());
    for (node, chain) in nodes.iter().zip(&exec.chain_of) {
        let mut waits: Vec<Point> = Vec::new();
        let chain = match &mut chains[*chain] {
            Some(chain) => chain,
            empty => {
                waits.push(start.clone());
                let own = *chain > 0 || exec.chains[*chain] != stream.device;
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
        machine.submit(stream, tails, Action::Nothing)?;
    }
    launched.last = Some(stream.tail());
    Ok(())
}

fn own_stream<'a>(
    machine: &Machine,
    made: &'a mut Option<Arc<Stream>>,
    device: usize,
) -> &'a Arc<Stream> {
    made.get_or_insert_with(|| {
        let stream = Stream::new(device, Kind::NonBlocking, 0);
        machine.hardware.context_of(&stream).add_stream(&stream);
        stream
    })
}

/// Queues the work of a node.
fn queue(
    machine: &Machine,
    stream: &Arc<Stream>,
    mut waits: Vec<Point>,
    work: &Work,
) -> Result<Point, i32> {
    let action = match work {
        Work::Action(action) => action.for_next_launch(),
        Work::Record(event) => return machine.record(event, stream, waits),
        Work::Wait(event) => {
            waits.extend(event.point().filter(|point| !point.is_reached()));
            Action::Nothing
        }
        Work::Allocate(_) => Action::Nothing,
        // If the schedule poisons memory, freed memory is overwritten.
        Work::Free(block) => match machine.schedule.poison() {
            0 => Action::Nothing,
            poison => {
                let (address, count) = (block.address, block.bytes.min(POISONED_BYTES));
                Action::Fill(Fill::row(address, poison.into(), 1, count))
            }
        },
    };
    machine.submit(stream, waits, action)
}

/// Checks that the memory which the nodes fill is mapped.
pub(super) fn can_run(machine: &Machine, nodes: &[Arc<Node>]) -> Result<(), i32> {
    nodes.iter().try_for_each(|node| match &node.work {
        Work::Action(Action::Fill(fill)) => fill_calls::is_fillable(machine, node.device, fill),
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

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        machine.captures.refuse_unsafe()?;
        require(!exec.is_null() && flags & !FLAGS == 0, code::INVALID_VALUE)?;
        let nodes = machine.graph(graph)?.nodes();
        can_run(machine, &nodes)?;
        let made = Arc::new(Exec::new(nodes, flags));
        let handle = write(&machine.execs.table).insert(made);
        put!(exec, ptr::without_provenance_mut(handle))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> c_int {
    entry(|machine| {
        let found = machine.exec(exec)?;
        let stream = machine.stream(stream)?;
        // A launch cannot be captured in another graph (580.159).
        machine.captures.refuse(&stream)?;
        queue_all(machine, &found, &stream)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecDestroy(exec: CUgraphExec) -> c_int {
    entry(|machine| {
        machine.captures.refuse_unsafe()?;
        let removed = write(&machine.execs.table).remove(exec.addr());
        machine.execs.retire(vec![removed.ok_or(code::INVALID_VALUE)?]);
        Ok(())
    })
}
