//! The devices that take part in a call, the stream of each, and the memory that they use.

use super::check::{self, MemoryKind};
use super::team::{Devices, INLINE_CAPACITY, Team};
use crate::base::error::Result;
use crate::base::inline_vec::Few;
use crate::collectives::outputs::Target;
use crate::driver::sync_debug;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory;
use crate::tensor::Tensor;

/// The streams of a call, one for each device.
pub struct Members<'a> {
    gpus: &'a Gpus,
    streams: Few<&'a Stream, INLINE_CAPACITY>,
}

impl<'a> Members<'a> {
    /// No members.
    pub fn new(gpus: &'a Gpus) -> Members<'a> {
        Members { gpus, streams: Few::new() }
    }

    fn of(&self, device: i32) -> Option<&'a Stream> {
        self.streams.iter().find(|stream| stream.device() == device).copied()
    }

    /// Does its device take part on this stream, or not at all yet?
    pub fn accepts(&self, stream: &Stream) -> bool {
        self.of(stream.device()).is_none_or(|known| std::ptr::eq(known, stream))
    }

    /// Adds the stream's device, unless the device takes part already.
    pub fn add(&mut self, stream: &'a Stream) -> Result<()> {
        match self.of(stream.device()) {
            Some(_) => Ok(()),
            None => self.streams.push(stream),
        }
    }

    /// Adds a device on its current stream, unless it takes part already.
    pub fn add_device(&mut self, device: i32) -> Result<()> {
        match self.of(device) {
            Some(_) => Ok(()),
            None => self.streams.push(check::current(self.gpus, device)?),
        }
    }

    /// Adds the device of a tensor.
    pub fn add_kind(&mut self, kind: MemoryKind) -> Result<()> {
        kind.device().map_or(Ok(()), |device| self.add_device(device))
    }

    /// Adds the device of an output.
    pub fn add_target(&mut self, target: Target<'a>) -> Result<()> {
        target.stream().map_or(Ok(()), |stream| self.add(stream))
    }

    /// Makes the team. In a capture the other streams join it, so that later allocations on them
    /// belong to the capture.
    pub fn team(&self) -> Result<Team<'a>> {
        let team = Team::new(self.gpus, &self.streams)?;
        team.begin()?;
        Ok(team)
    }
}

/// Waits for the streams of devices that write host memory. In a capture it does not wait, because
/// a launch of the graph writes the memory.
pub fn wait_for(team: &Team<'_>, devices: Devices) -> Result<()> {
    if team.is_capturing() {
        return Ok(());
    }
    // The allocation of the outputs has checked the sync debug mode.
    let _documented = sync_debug::documented();
    devices.iter().try_for_each(|device| team.stream(device).wait_for_host(team.gpus()))
}

/// Records that a tensor's memory is used on its device's stream of the team. Its block may belong
/// to another stream, and be freed before the work completes.
pub fn record(team: &Team<'_>, kind: MemoryKind, tensor: &Tensor) -> Result<()> {
    match kind.device() {
        Some(device) if tensor.numel > 0 => {
            memory::record_around(tensor.address, tensor.data, team.stream(device))
        }
        _ => Ok(()),
    }
}
