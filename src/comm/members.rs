//! Who takes part in a call, on which streams, and whose memory is used there.

use super::check::{self, Home};
use super::outs::Target;
use super::team::{Devices, Team};
use crate::device::MAX_DEVICES;
use crate::error::Result;
use crate::memory;
use crate::runtime::Runtime;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// The streams of a call, one for each device.
pub struct Members<'a> {
    runtime: &'a Runtime,
    streams: [Option<&'a Stream>; MAX_DEVICES],
}

impl<'a> Members<'a> {
    /// Nobody yet.
    pub fn new(runtime: &'a Runtime) -> Members<'a> {
        Members { runtime, streams: [None; MAX_DEVICES] }
    }

    /// Can a device take part on a stream: does it not on another?
    pub fn accepts(&self, stream: &Stream) -> bool {
        let known = self.streams[stream.device() as usize % MAX_DEVICES];
        known.is_none_or(|known| std::ptr::eq(known, stream))
    }

    /// A device takes part on a stream, unless it does already.
    pub fn add(&mut self, stream: &'a Stream) {
        self.streams[stream.device() as usize % MAX_DEVICES].get_or_insert(stream);
    }

    /// A device takes part on its current stream, unless it does already.
    pub fn add_device(&mut self, device: i32) -> Result<()> {
        if self.streams[device as usize % MAX_DEVICES].is_none() {
            self.add(check::current(self.runtime, device)?);
        }
        Ok(())
    }

    /// The device that a tensor is on takes part.
    pub fn add_home(&mut self, home: Home) -> Result<()> {
        home.device().map_or(Ok(()), |device| self.add_device(device))
    }

    /// The device that an output is to be on takes part.
    pub fn add_target(&mut self, target: Target<'a>) {
        if let Some(stream) = target.stream() {
            self.add(stream);
        }
    }

    /// All of them. In a capture those join it that have not: what is allocated on their streams from
    /// then on is the capture's.
    pub fn team(&self) -> Result<Team<'a>> {
        let mut list: [Option<&'a Stream>; MAX_DEVICES] = [None; MAX_DEVICES];
        let mut len = 0;
        for stream in self.streams.iter().flatten() {
            list[len] = Some(stream);
            len += 1;
        }
        let team = match list[0] {
            None => Team::new(self.runtime, &[])?,
            Some(first) => {
                let list: [&'a Stream; MAX_DEVICES] = list.map(|stream| stream.unwrap_or(first));
                Team::new(self.runtime, &list[..len])?
            }
        };
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
