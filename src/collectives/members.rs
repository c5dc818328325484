//! Who takes part in a call, on which streams, and whose memory is used there.

use super::check::{self, Home};
use super::team::{Devices, MOST, Team};
use crate::base::error::Result;
use crate::base::inline_vec::Few;
use crate::collectives::outputs::Target;
use crate::gpu::stream::Stream;
use crate::gpu::sync_debug;
use crate::memory;
use crate::runtime::Runtime;
use crate::tensor::Tensor;

/// The streams of a call, one for each device.
pub struct Members<'a> {
    runtime: &'a Runtime,
    streams: Few<&'a Stream, MOST>,
}

impl<'a> Members<'a> {
    /// Nobody yet.
    pub fn new(runtime: &'a Runtime) -> Members<'a> {
        Members { runtime, streams: Few::new() }
    }

    fn of(&self, device: i32) -> Option<&'a Stream> {
        self.streams.iter().find(|stream| stream.device() == device).copied()
    }

    /// Can a device take part on a stream: does it not on another?
    pub fn accepts(&self, stream: &Stream) -> bool {
        self.of(stream.device()).is_none_or(|known| std::ptr::eq(known, stream))
    }

    /// A device takes part on a stream, unless it does already.
    pub fn add(&mut self, stream: &'a Stream) -> Result<()> {
        match self.of(stream.device()) {
            Some(_) => Ok(()),
            None => self.streams.push(stream),
        }
    }

    /// A device takes part on its current stream, unless it does already.
    pub fn add_device(&mut self, device: i32) -> Result<()> {
        match self.of(device) {
            Some(_) => Ok(()),
            None => self.streams.push(check::current(self.runtime, device)?),
        }
    }

    /// The device that a tensor is on takes part.
    pub fn add_home(&mut self, home: Home) -> Result<()> {
        home.device().map_or(Ok(()), |device| self.add_device(device))
    }

    /// The device that an output is to be on takes part.
    pub fn add_target(&mut self, target: Target<'a>) -> Result<()> {
        target.stream().map_or(Ok(()), |stream| self.add(stream))
    }

    /// All of them. In a capture those join it that have not: what is allocated on their streams from
    /// then on is the capture's.
    pub fn team(&self) -> Result<Team<'a>> {
        let team = Team::new(self.runtime, &self.streams)?;
        team.begin()?;
        Ok(team)
    }
}

/// Waits for the streams of some devices, where the host is to have what they write. In a capture it has
/// that after a launch.
pub fn wait_for(team: &Team<'_>, devices: Devices) -> Result<()> {
    if team.is_capturing() {
        return Ok(());
    }
    // It was judged where the outputs were made.
    let _meant = sync_debug::meant();
    devices.iter().try_for_each(|device| team.stream(device).wait_for_host(team.runtime()))
}

/// Says that the memory of a tensor is used on the stream on which its device takes part. It may
/// belong to another, and be freed before the work is done.
pub fn record(team: &Team<'_>, home: Home, tensor: &Tensor) -> Result<()> {
    match home.device() {
        Some(device) if tensor.numel > 0 => {
            memory::record_around(tensor.address, tensor.data, team.stream(device))
        }
        _ => Ok(()),
    }
}
