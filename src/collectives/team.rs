//! The devices that take part in a collective call, their streams, and who waits for whom.
//!
//! A device's part is ordered on one stream of it. Work that touches memory of several devices runs
//! on some of these streams, between waits: it comes after all that matters on the others, and they
//! come after it. Nobody asks whether a stream is idle: that takes as long as to wait for it
//! (docs/collectives.md counts the calls).

use super::contexts::Contexts;
use super::path::Part;
use crate::base::error::{Error, Result};
use crate::base::inline_vec::Few;
use crate::base::text::Text;
use crate::driver::sys::{CUevent, CUpointer_attribute};
use crate::driver::{CudaError, code};
use crate::gpu::device::{Device, MAX_DEVICES};
use crate::gpu::stream::{self, Stream};
use crate::gpu::sync_debug;
use crate::memory;
use crate::memory::backing::virtual_memory;
use crate::runtime::Runtime;
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

/// Devices, streams or tensors of a call that need no host memory.
pub const MOST: usize = 16;

/// The same of rows, which are large: those of eight devices.
pub const MOST_ROWS: usize = 8;

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
fn leaders<'w, 'a>(workers: &'w [Worker<'a>]) -> impl Iterator<Item = &'w Worker<'a>> + Clone {
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
) -> impl Iterator<Item = &'w Worker<'a>> + Clone {
    let is_other = |worker: &&Worker| {
        worker.stream.device() == leader.stream.device() && !std::ptr::eq(*worker, leader)
    };
    workers.iter().filter(is_other)
}

/// Streams, and an event that was recorded on each.
type Recorded<'s, 'a> = Few<(&'s Stream, &'a Device, CUevent), MOST>;

/// The devices and streams of a call.
pub struct Team<'a> {
    runtime: &'a Runtime,
    streams: Few<&'a Stream, MOST>,
    devices: Devices,
    /// Whose streams are captured.
    captured: Cell<Devices>,
    contexts: Contexts<'a>,
}

impl<'a> Team<'a> {
    /// `members`: the stream on which a device's part is ordered, each device once.
    pub fn new(runtime: &'a Runtime, members: &[&'a Stream]) -> Result<Team<'a>> {
        let mut team = Team {
            runtime,
            streams: Few::new(),
            devices: Devices::default(),
            captured: Cell::default(),
            contexts: Contexts::new(runtime),
        };
        let mut captured = Devices::default();
        for stream in members {
            let device = stream.device();
            if team.devices.has(device) {
                return Err(Error::Internal(Text::new("a device twice in a collective call")));
            }
            team.streams.push(stream)?;
            team.devices.add(device);
            // The legacy stream is never captured; the driver refuses its use where a capture would
            // have to know of that.
            if !stream.is_default() && team.is_captured(stream)? {
                captured.add(device);
            }
        }
        team.captured.set(captured);
        Ok(team)
    }

    fn is_captured(&self, stream: &Stream) -> Result<bool> {
        self.contexts.enter_for(stream)?;
        stream::is_capturing(self.runtime.driver(), stream.native())
    }

    /// Makes the context of a device current, in which work is queued, until [`Team::leave`].
    pub fn enter(&self, device: &Device) -> Result<()> {
        self.contexts.enter(device)
    }

    /// Gives the caller its context back.
    pub fn leave(&self) {
        self.contexts.leave();
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
        let known = self.streams.iter().find(|stream| stream.device() == device);
        known.copied().unwrap_or_else(|| self.runtime.devices[device as usize].streams.current())
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
            self.leave();
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
        if are_alike(workers) && leaders(workers).nth(1).is_some() {
            self.come_after_members(&workers[..1])?;
            let others = leaders(workers).skip(1).map(|worker| worker.stream);
            self.wait_for(first.stream, others)?;
        } else {
            self.come_after_members(workers)?;
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
            let _needed = sync_debug::needed();
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
        let members = leaders(workers).flat_map(|worker| worker.touches.iter()).collect();
        let records = leaders(workers).map(|worker| worker.stream);
        let waits = Devices::iter(members).map(|device| self.stream(device));
        self.join(records, waits, |record, wait| {
            let of_it = |worker: &&Worker| std::ptr::eq(worker.stream, record);
            leaders(workers).find(of_it).is_some_and(|worker| worker.touches.has(wait.device()))
        })
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

    /// Makes workers come after what the streams of the devices hold whose memory they touch.
    fn come_after_members(&self, workers: &[Worker<'a>]) -> Result<()> {
        let touched = leaders(workers).flat_map(|worker| worker.touches.iter()).collect();
        let records = Devices::iter(touched).map(|device| self.stream(device));
        let waits = leaders(workers).map(|worker| worker.stream);
        self.join(records, waits, |record, wait| {
            let of_it = |worker: &&Worker| std::ptr::eq(worker.stream, wait);
            leaders(workers).find(of_it).is_some_and(|worker| worker.touches.has(record.device()))
        })
    }

    fn let_members_go(&self, worker: &Worker<'a>) -> Result<()> {
        self.wait_for(worker.stream, worker.touches.iter().map(|device| self.stream(device)))
    }

    /// Makes streams wait for what others hold now, each for those that `concerns` it. All are
    /// recorded before any waits: else they would come after each other. What needs one context is
    /// done together.
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

    /// Records an event, which is to be given back.
    fn record<'b>(&self, stream: &'b Stream, events: &mut Recorded<'b, 'a>) -> Result<()> {
        let device = self.runtime.device(stream.device())?;
        let event = device.events.take_untimed(device)?;
        if let Err(error) = events.push((stream, device, event)) {
            device.events.give_untimed(event);
            return Err(error);
        }
        self.contexts.enter_for(stream)?;
        stream.record_here(self.runtime, event)
    }

    /// Makes a stream wait for an event.
    pub(super) fn wait(&self, stream: &Stream, event: CUevent) -> Result<()> {
        self.contexts.enter_for(stream)?;
        stream.wait_here(self.runtime, event)
    }

    /// Makes streams wait for what another holds now, with one event for all of them.
    fn wait_for<'b>(
        &self,
        stream: &'b Stream,
        waits: impl Iterator<Item = &'b Stream> + Clone,
    ) -> Result<()> {
        self.join(std::iter::once(stream), waits, |_, _| true)
    }
}
