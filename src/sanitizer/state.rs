//! All that the sanitizer knows, and what changes it. Nothing here knows of the driver or of C.

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
use crate::memory::trace::frames::Named as HostFrame;
use crate::memory::trace::stacks::StackTable;

/// Cells below which nothing is forgotten early.
const FEW: usize = 4096;

/// What an operation is.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub(super) label: Label,
    pub(super) frames: u32,
}

/// When and where an operation is.
#[derive(Clone, Copy)]
struct At {
    domain: usize,
    slot: u32,
    time: u64,
    flags: u32,
}

/// A world by its place, in parts of the state that can be borrowed beside others.
#[inline]
pub(super) fn of<'a>(
    captures: &'a mut [Domain],
    main: &'a mut Domain,
    index: usize,
) -> &'a mut Domain {
    captures.get_mut(index).unwrap_or(main)
}

/// The place of the device's world.
pub(super) const MAIN: usize = usize::MAX;

/// All of it.
pub(super) struct State {
    /// Does anybody watch?
    pub(super) is_on: bool,
    pub(super) now: u64,
    sequence: u64,
    pub(super) host: Host,
    pub(super) main: Domain,
    pub(super) captures: Vec<Domain>,
    pub(super) store: Store,
    pub(super) blocks: Blocks,
    /// The end of the last launch of each executable.
    launches: Table<Stamp>,
    pub(super) scratch: Scratch,
    pub(super) reuse_order: ReuseOrder,
    races: Vec<Race>,
    pub(super) stacks: StackTable,
    pub(super) texts: Texts,
    pub(super) reports: Reports,
    /// Touches of which the bytes, or conflicts, are not known.
    pub(super) unchecked: u64,
    /// How often all was forgotten for want of host memory.
    pub(super) lost: u64,
    /// Was the host told of these?
    pub(super) is_loss_logged: bool,
    /// Another one after each shutdown.
    pub(super) generation: u64,
    /// Cells from which on what is over is forgotten.
    prune_at: usize,
    /// Runs up to which the bytes of a touch are remembered one by one.
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
            prune_at: FEW,
            max_runs: MAX_RUNS,
        }
    }

    /// How much is remembered.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.store.cells() + self.main.ranges.len()
    }

    /// Do all counts agree with what is there?
    #[cfg(test)]
    pub(super) fn check(&self) {
        let domains = self.captures.iter().chain([&self.main]);
        self.blocks.check();
        self.store.check(domains.flat_map(|domain| domain.ranges.iter()).map(|entry| entry.value));
    }

    /// Is there something for the host, on this thread?
    pub(super) fn has_output(&self) -> bool {
        self.reports.is_waiting() || !self.is_loss_logged && self.lost + self.unchecked > 0
    }

    /// Forgets all accesses, blocks, events and captures. Clocks stay: what they lack from here on
    /// concerns only what is forgotten.
    pub(super) fn start_anew(&mut self) {
        self.main.forget();
        self.captures = Vec::new();
        self.store = Store::new();
        self.blocks = Blocks::new();
        self.launches = Table::default();
        self.scratch = Scratch::new();
        self.reuse_order = ReuseOrder::new();
        self.races = Vec::new();
        self.prune_at = FEW;
        self.forget_unnamed();
    }

    /// The host's frames, pinned until another call of the thread has some; 0: none.
    pub(super) fn keep_frames(&mut self, named: &mut dyn Iterator<Item = HostFrame<'_>>) -> u32 {
        let frames = self.stacks.keep(named, &[]);
        if self.stacks.are_many() {
            self.forget_unnamed();
        }
        frames
    }

    /// Forgets the stacks that no touch, block or call names.
    fn forget_unnamed(&mut self) {
        let Some(mut ids) = self.stacks.begin() else { return };
        let mut walked = 0;
        for frames in self.store.frames().chain(self.blocks.frames()) {
            ids.add(frames);
            walked += 1;
        }
        drop(self.stacks.finish(&ids, walked));
    }

    /// The world of a capture, made now if there is none; 0: the device's.
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

    /// A stream's world, and its number there.
    #[inline]
    pub(super) fn find(&mut self, capture: u64, stream: &StreamInfo) -> Result<(usize, u32)> {
        let index = self.domain(capture)?;
        let domain = of(&mut self.captures, &mut self.main, index);
        let slot = domain.slot(stream)?;
        domain.join_host(slot, &self.host, &mut self.now)?;
        Ok((index, slot))
    }

    /// The same of a stream that is about to do something.
    pub(super) fn ready(&mut self, capture: u64, stream: &StreamInfo) -> Result<(usize, u32)> {
        let (index, slot) = self.find(capture, stream)?;
        let domain = of(&mut self.captures, &mut self.main, index);
        domain.prepare(slot, &mut self.now)?;
        Ok((index, slot))
    }

    /// An operation was queued.
    pub(super) fn operation(
        &mut self,
        capture: u64,
        stream: StreamInfo,
        named: Named,
        touches: &[Touch<'_>],
    ) -> Result<()> {
        let (index, slot) = self.ready(capture, &stream)?;
        self.sequence += 1;
        let domain = of(&mut self.captures, &mut self.main, index);
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

    fn touch_one(&mut self, at: At, named: Named, mode: Mode, form: ByteSet<'_>) -> Result<()> {
        let domain = of(&mut self.captures, &mut self.main, at.domain);
        let (stream, sequence) = (domain.stream(at.slot), self.sequence);
        let Named { label, frames } = named;
        let details = AccessDetails { sequence, label, frames, stream, mode, start: 0, end: 0 };
        let place = self.store.add_touched(details)?;
        let access = Access::new(at.slot, at.time, place, at.flags);
        let (store, scratch, races) = (&mut self.store, &mut self.scratch, &mut self.races);
        let (unchecked, max_runs) = (&mut self.unchecked, self.max_runs);
        Check { domain, store, scratch, races, unchecked, max_runs }.touch(access, mode, form)?;
        self.store.settle(place);
        if self.races.is_empty() { Ok(()) } else { self.add_reports() }
    }

    /// Makes reports of what was found.
    #[cold]
    fn add_reports(&mut self) -> Result<()> {
        for race in self.races.drain(..) {
            self.reports.add(&race, &self.blocks, self.stacks.stacks(), &mut self.texts);
        }
        Ok(())
    }

    /// Work on several streams that begins and ends for all at once.
    pub(super) fn collective(
        &mut self,
        named: Named,
        members: &[(u64, StreamInfo, &[Touch<'_>])],
    ) -> Result<()> {
        self.sequence += 1;
        let mut times = Vec::new();
        for (capture, stream, _) in members {
            let (domain, slot) = self.ready(*capture, stream)?;
            let time = of(&mut self.captures, &mut self.main, domain).advance(slot, &mut self.now);
            push(&mut times, At { domain, slot, time, flags: 0 })?;
        }
        // From here on each knows all of these times.
        self.meet(members)?;
        for (at, (_, _, touches)) in times.iter().zip(members) {
            self.touch(*at, named, touches)?;
        }
        self.prune()
    }

    /// Each of several streams comes after all of them.
    fn meet(&mut self, members: &[(u64, StreamInfo, &[Touch<'_>])]) -> Result<()> {
        // Through the first one of each world, there and back.
        for place in (1..members.len()).chain((0..members.len()).rev()) {
            let (capture, stream, _) = members[place];
            let Some(first) = members.iter().position(|member| member.0 == capture) else {
                continue;
            };
            let index = self.domain(capture)?;
            let domain = of(&mut self.captures, &mut self.main, index);
            let (slot, first) = (domain.slot(&stream)?, domain.slot(&members[first].1)?);
            domain.follow(first, slot, &mut self.now)?;
            domain.follow(slot, first, &mut self.now)?;
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
        let domain = of(&mut self.captures, &mut self.main, index);
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
        let domain = of(&mut self.captures, &mut self.main, index);
        let Some(stamp) = domain.events.get(&event).map(Stamp::share) else { return Ok(()) };
        domain.join(slot, &stamp, &mut self.now)
    }

    pub(super) fn event_gone(&mut self, event: u64) {
        self.main.events.remove(&event);
        self.captures.iter_mut().for_each(|domain| drop(domain.events.remove(&event)));
    }

    /// At each launch of what is captured, an event outside is recorded, or waited for.
    pub(super) fn event_outside(&mut self, capture: u64, event: u64, records: bool) -> Result<()> {
        if capture == 0 {
            return Ok(());
        }
        let index = self.domain(capture)?;
        let domain = of(&mut self.captures, &mut self.main, index);
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
        of(&mut self.captures, &mut self.main, index).follow(slot, other, &mut self.now)
    }

    pub(super) fn waits_for_everything(&mut self, capture: u64, stream: StreamInfo) -> Result<()> {
        let (index, slot) = self.ready(capture, &stream)?;
        let domain = of(&mut self.captures, &mut self.main, index);
        let all = domain.point_of_all(None)?;
        domain.join(slot, &all, &mut self.now)
    }

    /// What a wait for a stream waits for.
    pub(super) fn point_of_stream(&mut self, stream: StreamInfo) -> Result<Option<Stamp>> {
        self.main.known(stream.key).map(|slot| self.main.point(slot)).transpose()
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

    /// A capture has ended; what it did, if anything is known.
    pub(super) fn capture_ended(&mut self, capture: u64) -> Result<Option<Recorded>> {
        let known = self.captures.iter().position(|domain| domain.number == capture);
        let Some(index) = known else { return Ok(None) };
        let mut domain = self.captures.swap_remove(index);
        let recorded = Recorded::of(&mut domain, &self.store, &mut self.texts);
        domain.ranges.iter().for_each(|entry| self.store.release(entry.value));
        recorded.map(Some)
    }

    /// A graph is launched: one operation.
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
        let domain = of(&mut self.captures, &mut self.main, index);
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
            self.touch_one(at, named, operation.mode, operation.form()?)?;
        }
        let domain = of(&mut self.captures, &mut self.main, index);
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

    /// Forgets what the host knows to be over, each time that there is twice as much.
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
        self.prune_at = FEW.max(2 * (self.store.cells() + self.main.ranges.len()));
        Ok(())
    }
}
