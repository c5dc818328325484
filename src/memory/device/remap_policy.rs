//! When idle memory is remapped: if a view of the right size exists, or if growth would take memory
//! of the device instead. `remap.rs` has the views themselves.

use crate::base::error::Result;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::bins::WHOLE_WALK;
use crate::memory::arena::segment::growth_cursor;
use crate::memory::arena::{Arena, ArenaGuard};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{Class, Request, UNIT};
use crate::memory::device::DeviceMemory;
use crate::memory::device::stream_end::ordering_stream;

/// How much more may be reserved than was ever needed at once, in thousandths. It grows by the same
/// amount each time that views were unmapped to make room for others.
const SLACK: u64 = 5;
/// A view must spare at least this fraction of the request; less is not worth the mapping.
const LEAST_SPARED: u64 = 32;

impl DeviceMemory {
    /// Allocates from an existing view, or from the memory at the end up to the growth cursor;
    /// makes no driver call.
    pub(in crate::memory) fn reuse_view(
        &self,
        arena: &Arena,
        request: Request,
    ) -> Result<Option<u64>> {
        if !self.policy.has_remapped() && arena.class == Class::Large {
            return Ok(None);
        }
        let state = &mut arena.enter()?;
        if state.segment.views.is_empty() && state.growth_cursor == growth_cursor::ALL {
            return Ok(None);
        }
        // The short walk may have missed a block that fits.
        if let Some(address) = self.take::<true>(state, request, WHOLE_WALK)? {
            return Ok(Some(address));
        }
        let step = self.step();
        let units = request.units.next_multiple_of(step);
        let end = state.end_with(request.units);
        if state.segment.has_view(units, step, end) {
            state.mark_idle();
            if let Some(index) = state.segment.find_view(units, step, end) {
                return self.allocate_view(state, index, request).map(Some);
            }
        }
        if state.advance_cursor(request.units) {
            return self.take::<true>(state, request, WHOLE_WALK);
        }
        Ok(None)
    }

    /// Allocates from a new view if that takes much less memory from the driver than growth, and if
    /// growth would reserve more than the largest need so far plus `SLACK`.
    pub(in crate::memory) fn remap_before_growing(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        request: Request,
    ) -> Result<Option<u64>> {
        let Some(new) = self.idle_for_view(state, request) else { return Ok(None) };
        let missing = state.missing_at_end(request.units, self.step());
        let evictions = u64::from(state.segment.views.evictions);
        let (growth, spared) = (u64::from(missing) * UNIT, u64::from(missing - new) * UNIT);
        let claimed = self.virtual_memory.limit.claimed();
        if spared < (u64::from(request.units) * UNIT / LEAST_SPARED).max(claimed / 1024) {
            return Ok(None);
        }
        let held = self.highest_need(state, request);
        if claimed + growth <= held + held / 1000 * SLACK * (1 + evictions) {
            return Ok(None);
        }
        self.map_new_view(gpus, state, request, new)
    }

    /// Allocates from a new view however little it spares: growth has failed.
    pub(in crate::memory) fn remap_anyhow(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        request: Request,
    ) -> Result<Option<u64>> {
        match self.idle_for_view(state, request) {
            Some(new) => self.map_new_view(gpus, state, request, new),
            None => Ok(None),
        }
    }

    /// The units that a view for this request needs from the driver. `None`: not less than growth,
    /// or the arena has no views.
    fn idle_for_view(&self, state: &mut ArenaGuard<'_>, request: Request) -> Option<u32> {
        let arena = state.arena();
        let is_served =
            self.policy.remaps() && arena.class == Class::Large && arena.pool() == PoolId::DEFAULT;
        let step = self.step();
        let is_served = is_served && state.free_bytes != 0 && !state.is_below_slot();
        if !is_served || state.has_hole_for(request.units) {
            return None;
        }
        let wanted = u64::from(request.units.next_multiple_of(step));
        let new = wanted.saturating_sub(state.mark_idle()) as u32;
        (new < state.missing_at_end(request.units, step)).then_some(new)
    }

    fn map_new_view(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        request: Request,
        new: u32,
    ) -> Result<Option<u64>> {
        let arena = state.arena();
        let (memory, limit, step) = (&self.virtual_memory, arena.slot_units(), self.step());
        let arena_end = state.end();
        let wanted = request.units.next_multiple_of(step);
        let Some(stream) = arena.stream() else { return Ok(None) };
        if state.segment.views.needs_eviction(wanted, limit, state.end()) {
            self.unmap_unused_views(gpus, state, stream);
        }
        if must_not_remap(gpus, stream) {
            return Ok(None);
        }
        if new > 0 {
            let before = state.reserved();
            let grown = state.grow_at_end(memory, arena.base, new, limit);
            self.count_segment(state, before);
            self.count_split(state);
            grown?;
        }
        state.mark_idle();
        let place = (limit, state.end(), arena_end);
        // Without a view the caller still grows the arena.
        match state.segment.map_view(memory, arena.base, wanted, place) {
            Ok(Some(index)) => self.allocate_view(state, index, request).map(Some),
            Ok(None) | Err(_) => Ok(None),
        }
    }

    /// Unmaps the unused views to make room for others, unless the device may still use them.
    fn unmap_unused_views(&self, gpus: &Gpus, state: &mut ArenaGuard<'_>, stream: &Stream) {
        let arena = state.arena();
        let _relaxed = Relaxed::enter(self.driver);
        // A failed query counts as "not over".
        if !self.is_over(gpus, state, stream, false).unwrap_or(false) {
            return;
        }
        state.growth_cursor = growth_cursor::ALL;
        let views = &mut state.segment.views;
        views.evictions += 1;
        // A view that the driver refuses to unmap stays until the next time.
        let _ = views.clear(&self.virtual_memory, arena.base, false);
    }

    /// Allocates a view, whose handles are idle, to a request.
    fn allocate_view(
        &self,
        state: &mut ArenaGuard<'_>,
        index: usize,
        request: Request,
    ) -> Result<u64> {
        let arena = state.arena();
        let before = state.reserved();
        let id = state.take_view(arena.base, index, request)?;
        let address = self.count_allocated(state, id);
        self.count_segment(state, before);
        Ok(address)
    }

    /// The granularity in units.
    pub(in crate::memory) fn step(&self) -> u32 {
        (self.virtual_memory.granularity() / UNIT) as u32
    }
}

/// Is the stream captured, or destroyed? A failed query counts as captured.
fn must_not_remap(gpus: &Gpus, stream: &Stream) -> bool {
    let EndState::Alive(_named) = stream.end_state() else { return true };
    let Ok(device) = gpus.device(stream.device()) else { return true };
    ordering_stream(device, stream).is_capturing(gpus).unwrap_or(true)
}
