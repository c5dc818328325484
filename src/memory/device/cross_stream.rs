//! Cross-stream reuse: idle memory of one stream serves another, in place, before more memory is
//! taken from the driver. `foreign_free.rs` has what this changes in an arena.
//!
//! The stream that takes the memory is ordered after the other stream. That needs no mapping and
//! almost no host time, but one stream waits for the other on the device. So it is done only where
//! growth would raise the device's memory above the highest need so far. Below that, growth keeps
//! streams independent.

use crate::base::error::Result;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::gpus::Gpus;
use crate::memory::arena::foreign_free::{Owner, Window};
use crate::memory::arena::{Arena, ArenaGuard, events};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{Request, UNIT};
use crate::memory::device::stream_order::Requester;
use crate::memory::device::{Attempt, DeviceMemory};
use crate::memory::stats::class_counters::ClassCounters;
use crate::memory::stats::ledger::{ALL, ALLOCATED_BYTES, change_of};
use std::sync::atomic::Ordering;

/// How much may be reserved beyond the highest need so far, in thousandths of it.
const MARGIN: u64 = 10;
/// The same for little growth, if the stream has waited for little memory at least [`TIMES`] times.
const WIDE_MARGIN: u64 = 40;
const TIMES: u32 = 4;
/// Other arenas are not searched if all of them together have less than this.
const LEAST: u64 = 16 << 20;
/// An amount is little if it is less than the reserved memory divided by this.
const LITTLE: u64 = 64;

/// The bits of all owners.
const ANY: u64 = u64::MAX;

/// The arenas that a search visits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// The requesting stream's own arena.
    OwnArena,
    /// That arena and those of other streams.
    AllArenas,
}

impl DeviceMemory {
    /// The number of stream waits that cross-stream reuse has added.
    pub fn shared_waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// A block that is free in this stream's order, in the arena of another stream that served it
    /// last. Makes no driver call.
    #[inline]
    pub(in crate::memory) fn reuse_again(
        &self,
        arena: &Arena,
        request: Request,
    ) -> Result<Option<u64>> {
        // SAFETY: NULL or an arena of this device, which lives as long as a call may have found it.
        let Some(source_arena) = (unsafe { arena.source_arena.load(Ordering::Acquire).as_ref() })
        else {
            return Ok(None);
        };
        let Some(stream) = arena.stream() else { return Ok(None) };
        let source_arena = &mut source_arena.enter()?;
        match source_arena.foreign.find(stream) {
            Some(index) => self.take_for_stream(source_arena, index, request, false),
            None => Ok(None),
        }
    }

    /// Memory of other streams, or memory of this arena that other streams use, if growth would
    /// take more from the driver than was ever needed. With `anyhow`, whatever growth would take.
    pub(in crate::memory) fn share(&self, attempt: Attempt, anyhow: bool) -> Result<Option<u64>> {
        let Some(requester) = self.may_share(attempt, anyhow) else { return Ok(None) };
        let Attempt { device, arena, request, .. } = attempt;
        let may_grow = || !anyhow && self.may_grow(arena, request);
        let has_foreign = self.has_foreign(arena);
        if !has_foreign && may_grow() {
            return Ok(None);
        }
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        if has_foreign {
            let own = self.share_cheapest(requester, Where::OwnArena, false)?;
            if own.is_some() || may_grow() {
                return Ok(own);
            }
        }
        for may_wait in [false, true] {
            if let Some(address) = self.share_cheapest(requester, Where::AllArenas, may_wait)? {
                return Ok(Some(address));
            }
        }
        if anyhow { Ok(None) } else { self.grow_elsewhere(requester) }
    }

    /// The requester, if there may be memory that its stream can reuse.
    fn may_share<'a>(&self, attempt: Attempt<'a>, anyhow: bool) -> Option<Requester<'a>> {
        let Attempt { gpus, device, arena, request } = attempt;
        let stream = arena.stream()?;
        let is_served = is_shared(arena) && !stream.is_per_thread();
        let requester = Requester { gpus, device, arena, stream, request };
        (is_served && (self.has_foreign(arena) || self.has_others(arena, anyhow)))
            .then_some(requester)
    }

    /// Do other streams use memory of the arena?
    fn has_foreign(&self, arena: &Arena) -> bool {
        let Ok(state) = arena.enter() else { return false };
        !state.foreign.is_empty()
    }

    /// Do other arenas of the class have memory that may be shared? Less than the margin does not
    /// count, unless with `anyhow`.
    fn has_others(&self, arena: &Arena, anyhow: bool) -> bool {
        if !self.policy.shares() {
            return false;
        }
        let theirs = self.stats.with_members(|heaps| {
            let others = heaps.iter().flat_map(|heap| heap.arenas());
            let others = others.filter(|other| !std::ptr::eq(*other, arena) && is_shared(other));
            let of_kind = others.filter(|other| other.kind() == arena.kind());
            of_kind.map(Arena::counted).sum::<i64>() as u64
        });
        let least = LEAST.max(self.virtual_memory.limit.claimed() / 1000 * MARGIN);
        theirs >= if anyhow { 1 } else { least }
    }

    /// May the arena grow by what the request lacks, instead of waiting for other streams?
    fn may_grow(&self, arena: &Arena, request: Request) -> bool {
        let step = (self.virtual_memory.granularity() / UNIT) as u32;
        let (growth, is_first) = {
            let Ok(state) = arena.enter() else { return true };
            let growth = u64::from(state.missing_at_end(request.units, step)) * UNIT;
            (growth, state.segment.bytes() == 0)
        };
        // The smallest possible growth: streams of small programs stay independent.
        if is_first && growth <= self.virtual_memory.granularity() {
            return true;
        }
        let claimed = self.virtual_memory.limit.claimed() + growth;
        if claimed <= self.policy.not_shared_below(self.virtual_memory.limit.most().min(self.total))
        {
            return true;
        }
        let held = self.highest_need(None, request);
        // A stream that needs little, such as a stream of copies, soon has memory of its own.
        let is_often = arena.small_waits.load(Ordering::Relaxed) >= TIMES;
        let is_little = growth < self.virtual_memory.limit.claimed() / LITTLE;
        let margin = if is_often && is_little { WIDE_MARGIN } else { MARGIN };
        claimed <= held + held / 1000 * margin
    }

    /// The most bytes that were allocated at a time since the cache was emptied, this request
    /// included. `own` is an arena whose lock the caller holds, if it holds one.
    pub(in crate::memory) fn highest_need(
        &self,
        own: Option<&mut ArenaGuard<'_>>,
        request: Request,
    ) -> u64 {
        self.with_ledger(own, |stats| {
            let current = stats.sums(ClassCounters::current)[ALL][ALLOCATED_BYTES];
            stats.ledger.highest.max(current + i64::from(request.units) * UNIT as i64) as u64
        })
    }

    /// Runs `body` for an arena, and for each other that has memory to share with it, until `body`
    /// returns something. Holds the lock of the arena meanwhile.
    fn each_shared<R>(
        &self,
        arena: &Arena,
        mut body: impl FnMut(&mut ArenaGuard<'_>) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        let shares = self.policy.shares();
        let takes_part = |other: &Arena| {
            let lends = shares && other.kind() == arena.kind() && is_shared(other);
            std::ptr::eq(other, arena) || lends && other.counted() > 0
        };
        let mut index = 0;
        let _walk = self.ended.walk();
        loop {
            let found = self.stats.with_members(|heaps| {
                let others = heaps.iter().map(|heap| heap.arena(arena.class)).enumerate();
                let found = others.skip(index).find(|(_, other)| takes_part(other));
                found.map(|(place, other)| (place, std::ptr::from_ref(other)))
            });
            let Some((place, other)) = found else { return Ok(None) };
            // SAFETY: boxed, and kept as long as this call.
            let other = unsafe { &*other };
            let other = &mut other.enter()?;
            let found = body(other)?;
            if found.is_some() {
                return Ok(found);
            }
            index = place + 1;
        }
    }

    /// A block that needs the fewest waits for other streams, or without `may_wait` none. Of
    /// equals, one in the smallest arena: an arena with little memory is of little use as a whole.
    fn share_cheapest(
        &self,
        requester: Requester,
        place: Where,
        may_wait: bool,
    ) -> Result<Option<u64>> {
        let mut best: Option<(_, *const Arena, u64)> = None;
        self.each_shared(requester.arena, |other| {
            let is_own = std::ptr::eq(other.arena(), requester.arena);
            if place == Where::OwnArena && !is_own {
                return Ok(None::<()>);
            }
            if !may_wait && !is_own {
                // Errors of the other arena's streams do not fail this allocation.
                let _ = self.settle(requester.gpus, other, false);
            }
            let Some(to) = self.owner_in(requester, other) else { return Ok(None) };
            let before = self.known(requester, other, to, false);
            if other.find_window(requester.request.units, ANY, before).is_none() {
                return Ok(None);
            }
            let known = if may_wait { before } else { self.known(requester, other, to, true) };
            let allowed = if may_wait { ANY } else { known };
            if let Some(window) = other.find_window(requester.request.units, allowed, known) {
                let cost = (window.waits(known), other.segment.bytes(), window.units());
                if best.is_none_or(|(least, ..)| cost < least) {
                    best = Some((cost, std::ptr::from_ref(other.arena()), before));
                }
            }
            Ok(None)
        })?;
        let Some((_, other, before)) = best else { return Ok(None) };
        // SAFETY: found by this call, which is not over.
        let other = unsafe { &*other };
        let other = &mut other.enter()?;
        let Some(to) = self.owner_in(requester, other) else { return Ok(None) };
        // The queries above have noted their results, unless another thread came between.
        let known = self.known(requester, other, to, false);
        let allowed = if may_wait { ANY } else { known };
        let Some(window) = other.find_window(requester.request.units, allowed, known) else {
            return Ok(None);
        };
        if !self.order_after(requester, other, window.owners & !known, to, may_wait) {
            return Ok(None);
        }
        let newly = window.owners & !before;
        let foreign = other.foreign_units(newly);
        let gained = foreign.max(requester.request.units.into()) * UNIT;
        if gained >= self.virtual_memory.limit.claimed() / LITTLE {
            requester.arena.small_waits.store(0, Ordering::Relaxed);
        } else if newly != 0 {
            requester.arena.small_waits.fetch_add(1, Ordering::Relaxed);
        }
        self.take_window(requester, other, window, to)
    }

    /// Takes a block out of a window. The stream is ordered after all owners of the window.
    fn take_window(
        &self,
        requester: Requester,
        other: &mut ArenaGuard<'_>,
        window: Window,
        to: Owner,
    ) -> Result<Option<u64>> {
        let Owner::Stream(index) = to else {
            self.gather(other, window, to);
            other.advance_cursor(requester.request.units);
            return self.take::<true>(other, requester.request, usize::MAX);
        };
        let source = std::ptr::from_ref(other.arena()).cast_mut();
        requester.arena.source_arena.store(source, Ordering::Release);
        // A window of the arena's own memory is one block, whose rest stays with the arena.
        if window.owners == Owner::Arena.bit() {
            return self.take_for_stream(other, index, requester.request, true);
        }
        self.gather(other, window, to);
        self.take_for_stream(other, index, requester.request, false)
    }

    /// Moves a window to one owner.
    fn gather(&self, state: &mut ArenaGuard<'_>, window: Window, to: Owner) {
        state.gather(window, to);
        self.count_split(state);
    }

    /// A block at the end of the arena that needs the least growth, if that is much less than the
    /// requesting arena needs. It consists of what is free there, of several owners, and of what
    /// the driver adds behind it.
    fn grow_elsewhere(&self, requester: Requester) -> Result<Option<u64>> {
        let units = requester.request.units;
        let mut best: (u32, *const Arena) = (0, std::ptr::null());
        self.each_shared(requester.arena, |other| {
            if !other.quick.has_lists()
                && let Some((_, tail)) = other.tail()
            {
                let own = std::ptr::eq(other.arena(), requester.arena);
                // Another stream's arena must save at least a quarter of the request.
                let worth = if own { tail } else { tail.saturating_sub(units / 4) };
                if worth > best.0 {
                    best = (worth, std::ptr::from_ref(other.arena()));
                }
            }
            Ok(None::<()>)
        })?;
        // SAFETY: NULL or found by this call, which is not over.
        let Some(other) = (unsafe { best.1.as_ref() }) else { return Ok(None) };
        let other = &mut other.enter()?;
        let Some(to) = self.owner_in(requester, other) else { return Ok(None) };
        let Some((window, tail)) = other.tail() else { return Ok(None) };
        if window.owners == to.bit() && to == Owner::Arena
            || !self.order_after(requester, other, window.owners, to, true)
        {
            return Ok(None);
        }
        self.gather(other, window, to);
        let Owner::Stream(index) = to else { return Ok(None) };
        let step = (self.virtual_memory.granularity() / UNIT) as u32;
        let missing = units.saturating_sub(tail).next_multiple_of(step);
        if missing > 0 {
            let (before, arena) = (other.reserved(), other.arena());
            let grown = other.grow_for_stream(&self.virtual_memory, arena, index, missing);
            self.count_segment(other, before);
            self.count_split(other);
            grown?;
        }
        let source = std::ptr::from_ref(other.arena()).cast_mut();
        requester.arena.source_arena.store(source, Ordering::Release);
        self.take_for_stream(other, index, requester.request, false)
    }

    /// Takes a block for another stream: from that stream's free list, or with `own` from the
    /// arena's own free memory.
    fn take_for_stream(
        &self,
        state: &mut ArenaGuard<'_>,
        index: usize,
        request: Request,
        own: bool,
    ) -> Result<Option<u64>> {
        let arena = state.arena();
        let taken = match own {
            true => state.take_own_for(index, request)?,
            false => state.take_foreign(index, request)?,
        };
        let Some(id) = taken else { return Ok(None) };
        events::allocated(arena, state, id);
        let address = state.address(arena.base, id);
        let bytes = (u64::from(request.units) * UNIT) as i64;
        let change = change_of(1, bytes, request.bytes as i64, request.oversize);
        self.count_with_split(state, arena.class_of(request.units), change);
        Ok(Some(address))
    }

    /// Frees a block of another stream that no further stream uses.
    pub(in crate::memory) fn free_foreign(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        index: usize,
        id: u32,
    ) {
        let arena = state.arena();
        events::freed(arena, state, id);
        self.end_block(gpus, state, id);
        let block = &state.blocks[id];
        let class = arena.class_of(block.units);
        let change = change_of(-1, -block.bytes(), -(block.requested as i64), block.oversize);
        state.active_blocks -= 1;
        state.free_foreign(index, id);
        self.count_with_split(state, class, change);
    }

    /// Moves the memory in the free lists of other streams back to the arena, where the work of
    /// these streams is complete. With `wait`, waits until it is.
    pub(in crate::memory) fn reclaim_foreign(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        wait: bool,
    ) -> Result<()> {
        let mut index = 0;
        loop {
            let foreign = &state.foreign;
            let Some(stream) = foreign.stream(index) else { break };
            if foreign.has_free(index) && self.is_over(gpus, state, stream, wait)? {
                state.move_all(index, Owner::Arena);
                self.count_split(state);
            }
            index += 1;
        }
        Ok(())
    }
}

/// May the memory of an arena be shared? Memory of private pools may be in graphs.
fn is_shared(arena: &Arena) -> bool {
    !arena.segmented && arena.pool() == PoolId::DEFAULT && !arena.heap().is_spare()
}
