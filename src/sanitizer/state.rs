//! All that the sanitizer knows, and what changes it. Nothing here knows of the driver or of C.

use super::blocks::Blocks;
use super::change::transform_all;
use super::check::{Check, Found, MOST_RUNS, Scratch};
use super::clock::{Stamp, Table, insert, push};
use super::life::Promise;
use super::recording::Recorded;
use super::report::Reports;
use super::shape::Form;
use super::store::{Access, LAUNCHED, Store, Told};
use super::text::{Label, Texts};
use super::world::{Host, Who, World};
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
    world: usize,
    slot: u32,
    time: u64,
    flags: u32,
}

/// A world by its place, in parts of the state that can be borrowed beside others.
#[inline]
pub(super) fn of<'a>(
    captures: &'a mut [World],
    main: &'a mut World,
    index: usize,
) -> &'a mut World {
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
    pub(super) main: World,
    pub(super) captures: Vec<World>,
    pub(super) store: Store,
    pub(super) blocks: Blocks,
    /// The end of the last launch of each executable.
    launches: Table<Stamp>,
    pub(super) scratch: Scratch,
    pub(super) promise: Promise,
    found: Vec<Found>,
    pub(super) stacks: StackTable,
    pub(super) texts: Texts,
    pub(super) reports: Reports,
    /// Touches of which the bytes, or conflicts, are not known.
    pub(super) unwatched: u64,
    /// How often all was forgotten for want of host memory.
    pub(super) lost: u64,
    /// Was the host told of these?
    pub(super) is_told: bool,
    /// Another one after each shutdown.
    pub(super) life: u64,
    /// Cells from which on what is over is forgotten.
    prune_at: usize,
    /// Runs up to which the bytes of a touch are remembered one by one.
    pub(super) most_runs: u64,
}

impl State {
    pub(super) const fn new() -> State {
        State {
            is_on: false,
            now: 0,
            sequence: 0,
            host: Host::new(),
            main: World::new(0),
            captures: Vec::new(),
            store: Store::new(),
            blocks: Blocks::new(),
            launches: Table::with_hasher(std::hash::BuildHasherDefault::new()),
            scratch: Scratch::new(),
            promise: Promise::new(),
            found: Vec::new(),
            stacks: StackTable::new(),
            texts: Texts::new(),
            reports: Reports::new(),
            unwatched: 0,
            lost: 0,
            is_told: false,
            life: 0,
            prune_at: FEW,
            most_runs: MOST_RUNS,
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
        let worlds = self.captures.iter().chain([&self.main]);
        self.blocks.check();
        self.store.check(worlds.flat_map(|world| world.ranges.iter()).map(|entry| entry.value));
    }

    /// Is there something for the host, on this thread?
    pub(super) fn has_news(&self) -> bool {
        self.reports.is_waiting() || !self.is_told && self.lost + self.unwatched > 0
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
        self.promise = Promise::new();
        self.found = Vec::new();
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
    fn world(&mut self, capture: u64) -> Result<usize> {
        if capture == 0 { Ok(MAIN) } else { self.world_of_capture(capture) }
    }

    fn world_of_capture(&mut self, capture: u64) -> Result<usize> {
        let known = self.captures.iter().position(|world| world.number == capture);
        if let Some(index) = known {
            return Ok(index);
        }
        push(&mut self.captures, World::new(capture))?;
        Ok(self.captures.len() - 1)
    }

    /// A stream's world, and its number there.
    #[inline]
    pub(super) fn find(&mut self, capture: u64, who: &Who) -> Result<(usize, u32)> {
        let index = self.world(capture)?;
        let world = of(&mut self.captures, &mut self.main, index);
        let slot = world.slot(who)?;
        world.hear(slot, &self.host, &mut self.now)?;
        Ok((index, slot))
    }

    /// The same of a stream that is about to do something.
    pub(super) fn ready(&mut self, capture: u64, who: &Who) -> Result<(usize, u32)> {
        let (index, slot) = self.find(capture, who)?;
        let world = of(&mut self.captures, &mut self.main, index);
        world.prepare(slot, &mut self.now)?;
        Ok((index, slot))
    }

    /// An operation was queued.
    pub(super) fn operation(
        &mut self,
        capture: u64,
        who: Who,
        named: Named,
        touches: &[Touch<'_>],
    ) -> Result<()> {
        let (index, slot) = self.ready(capture, &who)?;
        self.sequence += 1;
        let world = of(&mut self.captures, &mut self.main, index);
        let time = world.advance(slot, &mut self.now);
        self.touch(At { world: index, slot, time, flags: 0 }, named, touches)?;
        self.prune()
    }

    fn touch(&mut self, at: At, named: Named, touches: &[Touch<'_>]) -> Result<()> {
        for touch in touches {
            self.touch_one(at, named, touch.mode, Form::of(touch)?)?;
        }
        Ok(())
    }

    fn touch_one(&mut self, at: At, named: Named, mode: Mode, form: Form<'_>) -> Result<()> {
        let world = of(&mut self.captures, &mut self.main, at.world);
        let (who, sequence) = (world.who(at.slot), self.sequence);
        let Named { label, frames } = named;
        let told = Told { sequence, label, frames, who, mode, start: 0, end: 0 };
        let place = self.store.add_touched(told)?;
        let access = Access::new(at.slot, at.time, place, at.flags);
        let (store, scratch, found) = (&mut self.store, &mut self.scratch, &mut self.found);
        let (unwatched, most_runs) = (&mut self.unwatched, self.most_runs);
        Check { world, store, scratch, found, unwatched, most_runs }.touch(access, mode, form)?;
        self.store.settle(place);
        if self.found.is_empty() { Ok(()) } else { self.tell() }
    }

    /// Makes reports of what was found.
    #[cold]
    fn tell(&mut self) -> Result<()> {
        for found in self.found.drain(..) {
            self.reports.add(&found, &self.blocks, self.stacks.stacks(), &mut self.texts);
        }
        Ok(())
    }

    /// Work on several streams that begins and ends for all at once.
    pub(super) fn collective(
        &mut self,
        named: Named,
        members: &[(u64, Who, &[Touch<'_>])],
    ) -> Result<()> {
        self.sequence += 1;
        let mut times = Vec::new();
        for (capture, who, _) in members {
            let (world, slot) = self.ready(*capture, who)?;
            let time = of(&mut self.captures, &mut self.main, world).advance(slot, &mut self.now);
            push(&mut times, At { world, slot, time, flags: 0 })?;
        }
        // From here on each knows all of these times.
        self.meet(members)?;
        for (at, (_, _, touches)) in times.iter().zip(members) {
            self.touch(*at, named, touches)?;
        }
        self.prune()
    }

    /// Each of several streams comes after all of them.
    fn meet(&mut self, members: &[(u64, Who, &[Touch<'_>])]) -> Result<()> {
        // Through the first one of each world, there and back.
        for place in (1..members.len()).chain((0..members.len()).rev()) {
            let (capture, who, _) = members[place];
            let Some(first) = members.iter().position(|member| member.0 == capture) else {
                continue;
            };
            let index = self.world(capture)?;
            let world = of(&mut self.captures, &mut self.main, index);
            let (slot, first) = (world.slot(&who)?, world.slot(&members[first].1)?);
            world.follow(first, slot, &mut self.now)?;
            world.follow(slot, first, &mut self.now)?;
        }
        Ok(())
    }

    pub(super) fn event_recorded(&mut self, capture: u64, event: u64, who: Who) -> Result<()> {
        let (index, slot) = self.ready(capture, &who)?;
        if capture != 0 {
            self.main.events.remove(&event);
        }
        let world = of(&mut self.captures, &mut self.main, index);
        let stamp = world.stamp(slot);
        insert(&mut world.events, event, stamp)
    }

    pub(super) fn event_waited(&mut self, capture: u64, event: u64, who: Who) -> Result<()> {
        let (index, slot) = self.ready(capture, &who)?;
        let world = of(&mut self.captures, &mut self.main, index);
        let Some(stamp) = world.events.get(&event).map(Stamp::share) else { return Ok(()) };
        world.join(slot, &stamp, &mut self.now)
    }

    pub(super) fn event_gone(&mut self, event: u64) {
        self.main.events.remove(&event);
        self.captures.iter_mut().for_each(|world| drop(world.events.remove(&event)));
    }

    /// At each launch of what is captured, an event outside is recorded, or waited for.
    pub(super) fn event_outside(&mut self, capture: u64, event: u64, records: bool) -> Result<()> {
        if capture == 0 {
            return Ok(());
        }
        let index = self.world(capture)?;
        let world = of(&mut self.captures, &mut self.main, index);
        let list = if records { &mut world.recorded } else { &mut world.awaited };
        if list.contains(&event) { Ok(()) } else { push(list, event) }
    }

    pub(super) fn stream_waits(&mut self, capture: u64, who: Who, other: Who) -> Result<()> {
        let (index, slot) = self.ready(capture, &who)?;
        let (_, other) = self.ready(capture, &other)?;
        of(&mut self.captures, &mut self.main, index).follow(slot, other, &mut self.now)
    }

    pub(super) fn waits_for_everything(&mut self, capture: u64, who: Who) -> Result<()> {
        let (index, slot) = self.ready(capture, &who)?;
        let world = of(&mut self.captures, &mut self.main, index);
        let all = world.point_of_all(None)?;
        world.join(slot, &all, &mut self.now)
    }

    /// What a wait for a stream waits for.
    pub(super) fn point_of_stream(&mut self, who: Who) -> Result<Option<Stamp>> {
        self.main.known(who.key).map(|slot| self.main.point(slot)).transpose()
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
        let known = self.captures.iter().position(|world| world.number == capture);
        let Some(index) = known else { return Ok(None) };
        let mut world = self.captures.swap_remove(index);
        let recorded = Recorded::of(&mut world, &self.store, &mut self.texts);
        world.ranges.iter().for_each(|entry| self.store.release(entry.value));
        recorded.map(Some)
    }

    /// A graph is launched: one operation.
    pub(super) fn launched(
        &mut self,
        capture: u64,
        who: Who,
        executable: u64,
        frames: u32,
        recorded: Option<&Recorded>,
    ) -> Result<()> {
        let (index, slot) = self.ready(capture, &who)?;
        self.sequence += 1;
        let world = of(&mut self.captures, &mut self.main, index);
        let before = self.launches.get(&executable).filter(|_| capture == 0).map(Stamp::share);
        let awaited = recorded.map_or(&[][..], |recorded| &recorded.awaited);
        let events = awaited.iter().filter_map(|event| world.events.get(event).map(Stamp::share));
        let mut stamps = Vec::new();
        for stamp in before.into_iter().chain(events) {
            push(&mut stamps, stamp)?;
        }
        for stamp in &stamps {
            world.join(slot, stamp, &mut self.now)?;
        }
        let time = world.advance(slot, &mut self.now);
        let at = At { world: index, slot, time, flags: LAUNCHED };
        for operation in recorded.map_or(&[][..], |recorded| &recorded.operations) {
            let named = Named { label: operation.label, frames };
            self.touch_one(at, named, operation.mode, operation.form()?)?;
        }
        let world = of(&mut self.captures, &mut self.main, index);
        if capture == 0 {
            insert(&mut self.launches, executable, world.stamp(slot))?;
        }
        for event in recorded.map_or(&[][..], |recorded| &recorded.recorded) {
            let stamp = world.stamp(slot);
            insert(&mut world.events, *event, stamp)?;
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
