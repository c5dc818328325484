//! The calls that add nodes to graphs.

use super::arguments::{peek, put, require};
use super::edge_calls::{check_data, member};
use super::entry::entry;
use super::graph::{Graph, NodeAttributes};
use super::machine::Machine;
use super::node_tasks::{self as tasks, Made};
use super::value_calls;
use crate::base::code;
use cudarc::driver::sys::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_HOST_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v3, CUDA_MEM_ALLOC_NODE_PARAMS,
    CUDA_MEM_ALLOC_NODE_PARAMS_v2, CUDA_MEMCPY_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUDA_MEMSET_NODE_PARAMS_v2, CUcontext, CUdeviceptr, CUevent, CUgraph, CUgraphEdgeData,
    CUgraphNode, CUgraphNodeParams,
};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::{null, without_provenance_mut};
use std::sync::Arc;

/// Where a new node is: the result, the graph, and its dependencies.
struct Site {
    node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
}

/// Adds a node. It is created after everything else was checked.
fn add(
    machine: &Machine,
    site: &Site,
    make: impl FnOnce(&Arc<Graph>) -> Result<Made, i32>,
) -> Result<(), i32> {
    require(!site.node.is_null(), code::INVALID_VALUE)?;
    let graph = machine.graph(site.graph)?;
    require(site.count == 0 || !site.dependencies.is_null(), code::INVALID_VALUE)?;
    check_data(site.data, site.count)?;
    let mut after = Vec::new();
    for index in 0..site.count {
        let before = member(machine, &graph, peek!(site.dependencies.wrapping_add(index))?)?;
        require(!after.contains(&before), code::INVALID_VALUE)?;
        after.push(before);
    }
    let (device, task) = make(&graph)?;
    let number = graph.add(&machine.graphs, device, after, task);
    let handle = graph.handles(&[number]).first().copied().unwrap_or(0);
    put!(site.node, without_provenance_mut(handle))
}

/// `cuGraphAdd...Node(node, graph, dependencies, count, parameters)`, with a task of its own.
macro_rules! adds {
    ($($name:ident($($parameter:ident: $kind:ty),*) = |$machine:ident, $graph:ident| $made:expr;)*)
    => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(
            node: *mut CUgraphNode,
            graph: CUgraph,
            dependencies: *const CUgraphNode,
            count: usize,
            $($parameter: $kind),*
        ) -> c_int {
            let site = Site { node, graph, dependencies, data: null(), count };
            entry(|$machine| add($machine, &site, |$graph| $made))
        }
    )*};
}

adds! {
    cuGraphAddKernelNode_v2(params: *const CUDA_KERNEL_NODE_PARAMS) =
        |machine, _graph| tasks::kernel(machine, params, &NodeAttributes::new());
    cuGraphAddMemcpyNode(params: *const CUDA_MEMCPY3D, context: CUcontext) =
        |machine, _graph| tasks::copy(machine, params, context);
    cuGraphAddMemsetNode(params: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext) =
        |machine, _graph| tasks::fill(machine, params, context);
    cuGraphAddHostNode(params: *const CUDA_HOST_NODE_PARAMS) =
        |machine, _graph| tasks::host(machine, params);
    cuGraphAddEmptyNode() = |machine, _graph| Ok(tasks::empty(machine));
    cuGraphAddChildGraphNode(child: CUgraph) = |machine, _graph| tasks::child(machine, child);
    cuGraphAddEventRecordNode(event: CUevent) = |machine, _graph| tasks::record(machine, event);
    cuGraphAddEventWaitNode(event: CUevent) = |machine, _graph| tasks::wait(machine, event);
    cuGraphAddMemAllocNode(params: *mut CUDA_MEM_ALLOC_NODE_PARAMS) =
        |machine, graph| tasks::allocate(machine, graph, params);
    cuGraphAddMemFreeNode(address: CUdeviceptr) =
        |machine, graph| tasks::free(machine, graph, address);
    cuGraphAddBatchMemOpNode(params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) =
        |machine, _graph| value_calls::task(machine, params);
    cuGraphAddNode(params: *mut CUgraphNodeParams) =
        |machine, graph| any(machine, Some(graph), params, &NodeAttributes::new());
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGraphAddNode_v2(
    node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    params: *mut CUgraphNodeParams,
) -> c_int {
    let site = Site { node, graph, dependencies, data, count };
    entry(|machine| {
        add(machine, &site, |graph| any(machine, Some(graph), params, &NodeAttributes::new()))
    })
}

/// Where the parameters of a kind of node begin, after the kind.
const BODY: usize = offset_of!(CUgraphNodeParams, __bindgen_anon_1);

// The newer structures begin as the older ones.
const _: () = {
    assert!(size_of::<CUDA_KERNEL_NODE_PARAMS>() == size_of::<CUDA_KERNEL_NODE_PARAMS_v3>());
    assert!(size_of::<CUDA_MEMSET_NODE_PARAMS>() == offset_of!(CUDA_MEMSET_NODE_PARAMS_v2, ctx));
    assert!(size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>() == size_of::<CUDA_MEM_ALLOC_NODE_PARAMS_v2>());
};

/// The kind of node that parameters describe.
pub(super) fn kind_of(params: *const CUgraphNodeParams) -> Result<c_int, i32> {
    // Read as an integer, since a host may pass any value.
    peek!(params.cast::<c_int>())
}

/// The child graph in parameters of that kind.
pub(super) fn child_in(params: *const CUgraphNodeParams) -> Result<CUgraph, i32> {
    peek!(params.wrapping_byte_add(BODY).cast::<CUgraph>())
}

/// The task of a node of any kind: a new one of a graph, or a change of an existing one
/// with these attributes.
pub(super) fn any(
    machine: &Machine,
    graph: Option<&Arc<Graph>>,
    params: *mut CUgraphNodeParams,
    attributes: &NodeAttributes,
) -> Result<Made, i32> {
    let kind = kind_of(params)?;
    let reserved = params.wrapping_byte_add(offset_of!(CUgraphNodeParams, reserved0));
    require(peek!(reserved.cast::<[c_int; 3]>())? == [0; 3], code::INVALID_VALUE)?;
    let body: *mut c_void = params.wrapping_byte_add(BODY).cast();
    let context = |at: usize| peek!(body.wrapping_byte_add(at).cast::<CUcontext>());
    match (kind, graph) {
        (0, _) => tasks::kernel(machine, body.cast(), attributes),
        (1, _) => {
            let flags = peek!(body.cast::<[c_int; 2]>())?;
            require(flags == [0; 2], code::INVALID_VALUE)?;
            let copy = body.wrapping_byte_add(offset_of!(CUDA_MEMCPY_NODE_PARAMS, copyParams));
            let context = context(offset_of!(CUDA_MEMCPY_NODE_PARAMS, copyCtx))?;
            tasks::copy(machine, copy.cast(), context)
        }
        (2, _) => {
            let context = context(offset_of!(CUDA_MEMSET_NODE_PARAMS_v2, ctx))?;
            tasks::fill(machine, body.cast(), context)
        }
        (3, _) => tasks::host(machine, body.cast()),
        (4, _) => {
            let at = offset_of!(CUDA_CHILD_GRAPH_NODE_PARAMS, ownership);
            let ownership = peek!(body.wrapping_byte_add(at).cast::<c_int>())?;
            let child = child_in(params)?;
            let made = match (ownership, graph) {
                (0, _) => tasks::child(machine, child)?,
                (1, Some(parent)) => tasks::moved_child(machine, parent, child)?,
                _ => return Err(code::INVALID_VALUE),
            };
            if graph.is_some() {
                put!(body.cast::<CUgraph>(), tasks::child_of(&made.1)?)?;
            }
            Ok(made)
        }
        (5, Some(_)) => Ok(tasks::empty(machine)),
        (6, _) => tasks::wait(machine, peek!(body.cast::<CUevent>())?),
        (7, _) => tasks::record(machine, peek!(body.cast::<CUevent>())?),
        (10, Some(graph)) => tasks::allocate(machine, graph, body.cast()),
        (11, Some(graph)) => tasks::free(machine, graph, peek!(body.cast::<CUdeviceptr>())?),
        (12, _) => value_calls::task(machine, body.cast()),
        (13, Some(graph)) => tasks::conditional(machine, graph, body.cast()),
        (0..=13, _) => Err(code::NOT_SUPPORTED),
        _ => Err(code::INVALID_VALUE),
    }
}
