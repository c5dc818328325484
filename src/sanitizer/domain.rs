//! Streams, and what is ordered before what: of the device's work, or of one capture, which is a
//! world of its own.

use super::clock::{Clock, NO_MEMORY, NO_SLOT, Stamp, Table, push};
use super::ranges::Ranges;
use crate::base::error::Result;

/// How a stream relates to the legacy default stream of its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// It is that.
    Legacy,
    /// Each comes after what the other held.
    Blocking,
    /// Not at all.
    NonBlocking,
}

/// A stream, as others know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StreamInfo {
    /// Its own for as long as the library lives.
    pub(super) key: u64,
    pub(super) id: i64,
    pub(super) device: i32,
    pub(super) kind: Kind,
}

/// Streams below which no number serves another one.
const FEW: usize = 64;

/// A stream's place in a world.
struct DomainStream {
    stream: StreamInfo,
    clock: Clock,
    /// When it did something last, or heard something new.
    time: u64,
    /// What it has heard of the host.
    version: u64,
}

/// The streams of a device that are ordered by the legacy one.
struct Ordered {
    device: i32,
    legacy: Option<u32>,
    blocking: Vec<u32>,
}

/// What the host knows to be over; each stream hears of it before it does something.
pub(super) struct Host {
    pub(super) clock: Clock,
    version: u64,
}

impl Host {
    pub(super) const fn new() -> Host {
        Host { clock: Clock::new(), version: 0 }
    }

    /// The host hears that a point is over.
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

/// Where a stream is among the recent ones: keys are addresses.
#[inline]
fn recent(key: u64) -> usize {
    (key >> 6 ^ key >> 9) as usize % RECENT
}

/// A world.
pub(super) struct Domain {
    /// The capture's; 0: it is no capture.
    pub(super) number: u64,
    streams: Vec<DomainStream>,
    slots: Table<u32>,
    /// Numbers that serve the next streams.
    free: Vec<u32>,
    /// Numbers from which on those of idle streams serve others.
    pub(super) recycle_at: usize,
    /// Keys and numbers of streams that were asked for last.
    recent: [(u64, u32); RECENT],
    ordered: Vec<Ordered>,
    pub(super) events: Table<Stamp>,
    /// The accesses of all bytes, as cells.
    pub(super) ranges: Ranges,
    /// Events outside for which a launch of what is captured waits, and which it records.
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
            recycle_at: FEW,
            recent: [(0, NO_SLOT); RECENT],
            ordered: Vec::new(),
            events: Table::with_hasher(std::hash::BuildHasherDefault::new()),
            ranges: Ranges::new(),
            awaited: Vec::new(),
            recorded: Vec::new(),
        }
    }

    /// The stream's number here, given now if it has none.
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
        // First what may fail: a stream is known as a whole, or not.
        self.streams.try_reserve(1).map_err(|_| NO_MEMORY)?;
        self.slots.try_reserve(1).map_err(|_| NO_MEMORY)?;
        // Streams that are captured have nothing to do with the legacy one.
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

    /// Where there are many streams, the numbers of those of which the host knows all that they did and
    /// heard serve others: hosts that make and end streams would have ever more of them. Whoever does
    /// something hears first what the host knows, so that a number's earlier times are over for all. A stream
    /// that comes back gets another number. No number is held meanwhile.
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

    /// How many numbers there are.
    #[cfg(test)]
    pub(super) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// The number of a stream, by its key.
    #[inline]
    pub(super) fn known(&self, key: u64) -> Option<u32> {
        let (known, slot) = self.recent[recent(key)];
        if known == key && slot != NO_SLOT {
            return Some(slot);
        }
        self.slots.get(&key).copied()
    }

    /// The stream of a number.
    pub(super) fn stream(&self, slot: u32) -> StreamInfo {
        self.streams[slot as usize].stream
    }

    /// Does a stream come after a time of another?
    #[inline]
    pub(super) fn knows(&self, slot: u32, other: u32, time: u64) -> bool {
        knows(&self.streams, slot, other, time)
    }

    /// The ranges, to be changed, and whether a stream comes after a time of another.
    pub(super) fn split(&mut self) -> (&mut Ranges, impl Fn(u32, u32, u64) -> bool) {
        let streams = &self.streams;
        (&mut self.ranges, |slot, other, time| knows(streams, slot, other, time))
    }

    /// Forgets accesses, events, and what belongs to a capture.
    pub(super) fn forget(&mut self) {
        self.ranges = Ranges::new();
        self.events = Table::default();
    }

    /// All that a stream has done, and all before it.
    pub(super) fn stamp(&self, slot: u32) -> Stamp {
        let known = &self.streams[slot as usize];
        known.clock.stamp_of(slot, known.time)
    }

    /// A stream comes after a point.
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

    /// A stream comes after another.
    pub(super) fn follow(&mut self, slot: u32, other: u32, now: &mut u64) -> Result<()> {
        let time = self.streams[other as usize].time;
        if self.knows(slot, other, time) {
            return Ok(());
        }
        let stamp = self.stamp(other);
        self.join(slot, &stamp, now)
    }

    /// The stream hears what the host knows.
    #[inline]
    pub(super) fn join_host(&mut self, slot: u32, host: &Host, now: &mut u64) -> Result<()> {
        if self.number == 0 && self.streams[slot as usize].version != host.version {
            self.join(slot, &host.clock.stamp(), now)?;
            self.streams[slot as usize].version = host.version;
        }
        Ok(())
    }

    /// The stream is about to do something: it comes after the streams that the driver orders before
    /// it.
    pub(super) fn prepare(&mut self, slot: u32, now: &mut u64) -> Result<()> {
        let stream = &self.streams[slot as usize].stream;
        if self.number != 0 || stream.kind == Kind::NonBlocking {
            return Ok(());
        }
        let stream = *stream;
        for index in 0.. {
            match self.before(&stream, index) {
                Some(other) => self.follow(slot, other, now)?,
                None => break,
            }
        }
        Ok(())
    }

    /// The streams that the driver orders before the next work of a stream.
    fn before(&self, stream: &StreamInfo, index: usize) -> Option<u32> {
        let ordered = self.ordered.iter().find(|ordered| ordered.device == stream.device)?;
        match stream.kind {
            Kind::Legacy => ordered.blocking.get(index).copied(),
            Kind::Blocking => ordered.legacy.filter(|_| index == 0),
            Kind::NonBlocking => None,
        }
    }

    /// The streams besides whose work a wait for a stream waits for: of the legacy one those that its
    /// next work would come after.
    pub(super) fn implied_by(&self, slot: u32, index: usize) -> Option<u32> {
        let stream = &self.streams[slot as usize].stream;
        let is_legacy = self.number == 0 && stream.kind == Kind::Legacy;
        if is_legacy { self.before(stream, index) } else { None }
    }

    /// The stream does something: when that is.
    pub(super) fn advance(&mut self, slot: u32, now: &mut u64) -> u64 {
        *now += 1;
        self.streams[slot as usize].time = *now;
        *now
    }

    /// What a wait for a stream waits for: of the legacy one also what its next work would come
    /// after.
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

    /// What all streams hold, of a device or of all.
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
