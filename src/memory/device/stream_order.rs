//! The order between streams: which memory of another stream's arena a stream may use, and waits
//! for other streams where it may not yet. The waits are on the device; the host does not wait.

use crate::base::error::Result;
use crate::gpu::device::Device;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::foreign_free::Owner;
use crate::memory::arena::segment::growth_cursor;
use crate::memory::arena::{Arena, ArenaGuard};
use crate::memory::config::size::Request;
use crate::memory::device::DeviceMemory;
use std::sync::atomic::Ordering;

/// The requester of memory of other streams.
#[derive(Clone, Copy)]
pub(in crate::memory) struct Requester<'a> {
    pub gpus: &'a Gpus,
    pub device: &'a Device,
    /// Its own arena.
    pub arena: &'a Arena,
    pub stream: &'a Stream,
    pub request: Request,
}

impl DeviceMemory {
    /// The owner in an arena that the requesting stream is, with nothing left in quick lists. None:
    /// the arena has no memory for it, or no room for another foreign free list.
    pub(in crate::memory) fn owner_in(
        &self,
        requester: Requester,
        other: &mut ArenaGuard<'_>,
    ) -> Option<Owner> {
        if other.free_bytes == 0 && other.foreign.is_empty() {
            return None;
        }
        if !other.quick.is_empty() {
            self.merge_quick(other);
        }
        if std::ptr::eq(other.arena(), requester.arena) {
            return Some(Owner::Arena);
        }
        other.growth_cursor = growth_cursor::ALL;
        other.foreign.find_or_insert(requester.stream).ok().map(Owner::Stream)
    }

    /// The owners in an arena that the requesting stream is already ordered after. With `query`
    /// also those whose streams have no work left.
    pub(in crate::memory) fn known(
        &self,
        requester: Requester,
        other: &mut ArenaGuard<'_>,
        to: Owner,
        query: bool,
    ) -> u64 {
        let mut known = to.bit();
        let freed = other.account().total_freed();
        let mut next = 0;
        while let Some((owner, following)) = other.next_owner(next) {
            next = following;
            if other.is_ordered_after(to, owner, freed)
                || query && self.order_after(requester, other, owner.bit(), to, false)
            {
                known |= owner.bit();
            }
        }
        known
    }

    /// Orders the requesting stream after these owners in an arena; false: not after all of them.
    /// Does nothing to streams that cannot be queried or are captured.
    pub(in crate::memory) fn order_after(
        &self,
        requester: Requester,
        other: &mut ArenaGuard<'_>,
        owners: u64,
        to: Owner,
        may_wait: bool,
    ) -> bool {
        let freed = other.account().total_freed();
        let mut next = 0;
        while let Some((owner, following)) = other.next_owner(next) {
            next = following;
            if owners & owner.bit() == 0 || other.is_ordered_after(to, owner, freed) {
                continue;
            }
            let from = match owner {
                Owner::Arena => other.arena().stream(),
                Owner::Stream(index) => other.foreign.stream(index),
            };
            let Some(from) = from else { return false };
            if !self.follow(requester, other, from, may_wait).unwrap_or(false) {
                return false;
            }
            other.note_ordered(owner, to, freed);
        }
        true
    }

    /// Orders the requesting stream after another one: by a wait, if it may wait, or because the
    /// other one has no work left. False: it is not ordered.
    fn follow(
        &self,
        requester: Requester,
        other: &mut ArenaGuard<'_>,
        from: &Stream,
        may_wait: bool,
    ) -> Result<bool> {
        let Requester { gpus, device, stream, .. } = requester;
        let EndState::Alive(_named) = from.end_state() else {
            // The event that was recorded at its end is queried; no stream waits for it.
            return self.is_over(gpus, other, from, false);
        };
        if from.is_per_thread() {
            return Ok(false);
        }
        if !may_wait {
            let is_done = from.unless_captured(gpus, || from.query(gpus))?;
            return Ok(is_done.unwrap_or(false));
        }
        let event = device.events.take_untimed(device)?;
        let recorded = from.unless_captured(gpus, || from.record(gpus, event));
        let waited = match recorded {
            Ok(Some(())) => stream.wait_beside_captures(gpus, event),
            other => other.map(|_| false),
        };
        device.events.give_untimed(event);
        if !waited? {
            return Ok(false);
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}
