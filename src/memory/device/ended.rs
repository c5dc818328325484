//! Arenas of streams and pools that have ended. Their memory serves other streams or returns to the
//! driver. Then the arena is removed with its addresses, its tables and its place among the
//! members.
//!
//! A few unused arenas keep their memory as *spares*. The next stream that needs an arena gets one,
//! so that streams that come and go neither map nor unmap memory. Each time an arena is needed, a
//! few members are inspected, in turn. So the cost is the same however many arenas have ended, and
//! each of them is found soon. Giving memory back inspects all members.
//!
//! A thread may be inside with an arena that is removed. It finds no block there, and no addresses
//! to grow by. The arena is dropped when that thread has left (`epoch.rs`).

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
use crate::memory::arena::{Arena, ArenaGuard, Role, place};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::Class;
use crate::memory::device::DeviceMemory;
use crate::memory::device::segments::DetachedSegments;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Members that are inspected when an arena is needed.
const INSPECTED: usize = 8;
/// The most spares of a class. A device has at most one for each GiB.
const MOST_SPARES: usize = 16;

/// The ended arenas of a device.
pub struct EndedArenas {
    /// The member that is inspected next. Changes under the ledger's lock.
    hand: AtomicUsize,
    /// Threads that walk through the members by index. No member is removed meanwhile.
    walks: AtomicUsize,
    spares: Mutex<[[usize; MOST_SPARES]; 2]>,
}

/// A walk through the members by index, until it is dropped.
pub(in crate::memory) struct Walk<'a>(&'a AtomicUsize);

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl EndedArenas {
    /// No spares.
    pub const fn new() -> EndedArenas {
        EndedArenas {
            hand: AtomicUsize::new(0),
            walks: AtomicUsize::new(0),
            spares: Mutex::new(Rank::LEAF, [[0; MOST_SPARES]; 2]),
        }
    }

    /// Begins a walk through the members by index. Called before the ledger is locked.
    pub(in crate::memory) fn walk(&self) -> Walk<'_> {
        self.walks.fetch_add(1, Ordering::AcqRel);
        Walk(&self.walks)
    }

    fn has_room(&self, class: Class, most: usize) -> bool {
        self.spares.lock()[class as usize].iter().filter(|spare| **spare != 0).count() < most
    }

    /// Replaces a spare by another, each 0 for none; false: it is not there.
    fn replace(&self, class: Class, old: usize, new: usize) -> bool {
        let mut spares = self.spares.lock();
        let place = spares[class as usize].iter_mut().find(|place| **place == old);
        place.map(|place| *place = new).is_some()
    }

    /// Takes a spare.
    fn take(&self, class: Class) -> Option<usize> {
        let mut spares = self.spares.lock();
        let place = spares[class as usize].iter_mut().find(|place| **place != 0)?;
        Some(std::mem::take(place))
    }
}

impl Arena {
    /// Has its pool ended, or its stream if it is in the default pool?
    fn has_ended(&self) -> bool {
        let pool = self.pool();
        if pool != PoolId::DEFAULT && !pool.is_alive() {
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
            let place = &stream.arenas[place(self.kind())];
            let none = std::ptr::null_mut();
            let _ = place.compare_exchange(own, none, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl ArenaGuard<'_> {
    /// Has it ended, and has it no blocks?
    pub(in crate::memory) fn is_left(&self) -> bool {
        self.arena().has_ended() && self.has_no_blocks()
    }

    /// Has it neither blocks nor memory?
    fn is_bare(&self) -> bool {
        self.has_no_blocks() && self.reserved() == (0, 0) && self.segment.is_bare()
    }

    /// Is no block in use or pending?
    fn has_no_blocks(&self) -> bool {
        self.active_blocks == 0 && self.deferred.is_empty() && self.exported() == 0
    }
}

impl DeviceMemory {
    /// Inspects a few members, and ends those that have ended. The caller holds no lock.
    pub(in crate::memory) fn scan_for_ended(&self, gpus: &Gpus, device: &Device) {
        device.streams.forget_ended(gpus, false);
        let mut found = [std::ptr::null::<Arena>(); INSPECTED];
        self.stats.with_members(|arenas| {
            for place in found.iter_mut().take(arenas.len()) {
                let hand = self.ended.hand.load(Ordering::Relaxed) % arenas.len();
                self.ended.hand.store(hand + 1, Ordering::Relaxed);
                if arenas[hand].has_ended() {
                    *place = &raw const **arenas[hand];
                }
            }
        });
        for arena in found {
            // SAFETY: NULL, or a member, which lives as long as this thread is inside.
            if let Some(arena) = unsafe { arena.as_ref() } {
                // What fails now is tried again later.
                let _ = self.end(gpus, arena);
            }
        }
    }

    /// Marks the streams to which arenas and their blocks refer.
    pub(crate) fn mark_streams(&self, marker: Marker) {
        let _ = self.each_arena(|state| {
            let arena = state.arena();
            marker.mark(arena.stream.load(Ordering::Acquire));
            state.uses.mark_streams(marker);
            state.deferred.mark_streams(marker);
            state.foreign.mark_streams(marker);
            Ok(())
        });
        self.mark_streams_of_stranded(marker);
    }

    /// Ends all ended members before a stream is captured, because a captured stream cannot be
    /// queried. The caller holds no lock.
    pub(crate) fn end_all(&self, gpus: &Gpus) {
        let mut index = 0;
        let _walk = self.ended.walk();
        loop {
            let found = self.stats.with_members(|arenas| {
                let at = arenas.get(index..)?.iter().position(|arena| arena.has_ended())?;
                index += at + 1;
                Some(&raw const **arenas[index - 1])
            });
            let Some(arena) = found else { return };
            // SAFETY: a member, which lives as long as this thread is inside.
            let _ = self.end(gpus, unsafe { &*arena });
        }
    }

    /// Ends an arena whose stream or pool has ended, as far as no work uses its memory.
    fn end(&self, gpus: &Gpus, arena: &Arena) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let mut detached = DetachedSegments::new();
        let ended = self.end_locked(gpus, arena, &mut detached);
        let given = self.give_back(gpus.device(self.ordinal)?, detached);
        ended.and(given)
    }

    fn end_locked(
        &self,
        gpus: &Gpus,
        arena: &Arena,
        detached: &mut DetachedSegments,
    ) -> Result<()> {
        let mut guard = arena.guard();
        let state = &mut guard;
        if !arena.has_ended() {
            return Ok(());
        }
        self.settle(gpus, state, false)?;
        if !state.has_no_blocks() {
            return Ok(());
        }
        if !state.is_bare() {
            let Some(stream) = arena.stream() else { return Ok(()) };
            if !self.is_over(gpus, state, stream, false)? {
                return Ok(());
            }
            let device = gpus.device(self.ordinal)?;
            let is_of_pool = arena.pool().is_alive();
            if is_of_pool || self.may_be_spare(state) {
                self.make_available(device, state, is_of_pool);
                return Ok(());
            }
            match arena.segmented {
                true => self.detach_all_idle(gpus, state, detached)?,
                false => self.reclaim_arena(gpus, state, u64::MAX, false)?,
            }
        }
        if state.is_bare() {
            let gone = self.take_out(state);
            drop(guard);
            if let Some(gone) = gone {
                thread::retire(gone);
            }
        }
        Ok(())
    }

    /// Can an unused arena serve any stream?
    fn may_be_spare(&self, state: &mut ArenaGuard<'_>) -> bool {
        let arena = state.arena();
        let most = ((self.total >> 30) as usize).clamp(1, MOST_SPARES);
        !arena.segmented
            && state.foreign.is_empty()
            && state.segment.views.is_empty()
            && !state.segment.has_sleeping()
            && state.segment.bytes() <= self.few_bytes()
            && self.ended.has_room(arena.class, most)
    }

    /// Makes an unused arena that has ended available to a stream of its pool, or to any stream.
    pub(in crate::memory) fn make_available(
        &self,
        device: &Device,
        state: &mut ArenaGuard<'_>,
        is_of_pool: bool,
    ) {
        let arena = state.arena();
        self.stats.with_own(state, |_, _| {
            // Until the ledger was taken, a new pool may have taken the arena over.
            if !arena.has_ended() {
                return;
            }
            arena.detach_from_stream();
            let role = match is_of_pool {
                true => Role::Idle,
                false if self.ended.replace(arena.class, 0, arena.address()) => Role::Spare,
                false => return,
            };
            let pool = if is_of_pool { arena.pool() } else { PoolId::DEFAULT };
            self.move_to(arena, device.streams.default(), pool);
            arena.set_role(role);
        });
    }

    /// A spare that is not in use. The caller holds the ledger.
    pub(in crate::memory) fn take_spare(
        &self,
        (class, segmented): (Class, bool),
    ) -> Option<*const Arena> {
        if segmented {
            return None;
        }
        loop {
            let spare = self.ended.take(class)? as *const Arena;
            // SAFETY: an arena leaves the spares before it is removed.
            let arena = unsafe { &*spare };
            arena.set_role(Role::Serving);
            // A thread that found the arena before it ended may use it late.
            if arena.is_unused() {
                return Some(spare);
            }
        }
    }

    /// Removes an arena without blocks and memory from everything that refers to it; none: not now.
    pub(in crate::memory) fn take_out(
        &self,
        state: &mut ArenaGuard<'_>,
    ) -> Option<Box<Reclaimable<Arena>>> {
        let arena = state.arena();
        state.destroy_end(self.driver);
        self.stats.with_own(state, |state, stats| {
            // Until the ledger was taken, a new pool may have taken the arena over.
            if self.ended.walks.load(Ordering::Acquire) != 0 || !arena.is_reclaimable() {
                return None;
            }
            arena.detach_from_stream();
            self.ended.replace(arena.class, arena.address(), 0);
            let own = std::ptr::from_ref(arena).cast_mut();
            for member in &stats.members {
                let none = std::ptr::null_mut();
                let source_arena = &member.source_arena;
                let _ =
                    source_arena.compare_exchange(own, none, Ordering::AcqRel, Ordering::Relaxed);
            }
            arena.set_slot_bytes(0);
            for slot in state.slots.take() {
                self.addresses.give_slot(&slot);
            }
            stats.remove(state)
        })
    }

    /// Removes all members that have ended or are spares, and have neither blocks nor memory.
    pub(in crate::memory) fn drop_ended(&self) {
        let mut index = 0;
        loop {
            let found = self.stats.with_members(|arenas| {
                let all = arenas.get(index..)?.iter();
                let at = all.map(|arena| arena.is_reclaimable()).position(|is_it| is_it)?;
                index += at + 1;
                Some(&raw const **arenas[index - 1])
            });
            let Some(arena) = found else { return };
            // SAFETY: a member, which lives as long as this thread is inside.
            let arena = unsafe { &*arena };
            let mut guard = arena.guard();
            let is_it = arena.is_reclaimable() && guard.is_bare();
            let gone = if is_it { self.take_out(&mut guard) } else { None };
            drop(guard);
            if let Some(gone) = gone {
                thread::retire(gone);
                index -= 1;
            }
        }
    }
}
