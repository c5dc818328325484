//! What nodes of graphs do: from the parameters that the host gives, and back.

use super::address_space::PoolAccess;
use super::arguments::{peek, peek_checked, put, require};
use super::copy::{Copy, Fill, Place, Side};
use super::graph::{Conditional, Given, Graph, NodeAttributes, Task, Work};
use super::green;
use super::host_function::HostFunction;
use super::launch_attributes::Attributes;
use super::launch_calls::{self, Request};
use super::machine::Machine;
use super::module::{Function, Owner};
use super::partition::Partition;
use super::queue::{Action, BranchKind};
use super::sync::read;
use super::transfer_calls;
use super::virtual_memory_calls::{location, rights};
use crate::base::code;
use cudarc::driver::sys::{
    CUDA_CONDITIONAL_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr,
    CUevent, CUgraph, CUgraphConditionalNodeType, CUmemAllocationHandleType_enum,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPoolProps, CUmemorytype,
};
use std::ffi::{c_int, c_uint};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The device of a node, and its task.
pub(super) type Made = (usize, Task);

/// The `CU_KERNEL_NODE_ATTRIBUTE_...` that nodes have.
const NODE_ATTRIBUTES: [c_uint; 10] = [1, COOPERATIVE, CLUSTER, 5, 8, 9, 10, 11, 13, 14];
const COOPERATIVE: c_uint = 2;
const CLUSTER: c_uint = 4;

/// Keys of a kernel's list of extra parameters.
const END: usize = 0;
const BUFFER: usize = 1;
const SIZE: usize = 2;

/// The number and the device of a context; NULL means the current one.
fn place_of(machine: &Machine, context: CUcontext) -> Result<Owner, i32> {
    if context.is_null() {
        return Ok(machine.current()?.place());
    }
    let context = machine.context(context)?;
    require(context.is_active(), code::INVALID_CONTEXT)?;
    Ok(context.place())
}

/// The device of a node without work of a device.
fn any_device(machine: &Machine) -> usize {
    machine.current().map_or(0, |context| context.device)
}

/// The partition on which a new kernel's node runs: that of the current context, though the
/// parameters name another one (580.159).
fn current_partition(machine: &Machine) -> Option<Arc<Partition>> {
    machine.current_scope().ok()?.partition()
}

pub(super) fn kernel(
    machine: &Machine,
    params: *const CUDA_KERNEL_NODE_PARAMS,
    attributes: &NodeAttributes,
) -> Result<Made, i32> {
    kernel_within(machine, params, attributes, current_partition(machine).as_ref())
}

fn kernel_within(
    machine: &Machine,
    params: *const CUDA_KERNEL_NODE_PARAMS,
    attributes: &NodeAttributes,
    partition: Option<&Arc<Partition>>,
) -> Result<Made, i32> {
    let given = peek!(params)?;
    let function = if given.func.is_null() { given.kern.cast() } else { given.func };
    let request = Request {
        function,
        grid: [given.gridDimX, given.gridDimY, given.gridDimZ],
        block: [given.blockDimX, given.blockDimY, given.blockDimZ],
        shared_bytes: given.sharedMemBytes,
        parameters: (given.kernelParams, given.extra),
    };
    let mut of_launch = Attributes::default();
    for (id, value) in attributes {
        of_launch.set_value(*id, value.as_ptr().cast())?;
    }
    require(!of_launch.is_updatable, code::NOT_SUPPORTED)?;
    let function = machine.function(function, || place_of(machine, given.ctx))?;
    let launch = launch_calls::prepare(machine, &function, &request, &of_launch, partition)?;
    let kept = if given.extra.is_null() { Given::Nothing } else { Given::Buffer };
    let mut task = Task::new(Work::Action(Action::Kernel(Box::new(launch))), kept);
    task.attributes.clone_from(attributes);
    Ok((function.device, task))
}

/// The attribute of a kernel's node; zero if it was not set.
pub(super) fn attribute(task: &Task, id: c_uint) -> Result<[u64; 8], i32> {
    let Work::Action(Action::Kernel(launch)) = &task.work else { return Err(code::INVALID_VALUE) };
    require(NODE_ATTRIBUTES.contains(&id), code::INVALID_VALUE)?;
    let mut value = task.attributes.get(&id).copied().unwrap_or_default();
    // Captured launches have these.
    match (id, launch.shape.cluster) {
        (COOPERATIVE, _) => value[0] = launch.is_cooperative.into(),
        (CLUSTER, [x, y, z]) if [x, y, z] != [1; 3] => {
            value[0] = u64::from(y) << 32 | u64::from(x);
            value[1] = z.into();
        }
        _ => (),
    }
    Ok(value)
}

/// The attributes that a kernel's node keeps when its parameters change.
pub(super) fn kept_attributes(task: &Task) -> NodeAttributes {
    let mut kept = task.attributes.clone();
    if let Ok(value) = attribute(task, COOPERATIVE)
        && value[0] != 0
    {
        kept.insert(COOPERATIVE, value);
    }
    kept
}

/// The node's kernel with other attributes.
pub(super) fn with_attributes(
    machine: &Machine,
    task: &Task,
    changed: &NodeAttributes,
) -> Result<Made, i32> {
    let is_known = changed.keys().all(|id| NODE_ATTRIBUTES.contains(id));
    require(is_known, code::INVALID_VALUE)?;
    let mut all = kept_attributes(task);
    let cluster = attribute(task, CLUSTER)?;
    if cluster[0] != 0 {
        all.insert(CLUSTER, cluster);
    }
    all.extend(changed);
    let Work::Action(Action::Kernel(launch)) = &task.work else { return Err(code::INVALID_VALUE) };
    let partition = launch.partition.as_ref();
    kernel_within(machine, &kernel_parameters(machine, task)?, &all, partition)
}

/// The parameters of a kernel's node. The node keeps the list of addresses.
pub(super) fn kernel_parameters(
    machine: &Machine,
    task: &Task,
) -> Result<CUDA_KERNEL_NODE_PARAMS, i32> {
    let Work::Action(Action::Kernel(launch)) = &task.work else { return Err(code::INVALID_VALUE) };
    let is_it = |found: &Function| Arc::ptr_eq(&found.kernel, &launch.kernel);
    let functions = &read(&machine.modules).functions;
    let function = functions.handle_of(is_it);
    let owner = function.and_then(|handle| Some(functions.get(handle)?.owner));
    let context = owner.map(|number| machine.hardware.owner(number).handle());
    let green = launch.partition.as_ref().map(|partition| green::context_of(partition.green));
    let start = launch.parameters.as_ptr().expose_provenance();
    let is_buffer = matches!(task.given, Given::Buffer);
    let list = task.shown.get_or_init(|| match is_buffer {
        // The last word is the size, whose address follows its key.
        true => Box::new([BUFFER, start, SIZE, 0, END, launch.parameters.len()]),
        false => launch.kernel.exec.parameters().iter().map(|it| start + it.offset).collect(),
    });
    let address = list.as_ptr().cast_mut().cast();
    let (kernel_params, extra) =
        if is_buffer { (null_mut(), address) } else { (address, null_mut()) };
    let ([x, y, z], block) = (launch.shape.grid, launch.shape.block);
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func: without_provenance_mut(function.unwrap_or(0)),
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: launch.shape.dynamic_shared,
        kernelParams: kernel_params,
        extra,
        kern: null_mut(),
        ctx: green.or(context).unwrap_or(null_mut()),
    })
}

pub(super) fn copy(
    machine: &Machine,
    params: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> Result<Made, i32> {
    let given = peek_checked!(params, srcMemoryType, dstMemoryType)?;
    let (_, device) = place_of(machine, context)?;
    let copy = transfer_calls::copy_of_node(machine, params)?;
    let work = Work::Action(Action::Copy(Box::new(copy)));
    Ok((device, Task::new(work, Given::Copy(Box::new(given)))))
}

/// The parameters of a copy's node.
pub(super) fn copy_parameters(task: &Task) -> Result<CUDA_MEMCPY3D, i32> {
    match (&task.work, &task.given) {
        (_, Given::Copy(given)) => Ok(**given),
        (Work::Action(Action::Copy(copy)), _) => Ok(describe(copy)),
        _ => Err(code::INVALID_VALUE),
    }
}

/// A copy that was captured, as CUDA describes it.
fn describe(copy: &Copy) -> CUDA_MEMCPY3D {
    let start = |side: &Side| {
        let (kind, address) = match &side.place {
            Place::Device(address) => (CUmemorytype::CU_MEMORYTYPE_DEVICE, *address),
            Place::Host(address) => (CUmemorytype::CU_MEMORYTYPE_HOST, *address),
            Place::Staged(bytes) => (CUmemorytype::CU_MEMORYTYPE_HOST, bytes.as_ptr().addr()),
        };
        match kind {
            _ if copy.is_unified => (CUmemorytype::CU_MEMORYTYPE_UNIFIED, 0, address),
            CUmemorytype::CU_MEMORYTYPE_HOST => (kind, address, 0),
            _ => (kind, 0, address),
        }
    };
    let height = |side: &Side| side.plane.checked_div(side.pitch).unwrap_or(0);
    let (source, target) = (start(&copy.source), start(&copy.target));
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: source.0,
        srcHost: without_provenance_mut(source.1),
        srcDevice: source.2 as CUdeviceptr,
        srcArray: null_mut(),
        reserved0: null_mut(),
        srcPitch: copy.source.pitch,
        srcHeight: height(&copy.source),
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: target.0,
        dstHost: without_provenance_mut(target.1),
        dstDevice: target.2 as CUdeviceptr,
        dstArray: null_mut(),
        reserved1: null_mut(),
        dstPitch: copy.target.pitch,
        dstHeight: height(&copy.target),
        WidthInBytes: copy.width,
        Height: copy.rows,
        Depth: copy.depth,
    }
}

pub(super) fn fill(
    machine: &Machine,
    params: *const CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Result<Made, i32> {
    let given = peek!(params)?;
    let (_, device) = place_of(machine, context)?;
    let (address, width) = (given.dst as usize, given.elementSize as usize);
    require(matches!(width, 1 | 2 | 4), code::INVALID_VALUE)?;
    require(address != 0 && address.is_multiple_of(width), code::INVALID_VALUE)?;
    require(given.width > 0 && given.height > 0, code::INVALID_VALUE)?;
    let bytes = given.width.checked_mul(width).ok_or(code::INVALID_VALUE)?;
    let pitch = if given.height == 1 { bytes } else { given.pitch };
    require(pitch >= bytes && pitch.is_multiple_of(width), code::INVALID_VALUE)?;
    let end = pitch.checked_mul(given.height).and_then(|all| all.checked_add(address));
    end.ok_or(code::INVALID_VALUE)?;
    let (count, rows) = (given.width, given.height);
    let fill = Fill { address, value: given.value, width, count, rows, pitch };
    Ok((device, Task::new(Work::Action(Action::Fill(fill)), Given::Fill(given))))
}

/// The parameters of a fill's node.
pub(super) fn fill_parameters(task: &Task) -> Result<CUDA_MEMSET_NODE_PARAMS, i32> {
    match (&task.work, &task.given) {
        (_, Given::Fill(given)) => Ok(*given),
        (Work::Action(Action::Fill(fill)), _) => Ok(CUDA_MEMSET_NODE_PARAMS {
            dst: fill.address as CUdeviceptr,
            pitch: fill.pitch,
            value: fill.value,
            elementSize: fill.width as u32,
            width: fill.count,
            height: fill.rows,
        }),
        _ => Err(code::INVALID_VALUE),
    }
}

pub(super) fn host(machine: &Machine, params: *const CUDA_HOST_NODE_PARAMS) -> Result<Made, i32> {
    let given = peek!(params)?;
    let function = given.fn_.ok_or(code::INVALID_VALUE)?;
    let host = HostFunction { function, user_data: given.userData };
    Ok((any_device(machine), Work::Action(Action::HostFunction(host)).into()))
}

/// The parameters of a host function's node.
pub(super) fn host_parameters(task: &Task) -> Result<CUDA_HOST_NODE_PARAMS, i32> {
    let Work::Action(Action::HostFunction(host)) = &task.work else {
        return Err(code::INVALID_VALUE);
    };
    Ok(CUDA_HOST_NODE_PARAMS { fn_: Some(host.function), userData: host.user_data })
}

pub(super) fn empty(machine: &Machine) -> Made {
    (any_device(machine), Work::Action(Action::Nothing).into())
}

/// A node with a copy of a graph.
pub(super) fn child(machine: &Machine, graph: CUgraph) -> Result<Made, i32> {
    let graph = machine.graph(graph)?;
    require(!graph.has_memory() && !graph.is_conditional(), code::NOT_SUPPORTED)?;
    let copy = graph.duplicate(&machine.graphs, true);
    Ok((any_device(machine), Work::Child(copy).into()))
}

/// A node with a graph itself, which `parent` owns from now on.
pub(super) fn moved_child(machine: &Machine, parent: &Graph, graph: CUgraph) -> Result<Made, i32> {
    let graph = machine.graph(graph)?;
    require(!graph.is_conditional(), code::NOT_SUPPORTED)?;
    require(!graph.contains(parent), code::INVALID_VALUE)?;
    let was_owned = graph.is_owned.swap(true, Ordering::Relaxed);
    require(!was_owned, code::INVALID_VALUE)?;
    Ok((any_device(machine), Work::Child(graph).into()))
}

/// The handle of a child graph, which its node owns.
pub(super) fn child_of(task: &Task) -> Result<CUgraph, i32> {
    match &task.work {
        Work::Child(child) => Ok(without_provenance_mut(child.handle())),
        _ => Err(code::INVALID_VALUE),
    }
}

/// A node with new bodies; the list of their handles is stored in its parameters.
pub(super) fn conditional(
    machine: &Machine,
    graph: &Graph,
    params: *mut CUDA_CONDITIONAL_NODE_PARAMS,
) -> Result<Made, i32> {
    let given = peek_checked!(params, type_)?;
    require(!given.ctx.is_null(), code::INVALID_CONTEXT)?;
    let (_, device) = place_of(machine, given.ctx)?;
    let (kind, most) = match given.type_ {
        CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF => (BranchKind::If, 2),
        CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE => (BranchKind::While, 1),
        CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_SWITCH => (BranchKind::Switch, c_uint::MAX),
    };
    let size = given.size;
    require((1..=most).contains(&size), code::INVALID_VALUE)?;
    let condition = machine.hardware.conditions.find(given.handle).ok_or(code::INVALID_VALUE)?;
    require(condition.root == graph.root, code::INVALID_VALUE)?;
    let was_used = condition.is_used.swap(true, Ordering::Relaxed);
    require(!was_used, code::INVALID_VALUE)?;
    let bodies: Box<[_]> = (0..size).map(|_| graph.insert_body(&machine.graphs)).collect();
    let handles = bodies.iter().map(|body| body.handle()).collect();
    let node = Arc::new(Conditional { condition, kind, bodies, handles });
    let list = node.handles.as_ptr().cast_mut().cast();
    put!(params, CUDA_CONDITIONAL_NODE_PARAMS { phGraph_out: list, ..given })?;
    Ok((device, Work::Conditional(node).into()))
}

pub(super) fn record(machine: &Machine, event: CUevent) -> Result<Made, i32> {
    let event = machine.event(event)?;
    Ok((event.device, Work::Record(event).into()))
}

pub(super) fn wait(machine: &Machine, event: CUevent) -> Result<Made, i32> {
    let event = machine.event(event)?;
    Ok((event.device, Work::Wait(event).into()))
}

/// The handle of the event that a node records, or waits for if `waits`.
pub(super) fn event(machine: &Machine, task: &Task, waits: bool) -> Result<CUevent, i32> {
    let event = match &task.work {
        Work::Record(event) if !waits => event,
        Work::Wait(event) if waits => event,
        _ => return Err(code::INVALID_VALUE),
    };
    let handle = read(&machine.events).handle_of(|found| Arc::ptr_eq(found, event));
    Ok(without_provenance_mut(handle.unwrap_or(0)))
}

/// A node that allocates memory; the address is stored in its parameters.
pub(super) fn allocate(
    machine: &Machine,
    graph: &Graph,
    params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Result<Made, i32> {
    let given = peek_checked!(params, poolProps.allocType, poolProps.location.type_)?;
    // A child graph cannot get memory of its own.
    let is_owned = graph.is_owned.load(Ordering::Relaxed);
    require(!is_owned && given.bytesize > 0, code::INVALID_VALUE)?;
    let properties = given.poolProps;
    let plain = properties.allocType as u32 == 1 && properties.handleTypes.0 == 0;
    require(plain, code::INVALID_VALUE)?;
    let device = location(machine, &properties.location)?;
    let mut mask = 1 << device;
    let mut descriptors = Vec::new();
    if given.accessDescCount > 0 {
        for (peer, right) in rights(machine, given.accessDescs, given.accessDescCount)? {
            let reachable = peer == device || machine.config.can_access_peer(peer, device);
            require(reachable, code::INVALID_DEVICE)?;
            require(right == 3, code::INVALID_VALUE)?;
            mask |= 1 << peer;
        }
        for index in 0..given.accessDescCount {
            // Their numbers were checked.
            descriptors.push(peek!(given.accessDescs.wrapping_add(index))?);
        }
    }
    let access =
        Arc::new(PoolAccess { device: Some(device), handle: 0, mask: AtomicU32::new(mask) });
    let block = machine.graph_memory.create(&access, given.bytesize)?;
    machine.pools.note_use();
    let dptr = block.address as CUdeviceptr;
    put!(params, CUDA_MEM_ALLOC_NODE_PARAMS { dptr, ..given })?;
    Ok((device, Task::new(Work::Allocate(block), Given::Access(descriptors))))
}

/// The parameters of an allocation's node.
pub(super) fn allocation_parameters(task: &Task) -> Result<CUDA_MEM_ALLOC_NODE_PARAMS, i32> {
    let Work::Allocate(block) = &task.work else { return Err(code::INVALID_VALUE) };
    let descriptors = match &task.given {
        Given::Access(descriptors) => descriptors.as_slice(),
        _ => &[],
    };
    let location = CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: block.device as c_int,
    };
    let properties = CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: CUmemAllocationHandleType_enum(0),
        location,
        win32SecurityAttributes: null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    };
    Ok(CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: properties,
        accessDescs: if descriptors.is_empty() { null() } else { descriptors.as_ptr() },
        accessDescCount: descriptors.len(),
        bytesize: block.bytes,
        dptr: block.address as CUdeviceptr,
    })
}

/// A node that frees memory of a graph, which `graph` does not free yet.
pub(super) fn free(machine: &Machine, graph: &Graph, address: CUdeviceptr) -> Result<Made, i32> {
    let block = machine.graph_memory.find(address as usize).ok_or(code::INVALID_VALUE)?;
    let is_owned = graph.is_owned.load(Ordering::Relaxed);
    require(!is_owned && !graph.frees(&block), code::INVALID_VALUE)?;
    Ok((block.device, Work::Free(block).into()))
}

/// The address that a node frees.
pub(super) fn freed(task: &Task) -> Result<CUdeviceptr, i32> {
    match &task.work {
        Work::Free(block) => Ok(block.address as CUdeviceptr),
        _ => Err(code::INVALID_VALUE),
    }
}
