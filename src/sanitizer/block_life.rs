//! Allocation and free of blocks: what the allocator waits for before it reuses memory, and the
//! order that follows for accesses to that memory.

use super::change::{transform, transform_inside};
use super::clock::push;
use super::domain::{Domain, StreamInfo};
use super::ranges::Inside;
use super::state::{MAIN, State, domain_at};
use super::store::{Access, COVERED, EARLIER, IMPLIED, LAUNCHED, UNCOVERED};
use crate::base::error::Result;

/// The streams that the allocator waits for before it reuses a block. The lists are reused between
/// calls.
pub(super) struct ReuseOrder {
    /// The owner of the block and the streams that use it.
    held: Vec<u32>,
    /// Streams that the next work of the owner comes after, if the owner is a legacy default
    /// stream.
    implied: Vec<u32>,
}

impl ReuseOrder {
    pub(super) const fn new() -> ReuseOrder {
        ReuseOrder { held: Vec::new(), implied: Vec::new() }
    }

    /// Fills the lists for a block of `owner`, used by the streams with the keys `users`.
    fn fill(&mut self, domain: &Domain, owner: Option<StreamInfo>, users: &[u64]) -> Result<()> {
        self.held.clear();
        self.implied.clear();
        let slot = owner.and_then(|stream| domain.slot_of_key(stream.key));
        for slot in slot.into_iter().chain(users.iter().filter_map(|key| domain.slot_of_key(*key)))
        {
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

    /// Records that a block is in the order of another stream from now on.
    pub(super) fn handed_over(&mut self, address: u64, stream: StreamInfo) -> Result<()> {
        self.main.slot(&stream)?;
        self.blocks.set_owner(address, stream);
        Ok(())
    }

    /// Bytes from `address` to the end of its block; 0 if no block is known there.
    pub(super) fn rest_of_block(&self, address: u64) -> u64 {
        self.blocks.find(address).map_or(0, |((_, end), _)| end - address)
    }

    /// Records an allocated block, for a stream or, without one, for the host.
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
        // An allocation queues nothing in the driver, so it orders only accesses to these bytes.
        if capture == 0 {
            let inside = self.main.ranges.inside(range.0, range.1);
            if matches!(inside, Inside::Nothing) {
                // No accesses are known here, but the stream must be: a legacy stream may be the
                // owner of a block before it has done anything.
                return self.main.slot(&stream).map(drop);
            }
            let (index, slot) = self.find(capture, &stream)?;
            return self.reallocated(index, slot, (range, inside));
        }
        // Launches use the memory from now on. Earlier accesses are complete, unless the allocator
        // did not wait for them (`UNCOVERED`).
        let mut change = |access: &Access| (access.flags & UNCOVERED != 0).then_some(*access);
        let ranges = &mut self.main.ranges;
        transform(ranges, &mut self.store, &mut self.scratch, range, &mut change)?;
        let (index, slot) = self.find(capture, &stream)?;
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        let inside = domain.ranges.inside(range.0, range.1);
        self.reallocated(index, slot, (range, inside))
    }

    /// Updates the accesses to bytes that are allocated again, in the order of a stream.
    #[inline]
    fn reallocated(&mut self, index: usize, slot: u32, range: ((u64, u64), Inside)) -> Result<()> {
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        let time = domain.advance(slot, &mut self.now);
        let (ranges, knows) = domain.split();
        let (host, is_main) = (&self.host, index == MAIN);
        let mut change = |access: &Access| {
            let flags = access.flags & (COVERED | UNCOVERED | IMPLIED);
            // The free was not recorded, or the access is complete.
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

    /// Updates the accesses to pinned memory that is allocated again. The host has waited for the
    /// covered ones, so they are removed.
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

    /// Records that a block is freed.
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

    /// Marks each access to the freed bytes: does the allocator wait for it before it reuses them?
    #[inline]
    fn mark_freed(&mut self, index: usize, range: (u64, u64), place: u32) -> Result<()> {
        let domain = domain_at(&mut self.captures, &mut self.main, index);
        let inside = domain.ranges.inside(range.0, range.1);
        if matches!(inside, Inside::Nothing) {
            return Ok(());
        }
        let (block, reuse_order) = (self.blocks.at(place), &mut self.reuse_order);
        reuse_order.fill(domain, block.owner, &block.users)?;
        let (host, is_main) = (&self.host, index == MAIN);
        // The allocator waits for launches of graphs that own the memory, and for launches that use
        // pinned memory.
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
