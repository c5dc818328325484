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
pub mod registered;
mod settle;
mod source;
pub mod stats;
pub(crate) mod threads;

use crate::base::error::{Error, Result};
use crate::base::lock::{Held, Mutex};
use crate::base::published::Published;
use crate::base::rank::Rank;
use crate::base::sync::{AtomicU32, AtomicUsize};
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
use crate::memory::config::size::Request;
use crate::memory::trace::history;
use crate::memory::trace::ring::Action;
use crate::sanitizer;
use directory::{Directory, Place};
use heap::{Heap, KEPT};
use source::{Memory, PAGE, Source};
use stats::{Active, HostStatistics};

/// Heaps of a size class; new threads are assigned to them in turn.
const SHARDS: usize = 8;
/// The number of size classes: requests up to [`SMALL`], and larger ones.
const CLASSES: usize = 2;
const HEAPS: usize = CLASSES * SHARDS;
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

/// The pinned memory of the process.
pub struct HostMemory {
    driver: &'static Driver,
    generation: u64,
    /// The heaps of each class in turn.
    heaps: [Mutex<Heap>; HEAPS],
    directory: Directory,
    source: Source,
    active: Active,
    /// Addresses of the ranges that the host registered.
    registered: Mutex<Vec<usize>>,
    /// None: the default.
    settings: Published<HostSettings>,
    /// The index of the next new thread's heaps.
    next_shard: AtomicU32,
    /// The thread that obtains segments ahead; 0: it does not run.
    helper: AtomicUsize,
    /// A bit for each heap that wants a segment from it.
    wanted: AtomicU32,
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
        let heap = |index| Mutex::new(Rank::HOST, Heap::new(index, SHIFTS[index / SHARDS]));
        HostMemory {
            driver,
            generation,
            heaps: std::array::from_fn(heap),
            directory: Directory::new(),
            source: Source::new(driver),
            active: Active::default(),
            registered: Mutex::new(Rank::LEAF, Vec::new()),
            settings: Published::new(),
            next_shard: AtomicU32::new(0),
            helper: AtomicUsize::new(0),
            wanted: AtomicU32::new(0),
        }
    }

    /// Sets the settings for later allocations.
    pub fn set_settings(&self, settings: &HostSettings) -> Result<()> {
        self.settings.set(Some(thread::reclaimable(*settings, "settings")?));
        Ok(())
    }

    #[inline]
    fn settings(&self) -> &HostSettings {
        self.settings.get().unwrap_or(&HostSettings::DEFAULT)
    }

    fn heap(&self, index: usize) -> Held<'_, Heap> {
        self.heaps[index].lock()
    }

    /// All heaps, each locked in its turn.
    fn each_heap(&self) -> impl Iterator<Item = Held<'_, Heap>> {
        self.heaps.iter().map(Mutex::lock)
    }

    /// The size class of a request, and the request in units. It is oversize if its segment is
    /// freed to the driver as soon as the block is free.
    fn request(&self, bytes: u64) -> Result<(usize, Request)> {
        if bytes >= TOO_LARGE {
            return Err(source::no_memory());
        }
        let settings = self.settings();
        let oversize = bytes > settings.max_cached_bytes;
        let mut size = bytes;
        if oversize {
            // The block fills its segment.
            size = size.next_multiple_of(PAGE as u64);
        } else if size <= settings.max_round_threshold {
            size = size.next_power_of_two();
        }
        let class = usize::from(size > SMALL);
        let units = size.div_ceil(1 << SHIFTS[class]) as u32;
        Ok((class, Request { units, bytes, oversize }))
    }

    /// Allocates page-locked memory; 0 bytes need no block.
    #[inline]
    pub fn allocate(&self, gpus: &Gpus, bytes: usize) -> Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        let _frames = history::before_host_allocation();
        let (class, request) = self.request(bytes as u64)?;
        let shard = thread::share(self.generation, &self.next_shard) as usize % SHARDS;
        let index = class * SHARDS + shard;
        let address = match self.take(gpus, index, request, SHORT_WALK)? {
            Some(address) => address,
            None => self.allocate_slowly(gpus, index, request)?,
        };
        if self.settings().background_threads {
            self.request_if_low(index);
        }
        sanitizer::pinned(address as u64, bytes as u64);
        Ok(address)
    }

    /// Takes a block from a heap, if it has one.
    #[inline]
    fn take(
        &self,
        gpus: &Gpus,
        index: usize,
        request: Request,
        walk: usize,
    ) -> Result<Option<usize>> {
        if request.oversize {
            return Ok(None);
        }
        let mut heap = self.heap(index);
        // An error of a stream does not fail this allocation.
        let _ = self.settle(gpus, &mut heap);
        let taken = heap.allocate(request, walk)?;
        if taken.is_some() {
            self.active.count(1, heap.bytes_of_units(request.units));
        }
        self.give_unwanted(gpus, heap);
        Ok(taken)
    }

    /// Allocates if the thread's own heap has no free block: from the other heaps, then from the
    /// driver.
    #[cold]
    fn allocate_slowly(&self, gpus: &Gpus, index: usize, request: Request) -> Result<usize> {
        let class = index / SHARDS;
        // A thread gets its own first small segment, so that threads do not contend for one heap.
        if class > 0 || !self.heap(index).segments.is_empty() {
            // This includes the own heap again, because the short walk may have missed a block.
            for turn in 0..SHARDS {
                let other = class * SHARDS + (index + turn) % SHARDS;
                if let Some(address) = self.take(gpus, other, request, WHOLE_WALK)? {
                    return Ok(address);
                }
            }
        }
        self.grow(gpus, index, Some(request))
    }

    /// Adds a segment; returns a block of it if one is wanted.
    fn grow(&self, gpus: &Gpus, index: usize, wanted: Option<Request>) -> Result<usize> {
        let (mut least, mut bytes) = (PAGE as u64, growth(index, self.heap(index).bytes));
        let mut settings = *self.settings();
        if let Some(Request { units, oversize, .. }) = wanted {
            least = (u64::from(units) << SHIFTS[index / SHARDS]).next_multiple_of(least);
            if oversize || least >= EXACT {
                bytes = least;
            } else {
                bytes = bytes.max(least.next_multiple_of(LEAST_GROWTH));
            }
            if oversize {
                // A piece of the reserve is never freed.
                settings.reserve_segment_bytes = 0;
            }
        }
        let memory = self.source.obtain(gpus, &settings, (least as usize, bytes as usize))?;
        let added = self.add(index, memory, wanted);
        if added.is_err() && self.source.give(gpus, memory).is_err() {
            // No other thread has seen it.
            let _ = self.source.give(gpus, memory);
        }
        added
    }

    /// Publishes a segment, and allocates a block of it if one is wanted.
    fn add(&self, index: usize, memory: Memory, wanted: Option<Request>) -> Result<usize> {
        let mut heap = self.heap(index);
        let (segment, starts) = heap.prepare(memory.bytes)?;
        let place = Place { memory, heap: index as u32, segment: segment as u32 };
        let replaced = self.directory.add(place)?;
        let block = heap.add(memory, segment, starts);
        let address = wanted.map_or(0, |request| {
            self.active.count(1, heap.bytes_of_units(request.units));
            heap.occupy(block, request)
        });
        drop(heap);
        replaced.into_iter().for_each(thread::retire);
        Ok(address)
    }

    /// The block that contains an address, and its heap, if `is_it` accepts the block, in use or
    /// not, and the offset in it.
    #[inline]
    fn find(
        &self,
        address: usize,
        is_it: impl Fn(&Block, u64) -> bool,
    ) -> Option<(Held<'_, Heap>, u32)> {
        let place = self.directory.find(address)?;
        let heap = self.heap(place.heap as usize);
        let (id, offset) = heap.find(place, address)?;
        is_it(&heap.blocks[id], offset).then_some((heap, id))
    }

    /// Frees a block. It becomes free after the present work of the streams that use it.
    #[inline]
    pub fn free(&self, gpus: &Gpus, address: usize) -> Result<()> {
        let _frames = history::before_free();
        sanitizer::unpinned(address as u64);
        let starts = |block: &Block, offset| block.state == State::Allocated && offset == 0;
        let found = self.find(address, starts);
        let Some((mut heap, id)) = found else { return Err(unknown_block(address)) };
        let Block { uses, waits, .. } = heap.blocks[id];
        if uses == 0 && waits != KEPT {
            events::of_block(&mut heap, id, &[Action::FreeRequested, Action::FreeCompleted]);
            self.active.count(-1, -heap.release(id));
        } else {
            events::of_block(&mut heap, id, &[Action::FreeRequested]);
            heap.blocks[id].state = State::Pending;
            if waits != KEPT {
                self.defer(&mut heap, id);
            }
        }
        self.give_unwanted(gpus, heap);
        Ok(())
    }

    /// Unlocks a heap, and frees the segments that must not be cached.
    #[inline]
    fn give_unwanted(&self, gpus: &Gpus, heap: Held<'_, Heap>) {
        let Heap { index, unwanted, .. } = *heap;
        drop(heap);
        if unwanted > 0 {
            let _ = self.give_back(gpus, index, true);
        }
    }

    /// Marks the streams that blocks refer to.
    pub(crate) fn mark_streams(&self, marker: Marker) {
        for mut heap in self.each_heap() {
            heap.uses.mark_streams(marker);
        }
    }

    /// Records that the block around an address is used on a stream.
    pub fn record(&self, gpus: &Gpus, address: usize, stream: &Stream) -> Result<()> {
        let is_captured = stream.is_capturing(gpus)?;
        let capture = if is_captured { gpus.captures().number_of(gpus, stream)? } else { None };
        let found = self.find(address, is_requested);
        let Some((mut heap, id)) = found else { return Err(unknown_address(address)) };
        if is_captured {
            self.keep(gpus, capture, &mut heap, id);
        } else {
            let head = heap.blocks[id].uses;
            heap.blocks[id].uses = heap.uses.add(head, stream)?;
        }
        drop(heap);
        sanitizer_reports::used_on(address as u64, stream);
        Ok(())
    }

    /// Records the use of an address by queued work, if it is pinned memory of this library. If the
    /// use cannot be recorded, the block is kept forever, because its last use is unknown.
    #[inline]
    pub fn used(&self, gpus: &Gpus, address: u64, stream: &Stream) {
        if self.has(address as usize) {
            self.note_use(gpus, address as usize, stream);
        }
    }

    #[cold]
    fn note_use(&self, gpus: &Gpus, address: usize, stream: &Stream) {
        let noted =
            stream.on_this_thread(gpus).and_then(|stream| self.record(gpus, address, stream));
        if noted.is_err()
            && let Some((mut heap, id)) = self.find(address, is_requested)
        {
            self.keep(gpus, None, &mut heap, id);
        }
    }

    /// Is an address in memory that the library got from the driver, allocated or free?
    pub fn has(&self, address: usize) -> bool {
        self.directory.find(address).is_some()
    }

    /// Returns all statistics.
    pub fn statistics(&self) -> HostStatistics {
        let (mut allocated, mut freed) = ([0; 2], [0; 2]);
        for heap in self.each_heap() {
            for lane in 0..2 {
                allocated[lane] += heap.allocated[lane];
                freed[lane] += heap.freed[lane];
            }
        }
        let [active_requests, active_bytes] = self.active.stats(allocated, freed);
        HostStatistics { active_requests, active_bytes, ..*self.source.statistics.lock() }
    }

    /// Resets every peak to its current value.
    pub fn reset_peak(&self) {
        self.active.reset_peak();
        self.source.statistics.lock().reset_peak();
    }

    /// Resets every total to 0.
    pub fn reset_accumulated(&self) {
        for mut heap in self.each_heap() {
            (heap.allocated, heap.freed) = ([0; 2], [0; 2]);
        }
        self.source.statistics.lock().reset_accumulated();
    }
}

#[cfg(test)]
impl HostMemory {
    /// Returns the first violated invariant; no other thread allocates meanwhile.
    pub(in crate::memory) fn check(&self) -> std::result::Result<(), String> {
        let mut active = [0; 2];
        for index in 0..self.heaps.len() {
            let heap = self.heap(index);
            heap.check().map_err(|why| format!("heap {index}: {why}"))?;
            let held = heap.held();
            active = [active[0] + held[0], active[1] + held[1]];
            for segment in heap.segments.iter().flatten() {
                let found = self.directory.find(segment.memory.base + segment.memory.bytes - 1);
                if found.is_none_or(|place| place.memory != segment.memory) {
                    return Err(format!("{found:?} for the segment at {:#x}", segment.memory.base));
                }
            }
        }
        let counted = self.statistics();
        let counted = [counted.active_requests.current, counted.active_bytes.current];
        if counted == active { Ok(()) } else { Err(format!("{active:?}, {counted:?} counted")) }
    }
}

/// Has the host requested the byte at this offset of a block?
fn is_requested(block: &Block, offset: u64) -> bool {
    block.state == State::Allocated && offset < block.requested
}

/// The growth of a heap of `bytes`: half of its size, so that at most a third of it was never
/// requested.
fn growth(index: usize, bytes: u64) -> u64 {
    let most = MOST_GROWTH[index / SHARDS];
    (bytes / 2).next_multiple_of(LEAST_GROWTH).clamp(LEAST_GROWTH, most)
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
