//! Aliases: addresses at which idle handles are mapped a second time, side by side, so that memory
//! which lies idle in several places serves one large block, before more is asked of the driver.
//!
//! While the block lives, its handles are *lent*: nothing is allocated at their own addresses. When it
//! is freed they are home again, and the alias stays mapped: the next block of its size takes it without
//! a driver call. The blocks at home are those of an arena without aliases, so that a pass that is
//! repeated, and found no memory missing, finds all the aliases that it wants.
//!
//! All of this is in the order of one stream, so that no two operations that run at a time use a handle
//! at two addresses. Unmapping is not in that order: it waits for what the stream holds. Arenas of
//! private pools have no aliases, because graphs may use their addresses at any time.

use super::super::arena::{Arena, ArenaState, Request, change_of};
use super::super::bins::WHOLE_WALK;
use super::super::block::{NONE, State, UNIT};
use super::super::pool::PoolId;
use super::super::reclaim::ordering_stream;
use super::super::ring::Action;
use super::super::stats::{ALL, ALLOCATED_BYTES, Class, Lanes, Stat};
use super::super::virtual_memory::VirtualMemory;
use super::super::{DeviceMemory, history};
use super::{Mark, Segment};
use crate::error::{Error, Result};
use crate::farewell::Standing;
use crate::runtime::Runtime;
use crate::stream::Stream;

/// Aliases of an arena at a time.
const MOST: usize = 128;

/// What a block in an alias has in place of the first of its streams, and their list as its end: it is
/// freed by the cold path.
pub(in crate::memory) const BORROWED: u32 = u32::MAX;

/// A handle at home.
#[derive(Clone, Copy)]
struct Home {
    start: u32,
    units: u32,
}

/// A range of further addresses.
pub struct Alias {
    /// First unit, from the arena's base.
    pub(in crate::memory) start: u32,
    /// Length of what is mapped.
    pub(in crate::memory) units: u32,
    /// Its first block; [`NONE`]: nobody uses it.
    pub(in crate::memory) block: u32,
    /// The handles behind it, in the order of both addresses.
    homes: Vec<Home>,
    /// Blocks at home that are lent to it.
    lent: Vec<u32>,
    /// Is all of it mapped and accessible? Else it waits to be unmapped.
    is_whole: bool,
}

/// The aliases of an arena, the highest address first.
pub struct Aliases {
    list: Vec<Alias>,
    /// How often all had to be given up to make room for others.
    pub(in crate::memory) given_up: u32,
}

impl Aliases {
    pub(in crate::memory) fn new() -> Aliases {
        Aliases { list: Vec::new(), given_up: 0 }
    }

    pub(in crate::memory) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(in crate::memory) fn len(&self) -> usize {
        self.list.len()
    }

    /// The first block in an alias, by its number; or none.
    pub(in crate::memory) fn block(&self, index: usize) -> u32 {
        self.list[index].block
    }

    /// The alias that a block has.
    fn of(&self, id: u32) -> Option<usize> {
        self.list.iter().position(|alias| alias.block == id)
    }

    /// Is a block in one of them?
    pub(in crate::memory) fn have(&self, id: u32) -> bool {
        self.of(id).is_some()
    }

    /// Those that are in use.
    pub(in crate::memory) fn live(&self) -> impl Iterator<Item = &Alias> + Clone {
        self.list.iter().filter(|alias| alias.block != NONE)
    }

    /// One past the last unit that is left to the handles' own addresses.
    pub(in crate::memory) fn floor(&self, slot_units: u64) -> u64 {
        self.list.last().map_or(slot_units, |alias| alias.start.into())
    }

    /// Where so many units are free of aliases in the upper third of the slot, which is more than the
    /// device's memory, and above `end`: the place in the list, and the first unit.
    fn find_room(&self, units: u32, slot_units: u64, end: u32) -> Option<(usize, u32)> {
        if self.list.len() >= MOST {
            return None;
        }
        let lowest = u64::from(end).max(slot_units - slot_units / 3) + u64::from(units);
        let mut top = slot_units;
        for (index, alias) in self.list.iter().enumerate() {
            let above = u64::from(alias.start) + u64::from(alias.units);
            if top - above >= u64::from(units) {
                return Some((index, (top - u64::from(units)) as u32));
            }
            top = alias.start.into();
        }
        (top >= lowest).then(|| (self.list.len(), (top - u64::from(units)) as u32))
    }

    /// Is there room for one more of so many units?
    fn has_room(&self, units: u32, slot_units: u64, end: u32) -> bool {
        self.find_room(units, slot_units, end).is_some()
    }

    /// Unmaps what nobody uses, on the device either, or with `live` all, up to the first that the
    /// driver will not unmap.
    pub(in crate::memory) fn clear(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        live: bool,
    ) -> Result<()> {
        let mut outcome = Ok(());
        self.list.retain(|alias| {
            if outcome.is_err() || alias.block != NONE && !live {
                return true;
            }
            outcome = alias.unmap(memory, base);
            outcome.is_err()
        });
        outcome
    }

    /// Gives another device access to everything that is mapped.
    pub(in crate::memory) fn allow_peer(
        &self,
        memory: &VirtualMemory,
        base: u64,
        peer: i32,
    ) -> Result<()> {
        for alias in self.list.iter().filter(|alias| alias.is_whole) {
            let (address, bytes) = alias.range(base);
            memory.allow_peer(address, bytes, peer)?;
        }
        Ok(())
    }

    /// All of them: first unit, length, first block, lent blocks.
    #[cfg(test)]
    pub(in crate::memory) fn all(&self) -> impl Iterator<Item = (u32, u32, u32, &[u32])> {
        self.list.iter().map(|alias| (alias.start, alias.units, alias.block, &alias.lent[..]))
    }

    /// First unit and length of each handle at home.
    #[cfg(test)]
    pub(in crate::memory) fn homes(&self) -> impl Iterator<Item = (u32, u32)> {
        let homes = self.list.iter().flat_map(|alias| &alias.homes);
        homes.map(|home| (home.start, home.units))
    }
}

impl Alias {
    /// Address and length.
    fn range(&self, base: u64) -> (u64, u64) {
        (base + u64::from(self.start) * UNIT, u64::from(self.units) * UNIT)
    }

    fn unmap(&self, memory: &VirtualMemory, base: u64) -> Result<()> {
        let (address, bytes) = self.range(base);
        if bytes == 0 { Ok(()) } else { memory.unmap_again(address, bytes) }
    }
}

impl Segment {
    /// Are all handles of an alias idle? The search has marked those that are.
    fn is_idle(&self, alias: &Alias) -> bool {
        alias.homes.iter().all(|home| {
            let found = self.mappings().binary_search_by_key(&home.start, |mapping| mapping.start);
            found.is_ok_and(|index| self.mappings()[index].mark != Mark::Busy)
        })
    }

    /// The smallest alias that nobody uses, of idle handles, and hardly more than is wanted.
    pub(in crate::memory) fn find_alias(&self, units: u32, step: u32) -> Option<usize> {
        let most = u64::from(units) + u64::from(units / 16) + u64::from(step) * 2;
        let fits = |alias: &Alias| {
            alias.is_whole
                && alias.block == NONE
                && alias.units >= units
                && u64::from(alias.units) <= most
                && self.is_idle(alias)
        };
        let list = self.aliases.list.iter().enumerate();
        list.filter(|(_, alias)| fits(alias)).min_by_key(|(_, alias)| alias.units).map(|at| at.0)
    }

    /// Chooses idle handles, few and hardly more than is wanted; gives their units.
    fn choose(&mut self, wanted: u32) -> Option<u32> {
        let mappings = self.mappings_mut();
        let sizes = mappings.iter().filter(|mapping| mapping.mark == Mark::Idle);
        let mut size = sizes.map(|mapping| mapping.units).max()?;
        let mut rest = wanted;
        // Sizes are powers of two: of the larger ones first.
        while rest > 0 && size > 0 {
            let fits = mappings.iter_mut().filter(|m| m.mark == Mark::Idle && m.units == size);
            for mapping in fits.take((rest / size) as usize) {
                mapping.mark = Mark::Chosen;
                rest -= size;
            }
            size /= 2;
        }
        if rest == 0 {
            return Some(wanted);
        }
        // One more, that is too large; then the smallest may not be needed any more.
        let left = mappings.iter_mut().filter(|mapping| mapping.mark == Mark::Idle);
        let more = left.min_by_key(|mapping| mapping.units)?;
        more.mark = Mark::Chosen;
        let largest = more.units;
        let mut over = largest - rest;
        let mut size = 1;
        while size < largest && size <= over {
            let spare = mappings.iter_mut().filter(|m| m.mark == Mark::Chosen && m.units == size);
            for mapping in spare.take((over / size) as usize) {
                mapping.mark = Mark::Idle;
                over -= size;
            }
            size *= 2;
        }
        Some(wanted + over)
    }

    /// Maps idle handles of `units` or a little more side by side; gives the alias, or none where there
    /// is no room for its addresses. On failure everything is as it was.
    pub(in crate::memory) fn make_alias(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        units: u32,
        (slot_units, end): (u64, u32),
    ) -> Result<Option<usize>> {
        let Some(units) = self.choose(units) else { return Ok(None) };
        let Some((index, start)) = self.aliases.find_room(units, slot_units, end) else {
            return Ok(None);
        };
        let no_memory = |_| Error::OutOfHostMemory("the handles of an alias");
        let chosen = || self.mappings().iter().filter(|mapping| mapping.mark == Mark::Chosen);
        let (mut homes, mut lent) = (Vec::new(), Vec::new());
        homes.try_reserve_exact(chosen().count()).map_err(no_memory)?;
        lent.try_reserve_exact(chosen().count()).map_err(no_memory)?;
        homes.extend(chosen().map(|m| Home { start: m.start, units: m.units }));
        self.aliases.list.try_reserve(1).map_err(no_memory)?;
        let mut alias = Alias { start, units: 0, block: NONE, homes, lent, is_whole: false };
        let mut outcome = Ok(());
        for mapping in self.mappings().iter().filter(|mapping| mapping.mark == Mark::Chosen) {
            let address = base + u64::from(start + alias.units) * UNIT;
            outcome = memory.map_again(address, u64::from(mapping.units) * UNIT, mapping.handle);
            if outcome.is_err() {
                break;
            }
            alias.units += mapping.units;
        }
        if outcome.is_ok() {
            let (address, bytes) = alias.range(base);
            outcome = memory.allow_access(address, bytes);
        }
        alias.is_whole = outcome.is_ok();
        // What cannot be unmapped again keeps its addresses until it can.
        if outcome.is_ok() || alias.unmap(memory, base).is_err() {
            self.aliases.list.insert(index, alias);
        }
        outcome.map(|()| Some(index))
    }

    /// Says whether the mappings of a range are lent.
    fn set_lent(&mut self, start: u32, end: u32, is_lent: bool) {
        let first = self.mappings().partition_point(|mapping| mapping.start < start);
        let from = self.mappings_mut()[first..].iter_mut();
        from.take_while(|m| m.start < end).for_each(|mapping| mapping.is_lent = is_lent);
    }
}

impl ArenaState {
    /// Marks the mappings that are idle, and gives their units.
    pub(in crate::memory) fn mark_idle(&mut self) -> u64 {
        let (mut id, mut idle) = (self.first, 0);
        for mapping in self.segment.mappings_mut() {
            mapping.mark = Mark::Busy;
            while id != NONE && self.blocks[id].end() < mapping.end() {
                id = self.blocks[id].next;
            }
            if id == NONE {
                continue;
            }
            let block = &self.blocks[id];
            if block.state == State::Free && block.start <= mapping.start && mapping.handle != 0 {
                mapping.mark = Mark::Idle;
                idle += u64::from(mapping.units);
            }
        }
        idle
    }

    /// Gives a request all of an alias whose handles are idle: the block, and what the account must
    /// learn. On failure everything is as it was.
    pub(in crate::memory) fn borrow(
        &mut self,
        base: u64,
        index: usize,
        request: Request,
    ) -> Result<(u32, Lanes)> {
        let alias = &self.segment.aliases.list[index];
        let (start, units, parts) = (alias.start, alias.units, alias.homes.len());
        self.blocks.prepare(2 * parts as u32 + 2)?;
        self.prepare_window(start)?;
        // From here on nothing fails.
        let mut at = self.first;
        let mut part = 0;
        while part < parts {
            let homes = &self.segment.aliases.list[index].homes;
            let from = homes[part].start;
            let mut to = from;
            while part < parts && homes[part].start == to {
                to += homes[part].units;
                part += 1;
            }
            while self.blocks[at].end() <= from {
                at = self.blocks[at].next;
            }
            self.cut_out(at, from, to, State::Lent);
            self.segment.set_lent(from, to, true);
            self.segment.aliases.list[index].lent.push(at);
            let bytes = u64::from(to - from) * UNIT;
            history::segment(Action::SegmentUnmap, base + u64::from(from) * UNIT, bytes);
        }
        let id = self.new_block(start, request.units, State::Allocated);
        let block = &mut self.blocks[id];
        block.requested = request.bytes;
        block.oversize = request.oversize;
        block.uses = BORROWED;
        if units > request.units {
            // It is nobody's, and in no bin.
            let rest = self.new_block(start + request.units, units - request.units, State::Free);
            self.blocks.link(rest, id, NONE);
            self.free_blocks += 1;
            self.free_bytes += self.blocks[rest].bytes();
        }
        self.note_start(id);
        self.active_blocks += 1;
        self.segment.aliases.list[index].block = id;
        let address = base + u64::from(start) * UNIT;
        history::segment(Action::SegmentMap, address, u64::from(units) * UNIT);
        let bytes = i64::from(request.units) * UNIT as i64;
        Ok((id, change_of(1, bytes, request.bytes as i64, request.oversize)))
    }

    /// A block that nobody uses any more: it is free, or its handles are home again.
    pub(in crate::memory) fn release_or_return(&mut self, id: u32) {
        match self.segment.aliases.of(id) {
            None => self.release(id),
            Some(index) => self.bring_home(index),
        }
    }

    fn bring_home(&mut self, index: usize) {
        let id = std::mem::replace(&mut self.segment.aliases.list[index].block, NONE);
        let rest = self.blocks[id].next;
        if rest != NONE {
            self.free_blocks -= 1;
            self.free_bytes -= self.blocks[rest].bytes();
            self.blocks.give(rest);
        }
        self.blocks.give(id);
        while let Some(lent) = self.segment.aliases.list[index].lent.pop() {
            let block = &self.blocks[lent];
            let (start, end) = (block.start, block.end());
            self.segment.set_lent(start, end, false);
            self.release(lent);
        }
    }
}

impl DeviceMemory {
    /// A block in an alias that is there, without a driver call.
    pub(in crate::memory) fn borrow_again(
        &self,
        arena: &Arena,
        request: Request,
    ) -> Result<Option<u64>> {
        let _guard = arena.lock.guard();
        // SAFETY: the lock is held, and this is the only reference.
        if unsafe { arena.state() }.segment.aliases.is_empty() {
            return Ok(None);
        }
        // The short walk may have missed what fits.
        if let Some(address) = self.take::<true>(arena, request, WHOLE_WALK)? {
            return Ok(Some(address));
        }
        let step = self.step();
        // SAFETY: as above.
        let state = unsafe { arena.state() };
        state.mark_idle();
        match state.segment.find_alias(request.units.next_multiple_of(step), step) {
            Some(index) => self.take_alias(arena, index, request).map(Some),
            None => Ok(None),
        }
    }

    /// A block in a new alias, where that takes much less memory from the driver than to grow, and the
    /// arena is not small enough to grow all the same. The caller holds the arena's lock.
    pub(in crate::memory) fn borrow_before_growing(
        &self,
        runtime: &Runtime,
        arena: &Arena,
        request: Request,
    ) -> Result<Option<u64>> {
        let Some(new) = self.find_idle(arena, request) else { return Ok(None) };
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let missing = state.missing_at_end(request.units, self.step());
        let given_up = u64::from(state.segment.aliases.given_up);
        let (growth, spared) = (u64::from(missing) * UNIT, u64::from(missing - new) * UNIT);
        let claimed = self.virtual_memory.limit.claimed();
        if spared < (u64::from(request.units) * UNIT / 4).max(claimed / 512) {
            return Ok(None);
        }
        let held = self.with_ledger(Some(arena), |books| {
            let Stat { current, peak, .. } = books.statistics().lanes[ALLOCATED_BYTES][ALL];
            peak.max(current + i64::from(request.units) * UNIT as i64) as u64
        });
        if claimed + growth <= held + held / 100 * (1 + given_up) {
            return Ok(None);
        }
        self.borrow_new(runtime, arena, request, new)
    }

    /// The same, whatever it spares: there is no memory to grow by.
    pub(in crate::memory) fn borrow_anyhow(
        &self,
        runtime: &Runtime,
        arena: &Arena,
        request: Request,
    ) -> Result<Option<u64>> {
        match self.find_idle(arena, request) {
            Some(new) => self.borrow_new(runtime, arena, request, new),
            None => Ok(None),
        }
    }

    /// Units that an alias for this request would take from the driver; none: not less than growing
    /// takes, or the arena has no aliases. The caller holds its lock.
    fn find_idle(&self, arena: &Arena, request: Request) -> Option<u32> {
        let is_served = arena.class == Class::Large && arena.pool() == PoolId::DEFAULT;
        let step = self.step();
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        if !is_served || state.free_bytes == 0 || state.has_hole_for(request.units) {
            return None;
        }
        let wanted = u64::from(request.units.next_multiple_of(step));
        let new = wanted.saturating_sub(state.mark_idle()) as u32;
        (new < state.missing_at_end(request.units, step)).then_some(new)
    }

    fn borrow_new(
        &self,
        runtime: &Runtime,
        arena: &Arena,
        request: Request,
        new: u32,
    ) -> Result<Option<u64>> {
        // SAFETY: the caller holds the lock, and this is the only reference.
        let state = unsafe { arena.state() };
        let (memory, limit, step) = (&self.virtual_memory, arena.slot_units(), self.step());
        let wanted = request.units.next_multiple_of(step);
        let Some(stream) = arena.stream() else { return Ok(None) };
        if !state.segment.aliases.has_room(wanted, limit, state.end()) {
            self.give_aliases_up(runtime, arena, stream);
        }
        if is_left_alone(runtime, stream) {
            return Ok(None);
        }
        // SAFETY: as above.
        let state = unsafe { arena.state() };
        if new > 0 {
            let before = state.reserved();
            let grown = state.grow_at_end(memory, arena.base, new, limit);
            self.count_segment(arena, before);
            self.count_free(arena);
            grown?;
        }
        // SAFETY: as above.
        let state = unsafe { arena.state() };
        state.mark_idle();
        let place = (limit, state.end());
        // Without it there is still what the driver has.
        match state.segment.make_alias(memory, arena.base, wanted, place) {
            Ok(Some(index)) => self.take_alias(arena, index, request).map(Some),
            Ok(None) | Err(_) => Ok(None),
        }
    }

    /// Unmaps the aliases that nobody uses, to make room for others, unless the device may still use
    /// them. The caller holds the arena's lock.
    fn give_aliases_up(&self, runtime: &Runtime, arena: &Arena, stream: &Stream) {
        // What cannot be asked is not over.
        if !self.is_over(runtime, arena, stream, false).unwrap_or(false) {
            return;
        }
        // SAFETY: the lock is held, and this is the only reference.
        let aliases = &mut unsafe { arena.state() }.segment.aliases;
        aliases.given_up += 1;
        // What the driver refuses stays until the next time.
        let _ = aliases.clear(&self.virtual_memory, arena.base, false);
    }

    /// Gives an alias of idle handles to a request. The caller holds the arena's lock.
    fn take_alias(&self, arena: &Arena, index: usize, request: Request) -> Result<u64> {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let before = state.reserved();
        let (id, mut change) = state.borrow(arena.base, index, request)?;
        history::allocated(arena, state, id);
        // SAFETY: the lock is held and we are not parked.
        state.count_free(unsafe { arena.account() }, &mut change);
        let address = state.address(arena.base, id);
        self.count(arena, &change);
        self.count_segment(arena, before);
        Ok(address)
    }

    /// Frees a block in an alias that no other stream uses. The caller holds the arena's lock.
    pub(in crate::memory) fn free_borrowed(&self, runtime: &Runtime, arena: &Arena, id: u32) {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        history::freed(arena, state, id);
        self.end_block(runtime, arena, id);
        // SAFETY: as above; poisoning has kept no reference.
        let state = unsafe { arena.state() };
        let before = state.reserved();
        let block = &state.blocks[id];
        let mut change = change_of(-1, -block.bytes(), -(block.requested as i64), block.oversize);
        state.active_blocks -= 1;
        state.release_or_return(id);
        // SAFETY: the lock is held and we are not parked.
        state.count_free(unsafe { arena.account() }, &mut change);
        self.count(arena, &change);
        self.count_segment(arena, before);
    }

    /// The granularity in units.
    fn step(&self) -> u32 {
        (self.virtual_memory.granularity() / UNIT) as u32
    }
}

/// Is a stream captured, or gone? What cannot be asked is left alone as well.
fn is_left_alone(runtime: &Runtime, stream: &Stream) -> bool {
    let Standing::Alive(_named) = stream.standing() else { return true };
    let Ok(device) = runtime.device(stream.device()) else { return true };
    ordering_stream(device, stream).is_capturing(runtime).unwrap_or(true)
}
