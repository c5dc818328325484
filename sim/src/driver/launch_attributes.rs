//! The attributes of a launch.

use super::arguments::{peek, require};
use super::stream_attributes::Window;
use crate::base::code;
use cudarc::driver::sys::{CUevent, CUlaunchAttribute, CUlaunchConfig};
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;

/// Number of domains of memory synchronisation.
const SYNC_DOMAINS: u8 = 4;

/// What the attributes of a launch determine. Those that change neither results nor the order of
/// work are only checked.
#[derive(Default)]
pub(super) struct Attributes {
    /// The blocks of a cluster in x, y and z.
    pub(super) cluster: Option<[c_uint; 3]>,
    /// A multiple of them that the device may prefer.
    pub(super) preferred: Option<[c_uint; 3]>,
    /// All blocks are to be resident at the same time.
    pub(super) is_cooperative: bool,
    /// Events to record with the launch.
    pub(super) events: Vec<CUevent>,
    /// The launch's node in a graph is to be changed by kernels.
    pub(super) is_updatable: bool,
}

impl Attributes {
    /// Reads the attributes of a configuration.
    pub(super) fn read(config: &CUlaunchConfig) -> Result<Attributes, i32> {
        let mut read = Attributes::default();
        require(config.numAttrs == 0 || !config.attrs.is_null(), code::INVALID_VALUE)?;
        for index in 0..config.numAttrs as usize {
            read.set(config.attrs.wrapping_add(index))?;
        }
        if let (Some(own), Some(preferred)) = (read.cluster, read.preferred) {
            let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
            let is_valid = (0..3).all(|d| {
                preferred[d] > 0
                    && preferred[d].is_multiple_of(own[d])
                    && grid[d].is_multiple_of(preferred[d])
            });
            require(is_valid, code::INVALID_CLUSTER_SIZE)?;
        }
        Ok(read)
    }

    fn set(&mut self, attribute: *const CUlaunchAttribute) -> Result<(), i32> {
        // Read as an integer, since a host may pass any value.
        let id = peek!(attribute.cast::<c_uint>())?;
        let value = attribute.cast::<u8>().wrapping_add(offset_of!(CUlaunchAttribute, value));
        self.set_value(id, value)
    }

    /// Sets the attribute of a number from its `CUlaunchAttributeValue`.
    pub(super) fn set_value(&mut self, id: c_uint, value: *const u8) -> Result<(), i32> {
        let number = peek!(value.cast::<c_int>())?;
        // In the order of `CUlaunchAttributeID`.
        match id {
            0 => (),
            1 => require(peek!(value.cast::<Window>())?.is_valid(), code::INVALID_VALUE)?,
            2 => self.is_cooperative = number != 0,
            // A policy of streams.
            3 => return Err(code::INVALID_VALUE),
            4 => self.cluster = Some(peek!(value.cast::<[c_uint; 3]>())?),
            // How clusters are scheduled.
            5 => require((0..=2).contains(&number), code::INVALID_VALUE)?,
            // The kernel may begin before the one before it has ended, and the priority.
            6 | 8 => (),
            // A programmatic event, and one that tells that all blocks have begun. Both may come
            // as late as the end of the kernel.
            7 | 12 => self.events.push(peek!(value.cast::<CUevent>())?),
            9 => {
                let [own, remote] = peek!(value.cast::<[u8; 2]>())?;
                require(own.max(remote) < SYNC_DOMAINS, code::INVALID_VALUE)?;
            }
            10 => require((0..=1).contains(&number), code::INVALID_VALUE)?,
            11 => self.preferred = Some(peek!(value.cast::<[c_uint; 3]>())?),
            13 => {
                require((0..=1).contains(&number), code::INVALID_VALUE)?;
                self.is_updatable = number == 1;
            }
            // The share of shared memory.
            14 => require((-1..=100).contains(&number), code::INVALID_VALUE)?,
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    }
}
