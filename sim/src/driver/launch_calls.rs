//! The calls that launch kernels.

use super::arguments::{peek, require};
use super::entry::entry;
use super::event::Event;
use super::kernel::{self, Launch};
use super::launch_attributes::Attributes;
use super::machine::Machine;
use super::module::Function;
use super::occupancy;
use super::parameters;
use super::partition::Partition;
use super::queue::{Action, Stream};
use crate::base::code;
use crate::exec::Shape;
use cudarc::driver::sys::{CUfunction, CUlaunchConfig, CUstream};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// The parameters of a kernel: pointers to their values, or a list that describes a buffer.
pub(super) type Parameters = (*mut *mut c_void, *mut *mut c_void);

/// A launch as the host describes it.
pub(super) struct Request {
    pub(super) function: CUfunction,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) parameters: Parameters,
}

/// Queues a launch, or records it if the stream is captured.
fn launch(
    machine: &Machine,
    stream: CUstream,
    request: &Request,
    attributes: impl FnOnce() -> Result<Attributes, i32>,
) -> Result<(), i32> {
    let stream = machine.stream(stream)?;
    machine.usable()?;
    let prepare = || {
        let function =
            machine.function(request.function, || Ok((stream.context, stream.device)))?;
        require(function.owner == stream.context, code::INVALID_HANDLE)?;
        let attributes = attributes()?;
        let partition = stream.partition.as_ref();
        let launch = prepare(machine, &function, request, &attributes, partition)?;
        if attributes.is_updatable {
            // Nodes that kernels change are not supported, and only captures have nodes.
            let is_captured = machine.captures.records(&stream)?;
            return Err(if is_captured { code::NOT_SUPPORTED } else { code::INVALID_VALUE });
        }
        let events = attributes.events.iter().map(|event| {
            let event = machine.event(*event)?;
            check_event(&event, &stream)?;
            Ok(event)
        });
        Ok((launch, events.collect::<Result<Vec<_>, i32>>()?))
    };
    // An invalid launch invalidates the capture (580.159).
    let prepared = prepare().inspect_err(|_: &i32| machine.captures.invalidate(&stream));
    let (launch, events) = prepared?;
    machine.submit(&stream, Vec::new(), Action::Kernel(Box::new(launch)))?;
    for event in events {
        if !machine.captures.mark(&stream, &event)? {
            machine.record(&event, &stream, Vec::new())?;
        }
    }
    Ok(())
}

/// Checks an event that is to be recorded with a launch.
fn check_event(event: &Event, stream: &Stream) -> Result<(), i32> {
    require(event.device == stream.device, code::INVALID_HANDLE)?;
    require(!event.is_timed, code::NOT_SUPPORTED)?;
    require(event.shared.is_none(), code::INVALID_VALUE)
}

/// The launch of a function, on the multiprocessors of a green context if there is one.
pub(super) fn prepare(
    machine: &Machine,
    function: &Function,
    request: &Request,
    attributes: &Attributes,
    partition: Option<&Arc<Partition>>,
) -> Result<Launch, i32> {
    let Request { grid, block, shared_bytes, parameters, .. } = *request;
    let kernel = &function.kernel.exec;
    check_shape(grid, block)?;
    let dynamic = shared_bytes as usize;
    require(dynamic <= function.settings.most_shared(kernel), code::INVALID_VALUE)?;
    let threads: usize = block.iter().map(|size| *size as usize).product();
    require(threads <= kernel.most_threads(), code::INVALID_VALUE)?;
    let parameters = parameters::read(kernel.parameters(), parameters.0, parameters.1)?;
    require(kernel.required_block().is_none_or(|of| of == block), code::INVALID_VALUE)?;
    let cluster = cluster(function, attributes)?;
    check_cluster(cluster, grid, function.settings.most_clustered(kernel))?;
    let shape = Shape { grid, block, cluster, dynamic_shared: shared_bytes };
    let launch = Launch::new(Arc::clone(&function.kernel), shape, parameters);
    let launch = launch.within(partition.cloned());
    if !attributes.is_cooperative {
        return Ok(launch);
    }
    let partition = partition.map(Arc::as_ref);
    let most = occupancy::clusters(&machine.config, function, partition, (threads, dynamic), 1);
    let blocks = grid.iter().fold(1u64, |blocks, size| blocks.saturating_mul((*size).into()));
    require(blocks <= most as u64, code::COOPERATIVE_LAUNCH_TOO_LARGE)?;
    Ok(launch.cooperative())
}

/// The blocks of a cluster: by the code, the launch or the function's attributes.
pub(super) fn cluster(function: &Function, attributes: &Attributes) -> Result<[c_uint; 3], i32> {
    let kernel = &function.kernel.exec;
    if let Some(given) = attributes.cluster {
        let required = kernel.required_cluster().unwrap_or(given);
        require(required == given, code::INVALID_CLUSTER_SIZE)?;
        return Ok(given);
    }
    match function.settings.cluster(kernel) {
        [0, 0, 0] => {
            require(!kernel.needs_cluster(), code::INVALID_CLUSTER_SIZE)?;
            Ok([1; 3])
        }
        cluster => Ok(cluster),
    }
}

/// Checks that the grid consists of clusters of a size that the device has (580.159).
fn check_cluster(cluster: [c_uint; 3], grid: [c_uint; 3], most: c_uint) -> Result<(), i32> {
    let is_whole = |d: usize| cluster[d] > 0 && grid[d].is_multiple_of(cluster[d]);
    let blocks = cluster.iter().fold(1, |product: c_uint, size| product.saturating_mul(*size));
    require((0..3).all(is_whole) && blocks <= most, code::INVALID_CLUSTER_SIZE)
}

/// Checks grid and block against the device limits.
fn check_shape(grid: [c_uint; 3], block: [c_uint; 3]) -> Result<(), i32> {
    let within = |sizes: [c_uint; 3], limits: [c_uint; 3]| {
        sizes.iter().zip(limits).all(|(size, limit)| (1..=limit).contains(size))
    };
    require(
        within(grid, kernel::MAX_GRID) && within(block, kernel::MAX_BLOCK),
        code::INVALID_VALUE,
    )?;
    let threads = block.iter().map(|size| *size as usize).product::<usize>();
    require(threads <= kernel::MAX_THREADS_PER_BLOCK, code::INVALID_VALUE)
}

#[allow(clippy::too_many_arguments, reason = "CUDA's own signature")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    entry(|machine| {
        let parameters = (parameters, extra);
        let request = Request { function, grid, block, shared_bytes, parameters };
        launch(machine, stream, &request, || Ok(Attributes::default()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    function: CUfunction,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    entry(|machine| {
        let config = peek!(config)?;
        let request = Request {
            function,
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared_bytes: config.sharedMemBytes,
            parameters: (parameters, extra),
        };
        launch(machine, config.hStream, &request, || Attributes::read(&config))
    })
}

#[allow(clippy::too_many_arguments, reason = "CUDA's own signature")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
) -> c_int {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    entry(|machine| {
        let parameters = (parameters, null_mut());
        let request = Request { function, grid, block, shared_bytes, parameters };
        let attributes = Attributes { is_cooperative: true, ..Attributes::default() };
        launch(machine, stream, &request, || Ok(attributes))
    })
}
