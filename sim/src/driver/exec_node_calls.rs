//! The calls that change single nodes of executable graphs.

use super::arguments::{put, require};
use super::copy::{Copy, Place, Side};
use super::entry::entry;
use super::exec::{Exec, Step};
use super::exec_calls;
use super::graph::{Task, Work};
use super::graph_calls::{can_replace, replace};
use super::machine::Machine;
use super::node_calls::{any, child_in, kind_of};
use super::node_parameter_calls::{CHILD, COPY, FILL, HOST, KERNEL, RECORD, VALUES, WAIT};
use super::node_tasks::{self as tasks, Made};
use super::queue::Action;
use super::value_calls;
use crate::base::code;
use cudarc::driver::sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUgraph, CUgraphExec, CUgraphNode,
    CUgraphNodeParams,
};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// An executable graph, and the place of a node in it.
fn find(
    machine: &Machine,
    exec: CUgraphExec,
    node: CUgraphNode,
) -> Result<(Arc<Exec>, usize), i32> {
    let exec = machine.exec(exec)?;
    let (_, node) = machine.node(node)?;
    let place = exec.steps().iter().position(|step| step.id == node.id);
    Ok((exec, place.ok_or(code::INVALID_VALUE)?))
}

/// Changes what a node of this kind does in later launches.
fn set(
    machine: &Machine,
    (exec, node): (CUgraphExec, CUgraphNode),
    kind: c_int,
    make: impl FnOnce(&Task) -> Result<Made, i32>,
) -> Result<(), i32> {
    let (exec, place) = find(machine, exec, node)?;
    let mut step = exec.steps().get(place).cloned().ok_or(code::INVALID_VALUE)?;
    require(step.task.work.kind() == kind, code::INVALID_VALUE)?;
    let (device, task) = make(&step.task)?;
    require(device == step.device, code::INVALID_VALUE)?;
    require(keeps_shape(&step.task.work, &task.work), code::INVALID_VALUE)?;
    step.task = Arc::new(task);
    exec_calls::can_run(machine, std::slice::from_ref(&step))?;
    exec.edit(|steps| steps[place].task = step.task);
    Ok(())
}

/// True if a change keeps what was determined when the graph was instantiated: the dimensions of
/// copies and fills, the kinds of a copy's memory, and the kinds of operations on values.
fn keeps_shape(old: &Work, new: &Work) -> bool {
    match (old, new) {
        (Work::Action(Action::Copy(old)), Work::Action(Action::Copy(new))) => {
            let is_line = |copy: &Copy| copy.rows == 1 && copy.depth == 1;
            let is_host = |side: &Side| matches!(side.place, Place::Host(_));
            let sides = [(&old.source, &new.source), (&old.target, &new.target)];
            is_line(old)
                && is_line(new)
                && sides.iter().all(|(old, new)| is_host(old) == is_host(new))
        }
        (Work::Action(Action::Fill(old)), Work::Action(Action::Fill(new))) => {
            let shape = |fill: &super::copy::Fill| (fill.width, fill.count, fill.pitch);
            old.rows == new.rows && (old.rows == 1 || shape(old) == shape(new))
        }
        (Work::Values(old), Work::Values(new)) => new.has_shape_of(old),
        _ => true,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> c_int {
    entry(|machine| {
        set(machine, (exec, node), KERNEL, |old| {
            tasks::kernel(machine, params, &tasks::kept_attributes(old))
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecMemcpyNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> c_int {
    entry(|machine| set(machine, (exec, node), COPY, |_| tasks::copy(machine, params, context)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecMemsetNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> c_int {
    entry(|machine| set(machine, (exec, node), FILL, |_| tasks::fill(machine, params, context)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecHostNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> c_int {
    entry(|machine| {
        let device = device_of(machine, exec, node)?;
        let make = |_: &Task| tasks::host(machine, params).map(|(_, task)| (device, task));
        set(machine, (exec, node), HOST, make)
    })
}

/// The device of a node whose work belongs to none.
fn device_of(machine: &Machine, exec: CUgraphExec, node: CUgraphNode) -> Result<usize, i32> {
    let (exec, place) = find(machine, exec, node)?;
    Ok(exec.steps()[place].device)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecBatchMemOpNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> c_int {
    entry(|machine| set(machine, (exec, node), VALUES, |_| value_calls::task(machine, params)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecEventRecordNodeSetEvent(
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> c_int {
    entry(|machine| set(machine, (exec, node), RECORD, |_| tasks::record(machine, event)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecEventWaitNodeSetEvent(
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> c_int {
    entry(|machine| set(machine, (exec, node), WAIT, |_| tasks::wait(machine, event)))
}

/// Changes the nodes of a child graph in later launches to those of a graph of the same shape.
fn set_child(
    machine: &Machine,
    exec: CUgraphExec,
    node: CUgraphNode,
    child: CUgraph,
) -> Result<(), i32> {
    let (exec, place) = find(machine, exec, node)?;
    let child = machine.graph(child)?;
    let new = Step::all(&child).map_err(|_| code::INVALID_VALUE)?;
    exec_calls::can_run(machine, &new)?;
    let steps = exec.steps();
    require(steps[place].task.work.kind() == CHILD, code::INVALID_VALUE)?;
    let first = place - steps[place].inner;
    let mut old = steps[first..place].to_vec();
    for step in &mut old {
        // Roots of the child graph come after nodes of the whole one.
        step.after.retain(|before| *before >= first);
        step.after.iter_mut().for_each(|before| *before -= first);
    }
    require(can_replace(&old, &new), code::INVALID_VALUE)?;
    exec.edit(|steps| replace(&mut steps[first..place], new));
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecChildGraphNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    child: CUgraph,
) -> c_int {
    entry(|machine| set_child(machine, exec, node, child))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphExecNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *mut CUgraphNodeParams,
) -> c_int {
    entry(|machine| match kind_of(params)? {
        CHILD => set_child(machine, exec, node, child_in(params)?),
        HOST => {
            let device = device_of(machine, exec, node)?;
            let make = |old: &Task| {
                any(machine, None, params, &tasks::kept_attributes(old))
                    .map(|(_, task)| (device, task))
            };
            set(machine, (exec, node), HOST, make)
        }
        kind => set(machine, (exec, node), kind, |old| {
            any(machine, None, params, &tasks::kept_attributes(old))
        }),
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeSetEnabled(
    exec: CUgraphExec,
    node: CUgraphNode,
    is_enabled: c_uint,
) -> c_int {
    entry(|machine| {
        let (exec, place) = find(machine, exec, node)?;
        check_switch(&exec, place)?;
        exec.edit(|steps| steps[place].is_enabled = is_enabled != 0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeGetEnabled(
    exec: CUgraphExec,
    node: CUgraphNode,
    is_enabled: *mut c_uint,
) -> c_int {
    entry(|machine| {
        let (exec, place) = find(machine, exec, node)?;
        check_switch(&exec, place)?;
        put!(is_enabled, c_uint::from(exec.steps()[place].is_enabled))
    })
}

/// Only kernels, copies and fills can be disabled.
fn check_switch(exec: &Exec, place: usize) -> Result<(), i32> {
    let kind = exec.steps()[place].task.work.kind();
    require(matches!(kind, KERNEL | COPY | FILL), code::INVALID_VALUE)
}
