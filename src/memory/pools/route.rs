//! Routes: per thread and device, the private pool that allocations go to. A routed allocation
//! comes from the pool's heap for its stream. `stream_routes.rs` has those of streams.

use crate::base::error::{Error, Result};
use crate::base::retired::Reclaimable;
use crate::base::shared::Shared;
use crate::base::thread::{self, Block, try_box};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::heap::{Heap, Role};
use crate::memory::arena::pool::Pool;
use crate::memory::arena::{Arena, segmented};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::Size;
use crate::memory::device::DeviceMemory;
use crate::memory::device::segments::DetachedSegments;
use crate::memory::pools::active_captures::{Source, next_number};
use crate::memory::pools::cached_heaps::CachedHeaps;
use crate::memory::pools::stream_routes::{self, StreamRoute};
use crate::observe::flags::{self, Watcher};
use std::sync::atomic::Ordering;

/// A route: a thread's allocations on one device go to one pool.
struct Route {
    pool: Pool,
    /// The handle with which the host began it, which may be destroyed since; 0: none.
    handle: usize,
    device: i32,
    /// The generation of the library in which it began; later generations have other arenas.
    generation: u64,
    /// Its number in the order of routes and captures.
    number: u64,
    cached: CachedHeaps,
}

impl Route {
    fn new(pool: Pool, handle: usize, device: i32, generation: u64) -> Route {
        flags::begin(Watcher::Route);
        Route {
            pool,
            handle,
            device,
            generation,
            number: next_number(),
            cached: CachedHeaps::default(),
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        flags::end(Watcher::Route);
    }
}

/// Keeps the pool of an allocation that no route of the thread keeps.
#[derive(Default)]
pub(in crate::memory) struct Keeper {
    pool: Option<Pool>,
    route: Option<Shared<StreamRoute>>,
}

/// A thread's routes, the innermost last.
#[derive(Default)]
pub struct Routes(Vec<Route>);

impl Routes {
    /// Drops routes of an earlier generation, which come before all others.
    fn forget_older(&mut self, generation: u64) {
        if self.0.first().is_some_and(|route| route.generation != generation) {
            self.0.retain(|route| route.generation == generation);
        }
    }
}

/// Runs `body` on this thread's routes, which no other thread accesses.
fn with_own<R>(body: impl FnOnce(&mut Routes) -> R) -> Option<R> {
    let routes = thread::block().routes.load(Ordering::Relaxed).cast::<Routes>();
    // SAFETY: NULL or this thread's own, and `body` calls no code of the host.
    unsafe { routes.as_mut() }.map(body)
}

/// Routes this thread's allocations on a device to a pool. `handle` is the host's name of the pool;
/// 0: none.
pub fn begin(pool: Pool, handle: usize, device: i32, generation: u64) -> Result<()> {
    let block = thread::block();
    if block.routes.load(Ordering::Relaxed).is_null() {
        let fresh = try_box(Routes::default(), "a thread's pools")?;
        block.routes.store(Box::into_raw(fresh).cast(), Ordering::Relaxed);
    }
    let begun = with_own(|routes| {
        routes.forget_older(generation);
        routes.0.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a thread's pools"))?;
        routes.0.push(Route::new(pool, handle, device, generation));
        Ok(())
    });
    let begun = begun.unwrap_or(Ok(()));
    if begun.is_err() && with_own(|routes| routes.0.is_empty()).unwrap_or(false) {
        forget(block);
    }
    begun
}

/// Ends the last route that began on this device, which must be to this pool.
pub fn end(pool: PoolId, device: i32, generation: u64) -> Result<()> {
    match end_where(device, generation, |route| route.pool.id() == pool) {
        true => Ok(()),
        false => Err(NOT_BEGUN),
    }
}

/// Ends the last route on this device by its handle, whose pool may be destroyed; false: it began
/// with another handle.
pub fn end_by_handle(handle: usize, device: i32, generation: u64) -> bool {
    handle != 0 && end_where(device, generation, |route| route.handle == handle)
}

/// Ends the innermost route on a device if `is_it` accepts it.
fn end_where(device: i32, generation: u64, is_it: impl Fn(&Route) -> bool) -> bool {
    let ended = with_own(|routes| {
        routes.forget_older(generation);
        let last = routes.0.iter().rposition(|route| route.device == device)?;
        is_it(&routes.0[last]).then(|| (routes.0.remove(last), routes.0.is_empty()))
    });
    let Some(Some((route, is_last))) = ended else { return false };
    if is_last {
        forget(thread::block());
    }
    // It may hold the last reference to the pool, which closes a library.
    drop(route);
    true
}

const NOT_BEGUN: Error = Error::InvalidState(
    "this thread's last tcuda_mem_pool_begin on that device, if there was one, was with another \
     pool: end in the reverse order",
);

/// Drops all routes of a thread that ends.
pub(crate) fn forget(block: &Block) {
    let routes = block.routes.swap(std::ptr::null_mut(), Ordering::Relaxed).cast::<Routes>();
    if !routes.is_null() {
        // SAFETY: made by `begin` with Box::into_raw, and no longer reachable.
        drop(unsafe { Box::from_raw(routes) });
    }
}

/// May a route apply to an allocation of this thread?
#[inline]
pub fn is_routed() -> bool {
    thread::block().is_routed() || stream_routes::are_any()
}

/// The pool to which this thread's allocations on a device go, and the number of the route.
pub fn pool(device: i32, generation: u64) -> (PoolId, u64) {
    let found = with_own(|routes| {
        let is_it = |route: &&Route| route.device == device && route.generation == generation;
        routes.0.iter().rev().find(is_it).map(|route| (route.pool.id(), route.number))
    });
    found.flatten().unwrap_or((PoolId::DEFAULT, 0))
}

/// Adds a reference to that pool.
fn share(device: i32, generation: u64) -> Option<Pool> {
    let found = with_own(|routes| {
        let is_it = |route: &&Route| route.device == device && route.generation == generation;
        routes.0.iter().rev().find(is_it).map(|route| route.pool.share())
    });
    found.flatten()
}

/// The heap that this thread's innermost route on a device caches for a stream, in segments or not.
fn cached_heap(
    device: i32,
    generation: u64,
    stream: &Stream,
    segmented: bool,
) -> Option<*const Heap> {
    let found = with_own(|routes| {
        let is_it = |route: &&Route| route.device == device && route.generation == generation;
        routes.0.iter().rev().find(is_it)?.cached.find(stream, segmented)
    });
    found.flatten()
}

/// Caches a heap of its pool in the innermost route on a device.
fn remember(device: i32, generation: u64, stream: &Stream, heap: &Heap) {
    with_own(|routes| {
        let is_it = |route: &&mut Route| route.device == device && route.generation == generation;
        if let Some(route) = routes.0.iter_mut().rev().find(is_it) {
            route.cached.add(stream, heap);
        }
    });
}

/// Records if a pool is used on a stream that the host captures through the driver. The graph is
/// not known here, so that the pool must keep its memory.
pub(in crate::memory) fn note_host_capture(
    gpus: &Gpus,
    stream: &Stream,
    pool: PoolId,
) -> Result<()> {
    if pool.may_shrink() && !stream.is_default() && stream.is_capturing(gpus)? {
        pool.note_capture();
    }
    Ok(())
}

impl DeviceMemory {
    /// The heap that serves a stream, in segments or not. Creates it if there is none.
    #[inline(always)]
    pub(in crate::memory) fn heap<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        segmented: bool,
    ) -> Result<&'a Heap> {
        if stream.is_per_thread() {
            let own = device.streams.external(device, stream.native())?;
            return self.heap_slowly(gpus, device, own, segmented);
        }
        // SAFETY: NULL or a heap of this device, which lives as long as this thread is inside.
        match unsafe { stream.heap(segmented).as_ref() } {
            Some(heap) => Ok(heap),
            None => self.heap_slowly(gpus, device, stream, segmented),
        }
    }

    #[cold]
    fn heap_slowly<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        segmented: bool,
    ) -> Result<&'a Heap> {
        // SAFETY: NULL or a heap of this device, which lives as long as this thread is inside.
        if let Some(heap) = unsafe { stream.heap(segmented).as_ref() } {
            return Ok(heap);
        }
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        self.prepare(segmented)?;
        self.scan_for_ended(gpus, device);
        self.stats.with_members(|heaps| {
            // SAFETY: as above.
            if let Some(heap) = unsafe { stream.heap(segmented).as_ref() } {
                return Ok(heap);
            }
            let address = match self.take_spare(segmented) {
                Some(spare) => spare,
                None => self.add_heap(heaps, segmented)?,
            };
            // SAFETY: a member, as above.
            let heap = unsafe { &*address };
            self.move_to(heap, stream, PoolId::DEFAULT);
            let place = &stream.heaps[usize::from(segmented)];
            place.store(address.cast_mut().cast(), Ordering::Release);
            Ok(heap)
        })
    }

    /// Reads the device's properties before the first mapped heap; segments do not need them.
    fn prepare(&self, segmented: bool) -> Result<()> {
        if segmented { Ok(()) } else { self.virtual_memory.prepare() }
    }

    /// Makes a heap that serves no stream yet. The caller holds the ledger.
    #[allow(clippy::vec_box, reason = "heaps must not move when the list grows")]
    fn add_heap(
        &self,
        heaps: &mut Vec<Box<Reclaimable<Heap>>>,
        segmented: bool,
    ) -> Result<*const Heap> {
        heaps.try_reserve(1).map_err(|_| Error::OutOfHostMemory("an arena"))?;
        let heap = if segmented {
            let units = || segmented::units_for(self.addresses.slot_bytes());
            let segments = || try_box(segmented::Segments::new(), "an arena's segments").map(Some);
            let segments = [segments()?, segments()?];
            Heap::new(self.ordinal, &self.policy, [units(), units()], self.total, segments)?
        } else {
            self.add_mapped()?
        };
        let address: *const Heap = &**heap;
        heaps.push(heap);
        Ok(address)
    }

    /// Makes a heap of mapped memory, with a slot for each arena.
    fn add_mapped(&self) -> Result<Box<Reclaimable<Heap>>> {
        let slots = self.addresses.take_slots()?;
        let ranges = slots.map(|slot| (slot.base, slot.bytes));
        let made = Heap::new(self.ordinal, &self.policy, ranges, self.total, [None, None]);
        let mut heap =
            made.inspect_err(|_| slots.iter().for_each(|slot| self.addresses.give_slot(slot)))?;
        for (arena, slot) in heap.arenas_mut().iter_mut().zip(slots) {
            arena.state_mut().slots.push(slot)?;
            self.addresses.publish(&slot, arena);
        }
        Ok(heap)
    }

    /// The arena that serves a stream while pools are in use: that of the capture or of the
    /// thread's route, whichever began later. `keeper` keeps the pool, so that the arena stays that
    /// of the stream: it lives until the block is taken.
    #[cold]
    pub(in crate::memory) fn routed_arena<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        size: Size,
        keeper: &mut Keeper,
    ) -> Result<&'a Arena> {
        let heap = self.routed_heap(gpus, device, stream, keeper)?;
        Ok(heap.arena(size.arena_class(heap.segmented)))
    }

    fn routed_heap<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        keeper: &mut Keeper,
    ) -> Result<&'a Heap> {
        let generation = device.streams.generation();
        let (mut pool, mut number) = pool(self.ordinal, generation);
        let by_stream = stream_routes::find(self.ordinal, generation, stream);
        keeper.route = by_stream.filter(|route| route.number > number);
        let by_stream = keeper.route.as_ref();
        if let Some(route) = by_stream {
            (pool, number) = (route.pool.id(), route.number);
        }
        let is_segmented = |pool: PoolId| self.policy.is_segmented() || pool.wants_segments();
        if let Some(source) = gpus.captures().source(gpus, stream, is_segmented)? {
            if source.number > number {
                let heap = self.captured_heap(gpus, device, &source, is_segmented)?;
                keeper.pool = Some(source.pool);
                return Ok(heap);
            }
            // The graph uses the block of this allocation, and so keeps the pool alive.
            let shared = by_stream.map(|route| route.pool.share());
            if let Some(pool) = shared.or_else(|| share(self.ordinal, generation)) {
                gpus.captures().retain(source.number, pool.for_graph())?;
            }
        }
        let segmented = is_segmented(pool);
        if pool == PoolId::DEFAULT {
            return self.heap(gpus, device, stream, segmented);
        }
        let own = match stream.is_per_thread() {
            true => device.streams.external(device, stream.native())?,
            false => stream,
        };
        pool.require_awake()?;
        note_host_capture(gpus, own, pool)?;
        let cached = match by_stream {
            Some(route) => route.cached_heap(own, segmented),
            None => cached_heap(self.ordinal, generation, own, segmented),
        };
        // SAFETY: a heap of the device, which lives as long as this thread is inside.
        let cached = cached.map(|heap| unsafe { &*heap });
        let heap = match cached {
            Some(heap) => heap,
            None => {
                let heap = self.heap_of_pool(gpus, device, own, segmented, pool)?;
                match by_stream {
                    Some(route) => route.remember(own, heap),
                    None => remember(self.ordinal, generation, own, heap),
                }
                heap
            }
        };
        if pool.has_host_graph() {
            heap.note_host_graph();
        }
        Ok(heap)
    }

    /// The heap that serves a stream within a capture.
    fn captured_heap<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        source: &Source,
        is_segmented: impl Fn(PoolId) -> bool,
    ) -> Result<&'a Heap> {
        let id = source.pool.id();
        id.require_awake()?;
        if let Some(heap) = source.heap {
            // SAFETY: a heap of the capture's pool, which the capture holds.
            return Ok(unsafe { &*heap });
        }
        // SAFETY: the capture holds its streams.
        let stream = unsafe { &*source.stream };
        let heap = self.heap_of_pool(gpus, device, stream, is_segmented(id), id)?;
        gpus.captures().remember(source.number, stream, heap);
        Ok(heap)
    }

    /// The heap of a pool that serves a stream: an existing one, one of a dead pool, or a new one.
    fn heap_of_pool<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        segmented: bool,
        pool: PoolId,
    ) -> Result<&'a Heap> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        self.prepare(segmented)?;
        self.scan_for_ended(gpus, device);
        self.stats.with_members(|heaps| {
            self.by_pool.lock().register(pool)?;
            let of_kind =
                || heaps.iter().map(|heap| &***heap).filter(|heap| heap.segmented == segmented);
            let is_idle = |heap: &Heap| heap.role() == Role::Idle && heap.is_unused();
            let serves = |heap: &&Heap| {
                let is_its = heap.pool() == pool;
                is_its && (heap.role() == Role::Serving && heap.is_of(stream) || is_idle(heap))
            };
            let found = of_kind().find(serves).or_else(|| {
                // A heap that has memory of this stream is better than one that has none.
                let vacant = of_kind().filter(|heap| heap.can_serve(stream));
                vacant.max_by_key(|heap| heap.is_of(stream))
            });
            let found = found.map(std::ptr::from_ref);
            let address = match found.or_else(|| self.take_spare(segmented)) {
                Some(address) => address,
                None => self.add_heap(heaps, segmented)?,
            };
            // SAFETY: a member, which lives as long as this thread is inside.
            let heap = unsafe { &*address };
            self.move_to(heap, stream, pool);
            Ok(heap)
        })
    }

    /// Gives back the unused memory of a dead pool's arenas, after waiting for the work that may
    /// use it.
    pub fn release_pool(&self, gpus: &Gpus, pool: PoolId) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let mut detached = DetachedSegments::new();
        let released =
            self.each_arena(|state| match state.arena().pool() == pool && !pool.is_alive() {
                true => self.release_unused(gpus, state, &mut detached),
                false => Ok(()),
            });
        let given = self.give_back(gpus.device(self.ordinal)?, detached);
        self.drop_ended();
        released.and(given)
    }
}
