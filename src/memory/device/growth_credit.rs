//! Growth credit: a little more memory for an arena whose freed blocks wait for other streams.
//!
//! If an arena has hardly more memory than its pending blocks, every few allocations find nothing
//! that fits, and poll the streams. That costs more than everything else. When the polls have cost
//! enough, the arena grows instead of polling (`poll_policy.rs`). It does so while its pending
//! memory is little, and while at most half of the device's memory is reserved, or what
//! `sharing_threshold` says. Above that, memory is worth more than time.

use crate::memory::arena::ArenaGuard;
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{Request, UNIT};
use crate::memory::device::DeviceMemory;

impl DeviceMemory {
    /// Does an arena grow instead of polling? The caller has found that nothing fits.
    #[cold]
    pub(in crate::memory) fn grows_on_credit(
        &self,
        state: &mut ArenaGuard<'_>,
        request: Request,
    ) -> bool {
        let little = self.few_bytes();
        let growth = u64::from(state.missing_at_end(request.units, self.step())) * UNIT;
        let limit = &self.virtual_memory.limit;
        let enough = self.policy.not_shared_below(limit.most().min(self.total));
        let enough = enough.min(self.policy.collects_above(limit.most()).unwrap_or(u64::MAX));
        state.pending_bytes() <= little
            && state.arena().pool() == PoolId::DEFAULT
            && state.deferred.poll_policy.should_grow()
            && growth <= little
            && limit.claimed() + growth <= enough
    }
}
