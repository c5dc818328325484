//! Leeway: a little memory more for an arena whose blocks wait for other streams.
//!
//! Where an arena has hardly more memory than what waits, each few allocations find nothing that fits, and
//! ask whether the streams are done, which costs more than all else. Such an arena may grow instead, while
//! the device's memory stays within what was ever needed at a time and a little more, and never ran short: a
//! program whose small blocks come and go by thousands in a moment needs few MiB for that.

use super::arena::{Arena, Request};
use super::bins::WHOLE_WALK;
use super::block::UNIT;
use super::pool::PoolId;
use super::{DeviceMemory, Relaxed};
use crate::error::Result;
use crate::runtime::Runtime;

impl DeviceMemory {
    /// A block of memory by which the arena grows, if that is little. The caller holds the arena's lock, and
    /// has found that nothing fits.
    #[cold]
    pub(super) fn grow_a_little(
        &self,
        runtime: &Runtime,
        arena: &Arena,
        request: Request,
    ) -> Result<Option<u64>> {
        let limit = &self.virtual_memory.limit;
        if arena.segmented || arena.pool() != PoolId::DEFAULT || limit.is_set() || limit.was_short()
        {
            return Ok(None);
        }
        let step = (self.virtual_memory.granularity() / UNIT) as u32;
        // SAFETY: the lock is held, and this is the only reference.
        let missing = unsafe { arena.state() }.missing_at_end(request.units, step);
        let held = self.most_held(Some(arena), request);
        let most = held.saturating_add(self.little() / 2);
        if limit.claimed() + u64::from(missing) * UNIT > most {
            return Ok(None);
        }
        let _relaxed = Relaxed::enter(self.driver);
        let _context = runtime.device(self.ordinal)?.enter()?;
        // SAFETY: as above; the ledger has kept no reference.
        let state = unsafe { arena.state() };
        let (before, end) = (state.reserved(), arena.slot_units());
        let grown = match missing {
            // What fits was not found by a short walk.
            0 => Ok(()),
            _ => state.grow_at_end(&self.virtual_memory, arena.base, missing, end),
        };
        self.count_segment(arena, before);
        // Asking is left, and what it leads to.
        if grown.is_err() {
            return Ok(None);
        }
        let taken = self.take::<true>(arena, request, WHOLE_WALK);
        if !matches!(taken, Ok(Some(_))) {
            self.count_free(arena);
        }
        taken
    }
}
