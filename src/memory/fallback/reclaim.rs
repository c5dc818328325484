//! The rare operations of the allocator: giving memory back, and completing deferred frees.

use crate::base::error::Result;
use crate::base::{progress, waiting};
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
use crate::memory::arena::foreign_free::Owner;
use crate::memory::arena::poll_policy::PollTimer;
use crate::memory::arena::segment::remap::IN_VIEW;
use crate::memory::arena::tally::pending_bytes;
use crate::memory::arena::{Arena, StreamEnd, events};
use crate::memory::config::size::Request;
use crate::memory::device::segments::DetachedSegments;
use crate::memory::device::stream_end::{ordering_stream, record_end};
use crate::memory::device::{DeviceMemory, DeviceStats};
use crate::memory::stats::ledger::{ACTIVE, ACTIVE_BYTES, COUNTERS, REQUESTED_BYTES};
use crate::observe::flags;

/// Up to this fraction of the device's memory, pending blocks may wait some microseconds longer
/// than necessary.
const FEW_BYTES: u64 = 128;

impl DeviceMemory {
    /// Completes deferred frees, then takes a block. The caller holds the arena's lock.
    #[cold]
    pub(in crate::memory) fn settle_and_take(
        &self,
        gpus: &Gpus,
        arena: &Arena,
        request: Request,
    ) -> Result<Option<u64>> {
        let repeats = self.driver.repeats();
        if self.should_skip(arena, repeats) {
            if let Some(address) = self.take::<true>(arena, request, SHORT_WALK)? {
                return Ok(Some(address));
            }
            if !repeats && let Some(address) = self.take_with_growth_credit(gpus, arena, request)? {
                return Ok(Some(address));
            }
        }
        let settled = self.settle(gpus, arena, false);
        match self.take::<true>(arena, request, SHORT_WALK)? {
            // An error of another stream does not fail this allocation.
            Some(address) => Ok(Some(address)),
            None => settled.map(|()| None),
        }
    }

    /// May an allocation skip polling other streams? The caller holds the arena's lock.
    #[inline]
    pub(in crate::memory) fn should_skip(&self, arena: &Arena, repeats: bool) -> bool {
        let are_few = || pending_bytes(arena) <= self.few_bytes();
        // SAFETY: the lock is held, and this is the only reference.
        unsafe { arena.state() }.deferred.poll_policy.should_skip(repeats, are_few)
    }

    /// The bytes that count as few for this device.
    pub(in crate::memory) fn few_bytes(&self) -> u64 {
        self.total / FEW_BYTES
    }

    /// Merges the blocks of the quick lists with their neighbours. The caller holds the arena's
    /// lock.
    pub(in crate::memory) fn merge_quick(&self, arena: &Arena) {
        // SAFETY: the lock is held, and this is the only reference.
        unsafe { arena.state() }.merge_quick();
        self.count_split(arena);
    }

    /// Counts memory that was mapped or unmapped. The caller holds the arena's lock.
    pub(in crate::memory) fn count_segment(&self, arena: &Arena, (bytes, ranges): (i64, i64)) {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let now = state.reserved();
        let (bytes, ranges) = (now.0 - bytes, now.1 - ranges);
        if (bytes, ranges) == (0, 0) {
            return;
        }
        if bytes == 0 {
            return self
                .stats
                .with_ledger(arena, |ledger| ledger.count_ranges(arena.class, ranges));
        }
        self.with_ledger(Some(arena), |stats| {
            stats.ledger.count_reserved(arena.class, bytes, ranges);
            self.count_of(arena, bytes);
        });
    }

    /// Gives all unused memory back to the driver, after waiting for the work that may still use
    /// it.
    pub fn empty_cache(&self, gpus: &Gpus) -> Result<()> {
        waiting::refuse_in_callback()?;
        self.trim_pool(gpus, gpus.device(self.ordinal)?)?;
        let _relaxed = Relaxed::enter(self.driver);
        self.with_ledger(None, |stats| stats.ledger.count(|all| all.num_sync_all_streams += 1));
        let reclaimed = self.reclaim(gpus);
        self.with_ledger(None, DeviceStats::forget_highest);
        reclaimed
    }

    /// Removes all unused memory from an arena, after the work that may use it. Mapped memory is
    /// given back at once; segments are added to `detached`, and the caller frees them. The caller
    /// holds the arena's lock.
    pub(in crate::memory) fn release_unused(
        &self,
        gpus: &Gpus,
        arena: &Arena,
        detached: &mut DetachedSegments,
    ) -> Result<()> {
        match arena.segmented {
            true => self.detach_all_idle(gpus, arena, detached),
            false => self.reclaim_arena(gpus, arena, u64::MAX, true),
        }
    }

    /// Gives back unused memory of an arena until that is `wanted` bytes or more. With `wait`,
    /// waits for the work that may use it; otherwise takes only memory that no work uses. The
    /// caller holds the arena's lock.
    pub(in crate::memory) fn reclaim_arena(
        &self,
        gpus: &Gpus,
        arena: &Arena,
        wanted: u64,
        wait: bool,
    ) -> Result<()> {
        let Some(stream) = arena.stream() else { return Ok(()) };
        if !arena.pool().is_alive() {
            // The pool was destroyed while it slept.
            // SAFETY: `each_arena` holds the lock.
            unsafe { arena.state() }.backups = Vec::new();
        }
        self.settle(gpus, arena, wait)?;
        self.merge_quick(arena);
        self.reclaim_foreign(gpus, arena, wait)?;
        // SAFETY: `each_arena` holds the lock.
        if !unsafe { arena.state() }.has_idle() {
            return Ok(());
        }
        // Unmapping does not wait for kernels that still use memory that was freed in stream order.
        if !self.is_over(gpus, arena, stream, wait)? {
            return Ok(());
        }
        // SAFETY: `each_arena` holds the lock, and the wait is over.
        let state = unsafe { arena.state() };
        let before = state.reserved();
        let outcome = state.release_idle(&self.virtual_memory, arena.base, wanted);
        self.count_segment(arena, before);
        self.count_split(arena);
        outcome
    }

    /// Is the work that a stream holds now complete? With `wait`, waits for it. False also if the
    /// stream is captured and must not be touched. The caller holds the arena's lock.
    pub(in crate::memory) fn is_over(
        &self,
        gpus: &Gpus,
        arena: &Arena,
        stream: &Stream,
        wait: bool,
    ) -> Result<bool> {
        let device = gpus.device_of(stream)?;
        let _context = device.enter()?;
        let pass = |event: CUevent| self.has_passed(arena, event, wait);
        let event = match stream.end_state() {
            EndState::Alive(_named) => match record_end(gpus, device, stream)? {
                Some(event) => return self.is_end_complete(device, arena, stream, event, wait),
                None => return self.is_earlier_end_complete(arena, stream, wait),
            },
            EndState::Lost if wait => return self.wait_for_context_of(arena, stream),
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
    /// is kept for the time when the stream is captured. The caller holds the arena's lock.
    fn is_end_complete(
        &self,
        device: &Device,
        arena: &Arena,
        stream: &Stream,
        event: CUevent,
        wait: bool,
    ) -> Result<bool> {
        let passed = self.has_passed(arena, event, wait);
        let is_kept = matches!(passed, Ok(false)) && arena.is_left();
        let end = is_kept.then(|| StreamEnd::new(arena, stream, event));
        // SAFETY: the lock is held, and this is the only reference.
        let before = std::mem::replace(&mut unsafe { arena.state() }.end, end);
        if let Some(before) = before {
            device.events.give_untimed(before.event);
        }
        if !is_kept {
            device.events.give_untimed(event);
        }
        passed
    }

    /// Is the work complete that a stream held before its capture began? False if that is not
    /// known. The caller holds the arena's lock.
    fn is_earlier_end_complete(&self, arena: &Arena, stream: &Stream, wait: bool) -> Result<bool> {
        // SAFETY: the lock is held, and this is the only reference.
        match unsafe { arena.state() }.end {
            Some(end) if end.is_of(arena, stream) && arena.is_left() => {
                self.has_passed(arena, end.event, wait)
            }
            _ => Ok(false),
        }
    }

    /// Waits for all work of the current context, and thus for a stream that may have been
    /// destroyed without leaving an event. The caller holds the arena's lock.
    fn wait_for_context_of(&self, arena: &Arena, stream: &Stream) -> Result<bool> {
        let _judged = sync_debug::check_under_lock()?;
        // SAFETY: the context of the stream's device is current.
        let wait = || unsafe { self.driver.cuCtxSynchronize() };
        self.stats.wait_for_device(arena, wait)?;
        stream.note_context_synced();
        Ok(true)
    }

    /// Frees a block that other streams or processes use, or that is in a view. Fails only if the
    /// host has freed it before. The caller holds the arena's lock.
    pub(in crate::memory) fn free_used(&self, gpus: &Gpus, arena: &Arena, id: u32) -> Result<()> {
        // SAFETY: the lock is held, and this is the only reference.
        if unsafe { arena.state() }.is_exported(id) {
            return self.free_exported(gpus, arena, id);
        }
        if self.free_lent(gpus, arena, id) {
            return Ok(());
        }
        self.free_used_locally(gpus, arena, id);
        Ok(())
    }

    /// Frees a block that other streams use and no other process has. The caller holds the arena's
    /// lock.
    pub(in crate::memory) fn free_used_locally(&self, gpus: &Gpus, arena: &Arena, id: u32) {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        if state.blocks[id].uses == IN_VIEW {
            return self.free_view(gpus, arena, id);
        }
        if let Owner::Stream(index) = Owner::of_end(state.blocks[id].uses) {
            return self.free_foreign(gpus, arena, index, id);
        }
        events::free_requested(arena, state, id);
        let (bytes, oversize) = state.defer_free(id);
        // SAFETY: the lock is held and we are not parked.
        unsafe { arena.count_deferred_free(bytes, oversize) };
    }

    /// Completes deferred frees: frees the blocks whose streams are done, and closes the open
    /// batches of busy streams by recording an event. The caller holds the arena's lock.
    pub(in crate::memory) fn settle(&self, gpus: &Gpus, arena: &Arena, wait: bool) -> Result<()> {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        if state.deferred.is_empty() {
            return Ok(());
        }
        state.enqueue_overflow();
        state.deferred.end_following();
        let mut timer = state.deferred.poll_policy.begin_poll();
        let are_busy = self.settle_batches(gpus, arena, wait, &mut timer);
        if wait {
            // A wait does not count as a poll.
            // SAFETY: as above; what was called has kept no reference.
            timer = unsafe { arena.state() }.deferred.poll_policy.begin_poll();
        }
        // SAFETY: as above.
        let policy = &mut unsafe { arena.state() }.deferred.poll_policy;
        match are_busy {
            Ok(None) => policy.note_known(),
            _ => policy.end_poll(&timer, matches!(are_busy, Ok(Some(true)))),
        }
        are_busy.map(|_| ())
    }

    /// Settles each batch. Returns whether all streams of the remaining batches were found busy;
    /// `None`: no stream was queried. The caller holds the arena's lock.
    fn settle_batches(
        &self,
        gpus: &Gpus,
        arena: &Arena,
        wait: bool,
        timer: &mut PollTimer,
    ) -> Result<Option<bool>> {
        let (mut index, mut are_busy) = (0, true);
        let mut relaxed = None;
        loop {
            // No reference is kept while the ledger is locked or the device is waited for.
            // SAFETY: the lock is held, and this is the only reference.
            let deferred = &unsafe { arena.state() }.deferred;
            let Some(batch) = deferred.batches.get(index) else {
                return Ok(relaxed.map(|_: Relaxed| are_busy));
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
                        true => self.close_batch(gpus, arena, stream, wait, |event| {
                            // SAFETY: the lock is held, and this is the only reference.
                            unsafe { arena.state() }.deferred.batches[index].event = event;
                        })?,
                        false => Some(self.has_passed(arena, event, wait)?),
                    }
                }
            };
            are_busy &= passed == Some(false);
            if passed != Some(true) {
                index += 1;
                continue;
            }
            // SAFETY: the lock is held, and this is the only reference.
            let mut batch = unsafe { arena.state() }.deferred.batches.remove(index);
            if !batch.event.is_null() {
                gpus.device_of(stream)?.events.give_untimed(batch.event);
            }
            let began = progress::now();
            // SAFETY: as above, for as long as it takes the next block.
            while let Some(id) = unsafe { arena.state() }.uses.pop(&mut batch) {
                // SAFETY: as above.
                let mut id = match unsafe { arena.state() }.end_one_wait(id) {
                    true => id,
                    false => continue,
                };
                while id != NONE {
                    id = self.complete_free(gpus, arena, id);
                }
            }
            timer.exclude(began);
        }
    }

    /// Completes the free of a pending block, and of those that follow it, after all streams that
    /// it waited for are done. Returns the next block that is not free then. The caller holds the
    /// arena's lock.
    fn complete_free(&self, gpus: &Gpus, arena: &Arena, id: u32) -> u32 {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let freed = match flags::is_watched() {
            false => state.complete_merged(arena, id),
            true => {
                let freed = state.complete_alone(arena, id);
                events::free_completed(arena, state, id);
                self.end_block(gpus, arena, id);
                freed
            }
        };
        // SAFETY: as above; poisoning has kept no reference.
        let state = unsafe { arena.state() };
        let before = state.segment.views.contain(id).then(|| {
            state.record_view_end(arena.base, id);
            state.reserved()
        });
        state.free_pending(id, self.now());
        let split = state.split();
        let CompletedBlocks { class, blocks, bytes, requested, next } = freed;
        // SAFETY: the lock is held and we are not parked.
        if !unsafe { arena.account() }.end_active(class, [blocks, bytes, requested], split) {
            let mut change = [0; COUNTERS];
            change[ACTIVE] = -blocks;
            change[ACTIVE_BYTES] = -bytes;
            change[REQUESTED_BYTES] = -requested;
            self.count_slowly(arena, class, change, split);
        }
        if let Some(before) = before {
            self.count_segment(arena, before);
        }
        next
    }

    /// Is the stream of an open batch done? If not, passes an event to `closed` that tells when it
    /// will be. `None`: the stream cannot be queried now. The caller holds the arena's lock.
    fn close_batch(
        &self,
        gpus: &Gpus,
        arena: &Arena,
        stream: &Stream,
        wait: bool,
        closed: impl FnOnce(CUevent),
    ) -> Result<Option<bool>> {
        let device = gpus.device_of(stream)?;
        let event = match stream.end_state() {
            // The stream may have been destroyed; the work queued before that ends here.
            EndState::Gone(None) => return Ok(Some(true)),
            EndState::Gone(Some(external_life)) => external_life as CUevent,
            EndState::Lost if wait => {
                let _context = device.enter()?;
                return self.wait_for_context_of(arena, stream).map(Some);
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
                closed(event);
                // A query is slowest for an incomplete event, and the stream was busy a moment ago.
                if answers && !wait {
                    return Ok(Some(false));
                }
                event
            }
        };
        self.has_passed(arena, event, wait).map(Some)
    }

    /// Is an event complete? With `wait`, waits for it. The caller holds the arena's lock.
    fn has_passed(&self, arena: &Arena, event: CUevent, wait: bool) -> Result<bool> {
        if wait && !sync_debug::is_on() {
            // SAFETY: our event, recorded.
            let wait = || unsafe { self.driver.cuEventSynchronize(event) };
            self.stats.wait_for_device(arena, wait)?;
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
        self.stats.wait_for_device(arena, wait)?;
        Ok(true)
    }
}
