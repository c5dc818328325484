//! Growth credit: a little more memory for an arena whose freed blocks wait for other streams.
//!
//! If an arena has hardly more memory than its pending blocks, every few allocations find nothing
//! that fits, and poll the streams. That costs more than everything else. When the polls have cost
//! enough, the arena has growth credit (`poll_policy.rs`), and grows instead of polling. It does so
//! while its pending memory is little, and while at most half of the device's memory is reserved,
//! or what `sharing_threshold` says. Above that, memory is worth more than time.

use crate::base::error::Result;
use crate::memory::arena::ArenaGuard;
use crate::memory::arena::bins::WHOLE_WALK;
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{Request, UNIT};
use crate::memory::device::DeviceMemory;

impl DeviceMemory {
    /// A block without a poll, for an arena with growth credit. The caller has found that
    /// nothing fits, and polls if this returns none.
    #[cold]
    pub(in crate::memory) fn take_with_growth_credit(
        &self,
        state: &mut ArenaGuard<'_>,
        request: Request,
    ) -> Result<Option<u64>> {
        let arena = state.arena();
        let little = self.few_bytes();
        if state.pending_bytes() > little || arena.pool() != PoolId::DEFAULT {
            return Ok(None);
        }
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
        // The short walk may have missed a block that fits, or it lay beyond the growth cursor.
        state.advance_cursor(request.units);
        match self.take::<true>(state, request, WHOLE_WALK)? {
            None => self.grow_a_little(state, request),
            found => Ok(found),
        }
    }

    /// Grows the arena, and takes a block of the new memory. The caller has found that nothing
    /// fits.
    fn grow_a_little(&self, state: &mut ArenaGuard<'_>, request: Request) -> Result<Option<u64>> {
        let arena = state.arena();
        let (before, limit) = (state.reserved(), arena.slot_units());
        // The search has merged free blocks since the last computation.
        let missing = state.missing_at_end(request.units, self.step());
        let grown = state.grow_at_end(&self.virtual_memory, arena.base, missing, limit);
        self.count_segment(state, before);
        // The caller still can poll.
        if grown.is_err() {
            return Ok(None);
        }
        let taken = self.take::<true>(state, request, WHOLE_WALK);
        if !matches!(taken, Ok(Some(_))) {
            self.count_split(state);
        }
        taken
    }
}
