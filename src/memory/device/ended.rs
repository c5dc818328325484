//! Heaps of streams and pools that have ended. Their memory serves other streams or returns to the
//! driver. Then the heap is removed with its addresses, its tables and its place among the members.
//!
//! A few unused heaps keep their memory as *spares*. The next stream that needs a heap gets one, so
//! that streams that come and go neither map nor unmap memory. Each time a heap is needed, a few
//! members are inspected, in turn. So the cost is the same however many heaps have ended, and each
//! of them is found soon. Giving memory back inspects all members.
//!
//! A thread may be inside with a heap that is removed. It finds no block there, and no addresses to
//! grow by. The heap is dropped when that thread has left (`epoch.rs`).

use crate::base::error::Result;
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::retired::Reclaimable;
use crate::base::thread;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::external_registry::Marker;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{Stream, next_serial};
use crate::memory::arena::ArenaGuard;
use crate::memory::arena::heap::{Heap, Role};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::CLASSES;
use crate::memory::device::DeviceMemory;
use crate::memory::device::segments::DetachedSegments;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Members that are inspected when a heap is needed.
const INSPECTED: usize = 8;
/// The most spares. A device has at most one for each GiB.
const MOST_SPARES: usize = 16;

/// The ended heaps of a device.
pub struct EndedHeaps {
    /// The member that is inspected next. Changes under the ledger's lock.
    hand: AtomicUsize,
    /// Threads that walk through the members by index. No member is removed meanwhile.
    walks: AtomicUsize,
    spares: Mutex<[usize; MOST_SPARES]>,
}

/// A walk through the members by index, until it is dropped.
pub(in crate::memory) struct Walk<'a>(&'a AtomicUsize);

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl EndedHeaps {
    /// No spares.
    pub const fn new() -> EndedHeaps {
        EndedHeaps {
            hand: AtomicUsize::new(0),
            walks: AtomicUsize::new(0),
            spares: Mutex::new(Rank::LEAF, [0; MOST_SPARES]),
        }
    }

    /// Begins a walk through the members by index. Called before the ledger is locked.
    pub(in crate::memory) fn walk(&self) -> Walk<'_> {
        self.walks.fetch_add(1, Ordering::AcqRel);
        Walk(&self.walks)
    }

    fn has_room(&self, most: usize) -> bool {
        self.spares.lock().iter().filter(|spare| **spare != 0).count() < most
    }

    /// Replaces a spare by another, each 0 for none; false: it is not there.
    fn replace(&self, old: usize, new: usize) -> bool {
        let mut spares = self.spares.lock();
        let place = spares.iter_mut().find(|place| **place == old);
        place.map(|place| *place = new).is_some()
    }

    /// Takes a spare.
    fn take(&self) -> Option<usize> {
        self.spares.lock().iter_mut().find(|place| **place != 0).map(std::mem::take)
    }
}

impl Heap {
    /// Has its pool ended, or its stream if it is in the default pool?
    fn has_ended(&self) -> bool {
        if self.pool_has_ended() {
            return true;
        }
        match self.role() {
            Role::Serving => self.stream().is_some_and(Stream::is_over),
            Role::Idle | Role::Spare => false,
        }
    }

    /// Has it ended, or is it a spare?
    fn is_reclaimable(&self) -> bool {
        self.is_spare() || self.has_ended()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Removes it from its stream.
    fn detach_from_stream(&self) {
        let own = std::ptr::from_ref(self).cast_mut().cast();
        if let Some(stream) = self.stream() {
            stream.served.store(next_serial(), Ordering::Release);
            let place = &stream.heaps[usize::from(self.segmented)];
            let none = std::ptr::null_mut();
            let _ = place.compare_exchange(own, none, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl ArenaGuard<'_> {
    /// Has it ended, and has it no blocks?
    pub(in crate::memory) fn is_left(&self) -> bool {
        self.arena().heap().has_ended() && self.has_no_blocks()
    }

    /// Has it neither blocks nor memory?
    fn is_bare(&self) -> bool {
        self.has_no_blocks() && self.reserved() == (0, 0) && self.segment.is_bare()
    }

    /// Is no block in use or pending?
    fn has_no_blocks(&self) -> bool {
        self.active_blocks == 0 && self.uses.is_queue_empty() && self.exported() == 0
    }
}

impl DeviceMemory {
    /// Inspects a few members, and ends those that have ended. The caller holds no lock.
    pub(in crate::memory) fn scan_for_ended(&self, gpus: &Gpus, device: &Device) {
        device.streams.forget_ended(gpus, false);
        let mut found = [std::ptr::null::<Heap>(); INSPECTED];
        self.stats.with_members(|heaps| {
            for place in found.iter_mut().take(heaps.len()) {
                let hand = self.ended.hand.load(Ordering::Relaxed) % heaps.len();
                self.ended.hand.store(hand + 1, Ordering::Relaxed);
                if heaps[hand].has_ended() {
                    *place = &raw const **heaps[hand];
                }
            }
        });
        for heap in found {
            // SAFETY: NULL, or a member, which lives as long as this thread is inside.
            if let Some(heap) = unsafe { heap.as_ref() } {
                // What fails now is tried again later.
                let _ = self.end(gpus, heap);
            }
        }
    }

    /// Marks the streams to which heaps and their blocks refer.
    pub(crate) fn mark_streams(&self, marker: Marker) {
        let _ = self.each_arena(|state| {
            marker.mark(state.arena().heap().stream.load(Ordering::Acquire));
            state.uses.mark_streams(marker);
            state.mark_owners(marker);
            Ok(())
        });
        self.mark_streams_of_stranded(marker);
    }

    /// Ends all ended members before a stream is captured, because a captured stream cannot be
    /// queried. The caller holds no lock.
    pub(crate) fn end_all(&self, gpus: &Gpus) {
        let mut index = 0;
        let _walk = self.ended.walk();
        while let Some(heap) = self.next_member(&mut index, Heap::has_ended) {
            let _ = self.end(gpus, heap);
        }
    }

    /// The next member from `index` on that `is_it` accepts; `index` is then the one after it.
    pub(super) fn next_member(
        &self,
        index: &mut usize,
        is_it: impl Fn(&Heap) -> bool,
    ) -> Option<&Heap> {
        let found = self.stats.with_members(|heaps| {
            let at = heaps.get(*index..)?.iter().position(|heap| is_it(heap))?;
            *index += at + 1;
            Some(&raw const **heaps[*index - 1])
        });
        // SAFETY: a member, which lives as long as this thread is inside.
        found.map(|heap| unsafe { &*heap })
    }

    /// Ends a heap whose stream or pool has ended, as far as no work uses its memory.
    fn end(&self, gpus: &Gpus, heap: &Heap) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let mut detached = DetachedSegments::new();
        let ended = self.end_locked(gpus, heap, &mut detached);
        let given = self.give_back(gpus.device(self.ordinal)?, detached);
        ended.and(given)
    }

    fn end_locked(&self, gpus: &Gpus, heap: &Heap, detached: &mut DetachedSegments) -> Result<()> {
        let mut guard = heap.guard();
        let state = &mut guard;
        if !heap.has_ended() {
            return Ok(());
        }
        state.each(|state| self.settle(gpus, state, false))?;
        if !state.all(ArenaGuard::has_no_blocks) {
            return Ok(());
        }
        if !state.all(ArenaGuard::is_bare) {
            let Some(stream) = heap.stream() else { return Ok(()) };
            if !self.is_over(gpus, state, stream, false)? {
                return Ok(());
            }
            let device = gpus.device(self.ordinal)?;
            let is_of_pool = heap.pool().is_alive();
            if is_of_pool || self.may_be_spare(state) {
                self.make_available(device, state, is_of_pool);
                return Ok(());
            }
            state.each(|state| match heap.segmented {
                true => self.detach_all_idle(gpus, state, detached),
                false => self.reclaim_arena(gpus, state, u64::MAX, false),
            })?;
        }
        let gone = self.take_out(state);
        drop(guard);
        if let Some(gone) = gone {
            thread::retire(gone);
        }
        Ok(())
    }

    /// Can an unused heap serve any stream?
    fn may_be_spare(&self, state: &mut ArenaGuard<'_>) -> bool {
        let most = ((self.total >> 30) as usize).clamp(1, MOST_SPARES);
        !state.arena().segmented
            && self.ended.has_room(most)
            && state.all(|state| {
                state.foreign.is_empty()
                    && state.segment.views.is_empty()
                    && !state.segment.has_sleeping()
                    && state.segment.bytes() <= self.few_bytes()
            })
    }

    /// Makes an unused heap that has ended available to a stream of its pool, or to any stream.
    pub(in crate::memory) fn make_available(
        &self,
        device: &Device,
        state: &mut ArenaGuard<'_>,
        is_of_pool: bool,
    ) {
        self.stats.with_own(&mut state.lock, |own, _| {
            let heap = own.holder();
            // Until the ledger was taken, a new pool may have taken the heap over.
            if !heap.has_ended() {
                return;
            }
            heap.detach_from_stream();
            let role = match is_of_pool {
                true => Role::Idle,
                false if self.ended.replace(0, heap.address()) => Role::Spare,
                false => return,
            };
            let pool = if is_of_pool { heap.pool() } else { PoolId::DEFAULT };
            self.move_to(heap, device.streams.default(), pool);
            heap.set_role(role);
        });
    }

    /// A spare that is not in use. The caller holds the ledger.
    pub(in crate::memory) fn take_spare(&self, segmented: bool) -> Option<*const Heap> {
        if segmented {
            return None;
        }
        loop {
            let spare = self.ended.take()? as *const Heap;
            // SAFETY: a heap leaves the spares before it is removed.
            let heap = unsafe { &*spare };
            heap.set_role(Role::Serving);
            // A thread that found the heap before it ended may use it late.
            if heap.is_unused() {
                return Some(spare);
            }
        }
    }

    /// Removes a heap without blocks and memory from everything that refers to it; none: not now.
    pub(in crate::memory) fn take_out(
        &self,
        state: &mut ArenaGuard<'_>,
    ) -> Option<Box<Reclaimable<Heap>>> {
        if !state.all(ArenaGuard::is_bare) {
            return None;
        }
        let heap = state.arena().heap();
        let gone = self.stats.with_own(&mut state.lock, |lock, stats| {
            // Until the ledger was taken, a new pool may have taken the heap over.
            if self.ended.walks.load(Ordering::Acquire) != 0 || !heap.is_reclaimable() {
                return None;
            }
            heap.detach_from_stream();
            self.ended.replace(heap.address(), 0);
            let none = std::ptr::null_mut();
            for own in heap.arenas() {
                for arena in stats.arenas() {
                    let _ = arena.source_arena.compare_exchange(
                        std::ptr::from_ref(own).cast_mut(),
                        none,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                }
                own.set_slot_bytes(0);
            }
            stats.remove(lock)
        })?;
        for class in CLASSES {
            state.select(class);
            state.destroy_end(self.driver);
            state.slots.take().for_each(|slot| self.addresses.give_slot(&slot));
        }
        Some(gone)
    }

    /// Removes all members that have ended or are spares, and have neither blocks nor memory.
    pub(in crate::memory) fn drop_ended(&self) {
        let mut index = 0;
        while let Some(heap) = self.next_member(&mut index, Heap::is_reclaimable) {
            let mut guard = heap.guard();
            let gone = if heap.is_reclaimable() { self.take_out(&mut guard) } else { None };
            drop(guard);
            if let Some(gone) = gone {
                thread::retire(gone);
                index -= 1;
            }
        }
    }
}
