//! The calls for occupancy.

use super::arguments::{peek, put, require};
use super::entry::entry;
use super::launch_attributes::Attributes;
use super::launch_calls::cluster;
use super::machine::Machine;
use super::module::Function;
use super::occupancy::{self, number};
use crate::base::code;
use cudarc::driver::sys::{CUfunction, CUlaunchConfig, CUoccupancyB2DSize};
use std::ffi::{c_int, c_uint};

/// `CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE`, which concerns old devices.
const FLAGS: c_uint = 1;

/// The function of a handle, for the current context.
fn find(machine: &Machine, function: CUfunction) -> Result<Function, i32> {
    let place = machine.current()?.place();
    machine.function(function, || Ok(place))
}

/// A positive number of the host.
fn positive(number: c_int) -> Result<usize, i32> {
    let number = usize::try_from(number).map_err(|_| code::INVALID_VALUE)?;
    require(number > 0, code::INVALID_VALUE)?;
    Ok(number)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: CUfunction,
    block_size: c_int,
    shared_bytes: usize,
) -> c_int {
    // SAFETY: the same promise.
    unsafe {
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            blocks,
            function,
            block_size,
            shared_bytes,
            0,
        )
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    function: CUfunction,
    block_size: c_int,
    shared_bytes: usize,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let function = find(machine, function)?;
        let threads = positive(block_size)?;
        require(flags <= FLAGS, code::INVALID_VALUE)?;
        let found = occupancy::blocks(&machine.config, &function, threads, shared_bytes);
        put!(blocks, number(found))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid_size: *mut c_int,
    block_size: *mut c_int,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared_bytes: usize,
    limit: c_int,
) -> c_int {
    // SAFETY: the same promise.
    unsafe {
        cuOccupancyMaxPotentialBlockSizeWithFlags(
            grid_size,
            block_size,
            function,
            shared_of,
            shared_bytes,
            limit,
            0,
        )
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid_size: *mut c_int,
    block_size: *mut c_int,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared_bytes: usize,
    limit: c_int,
    flags: c_uint,
) -> c_int {
    entry(|machine| {
        let function = find(machine, function)?;
        require(!grid_size.is_null() && !block_size.is_null(), code::INVALID_VALUE)?;
        require(flags <= FLAGS, code::INVALID_VALUE)?;
        let limit = usize::try_from(limit).map_err(|_| code::INVALID_VALUE)?;
        let shared = |threads| match shared_of {
            // SAFETY: the host's function takes any number of threads.
            Some(shared_of) => unsafe { shared_of(number(threads)) },
            None => shared_bytes,
        };
        let partition = machine.current_scope()?.partition();
        let (blocks, threads) =
            occupancy::best(&machine.config, &function, partition.as_deref(), limit, shared);
        put!(grid_size, number(blocks))?;
        put!(block_size, number(threads))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: *mut usize,
    function: CUfunction,
    blocks: c_int,
    block_size: c_int,
) -> c_int {
    entry(|machine| {
        let function = find(machine, function)?;
        let (blocks, threads) = (positive(blocks)?, positive(block_size)?);
        let most = occupancy::most_shared(&machine.config, &function, blocks, threads);
        put!(bytes, most.ok_or(code::INVALID_VALUE)?)
    })
}

/// A configuration, its function, and the threads and dynamic shared memory of a block.
fn configured(
    machine: &Machine,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> Result<(CUlaunchConfig, Function, (usize, usize)), i32> {
    let config = peek!(config)?;
    require(!function.is_null(), code::INVALID_VALUE)?;
    let stream = machine.stream(config.hStream)?;
    let place = (stream.context, stream.device);
    let function = machine.function(function, || Ok(place))?;
    require(function.owner == stream.context, code::INVALID_HANDLE)?;
    let sizes = [config.blockDimX, config.blockDimY, config.blockDimZ];
    let threads = sizes.iter().fold(1, |all: usize, size| all.saturating_mul(*size as usize));
    require(threads > 0, code::INVALID_VALUE)?;
    Ok((config, function, (threads, config.sharedMemBytes as usize)))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuOccupancyMaxPotentialClusterSize(
    size: *mut c_int,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> c_int {
    entry(|machine| {
        require(!size.is_null(), code::INVALID_VALUE)?;
        let (_, function, (threads, dynamic)) = configured(machine, function, config)?;
        let kernel = &function.kernel.exec;
        let most = function.settings.most_clustered(kernel);
        let fits = occupancy::blocks(&machine.config, &function, threads, dynamic) > 0;
        put!(size, if fits { most as c_int } else { 0 })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> c_int {
    entry(|machine| {
        require(!clusters.is_null(), code::INVALID_VALUE)?;
        let (config, function, block) = configured(machine, function, config)?;
        let kernel = &function.kernel.exec;
        let attributes = Attributes::read(&config)?;
        let is_set = function.settings.cluster(kernel) != [0; 3];
        if attributes.cluster.is_none() && !is_set {
            return put!(clusters, 0);
        }
        let size = cluster(&function, &attributes)?;
        let size = size.iter().fold(1, |all: c_uint, size| all.saturating_mul(*size));
        let most = function.settings.most_clustered(kernel);
        require((1..=most).contains(&size), code::INVALID_CLUSTER_SIZE)?;
        let stream = machine.stream(config.hStream)?;
        let partition = stream.partition.as_deref();
        let size = size as usize;
        let found = occupancy::clusters(&machine.config, &function, partition, block, size);
        put!(clusters, number(found))
    })
}
