//! All that the sanitizer knows, and what changes it. Nothing here knows of the driver or of C.

use super::blocks::{Block, Blocks, Promise};
use super::change::{transform, transform_all};
use super::check::{Check, Found, MOST_RUNS, Scratch};
use super::clock::{Stamp, Table, insert, push};
use super::recording::Recorded;
use super::report::Reports;
use super::shape::Form;
use super::store::{Access, COVERED, EARLIER, IMPLIED, LAUNCHED, Store, Told, UNCOVERED};
use super::text::{Label, Texts};
use super::world::{Host, Who, World};
use super::{Mode, Touch};
use crate::error::Result;
use crate::memory::frames::Stacks;

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
fn of<'a>(captures: &'a mut [World], main: &'a mut World, index: usize) -> &'a mut World {
    captures.get_mut(index).unwrap_or(main)
}

/// The place of the device's world.
const MAIN: usize = usize::MAX;

/// All of it.
pub(super) struct State {
    /// Does anybody watch?
    pub(super) is_on: bool,
    now: u64,
    sequence: u64,
    host: Host,
    main: World,
    captures: Vec<World>,
    store: Store,
    blocks: Blocks,
    /// The end of the last launch of each executable.
    launches: Table<Stamp>,
    scratch: Scratch,
    found: Vec<Found>,
    pub(super) stacks: Stacks,
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
            found: Vec::new(),
            stacks: Stacks::new(),
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
        self.found = Vec::new();
        self.prune_at = FEW;
    }

    /// The world of a capture, made now if there is none; 0: the device's.
    fn world(&mut self, capture: u64) -> Result<usize> {
        if capture == 0 {
            return Ok(MAIN);
        }
        let known = self.captures.iter().position(|world| world.number == capture);
        if let Some(index) = known {
            return Ok(index);
        }
        push(&mut self.captures, World::new(capture))?;
        Ok(self.captures.len() - 1)
    }

    /// A stream's world, and its number there.
    fn find(&mut self, capture: u64, who: Who) -> Result<(usize, u32)> {
        let index = self.world(capture)?;
        let world = of(&mut self.captures, &mut self.main, index);
        let slot = world.slot(who)?;
        world.hear(slot, &self.host, &mut self.now)?;
        Ok((index, slot))
    }

    /// The same of a stream that is about to do something.
    pub(super) fn ready(&mut self, capture: u64, who: Who) -> Result<(usize, u32)> {
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
        let (index, slot) = self.ready(capture, who)?;
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
            self.reports.add(&found, &self.blocks, &self.stacks, &mut self.texts);
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
            let (world, slot) = self.ready(*capture, *who)?;
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
            let (slot, first) = (world.slot(who)?, world.slot(members[first].1)?);
            world.follow(first, slot, &mut self.now)?;
            world.follow(slot, first, &mut self.now)?;
        }
        Ok(())
    }

    pub(super) fn event_recorded(&mut self, capture: u64, event: u64, who: Who) -> Result<()> {
        let (index, slot) = self.ready(capture, who)?;
        if capture != 0 {
            self.main.events.remove(&event);
        }
        let world = of(&mut self.captures, &mut self.main, index);
        let stamp = world.stamp(slot);
        insert(&mut world.events, event, stamp)
    }

    pub(super) fn event_waited(&mut self, capture: u64, event: u64, who: Who) -> Result<()> {
        let (index, slot) = self.ready(capture, who)?;
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
        let (index, slot) = self.ready(capture, who)?;
        let (_, other) = self.ready(capture, other)?;
        of(&mut self.captures, &mut self.main, index).follow(slot, other, &mut self.now)
    }

    pub(super) fn waits_for_everything(&mut self, capture: u64, who: Who) -> Result<()> {
        let (index, slot) = self.ready(capture, who)?;
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

    pub(super) fn used_on(&mut self, address: u64, key: u64) -> Result<()> {
        self.blocks.used(address, key)
    }

    /// How many bytes a block has from an address on; 0: nobody knows of one.
    pub(super) fn rest_of_block(&self, address: u64) -> u64 {
        self.blocks.find(address).map_or(0, |((_, end), _)| end - address)
    }

    /// A block was given out, for a stream, or for the host where there is none.
    pub(super) fn allocated(
        &mut self,
        capture: u64,
        (start, bytes): (u64, u64),
        owner: Option<Who>,
        frames: u32,
    ) -> Result<()> {
        if start == 0 || bytes == 0 {
            return Ok(());
        }
        let range = (start, start.saturating_add(bytes));
        let block = Block { owner, world: capture, frames, users: Vec::new() };
        self.blocks.add(range, block)?;
        let Some(who) = owner else { return self.give_to_host(range) };
        // The driver hears nothing of it: no order comes of it but that of these bytes.
        let (index, slot) = self.find(capture, who)?;
        if index != MAIN {
            // Launches use it from now on: what was there before is over, or it was not minded.
            let mut change = |access: &Access| (access.flags & UNCOVERED != 0).then_some(*access);
            let ranges = &mut self.main.ranges;
            transform(ranges, &mut self.store, &mut self.scratch, range, &mut change)?;
        }
        self.give(index, slot, range)
    }

    /// Bytes serve again, in the order of a stream.
    fn give(&mut self, index: usize, slot: u32, range: (u64, u64)) -> Result<()> {
        let world = of(&mut self.captures, &mut self.main, index);
        let time = world.advance(slot, &mut self.now);
        let (ranges, knows) = world.split();
        let (host, is_main) = (&self.host, index == MAIN);
        let mut change = |access: &Access| {
            let flags = access.flags & (COVERED | UNCOVERED | IMPLIED);
            // Nobody said that the memory was freed, or it was not in use any more then.
            if is_main && (flags == 0 || access.is_before(|slot, time| host.knows(slot, time))) {
                return None;
            }
            let mut access = *access;
            access.flags = access.flags & !(COVERED | IMPLIED) | EARLIER;
            let is_known = knows(slot, access.slot, access.time) || access.given_slot == slot;
            if flags & (UNCOVERED | IMPLIED) == 0 && !is_known {
                (access.given_slot, access.given_time) = (slot, time);
            }
            Some(access)
        };
        transform(ranges, &mut self.store, &mut self.scratch, range, &mut change)
    }

    /// Pinned memory serves again: what covers its uses, the host has waited for.
    fn give_to_host(&mut self, range: (u64, u64)) -> Result<()> {
        let host = &self.host;
        let mut change = |access: &Access| {
            let is_over = access.is_before(|slot, time| host.knows(slot, time));
            let mut access = *access;
            access.flags |= EARLIER;
            (access.flags & UNCOVERED != 0 && !is_over).then_some(access)
        };
        let ranges = &mut self.main.ranges;
        transform(ranges, &mut self.store, &mut self.scratch, range, &mut change)
    }

    /// A block is given back.
    pub(super) fn freed(&mut self, start: u64) -> Result<()> {
        let Some((range, block)) = self.blocks.remove(start) else { return Ok(()) };
        if block.world != 0
            && let Some(index) = self.captures.iter().position(|world| world.number == block.world)
        {
            self.take(index, range, &block)?;
        }
        self.take(MAIN, range, &block)
    }

    /// Bytes are nobody's: what the allocator waits for before they serve again, and what not.
    fn take(&mut self, index: usize, range: (u64, u64), block: &Block) -> Result<()> {
        let world = of(&mut self.captures, &mut self.main, index);
        if world.ranges.is_free(range.0, range.1) {
            return Ok(());
        }
        let mut promise = Promise::default();
        let owner = block.owner.map(|who| who.key);
        for key in owner.iter().chain(&block.users) {
            if let Some(slot) = world.known(*key) {
                push(&mut promise.held, world.stamp(slot))?;
            }
        }
        if let Some(slot) = owner.and_then(|key| world.known(key)) {
            promise.implied = Some(world.point(slot)?);
        }
        let (host, is_main) = (&self.host, index == MAIN);
        // The allocator minds launches of those graphs that had the memory, or that read pinned
        // memory.
        let minds_launches = block.world != 0 || block.owner.is_none();
        let mut change = |access: &Access| {
            if is_main && access.is_before(|slot, time| host.knows(slot, time)) {
                return None;
            }
            let mut access = *access;
            let is_minded = minds_launches && access.flags & LAUNCHED != 0;
            let is_covered = access.is_before(|slot, time| promise.holds(slot, time));
            access.flags &= EARLIER | LAUNCHED;
            access.flags |= if is_covered || is_minded {
                COVERED
            } else if access.is_before(|slot, time| promise.implies(slot, time)) {
                IMPLIED
            } else {
                UNCOVERED
            };
            Some(access)
        };
        transform(&mut world.ranges, &mut self.store, &mut self.scratch, range, &mut change)
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
        let (index, slot) = self.ready(capture, who)?;
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
