//! The team of a collective call: its devices, their streams, and the waits between them.
//!
//! The work of a device is ordered on one of its streams. Work that accesses memory of several
//! devices runs on workers between two rounds of waits. First the workers wait for the streams of
//! these devices, and afterwards these streams wait for the workers. No stream is queried for
//! idleness, because a query costs as much as a wait (`docs/collectives.md` counts the calls).

use super::contexts::Contexts;
use super::path::Part;
use crate::base::error::{Error, Result};
use crate::base::inline_vec::Few;
use crate::base::text::Text;
use crate::driver::sys::{CUevent, CUpointer_attribute};
use crate::driver::{CudaError, code, sync_debug};
use crate::gpu::device::{Device, MAX_DEVICES};
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{self, Stream};
use crate::memory;
use crate::memory::arena::addresses;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// A set of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Devices(u64);

impl Devices {
    /// A set of one device.
    pub fn one(device: i32) -> Devices {
        Devices(1 << (device as u32 % MAX_DEVICES as u32))
    }

    /// The set with one more device.
    pub fn with(self, device: i32) -> Devices {
        Devices(self.0 | Devices::one(device).0)
    }

    /// Adds a device.
    pub fn add(&mut self, device: i32) {
        *self = self.with(device);
    }

    /// The set without a device.
    pub fn without(self, device: i32) -> Devices {
        Devices(self.0 & !Devices::one(device).0)
    }

    /// Is the device in the set?
    pub fn has(self, device: i32) -> bool {
        self.0 & Devices::one(device).0 != 0
    }

    /// Number of devices.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Is the set empty?
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The devices, in ascending order.
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

/// A stream that runs work of a call, and the devices whose memory the work accesses.
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    /// A member's stream, or an internal stream.
    pub stream: &'a Stream,
    /// The devices whose memory it accesses.
    pub touches: Devices,
}

/// Capacity for devices, streams or tensors of a call without heap memory.
pub const INLINE_CAPACITY: usize = 16;

/// Capacity for rows without heap memory. Rows are large, so that it is that of eight devices.
pub const INLINE_ROWS: usize = 8;

/// Number of foreign memory ranges that [`Team::can_all_use`] remembers.
const KNOWN: usize = 8;

/// The most waits before streams of several devices wait through one of them. A wait for another
/// device's event costs the host 1.3 us. A device that waits for two such events in sequence takes
/// about 8 us longer than for one (H200).
const MAX_DIRECT_WAITS: usize = 12;

/// Do all workers access the memory of the same devices?
fn are_alike(workers: &[Worker]) -> bool {
    workers.iter().all(|worker| worker.touches == workers[0].touches)
}

/// The first worker of each device; waits between streams of one device are cheap.
fn leaders<'w, 'a>(workers: &'w [Worker<'a>]) -> impl Iterator<Item = &'w Worker<'a>> + Clone {
    let is_first = |index: usize| {
        let device = workers[index].stream.device();
        workers[..index].iter().all(|worker| worker.stream.device() != device)
    };
    (0..workers.len()).filter(move |index| is_first(*index)).map(|index| &workers[index])
}

/// The other workers of the leader's device.
fn followers<'w, 'a>(
    workers: &'w [Worker<'a>],
    leader: &'w Worker<'a>,
) -> impl Iterator<Item = &'w Worker<'a>> + Clone {
    let is_other = |worker: &&Worker| {
        worker.stream.device() == leader.stream.device() && !std::ptr::eq(*worker, leader)
    };
    workers.iter().filter(is_other)
}

/// Streams, with the event that was recorded on each.
type Recorded<'s, 'a> = Few<(&'s Stream, &'a Device, CUevent), INLINE_CAPACITY>;

/// The devices and streams of a call.
pub struct Team<'a> {
    gpus: &'a Gpus,
    streams: Few<&'a Stream, INLINE_CAPACITY>,
    devices: Devices,
    /// Devices whose streams are captured.
    captured: Cell<Devices>,
    contexts: Contexts<'a>,
}

impl<'a> Team<'a> {
    /// `members`: the stream of each device; no device twice.
    pub fn new(gpus: &'a Gpus, members: &[&'a Stream]) -> Result<Team<'a>> {
        let mut team = Team {
            gpus,
            streams: Few::new(),
            devices: Devices::default(),
            captured: Cell::default(),
            contexts: Contexts::new(gpus),
        };
        let mut captured = Devices::default();
        for stream in members {
            let device = stream.device();
            if team.devices.has(device) {
                return Err(Error::Internal(Text::new("a device twice in a collective call")));
            }
            team.streams.push(stream)?;
            team.devices.add(device);
            // The legacy stream is never captured. The driver rejects its use if a capture would
            // need it.
            if !stream.is_default() && team.is_captured(stream)? {
                captured.add(device);
            }
        }
        team.captured.set(captured);
        Ok(team)
    }

    fn is_captured(&self, stream: &Stream) -> Result<bool> {
        self.contexts.enter_for(stream)?;
        stream::is_capturing(self.gpus.driver(), stream.native())
    }

    /// Makes a device's context current until [`Team::leave`].
    pub fn enter(&self, device: &Device) -> Result<()> {
        self.contexts.enter(device)
    }

    /// Restores the caller's context.
    pub fn leave(&self) {
        self.contexts.leave();
    }

    /// The runtime of the call.
    pub fn gpus(&self) -> &'a Gpus {
        self.gpus
    }

    /// The devices of the team.
    pub fn devices(&self) -> Devices {
        self.devices
    }

    /// The stream of a device; the current stream for a device outside the team.
    pub fn stream(&self, device: i32) -> &'a Stream {
        debug_assert!(self.devices.has(device), "device {device} takes no part");
        let known = self.streams.iter().find(|stream| stream.device() == device);
        known.copied().unwrap_or_else(|| self.gpus.devices[device as usize].streams.current())
    }

    /// Is any stream captured?
    pub fn is_capturing(&self) -> bool {
        !self.captured.get().is_empty()
    }

    /// Can kernels and copies of device `from` access memory of device `to`? Enables peer access at
    /// first use.
    pub fn reaches(&self, from: i32, to: i32) -> Result<bool> {
        if from == to {
            return Ok(true);
        }
        let (device, peer) = (self.gpus.device(from)?, self.gpus.device(to)?);
        if device.has_peer(to) {
            return Ok(true);
        }
        let bit = 1u64 << (to as u32 % MAX_DEVICES as u32);
        if device.comm().unreachable_peers.load(Ordering::Relaxed) & bit != 0 {
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
                // Some machines limit a device to eight peers.
                Err(Error::Cuda(CudaError {
                    code: code::PEER_ACCESS_UNSUPPORTED | code::TOO_MANY_PEERS,
                    ..
                })) => true,
                Err(error) => return Err(error),
            }
        };
        if refused {
            device.comm().unreachable_peers.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(!refused)
    }

    /// Can device `by` access memory of device `owner` at this address?
    pub fn can_use(&self, by: i32, owner: i32, address: u64) -> Result<bool> {
        self.can_all_use(Devices::one(by), [Part { device: owner, address }].into_iter())
    }

    /// Can all devices `by` access all parts? Memory of other libraries may be mapped for its owner
    /// alone, and a kernel that accessed it would corrupt the context.
    pub fn can_all_use(&self, by: Devices, parts: impl Iterator<Item = Part>) -> Result<bool> {
        let mut reached = Devices::default();
        // Many foreign tensors are often in one range of memory.
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
            if users.is_empty() || addresses::device_of(part.address).is_some() {
                continue;
            }
            let is_within = |range: &(u64, u64)| part.address.wrapping_sub(range.0) < range.1;
            if known.iter().any(is_within) {
                continue;
            }
            let _context = self.gpus.device(part.device)?.enter()?;
            let is_plain = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
            if self.attribute::<u32>(is_plain, part.address)? == Some(1) {
                // Memory of `cuMemAlloc`: every device with peer access can use it.
                if others > 0 {
                    known[others % KNOWN] = self.range_around(part.address)?;
                }
                others += 1;
                continue;
            }
            for device in users.iter() {
                const READ_AND_WRITE: u32 = 3;
                let flags = CUpointer_attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
                let _context = self.gpus.device(device)?.enter()?;
                if self.attribute::<u32>(flags, part.address)? != Some(READ_AND_WRITE) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The start and length of the memory range that contains an address.
    fn range_around(&self, address: u64) -> Result<(u64, u64)> {
        use CUpointer_attribute::*;
        let start = self.attribute::<u64>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address)?;
        let bytes = self.attribute::<u64>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)?;
        Ok(start.zip(bytes).unwrap_or_default())
    }

    /// A pointer attribute, queried in the current context; `None`: unknown to the driver.
    fn attribute<T: Default>(
        &self,
        attribute: CUpointer_attribute,
        address: u64,
    ) -> Result<Option<T>> {
        let mut value = T::default();
        let data = std::ptr::from_mut(&mut value).cast::<c_void>();
        // SAFETY: the value has the attribute's type; the driver only looks the address up.
        match unsafe { self.gpus.driver().cuPointerGetAttribute(data, attribute, address) } {
            Ok(()) => Ok(Some(value)),
            Err(error) if matches!(error.code, code::INVALID_VALUE | code::NOT_SUPPORTED) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// If some streams are captured, the others join the capture. Must come before any work is
    /// queued.
    pub fn begin(&self) -> Result<()> {
        let captured = self.captured.get();
        let Some(first) = captured.iter().next() else { return Ok(()) };
        if captured != self.devices {
            let others = self.devices.iter().filter(|device| !captured.has(*device));
            let others: Devices = others.collect();
            let waits = others.iter().map(|device| self.stream(device));
            self.wait_for(self.stream(first), waits)?;
            self.leave();
            self.captured.set(self.devices);
        }
        Ok(())
    }

    /// Makes a stream wait for the streams of some devices, before it gets work.
    pub fn order_after(&self, stream: &'a Stream, devices: Devices) -> Result<()> {
        self.order_workers_after_members(&[Worker { stream, touches: devices }])
    }

    /// Makes the streams of some devices wait for the work queued on `stream`. If that fails the
    /// host waits, because the memory must not be used earlier.
    pub fn release(&self, stream: &'a Stream, devices: Devices) -> Result<()> {
        self.order_members_after_workers(&[Worker { stream, touches: devices }])
    }

    /// Makes workers wait for all streams that matter to them.
    pub fn order_workers_after_members(&self, workers: &[Worker<'a>]) -> Result<()> {
        let Some(first) = workers.first() else { return Ok(()) };
        // With one worker in between there are fewer waits than pairs.
        if are_alike(workers) && leaders(workers).nth(1).is_some() {
            self.order_workers_after_touched(&workers[..1])?;
            let others = leaders(workers).skip(1).map(|worker| worker.stream);
            self.wait_for(first.stream, others)?;
        } else {
            self.order_workers_after_touched(workers)?;
        }
        leaders(workers).try_for_each(|leader| {
            let others = followers(workers, leader).map(|worker| worker.stream);
            self.wait_for(leader.stream, others)
        })
    }

    /// Makes the streams of devices wait for the workers that access their memory. If that fails
    /// the host waits, because the memory must not be used earlier.
    pub fn order_members_after_workers(&self, workers: &[Worker<'a>]) -> Result<()> {
        let outcome = self.try_order_members_after_workers(workers);
        if outcome.is_err() && !self.is_capturing() {
            let _required = sync_debug::required();
            for worker in workers {
                let _ = worker.stream.synchronize(self.gpus);
            }
        }
        outcome
    }

    fn try_order_members_after_workers(&self, workers: &[Worker<'a>]) -> Result<()> {
        let Some(first) = workers.first() else { return Ok(()) };
        for leader in leaders(workers) {
            for follower in followers(workers, leader) {
                self.wait_for(follower.stream, [leader.stream].into_iter())?;
            }
        }
        let pairs: usize = leaders(workers).map(|worker| worker.touches.len() - 1).sum();
        if are_alike(workers) && pairs > MAX_DIRECT_WAITS {
            for worker in leaders(workers).skip(1) {
                self.wait_for(worker.stream, [first.stream].into_iter())?;
            }
            return self.order_members_after(first);
        }
        if leaders(workers).nth(1).is_none() {
            return self.order_members_after(first);
        }
        let members = leaders(workers).flat_map(|worker| worker.touches.iter()).collect();
        let records = leaders(workers).map(|worker| worker.stream);
        let waits = Devices::iter(members).map(|device| self.stream(device));
        self.join(records, waits, |record, wait| {
            let of_it = |worker: &&Worker| std::ptr::eq(worker.stream, record);
            leaders(workers).find(of_it).is_some_and(|worker| worker.touches.has(wait.device()))
        })
    }

    /// Called if ordering streams failed: queued work may still use these parts. Their blocks are
    /// kept until the work completes.
    pub fn keep_blocks(&self, workers: &[Worker<'a>], parts: impl Iterator<Item = Part> + Clone) {
        for worker in workers {
            for part in parts.clone() {
                let _ = memory::record_around(part.address, part.address, worker.stream);
            }
        }
    }

    /// Makes workers wait for the streams of all devices whose memory they access.
    fn order_workers_after_touched(&self, workers: &[Worker<'a>]) -> Result<()> {
        let touched = leaders(workers).flat_map(|worker| worker.touches.iter()).collect();
        let records = Devices::iter(touched).map(|device| self.stream(device));
        let waits = leaders(workers).map(|worker| worker.stream);
        self.join(records, waits, |record, wait| {
            let of_it = |worker: &&Worker| std::ptr::eq(worker.stream, wait);
            leaders(workers).find(of_it).is_some_and(|worker| worker.touches.has(record.device()))
        })
    }

    fn order_members_after(&self, worker: &Worker<'a>) -> Result<()> {
        self.wait_for(worker.stream, worker.touches.iter().map(|device| self.stream(device)))
    }

    /// Makes each `waits` stream wait for those `records` streams for which `concerns` is true. All
    /// events are recorded before any wait, so that streams do not wait for each other in turn.
    /// Calls in one context are grouped.
    fn join<'b>(
        &self,
        records: impl Iterator<Item = &'b Stream>,
        waits: impl Iterator<Item = &'b Stream> + Clone,
        concerns: impl Fn(&Stream, &Stream) -> bool,
    ) -> Result<()> {
        let is_joined =
            |record: &Stream, wait: &Stream| !std::ptr::eq(record, wait) && concerns(record, wait);
        let mut events: Recorded<'b, 'a> = Few::new();
        let mut outcome = Ok(());
        for stream in records {
            if waits.clone().any(|wait| is_joined(stream, wait)) {
                outcome = self.record(stream, &mut events);
                if outcome.is_err() {
                    break;
                }
            }
        }
        if outcome.is_ok() {
            outcome = waits.clone().try_for_each(|wait| {
                let own = events.iter().filter(|(record, ..)| is_joined(record, wait));
                own.clone().try_for_each(|(_, _, event)| self.wait(wait, *event))
            });
        }
        events.iter().for_each(|(_, device, event)| device.events.give_untimed(*event));
        outcome
    }

    /// Records an event on a stream; the caller returns it to the pool.
    fn record<'b>(&self, stream: &'b Stream, events: &mut Recorded<'b, 'a>) -> Result<()> {
        let device = self.gpus.device(stream.device())?;
        let event = device.events.take_untimed(device)?;
        if let Err(error) = events.push((stream, device, event)) {
            device.events.give_untimed(event);
            return Err(error);
        }
        self.contexts.enter_for(stream)?;
        stream.record_here(self.gpus, event)
    }

    /// Makes a stream wait for an event.
    pub(super) fn wait(&self, stream: &Stream, event: CUevent) -> Result<()> {
        self.contexts.enter_for(stream)?;
        stream.wait_here(self.gpus, event)
    }

    /// Makes streams wait for the present work of another stream, with one event.
    fn wait_for<'b>(
        &self,
        stream: &'b Stream,
        waits: impl Iterator<Item = &'b Stream> + Clone,
    ) -> Result<()> {
        self.join(std::iter::once(stream), waits, |_, _| true)
    }
}
