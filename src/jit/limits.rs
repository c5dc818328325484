//! Limits of a kernel: what its code needs of a multiprocessor, and how many of its blocks run at
//! the same time.

use super::launch::{AttributeList, Launch, product};
use super::store::Loaded;
use crate::base::error::{Error, Result};
use crate::driver::sys::{CUdevice_attribute, CUfunction_attribute};
use crate::driver::{CudaError, CudaResult, code};
use crate::gpu::device::Device;
use crate::gpu::sm_partition;
use crate::gpu::stream::Stream;

/// The compute capability from which devices have clusters and programmatic launches.
const HOPPER: i32 = 9;

/// The limits of a kernel, and of launches of it.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each field is documented in the header's tcuda_kernel_info")]
pub struct Limits {
    pub registers: i32,
    pub max_threads_per_block: i32,
    pub static_shared_bytes: i32,
    pub local_bytes: i32,
    pub constant_bytes: i32,
    pub max_dynamic_shared_bytes: i32,
    pub ptx_version: i32,
    pub binary_version: i32,
    pub required_cluster: [u32; 3],
    pub max_blocks_per_multiprocessor: i32,
    pub max_cooperative_blocks: u64,
    pub max_cluster_blocks: u64,
    pub max_active_clusters: u64,
    pub suggested_block: i32,
    pub suggested_grid: i32,
}

impl Limits {
    /// Those of a kernel and of a launch, whose grid does not matter. The device's context is
    /// current.
    pub(super) fn of(
        device: &Device,
        loaded: &Loaded,
        launch: &Launch,
        stream: &Stream,
    ) -> Result<Limits> {
        use CUfunction_attribute::*;
        launch.check(device)?;
        let get = |attribute| loaded.attribute(device, attribute);
        let required_cluster = loaded.required_cluster(device)?;
        let cluster = cluster(device, loaded, launch)?;
        let (suggested_grid, suggested_block) = suggested(device, loaded, launch)?;
        Ok(Limits {
            registers: get(CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            max_threads_per_block: get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            static_shared_bytes: get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local_bytes: get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            constant_bytes: get(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)?,
            max_dynamic_shared_bytes: loaded.most_shared(device)?,
            ptx_version: get(CU_FUNC_ATTRIBUTE_PTX_VERSION)?,
            binary_version: get(CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
            required_cluster,
            max_blocks_per_multiprocessor: blocks_per_multiprocessor(device, loaded, launch)?,
            max_cooperative_blocks: match has_cooperative_launches(device)? {
                true => cooperative_blocks(device, loaded, launch, stream)?,
                false => 0,
            },
            max_cluster_blocks: largest_cluster(device, loaded, launch, stream)?,
            max_active_clusters: match cluster {
                Some(cluster) => active_clusters(device, loaded, launch, stream, cluster)?,
                None => 0,
            },
            suggested_block,
            suggested_grid,
        })
    }
}

/// The cluster of a launch: its own, or the one that the code determines.
fn cluster(device: &Device, loaded: &Loaded, launch: &Launch) -> Result<Option<[u32; 3]>> {
    if let Some(cluster) = launch.named_cluster() {
        return Ok(Some(cluster));
    }
    let required = loaded.required_cluster(device)?;
    Ok((required != [0; 3]).then_some(required))
}

/// How many blocks of a launch a multiprocessor runs at the same time. The device's context is
/// current.
fn blocks_per_multiprocessor(device: &Device, loaded: &Loaded, launch: &Launch) -> Result<i32> {
    let mut blocks = 0;
    // SAFETY: the function stays loaded, `blocks` is writable.
    unsafe {
        device.driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut blocks,
            loaded.function(),
            launch.threads(),
            launch.shared_bytes as usize,
        )
    }?;
    Ok(blocks)
}

/// How many blocks of a launch run at the same time on the multiprocessors of a stream. The
/// device's context is current.
pub(super) fn cooperative_blocks(
    device: &Device,
    loaded: &Loaded,
    launch: &Launch,
    stream: &Stream,
) -> Result<u64> {
    if let Some(cluster) = cluster(device, loaded, launch)? {
        let clusters = active_clusters(device, loaded, launch, stream, cluster)?;
        return Ok(clusters.saturating_mul(product(cluster)));
    }
    let blocks = blocks_per_multiprocessor(device, loaded, launch)?;
    let multiprocessors = sm_partition::multiprocessors(device, stream)?;
    Ok(u64::from(blocks.unsigned_abs()) * u64::from(multiprocessors))
}

/// The most blocks of a cluster; 0 where the device has no clusters. The device's context is
/// current.
pub(super) fn largest_cluster(
    device: &Device,
    loaded: &Loaded,
    launch: &Launch,
    stream: &Stream,
) -> Result<u64> {
    if !has_clusters(device)? {
        return Ok(0);
    }
    loaded.allow_large_clusters(device)?;
    let mut list = AttributeList::new();
    let config = launch.config([1; 3], stream, &mut list);
    let mut most = 0;
    // SAFETY: the function stays loaded, `most` is writable, and the list outlives the call.
    let queried = unsafe {
        device.driver().cuOccupancyMaxPotentialClusterSize(&mut most, loaded.function(), &config)
    };
    number_or_none(queried, most)
}

/// How many clusters run at the same time on the multiprocessors of a stream; 0 also where a
/// cluster is too large. The device's context is current.
fn active_clusters(
    device: &Device,
    loaded: &Loaded,
    launch: &Launch,
    stream: &Stream,
    cluster: [u32; 3],
) -> Result<u64> {
    if !has_clusters(device)? {
        return Ok(0);
    }
    loaded.allow_large_clusters(device)?;
    let mut list = AttributeList::new();
    list.add_cluster(cluster);
    let config = launch.config(cluster, stream, &mut list);
    let mut most = 0;
    // SAFETY: the function stays loaded, `most` is writable, and the list outlives the call.
    let queried = unsafe {
        device.driver().cuOccupancyMaxActiveClusters(&mut most, loaded.function(), &config)
    };
    number_or_none(queried, most)
}

/// The number of blocks and their threads with which most threads of the device run.
fn suggested(device: &Device, loaded: &Loaded, launch: &Launch) -> Result<(i32, i32)> {
    let (mut grid, mut block) = (0, 0);
    // SAFETY: the function stays loaded, and both are writable.
    unsafe {
        device.driver().cuOccupancyMaxPotentialBlockSize(
            &mut grid,
            &mut block,
            loaded.function(),
            None,
            launch.shared_bytes as usize,
            0,
        )
    }?;
    Ok((grid, block))
}

/// Does the device have cooperative launches?
pub(super) fn has_cooperative_launches(device: &Device) -> Result<bool> {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH;
    Ok(device.attribute(attribute)? != 0)
}

/// Does the device have clusters and programmatic launches?
pub(super) fn has_clusters(device: &Device) -> Result<bool> {
    Ok(device.capability()?.0 >= HOPPER)
}

/// What a question about clusters gave; 0 where no cluster of the size fits.
fn number_or_none(queried: CudaResult, number: i32) -> Result<u64> {
    match queried {
        Ok(()) => Ok(number.unsigned_abs().into()),
        Err(CudaError { code: code::INVALID_CLUSTER_SIZE, .. }) => Ok(0),
        Err(error) => Err(Error::from(error)),
    }
}
