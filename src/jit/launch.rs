//! A launch of a kernel without its arguments: its geometry, and what it asks of the driver
//! besides.

use super::limits;
use super::store::Loaded;
use crate::base::error::{Error, Result};
use crate::driver::sys::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
};
use crate::driver::{CudaError, CudaResult, code};
use crate::gpu::device::Device;
use crate::gpu::stream::Stream;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Every device with clusters supports so many blocks of a cluster.
const PORTABLE_CLUSTER: u64 = 8;
/// The most attributes of a launch.
const ATTRIBUTES: usize = 5;

/// A launch of a kernel without its arguments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Launch {
    /// Number of thread blocks in x, y and z; 0: 1.
    pub grid: [u32; 3],
    /// Threads per block in x, y and z; 0: 1.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: u32,
    /// Thread blocks of a cluster in x, y and z; 0: 1, and all 0: the launch names no cluster.
    pub cluster: [u32; 3],
    /// Are all blocks resident at the same time, so that they can wait for each other?
    pub is_cooperative: bool,
    /// May it begin before the kernel before it in the stream has ended?
    pub is_programmatic: bool,
    /// Its priority; 0: the stream's.
    pub priority: i32,
    /// The preferred share of shared memory in the first-level cache, in percent; 0: the driver's.
    pub shared_carveout: i32,
}

impl Launch {
    /// Thread blocks in x, y and z.
    fn blocks(&self) -> [u32; 3] {
        self.grid.map(|size| size.max(1))
    }

    /// Threads of a block.
    pub(super) fn threads(&self) -> i32 {
        let threads = product(self.block.map(|size| size.max(1)));
        i32::try_from(threads).unwrap_or(i32::MAX)
    }

    /// Thread blocks of a cluster in x, y and z, if the launch names them.
    pub(super) fn named_cluster(&self) -> Option<[u32; 3]> {
        (self.cluster != [0; 3]).then(|| self.cluster.map(|size| size.max(1)))
    }

    /// Does it ask for nothing that `cuLaunchKernel` does not have?
    #[inline]
    fn is_plain(&self) -> bool {
        self.cluster == [0; 3]
            && !self.is_cooperative
            && !self.is_programmatic
            && self.priority == 0
            && self.shared_carveout == 0
    }

    /// Checks what needs no launch to be refused.
    pub(super) fn check(&self, device: &Device) -> Result<()> {
        if !(0..=100).contains(&self.shared_carveout) {
            return Err(Error::OutOfRange {
                name: "shared_carveout_percent",
                value: self.shared_carveout.into(),
                allowed: "use 1 to 100, or 0 for the driver's choice",
            });
        }
        if self.priority != 0 {
            let (least, greatest) = device.streams.priority_range(device)?;
            if !(greatest..=least).contains(&self.priority) {
                return Err(Error::OutOfRange {
                    name: "priority",
                    value: self.priority.into(),
                    allowed: "use what tcuda_stream_priority_range gives, or 0 for the stream's",
                });
            }
        }
        if self.is_cooperative && !limits::has_cooperative_launches(device)? {
            return Err(Error::NotSupported { what: "a cooperative launch", by: "device" });
        }
        if self.named_cluster().is_some() && !limits::has_clusters(device)? {
            return Err(Error::NotSupported {
                what: "a cluster of blocks, of compute capability 9.0,",
                by: "device",
            });
        }
        Ok(())
    }

    /// Queues it. The device's context is current, and each of the parameters points to a value.
    #[inline]
    pub(super) fn queue(
        &self,
        device: &Device,
        loaded: &Loaded,
        parameters: &mut [*mut c_void],
        stream: &Stream,
    ) -> Result<()> {
        if !self.is_plain() {
            return self.queue_with_attributes(device, loaded, parameters, stream);
        }
        let [grid_x, grid_y, grid_z] = self.blocks();
        let [block_x, block_y, block_z] = self.block.map(|size| size.max(1));
        // SAFETY: the number of parameters matches where the driver reports it, and the caller
        // guarantees that each points to a value; the stream is alive.
        let queued = unsafe {
            device.driver().cuLaunchKernel(
                loaded.function(),
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                self.shared_bytes,
                stream.native(),
                parameters.as_mut_ptr(),
                null_mut(),
            )
        };
        explained(queued)
    }

    #[cold]
    fn queue_with_attributes(
        &self,
        device: &Device,
        loaded: &Loaded,
        parameters: &mut [*mut c_void],
        stream: &Stream,
    ) -> Result<()> {
        self.check(device)?;
        if let Some(cluster) = self.named_cluster() {
            self.check_cluster(device, loaded, stream, cluster)?;
        }
        // A refused launch would invalidate a capture.
        if self.is_cooperative {
            let blocks = product(self.blocks());
            let most = limits::cooperative_blocks(device, loaded, self, stream)?;
            if blocks > most {
                return Err(Error::Blocks {
                    name: "grid",
                    blocks,
                    most,
                    rule: "of these fit on the stream's multiprocessors at the same time, as a \
                           cooperative launch needs; launch fewer",
                });
            }
        }
        let mut list = self.attributes(limits::has_clusters(device)?);
        let config = self.config(self.blocks(), stream, &mut list);
        let function = loaded.function();
        // SAFETY: as in `queue`; the list outlives the call.
        explained(unsafe {
            device.driver().cuLaunchKernelEx(&config, function, parameters.as_mut_ptr(), null_mut())
        })
    }

    /// What it asks of a device with clusters and programmatic launches, or without.
    fn attributes(&self, has_clusters: bool) -> AttributeList {
        let mut list = AttributeList::new();
        if let Some(cluster) = self.named_cluster() {
            list.add_cluster(cluster);
        }
        if self.is_cooperative {
            list.add_cooperative();
        }
        // It is a permission, of which older devices make no use.
        if self.is_programmatic && has_clusters {
            list.add_programmatic();
        }
        if self.priority != 0 {
            list.add_priority(self.priority);
        }
        if self.shared_carveout != 0 {
            list.add_carveout(self.shared_carveout);
        }
        list
    }

    fn check_cluster(
        &self,
        device: &Device,
        loaded: &Loaded,
        stream: &Stream,
        cluster: [u32; 3],
    ) -> Result<()> {
        let grid = self.blocks();
        if grid.iter().zip(cluster).any(|(blocks, size)| blocks % size != 0) {
            return Err(Error::Cluster { cluster, grid });
        }
        let required = loaded.required_cluster(device)?;
        if required != [0; 3] && required != cluster {
            return Err(Error::OtherCluster { cluster, required });
        }
        let blocks = product(cluster);
        if blocks > PORTABLE_CLUSTER {
            let most = limits::largest_cluster(device, loaded, self, stream)?;
            if blocks > most {
                return Err(Error::Blocks {
                    name: "cluster",
                    blocks,
                    most,
                    rule: "of this size fit in a cluster on this device; use fewer",
                });
            }
        }
        Ok(())
    }

    /// What the driver reads of it. The list must outlive the result.
    pub(super) fn config(
        &self,
        grid: [u32; 3],
        stream: &Stream,
        list: &mut AttributeList,
    ) -> CUlaunchConfig {
        let block = self.block.map(|size| size.max(1));
        CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: self.shared_bytes,
            hStream: stream.native(),
            attrs: list.list.as_mut_ptr(),
            numAttrs: list.count as u32,
        }
    }
}

/// The attributes of a launch, as the driver reads them.
pub(super) struct AttributeList {
    list: [CUlaunchAttribute; ATTRIBUTES],
    count: usize,
}

impl AttributeList {
    /// None.
    pub(super) fn new() -> AttributeList {
        let none = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
            pad: [0; 4],
            value: CUlaunchAttributeValue { pad: [0; 64] },
        };
        AttributeList { list: [none; ATTRIBUTES], count: 0 }
    }

    fn add(&mut self, id: CUlaunchAttributeID, set: impl FnOnce(&mut CUlaunchAttributeValue)) {
        if let Some(attribute) = self.list.get_mut(self.count) {
            attribute.id = id;
            set(&mut attribute.value);
            self.count += 1;
        }
    }

    /// The blocks of a cluster in x, y and z.
    pub(super) fn add_cluster(&mut self, [x, y, z]: [u32; 3]) {
        self.add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, |value| {
            value.clusterDim.x = x;
            value.clusterDim.y = y;
            value.clusterDim.z = z;
        });
    }

    fn add_cooperative(&mut self) {
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        self.add(id, |value| value.cooperative = 1);
    }

    fn add_programmatic(&mut self) {
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        self.add(id, |value| value.programmaticStreamSerializationAllowed = 1);
    }

    fn add_priority(&mut self, priority: i32) {
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
        self.add(id, |value| value.priority = priority);
    }

    fn add_carveout(&mut self, percent: i32) {
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        self.add(id, |value| value.sharedMemCarveout = percent.unsigned_abs());
    }
}

/// The product of a size in x, y and z.
pub(super) fn product(size: [u32; 3]) -> u64 {
    size.iter().fold(1, |all: u64, size| all.saturating_mul((*size).into()))
}

/// The outcome of a launch. What is too large is the caller's mistake, also where only the driver
/// detects it.
fn explained(queued: CudaResult) -> Result<()> {
    queued.map_err(|error: CudaError| match error.code {
        code::INVALID_CLUSTER_SIZE => Error::Invalid(
            "the launch does not fit the kernel's clusters: the grid is a multiple of the cluster, \
             which the kernel's code may name (__cluster_dims__), and tcuda_kernel_properties has \
             the largest",
        ),
        code::COOPERATIVE_LAUNCH_TOO_LARGE => Error::Invalid(
            "not all blocks of the cooperative launch fit on the device at the same time; launch \
             fewer (tcuda_kernel_properties)",
        ),
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use CUlaunchAttributeID::*;

    /// The attributes of a launch, each with the first words of its value.
    fn attributes(launch: Launch, has_clusters: bool) -> Vec<(CUlaunchAttributeID, [i32; 3])> {
        let list = launch.attributes(has_clusters);
        let words = |value: CUlaunchAttributeValue| {
            // SAFETY: all bytes are initialised, and every value is one.
            let bytes = unsafe { value.pad };
            [0, 4, 8].map(|at| i32::from_ne_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte] as u8)))
        };
        let used = list.list[..list.count].iter();
        used.map(|attribute| (attribute.id, words(attribute.value))).collect()
    }

    #[test]
    fn every_option_is_an_attribute() {
        let none = Launch::default();
        assert!(none.is_plain() && attributes(none, true).is_empty());
        let expected = [
            (CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, [2, 3, 1]),
            (CU_LAUNCH_ATTRIBUTE_COOPERATIVE, [1, 0, 0]),
            (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, [1, 0, 0]),
            (CU_LAUNCH_ATTRIBUTE_PRIORITY, [-3, 0, 0]),
            (CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, [70, 0, 0]),
        ];
        let single = [
            Launch { cluster: [2, 3, 0], ..none },
            Launch { is_cooperative: true, ..none },
            Launch { is_programmatic: true, ..none },
            Launch { priority: -3, ..none },
            Launch { shared_carveout: 70, ..none },
        ];
        for (launch, attribute) in single.into_iter().zip(expected) {
            assert!(!launch.is_plain());
            assert_eq!(attributes(launch, true), [attribute]);
        }
        let all = Launch {
            cluster: [2, 3, 0],
            is_cooperative: true,
            is_programmatic: true,
            priority: -3,
            shared_carveout: 70,
            ..none
        };
        assert_eq!(attributes(all, true), expected);
        assert!(attributes(single[2], false).is_empty());
    }

    #[test]
    fn sizes_of_zero_are_one() {
        let launch = Launch { cluster: [0, 4, 0], block: [0, 8, 0], ..Launch::default() };
        assert_eq!(launch.named_cluster(), Some([1, 4, 1]));
        assert_eq!((launch.blocks(), launch.threads()), ([1; 3], 8));
        assert_eq!(Launch::default().named_cluster(), None);
        let large = Launch { block: [u32::MAX; 3], ..Launch::default() };
        assert_eq!(large.threads(), i32::MAX);
    }
}
