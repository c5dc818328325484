//! The devices that take part in a collective call, their streams, and who waits for whom.
//!
//! A device's part is ordered on one stream of it. Work that touches memory of several devices runs on
//! some of these streams, between waits: it comes after all that matters on the others, and they come
//! after it. A stream with nothing left to do needs no event. (docs/collectives.md counts the calls.)

use crate::device::MAX_DEVICES;
use crate::driver::sys::CUpointer_attribute;
use crate::driver::{CudaError, code};
use crate::error::{Error, Result};
use crate::memory::{Relaxed, virtual_memory};
use crate::runtime::Runtime;
use crate::stream::Stream;
use crate::text::Text;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// A set of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Devices(u64);

impl Devices {
    /// One device.
    pub fn one(device: i32) -> Devices {
        Devices(1 << (device as u32 % MAX_DEVICES as u32))
    }

    /// With another.
    pub fn add(&mut self, device: i32) {
        self.0 |= Devices::one(device).0;
    }

    /// Without one.
    pub fn without(self, device: i32) -> Devices {
        Devices(self.0 & !Devices::one(device).0)
    }

    /// Is it one of them?
    pub fn has(self, device: i32) -> bool {
        self.0 & Devices::one(device).0 != 0
    }

    /// How many.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// None?
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = i32> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let device = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            (device < MAX_DEVICES as u32).then_some(device as i32)
        })
    }
}

impl FromIterator<i32> for Devices {
    fn from_iter<I: IntoIterator<Item = i32>>(devices: I) -> Devices {
        let mut set = Devices::default();
        devices.into_iter().for_each(|device| set.add(device));
        set
    }
}

/// The devices and streams of a call.
pub struct Team<'a> {
    runtime: &'a Runtime,
    streams: [Option<&'a Stream>; MAX_DEVICES],
    devices: Devices,
    /// Whose streams are captured.
    captured: Cell<Devices>,
}

impl<'a> Team<'a> {
    /// `members`: the stream on which a device's part is ordered, each device once.
    pub fn new(runtime: &'a Runtime, members: &[&'a Stream]) -> Result<Team<'a>> {
        let mut team = Team {
            runtime,
            streams: [None; MAX_DEVICES],
            devices: Devices::default(),
            captured: Cell::default(),
        };
        for stream in members {
            let device = runtime.device(stream.device())?.ordinal();
            if team.devices.has(device) {
                return Err(Error::Internal(Text::new("a device twice in a collective call")));
            }
            team.streams[device as usize] = Some(stream);
            team.devices.add(device);
            if stream.is_capturing(runtime)? {
                let mut captured = team.captured.get();
                captured.add(device);
                team.captured.set(captured);
            }
        }
        Ok(team)
    }

    /// The runtime.
    pub fn runtime(&self) -> &'a Runtime {
        self.runtime
    }

    /// Who takes part.
    pub fn devices(&self) -> Devices {
        self.devices
    }

    /// The stream of a device; of one that takes no part, the current one.
    pub fn stream(&self, device: i32) -> &'a Stream {
        debug_assert!(self.devices.has(device), "device {device} takes no part");
        let known = self.streams.get(device as usize).copied().flatten();
        known.unwrap_or_else(|| self.runtime.devices[device as usize].streams.current())
    }

    /// Is any of the streams captured?
    pub fn is_capturing(&self) -> bool {
        !self.captured.get().is_empty()
    }

    /// Can kernels and copies of device `from` use the memory of device `to`? Lets them, where that was
    /// not done before.
    pub fn reaches(&self, from: i32, to: i32) -> Result<bool> {
        if from == to {
            return Ok(true);
        }
        let (device, peer) = (self.runtime.device(from)?, self.runtime.device(to)?);
        if device.has_peer(to) {
            return Ok(true);
        }
        let bit = 1u64 << (to as u32 % MAX_DEVICES as u32);
        if device.comm.refused_peers.load(Ordering::Relaxed) & bit != 0 {
            return Ok(false);
        }
        let refused = if !device.can_access(peer)? {
            true
        } else if self.is_capturing() {
            return Err(Error::Capturing {
                operation: "the first collective call between two devices",
                why: "call tcuda_device_enable_peer_access, or the same function, before the \
                      capture",
            });
        } else {
            match device.enable_peer(peer) {
                Ok(()) => false,
                Err(Error::NotSupported { .. }) => true,
                // Some machines allow a device eight peers.
                Err(Error::Cuda(CudaError {
                    code: code::PEER_ACCESS_UNSUPPORTED | code::TOO_MANY_PEERS,
                    ..
                })) => true,
                Err(error) => return Err(error),
            }
        };
        if refused {
            device.comm.refused_peers.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(!refused)
    }

    /// Can device `by` use memory of device `owner` at an address? What is not the library's own may be
    /// mapped for its owner alone, and a kernel that touches it would cost the context.
    pub fn can_use(&self, by: i32, owner: i32, address: u64) -> Result<bool> {
        if by == owner {
            return Ok(true);
        }
        if !self.reaches(by, owner)? {
            return Ok(false);
        }
        if virtual_memory::device_of(address).is_some() {
            return Ok(true);
        }
        const READ_AND_WRITE: u32 = 3;
        let device = self.runtime.device(by)?;
        let _relaxed = Relaxed::enter(self.runtime.driver());
        let _context = device.enter()?;
        let mut flags = 0u32;
        let data = std::ptr::from_mut(&mut flags).cast::<c_void>();
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
        // SAFETY: the attribute is an integer of this size; the driver only looks the address up.
        match unsafe { self.runtime.driver().cuPointerGetAttribute(data, attribute, address) } {
            Ok(()) => Ok(flags == READ_AND_WRITE),
            Err(error) if matches!(error.code, code::INVALID_VALUE | code::NOT_SUPPORTED) => {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Where some of the streams are captured, the others join that capture: what is queued on them from
    /// now on belongs to it. Comes before anything is queued.
    pub fn begin(&self) -> Result<()> {
        let captured = self.captured.get();
        let Some(first) = captured.iter().next() else { return Ok(()) };
        let mut others = self.devices;
        captured.iter().for_each(|device| others = others.without(device));
        if !others.is_empty() {
            self.wait_for(self.stream(first), others)?;
            self.captured.set(self.devices);
        }
        Ok(())
    }

    /// Makes a stream come after what the streams of some devices hold, before it gets work.
    pub fn come_after(&self, stream: &Stream, devices: Devices) -> Result<()> {
        let others = devices.without(stream.device());
        let busy = self.busy(others)?;
        busy.iter().try_for_each(|device| self.wait(stream, self.stream(device)))
    }

    /// Those of the devices whose streams still have work.
    pub fn busy(&self, devices: Devices) -> Result<Devices> {
        if devices.is_empty() || self.is_capturing() {
            return Ok(devices);
        }
        // A capture of another thread's forbids to ask.
        let _relaxed = Relaxed::enter(self.runtime.driver());
        let mut busy = devices;
        for device in devices.iter() {
            if self.stream(device).is_done(self.runtime)? {
                busy = busy.without(device);
            }
        }
        Ok(busy)
    }

    /// Makes the streams of some devices come after what `stream` holds, work that was queued. Where
    /// that fails the host waits: nobody may use the memory before.
    pub fn release(&self, stream: &Stream, devices: Devices) -> Result<()> {
        let outcome = self.wait_for(stream, devices.without(stream.device()));
        if outcome.is_err() && !self.is_capturing() {
            let _ = stream.synchronize(self.runtime);
        }
        outcome
    }

    fn wait(&self, stream: &Stream, other: &Stream) -> Result<()> {
        stream.wait_stream(self.runtime, other)
    }

    /// Makes the streams of some devices wait for `stream`: one event for all.
    fn wait_for(&self, stream: &Stream, devices: Devices) -> Result<()> {
        if devices.is_empty() {
            return Ok(());
        }
        let device = self.runtime.device(stream.device())?;
        let event = device.events.take_untimed(device)?;
        let waits = |device| self.stream(device).wait(self.runtime, event);
        let outcome =
            stream.record(self.runtime, event).and_then(|()| devices.iter().try_for_each(waits));
        device.events.give_untimed(event);
        outcome
    }
}
