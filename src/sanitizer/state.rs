//! The state of the sanitizer and the operations on it. This code knows nothing of the driver or of
//! the C interface.

use super::block_life::ReuseOrder;
use super::blocks::Blocks;
use super::change::transform_all;
use super::check::{Check, MAX_RUNS, Race, Scratch};
use super::clock::{Stamp, Table, insert, push};
use super::domain::{Domain, Host, StreamInfo};
use super::recording::Recorded;
use super::report::Reports;
use super::shape::ByteSet;
use super::store::{Access, AccessDetails, LAUNCHED, Store};
use super::text::{Label, Texts};
use super::{Mode, Touch};
use crate::base::error::Result;
use crate::base::frames::Named as HostFrame;
use crate::base::stack_table::StackTable;

/// The least value of `prune_at`.
const MIN_PRUNE: usize = 4096;

/// The name of an operation and the host's frames.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub(super) label: Label,
    pub(super) frames: u32,
}

/// The domain, stream and time of an operation.
#[derive(Clone, Copy)]
struct At {
    domain: usize,
    slot: u32,
    time: u64,
    flags: u32,
}

/// Returns a domain by its index. Takes the fields separately, so that the caller can borrow other
/// fields of the state.
#[inline]
pub(super) fn domain_at<'a>(
    captures: &'a mut [Domain],
    main: &'a mut Domain,
    index: usize,
) -> &'a mut Domain {
    captures.get_mut(index).unwrap_or(main)
}

/// The index of the domain of uncaptured work.
pub(super) const MAIN: usize = usize::MAX;

pub(super) struct State {
    /// Whether the sanitizer is on.
    pub(super) is_on: bool,
    /// The current time of all clocks.
    pub(super) now: u64,
    sequence: u64,
    pub(super) host: Host,
    pub(super) main: Domain,
    pub(super) captures: Vec<Domain>,
    pub(super) store: Store,
    pub(super) blocks: Blocks,
    /// For each executable, the point of its last launch.
    launches: Table<Stamp>,
    pub(super) scratch: Scratch,
    pub(super) reuse_order: ReuseOrder,
    races: Vec<Race>,
    pub(super) stacks: StackTable,
    pub(super) texts: Texts,
    pub(super) reports: Reports,
    /// Number of touches whose bytes are unknown, or whose races could not be determined.
    pub(super) unchecked: u64,
    /// How often everything was forgotten, because an operation could not be recorded.
    pub(super) lost: u64,
    /// Whether `unchecked` and `lost` were logged.
    pub(super) is_loss_logged: bool,
    /// The library's generation: changes with each shutdown.
    pub(super) generation: u64,
    /// Number of cells and ranges from which on completed accesses are removed.
    prune_at: usize,
    /// The most runs of a touch whose bytes are recorded run by run.
    pub(super) max_runs: u64,
}

impl State {
    pub(super) const fn new() -> State {
        State {
            is_on: false,
            now: 0,
            sequence: 0,
            host: Host::new(),
            main: Domain::new(0),
            captures: Vec::new(),
            store: Store::new(),
            blocks: Blocks::new(),
            launches: Table::with_hasher(std::hash::BuildHasherDefault::new()),
            scratch: Scratch::new(),
            reuse_order: ReuseOrder::new(),
            races: Vec::new(),
            stacks: StackTable::new(),
            texts: Texts::new(),
            reports: Reports::new(),
            unchecked: 0,
            lost: 0,
            is_loss_logged: false,
            generation: 0,
            prune_at: MIN_PRUNE,
            max_runs: MAX_RUNS,
        }
    }

    /// Number of cells and ranges.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.store.cells() + self.main.ranges.len()
    }

    /// Checks that all counts agree with the contents.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let domains = self.captures.iter().chain([&self.main]);
        self.blocks.check();
        self.store.check(domains.flat_map(|domain| domain.ranges.iter()).map(|entry| entry.value));
    }

    /// Returns whether this thread has reports to deliver or a loss to log.
    pub(super) fn has_output(&self) -> bool {
        self.reports.is_waiting() || !self.is_loss_logged && self.lost + self.unchecked > 0
    }

    /// Forgets all accesses, blocks, events and captures. The clocks stay: an order that they miss
    /// from here on concerns only forgotten accesses.
    pub(super) fn start_anew(&mut self) {
        self.main.forget();
        self.captures = Vec::new();
        self.store = Store::new();
        self.blocks = Blocks::new();
        self.launches = Table::default();
        self.scratch = Scratch::new();
        self.reuse_order = ReuseOrder::new();
        self.races = Vec::new();
        self.prune_at = MIN_PRUNE;
        self.forget_unnamed();
    }

    /// Stores the host's frames and returns their number; 0: none. They stay pinned until the
    /// thread's next call.
    pub(super) fn keep_frames(&mut self, named: &mut dyn Iterator<Item = HostFrame<'_>>) -> u32 {
        let frames = self.stacks.keep(None, named, &[]);
        if self.stacks.are_many() {
            self.forget_unnamed();
        }
        frames
    }

    /// Removes the stacks that no touch, block or thread names.
    fn forget_unnamed(&mut self) {
        let Some(mut ids) = self.stacks.begin() else { return };
        let mut walked = 0;
        for frames in self.store.frames().chain(self.blocks.frames()) {
            ids.add(frames);
            walked += 1;
        }
        drop(self.stacks.finish(&ids, walked));
    }

    /// Returns the index of a capture's domain, which is created if it is missing; capture 0 is
    /// uncaptured work.
    #[inline]
    fn domain(&mut self, capture: u64) -> Result<usize> {
        if capture == 0 { Ok(MAIN) } else { self.domain_of_capture(capture) }
    }

    fn domain_of_capture(&mut self, capture: u64) -> Result<usize> {
        let known = self.captures.iter().position(|domain| domain.number == capture);
        if let Some(index) = known {
            return Ok(index);
        }
        push(&mut self.captures, Domain::new(capture))?;
        Ok(self.captures.len() - 1)
    }

    /// Returns a stream's domain and its slot there.
    #[inline]
    pub(super) fn find(&mut self, capture: u64, stream: &StreamInfo) -> Result<(usize, u32)> {
        let index = self.domain(capture)?;
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        let slot = domain.slot(stream)?;
        domain.join_host(slot, &self.host, &mut self.now)?;
        Ok((index, slot))
    }

    /// As [`State::find`], for a stream that is about to do something.
    pub(super) fn ready(&mut self, capture: u64, stream: &StreamInfo) -> Result<(usize, u32)> {
        let (index, slot) = self.find(capture, stream)?;
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        domain.order_after_implied(slot, &mut self.now)?;
        Ok((index, slot))
    }

    /// Records a queued operation.
    pub(super) fn operation(
        &mut self,
        capture: u64,
        stream: StreamInfo,
        named: Named,
        touches: &[Touch<'_>],
    ) -> Result<()> {
        let (index, slot) = self.ready(capture, &stream)?;
        self.sequence += 1;
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        let time = domain.advance(slot, &mut self.now);
        self.touch(At { domain: index, slot, time, flags: 0 }, named, touches)?;
        self.prune()
    }

    fn touch(&mut self, at: At, named: Named, touches: &[Touch<'_>]) -> Result<()> {
        for touch in touches {
            self.touch_one(at, named, touch.mode, ByteSet::of(touch)?)?;
        }
        Ok(())
    }

    fn touch_one(&mut self, at: At, named: Named, mode: Mode, bytes: ByteSet<'_>) -> Result<()> {
        let domain = domain_at(&mut self.captures, &mut self.main, at.domain);
        let (stream, sequence) = (domain.stream(at.slot), self.sequence);
        let Named { label, frames } = named;
        let details = AccessDetails { sequence, label, frames, stream, mode, start: 0, end: 0 };
        let place = self.store.add_touched(details)?;
        let access = Access::new(at.slot, at.time, place, at.flags);
        let (store, scratch, races) = (&mut self.store, &mut self.scratch, &mut self.races);
        let (unchecked, max_runs) = (&mut self.unchecked, self.max_runs);
        Check { domain, store, scratch, races, unchecked, max_runs }.touch(access, mode, bytes)?;
        self.store.settle(place);
        if self.races.is_empty() { Ok(()) } else { self.add_reports() }
    }

    /// Makes reports of the races found.
    #[cold]
    fn add_reports(&mut self) -> Result<()> {
        for race in self.races.drain(..) {
            self.reports.add(&race, &self.blocks, self.stacks.stacks(), &mut self.texts);
        }
        Ok(())
    }

    /// Records one operation on several streams that begins and ends on all of them at once.
    pub(super) fn collective(
        &mut self,
        named: Named,
        members: &[(u64, StreamInfo, &[Touch<'_>])],
    ) -> Result<()> {
        self.sequence += 1;
        let mut times = Vec::new();
        for (capture, stream, _) in members {
            let (domain, slot) = self.ready(*capture, stream)?;
            let time =
                domain_at(&mut self.captures, &mut self.main, domain).advance(slot, &mut self.now);
            push(&mut times, At { domain, slot, time, flags: 0 })?;
        }
        // Afterwards each stream is ordered after all of these times.
        self.join_all(members)?;
        for (at, (_, _, touches)) in times.iter().zip(members) {
            self.touch(*at, named, touches)?;
        }
        self.prune()
    }

    /// Orders each of the streams after all of them.
    fn join_all(&mut self, members: &[(u64, StreamInfo, &[Touch<'_>])]) -> Result<()> {
        // Joins all streams into the first one of each domain, then the first one into all.
        for place in (1..members.len()).chain((0..members.len()).rev()) {
            let (capture, stream, _) = members[place];
            let Some(first) = members.iter().position(|member| member.0 == capture) else {
                continue;
            };
            let index = self.domain(capture)?;
            let domain = domain_at(&mut self.captures, &mut self.main, index);
            let (slot, first) = (domain.slot(&stream)?, domain.slot(&members[first].1)?);
            domain.order_after(first, slot, &mut self.now)?;
            domain.order_after(slot, first, &mut self.now)?;
        }
        Ok(())
    }

    pub(super) fn event_recorded(
        &mut self,
        capture: u64,
        event: u64,
        stream: StreamInfo,
    ) -> Result<()> {
        let (index, slot) = self.ready(capture, &stream)?;
        if capture != 0 {
            self.main.events.remove(&event);
        }
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        let stamp = domain.stamp(slot);
        insert(&mut domain.events, event, stamp)
    }

    pub(super) fn event_waited(
        &mut self,
        capture: u64,
        event: u64,
        stream: StreamInfo,
    ) -> Result<()> {
        let (index, slot) = self.ready(capture, &stream)?;
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        let Some(stamp) = domain.events.get(&event).map(Stamp::share) else { return Ok(()) };
        domain.join(slot, &stamp, &mut self.now)
    }

    pub(super) fn event_gone(&mut self, event: u64) {
        self.main.events.remove(&event);
        self.captures.iter_mut().for_each(|domain| drop(domain.events.remove(&event)));
    }

    /// Records that each launch of the captured graph records or waits for an external event.
    pub(super) fn event_outside(&mut self, capture: u64, event: u64, records: bool) -> Result<()> {
        if capture == 0 {
            return Ok(());
        }
        let index = self.domain(capture)?;
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        let list = if records { &mut domain.recorded } else { &mut domain.awaited };
        if list.contains(&event) { Ok(()) } else { push(list, event) }
    }

    pub(super) fn stream_waits(
        &mut self,
        capture: u64,
        stream: StreamInfo,
        other: StreamInfo,
    ) -> Result<()> {
        let (index, slot) = self.ready(capture, &stream)?;
        let (_, other) = self.ready(capture, &other)?;
        domain_at(&mut self.captures, &mut self.main, index).order_after(slot, other, &mut self.now)
    }

    pub(super) fn waits_for_everything(&mut self, capture: u64, stream: StreamInfo) -> Result<()> {
        let (index, slot) = self.ready(capture, &stream)?;
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        let all = domain.point_of_all(None)?;
        domain.join(slot, &all, &mut self.now)
    }

    /// The point that a wait for a stream reaches.
    pub(super) fn point_of_stream(&mut self, stream: StreamInfo) -> Result<Option<Stamp>> {
        self.main.slot_of_key(stream.key).map(|slot| self.main.point(slot)).transpose()
    }

    pub(super) fn point_of_event(&self, event: u64) -> Option<Stamp> {
        self.main.events.get(&event).map(Stamp::share)
    }

    pub(super) fn point_of_all(&self, device: Option<i32>) -> Result<Stamp> {
        self.main.point_of_all(device)
    }

    pub(super) fn reached(&mut self, stamp: &Stamp) -> Result<()> {
        self.host.join(stamp)
    }

    /// Ends the domain of a capture. Returns its operations, if any are known.
    pub(super) fn capture_ended(&mut self, capture: u64) -> Result<Option<Recorded>> {
        let known = self.captures.iter().position(|domain| domain.number == capture);
        let Some(index) = known else { return Ok(None) };
        let mut domain = self.captures.swap_remove(index);
        let recorded = Recorded::of(&mut domain, &self.store, &mut self.texts);
        domain.ranges.iter().for_each(|entry| self.store.release(entry.value));
        recorded.map(Some)
    }

    /// Records the launch of a graph as one operation.
    pub(super) fn launched(
        &mut self,
        capture: u64,
        stream: StreamInfo,
        executable: u64,
        frames: u32,
        recorded: Option<&Recorded>,
    ) -> Result<()> {
        let (index, slot) = self.ready(capture, &stream)?;
        self.sequence += 1;
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        let before = self.launches.get(&executable).filter(|_| capture == 0).map(Stamp::share);
        let awaited = recorded.map_or(&[][..], |recorded| &recorded.awaited);
        let events = awaited.iter().filter_map(|event| domain.events.get(event).map(Stamp::share));
        let mut stamps = Vec::new();
        for stamp in before.into_iter().chain(events) {
            push(&mut stamps, stamp)?;
        }
        for stamp in &stamps {
            domain.join(slot, stamp, &mut self.now)?;
        }
        let time = domain.advance(slot, &mut self.now);
        let at = At { domain: index, slot, time, flags: LAUNCHED };
        for operation in recorded.map_or(&[][..], |recorded| &recorded.operations) {
            let named = Named { label: operation.label, frames };
            self.touch_one(at, named, operation.mode, operation.bytes()?)?;
        }
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        if capture == 0 {
            insert(&mut self.launches, executable, domain.stamp(slot))?;
        }
        for event in recorded.map_or(&[][..], |recorded| &recorded.recorded) {
            let stamp = domain.stamp(slot);
            insert(&mut domain.events, *event, stamp)?;
        }
        self.prune()
    }

    pub(super) fn executable_gone(&mut self, executable: u64) {
        self.launches.remove(&executable);
    }

    /// Removes the accesses that the host knows to be complete, each time the amount has doubled.
    fn prune(&mut self) -> Result<()> {
        self.main.recycle(&self.host)?;
        if self.store.cells() + self.main.ranges.len() < self.prune_at {
            return Ok(());
        }
        let host = &self.host;
        let mut change = |access: &Access| {
            let is_over = access.is_before(|slot, time| host.knows(slot, time));
            (!is_over).then_some(*access)
        };
        let ranges = &mut self.main.ranges;
        transform_all(ranges, &mut self.store, &mut self.scratch, &mut change)?;
        self.prune_at = MIN_PRUNE.max(2 * (self.store.cells() + self.main.ranges.len()));
        Ok(())
    }
}
