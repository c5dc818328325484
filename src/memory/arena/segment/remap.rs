//! Remapping: idle handles are mapped a second time at contiguous addresses, so that memory which
//! is idle in several places serves one large block before the driver is asked for more.
//!
//! The second mapping is a *view*. The *primary mapping* of a handle is at its own addresses in the
//! arena. While a block lives in a view, its handles are *remapped*: nothing is allocated at their
//! primary addresses. When the block is freed, the primary addresses are free again and the view
//! stays mapped, so that the next block of its size needs no driver call. The blocks at primary
//! addresses are the same as in an arena without views. A repeated pass that once found no memory
//! missing therefore finds all views that it needs.
//!
//! All of this happens in the order of one stream. No two operations that run at the same time use
//! a handle at two addresses; CUDA would promise neither order nor coherence between them.
//! Unmapping is not stream-ordered: it waits for the work of the stream. Arenas of private pools
//! have no views, because graphs may use their addresses at any time.

use crate::base::error::{Error, Result};
use crate::memory::arena::block::{Block, NONE, State};
use crate::memory::arena::segment::{Mark, Segment};
use crate::memory::arena::{ArenaState, events};
use crate::memory::backing::virtual_memory::VirtualMemory;
use crate::memory::config::size::{Request, UNIT};
use crate::memory::trace::ring::Action;

/// The number of views of an arena, at most.
const MOST: usize = 256;

/// The value of `uses` of a block in a view, in place of an index of its first stream use. Such a
/// block is freed by the slow path.
pub(in crate::memory) const IN_VIEW: u32 = u32::MAX;

/// The primary mapping of a handle.
#[derive(Clone, Copy)]
struct Primary {
    start: u32,
    units: u32,
}

/// A view: a range of second addresses.
pub struct View {
    /// First unit, from the arena's base.
    pub(in crate::memory) start: u32,
    /// Mapped length.
    pub(in crate::memory) units: u32,
    /// Its first block; [`NONE`]: it is unused.
    pub(in crate::memory) block: u32,
    /// The handles behind it, in the order of both kinds of addresses.
    primaries: Vec<Primary>,
    /// The blocks at primary addresses whose memory is remapped to it.
    remapped: Vec<u32>,
    /// Is all of it mapped and accessible? Otherwise it must be unmapped.
    is_whole: bool,
    /// The length that was requested; the view may be longer, by a part of a handle.
    wanted: u32,
    /// The arena's end when the view was requested.
    arena_end: u32,
    /// The arena's end when the view was made, after growth for it.
    grown_end: u32,
    /// The number of views made before it.
    number: u64,
}

/// The views of an arena, the highest address first.
pub struct Views {
    list: Vec<View>,
    /// The number of views ever made.
    made: u64,
    /// How often all unused views were unmapped to make room for others.
    pub(in crate::memory) evictions: u32,
    /// First unit of the slot in which the arena grows; new views lie there.
    pub(in crate::memory) slot_start: u32,
}

impl Views {
    pub(in crate::memory) fn new() -> Views {
        Views { list: Vec::new(), made: 0, evictions: 0, slot_start: 0 }
    }

    pub(in crate::memory) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    #[cfg(test)]
    pub(in crate::memory) fn len(&self) -> usize {
        self.list.len()
    }

    /// The index of the view whose first block this is.
    fn of(&self, id: u32) -> Option<usize> {
        self.list.iter().position(|view| view.block == id)
    }

    /// Is a block in a view?
    pub(in crate::memory) fn contain(&self, id: u32) -> bool {
        self.of(id).is_some()
    }

    /// The first block of the view that contains a unit, or [`NONE`].
    pub(in crate::memory) fn holding(&self, unit: u32) -> u32 {
        self.live().find(|view| view.holds(unit)).map_or(NONE, |view| view.block)
    }

    /// The views in use.
    pub(in crate::memory) fn live(&self) -> impl Iterator<Item = &View> + Clone {
        self.list.iter().filter(|view| view.block != NONE)
    }

    /// One past the last unit that primary mappings may use.
    pub(in crate::memory) fn primary_limit(&self, slot_units: u64) -> u64 {
        let lowest = self.list.iter().rev().find(|view| view.start >= self.slot_start);
        lowest.map_or(slot_units, |view| view.start.into())
    }

    /// The smallest end of the arena at which a view was requested.
    pub(in crate::memory) fn first_end(&self) -> u32 {
        self.list.iter().map(|view| view.arena_end).min().unwrap_or(0)
    }

    /// Finds room for a view of `units` in the upper third of the slot, which is larger than the
    /// device's memory, and above `end`. Returns the index in the list, and the first unit.
    fn find_room(&self, units: u32, slot_units: u64, end: u32) -> Option<(usize, u32)> {
        if self.list.len() >= MOST {
            return None;
        }
        let third = slot_units.saturating_sub(self.slot_start.into()) / 3;
        let lowest = u64::from(end).max(slot_units - third) + u64::from(units);
        let (mut top, mut place) = (slot_units, 0);
        let here = self.list.iter().take_while(|view| view.start >= self.slot_start);
        for (index, view) in here.enumerate() {
            place = index + 1;
            let above = u64::from(view.start) + u64::from(view.units);
            if top - above >= u64::from(units) {
                return Some((index, (top - u64::from(units)) as u32));
            }
            top = view.start.into();
        }
        (top >= lowest).then(|| (place, (top - u64::from(units)) as u32))
    }

    /// Would there be room for a view of `units` only after the unused views were unmapped?
    pub(in crate::memory) fn needs_eviction(&self, units: u32, slot_units: u64, end: u32) -> bool {
        self.find_room(units, slot_units, end).is_none()
            && self.list.iter().any(|view| view.block == NONE)
    }

    /// Unmaps the views that neither the host nor the device uses; with `live`, all views. Stops at
    /// the first that the driver refuses to unmap.
    pub(in crate::memory) fn clear(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        live: bool,
    ) -> Result<()> {
        let mut outcome = Ok(());
        self.list.retain(|view| {
            if outcome.is_err() || view.block != NONE && !live {
                return true;
            }
            outcome = view.unmap(memory, base);
            outcome.is_err()
        });
        outcome
    }

    /// Gives a peer access to all views.
    pub(in crate::memory) fn allow_peer(
        &self,
        memory: &VirtualMemory,
        base: u64,
        peer: i32,
    ) -> Result<()> {
        for view in self.list.iter().filter(|view| view.is_whole) {
            let (address, bytes) = view.range(base);
            memory.allow_peer(address, bytes, peer)?;
        }
        Ok(())
    }

    /// All views: first unit, length, first block, remapped blocks.
    #[cfg(test)]
    pub(in crate::memory) fn all(&self) -> impl Iterator<Item = (u32, u32, u32, &[u32])> {
        self.list.iter().map(|view| (view.start, view.units, view.block, &view.remapped[..]))
    }

    /// First unit and length of the primary mapping of each handle.
    #[cfg(test)]
    pub(in crate::memory) fn primaries(&self) -> impl Iterator<Item = (u32, u32)> {
        let primaries = self.list.iter().flat_map(|view| &view.primaries);
        primaries.map(|primary| (primary.start, primary.units))
    }
}

impl View {
    /// Does it contain a unit?
    pub(in crate::memory) fn holds(&self, unit: u32) -> bool {
        unit.wrapping_sub(self.start) < self.units
    }

    /// May it serve a request of `units`, which would end at unit `end` if it were placed at the
    /// arena's end?
    fn may_serve(&self, units: u32, step: u32, end: u32) -> bool {
        let most = u64::from(units) + u64::from(units / 16) + u64::from(step) * 2;
        self.is_whole
            && self.block == NONE
            && self.units >= units
            && (units >= self.wanted || u64::from(self.units) <= most)
            && self.arena_end < end
    }

    /// First units of the primary mappings, in the order of the view's addresses.
    pub(in crate::memory) fn primary_starts(&self) -> impl Iterator<Item = u32> {
        self.primaries.iter().map(|primary| primary.start)
    }

    /// Address and length in bytes.
    fn range(&self, base: u64) -> (u64, u64) {
        (base + u64::from(self.start) * UNIT, u64::from(self.units) * UNIT)
    }

    fn unmap(&self, memory: &VirtualMemory, base: u64) -> Result<()> {
        let (address, bytes) = self.range(base);
        if bytes == 0 { Ok(()) } else { memory.unmap_second(address, bytes) }
    }
}

impl Segment {
    /// Are all handles of a view idle? A search has marked the idle handles.
    fn is_idle(&self, view: &View) -> bool {
        view.primaries.iter().all(|primary| {
            let found =
                self.mappings().binary_search_by_key(&primary.start, |mapping| mapping.start);
            found.is_ok_and(|index| self.mappings()[index].mark != Mark::Busy)
        })
    }

    /// Is there an unused view that is hardly larger than the request, and that was requested when
    /// the arena ended below `end`? A block at the arena's end would end at `end`.
    pub(in crate::memory) fn has_view(&self, units: u32, step: u32, end: u32) -> bool {
        self.views.list.iter().any(|view| view.may_serve(units, step, end))
    }

    /// The oldest such view whose handles are idle, which is the one that served the last time.
    pub(in crate::memory) fn find_view(&self, units: u32, step: u32, end: u32) -> Option<usize> {
        let fits = |view: &View| view.may_serve(units, step, end) && self.is_idle(view);
        let list = self.views.list.iter().enumerate();
        list.filter(|(_, view)| fits(view)).min_by_key(|(_, view)| view.number).map(|at| at.0)
    }

    /// The free block around the idle mapping that starts here, found by the last search.
    fn block_around(&self, start: u32) -> u32 {
        let found = self.mappings().binary_search_by_key(&start, |mapping| mapping.start);
        debug_assert!(found.is_ok(), "a view has whole mappings");
        found.map_or(NONE, |index| self.mappings()[index].block)
    }

    /// Chooses a few idle handles, together hardly larger than `wanted`; returns their units.
    fn choose(&mut self, wanted: u32) -> Option<u32> {
        let mappings = self.mappings_mut();
        let mut rest = wanted;
        // Repeatedly takes the largest handle that still fits.
        while rest > 0 {
            let fits = mappings.iter_mut().filter(|m| m.mark == Mark::Idle && m.units <= rest);
            let Some(mapping) = fits.max_by_key(|mapping| mapping.units) else { break };
            mapping.mark = Mark::Chosen;
            rest -= mapping.units;
        }
        if rest == 0 {
            return Some(wanted);
        }
        // Adds one handle that is too large, then drops the handles that are no longer needed.
        let left = mappings.iter_mut().filter(|mapping| mapping.mark == Mark::Idle);
        let more = left.min_by_key(|mapping| mapping.units)?;
        more.mark = Mark::Chosen;
        let mut over = more.units - rest;
        loop {
            let spare = mappings.iter_mut().filter(|m| m.mark == Mark::Chosen && m.units <= over);
            let Some(mapping) = spare.max_by_key(|mapping| mapping.units) else { break };
            mapping.mark = Mark::Idle;
            over -= mapping.units;
        }
        Some(wanted + over)
    }

    /// Makes a view: maps idle handles of `wanted` units or slightly more at contiguous addresses.
    /// `None`: there is no room for its addresses. On failure nothing changes.
    pub(in crate::memory) fn map_view(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        wanted: u32,
        (slot_units, end, arena_end): (u64, u32, u32),
    ) -> Result<Option<usize>> {
        let Some(units) = self.choose(wanted) else { return Ok(None) };
        let Some((index, start)) = self.views.find_room(units, slot_units, end) else {
            return Ok(None);
        };
        let no_memory = |_| Error::OutOfHostMemory("the handles of a view");
        let chosen = || self.mappings().iter().filter(|mapping| mapping.mark == Mark::Chosen);
        let (mut primaries, mut remapped) = (Vec::new(), Vec::new());
        primaries.try_reserve_exact(chosen().count()).map_err(no_memory)?;
        remapped.try_reserve_exact(chosen().count()).map_err(no_memory)?;
        primaries.extend(chosen().map(|m| Primary { start: m.start, units: m.units }));
        self.views.list.try_reserve(1).map_err(no_memory)?;
        let number = self.views.made;
        let mut view = View {
            start,
            units: 0,
            block: NONE,
            primaries,
            remapped,
            is_whole: false,
            wanted,
            arena_end,
            grown_end: end,
            number,
        };
        let mut outcome = Ok(());
        for mapping in self.mappings().iter().filter(|mapping| mapping.mark == Mark::Chosen) {
            let address = base + u64::from(start + view.units) * UNIT;
            outcome = memory.map_second(address, u64::from(mapping.units) * UNIT, mapping.handle);
            if outcome.is_err() {
                break;
            }
            view.units += mapping.units;
        }
        if outcome.is_ok() {
            let (address, bytes) = view.range(base);
            outcome = memory.allow_access(address, bytes);
        }
        view.is_whole = outcome.is_ok();
        // A view that cannot be unmapped keeps its addresses until it can.
        if outcome.is_ok() || view.unmap(memory, base).is_err() {
            self.views.made += 1;
            self.views.list.insert(index, view);
        }
        outcome.map(|()| Some(index))
    }
}

impl ArenaState {
    /// Marks the idle mappings; returns their units.
    pub(in crate::memory) fn mark_idle(&mut self) -> u64 {
        debug_assert!(self.quick.is_empty(), "a search came before");
        let mappings = self.segment.mappings_mut();
        let mut smallest = u32::MAX;
        for mapping in &mut *mappings {
            mapping.mark = Mark::Busy;
            smallest = smallest.min(mapping.units);
        }
        let mut idle = 0;
        // When memory is short, few free blocks are as large as a mapping, so that only their bins
        // are searched.
        let mut mark = |id: u32, block: &Block| {
            let first = mappings.partition_point(|mapping| mapping.start < block.start);
            let inside = mappings[first..].iter_mut().take_while(|m| m.end() <= block.end());
            for mapping in inside.filter(|mapping| mapping.handle != 0) {
                (mapping.mark, mapping.block) = (Mark::Idle, id);
                idle += u64::from(mapping.units);
            }
        };
        self.bins.each(&self.blocks, smallest, &mut mark);
        if self.wilderness != NONE {
            mark(self.wilderness, &self.blocks[self.wilderness]);
        }
        idle
    }

    /// Allocates a whole view, whose handles the last search has found idle, to a request. Returns
    /// the block and the change of the account. On failure nothing changes.
    pub(in crate::memory) fn take_view(
        &mut self,
        base: u64,
        index: usize,
        request: Request,
    ) -> Result<u32> {
        let view = &self.segment.views.list[index];
        let (start, units, parts) = (view.start, view.units, view.primaries.len());
        self.blocks.prepare(2 * parts as u32 + 2)?;
        self.prepare_start()?;
        // Nothing below can fail.
        let mut part = 0;
        while part < parts {
            let primaries = &self.segment.views.list[index].primaries;
            let from = primaries[part].start;
            let mut to = from;
            while part < parts && primaries[part].start == to {
                to += primaries[part].units;
                part += 1;
            }
            // If the block was cut for the previous part, the rest that contains this part is above
            // it.
            let mut at = self.segment.block_around(from);
            while self.blocks[at].end() <= from {
                at = self.blocks[at].next;
            }
            self.cut_out(at, from, to, State::Lent);
            self.segment.set_remapped(from, to, true);
            self.segment.views.list[index].remapped.push(at);
            let bytes = u64::from(to - from) * UNIT;
            events::segment(Action::SegmentUnmap, base + u64::from(from) * UNIT, bytes);
        }
        let grown_end = self.segment.views.list[index].grown_end;
        self.growth_cursor = self.growth_cursor.max(grown_end);
        let id = self.new_block(start, request.units, State::Allocated);
        self.note_start(id);
        let block = &mut self.blocks[id];
        block.requested = request.bytes;
        block.oversize = request.oversize;
        block.uses = IN_VIEW;
        if units > request.units {
            // The rest of the view is in no bin, so that no other request gets it.
            let rest = self.new_block(start + request.units, units - request.units, State::Free);
            self.blocks.link(rest, id, NONE);
            self.free_blocks += 1;
            self.free_bytes += self.blocks[rest].bytes();
        }
        self.active_blocks += 1;
        self.segment.views.list[index].block = id;
        let address = base + u64::from(start) * UNIT;
        events::segment(Action::SegmentMap, address, u64::from(units) * UNIT);
        Ok(id)
    }

    /// Records in the history that the handles of a block in a view are about to return to their
    /// primary mappings.
    pub(in crate::memory) fn record_view_end(&self, base: u64, id: u32) {
        let Some(index) = self.segment.views.of(id) else { return };
        let view = &self.segment.views.list[index];
        let (address, bytes) = view.range(base);
        events::segment(Action::SegmentUnmap, address, bytes);
        for remapped in &view.remapped {
            let (address, bytes) = (self.address(base, *remapped), self.blocks[*remapped].bytes());
            events::segment(Action::SegmentMap, address, bytes as u64);
        }
    }

    /// Frees a block that is no longer in use. If it is in a view, its handles return to their
    /// primary mappings.
    pub(in crate::memory) fn release_block_or_view(&mut self, id: u32) {
        match self.segment.views.of(id) {
            None => self.release_quick(id, self.blocks[id].units, self.blocks[id].start),
            Some(index) => self.release_view(index),
        }
    }

    fn release_view(&mut self, index: usize) {
        let id = std::mem::replace(&mut self.segment.views.list[index].block, NONE);
        let rest = self.blocks[id].next;
        if rest != NONE {
            self.free_blocks -= 1;
            self.free_bytes -= self.blocks[rest].bytes();
            self.blocks.give(rest);
        }
        self.forget_start(id);
        self.blocks.give(id);
        while let Some(remapped) = self.segment.views.list[index].remapped.pop() {
            let block = &self.blocks[remapped];
            let (start, end) = (block.start, block.end());
            self.segment.set_remapped(start, end, false);
            self.release(remapped);
        }
    }
}
