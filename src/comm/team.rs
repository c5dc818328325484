//! The devices that take part in a collective call, their streams, and who waits for whom.
//!
//! A device's part is ordered on one stream of it. Work that touches memory of several devices runs
//! on some of these streams, between waits: it comes after all that matters on the others, and they
//! come after it. Nobody asks whether a stream is idle: that takes as long as to wait for it
//! (docs/collectives.md counts the calls).

use super::path::Part;
use crate::device::MAX_DEVICES;
use crate::driver::sys::CUpointer_attribute;
use crate::driver::{CudaError, code};
use crate::error::{Error, Result};
use crate::memory::{self, virtual_memory};
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
    pub fn with(self, device: i32) -> Devices {
        Devices(self.0 | Devices::one(device).0)
    }

    /// Takes one in.
    pub fn add(&mut self, device: i32) {
        *self = self.with(device);
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
    pub fn iter(self) -> impl Iterator<Item = i32> + Clone {
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

/// A stream that gets work of a call, and the devices whose memory that touches.
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    /// A member's, or one of the library's own.
    pub stream: &'a Stream,
    /// Theirs.
    pub touches: Devices,
}

/// Pieces of memory of others that a question remembers.
const KNOWN: usize = 8;

/// From more waits than this on, streams come after the work of several devices through one of
/// them. A wait for another device's event costs the host 1.3 us, and a device that waits for two
/// such events, one after the other, about 8 us more than for one (H200).
const MOST_PAIRS: usize = 12;

/// Do all of them touch the memory of the same devices?
fn are_alike(workers: &[Worker]) -> bool {
    workers.iter().all(|worker| worker.touches == workers[0].touches)
}

/// The first of each device: waits among streams of one device cost little.
fn leaders<'w, 'a>(workers: &'w [Worker<'a>]) -> impl Iterator<Item = &'w Worker<'a>> {
    let is_first = |index: usize| {
        let device = workers[index].stream.device();
        workers[..index].iter().all(|worker| worker.stream.device() != device)
    };
    (0..workers.len()).filter(move |index| is_first(*index)).map(|index| &workers[index])
}

/// The others of its device.
fn followers<'w, 'a>(
    workers: &'w [Worker<'a>],
    leader: &'w Worker<'a>,
) -> impl Iterator<Item = &'w Worker<'a>> {
    let is_other = |worker: &&Worker| {
        worker.stream.device() == leader.stream.device() && !std::ptr::eq(*worker, leader)
    };
    workers.iter().filter(is_other)
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

    /// Can kernels and copies of device `from` use the memory of device `to`? Lets them, where that
    /// was not done before.
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

    /// Can device `by` use memory of device `owner` at an address?
    pub fn can_use(&self, by: i32, owner: i32, address: u64) -> Result<bool> {
        self.can_all_use(Devices::one(by), [Part { device: owner, address }].into_iter())
    }

    /// Can all of some devices use all these parts? Memory that is not the library's own may be
    /// mapped for its owner alone, and a kernel that touches it would cost the context.
    pub fn can_all_use(&self, by: Devices, parts: impl Iterator<Item = Part>) -> Result<bool> {
        let mut reached = Devices::default();
        // Of tensors of others many lie in one piece of memory.
        let (mut known, mut others) = ([(0, 0); KNOWN], 0);
        for part in parts {
            if !reached.has(part.device) {
                for device in by.iter() {
                    if !self.reaches(device, part.device)? {
                        return Ok(false);
                    }
                }
                reached.add(part.device);
            }
            let users = by.without(part.device);
            if users.is_empty() || virtual_memory::device_of(part.address).is_some() {
                continue;
            }
            let is_within = |range: &(u64, u64)| part.address.wrapping_sub(range.0) < range.1;
            if known.iter().any(is_within) {
                continue;
            }
            let _context = self.runtime.device(part.device)?.enter()?;
            let is_plain = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
            if self.asked::<u32>(is_plain, part.address)? == Some(1) {
                // The driver's own: whoever reaches the device has it.
                if others > 0 {
                    known[others % KNOWN] = self.range_around(part.address)?;
                }
                others += 1;
                continue;
            }
            for device in users.iter() {
                const READ_AND_WRITE: u32 = 3;
                let flags = CUpointer_attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
                let _context = self.runtime.device(device)?.enter()?;
                if self.asked::<u32>(flags, part.address)? != Some(READ_AND_WRITE) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The piece of memory that an address is in, and how long it is.
    fn range_around(&self, address: u64) -> Result<(u64, u64)> {
        use CUpointer_attribute::*;
        let start = self.asked::<u64>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address)?;
        let bytes = self.asked::<u64>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)?;
        Ok(start.zip(bytes).unwrap_or_default())
    }

    /// What the driver says of memory, in the current context; `None`: it knows nothing.
    fn asked<T: Default>(&self, attribute: CUpointer_attribute, address: u64) -> Result<Option<T>> {
        let mut value = T::default();
        let data = std::ptr::from_mut(&mut value).cast::<c_void>();
        // SAFETY: the value has the attribute's type; the driver only looks the address up.
        match unsafe { self.runtime.driver().cuPointerGetAttribute(data, attribute, address) } {
            Ok(()) => Ok(Some(value)),
            Err(error) if matches!(error.code, code::INVALID_VALUE | code::NOT_SUPPORTED) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Where some of the streams are captured, the others join that capture: what is queued on them
    /// from now on belongs to it. Comes before anything is queued.
    pub fn begin(&self) -> Result<()> {
        let captured = self.captured.get();
        let Some(first) = captured.iter().next() else { return Ok(()) };
        if captured != self.devices {
            let others = self.devices.iter().filter(|device| !captured.has(*device));
            let others: Devices = others.collect();
            let waits = others.iter().map(|device| self.stream(device));
            self.wait_for(self.stream(first), waits)?;
            self.captured.set(self.devices);
        }
        Ok(())
    }

    /// Makes a stream come after what the streams of some devices hold, before it gets work.
    pub fn come_after(&self, stream: &'a Stream, devices: Devices) -> Result<()> {
        self.line_up(&[Worker { stream, touches: devices }])
    }

    /// Makes the streams of some devices come after what `stream` holds, work that was queued.
    /// Where that fails the host waits: nobody may use the memory before.
    pub fn release(&self, stream: &'a Stream, devices: Devices) -> Result<()> {
        self.let_go(&[Worker { stream, touches: devices }])
    }

    /// Makes streams that get work come after all that matters to them.
    pub fn line_up(&self, workers: &[Worker<'a>]) -> Result<()> {
        let Some(first) = workers.first() else { return Ok(()) };
        // Through one of them there are fewer waits than pairs.
        if are_alike(workers) && leaders(workers).count() > 1 {
            self.come_after_members(first)?;
            let others = leaders(workers).skip(1).map(|worker| worker.stream);
            self.wait_for(first.stream, others)?;
        } else {
            let touched = leaders(workers).flat_map(|worker| worker.touches.iter()).collect();
            Devices::iter(touched).try_for_each(|device| {
                let waits = leaders(workers).filter(|worker| worker.touches.has(device));
                self.wait_for(self.stream(device), waits.map(|worker| worker.stream))
            })?;
        }
        leaders(workers).try_for_each(|leader| {
            let others = followers(workers, leader).map(|worker| worker.stream);
            self.wait_for(leader.stream, others)
        })
    }

    /// Makes the streams of devices come after the work that touches their memory. Where that fails
    /// the host waits: nobody may use the memory before.
    pub fn let_go(&self, workers: &[Worker<'a>]) -> Result<()> {
        let outcome = self.try_let_go(workers);
        if outcome.is_err() && !self.is_capturing() {
            for worker in workers {
                let _ = worker.stream.synchronize(self.runtime);
            }
        }
        outcome
    }

    fn try_let_go(&self, workers: &[Worker<'a>]) -> Result<()> {
        let Some(first) = workers.first() else { return Ok(()) };
        for leader in leaders(workers) {
            for follower in followers(workers, leader) {
                self.wait_for(follower.stream, [leader.stream].into_iter())?;
            }
        }
        let pairs: usize = leaders(workers).map(|worker| worker.touches.len() - 1).sum();
        if are_alike(workers) && pairs > MOST_PAIRS {
            for worker in leaders(workers).skip(1) {
                self.wait_for(worker.stream, [first.stream].into_iter())?;
            }
            return self.let_members_go(first);
        }
        if leaders(workers).nth(1).is_none() {
            return self.let_members_go(first);
        }
        // All are recorded before any is waited for: else they would come after each other.
        let mut events = Vec::new();
        let no_room = |_| Error::OutOfHostMemory("a collective call");
        events.try_reserve_exact(workers.len()).map_err(no_room)?;
        let outcome = leaders(workers).try_for_each(|worker| {
            let device = self.runtime.device(worker.stream.device())?;
            let event = device.events.take_untimed(device)?;
            events.push((worker, device, event));
            worker.stream.record(self.runtime, event)
        });
        let outcome = outcome.and_then(|()| {
            events.iter().try_for_each(|(worker, _, event)| {
                let members = worker.touches.iter().map(|device| self.stream(device));
                members
                    .filter(|member| !std::ptr::eq(*member, worker.stream))
                    .try_for_each(|member| member.wait(self.runtime, *event))
            })
        });
        events.iter().for_each(|(_, device, event)| device.events.give_untimed(*event));
        outcome
    }

    /// Where streams could not be joined: what was queued may use these parts although the streams
    /// of their devices do not come after it. Their blocks stay until it is over.
    pub fn keep(&self, workers: &[Worker<'a>], parts: impl Iterator<Item = Part> + Clone) {
        for worker in workers {
            for part in parts.clone() {
                let _ = memory::record_around(part.address, part.address, worker.stream);
            }
        }
    }

    fn come_after_members(&self, worker: &Worker<'a>) -> Result<()> {
        let waits = |device| self.wait_for(self.stream(device), [worker.stream].into_iter());
        worker.touches.iter().try_for_each(waits)
    }

    fn let_members_go(&self, worker: &Worker<'a>) -> Result<()> {
        self.wait_for(worker.stream, worker.touches.iter().map(|device| self.stream(device)))
    }

    /// Makes streams wait for what another holds now, with one event for all of them.
    fn wait_for<'b>(&self, stream: &Stream, waits: impl Iterator<Item = &'b Stream>) -> Result<()> {
        let mut waits = waits.filter(|other| !std::ptr::eq(*other, stream)).peekable();
        if waits.peek().is_none() {
            return Ok(());
        }
        let device = self.runtime.device(stream.device())?;
        let event = device.events.take_untimed(device)?;
        let outcome = stream
            .record(self.runtime, event)
            .and_then(|()| waits.try_for_each(|other| other.wait(self.runtime, event)));
        device.events.give_untimed(event);
        outcome
    }
}
