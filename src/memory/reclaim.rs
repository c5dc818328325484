//! The cold side of the allocator: giving back, blocks that wait for other streams, and the steps
//! before an allocation fails.

use super::arena::Arena;
use super::bins::{SHORT_WALK, WHOLE_WALK};
use super::block::UNIT;
use super::stats::{ALL, ALLOCATED_BYTES, LANES};
use super::{DeviceMemory, Relaxed, TOO_LARGE};
use crate::device::Device;
use crate::driver::sys::CUevent;
use crate::error::{Error, OutOfMemory, Result};
use crate::farewell::Standing;
use crate::runtime::Runtime;
use crate::stream::{Stream, finished};

impl DeviceMemory {
    /// What is left when nothing that is mapped fits: grow; then reclaim everything reusable of the
    /// whole device and try again.
    #[cold]
    pub(super) fn allocate_slowly(
        &self,
        runtime: &Runtime,
        device: &Device,
        arena: &Arena,
        units: u32,
        bytes: u64,
    ) -> Result<u64> {
        let _relaxed = Relaxed::enter(self.driver);
        match self.grow_and_take(device, arena, units, bytes) {
            Err(Error::DriverOutOfMemory { .. }) => (),
            other => return other,
        }
        self.with_ledger(None, |books| {
            let counted = books.ledger.counted_mut();
            counted.num_alloc_retries += 1;
            counted.num_sync_all_streams += 1;
        });
        let reclaimed = self.reclaim(runtime);
        match self.grow_and_take(device, arena, units, bytes) {
            Err(Error::DriverOutOfMemory { .. }) => reclaimed?,
            other => return other,
        }
        if let Some(stream) = arena.stream()
            && let Some(address) = self.borrow_block(stream, arena.class, units, bytes)?
        {
            return Ok(address);
        }
        Err(self.refuse_too_large(device, u64::from(units) * UNIT))
    }

    /// Moves freed blocks on, then takes one. The caller holds the arena's lock.
    #[cold]
    pub(super) fn settle_and_take(
        &self,
        runtime: &Runtime,
        arena: &Arena,
        units: u32,
        bytes: u64,
    ) -> Result<Option<u64>> {
        let settled = self.settle(runtime, arena, false);
        match self.take(arena, units, bytes, SHORT_WALK)? {
            // What other streams do wrong is not this allocation's fault.
            Some(address) => Ok(Some(address)),
            None => settled.map(|()| None),
        }
    }

    /// The failure of a request that no amount of reclaiming could serve.
    #[cold]
    pub(super) fn refuse_too_large(&self, device: &Device, bytes: u64) -> Error {
        self.with_ledger(None, |books| books.ledger.counted_mut().num_ooms += 1);
        let granularity = self.virtual_memory.granularity();
        let mut wanted = bytes.checked_next_multiple_of(granularity).unwrap_or(bytes);
        if bytes < TOO_LARGE {
            // Rounding alone makes no request absurd.
            wanted = wanted.min(TOO_LARGE - 1);
        }
        self.out_of_memory(device, wanted)
    }

    /// The error with its numbers.
    #[cold]
    fn out_of_memory(&self, device: &Device, wanted: u64) -> Error {
        let (free, total) = self.info(device).unwrap_or((0, self.total));
        let statistics = self.statistics();
        let allocated = statistics.lanes[ALLOCATED_BYTES][ALL].current as u64;
        let reserved = statistics.reserved_bytes[ALL].current as u64;
        Error::OutOfMemory(OutOfMemory {
            device: self.ordinal,
            wanted,
            total,
            free,
            limit: None,
            allocated,
            cached: reserved.saturating_sub(allocated),
        })
    }

    fn grow_and_take(&self, device: &Device, arena: &Arena, units: u32, bytes: u64) -> Result<u64> {
        let _context = device.enter()?;
        let _guard = arena.lock.guard();
        arena.pool().require_awake()?;
        // Someone may have freed, or grown, in the meantime; and the short walk may miss what fits.
        if let Some(address) = self.take(arena, units, bytes, WHOLE_WALK)? {
            return Ok(address);
        }
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let before = (state.segment.bytes() as i64, state.segment.ranges());
        let limit = arena.slot_units();
        let grown = state.grow(&self.virtual_memory, arena.base, units, limit);
        self.count_segment(arena, before);
        grown?;
        // Taking it counts what is left of it; if that fails, the growth alone is counted.
        let taken = self.take(arena, units, bytes, WHOLE_WALK);
        if !matches!(taken, Ok(Some(_))) {
            self.count_free(arena);
        }
        taken?.ok_or(Error::Internal(crate::text::Text::new("grown memory does not fit")))
    }

    /// Counts how the free blocks are now. The caller holds the arena's lock.
    fn count_free(&self, arena: &Arena) {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let mut change = [0; LANES];
        // SAFETY: the lock is held and we are not parked.
        state.count_free(unsafe { arena.account() }, &mut change);
        self.count(arena, &change);
    }

    /// Counts memory that came or went. The caller holds the arena's lock.
    pub(super) fn count_segment(&self, arena: &Arena, (bytes, ranges): (i64, i64)) {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let bytes = state.segment.bytes() as i64 - bytes;
        let ranges = state.segment.ranges() - ranges;
        if bytes == 0 {
            return;
        }
        self.with_ledger(Some(arena), |books| {
            books.ledger.count_reserved(arena.class, bytes, ranges);
        });
    }

    /// Gives all unused memory back to the driver; waits for what may still use it.
    pub fn empty_cache(&self, runtime: &Runtime) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        self.with_ledger(None, |books| books.ledger.counted_mut().num_sync_all_streams += 1);
        self.reclaim(runtime)
    }

    /// Gives back what is unused in every arena; gives the first failure after trying them all.
    fn reclaim(&self, runtime: &Runtime) -> Result<()> {
        let mut outcome = Ok(());
        self.each_arena(|arena| {
            // What is in a live pool is for its users alone, and may be in a graph.
            if arena.pool().is_alive() {
                return Ok(());
            }
            let released = self.reclaim_arena(runtime, arena);
            if outcome.is_ok() {
                outcome = released;
            }
            Ok(())
        })?;
        outcome
    }

    pub(super) fn reclaim_arena(&self, runtime: &Runtime, arena: &Arena) -> Result<()> {
        let Some(stream) = arena.stream() else { return Ok(()) };
        // Of a pool that died in its sleep.
        // SAFETY: `each_arena` holds the lock.
        unsafe { arena.state() }.backups = Vec::new();
        self.settle(runtime, arena, true)?;
        // SAFETY: `each_arena` holds the lock.
        if !unsafe { arena.state() }.has_idle() {
            return Ok(());
        }
        // Unmapping does not wait for kernels that still use what was freed in stream order.
        if !self.wait_for(runtime, arena, stream)? {
            return Ok(());
        }
        // SAFETY: `each_arena` holds the lock, and the wait is over.
        let state = unsafe { arena.state() };
        let before = (state.segment.bytes() as i64, state.segment.ranges());
        let outcome = state.release_idle(&self.virtual_memory, arena.base);
        self.count_segment(arena, before);
        self.count_free(arena);
        outcome
    }

    /// Waits for what a stream holds now; false when it is captured and must be left alone. The
    /// caller holds the arena's lock.
    fn wait_for(&self, runtime: &Runtime, arena: &Arena, stream: &Stream) -> Result<bool> {
        let device = runtime.device(stream.device())?;
        let _context = device.enter()?;
        let event = match stream.standing() {
            Standing::Alive(_named) => record_end(runtime, device, stream)?,
            Standing::Lost => return self.wait_for_context_of(arena, stream),
            Standing::Gone(farewell) => {
                if let Some(farewell) = farewell {
                    // SAFETY: our event, recorded.
                    let wait = || unsafe { self.driver.cuEventSynchronize(farewell as CUevent) };
                    self.books.wait_parked(arena, wait)?;
                }
                // The default stream may have used its memory since: a stream that blocks comes after
                // that without being told, unmapping does not.
                record_end(runtime, device, device.streams.default())?
            }
        };
        let Some(event) = event else { return Ok(false) };
        // SAFETY: our event, recorded.
        let wait = || unsafe { self.driver.cuEventSynchronize(event) };
        let waited = self.books.wait_parked(arena, wait);
        device.events.give_untimed(event);
        waited?;
        Ok(true)
    }

    /// Waits for all that the current context holds, and so for a stream that may be gone without
    /// having left an event. The caller holds the arena's lock.
    fn wait_for_context_of(&self, arena: &Arena, stream: &Stream) -> Result<bool> {
        // SAFETY: the context of the stream's device is current.
        self.books.wait_parked(arena, || unsafe { self.driver.cuCtxSynchronize() })?;
        stream.has_ended();
        Ok(true)
    }

    /// Frees a block that other streams use; freeing does not fail. The caller holds the arena's lock.
    pub(super) fn free_used(&self, arena: &Arena, id: u32) {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        if state.line_up(id).is_err() {
            state.limbo.left_out += 1;
        }
        let mut change = state.free_later(id);
        // SAFETY: the lock is held and we are not parked.
        state.count_free(unsafe { arena.account() }, &mut change);
        self.count(arena, &change);
    }

    /// Moves freed blocks on: closes open batches by an event, and frees the blocks of those that
    /// passed. The caller holds the arena's lock.
    pub(super) fn settle(&self, runtime: &Runtime, arena: &Arena, wait: bool) -> Result<()> {
        // SAFETY: the lock is held, and this is the only reference.
        if unsafe { arena.state() }.limbo.is_empty() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { arena.state() }.line_up_the_left_out();
        let _relaxed = Relaxed::enter(self.driver);
        let mut index = 0;
        loop {
            // No reference is kept where the ledger is asked or the device waited for.
            // SAFETY: the lock is held, and this is the only reference.
            let limbo = &unsafe { arena.state() }.limbo;
            let Some(batch) = limbo.batches.get(index) else { return Ok(()) };
            let (stream, event) = (batch.stream, batch.event);
            // At most one closed batch a stream: what is freed meanwhile shares the next event.
            let earlier = &limbo.batches[..index];
            if !wait && earlier.iter().any(|batch| std::ptr::eq(batch.stream, stream)) {
                index += 1;
                continue;
            }
            // SAFETY: streams live until shutdown.
            let stream = unsafe { &*stream };
            let passed = self.close_batch(runtime, arena, stream, event, wait, |closed| {
                // SAFETY: the lock is held, and this is the only reference.
                unsafe { arena.state() }.limbo.batches[index].event = closed;
            })?;
            if !passed {
                index += 1;
                continue;
            }
            // SAFETY: the lock is held, and this is the only reference.
            let batch = unsafe { arena.state() }.limbo.batches.remove(index);
            if !batch.event.is_null() {
                runtime.device(stream.device())?.events.give_untimed(batch.event);
            }
            for id in batch.blocks {
                self.pass(arena, id);
            }
        }
    }

    /// One of the streams that a pending block waits for is done with it. The caller holds the
    /// arena's lock.
    fn pass(&self, arena: &Arena, id: u32) {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let block = &mut state.blocks[id];
        block.waits = block.waits.saturating_sub(1);
        if block.waits == 0 {
            let mut change = state.free_pending(id);
            // SAFETY: the lock is held and we are not parked.
            state.count_free(unsafe { arena.account() }, &mut change);
            self.count(arena, &change);
        }
    }

    /// Has a batch's stream got past it? Records its event first if that was not done.
    fn close_batch(
        &self,
        runtime: &Runtime,
        arena: &Arena,
        stream: &Stream,
        event: CUevent,
        wait: bool,
        closed: impl FnOnce(CUevent),
    ) -> Result<bool> {
        let device = runtime.device(stream.device())?;
        let _context = device.enter()?;
        let mut event = event;
        if event.is_null() {
            event = match stream.standing() {
                // The stream may be gone; what was queued on it while we knew it ends here.
                Standing::Gone(None) => return Ok(true),
                Standing::Gone(Some(farewell)) => farewell as CUevent,
                Standing::Lost if wait => return self.wait_for_context_of(arena, stream),
                Standing::Lost => return Ok(false),
                Standing::Alive(_named) => {
                    let Some(event) = record_end(runtime, device, stream)? else {
                        return Ok(false);
                    };
                    closed(event);
                    event
                }
            };
        }
        if wait {
            // SAFETY: our event, recorded.
            self.books.wait_parked(arena, || unsafe { self.driver.cuEventSynchronize(event) })?;
            return Ok(true);
        }
        // SAFETY: our event, recorded.
        finished(unsafe { self.driver.cuEventQuery(event) })
    }
}

/// An event recorded at the present end of a stream; none while it is captured: an event recorded in
/// a capture would pull its waiters into it. The caller names the stream.
pub(super) fn record_end(
    runtime: &Runtime,
    device: &Device,
    stream: &Stream,
) -> Result<Option<CUevent>> {
    let stream = ordering_stream(device, stream);
    if stream.is_capturing(runtime)? {
        return Ok(None);
    }
    let event = device.events.take_untimed(device)?;
    if let Err(error) = stream.record(runtime, event) {
        device.events.give_untimed(event);
        return Err(error);
    }
    Ok(Some(event))
}

/// The stream on which an event stands for what `stream` holds. The default stream of a thread can be
/// named by that thread alone; the legacy one comes after it, and after every other that blocks.
pub(super) fn ordering_stream<'a>(device: &'a Device, stream: &'a Stream) -> &'a Stream {
    if stream.is_per_thread() { device.streams.default() } else { stream }
}
