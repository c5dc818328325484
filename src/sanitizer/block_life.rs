//! Blocks come and go: whose bytes they are, what the allocator waits for before they serve again, and
//! so what comes before what with them.

use super::change::{transform, transform_inside};
use super::clock::push;
use super::domain::{Domain, StreamInfo};
use super::ranges::Inside;
use super::state::{MAIN, State, of};
use super::store::{Access, COVERED, EARLIER, IMPLIED, LAUNCHED, UNCOVERED};
use crate::base::error::Result;

/// What the allocator waits for before a block serves again; lists that are used again and again.
pub(super) struct ReuseOrder {
    /// What these streams hold.
    held: Vec<u32>,
    /// What the next work of the legacy stream comes after besides: what these hold.
    implied: Vec<u32>,
}

impl ReuseOrder {
    pub(super) const fn new() -> ReuseOrder {
        ReuseOrder { held: Vec::new(), implied: Vec::new() }
    }

    /// For a block of these streams, by their keys.
    fn fill(&mut self, domain: &Domain, owner: Option<StreamInfo>, users: &[u64]) -> Result<()> {
        self.held.clear();
        self.implied.clear();
        let slot = owner.and_then(|stream| domain.known(stream.key));
        for slot in slot.into_iter().chain(users.iter().filter_map(|key| domain.known(*key))) {
            push(&mut self.held, slot)?;
        }
        let Some(slot) = slot else { return Ok(()) };
        for index in 0.. {
            match domain.implied_by(slot, index) {
                Some(other) => push(&mut self.implied, other)?,
                None => break,
            }
        }
        Ok(())
    }
}

impl State {
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
        owner: Option<StreamInfo>,
        frames: u32,
    ) -> Result<()> {
        if start == 0 || bytes == 0 {
            return Ok(());
        }
        let range = (start, start.saturating_add(bytes));
        self.blocks.add(range, (owner, capture, frames))?;
        let Some(stream) = owner else { return self.reallocated_to_host(range) };
        // The driver hears nothing of it: no order comes of it but that of these bytes.
        if capture == 0 {
            let inside = self.main.ranges.inside(range.0, range.1);
            if matches!(inside, Inside::Nothing) {
                // Only who has it: promises of a legacy stream count before it does anything.
                return self.main.slot(&stream).map(drop);
            }
            let (index, slot) = self.find(capture, &stream)?;
            return self.reallocated(index, slot, (range, inside));
        }
        // Launches use it from now on: what was there before is over, or it was not minded.
        let mut change = |access: &Access| (access.flags & UNCOVERED != 0).then_some(*access);
        let ranges = &mut self.main.ranges;
        transform(ranges, &mut self.store, &mut self.scratch, range, &mut change)?;
        let (index, slot) = self.find(capture, &stream)?;
        let domain = of(&mut self.captures, &mut self.main, index);
        let inside = domain.ranges.inside(range.0, range.1);
        self.reallocated(index, slot, (range, inside))
    }

    /// Bytes serve again, in the order of a stream.
    #[inline]
    fn reallocated(&mut self, index: usize, slot: u32, range: ((u64, u64), Inside)) -> Result<()> {
        let domain = of(&mut self.captures, &mut self.main, index);
        let time = domain.advance(slot, &mut self.now);
        let (ranges, knows) = domain.split();
        let (host, is_main) = (&self.host, index == MAIN);
        let mut change = |access: &Access| {
            let flags = access.flags & (COVERED | UNCOVERED | IMPLIED);
            // Nobody said that the memory was freed, or it was not in use any more then.
            if is_main && (flags == 0 || access.is_before(|slot, time| host.knows(slot, time))) {
                return None;
            }
            let mut access = *access;
            access.flags = access.flags & !(COVERED | IMPLIED) | EARLIER;
            let is_known = knows(slot, access.slot, access.time) || access.realloc_slot == slot;
            if flags & (UNCOVERED | IMPLIED) == 0 && !is_known {
                (access.realloc_slot, access.realloc_time) = (slot, time);
            }
            Some(access)
        };
        transform_inside(ranges, &mut self.store, &mut self.scratch, range, &mut change)
    }

    /// Pinned memory serves again: what covers its uses, the host has waited for.
    fn reallocated_to_host(&mut self, range: (u64, u64)) -> Result<()> {
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
        let Some((range, place)) = self.blocks.remove(start) else { return Ok(()) };
        let number = self.blocks.at(place).domain;
        if number != 0
            && let Some(index) = self.captures.iter().position(|domain| domain.number == number)
        {
            self.mark_freed(index, range, place)?;
        }
        self.mark_freed(MAIN, range, place)?;
        self.blocks.tidy();
        Ok(())
    }

    /// Bytes are nobody's: what the allocator waits for before they serve again, and what not.
    #[inline]
    fn mark_freed(&mut self, index: usize, range: (u64, u64), place: u32) -> Result<()> {
        let domain = of(&mut self.captures, &mut self.main, index);
        let inside = domain.ranges.inside(range.0, range.1);
        if matches!(inside, Inside::Nothing) {
            return Ok(());
        }
        let (block, reuse_order) = (self.blocks.at(place), &mut self.reuse_order);
        reuse_order.fill(domain, block.owner, &block.users)?;
        let (host, is_main) = (&self.host, index == MAIN);
        // The allocator minds launches of those graphs that had the memory, or that read pinned
        // memory.
        let waits_for_launches = block.domain != 0 || block.owner.is_none();
        let (ranges, knows) = domain.split();
        let mut change = |access: &Access| {
            if is_main && access.is_before(|slot, time| host.knows(slot, time)) {
                return None;
            }
            let before = |streams: &[u32]| {
                access.is_before(|slot, time| streams.iter().any(|own| knows(*own, slot, time)))
            };
            let is_awaited_launch = waits_for_launches && access.flags & LAUNCHED != 0;
            let mut flags = access.flags & (EARLIER | LAUNCHED);
            flags |= if before(&reuse_order.held) || is_awaited_launch {
                COVERED
            } else if before(&reuse_order.implied) {
                IMPLIED
            } else {
                UNCOVERED
            };
            Some(Access { flags, ..*access })
        };
        let range = (range, inside);
        transform_inside(ranges, &mut self.store, &mut self.scratch, range, &mut change)
    }
}
