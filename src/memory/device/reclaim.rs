//! The rare operations of the allocator: giving memory back, and frees of blocks that are in use
//! elsewhere.

use crate::base::error::Result;
use crate::driver::sync_debug;
use crate::driver::sys::CUevent;
use crate::gpu::device::Device;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{Stream, finished};
use crate::memory::arena::{ArenaGuard, StreamEnd, events};
use crate::memory::device::DeviceMemory;
use crate::memory::device::segments::DetachedSegments;
use crate::memory::device::stream_end::record_end;

impl DeviceMemory {
    /// Merges the blocks of the quick lists with their neighbours.
    pub(in crate::memory) fn merge_quick(&self, state: &mut ArenaGuard<'_>) {
        state.merge_quick();
        self.count_split(state);
    }

    /// Counts memory that was mapped or unmapped.
    pub(in crate::memory) fn count_segment(
        &self,
        state: &mut ArenaGuard<'_>,
        (bytes, ranges): (i64, i64),
    ) {
        let arena = state.arena();
        let now = state.reserved();
        let (bytes, ranges) = (now.0 - bytes, now.1 - ranges);
        if (bytes, ranges) == (0, 0) {
            return;
        }
        if bytes == 0 {
            return self
                .stats
                .with_ledger(&mut state.lock, |ledger| ledger.count_ranges(arena.class, ranges));
        }
        self.with_ledger(Some(state), |stats| {
            stats.ledger.count_reserved(arena.class, bytes, ranges);
            self.count_of(arena, bytes);
        });
    }

    /// Removes all unused memory from an arena, after the work that may use it. Mapped memory is
    /// given back at once; segments are added to `detached`, and the caller frees them.
    pub(in crate::memory) fn release_unused(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        detached: &mut DetachedSegments,
    ) -> Result<()> {
        let arena = state.arena();
        match arena.segmented {
            true => self.detach_all_idle(gpus, state, detached),
            false => self.reclaim_arena(gpus, state, u64::MAX, true),
        }
    }

    /// Gives back unused memory of an arena until that is `wanted` bytes or more. With `wait`,
    /// waits for the work that may use it; otherwise takes only memory that no work uses.
    pub(in crate::memory) fn reclaim_arena(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        wanted: u64,
        wait: bool,
    ) -> Result<()> {
        let arena = state.arena();
        let Some(stream) = arena.stream() else { return Ok(()) };
        if !arena.pool().is_alive() {
            // The pool was destroyed while it slept.
            state.backups = Vec::new();
        }
        self.settle(gpus, state, wait)?;
        self.merge_quick(state);
        self.reclaim_foreign(gpus, state, wait)?;
        if !state.has_idle() {
            return Ok(());
        }
        // Unmapping does not wait for kernels that still use memory that was freed in stream order.
        if !self.is_over(gpus, state, stream, wait)? {
            return Ok(());
        }
        let before = state.reserved();
        let outcome = state.release_idle(&self.virtual_memory, arena.base, wanted);
        self.count_segment(state, before);
        self.count_split(state);
        outcome
    }

    /// Is the work that a stream holds now complete? With `wait`, waits for it. False also if the
    /// stream is captured and must not be touched, or if launches on other streams may use the
    /// memory, which [`DeviceMemory::wait_for_launches`] waits for.
    pub(in crate::memory) fn is_over(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        stream: &Stream,
        wait: bool,
    ) -> Result<bool> {
        if state.arena().heap().awaits_launches() {
            return Ok(false);
        }
        let device = gpus.device_of(stream)?;
        let _context = device.enter()?;
        let mut pass = |event: CUevent| self.has_passed(state, event, wait);
        let event = match stream.end_state() {
            EndState::Alive(_named) => match record_end(gpus, device, stream)? {
                Some(event) => return self.is_end_complete(device, state, stream, event, wait),
                None => return self.is_earlier_end_complete(state, stream, wait),
            },
            EndState::Lost if wait => return self.wait_for_context_of(state, stream),
            EndState::Lost => return Ok(false),
            EndState::Gone(external_life) => {
                if let Some(external_life) = external_life
                    && !pass(external_life as CUevent)?
                {
                    return Ok(false);
                }
                // The default stream may have used the stream's memory since. Blocking streams are
                // ordered after it implicitly, but unmapping is not.
                record_end(gpus, device, device.streams.default())?
            }
        };
        let Some(event) = event else { return Ok(false) };
        let passed = pass(event);
        device.events.give_untimed(event);
        passed
    }

    /// Is an event, which was just recorded at the end of an arena's stream, complete? If not, it
    /// is kept for the time when the stream is captured.
    fn is_end_complete(
        &self,
        device: &Device,
        state: &mut ArenaGuard<'_>,
        stream: &Stream,
        event: CUevent,
        wait: bool,
    ) -> Result<bool> {
        let arena = state.arena();
        let passed = self.has_passed(state, event, wait);
        let is_kept = matches!(passed, Ok(false)) && state.is_left();
        let end = is_kept.then(|| StreamEnd::new(arena, stream, event));
        let before = std::mem::replace(&mut state.end, end);
        if let Some(before) = before {
            device.events.give_untimed(before.event);
        }
        if !is_kept {
            device.events.give_untimed(event);
        }
        passed
    }

    /// Is the work complete that a stream held before its capture began? False if that is not
    /// known.
    fn is_earlier_end_complete(
        &self,
        state: &mut ArenaGuard<'_>,
        stream: &Stream,
        wait: bool,
    ) -> Result<bool> {
        let arena = state.arena();
        match state.end {
            Some(end) if end.is_of(arena, stream) && state.is_left() => {
                self.has_passed(state, end.event, wait)
            }
            _ => Ok(false),
        }
    }

    /// Waits for all work of the current context, and thus for a stream that may have been
    /// destroyed without leaving an event.
    pub(in crate::memory) fn wait_for_context_of(
        &self,
        state: &mut ArenaGuard<'_>,
        stream: &Stream,
    ) -> Result<bool> {
        let _judged = sync_debug::check_under_lock()?;
        // SAFETY: the context of the stream's device is current.
        let wait = || unsafe { self.driver.cuCtxSynchronize() };
        self.stats.wait_for_device(&mut state.lock, wait)?;
        stream.note_context_synced();
        Ok(true)
    }

    /// Frees a block that other streams or processes use, or that is in a view. Fails only if the
    /// host has freed it before.
    pub(in crate::memory) fn free_used(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        id: u32,
    ) -> Result<()> {
        if state.is_exported(id) {
            return self.free_exported(gpus, state, id);
        }
        if self.free_lent(gpus, state, id) {
            return Ok(());
        }
        self.free_used_locally(gpus, state, id);
        Ok(())
    }

    /// Frees a block that no other process has.
    pub(in crate::memory) fn free_used_locally(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        id: u32,
    ) {
        let arena = state.arena();
        if !state.uses.has(state.blocks[id].uses) {
            return self.free_unused(gpus, state, id);
        }
        events::free_requested(arena, state, id);
        let (bytes, oversize) = state.defer_free(id);
        state.count_deferred_free(bytes, oversize);
    }

    /// Is an event complete? With `wait`, waits for it.
    pub(in crate::memory) fn has_passed(
        &self,
        state: &mut ArenaGuard<'_>,
        event: CUevent,
        wait: bool,
    ) -> Result<bool> {
        // A query of an event needs no current context.
        // SAFETY: our event, recorded.
        let is_over = finished(unsafe { self.driver.cuEventQuery(event) })?;
        if is_over || !wait {
            return Ok(is_over);
        }
        let _judged = sync_debug::check_under_lock()?;
        // SAFETY: our event, recorded.
        let wait = || unsafe { self.driver.cuEventSynchronize(event) };
        self.stats.wait_for_device(&mut state.lock, wait)?;
        Ok(true)
    }
}
