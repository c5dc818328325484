//! The rare operations of the allocator: giving memory back, and completing deferred frees.

use crate::base::error::Result;
use crate::driver::sync_debug;
use crate::driver::sys::CUevent;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{Stream, finished};
use crate::memory::arena::bins::SHORT_WALK;
use crate::memory::arena::block::NONE;
use crate::memory::arena::deferred_free::CompletedBlocks;
use crate::memory::arena::poll_policy::PollPolicy;
use crate::memory::arena::{ArenaGuard, StreamEnd, events};
use crate::memory::config::size::Request;
use crate::memory::device::DeviceMemory;
use crate::memory::device::segments::DetachedSegments;
use crate::memory::device::stream_end::{ordering_stream, record_end};
use crate::memory::stats::ledger::{ACTIVE, ACTIVE_BYTES, Account, COUNTERS, REQUESTED_BYTES};
use crate::observe::flags;

/// Up to this fraction of the device's memory, pending blocks may wait some microseconds longer
/// than necessary.
const FEW_BYTES: u64 = 128;

impl DeviceMemory {
    /// Completes deferred frees, then takes a block.
    #[cold]
    pub(in crate::memory) fn settle_and_take(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        request: Request,
    ) -> Result<Option<u64>> {
        let (own, account) = state.state_and_account();
        if self.should_skip(&mut own.deferred.poll_policy, account) {
            if let Some(address) = self.take::<true>(state, request, SHORT_WALK)? {
                return Ok(Some(address));
            }
            if self.grows_on_credit(state, request) {
                return Ok(None);
            }
        }
        let settled = self.settle(gpus, state, false);
        match self.take::<true>(state, request, SHORT_WALK)? {
            // An error of another stream does not fail this allocation.
            Some(address) => Ok(Some(address)),
            None => settled.map(|()| None),
        }
    }

    /// May an allocation of an arena with this account skip polling other streams?
    #[inline]
    pub(in crate::memory) fn should_skip(
        &self,
        policy: &mut PollPolicy,
        account: &Account,
    ) -> bool {
        policy.should_skip(|| account.waiting_bytes() as u64 <= self.few_bytes())
    }

    /// The bytes that count as few for this device.
    pub(in crate::memory) fn few_bytes(&self) -> u64 {
        self.total / FEW_BYTES
    }

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
    /// stream is captured and must not be touched.
    pub(in crate::memory) fn is_over(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        stream: &Stream,
        wait: bool,
    ) -> Result<bool> {
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
    fn wait_for_context_of(&self, state: &mut ArenaGuard<'_>, stream: &Stream) -> Result<bool> {
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

    /// Completes deferred frees: frees the blocks whose streams are done, and closes the open
    /// batches of busy streams by recording an event.
    pub(in crate::memory) fn settle(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        wait: bool,
    ) -> Result<()> {
        if state.deferred.is_empty() {
            return Ok(());
        }
        state.enqueue_overflow();
        state.deferred.end_following();
        state.deferred.poll_policy.begin();
        let settled = self.settle_batches(gpus, state, wait);
        // A wait does not count as a poll.
        if !wait && !matches!(settled, Ok(false)) {
            state.deferred.poll_policy.end();
        }
        settled.map(|_| ())
    }

    /// Settles each batch. Returns whether a stream was queried.
    fn settle_batches(&self, gpus: &Gpus, state: &mut ArenaGuard<'_>, wait: bool) -> Result<bool> {
        let mut index = 0;
        let mut relaxed = None;
        loop {
            let deferred = &state.deferred;
            let Some(batch) = deferred.batches.get(index) else {
                return Ok(relaxed.is_some());
            };
            if !wait && deferred.is_behind(index) {
                index += 1;
                continue;
            }
            let event = batch.event;
            // SAFETY: streams that batches name stay (`mark_streams`).
            let stream = unsafe { &*batch.stream };
            let passed = match batch.is_known_to_be_over(gpus.device_of(stream)?) {
                true => Some(true),
                false => {
                    relaxed.get_or_insert_with(|| Relaxed::enter(self.driver));
                    match event.is_null() {
                        true => self.close_batch(gpus, state, index, stream, wait)?,
                        false => Some(self.has_passed(state, event, wait)?),
                    }
                }
            };
            if passed != Some(true) {
                index += 1;
                continue;
            }
            let mut batch = state.deferred.batches.remove(index);
            if !batch.event.is_null() {
                gpus.device_of(stream)?.events.give_untimed(batch.event);
            }
            while let Some(id) = state.uses.pop(&mut batch) {
                let mut id = match state.end_one_wait(id) {
                    true => id,
                    false => continue,
                };
                while id != NONE {
                    id = self.complete_free(gpus, state, id);
                }
            }
        }
    }

    /// Completes the free of a pending block, and of those that follow it, after all streams that
    /// it waited for are done. Returns the next block that is not free then.
    fn complete_free(&self, gpus: &Gpus, state: &mut ArenaGuard<'_>, id: u32) -> u32 {
        let arena = state.arena();
        let freed = match flags::is_watched() {
            false => state.complete_merged(arena, id),
            true => {
                let freed = state.complete_alone(arena, id);
                events::free_completed(arena, state, id);
                self.end_block(gpus, state, id);
                freed
            }
        };
        let before = state.segment.views.contain(id).then(|| {
            state.record_view_end(arena.base, id);
            state.reserved()
        });
        state.free_pending(id, self.now());
        let split = state.split();
        let CompletedBlocks { class, blocks, bytes, requested, next } = freed;
        if !state.account().end_active((arena.class, class), [blocks, bytes, requested], split) {
            let mut change = [0; COUNTERS];
            change[ACTIVE] = -blocks;
            change[ACTIVE_BYTES] = -bytes;
            change[REQUESTED_BYTES] = -requested;
            self.count_slowly(state, class, change, split);
        }
        if let Some(before) = before {
            self.count_segment(state, before);
        }
        next
    }

    /// Is the stream of an open batch done? If not, passes an event to `closed` that tells when it
    /// will be. `None`: the stream cannot be queried now.
    fn close_batch(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        index: usize,
        stream: &Stream,
        wait: bool,
    ) -> Result<Option<bool>> {
        let device = gpus.device_of(stream)?;
        let event = match stream.end_state() {
            // The stream may have been destroyed; the work queued before that ends here.
            EndState::Gone(None) => return Ok(Some(true)),
            EndState::Gone(Some(external_life)) => external_life as CUevent,
            EndState::Lost if wait => {
                let _context = device.enter()?;
                return self.wait_for_context_of(state, stream).map(Some);
            }
            EndState::Lost => return Ok(None),
            EndState::Alive(_named) => {
                // A per-thread default stream, which `ordering_stream` replaces, cannot be queried
                // itself.
                let answers = std::ptr::eq(ordering_stream(device, stream), stream);
                if answers {
                    match stream.unless_captured(gpus, || stream.is_done(gpus))? {
                        None => return Ok(None),
                        Some(true) => return Ok(Some(true)),
                        Some(false) => (),
                    }
                }
                let Some(event) = record_end(gpus, device, stream)? else { return Ok(None) };
                state.deferred.batches[index].event = event;
                // A query is slowest for an incomplete event, and the stream was busy a moment ago.
                if answers && !wait {
                    return Ok(Some(false));
                }
                event
            }
        };
        self.has_passed(state, event, wait).map(Some)
    }

    /// Is an event complete? With `wait`, waits for it.
    fn has_passed(&self, state: &mut ArenaGuard<'_>, event: CUevent, wait: bool) -> Result<bool> {
        if wait && !sync_debug::is_on() {
            // SAFETY: our event, recorded.
            let wait = || unsafe { self.driver.cuEventSynchronize(event) };
            self.stats.wait_for_device(&mut state.lock, wait)?;
            return Ok(true);
        }
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
