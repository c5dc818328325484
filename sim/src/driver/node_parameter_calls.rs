//! The calls that query and change what the nodes of a graph do.

use super::arguments::{peek, put, require};
use super::entry::entry;
use super::graph::{NodeAttributes, Task};
use super::machine::Machine;
use super::node_calls::{any, kind_of};
use super::node_tasks::{self as tasks, Made};
use super::value_calls;
use crate::base::code;
use cudarc::driver::sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUevent,
    CUgraph, CUgraphNode, CUgraphNodeParams, CUkernelNodeAttrValue,
};
use std::ffi::{c_int, c_uint};

/// Kinds of nodes, `CU_GRAPH_NODE_TYPE_...`.
pub(super) const KERNEL: c_int = 0;
pub(super) const COPY: c_int = 1;
pub(super) const FILL: c_int = 2;
pub(super) const HOST: c_int = 3;
pub(super) const CHILD: c_int = 4;
pub(super) const WAIT: c_int = 6;
pub(super) const RECORD: c_int = 7;
pub(super) const VALUES: c_int = 12;

/// `cuGraph...NodeGet...(node, result)`
macro_rules! queries {
    ($($name:ident: $result:ty = |$machine:ident, $task:ident| $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(node: CUgraphNode, result: *mut $result) -> c_int {
            entry(|$machine| {
                let (_, node) = $machine.node(node)?;
                let $task = &node.task;
                put!(result, $value?)
            })
        }
    )*};
}

queries! {
    cuGraphKernelNodeGetParams_v2: CUDA_KERNEL_NODE_PARAMS =
        |machine, task| tasks::kernel_parameters(machine, task);
    cuGraphMemcpyNodeGetParams: CUDA_MEMCPY3D = |machine, task| tasks::copy_parameters(task);
    cuGraphMemsetNodeGetParams: CUDA_MEMSET_NODE_PARAMS =
        |machine, task| tasks::fill_parameters(task);
    cuGraphHostNodeGetParams: CUDA_HOST_NODE_PARAMS = |machine, task| tasks::host_parameters(task);
    cuGraphChildGraphNodeGetGraph: CUgraph = |machine, task| tasks::child_of(task);
    cuGraphEventRecordNodeGetEvent: CUevent = |machine, task| tasks::event(machine, task, false);
    cuGraphEventWaitNodeGetEvent: CUevent = |machine, task| tasks::event(machine, task, true);
    cuGraphMemAllocNodeGetParams: CUDA_MEM_ALLOC_NODE_PARAMS =
        |machine, task| tasks::allocation_parameters(task);
    cuGraphMemFreeNodeGetParams: CUdeviceptr = |machine, task| tasks::freed(task);
    cuGraphBatchMemOpNodeGetParams: CUDA_BATCH_MEM_OP_NODE_PARAMS =
        |machine, task| value_calls::parameters(machine, task);
}

/// Changes what a node of this kind does.
fn set(
    machine: &Machine,
    node: CUgraphNode,
    kind: c_int,
    make: impl FnOnce(&Task) -> Result<Made, i32>,
) -> Result<(), i32> {
    let (graph, node) = machine.node(node)?;
    require(node.task.work.kind() == kind, code::INVALID_VALUE)?;
    let (device, task) = make(&node.task)?;
    graph.replace(&machine.graphs, node.number, device, task)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphKernelNodeSetParams_v2(
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> c_int {
    entry(|machine| {
        set(machine, node, KERNEL, |old| {
            tasks::kernel(machine, params, &tasks::kept_attributes(old))
        })
    })
}

/// The node keeps its context.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphMemcpyNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_MEMCPY3D,
) -> c_int {
    entry(|machine| {
        let (_, known) = machine.node(node)?;
        let context = machine.hardware.devices[known.device].context.handle();
        set(machine, node, COPY, |_| tasks::copy(machine, params, context))
    })
}

/// The node keeps its context.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphMemsetNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_MEMSET_NODE_PARAMS,
) -> c_int {
    entry(|machine| {
        let (_, known) = machine.node(node)?;
        let context = machine.hardware.devices[known.device].context.handle();
        set(machine, node, FILL, |_| tasks::fill(machine, params, context))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphHostNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> c_int {
    entry(|machine| set(machine, node, HOST, |_| tasks::host(machine, params)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphEventRecordNodeSetEvent(
    node: CUgraphNode,
    event: CUevent,
) -> c_int {
    entry(|machine| set(machine, node, RECORD, |_| tasks::record(machine, event)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphEventWaitNodeSetEvent(
    node: CUgraphNode,
    event: CUevent,
) -> c_int {
    entry(|machine| set(machine, node, WAIT, |_| tasks::wait(machine, event)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphBatchMemOpNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> c_int {
    entry(|machine| set(machine, node, VALUES, |_| value_calls::task(machine, params)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphNodeSetParams(
    node: CUgraphNode,
    params: *mut CUgraphNodeParams,
) -> c_int {
    entry(|machine| {
        set(machine, node, kind_of(params)?, |old| {
            any(machine, None, params, &tasks::kept_attributes(old))
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphKernelNodeGetAttribute(
    node: CUgraphNode,
    attribute: c_uint,
    value: *mut CUkernelNodeAttrValue,
) -> c_int {
    entry(|machine| {
        let (_, node) = machine.node(node)?;
        put!(value.cast::<[u64; 8]>(), tasks::attribute(&node.task, attribute)?)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphKernelNodeSetAttribute(
    node: CUgraphNode,
    attribute: c_uint,
    value: *const CUkernelNodeAttrValue,
) -> c_int {
    entry(|machine| {
        set(machine, node, KERNEL, |old| {
            let value = peek!(value.cast::<[u64; 8]>())?;
            tasks::with_attributes(machine, old, &NodeAttributes::from([(attribute, value)]))
        })
    })
}

const _: () = assert!(size_of::<CUkernelNodeAttrValue>() == size_of::<[u64; 8]>());

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphKernelNodeCopyAttributes(
    target: CUgraphNode,
    source: CUgraphNode,
) -> c_int {
    entry(|machine| {
        let (_, source) = machine.node(source)?;
        require(source.task.work.kind() == KERNEL, code::INVALID_VALUE)?;
        set(machine, target, KERNEL, |old| {
            tasks::with_attributes(machine, old, &tasks::kept_attributes(&source.task))
        })
    })
}
