//! Attributes of functions: those of the code, and those that the host sets.

use super::arguments::require;
use super::config::Config;
use super::kernel;
use crate::base::code;
use crate::exec;
use cudarc::driver::sys::CUfunction_attribute;
use std::ffi::{c_int, c_uint};

/// Registers of a thread, unless the code or the host limits them. The executor has any number.
const REGISTERS: c_uint = 32;

/// What the host can set of a function; `None`: not set.
#[derive(Clone, Copy, Default)]
pub(super) struct Settings {
    most_shared: Option<usize>,
    carveout: Option<c_int>,
    cluster: [Option<c_uint>; 3],
    non_portable_cluster: Option<bool>,
    cluster_scheduling: Option<c_int>,
}

impl Settings {
    /// The same settings, and those of `other` where nothing is set.
    pub(super) fn or(self, other: Settings) -> Settings {
        Settings {
            most_shared: self.most_shared.or(other.most_shared),
            carveout: self.carveout.or(other.carveout),
            cluster: std::array::from_fn(|d| self.cluster[d].or(other.cluster[d])),
            non_portable_cluster: self.non_portable_cluster.or(other.non_portable_cluster),
            cluster_scheduling: self.cluster_scheduling.or(other.cluster_scheduling),
        }
    }

    /// The most dynamic shared memory of a block.
    pub(super) fn most_shared(&self, kernel: &exec::Kernel) -> usize {
        let standard = kernel::DEFAULT_SHARED_PER_BLOCK.saturating_sub(kernel.shared_bytes);
        self.most_shared.unwrap_or(standard)
    }

    /// The blocks of a cluster in x, y and z, by the code or else the host; zeros: not determined.
    pub(super) fn cluster(&self, kernel: &exec::Kernel) -> [c_uint; 3] {
        kernel.required_cluster().unwrap_or(self.cluster.map(|size| size.unwrap_or(0)))
    }

    /// The most blocks of a cluster.
    pub(super) fn most_clustered(&self, kernel: &exec::Kernel) -> c_uint {
        let most = match self.non_portable_cluster {
            Some(true) => kernel::MAX_NON_PORTABLE_CLUSTER,
            _ => kernel::MAX_CLUSTER,
        };
        kernel.limit(".maxclusterrank").map_or(most, |limit| limit.min(most))
    }

    /// Sets an attribute.
    pub(super) fn set(
        &mut self,
        config: &Config,
        kernel: &exec::Kernel,
        attribute: CUfunction_attribute,
        value: c_int,
    ) -> Result<(), i32> {
        use CUfunction_attribute::*;
        match attribute {
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let room = config.model.shared_per_block.saturating_sub(kernel.shared_bytes);
                let most = usize::try_from(value).ok().filter(|most| *most <= room);
                self.most_shared = Some(most.ok_or(code::INVALID_VALUE)?);
            }
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {
                require((-1..=100).contains(&value), code::INVALID_VALUE)?;
                self.carveout = Some(value);
            }
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH => self.set_cluster(kernel, 0, value)?,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT => self.set_cluster(kernel, 1, value)?,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => self.set_cluster(kernel, 2, value)?,
            CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                require(matches!(value, 0 | 1), code::INVALID_VALUE)?;
                self.non_portable_cluster = Some(value == 1);
            }
            CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                require((0..=2).contains(&value), code::INVALID_VALUE)?;
                self.cluster_scheduling = Some(value);
            }
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }

    fn set_cluster(&mut self, kernel: &exec::Kernel, d: usize, size: c_int) -> Result<(), i32> {
        require(kernel.required_cluster().is_none(), code::INVALID_VALUE)?;
        self.cluster[d] = Some(c_uint::try_from(size).map_err(|_| code::INVALID_VALUE)?);
        Ok(())
    }

    /// The value of an attribute on a device of this configuration.
    pub(super) fn get(
        &self,
        config: &Config,
        kernel: &exec::Kernel,
        attribute: CUfunction_attribute,
    ) -> Result<c_int, i32> {
        use CUfunction_attribute::*;
        let cluster = self.cluster(kernel);
        Ok(match attribute {
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => kernel.most_threads() as c_int,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => kernel.shared_bytes as c_int,
            CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => kernel.function().frame as c_int,
            CU_FUNC_ATTRIBUTE_PTX_VERSION => kernel.program().target as c_int,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH => cluster[0] as c_int,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT => cluster[1] as c_int,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => cluster[2] as c_int,
            CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET => c_int::from(kernel.needs_cluster()),
            CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES => kernel.program().constant_bytes() as c_int,
            CU_FUNC_ATTRIBUTE_CACHE_MODE_CA => 0,
            CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                self.non_portable_cluster.unwrap_or(false).into()
            }
            CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                self.cluster_scheduling.unwrap_or(0)
            }
            CU_FUNC_ATTRIBUTE_NUM_REGS => registers(kernel) as c_int,
            CU_FUNC_ATTRIBUTE_BINARY_VERSION => config.capability() as c_int,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => self.most_shared(kernel) as c_int,
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => self.carveout.unwrap_or(-1),
            _ => return Err(code::INVALID_VALUE),
        })
    }
}

/// Registers of each thread of a kernel.
pub(super) fn registers(kernel: &exec::Kernel) -> c_uint {
    kernel.limit(".maxnreg").map_or(REGISTERS, |most| most.clamp(1, REGISTERS))
}
