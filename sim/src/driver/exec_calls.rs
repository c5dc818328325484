//! The calls that instantiate, launch and destroy executable graphs. A launch queues the operations
//! of the graph: one chain on the stream itself, concurrent chains on streams that belong to the
//! graph. So every schedule orders them like other work, and no more strictly than the graph's
//! dependencies.

use super::arguments::{peek, put, require};
use super::copy::Fill;
use super::entry::entry;
use super::exec::{Exec, FREE_AT_LAUNCH, Step};
use super::fill_calls;
use super::graph::{Node, Work};
use super::machine::Machine;
use super::physical::POISONED_BYTES;
use super::queue::{Action, Branch, Kind, Point, Stream};
use super::sync::{lock, write};
use crate::base::code;
use cudarc::driver::sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphExec, CUgraphInstantiateResult, CUstream,
    cuuint64_t,
};
use std::ffi::{c_int, c_ulonglong};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`.
const USE_NODE_PRIORITY: cuuint64_t = 8;

/// All flags of `cuGraphInstantiateWithFlags`: free at launch, upload, device launch, node
/// priority.
const FLAGS: c_ulonglong = 0xf;
const UPLOAD: c_ulonglong = 2;
const DEVICE: c_ulonglong = 4;

/// Queues the operations of a graph.
fn queue_all(machine: &Machine, exec: &Exec, stream: &Arc<Stream>) -> Result<(), i32> {
    let mut launched = lock(&exec.launched);
    let steps = exec.steps();
    require(can_copy(&steps), code::INVALID_VALUE)?;
    exec.take_memory(&machine.graph_memory, &steps)?;
    let before = launched.last.iter().filter(|last| !last.is_reached()).cloned().collect();
    let branches: Vec<_> = steps.iter().filter_map(|step| branch_of(&step.task.work)).collect();
    let first = if branches.is_empty() { Action::Nothing } else { Action::Reset(branches) };
    let start = machine.submit(stream, before, first)?;
    let mut chains: Vec<Option<Arc<Stream>>> = vec![None; exec.chains.len()];
    let mut points: Vec<Point> = Vec::with_capacity(steps.len());
    for (step, chain) in steps.iter().zip(&exec.chain_of) {
        let mut waits: Vec<Point> = Vec::new();
        let chain = match &mut chains[*chain] {
            Some(chain) => chain,
            empty => {
                waits.push(start.clone());
                let own = *chain > 0 || exec.chains[*chain] != stream.device;
                let made = &mut launched.streams[*chain];
                let chain = if own { own_stream(machine, made, step.device) } else { stream };
                empty.insert(Arc::clone(chain))
            }
        };
        let elsewhere = |point: &&Point| !Arc::ptr_eq(&point.stream, chain);
        waits.retain(|point| elsewhere(&point));
        waits.extend(step.after.iter().map(|n| &points[*n]).filter(elsewhere).cloned());
        points.push(queue(machine, chain, waits, step.work())?);
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

fn branch_of(work: &Work) -> Option<Arc<Branch>> {
    match work {
        Work::Action(Action::Branch(branch)) => Some(Arc::clone(branch)),
        _ => None,
    }
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
        Work::Allocate(_) | Work::Child(_) | Work::Conditional(_) => Action::Nothing,
        Work::Values(batch) => match batch.operations.split_last() {
            Some((last, others)) => {
                for value in others {
                    let waits = std::mem::take(&mut waits);
                    machine.submit(stream, waits, Action::Value(*value))?;
                }
                Action::Value(*last)
            }
            None => Action::Nothing,
        },
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
pub(super) fn can_run(machine: &Machine, steps: &[Step]) -> Result<(), i32> {
    steps.iter().try_for_each(|step| match &step.task.work {
        Work::Action(Action::Fill(fill)) => fill_calls::is_fillable(machine, step.device, fill),
        _ => Ok(()),
    })
}

/// True if the host memory that the steps copy is mapped.
fn can_copy(steps: &[Step]) -> bool {
    steps.iter().all(|step| match step.work() {
        Work::Action(Action::Copy(copy)) => {
            [&copy.source, &copy.target].into_iter().all(|side| copy.is_mapped_in_host(side))
        }
        _ => true,
    })
}

/// Why a graph cannot be made executable: a status, with the node that is to blame.
struct Failure {
    code: i32,
    node: Option<Arc<Node>>,
}

impl From<i32> for Failure {
    fn from(code: i32) -> Failure {
        Failure { code, node: None }
    }
}

/// Creates an executable graph.
fn instantiate(
    machine: &Machine,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> Result<(), Failure> {
    machine.current()?;
    machine.captures.refuse_unsafe()?;
    require(!exec.is_null() && flags & !FLAGS == 0, code::INVALID_VALUE)?;
    require(flags & DEVICE == 0 || flags & FREE_AT_LAUNCH == 0, code::INVALID_VALUE)?;
    let graph = machine.graph(graph)?;
    if graph.is_conditional() {
        // Bodies cannot be instantiated, and other graphs once at a time (580.159).
        let is_body = graph.root != graph.id;
        let is_made = machine.execs.has(graph.exec.load(Ordering::Relaxed));
        require(!is_body && !is_made, code::NOT_SUPPORTED)?;
    }
    require(!graph.is_owned.load(Ordering::Relaxed), code::INVALID_VALUE)?;
    let steps = Step::all(&graph)
        .map_err(|node| Failure { code: code::INVALID_VALUE, node: Some(node) })?;
    can_run(machine, &steps)?;
    let objects = lock(&graph.objects).objects();
    let id = write(&machine.graphs).next_id();
    let made = Arc::new(Exec::new(id, steps, flags & !UPLOAD, objects));
    graph.exec.store(id, Ordering::Relaxed);
    let handle = write(&machine.execs.table).insert(made);
    Ok(put!(exec, ptr::without_provenance_mut(handle))?)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> c_int {
    entry(|machine| instantiate(machine, exec, graph, flags).map_err(|failure| failure.code))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphInstantiateWithParams(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> c_int {
    entry(|machine| {
        // The flags and the stream; the rest is results.
        let [flags, stream] = peek!(params.cast::<[u64; 2]>())?;
        let upload_to_stream: CUstream = ptr::with_exposed_provenance_mut(stream as usize);
        let upload = flags & UPLOAD != 0;
        let stream = if upload { Some(machine.stream(upload_to_stream)?) } else { None };
        let outcome = instantiate(machine, exec, graph, flags);
        let (result_out, node) = match &outcome {
            Ok(()) => (CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS, 0),
            Err(Failure { node: None, .. }) => {
                (CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR, 0)
            }
            Err(Failure { node: Some(node), .. }) => (why(node), node.handle),
        };
        let results = CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags,
            hUploadStream: upload_to_stream,
            hErrNode_out: ptr::without_provenance_mut(node),
            result_out,
        };
        put!(params, results)?;
        outcome.map_err(|failure| failure.code)?;
        stream.map_or(Ok(()), |stream| upload_to(machine, &stream))
    })
}

/// What is wrong with a node.
fn why(node: &Node) -> CUgraphInstantiateResult {
    match node.task.work {
        Work::Conditional(_) => {
            CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED
        }
        _ => CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE,
    }
}

/// Memory of a graph is mapped when its nodes are created, so an upload has no work. Later work of
/// the stream comes after it.
fn upload_to(machine: &Machine, stream: &Arc<Stream>) -> Result<(), i32> {
    machine.captures.refuse(stream)?;
    machine.submit(stream, Vec::new(), Action::Nothing).map(drop)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) -> c_int {
    entry(|machine| {
        machine.exec(exec)?;
        upload_to(machine, &machine.stream(stream)?)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecGetFlags(
    exec: CUgraphExec,
    flags: *mut cuuint64_t,
) -> c_int {
    // The driver does not return this flag (580.159).
    entry(|machine| put!(flags, machine.exec(exec)?.flags & !USE_NODE_PRIORITY))
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
