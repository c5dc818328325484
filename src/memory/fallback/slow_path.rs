//! The fallbacks before an allocation fails, in PyTorch's order: mapped memory, garbage collection,
//! the limit and the driver, the stream's own cache, the caches of all streams, and the host's
//! observers.

use super::observers::{self, Rejection, Shortage};
use crate::base::error::{Error, OutOfMemory, Result, TOO_LARGE};
use crate::base::waiting;
use crate::driver::sync_debug;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::bins::WHOLE_WALK;
use crate::memory::arena::segment::growth_cursor;
use crate::memory::arena::slots::LONGEST;
use crate::memory::arena::{Arena, ArenaGuard};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{Class, Request, Size, UNIT};
use crate::memory::device::segments::DetachedSegments;
use crate::memory::device::{Attempt, DeviceMemory, DeviceStats, hooks};
use crate::memory::stats::ledger::{ACTIVE_BYTES, ALL, ALLOCATED_BYTES};
use crate::memory::trace::history;
use crate::telemetry::monitor;

/// Does the error mean lack of memory, so that another fallback may help?
pub(in crate::memory) fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::DriverOutOfMemory { .. } | Error::OverLimit)
}

impl DeviceMemory {
    /// Allocates when the short search of the mapped memory has failed.
    #[cold]
    pub(in crate::memory) fn allocate_slowly(&self, attempt: Attempt) -> Result<u64> {
        let Attempt { gpus, device, arena, request } = attempt;
        // Memory that other processes no longer use comes first.
        if hooks::installed().is_some_and(|hooks| (hooks.release_exports)(gpus)) {
            let state = &mut arena.enter()?;
            if let Some(address) = self.take_of_either_kind(state, request, WHOLE_WALK)? {
                return Ok(address);
            }
        }
        if let Some(address) = self.reuse_again(gpus, arena, request)? {
            return Ok(address);
        }
        if let Some(address) = self.reuse_view(arena, request)? {
            return Ok(address);
        }
        let size = u64::from(request.units) * UNIT;
        let mut failure = match self.try_fallbacks(attempt) {
            Err(error) if is_out_of_memory(&error) => error,
            other => return other,
        };
        if self.run_observers(device, self.driver_bytes(size, arena.segmented)) {
            failure = match self.try_fallbacks(attempt) {
                Err(error) if is_out_of_memory(&error) => error,
                other => return other,
            };
        }
        if self.rejects(&failure) {
            return Err(self.reject(gpus, device, self.driver_bytes(size, arena.segmented)));
        }
        Err(self.refuse(gpus, device, size, arena.segmented))
    }

    /// Runs all fallbacks except the observers.
    fn try_fallbacks(&self, attempt: Attempt) -> Result<u64> {
        let Attempt { gpus, device, arena, request } = attempt;
        if let Some(most) = self.policy.collects_above(self.virtual_memory.limit.most())
            && self.virtual_memory.limit.claimed() > most
        {
            let _relaxed = Relaxed::enter(self.driver);
            if !arena.segmented
                && let Some(address) = self.take_from_mapped(arena, request)?
            {
                return Ok(address);
            }
            if let Some(address) = self.share(attempt, true)? {
                return Ok(address);
            }
            self.collect_garbage(gpus, device, most);
        }
        match self.share(attempt, false) {
            Ok(Some(address)) => return Ok(address),
            Err(error) if !is_out_of_memory(&error) || self.rejects(&error) => return Err(error),
            _ => (),
        }
        match self.grow_and_take(attempt, true) {
            Err(error) if is_out_of_memory(&error) && !self.rejects(&error) => (),
            other => return other,
        }
        let _relaxed = Relaxed::enter(self.driver);
        if let Some(stream) = arena.stream()
            && arena.pool() == PoolId::DEFAULT
            && let Some(address) = self.take_from_other_pool(stream, request)?
        {
            return Ok(address);
        }
        if let Some(address) = self.share(attempt, true)? {
            return Ok(address);
        }
        if self.release_own(attempt)? {
            match self.grow_and_take(attempt, false) {
                Err(error) if is_out_of_memory(&error) => (),
                other => return other,
            }
        }
        self.with_ledger(None, |stats| {
            stats.ledger.count(|counted| {
                counted.num_alloc_retries += 1;
                counted.num_sync_all_streams += 1;
            });
        });
        let reclaimed = self.reclaim_for(gpus, arena.pool());
        let failure = match self.grow_and_take(attempt, false) {
            Err(error) if is_out_of_memory(&error) => error,
            other => return other,
        };
        reclaimed?;
        match self.reclaim_pools(gpus)? {
            true => self.grow_and_take(attempt, false),
            false => Err(failure),
        }
    }

    /// Allocates from a pool with `USE_ON_OOM`, on a stream that the pool has served.
    fn take_from_other_pool(&self, stream: &Stream, request: Request) -> Result<Option<u64>> {
        let mut found = None;
        let size = Size { bytes: u64::from(request.units) * UNIT, oversize: request.oversize };
        self.each_arena(|state| {
            let arena = state.arena();
            // The pool's arenas may be of another kind than the arena of the request.
            let is_of_class = arena.class == size.arena_class(arena.segmented);
            let serves = is_of_class && arena.pool().serves_on_oom() && arena.heap().is_of(stream);
            if found.is_some() || !serves {
                return Ok(());
            }
            state.prepare_lending()?;
            found = self.take_of_either_kind(state, request, WHOLE_WALK)?;
            // Pools of segments cannot sleep, so that their blocks need no mark.
            if let Some(address) = found.filter(|_| !arena.segmented) {
                let id = state.find(address - arena.base, address as usize)?;
                state.lend(id);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Gives all unused memory back to the driver, after waiting for the work that may still use
    /// it.
    pub fn empty_cache(&self, gpus: &Gpus) -> Result<()> {
        waiting::refuse_in_callback()?;
        let _frames = history::before_free();
        self.trim_pool(gpus, gpus.device(self.ordinal)?)?;
        let _relaxed = Relaxed::enter(self.driver);
        self.with_ledger(None, |stats| stats.ledger.count(|all| all.num_sync_all_streams += 1));
        let reclaimed = self.reclaim(gpus);
        self.with_ledger(None, DeviceStats::forget_highest);
        reclaimed
    }

    /// Gives back the unused memory of every arena. Tries all arenas, and returns the first
    /// failure.
    pub(in crate::memory) fn reclaim(&self, gpus: &Gpus) -> Result<()> {
        // The memory of a live pool is reserved for its users, and a graph may write it.
        self.reclaim_where(gpus, |pool| !pool.is_alive())
    }

    /// Gives back unused memory for a request of a pool, including that of the pool itself if no
    /// graph may write it.
    pub(in crate::memory) fn reclaim_for(&self, gpus: &Gpus, pool: PoolId) -> Result<()> {
        self.reclaim_where(gpus, |other| !other.is_alive() || other == pool && other.may_shrink())
    }

    /// Gives back the unused memory of live private pools that no graph may write, as the last
    /// resort. Returns false if there was none.
    pub(in crate::memory) fn reclaim_pools(&self, gpus: &Gpus) -> Result<bool> {
        let before = self.virtual_memory.limit.claimed();
        let reclaimed = self.reclaim_where(gpus, PoolId::may_shrink);
        // Other threads may have grown in the meantime; then memory is short in any case.
        reclaimed.map(|()| self.virtual_memory.limit.claimed() < before)
    }

    fn reclaim_where(&self, gpus: &Gpus, may: impl Fn(PoolId) -> bool) -> Result<()> {
        let (mut outcome, mut detached) = (self.wait_for_launches(gpus), DetachedSegments::new());
        let all = self.each_arena(|state| {
            let arena = state.arena();
            if !may(arena.pool()) {
                return Ok(());
            }
            let released = self.release_unused(gpus, state, &mut detached);
            if outcome.is_ok() {
                outcome = released;
            }
            Ok(())
        });
        sync_debug::log_deferred();
        let given = self.give_back(gpus.device(self.ordinal)?, detached);
        self.drop_ended();
        all.and(outcome).and(given)
    }

    /// Allocates from the mapped memory, searching all of it.
    fn take_from_mapped(&self, arena: &Arena, request: Request) -> Result<Option<u64>> {
        let state = &mut arena.enter()?;
        self.take::<true>(state, request, WHOLE_WALK)
    }

    /// Gives unused large memory back until at most `most` bytes are reserved: first memory that no
    /// pending work uses, then memory whose work must be waited for. Failures are ignored: the
    /// memory stays where it is, and the caller asks the driver for more anyway.
    fn collect_garbage(&self, gpus: &Gpus, device: &Device, most: u64) {
        let _ = self.collect_segments(gpus, device, most);
        for wait in [false, true] {
            if wait && self.virtual_memory.limit.claimed() > most {
                let _ = self.wait_for_launches(gpus);
            }
            let _ = self.each_arena(|state| {
                let arena = state.arena();
                let over = self.virtual_memory.limit.claimed().saturating_sub(most);
                // The memory of a live pool is reserved for its users, and a graph may write it.
                let is_shared = !arena.pool().is_alive();
                if over > 0 && arena.kind() == (Class::Large, false) && is_shared {
                    let _ = self.reclaim_arena(gpus, state, over, wait);
                }
                Ok(())
            });
        }
    }

    /// With a limit for splitting: gives back the unused memory of this stream, before that of all
    /// streams, if it is enough. Returns whether memory was given back.
    fn release_own(&self, attempt: Attempt) -> Result<bool> {
        let Attempt { gpus, arena, request, .. } = attempt;
        let Some(max_split) = self.policy.max_split_size() else { return Ok(false) };
        if arena.pool().is_alive() {
            return Ok(false);
        }
        if arena.segmented {
            return self.release_oversize(attempt);
        }
        let wanted = max_split.max(u64::from(request.units) * UNIT);
        let state = &mut arena.enter()?;
        if (state.free_bytes as u64) < wanted {
            return Ok(false);
        }
        self.reclaim_arena(gpus, state, wanted, true)?;
        Ok(true)
    }

    fn grow_and_take(&self, attempt: Attempt, take_first: bool) -> Result<u64> {
        let Attempt { gpus, device, arena, request } = attempt;
        if arena.segmented {
            return self.grow_by_segment(device, arena, request, take_first);
        }
        // Mapping memory needs no current context and is allowed in captures, but the device has to
        // have a context from the first allocation on.
        device.context()?;
        let state = &mut arena.enter()?;
        arena.pool().require_awake()?;
        // Another thread may have freed or mapped memory in the meantime. Moreover, the short walk
        // may have missed a block, and the growth cursor may have hidden memory.
        state.merge_last_freed();
        state.growth_cursor = growth_cursor::ALL;
        if let Some(address) = self.take::<true>(state, request, WHOLE_WALK)? {
            return Ok(address);
        }
        if let Some(address) = self.remap_before_growing(gpus, state, request)? {
            return Ok(address);
        }
        self.outgrow(state, request.units);
        let before = state.reserved();
        let limit = arena.slot_units();
        let grown = state.grow(&self.virtual_memory, arena.base, request.units, limit);
        self.count_segment(state, before);
        match grown {
            Err(error) if is_out_of_memory(&error) => {
                // An arena that was to grow on credit was not polled before.
                self.settle(gpus, state, false)?;
                if let Some(address) = self.take::<true>(state, request, WHOLE_WALK)? {
                    return Ok(address);
                }
                return self.remap_anyhow(gpus, state, request)?.ok_or(error);
            }
            grown => grown?,
        }
        // A successful allocation counts the free memory that is left; otherwise the growth is
        // counted here.
        let taken = self.take::<true>(state, request, WHOLE_WALK);
        if !matches!(taken, Ok(Some(_))) {
            self.count_split(state);
        }
        taken?.ok_or(Error::Internal(crate::base::text::Text::new("grown memory does not fit")))
    }

    /// Moves an arena's growth to a larger slot, if `units` need one and a larger slot is vacant.
    fn outgrow(&self, state: &mut ArenaGuard<'_>, units: u32) {
        let arena = state.arena();
        let step = (self.virtual_memory.granularity() / UNIT) as u32;
        let Some(slot) =
            state.slots.last().filter(|_| state.outgrows(units, step, arena.slot_units()))
        else {
            return;
        };
        // The upper third is reserved for views.
        let wanted = u64::from(units.next_multiple_of(step)) * UNIT * 3 / 2;
        let Some(larger) = self.addresses.take_larger(&slot, wanted) else { return };
        let offset = larger.base - arena.base;
        if offset + larger.bytes > LONGEST || state.slots.push(larger).is_err() {
            self.addresses.give_slot(&larger);
            return;
        }
        state.segment.views.slot_start = (offset / UNIT) as u32;
        arena.set_slot_bytes((offset + larger.bytes).min(LONGEST - UNIT));
        self.addresses.publish(&larger, arena);
    }

    /// Runs the host's observers after the driver refused `wanted` bytes; true: try again. The
    /// caller holds no lock.
    pub(in crate::memory) fn run_observers(&self, device: &Device, wanted: u64) -> bool {
        observers::run(|| {
            let (free, total) = device.memory_info().unwrap_or((0, self.total));
            let limit = self.virtual_memory.limit.most();
            Shortage {
                device: self.ordinal,
                wanted,
                limit: if limit == u64::MAX { total } else { limit },
                free,
            }
        })
    }

    /// Is growth beyond the limit a failure at once?
    pub(in crate::memory) fn rejects(&self, failure: &Error) -> bool {
        matches!(failure, Error::OverLimit) && self.policy.rejects()
    }

    /// Counts and reports a request that the limit refused. The caller holds no lock.
    #[cold]
    pub(in crate::memory) fn reject(&self, gpus: &Gpus, device: &Device, wanted: u64) -> Error {
        self.with_ledger(None, |stats| stats.ledger.count(|all| all.num_oom_rejections += 1));
        observers::rejected(|| {
            let (_, total) = device.memory_info().unwrap_or((0, self.total));
            let allocated = self.statistics().counters[ALLOCATED_BYTES][ALL].current as u64;
            Rejection { device: self.ordinal, wanted, allocated, total }
        });
        self.out_of_memory(gpus, device, wanted, true)
    }

    /// The error of a request that no fallback could serve; `segmented`: its arena has segments.
    #[cold]
    pub(in crate::memory) fn refuse(
        &self,
        gpus: &Gpus,
        device: &Device,
        bytes: u64,
        segmented: bool,
    ) -> Error {
        self.with_ledger(None, |stats| stats.ledger.count(|all| all.num_ooms += 1));
        let error = self.out_of_memory(gpus, device, self.driver_bytes(bytes, segmented), false);
        if let Error::OutOfMemory(OutOfMemory { free, .. }) = error {
            let bytes = bytes.checked_next_multiple_of(UNIT).unwrap_or(bytes);
            history::out_of_memory(self.ordinal, bytes, free);
        }
        error
    }

    /// The number of bytes that the driver is asked for if no memory is available for a block.
    pub(in crate::memory) fn driver_bytes(&self, bytes: u64, segmented: bool) -> u64 {
        let granularity = self.virtual_memory.granularity();
        let wanted = match segmented {
            true => self.policy.rules(false).segment_bytes(bytes),
            false => bytes.checked_next_multiple_of(granularity).unwrap_or(bytes),
        };
        // Rounding alone must not make a request too large.
        if bytes < TOO_LARGE { wanted.min(TOO_LARGE - 1) } else { wanted }
    }

    /// The free bytes of live private pools.
    fn pooled_bytes(&self) -> u64 {
        self.with_ledger(None, |stats| {
            let pooled = stats.arenas().filter(|arena| arena.pool().is_alive());
            // SAFETY: all arenas are frozen.
            pooled.map(|arena| unsafe { arena.frozen_state() }.unused()).sum()
        })
    }

    /// The out-of-memory error with its numbers.
    #[cold]
    pub(in crate::memory) fn out_of_memory(
        &self,
        gpus: &Gpus,
        device: &Device,
        wanted: u64,
        rejected: bool,
    ) -> Error {
        let (free, total) = device.memory_info().unwrap_or((0, self.total));
        let statistics = self.statistics();
        let allocated = statistics.counters[ALLOCATED_BYTES][ALL].current as u64;
        let reserved = statistics.reserved_bytes[ALL].current as u64;
        let limit = self.virtual_memory.limit.most();
        Error::OutOfMemory(OutOfMemory {
            device: self.ordinal,
            wanted,
            total,
            free,
            limit,
            allocated,
            cached: reserved.saturating_sub(allocated),
            pooled: self.pooled_bytes(),
            pending: (statistics.counters[ACTIVE_BYTES][ALL].current as u64)
                .saturating_sub(allocated),
            captured: gpus.has_captures(),
            users: monitor::users(device),
            rejected,
            segmented: self.policy.is_segmented(),
        })
    }
}
