//! Leeway: a little memory more for an arena whose freed blocks wait for other streams.
//!
//! Where an arena has hardly more memory than what waits, each few allocations find nothing that fits, and ask
//! whether the streams are done, which costs more than all else. An arena that is pressed by that (`poll_policy.rs`)
//! grows instead of asking, while what waits in it is little and no more than half of the device's memory is
//! reserved, or what `sharing_threshold` says: above that memory is dearer than time.

use super::bins::WHOLE_WALK;
use super::block::UNIT;
use crate::base::error::Result;
use crate::memory::arena::{Arena, Request};
use crate::memory::fallback::reclaim::waiting_bytes;
use crate::memory::pools::pool::PoolId;
use crate::memory::{DeviceMemory, Relaxed};
use crate::runtime::Runtime;

impl DeviceMemory {
    /// A block without asking, for an arena that is pressed. The caller holds its lock, has found that nothing
    /// fits, and asks if this gives none.
    #[cold]
    pub(in crate::memory) fn take_with_growth_credit(
        &self,
        runtime: &Runtime,
        arena: &Arena,
        request: Request,
    ) -> Result<Option<u64>> {
        let little = self.little();
        if waiting_bytes(arena) > little || arena.pool() != PoolId::DEFAULT {
            return Ok(None);
        }
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        if !state.deferred.poll_policy.take_growth_credit() {
            return Ok(None);
        }
        let missing = state.missing_at_end(request.units, self.step());
        let (growth, limit) = (u64::from(missing) * UNIT, &self.virtual_memory.limit);
        let enough = self.policy.not_shared_below(limit.most().min(self.total));
        let enough = enough.min(self.policy.collects_above(limit.most()).unwrap_or(u64::MAX));
        if growth > little || limit.claimed() + growth > enough {
            return Ok(None);
        }
        // The short walk may have missed what fits, or it was out of reach.
        state.advance_cursor(request.units);
        match self.take::<true>(arena, request, WHOLE_WALK)? {
            None => self.grow_a_little(runtime, arena, request),
            found => Ok(found),
        }
    }

    /// A block of memory by which the arena grows. The caller holds its lock, and has found that nothing
    /// fits.
    fn grow_a_little(
        &self,
        runtime: &Runtime,
        arena: &Arena,
        request: Request,
    ) -> Result<Option<u64>> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = runtime.device(self.ordinal)?.enter()?;
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let (before, limit) = (state.reserved(), arena.slot_units());
        // A search has joined free blocks since it was last looked at.
        let missing = state.missing_at_end(request.units, self.step());
        let grown = state.grow_at_end(&self.virtual_memory, arena.base, missing, limit);
        self.count_segment(arena, before);
        // Asking is left, and what it leads to.
        if grown.is_err() {
            return Ok(None);
        }
        let taken = self.take::<true>(arena, request, WHOLE_WALK);
        if !matches!(taken, Ok(Some(_))) {
            self.count_split(arena);
        }
        taken
    }
}
