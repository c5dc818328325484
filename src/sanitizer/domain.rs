//! Ordering domains: the streams of the device's work, or of one capture, and their clocks.

use super::clock::{Clock, NO_MEMORY, NO_SLOT, Stamp, Table, push};
use super::ranges::Ranges;
use crate::base::error::Result;

/// How a stream is ordered with the legacy default stream of its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The legacy default stream itself.
    Legacy,
    /// The legacy default stream's next work waits for this stream, and the other way round.
    Blocking,
    /// A stream that the legacy default stream does not order.
    NonBlocking,
}

/// Identity and properties of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamInfo {
    /// Unique until shutdown.
    pub key: u64,
    /// Its id for reports.
    pub id: i64,
    /// The ordinal of its device.
    pub device: i32,
    /// Its order with the legacy default stream.
    pub kind: Kind,
}

/// Slots are not recycled below this number of streams.
const MIN_RECYCLE: usize = 64;

/// A stream of a domain, by its slot.
struct DomainStream {
    stream: StreamInfo,
    clock: Clock,
    /// Time of its last operation, or of the last change of its clock.
    time: u64,
    /// The version of the host's clock that this stream has joined.
    version: u64,
}

/// The streams of a device that are ordered with its legacy default stream.
struct Ordered {
    device: i32,
    legacy: Option<u32>,
    blocking: Vec<u32>,
}

/// The clock of the host: the work that it knows to be complete. Each stream joins it before its
/// next operation.
pub(super) struct Host {
    pub(super) clock: Clock,
    version: u64,
}

impl Host {
    pub(super) const fn new() -> Host {
        Host { clock: Clock::new(), version: 0 }
    }

    /// Records that the host knows that the work before a point is complete.
    pub(super) fn join(&mut self, stamp: &Stamp) -> Result<()> {
        if self.clock.join(stamp)? {
            self.version += 1;
        }
        Ok(())
    }

    pub(super) fn knows(&self, slot: u32, time: u64) -> bool {
        time <= self.clock.get(slot)
    }
}

const RECENT: usize = 8;

/// The index of a key in the cache of recent lookups. Keys are consecutive numbers.
#[inline]
fn recent(key: u64) -> usize {
    key as usize % RECENT
}

/// An ordering domain: the uncaptured work of all devices, or one capture.
pub(super) struct Domain {
    /// Number of the capture; 0: uncaptured work.
    pub(super) number: u64,
    streams: Vec<DomainStream>,
    slots: Table<u32>,
    /// Free slots, for the next streams.
    free: Vec<u32>,
    /// Number of slots from which on those of idle streams are recycled.
    pub(super) recycle_at: usize,
    /// Keys and slots of recent lookups.
    recent: [(u64, u32); RECENT],
    ordered: Vec<Ordered>,
    pub(super) events: Table<Stamp>,
    /// For each range of bytes, the cell with its accesses.
    pub(super) ranges: Ranges,
    /// External events that each launch of the captured graph waits for, and those that it records.
    pub(super) awaited: Vec<u64>,
    pub(super) recorded: Vec<u64>,
}

impl Domain {
    pub(super) const fn new(number: u64) -> Domain {
        Domain {
            number,
            streams: Vec::new(),
            slots: Table::with_hasher(std::hash::BuildHasherDefault::new()),
            free: Vec::new(),
            recycle_at: MIN_RECYCLE,
            recent: [(0, NO_SLOT); RECENT],
            ordered: Vec::new(),
            events: Table::with_hasher(std::hash::BuildHasherDefault::new()),
            ranges: Ranges::new(),
            awaited: Vec::new(),
            recorded: Vec::new(),
        }
    }

    /// Returns the slot of a stream; assigns one if it has none.
    #[inline]
    pub(super) fn slot(&mut self, stream: &StreamInfo) -> Result<u32> {
        let (key, slot) = self.recent[recent(stream.key)];
        if key == stream.key && slot != NO_SLOT {
            return Ok(slot);
        }
        let slot = self.find_slot(stream)?;
        self.recent[recent(stream.key)] = (stream.key, slot);
        Ok(slot)
    }

    #[inline(never)]
    fn find_slot(&mut self, stream: &StreamInfo) -> Result<u32> {
        if let Some(slot) = self.slots.get(&stream.key) {
            return Ok(*slot);
        }
        let slot = self.free.last().copied().unwrap_or(self.streams.len() as u32);
        // Reserves first: a failure must not leave a stream in only one of the tables.
        self.streams.try_reserve(1).map_err(|_| NO_MEMORY)?;
        self.slots.try_reserve(1).map_err(|_| NO_MEMORY)?;
        // The legacy default stream does not order captured streams.
        if self.number == 0 && stream.kind != Kind::NonBlocking {
            let ordered = self.ordered.iter().position(|ordered| ordered.device == stream.device);
            let place = ordered.unwrap_or(self.ordered.len());
            if ordered.is_none() {
                let (device, legacy, blocking) = (stream.device, None, Vec::new());
                push(&mut self.ordered, Ordered { device, legacy, blocking })?;
            }
            match stream.kind {
                Kind::Legacy => self.ordered[place].legacy = Some(slot),
                _ => push(&mut self.ordered[place].blocking, slot)?,
            }
        }
        self.slots.insert(stream.key, slot);
        let known = DomainStream { stream: *stream, clock: Clock::new(), time: 0, version: 0 };
        match self.free.pop() {
            Some(_) => self.streams[slot as usize] = known,
            None => self.streams.push(known),
        }
        Ok(slot)
    }

    /// Recycles the slots of idle streams when there are many, so that a host that creates and
    /// destroys streams does not use ever more of them. A stream is idle if the host knows that all
    /// its work is complete. Each stream joins the host's clock before it does something, so every
    /// stream knows the earlier times of a recycled slot. A stream that returns gets a new slot.
    /// Callers hold no slot across this call.
    #[inline]
    pub(super) fn recycle(&mut self, host: &Host) -> Result<()> {
        if self.number != 0 || self.streams.len() < self.recycle_at || !self.free.is_empty() {
            return Ok(());
        }
        self.recycle_idle(host)
    }

    #[cold]
    fn recycle_idle(&mut self, host: &Host) -> Result<()> {
        self.free.try_reserve(self.streams.len()).map_err(|_| NO_MEMORY)?;
        for (slot, known) in self.streams.iter_mut().enumerate() {
            let slot = slot as u32;
            if known.stream.kind != Kind::Legacy && host.knows(slot, known.time) {
                self.slots.remove(&known.stream.key);
                known.clock = Clock::new();
                self.free.push(slot);
            }
        }
        let free = &self.free;
        for ordered in &mut self.ordered {
            ordered.blocking.retain(|slot| free.binary_search(slot).is_err());
        }
        self.recent = [(0, NO_SLOT); RECENT];
        self.recycle_at = self.recycle_at.max(2 * (self.streams.len() - self.free.len()));
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Returns the slot of a stream, by its key.
    #[inline]
    pub(super) fn slot_of_key(&self, key: u64) -> Option<u32> {
        let (known, slot) = self.recent[recent(key)];
        if known == key && slot != NO_SLOT {
            return Some(slot);
        }
        self.slots.get(&key).copied()
    }

    pub(super) fn stream(&self, slot: u32) -> StreamInfo {
        self.streams[slot as usize].stream
    }

    /// Returns whether stream `other` at `time` is ordered before stream `slot`.
    #[inline]
    pub(super) fn knows(&self, slot: u32, other: u32, time: u64) -> bool {
        knows(&self.streams, slot, other, time)
    }

    /// Returns the ranges for a change, together with [`Domain::knows`].
    pub(super) fn split(&mut self) -> (&mut Ranges, impl Fn(u32, u32, u64) -> bool) {
        let streams = &self.streams;
        (&mut self.ranges, |slot, other, time| knows(streams, slot, other, time))
    }

    /// Removes all accesses and events.
    pub(super) fn forget(&mut self) {
        self.ranges = Ranges::new();
        self.events = Table::default();
    }

    /// Returns the point after all that a stream has done.
    pub(super) fn stamp(&self, slot: u32) -> Stamp {
        let known = &self.streams[slot as usize];
        known.clock.stamp_of(slot, known.time)
    }

    /// Orders a stream after a point.
    pub(super) fn join(&mut self, slot: u32, stamp: &Stamp, now: &mut u64) -> Result<()> {
        let known = &mut self.streams[slot as usize];
        if stamp.is_of(slot) {
            return Ok(());
        }
        if known.clock.join(stamp)? {
            *now += 1;
            known.time = *now;
        }
        Ok(())
    }

    /// Orders a stream after all that another has done.
    pub(super) fn order_after(&mut self, slot: u32, other: u32, now: &mut u64) -> Result<()> {
        let time = self.streams[other as usize].time;
        if self.knows(slot, other, time) {
            return Ok(());
        }
        let stamp = self.stamp(other);
        self.join(slot, &stamp, now)
    }

    /// Orders a stream after all that the host knows to be complete.
    #[inline]
    pub(super) fn join_host(&mut self, slot: u32, host: &Host, now: &mut u64) -> Result<()> {
        if self.number == 0 && self.streams[slot as usize].version != host.version {
            self.join(slot, &host.clock.stamp(), now)?;
            self.streams[slot as usize].version = host.version;
        }
        Ok(())
    }

    /// Orders a stream that is about to do something after the streams that the driver orders
    /// before it.
    pub(super) fn order_after_implied(&mut self, slot: u32, now: &mut u64) -> Result<()> {
        let stream = &self.streams[slot as usize].stream;
        if self.number != 0 || stream.kind == Kind::NonBlocking {
            return Ok(());
        }
        let stream = *stream;
        for index in 0.. {
            match self.before(&stream, index) {
                Some(other) => self.order_after(slot, other, now)?,
                None => break,
            }
        }
        Ok(())
    }

    /// Returns the `index`-th stream that the driver orders before the next work of a stream.
    fn before(&self, stream: &StreamInfo, index: usize) -> Option<u32> {
        let ordered = self.ordered.iter().find(|ordered| ordered.device == stream.device)?;
        match stream.kind {
            Kind::Legacy => ordered.blocking.get(index).copied(),
            Kind::Blocking => ordered.legacy.filter(|_| index == 0),
            Kind::NonBlocking => None,
        }
    }

    /// Returns the `index`-th other stream that a wait for this stream also waits for. Only the
    /// legacy default stream has some: those that its next work comes after.
    pub(super) fn implied_by(&self, slot: u32, index: usize) -> Option<u32> {
        let stream = &self.streams[slot as usize].stream;
        let is_legacy = self.number == 0 && stream.kind == Kind::Legacy;
        if is_legacy { self.before(stream, index) } else { None }
    }

    /// Records that a stream does something; returns the time.
    pub(super) fn advance(&mut self, slot: u32, now: &mut u64) -> u64 {
        *now += 1;
        self.streams[slot as usize].time = *now;
        *now
    }

    /// Returns the point that a wait for a stream reaches. For the legacy default stream it
    /// includes the streams that its next work comes after.
    pub(super) fn point(&self, slot: u32) -> Result<Stamp> {
        if self.implied_by(slot, 0).is_none() {
            return Ok(self.stamp(slot));
        }
        let mut clock = Clock::new();
        clock.join(&self.stamp(slot))?;
        for index in 0.. {
            match self.implied_by(slot, index) {
                Some(other) => clock.join(&self.stamp(other))?,
                None => break,
            };
        }
        Ok(clock.stamp())
    }

    /// Returns the point after all work of the streams of one device, or of all devices.
    pub(super) fn point_of_all(&self, device: Option<i32>) -> Result<Stamp> {
        let mut clock = Clock::new();
        for (slot, known) in self.streams.iter().enumerate() {
            if device.is_none_or(|device| device == known.stream.device) {
                clock.join(&self.stamp(slot as u32))?;
            }
        }
        Ok(clock.stamp())
    }
}

#[inline]
fn knows(streams: &[DomainStream], slot: u32, other: u32, time: u64) -> bool {
    slot == other || time <= streams[slot as usize].clock.get(other)
}
