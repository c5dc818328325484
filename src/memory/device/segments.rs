//! The segments of a device: allocating blocks in them, adding segments, and giving them back.
//!
//! The source of segments is called with no lock held. Giving memory back waits for the device, and
//! a foreign allocator may run any code. A segment therefore leaves its arena, and all counters,
//! before it is freed. If the source fails to free it, it is stranded: kept in a list, and tried
//! again later.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::external_registry::Marker;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::segmented::fits::Fit;
use crate::memory::arena::segmented::{Allocation, table};
use crate::memory::arena::{Arena, ArenaGuard, ArenaState, addresses, events};
use crate::memory::backing::pluggable::Pluggable;
use crate::memory::backing::source::{DriverSource, Source};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::segment_rules::Rules;
use crate::memory::config::size::{Class, Request, UNIT};
use crate::memory::device::lookup::{Locked, lock_block};
use crate::memory::device::{Attempt, DeviceMemory, suballocations, uncached};
use crate::memory::trace::ring::Action;
use crate::profiling::nvtx::memory::Heap;
use std::sync::atomic::{AtomicU64, Ordering};

const NO_ROOM: Error = Error::OutOfHostMemory("the list of segments to give back");

const ALREADY_OWNED: Error = Error::InvalidState(
    "the pool's allocator gave memory that tcuda has already; its memory must come from the \
     driver, or from anywhere but tcuda",
);

fn bytes_of(fit: &Fit) -> u64 {
    u64::from(fit.units) * UNIT
}

/// A segment that has left its arena.
struct Detached {
    address: u64,
    bytes: u64,
    source: Option<Pluggable>,
    stream: *const Stream,
    heap: Option<Heap>,
}

// SAFETY: streams are shared by all threads, and those that are marked here stay alive
// (`mark_streams_of_stranded`).
unsafe impl Send for Detached {}

impl Detached {
    fn new(arena: &Arena, allocation: Allocation) -> Detached {
        let Allocation { address, bytes, source, heap, .. } = allocation;
        let stream = arena.stream().map_or(std::ptr::null(), std::ptr::from_ref);
        Detached { address, bytes, source, stream, heap }
    }

    /// Frees it. No lock is held.
    fn give(&mut self, device: &Device) -> Result<()> {
        // SAFETY: NULL, or a stream that is marked, and so stays alive.
        let stream = unsafe { self.stream.as_ref() }.unwrap_or(device.streams.default());
        suballocations::report_segment_end(device, self.heap.take());
        source_of(&self.source).free(device, stream, self.address, self.bytes)
    }
}

fn source_of(source: &Option<Pluggable>) -> &dyn Source {
    match source {
        Some(source) => source,
        None => &DriverSource,
    }
}

/// Segments that have left their arenas and are to be freed.
pub struct DetachedSegments(Vec<Detached>);

impl DetachedSegments {
    /// An empty list.
    pub fn new() -> DetachedSegments {
        DetachedSegments(Vec::new())
    }
}

/// The state of a device's segments outside its arenas.
pub struct DeviceSegments {
    /// The garbage clock, from which ages are computed: searches for large blocks while garbage
    /// collection is on.
    searches: AtomicU64,
    /// Segments that their source failed to free.
    stranded: Mutex<Vec<Detached>>,
}

impl DeviceSegments {
    /// No stranded segments, and the clock at 0.
    pub fn new() -> DeviceSegments {
        DeviceSegments { searches: AtomicU64::new(0), stranded: Mutex::new(Rank::LEAF, Vec::new()) }
    }
}

/// Frees a block that is in no reservation.
#[cold]
pub fn free(gpus: &Gpus, address: u64) -> Result<()> {
    let Locked { mut state, id } = lock_block(address)?;
    let memory = gpus.device(state.arena().device)?.memory();
    memory.free_used(gpus, &mut state, id)
}

impl DeviceMemory {
    /// Marks the streams of stranded segments, so that they stay alive.
    pub(in crate::memory) fn mark_streams_of_stranded(&self, marker: Marker) {
        self.segments.stranded.lock().iter().for_each(|segment| marker.mark(segment.stream));
    }

    /// The garbage clock.
    pub(in crate::memory) fn now(&self) -> u64 {
        self.segments.searches.load(Ordering::Relaxed)
    }

    /// Advances the garbage clock for a search in an arena of large blocks, if garbage is
    /// collected.
    pub(in crate::memory) fn note_search(&self, arena: &Arena) {
        let is_aged = arena.class == Class::Large && arena.pool() == PoolId::DEFAULT;
        if is_aged && self.policy.collects_above(self.virtual_memory.limit.most()).is_some() {
            self.segments.searches.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(in crate::memory) fn rules_of(&self, arena: &Arena) -> Rules {
        self.policy.rules(arena.pool().keeps_whole())
    }

    /// Takes the best fit if the rules allow it.
    pub(in crate::memory) fn take_in_segment(
        &self,
        state: &mut ArenaGuard<'_>,
        request: Request,
    ) -> Result<Option<u64>> {
        let arena = state.arena();
        let rules = self.rules_of(arena);
        let Some(id) = state.best_fit(request, &rules) else { return Ok(None) };
        state.prepare_occupy()?;
        state.remove_fit(id);
        Ok(Some(self.set_allocated(state, id, request, &rules)))
    }

    /// Allocates a free block that is in no list.
    fn set_allocated(
        &self,
        state: &mut ArenaGuard<'_>,
        id: u32,
        request: Request,
        rules: &Rules,
    ) -> u64 {
        state.occupy(id, request, rules, self.now());
        let address = self.count_allocated(state, id);
        suballocations::block(state.heap(id), address, request.bytes);
        address
    }

    /// Allocates from a new segment; on failure, from what other threads freed in the meantime.
    /// `take_first`: tries the free blocks before.
    pub(in crate::memory) fn grow_by_segment(
        &self,
        device: &Device,
        arena: &Arena,
        request: Request,
        take_first: bool,
    ) -> Result<u64> {
        let take = || {
            let state = &mut arena.enter()?;
            self.take_in_segment(state, request)
        };
        if take_first && let Some(address) = take()? {
            return Ok(address);
        }
        match self.add_segment(device, arena, request) {
            Err(error @ (Error::DriverOutOfMemory { .. } | Error::OverLimit)) => {
                take()?.ok_or(error)
            }
            other => other,
        }
    }

    fn add_segment(&self, device: &Device, arena: &Arena, request: Request) -> Result<u64> {
        let _relaxed = Relaxed::enter(self.driver);
        self.free_stranded(device);
        let rules = self.rules_of(arena);
        let bytes = rules.segment_bytes(u64::from(request.units) * UNIT);
        let source = arena.pool().source();
        let stream = arena.stream().unwrap_or(device.streams.default());
        if !self.virtual_memory.limit.claim(bytes) {
            return Err(Error::OverLimit);
        }
        let address = match source_of(&source).allocate(device, stream, bytes) {
            Ok(address) => address,
            Err(error) => {
                self.virtual_memory.limit.release(bytes);
                return Err(error);
            }
        };
        let oversize = rules.is_oversize(bytes);
        let mut guard = arena.guard();
        let state = &mut guard;
        let heap = suballocations::segment(address, bytes);
        let mut allocation = Some(Allocation { address, bytes, start: 0, oversize, source, heap });
        let error = match self.attach(state, &mut allocation) {
            Ok(id) => return Ok(self.set_allocated(state, id, request, &rules)),
            Err(error) => error,
        };
        drop(guard);
        self.virtual_memory.limit.release(bytes);
        if let Some(allocation) = allocation {
            let mut segment = Detached::new(arena, allocation);
            match error {
                Error::OutOfHostMemory(_) => drop(self.give(device, segment)),
                // The memory is in use elsewhere, and is not freed here.
                _ => suballocations::report_segment_end(device, segment.heap.take()),
            }
        }
        Err(error)
    }

    /// Adds a segment to an arena and counts it; returns its block, which is in no list.
    fn attach(
        &self,
        state: &mut ArenaGuard<'_>,
        allocation: &mut Option<Allocation>,
    ) -> Result<u32> {
        let arena = state.arena();
        let Some(Allocation { address, bytes, oversize, .. }) = *allocation else {
            return Err(NO_ROOM);
        };
        // Memory of the library itself is part of a reservation, another segment, or an uncached
        // block.
        let last = address.saturating_add(bytes - 1);
        let is_mapped = [address, last].into_iter().any(|at| addresses::device_of(at).is_some());
        if is_mapped || uncached::has(address) {
            return Err(ALREADY_OWNED);
        }
        let attached = state.attach(allocation, arena.slot_units())?;
        let added = table::add(arena, address, bytes, attached.start);
        if !matches!(added, Ok(true)) {
            *allocation = Some(state.detach(attached.id));
            return added.and(Err(ALREADY_OWNED));
        }
        events::segment_of(arena, Action::SegmentAlloc, address, bytes);
        self.with_ledger(Some(state), |stats| {
            stats.ledger.count_segment(arena.class, bytes as i64, oversize);
            self.count_of(arena, bytes as i64);
        });
        Ok(attached.id)
    }

    /// Detaches the idle segments that `pick` chooses, one after the other, once the work that may
    /// use them is complete; returns their bytes.
    fn detach_idle(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        detached: &mut DetachedSegments,
        mut pick: impl FnMut(&ArenaState) -> Option<Fit>,
    ) -> Result<u64> {
        let arena = state.arena();
        let Some(stream) = arena.stream() else { return Ok(0) };
        if state.idle().next().is_none() {
            return Ok(0);
        }
        if !self.is_over(gpus, state, stream, true)? {
            return Ok(0);
        }
        let mut bytes = 0;
        loop {
            let Some(fit) = pick(state) else { return Ok(bytes) };
            detached.0.try_reserve(1).map_err(|_| NO_ROOM)?;
            let room = self.segments.stranded.lock().try_reserve(detached.0.len() + 1);
            room.map_err(|_| NO_ROOM)?;
            state.remove_fit(fit.id);
            let segment = state.detach(fit.id);
            bytes += segment.bytes;
            self.forget_segment(state, &segment);
            detached.0.push(Detached::new(arena, segment));
        }
    }

    /// Counts and records that a segment left its arena.
    fn forget_segment(&self, state: &mut ArenaGuard<'_>, segment: &Allocation) {
        let arena = state.arena();
        table::remove(segment.address);
        events::segment_of(arena, Action::SegmentFree, segment.address, segment.bytes);
        self.with_ledger(Some(state), |stats| {
            stats.ledger.count_segment(arena.class, -(segment.bytes as i64), segment.oversize);
            self.count_of(arena, -(segment.bytes as i64));
        });
        self.virtual_memory.limit.release(segment.bytes);
    }

    /// Detaches all idle segments of an arena, after waiting for the work that may use them. The
    /// caller frees the segments later.
    pub(in crate::memory) fn detach_all_idle(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        detached: &mut DetachedSegments,
    ) -> Result<()> {
        self.settle(gpus, state, true)?;
        self.detach_idle(gpus, state, detached, |state| state.idle().next()).map(|_| ())
    }

    /// Frees detached and stranded segments, with no lock held; returns the first failure. Segments
    /// that cannot be freed are stranded.
    pub(in crate::memory) fn give_back(
        &self,
        device: &Device,
        detached: DetachedSegments,
    ) -> Result<()> {
        self.free_stranded(device);
        let mut outcome = Ok(());
        for segment in detached.0 {
            let given = self.give(device, segment);
            if outcome.is_ok() {
                outcome = given;
            }
        }
        outcome
    }

    /// Frees a segment; on failure, strands it.
    fn give(&self, device: &Device, mut segment: Detached) -> Result<()> {
        let given = segment.give(device);
        if given.is_err() {
            let mut stranded = self.segments.stranded.lock();
            // There is room, unless other threads stranded more segments than expected.
            if stranded.try_reserve(1).is_ok() {
                stranded.push(segment);
            }
        }
        given
    }

    /// Tries again to free the stranded segments.
    fn free_stranded(&self, device: &Device) {
        let count = self.segments.stranded.lock().len();
        for _ in 0..count {
            let segment = self.segments.stranded.lock().pop();
            if segment.is_none_or(|segment| self.give(device, segment).is_err()) {
                return;
            }
        }
    }

    /// Collects garbage as PyTorch does: frees the unused large segments of all streams that are at
    /// least of average age. Repeats until at most `most` bytes are reserved.
    pub(in crate::memory) fn collect_segments(
        &self,
        gpus: &Gpus,
        device: &Device,
        most: u64,
    ) -> Result<()> {
        let mut wanted = self.virtual_memory.limit.claimed().saturating_sub(most);
        let is_shared = |arena: &Arena| {
            arena.segmented && arena.class == Class::Large && arena.pool() == PoolId::DEFAULT
        };
        while wanted > 0 {
            let (mut ages, mut count) = (0u64, 0u64);
            let now = self.now();
            let age = |fit: &Fit| now.saturating_sub(fit.since);
            self.each_arena(|state| {
                let arena = state.arena();
                if is_shared(arena) {
                    for fit in state.idle() {
                        (ages, count) = (ages + age(&fit), count + 1);
                    }
                }
                Ok(())
            })?;
            if count == 0 {
                return Ok(());
            }
            let average = ages as f64 / count as f64;
            let (mut detached, mut freed) = (DetachedSegments::new(), 0);
            let found = self.each_arena(|state| {
                let arena = state.arena();
                if is_shared(arena) {
                    freed += self.detach_idle(gpus, state, &mut detached, |state| {
                        state.idle().find(|fit| age(fit) as f64 >= average)
                    })?;
                }
                Ok(())
            });
            let given = self.give_back(device, detached);
            found.and(given)?;
            if freed == 0 {
                return Ok(());
            }
            wanted = wanted.saturating_sub(freed);
        }
        Ok(())
    }

    /// With a limit for splitting: frees one oversize segment of the stream that is large enough,
    /// or several that are together, the largest first. Returns whether they were enough.
    pub(in crate::memory) fn release_oversize(&self, attempt: Attempt) -> Result<bool> {
        let Attempt { gpus, device, arena, request } = attempt;
        let Some(max_split) = self.policy.max_split_size() else { return Ok(false) };
        let wanted = max_split.max(u64::from(request.units) * UNIT);
        let (mut detached, mut total) = (DetachedSegments::new(), 0);
        let found = {
            let state = &mut arena.enter()?;
            self.detach_idle(gpus, state, &mut detached, |state| {
                if total >= wanted {
                    return None;
                }
                let whole = state.idle().find(|fit| total == 0 && bytes_of(fit) >= wanted);
                let largest = || state.idle().next_back().filter(|fit| bytes_of(fit) >= max_split);
                let fit = whole.or_else(largest)?;
                total += bytes_of(&fit);
                Some(fit)
            })
        };
        let given = self.give_back(device, detached);
        found?;
        given?;
        Ok(total >= wanted)
    }

    /// Frees every segment, when the arenas end. No other thread is inside.
    pub(in crate::memory) fn close_segments(&self, device: &Device) {
        loop {
            let mut segment = None;
            let _ = self.each_arena(|state| {
                let arena = state.arena();
                if segment.is_none() {
                    let segments = state.segments.as_mut();
                    let found = segments.and_then(|segments| segments.take_any());
                    segment = found.map(|allocation| Detached::new(arena, allocation));
                }
                Ok(())
            });
            let Some(segment) = segment else { break };
            table::remove(segment.address);
            let _ = self.give(device, segment);
        }
        // A second try for segments that could not be freed.
        self.free_stranded(device);
    }
}
