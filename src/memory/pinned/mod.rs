//! The caching allocator of pinned host memory, which copies need to be asynchronous.
//!
//! [`heap`] has the blocks of a size class, split from segments that [`source`] obtains.
//! [`directory`] maps an address to its segment. [`settle`] completes deferred frees.
//! [`grow_ahead`] obtains segments before they are needed. Each thread uses its own heaps. If they
//! have no free block, it searches the heaps of other threads before it calls the driver. Only the
//! return of memory to the driver waits for the device.

mod directory;
mod events;
mod grow_ahead;
mod heap;
mod kept;
mod marks;
mod settle;
mod source;
pub mod stats;
pub(crate) mod threads;

use crate::base::error::{Error, Result};
use crate::base::lock::{Held, Mutex};
use crate::base::rank::Rank;
use crate::base::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::base::thread;
use crate::driver::Driver;
use crate::gpu::external_registry::Marker;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use crate::memory::arena::bins::{SHORT_WALK, WHOLE_WALK};
use crate::memory::arena::block::{Block, State};
use crate::memory::config::host_settings::HostSettings;
use crate::memory::trace::history;
use crate::sanitizer;
use directory::{Directory, Place};
use heap::{Heap, KEPT};
use kept::Kept;
use source::{Origin, PAGE, Source};
use stats::{Counts, HostStatistics};
use threads::Helper;

/// Heaps of a size class; new threads are assigned to them in turn.
const SHARDS: usize = 8;
/// The number of size classes: requests up to [`SMALL`], and larger ones.
const CLASSES: usize = 2;
/// The largest request of the small class.
const SMALL: u64 = 64 << 10;
/// Units of the classes, to which sizes are rounded and addresses are aligned: 64 and 512 bytes.
const SHIFTS: [u32; CLASSES] = [6, 9];
/// The smallest and the largest growth of a heap, unless a request needs more.
const LEAST_GROWTH: u64 = 2 << 20;
const MOST_GROWTH: [u64; CLASSES] = [16 << 20, 64 << 20];
/// A segment for a request of at least this size is as large as the request.
const EXACT: u64 = 32 << 20;
/// Requests of at least this size fail at once.
const TOO_LARGE: u64 = 1 << 40;

/// A heap, created at its first use.
#[repr(align(128))]
struct Shard(Mutex<Option<Box<Heap>>>);

/// The pinned memory of the process.
pub struct HostMemory {
    driver: &'static Driver,
    generation: u64,
    heaps: [Shard; CLASSES * SHARDS],
    directory: Directory,
    source: Source,
    counts: Counts,
    settings: Mutex<HostSettings>,
    /// Two of the settings, which every request needs.
    max_round_threshold: AtomicU64,
    max_cached_bytes: AtomicU64,
    /// The index of the next new thread's heaps.
    next_shard: AtomicU32,
    kept: Kept,
    helper: Helper,
    /// The helper's thread; 0: it does not run.
    helper_thread: AtomicUsize,
    /// Is growing ahead enabled?
    grows_ahead: AtomicU32,
}

/// An allocated block, with its heap locked.
struct Found<'a> {
    index: usize,
    held: Held<'a, Option<Box<Heap>>>,
    id: u32,
}

impl Found<'_> {
    #[inline]
    fn heap(&mut self) -> Option<&mut Heap> {
        self.held.as_deref_mut()
    }
}

/// A request after rounding.
#[derive(Clone, Copy)]
struct Wanted {
    class: usize,
    units: u32,
    requested: u64,
    /// Is its segment freed to the driver as soon as the block is free?
    once: bool,
}

impl Wanted {
    fn bytes(&self) -> u64 {
        u64::from(self.units) << SHIFTS[self.class]
    }
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for HostMemory {
    type Owner = Gpus;
    const KIND: SubsystemKind = SubsystemKind::PinnedMemory;
}

impl Gpus {
    /// Pinned memory of the host.
    #[inline(always)]
    pub fn pinned(&self) -> &HostMemory {
        self.subsystem()
    }
}

impl HostMemory {
    pub(crate) fn new(driver: &'static Driver, generation: u64) -> HostMemory {
        let settings = HostSettings::DEFAULT;
        HostMemory {
            driver,
            generation,
            heaps: [const { Shard(Mutex::new(Rank::HOST, None)) }; CLASSES * SHARDS],
            directory: Directory::new(),
            source: Source::new(driver),
            counts: Counts::new(),
            settings: Mutex::new(Rank::LEAF, settings),
            max_round_threshold: AtomicU64::new(settings.max_round_threshold),
            max_cached_bytes: AtomicU64::new(settings.max_cached_bytes),
            next_shard: AtomicU32::new(0),
            kept: Kept::new(),
            helper: Helper::new(),
            helper_thread: AtomicUsize::new(0),
            grows_ahead: AtomicU32::new(0),
        }
    }

    /// Sets the settings for later allocations.
    pub fn set_settings(&self, settings: &HostSettings) {
        let mut held = self.settings.lock();
        *held = *settings;
        self.max_round_threshold.store(settings.max_round_threshold, Ordering::Relaxed);
        self.max_cached_bytes.store(settings.max_cached_bytes, Ordering::Relaxed);
        self.grows_ahead.store(u32::from(settings.background_threads), Ordering::Relaxed);
    }

    /// The current settings.
    pub fn settings(&self) -> HostSettings {
        *self.settings.lock()
    }

    fn wanted(&self, bytes: u64) -> Result<Wanted> {
        if bytes >= TOO_LARGE {
            return Err(source::no_memory());
        }
        let most_cached = self.max_cached_bytes.load(Ordering::Relaxed);
        let mut size = bytes;
        if size <= self.max_round_threshold.load(Ordering::Relaxed) && size <= most_cached {
            size = size.next_power_of_two();
        }
        let once = bytes > most_cached;
        if once {
            // The block fills its segment.
            size = size.next_multiple_of(PAGE as u64);
        }
        let class = usize::from(size > SMALL);
        let units = size.div_ceil(1 << SHIFTS[class]) as u32;
        Ok(Wanted { class, units, requested: bytes, once })
    }

    fn heap(&self, index: usize) -> Held<'_, Option<Box<Heap>>> {
        self.heaps[index].0.lock()
    }

    /// Allocates page-locked memory; 0 bytes need no block.
    #[inline]
    pub fn allocate(&self, gpus: &Gpus, bytes: usize) -> Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        history::before_host_allocation();
        if sanitizer::is_on() {
            let tell = |address: &usize| sanitizer::pinned(*address as u64, bytes as u64);
            return self.allocate_now(gpus, bytes).inspect(tell);
        }
        self.allocate_now(gpus, bytes)
    }

    #[inline]
    fn allocate_now(&self, gpus: &Gpus, bytes: usize) -> Result<usize> {
        let wanted = self.wanted(bytes as u64)?;
        let shard = thread::share(self.generation, &self.next_shard) as usize % SHARDS;
        let index = wanted.class * SHARDS + shard;
        if !wanted.once {
            let taken = self.take(gpus, index, wanted, SHORT_WALK);
            if let Ok(Some(address)) = taken {
                return Ok(address);
            }
            taken?;
        }
        self.allocate_slowly(gpus, index, wanted)
    }

    /// Takes a block from a heap, if it has one.
    #[inline]
    fn take(
        &self,
        gpus: &Gpus,
        index: usize,
        wanted: Wanted,
        walk: usize,
    ) -> Result<Option<usize>> {
        let (taken, is_low, unwanted) = {
            let mut held = self.heap(index);
            let Some(heap) = held.as_deref_mut() else { return Ok(None) };
            // An error of a stream does not fail this allocation.
            let _ = self.settle(gpus, heap);
            let taken = heap.allocate(wanted.units, wanted.requested, walk)?;
            if taken.is_some() {
                self.counts.count_alloc(wanted.bytes());
            }
            (taken, heap.free_bytes < growth(wanted.class, heap.bytes) / 2, heap.unwanted)
        };
        if unwanted > 0 {
            self.give_unwanted(gpus, index);
        }
        if is_low && taken.is_some() && self.grows_ahead.load(Ordering::Relaxed) != 0 {
            self.request_segment(index);
        }
        Ok(taken)
    }

    /// Allocates if the thread's own heap has no free block: from the other heaps, then from the
    /// driver.
    #[cold]
    fn allocate_slowly(&self, gpus: &Gpus, index: usize, wanted: Wanted) -> Result<usize> {
        // A thread gets its own first small segment, so that threads do not contend for one heap.
        let is_first = self.heap(index).is_none();
        if !wanted.once && (wanted.class > 0 || !is_first) {
            // This includes the own heap again, because the short walk may have missed a block.
            for turn in 0..SHARDS {
                let other = wanted.class * SHARDS + (index + turn) % SHARDS;
                if let Some(address) = self.take(gpus, other, wanted, WHOLE_WALK)? {
                    return Ok(address);
                }
            }
        }
        let address = self.grow(gpus, index, Some(wanted))?;
        if self.grows_ahead.load(Ordering::Relaxed) != 0 {
            self.request_segment(index);
        }
        Ok(address)
    }

    /// Adds a segment; returns a block of it if one is wanted.
    fn grow(&self, gpus: &Gpus, index: usize, wanted: Option<Wanted>) -> Result<usize> {
        let class = index / SHARDS;
        let held = {
            let mut held = self.heap(index);
            if held.is_none() {
                *held = Some(Heap::new(SHIFTS[class])?);
            }
            held.as_deref().map_or(0, |heap| heap.bytes)
        };
        let (mut least, mut bytes) = (PAGE as u64, growth(class, held));
        let once = wanted.is_some_and(|wanted| wanted.once);
        if let Some(wanted) = wanted {
            least = wanted.bytes().next_multiple_of(PAGE as u64);
            if once || least >= EXACT {
                bytes = least;
            } else {
                bytes = bytes.max(least.next_multiple_of(LEAST_GROWTH));
            }
        }
        // A segment that is freed with its block cannot be a piece of the reserve, which is never
        // freed.
        let mut settings = self.settings();
        if once {
            settings.reserve_segment_bytes = 0;
        }
        let bounds = (least as usize, bytes as usize);
        let memory @ (base, bytes, origin) =
            self.source.obtain(gpus, &self.counts, &settings, bounds)?;
        let added = self.add(index, memory, once, wanted);
        if added.is_err() && origin != Origin::Reserve {
            // No other thread has seen it.
            let given = self.source.give(gpus, &self.counts, (base, bytes, origin));
            if given.is_err() {
                let _ = self.source.give(gpus, &self.counts, (base, bytes, origin));
            }
        }
        added
    }

    /// Publishes a segment, and allocates a block of it if one is wanted.
    fn add(
        &self,
        index: usize,
        (base, bytes, origin): (usize, usize, Origin),
        once: bool,
        wanted: Option<Wanted>,
    ) -> Result<usize> {
        let mut held = self.heap(index);
        let Some(heap) = held.as_deref_mut() else { return Err(source::no_memory()) };
        if let Some(wanted) = wanted
            && !once
            && wanted.bytes() > bytes as u64
        {
            return Err(source::no_memory());
        }
        let segment = heap.add(base, bytes, origin, once)?;
        let place = Place { base, end: base + bytes, heap: index as u32, segment };
        let replaced = match self.directory.add(place) {
            Ok(replaced) => replaced,
            Err(error) => {
                heap.withdraw(segment);
                return Err(error);
            }
        };
        let mut address = 0;
        let mut outcome = Ok(());
        if let Some(wanted) = wanted {
            match heap.allocate_in(segment, wanted.units, wanted.requested) {
                Ok(block) => {
                    self.counts.count_alloc(wanted.bytes());
                    address = block;
                }
                Err(error) => {
                    self.directory.remove(base, index as u32, segment);
                    heap.withdraw(segment);
                    outcome = Err(error);
                }
            }
        }
        drop(held);
        replaced.retire();
        outcome.map(|()| address)
    }

    /// The allocated block that contains an address, or with `is_exact`, that starts there.
    #[inline]
    fn find(&self, address: usize, is_exact: bool) -> Option<Found<'_>> {
        let Place { heap: index, segment, base, .. } = self.directory.find(address)?;
        let held = self.heap(index as usize);
        let heap = held.as_deref()?;
        let id = if is_exact {
            heap.find(segment, base, address)
        } else {
            heap.find_around(segment, base, address)
        }?;
        Some(Found { index: index as usize, held, id })
    }

    /// Frees a block. It becomes free after the present work of the streams that use it.
    #[inline]
    pub fn free(&self, gpus: &Gpus, address: usize) -> Result<()> {
        history::before_free();
        sanitizer::unpinned(address as u64);
        let Some(mut found) = self.find(address, true) else { return Err(unknown_block(address)) };
        let (index, id) = (found.index, found.id);
        let Some(heap) = found.heap() else { return Err(unknown_block(address)) };
        heap.unmark(id);
        let Block { uses, waits, .. } = heap.blocks[id];
        if uses != 0 || waits == KEPT {
            events::free_requested(heap, id);
            heap.blocks[id].state = State::Pending;
            if waits != KEPT {
                heap.enqueue(id);
            }
        } else {
            events::freed(heap, id);
            self.counts.count_free(heap.release(id));
        }
        let unwanted = heap.unwanted;
        drop(found);
        if unwanted > 0 {
            self.give_unwanted(gpus, index);
        }
        Ok(())
    }

    /// Marks the streams that blocks refer to.
    pub(crate) fn mark_streams(&self, marker: Marker) {
        for index in 0..self.heaps.len() {
            if let Some(heap) = self.heap(index).as_deref_mut() {
                heap.uses.mark_streams(marker);
            }
        }
    }

    /// Records that the block around an address is used on a stream.
    pub fn record(&self, gpus: &Gpus, address: usize, stream: &Stream) -> Result<()> {
        let tell = |()| sanitizer_reports::used_on(address as u64, stream);
        self.add_use(gpus, address, stream).map(tell)
    }

    fn add_use(&self, gpus: &Gpus, address: usize, stream: &Stream) -> Result<()> {
        if self.find(address, false).is_none() {
            return Err(unknown_address(address));
        }
        let is_captured = stream.is_capturing(gpus)?;
        let capture = if is_captured { gpus.captures().number_of(gpus, stream)? } else { None };
        // The block may have been freed in the meantime.
        let Some(mut found) = self.find(address, false) else {
            return Err(unknown_address(address));
        };
        let id = found.id;
        let Some(heap) = found.heap() else { return Err(unknown_address(address)) };
        if is_captured {
            self.keep(gpus, capture, heap, id);
            return Ok(());
        }
        let head = heap.uses.add(heap.blocks[id].uses, stream)?;
        heap.blocks[id].uses = head;
        Ok(())
    }

    /// Records the use of an address by queued work, if it is pinned memory of this library. If the
    /// use cannot be recorded, the block is kept forever, because its last use is unknown.
    #[inline]
    pub fn used(&self, gpus: &Gpus, address: u64, stream: &Stream) {
        if self.directory.find(address as usize).is_some() {
            self.note_use(gpus, address as usize, stream);
        }
    }

    #[cold]
    fn note_use(&self, gpus: &Gpus, address: usize, stream: &Stream) {
        let noted =
            stream.on_this_thread(gpus).and_then(|stream| self.record(gpus, address, stream));
        if noted.is_ok() || matches!(noted, Err(Error::InvalidHostPointer { .. })) {
            return;
        }
        if let Some(mut found) = self.find(address, false) {
            let id = found.id;
            if let Some(heap) = found.heap() {
                self.keep(gpus, None, heap, id);
            }
        }
    }

    /// Is an address in memory that the library got from the driver, allocated or free?
    pub fn has(&self, address: usize) -> bool {
        self.directory.find(address).is_some()
    }

    /// Returns all statistics.
    pub fn statistics(&self) -> HostStatistics {
        let (mut allocated, mut freed) = ([0; 2], [0; 2]);
        for index in 0..self.heaps.len() {
            if let Some(heap) = self.heap(index).as_deref() {
                for lane in 0..2 {
                    allocated[lane] += heap.allocated[lane];
                    freed[lane] += heap.freed[lane];
                }
            }
        }
        self.counts.statistics(allocated, freed)
    }

    /// Resets every peak to its current value.
    pub fn reset_peak(&self) {
        self.counts.reset_peak();
    }

    /// Resets every total to 0.
    pub fn reset_accumulated(&self) {
        for index in 0..self.heaps.len() {
            if let Some(heap) = self.heap(index).as_deref_mut() {
                (heap.allocated, heap.freed) = ([0; 2], [0; 2]);
            }
        }
        self.counts.reset_accumulated();
    }
}

#[cfg(test)]
impl HostMemory {
    /// Returns the first violated invariant; no other thread allocates meanwhile.
    pub(in crate::memory) fn check(&self) -> std::result::Result<(), String> {
        let mut active = [0; 2];
        for index in 0..self.heaps.len() {
            let Some(heap) = &*self.heap(index) else { continue };
            heap.check().map_err(|why| format!("heap {index}: {why}"))?;
            let held = heap.held();
            active = [active[0] + held[0], active[1] + held[1]];
            for segment in heap.segments.iter().flatten() {
                let found = self.directory.find(segment.base + segment.bytes - 1);
                if found.is_none_or(|place| place.base != segment.base) {
                    return Err(format!("{found:?} for the segment at {:#x}", segment.base));
                }
            }
        }
        let counted = self.statistics();
        let counted = [counted.active_requests.current, counted.active_bytes.current];
        if counted == active { Ok(()) } else { Err(format!("{active:?}, {counted:?} counted")) }
    }
}

/// The growth of a heap of `bytes`: half of its size, so that at most a third of it was never
/// requested.
fn growth(class: usize, bytes: u64) -> u64 {
    (bytes / 2).next_multiple_of(LEAST_GROWTH).clamp(LEAST_GROWTH, MOST_GROWTH[class])
}

/// The error for an address at which no block starts.
pub fn unknown_block(address: usize) -> Error {
    Error::InvalidHostPointer {
        ptr: address,
        why: "is not pinned memory of tcuda_host_malloc, was freed already, or tcuda was shut down \
              since",
    }
}

/// The error for an address that is in no block.
pub fn unknown_address(address: usize) -> Error {
    Error::InvalidHostPointer {
        ptr: address,
        why: "is not inside pinned memory of tcuda_host_malloc, or that was freed already",
    }
}
