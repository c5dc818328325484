//! Cross-stream reuse: idle memory of one stream serves another, in place, before more memory is
//! taken from the driver. `foreign_free.rs` has what this changes in an arena.
//!
//! The stream that takes the memory is ordered after the other stream. That needs no mapping and
//! almost no host time, but one stream waits for the other on the device. So it is done only where
//! growth would raise the device's memory above the highest need so far. Below that, growth keeps
//! streams independent. The host does not wait.

use crate::base::error::Result;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::block::State;
use crate::memory::arena::foreign_free::{Owner, Window};
use crate::memory::arena::{Arena, ArenaGuard, addresses};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{Request, UNIT};
use crate::memory::device::lookup::{Locked, lock_mapped};
use crate::memory::device::stream_end::record_end;
use crate::memory::device::{Attempt, DeviceMemory};
use crate::memory::stats::class_counters::ClassCounters;
use crate::memory::stats::ledger::{ALL, ALLOCATED_BYTES};
use std::sync::atomic::Ordering;

/// How much may be reserved beyond the highest need so far, in thousandths of it.
const MARGIN: u64 = 10;
/// The same for little growth of a stream that was ordered after others at least [`TIMES`] times
/// and found only little free blocks: it needs little, as a stream of copies does.
const WIDE_MARGIN: u64 = 40;
const TIMES: u32 = 4;
/// An amount is little if it is less than the reserved memory divided by this.
const LITTLE: u64 = 64;
/// Other arenas are not searched if all of them together have less than this.
const LEAST: u64 = 16 << 20;

/// What a search may find.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Memory of the stream's own arena that needs no wait.
    Own,
    /// Memory of all arenas.
    All,
    /// That, or memory at the end of an arena that has to grow.
    Growth,
}

impl DeviceMemory {
    /// The number of stream waits that cross-stream reuse has added.
    pub fn shared_waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// A block that is free in this stream's order, in the arena of another stream that served it
    /// last. Polls streams only for blocks there that wait.
    #[inline]
    pub(in crate::memory) fn reuse_again(
        &self,
        gpus: &Gpus,
        arena: &Arena,
        request: Request,
    ) -> Result<Option<u64>> {
        // SAFETY: NULL or an arena of this device, which lives as long as a call may have found it.
        let source = unsafe { arena.source_arena.load(Ordering::Acquire).as_ref() };
        let (Some(source), Some(stream)) = (source, arena.stream()) else { return Ok(None) };
        let source = &mut source.enter()?;
        let Some(owner) = source.foreign.find(stream) else { return Ok(None) };
        let mut found = source.find_free(owner, request.units);
        if found.is_none() && !source.uses.is_queue_empty() {
            // Errors of the other arena's streams do not fail this allocation.
            let _ = self.settle(gpus, source, false);
            found = source.find_free(owner, request.units);
        }
        let Some(id) = found else { return Ok(None) };
        source.allocate_for(owner, id, request)?;
        Ok(Some(self.count_allocated(source, id)))
    }

    /// Moves an allocated block to the order of another stream of the device, which can use the
    /// memory at once when the block is freed. False: the block keeps its order. That is so for
    /// memory that is not shared, in a view, or known to other processes.
    pub(in crate::memory) fn hand_over(
        &self,
        gpus: &Gpus,
        device: &Device,
        address: u64,
        stream: &Stream,
    ) -> Result<bool> {
        let Some(found) = addresses::arena_of(address) else { return Ok(false) };
        let arena = found.0;
        let is_possible = is_shared(arena) && stream.device() == arena.device;
        if !is_possible || stream.is_per_thread() || stream.is_capturing(gpus)? {
            return Ok(false);
        }
        // The arena in which the stream will search for the memory.
        let own = self.heap(gpus, device, stream, false)?.arena(arena.class);
        let Locked { mut state, id } = lock_mapped(found, address)?;
        if state.marked > 0 || state.segment.views.contain(id) {
            return Ok(false);
        }
        state.change_owner(arena, id, stream)?;
        if !std::ptr::eq(own, arena) {
            let place = std::ptr::from_ref(arena).cast_mut();
            own.source_arena.store(place, Ordering::Release);
        }
        Ok(true)
    }

    /// Memory of other streams, or memory of this arena that other streams use, if growth would
    /// take more from the driver than was ever needed; else memory of this arena that needs no
    /// wait. With `anyhow`, whatever growth would take.
    pub(in crate::memory) fn share(&self, attempt: Attempt, anyhow: bool) -> Result<Option<u64>> {
        let Attempt { device, arena, request, .. } = attempt;
        if !is_shared(arena) || arena.stream().is_none_or(Stream::is_per_thread) {
            return Ok(None);
        }
        let (has_foreign, reach) = {
            let state = &mut arena.enter()?;
            let reach = match anyhow {
                true => Reach::All,
                false if self.may_grow(state, request) => Reach::Own,
                false => Reach::Growth,
            };
            (!state.foreign.is_empty(), reach)
        };
        if !has_foreign && (reach == Reach::Own || !self.has_others(arena, anyhow)) {
            return Ok(None);
        }
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        match self.cheapest(attempt, reach)? {
            Some(source) => self.take_cheapest(attempt, &mut source.enter()?, reach),
            None => Ok(None),
        }
    }

    /// The arena with the cheapest window for a request: by growth, waits, the memory of the arena,
    /// and the window's length. An arena with little memory is of little use as a whole.
    fn cheapest<'a>(&'a self, attempt: Attempt, reach: Reach) -> Result<Option<&'a Arena>> {
        let Attempt { gpus, arena, request, .. } = attempt;
        let is_own = |other: &Arena| std::ptr::eq(other, arena);
        let is_searched = |other: &Arena| {
            is_own(other) || reach != Reach::Own && self.lends(other, arena) && other.counted() > 0
        };
        let mut best: Option<(_, &Arena)> = None;
        self.each_arena_where(is_searched, |other| {
            let is_own = is_own(other.arena());
            if !is_own {
                // Errors of the other arena's streams do not fail this allocation.
                let _ = self.settle(gpus, other, false);
            }
            let found = self.window_in(attempt, other);
            let Some((_, window, known)) = found else { return Ok(()) };
            // Growth of another stream's arena must save at least a quarter of the request.
            let least = if is_own || window.missing == 0 { 0 } else { request.units / 4 };
            let (lacks, waits) = (window.missing.saturating_add(least), window.waits(known));
            let is_in_reach = match reach {
                Reach::Own => lacks == 0 && waits.0 == 0,
                Reach::All => lacks == 0,
                Reach::Growth => lacks < request.units,
            };
            let cost = (lacks, waits, other.segment.bytes(), window.units);
            if is_in_reach && best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, other.arena()));
            }
            Ok(())
        })?;
        Ok(best.map(|(_, arena)| arena))
    }

    /// Takes a block from the cheapest window in an arena, after waits for its owners. Another
    /// thread may have changed the arena since it was searched.
    fn take_cheapest(
        &self,
        attempt: Attempt,
        source: &mut ArenaGuard<'_>,
        reach: Reach,
    ) -> Result<Option<u64>> {
        let Attempt { arena, request, .. } = attempt;
        let found = self.window_in(attempt, source);
        let Some((to, mut window, _)) = found else { return Ok(None) };
        let lacks = window.missing > 0;
        if lacks && reach != Reach::Growth {
            return Ok(None);
        }
        let ordered = self.order(attempt, source, window.owners, to, true);
        if window.waits(ordered).0 > 0 {
            return Ok(None);
        }
        if lacks && to != Owner::ARENA {
            let missing = window.missing.next_multiple_of(self.step());
            let (from, before) = (source.arena(), source.reserved());
            let memory = &self.virtual_memory;
            let grown = source.grow_at_end(memory, from.base, missing, from.slot_units());
            self.count_segment(source, before);
            grown?;
            // New memory is the arena's, and no stream has used it.
            window.units += missing;
            window.owners |= Owner::ARENA.bit();
        }
        let id = source.gather_window(window, to);
        self.count_split(source);
        if source.blocks[id].bytes() as u64 >= self.virtual_memory.limit.claimed() / LITTLE {
            arena.small_waits.store(0, Ordering::Relaxed);
        }
        if to != Owner::ARENA {
            let place = std::ptr::from_ref(source.arena()).cast_mut();
            arena.source_arena.store(place, Ordering::Release);
        } else if lacks {
            // The caller makes the arena grow.
            return Ok(None);
        }
        source.allocate_for(to, id, request)?;
        Ok(Some(self.count_allocated(source, id)))
    }

    /// The cheapest window in an arena, the owner that the requesting stream is there, and the
    /// owners that it is ordered after. None: there is none, or no room for another owner.
    fn window_in(
        &self,
        attempt: Attempt,
        other: &mut ArenaGuard<'_>,
    ) -> Option<(Owner, Window, u64)> {
        if other.free_bytes == 0 || !is_shared(other.arena()) {
            return None;
        }
        if !other.quick.is_empty() {
            self.merge_quick(other);
        }
        let to = match std::ptr::eq(other.arena(), attempt.arena) {
            true => Owner::ARENA,
            false => other.find_or_insert(attempt.arena.stream()?).ok()?,
        };
        let units = attempt.request.units;
        let mut known = other.ordered(to);
        let mut window = other.find_window(units, known)?;
        if window.missing == 0 && window.waits(known).0 > 0 {
            let owners = other.owners_of(&[State::Free, State::ForeignFree]);
            known = self.order(attempt, other, owners, to, false);
            window = other.find_window(units, known)?;
        }
        Some((to, window, known))
    }

    /// Orders the requesting stream, which is owner `to`, after these owners: by waits if it may
    /// wait, else where they have no work left. Returns all that it is ordered after.
    fn order(
        &self,
        attempt: Attempt,
        state: &mut ArenaGuard<'_>,
        owners: u64,
        to: Owner,
        may_wait: bool,
    ) -> u64 {
        for owner in Owner::all_in(owners & !state.ordered(to)) {
            if self.follow(attempt, state, owner, may_wait).unwrap_or(false) {
                state.note_ordered(owner, to);
                attempt.arena.small_waits.fetch_add(1, Ordering::Relaxed);
            }
        }
        state.ordered(to)
    }

    /// Orders the requesting stream after that of an owner; false: it is not. Does nothing to
    /// streams that cannot be queried or are captured.
    fn follow(
        &self,
        attempt: Attempt,
        state: &mut ArenaGuard<'_>,
        owner: Owner,
        may_wait: bool,
    ) -> Result<bool> {
        let Attempt { gpus, device, arena, .. } = attempt;
        let (before, after) = (state.stream_of_owner(state.arena(), owner), arena.stream());
        let (Some(before), Some(after)) = (before, after) else { return Ok(false) };
        let EndState::Alive(_named) = before.end_state() else {
            // The event that was recorded at its end is queried; no stream waits for it.
            return self.is_over(gpus, state, before, false);
        };
        if before.is_per_thread() {
            return Ok(false);
        }
        if !may_wait {
            return Ok(before.unless_captured(gpus, || before.query(gpus))?.unwrap_or(false));
        }
        let Some(event) = record_end(gpus, device, before)? else { return Ok(false) };
        let waits = after.wait_beside_captures(gpus, event);
        device.events.give_untimed(event);
        let waits = waits?;
        self.waits.fetch_add(u64::from(waits), Ordering::Relaxed);
        Ok(waits)
    }

    /// Do other arenas have memory that may be shared? Less than the margin does not count, unless
    /// with `anyhow`.
    fn has_others(&self, arena: &Arena, anyhow: bool) -> bool {
        let theirs = self.stats.with_members(|heaps| {
            let others = heaps.iter().map(|heap| heap.arena(arena.class));
            let lenders = others.filter(|other| self.lends(other, arena));
            lenders.map(Arena::counted).sum::<i64>() as u64
        });
        let least = LEAST.max(self.virtual_memory.limit.claimed() / 1000 * MARGIN);
        theirs >= if anyhow { 1 } else { least }
    }

    /// May the stream of an arena get memory of another one?
    fn lends(&self, other: &Arena, arena: &Arena) -> bool {
        let is_other = !std::ptr::eq(other, arena) && other.kind() == arena.kind();
        is_other && self.policy.shares() && is_shared(other)
    }

    /// May the arena grow by what the request lacks, instead of waiting for other streams?
    fn may_grow(&self, state: &mut ArenaGuard<'_>, request: Request) -> bool {
        let growth = u64::from(state.missing_at_end(request.units, self.step())) * UNIT;
        // The smallest possible growth: streams of small programs stay independent.
        if state.segment.bytes() == 0 && growth <= self.virtual_memory.granularity() {
            return true;
        }
        let limit = &self.virtual_memory.limit;
        let claimed = limit.claimed() + growth;
        if claimed <= self.policy.not_shared_below(limit.most().min(self.total)) {
            return true;
        }
        let held = self.highest_need(state, request);
        let is_little = growth < limit.claimed() / LITTLE;
        let is_often = state.arena().small_waits.load(Ordering::Relaxed) >= TIMES;
        claimed <= held + held / 1000 * if is_little && is_often { WIDE_MARGIN } else { MARGIN }
    }

    /// The most bytes that were allocated at a time since the cache was emptied, this request
    /// included.
    pub(in crate::memory) fn highest_need(
        &self,
        state: &mut ArenaGuard<'_>,
        request: Request,
    ) -> u64 {
        self.with_ledger(Some(state), |stats| {
            let current = stats.sums(ClassCounters::current)[ALL][ALLOCATED_BYTES];
            stats.ledger.highest.max(current + i64::from(request.units) * UNIT as i64) as u64
        })
    }

    /// Moves the memory in the free lists of other streams back to the arena, where the work of
    /// these streams is complete. With `wait`, waits until it is.
    pub(in crate::memory) fn reclaim_foreign(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        wait: bool,
    ) -> Result<()> {
        for owner in Owner::all_in(state.owners_of(&[State::ForeignFree])) {
            if let Some(stream) = state.stream_of_owner(state.arena(), owner)
                && self.is_over(gpus, state, stream, wait)?
            {
                state.gather(owner.bit(), 0..0, Owner::ARENA);
                self.count_split(state);
            }
        }
        Ok(())
    }
}

/// May the memory of an arena be shared? Memory of private pools may be in graphs.
fn is_shared(arena: &Arena) -> bool {
    !arena.segmented && arena.pool() == PoolId::DEFAULT && !arena.heap().is_spare()
}
