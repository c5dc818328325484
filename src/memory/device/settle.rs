//! Completion of deferred frees: polls the streams that pending blocks wait for, and frees the
//! blocks whose streams are done.

use crate::base::error::Result;
use crate::driver::sys::CUevent;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{Stream, finished};
use crate::gpu::waits::SyncStamp;
use crate::memory::arena::bins::SHORT_WALK;
use crate::memory::arena::poll_policy::PollPolicy;
use crate::memory::arena::stream_uses::{Awaited, Group, Uses};
use crate::memory::arena::{ArenaGuard, events};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{Request, UNIT};
use crate::memory::device::DeviceMemory;
use crate::memory::device::stream_end::{ordering_stream, record_end};
use crate::memory::stats::ledger::{ACTIVE, ACTIVE_BYTES, Account, COUNTERS, REQUESTED_BYTES};
use crate::observe::flags;

/// Up to this fraction of the device's memory, pending blocks may wait some microseconds longer
/// than necessary.
const FEW_BYTES: u64 = 128;

/// The result of a poll of a stream.
pub(in crate::memory) enum Polled {
    /// No block waits for it any more.
    Done,
    /// Blocks wait for this event.
    Busy(CUevent),
    /// It may have been destroyed. Only a wait for its context would tell.
    Lost,
    /// It is captured, and cannot be queried.
    Captured,
}

/// Is the work known to be over, without a query, that a stream held when a block was freed?
fn is_known_to_be_over(device: &Device, stream: &Stream, freed: SyncStamp) -> bool {
    // An external stream may be of another context, or destroyed. A per-thread stream is a
    // different stream on each thread.
    !stream.is_external()
        && (device.last_sync.is_since(freed)
            || !stream.is_per_thread() && stream.last_sync.is_since(freed))
}

/// Polls a stream that blocks wait for, and ends their waits as far as they are over. If the stream
/// is busy, records the event that covers the waits. `relaxed` is entered before the first query.
pub(in crate::memory) fn poll(
    gpus: &Gpus,
    uses: &mut Uses,
    index: usize,
    relaxed: &mut Option<Relaxed>,
) -> Result<Polled> {
    // SAFETY: an event of the library, recorded. A query of an event needs no current context.
    let is_complete = |event| finished(unsafe { gpus.driver().cuEventQuery(event) });
    let Awaited { stream: address, mut event } = uses.awaited[index];
    // SAFETY: streams that blocks wait for stay (`mark_streams`).
    let stream = unsafe { &*address };
    let device = gpus.device_of(stream)?;
    let mut left = uses.end_waits(address, |freed, _| is_known_to_be_over(device, stream, freed));
    if left != [0, 0] {
        relaxed.get_or_insert_with(|| Relaxed::enter(gpus.driver()));
    }
    loop {
        if left[1] > 0 {
            if !is_complete(event)? {
                return Ok(Polled::Busy(event));
            }
            left = uses.end_waits(address, |_, is_covered| is_covered);
        }
        if !event.is_null() {
            uses.awaited[index].event = std::ptr::null_mut();
            device.events.give_untimed(event);
        }
        if left[0] == 0 {
            break;
        }
        match stream.end_state() {
            // The stream may have been destroyed; the work queued before that ends here.
            EndState::Gone(None) => break,
            EndState::Gone(Some(external_life)) => match external_life as CUevent {
                event if is_complete(event)? => break,
                event => return Ok(Polled::Busy(event)),
            },
            EndState::Lost => return Ok(Polled::Lost),
            EndState::Alive(_named) => {
                // A per-thread default stream, which `ordering_stream` replaces, cannot be queried
                // itself.
                let answers = std::ptr::eq(ordering_stream(device, stream), stream);
                if answers {
                    match stream.unless_captured(gpus, || stream.is_done(gpus))? {
                        None => return Ok(Polled::Captured),
                        Some(true) => break,
                        Some(false) => (),
                    }
                }
                let recorded = record_end(gpus, device, stream)?;
                let Some(recorded) = recorded else { return Ok(Polled::Captured) };
                uses.cover_waits(index, recorded);
                // A query is slowest for an incomplete event, and the stream was busy a moment ago.
                if answers {
                    return Ok(Polled::Busy(recorded));
                }
                (event, left) = (recorded, [0, left[0]]);
            }
        }
    }
    uses.end_waits(address, |_, _| true);
    uses.awaited.remove(index);
    Ok(Polled::Done)
}

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
        if self.should_skip(&mut own.polls, account) {
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
    pub(in crate::memory) fn should_skip(&self, polls: &mut PollPolicy, account: &Account) -> bool {
        polls.should_skip(|| account.waiting_bytes() as u64 <= self.few_bytes())
    }

    /// The bytes that count as few for this device.
    pub(in crate::memory) fn few_bytes(&self) -> u64 {
        self.total / FEW_BYTES
    }

    /// Does an arena grow instead of polling (`poll_policy.rs`)? The caller has found that nothing
    /// fits. It may grow while at most half of the device's memory is reserved, or what
    /// `sharing_threshold` says. Above that, memory is worth more than time.
    #[cold]
    fn grows_on_credit(&self, state: &mut ArenaGuard<'_>, request: Request) -> bool {
        let little = self.few_bytes();
        let growth = u64::from(state.missing_at_end(request.units, self.step())) * UNIT;
        let limit = &self.virtual_memory.limit;
        let enough = self.policy.not_shared_below(limit.most().min(self.total));
        let enough = enough.min(self.policy.collects_above(limit.most()).unwrap_or(u64::MAX));
        state.pending_bytes() <= little
            && state.arena().pool() == PoolId::DEFAULT
            && state.polls.should_grow()
            && growth <= little
            && limit.claimed() + growth <= enough
    }

    /// Completes deferred frees: polls each stream that blocks wait for, or with `wait` waits for
    /// it, and frees the blocks that wait for no stream any more. Tries all streams, and returns
    /// the first failure.
    pub(in crate::memory) fn settle(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        wait: bool,
    ) -> Result<()> {
        if state.uses.is_queue_empty() {
            return Ok(());
        }
        state.polls.begin();
        let (mut index, mut relaxed, mut outcome) = (0, None, Ok(()));
        while index < state.uses.awaited.len() {
            match self.settle_stream(gpus, state, index, wait, &mut relaxed) {
                Ok(Polled::Done) => continue,
                Ok(_) => (),
                Err(error) => outcome = outcome.and(Err(error)),
            }
            index += 1;
        }
        // A wait does not count as a poll, and what was known costs nothing.
        if !wait && relaxed.is_some() {
            state.polls.end();
        }
        let mut groups = state.uses.take_groups();
        groups.retain_mut(|group| {
            let waits = state.uses.waits(group);
            while !waits && let Some(id) = state.uses.next_block(group) {
                self.complete_free(gpus, state, id, group);
            }
            waits
        });
        state.uses.put_back(groups);
        outcome
    }

    /// Polls a stream that blocks wait for; with `wait`, until none does.
    fn settle_stream(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        index: usize,
        wait: bool,
        relaxed: &mut Option<Relaxed>,
    ) -> Result<Polled> {
        loop {
            let polled = poll(gpus, &mut state.uses, index, relaxed)?;
            let Awaited { stream, event } = match polled {
                Polled::Busy(_) | Polled::Lost if wait => state.uses.awaited[index],
                _ => return Ok(polled),
            };
            if let Polled::Busy(event) = polled {
                self.has_passed(state, event, true)?;
            } else {
                // SAFETY: streams that blocks wait for stay (`mark_streams`).
                let stream = unsafe { &*stream };
                let _context = gpus.device_of(stream)?.enter()?;
                self.wait_for_context_of(state, stream)?;
            }
            // Without an event that covers waits, this was the end of the stream.
            state.uses.end_waits(stream, |_, is_covered| is_covered || event.is_null());
        }
    }

    /// Completes the free of a pending block, and of those that follow it and merge with it, after
    /// all streams that they waited for are done.
    fn complete_free(&self, gpus: &Gpus, state: &mut ArenaGuard<'_>, id: u32, group: &mut Group) {
        let arena = state.arena();
        if flags::is_watched() {
            events::free_completed(arena, state, id);
            self.end_block(gpus, state, id);
        }
        let (class, counts) = state.merge_completed(arena, id, group);
        let before = state.segment.views.contain(id).then(|| {
            state.record_view_end(arena.base, id);
            state.reserved()
        });
        state.free_pending(id, self.now());
        let split = state.split();
        if !state.account().end_active((arena.class, class), counts, split) {
            let mut change = [0; COUNTERS];
            [change[ACTIVE], change[ACTIVE_BYTES], change[REQUESTED_BYTES]] =
                counts.map(std::ops::Neg::neg);
            self.count_slowly(state, class, change, split);
        }
        if let Some(before) = before {
            self.count_segment(state, before);
        }
    }
}
