//! Routes: per thread and device, the private pool that allocations go to. A routed allocation
//! comes from the pool's arena for its stream and class.

use crate::base::error::{Error, Result};
use crate::base::retired::Reclaimable;
use crate::base::thread::{self, Block, try_box};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::pool::Pool;
use crate::memory::arena::{Arena, Role, place, segmented};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{Class, Size};
use crate::memory::device::DeviceMemory;
use crate::memory::device::segments::DetachedSegments;
use crate::memory::pools::active_captures::{Source, next_number};
use crate::observe::flags::{self, Watcher};
use std::sync::atomic::Ordering;

/// The number of arenas that a route caches.
const CACHED: usize = 4;

/// A cached arena, and the stream that it serves.
#[derive(Clone, Copy)]
struct CachedArena {
    /// The value of `Stream::served` when it was cached.
    stream: u64,
    arena: *const Arena,
}

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
    served: [Option<CachedArena>; CACHED],
    /// The index of the entry that is replaced next.
    next: usize,
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
            served: [None; CACHED],
            next: 0,
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        flags::end(Watcher::Route);
    }
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

/// Does this thread have a route on any device?
#[inline]
pub fn is_routed() -> bool {
    thread::block().is_routed()
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

/// The arena that this thread's innermost route on a device caches for a stream. `kind` is its
/// class, and whether it has segments.
pub fn cached_arena<'a>(
    device: i32,
    generation: u64,
    stream: &Stream,
    kind: (Class, bool),
) -> Option<&'a Arena> {
    let found = with_own(|routes| {
        let is_it = |route: &&Route| route.device == device && route.generation == generation;
        let route = routes.0.iter().rev().find(is_it)?;
        route.served.iter().flatten().find_map(|served| {
            if served.stream != stream.served.load(Ordering::Acquire) {
                return None;
            }
            // SAFETY: an arena of a live pool that still serves its stream stays.
            let arena = unsafe { &*served.arena };
            (arena.kind() == kind).then_some(arena)
        })
    });
    found.flatten()
}

/// Caches an arena of its pool in the innermost route on a device.
pub fn remember(device: i32, generation: u64, stream: &Stream, arena: &Arena) {
    with_own(|routes| {
        let is_it = |route: &&mut Route| route.device == device && route.generation == generation;
        if let Some(route) = routes.0.iter_mut().rev().find(is_it) {
            let stream = stream.served.load(Ordering::Acquire);
            route.served[route.next] = Some(CachedArena { stream, arena });
            route.next = (route.next + 1) % CACHED;
        }
    });
}

impl DeviceMemory {
    /// The arena that serves a stream. Creates it if there is none.
    #[inline(always)]
    pub(in crate::memory) fn arena<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        kind: (Class, bool),
    ) -> Result<&'a Arena> {
        if stream.is_per_thread() {
            let own = device.streams.external(device, stream.native())?;
            return self.arena_slowly(gpus, device, own, kind);
        }
        let arena = stream.arena(place(kind));
        // SAFETY: NULL or an arena of this device, which lives as long as this thread is inside.
        match unsafe { arena.as_ref() } {
            Some(arena) => Ok(arena),
            None => self.arena_slowly(gpus, device, stream, kind),
        }
    }

    #[cold]
    pub(in crate::memory) fn arena_slowly<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        kind: (Class, bool),
    ) -> Result<&'a Arena> {
        let place = place(kind);
        // SAFETY: NULL or an arena of this device, which lives as long as this thread is inside.
        if let Some(arena) = unsafe { stream.arena(place).as_ref() } {
            return Ok(arena);
        }
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        self.prepare(kind.1)?;
        self.scan_for_ended(gpus, device);
        self.stats.with_members(|arenas| {
            // SAFETY: as above.
            if let Some(arena) = unsafe { stream.arena(place).as_ref() } {
                return Ok(arena);
            }
            let address = match self.take_spare(kind) {
                Some(spare) => spare,
                None => self.add_arena(arenas, kind)?,
            };
            // SAFETY: a member, as above.
            let arena = unsafe { &*address };
            self.move_to(arena, stream, PoolId::DEFAULT);
            stream.arenas[place].store(address.cast_mut().cast(), Ordering::Release);
            Ok(arena)
        })
    }

    /// Reads the device's properties before the first mapped arena; segments do not need them.
    fn prepare(&self, segmented: bool) -> Result<()> {
        if segmented { Ok(()) } else { self.virtual_memory.prepare() }
    }

    /// Makes an arena that serves no stream yet. The caller holds the ledger.
    #[allow(clippy::vec_box, reason = "arenas must not move when the list grows")]
    fn add_arena(
        &self,
        arenas: &mut Vec<Box<Reclaimable<Arena>>>,
        (class, segmented): (Class, bool),
    ) -> Result<*const Arena> {
        arenas.try_reserve(1).map_err(|_| Error::OutOfHostMemory("an arena"))?;
        let (slot, range, segments) = if segmented {
            let segments = try_box(segmented::Segments::new(), "an arena's segments")?;
            (None, segmented::units_for(self.addresses.slot_bytes()), Some(segments))
        } else {
            let slot = self.addresses.take_slot()?;
            let range = (slot.base, slot.bytes);
            (Some(slot), range, None)
        };
        let arena = Arena::new(self.ordinal, &self.policy, range, self.total, class, segments);
        let mut arena = match (arena, slot) {
            (Ok(arena), _) => arena,
            (Err(error), slot) => {
                slot.iter().for_each(|slot| self.addresses.give_slot(slot));
                return Err(error);
            }
        };
        let address: *const Arena = &**arena;
        if let Some(slot) = slot {
            arena.state_mut().slots.push(slot)?;
            self.addresses.publish(&slot, address);
        }
        arenas.push(arena);
        Ok(address)
    }

    /// The arena that serves a stream while pools are in use: that of the capture or of the
    /// thread's route, whichever began later.
    #[cold]
    pub(in crate::memory) fn routed_arena<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        size: Size,
    ) -> Result<&'a Arena> {
        let generation = device.streams.generation();
        let (pool, number) = pool(self.ordinal, generation);
        let kind_of = |segmented: bool| (size.arena_class(segmented), segmented);
        let kind = kind_of(self.policy.is_segmented());
        if let Some(source) = gpus.captures().source(gpus, stream, kind)? {
            if source.number > number {
                let kind = kind_of(kind.1 || source.pool.id().wants_segments());
                return self.captured_arena(gpus, device, source, kind);
            }
            // The graph uses the block of this allocation, and so keeps the pool alive.
            if let Some(pool) = share(self.ordinal, generation) {
                gpus.captures().retain(source.number, pool.for_graph())?;
            }
        }
        let kind = kind_of(self.policy.is_segmented() || pool.wants_segments());
        if pool == PoolId::DEFAULT {
            return self.arena(gpus, device, stream, kind);
        }
        let own = match stream.is_per_thread() {
            true => device.streams.external(device, stream.native())?,
            false => stream,
        };
        pool.require_awake()?;
        // A graph that the host captures through the driver is not known here, so that the pool
        // must keep its memory.
        if pool.may_shrink() && !own.is_default() && own.is_capturing(gpus)? {
            pool.note_capture();
        }
        if let Some(arena) = cached_arena(self.ordinal, generation, own, kind) {
            return Ok(arena);
        }
        let arena = self.arena_of_pool(gpus, device, own, kind, pool)?;
        remember(self.ordinal, generation, own, arena);
        Ok(arena)
    }

    /// The arena that serves a stream within a capture.
    fn captured_arena<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        source: Source,
        kind: (Class, bool),
    ) -> Result<&'a Arena> {
        let id = source.pool.id();
        id.require_awake()?;
        if let Some(arena) = source.arena {
            // SAFETY: an arena of the capture's pool, which the capture holds.
            return Ok(unsafe { &*arena });
        }
        // SAFETY: the capture holds its streams.
        let stream = unsafe { &*source.stream };
        let arena = self.arena_of_pool(gpus, device, stream, kind, id)?;
        gpus.captures().remember(source.number, stream, arena);
        Ok(arena)
    }

    /// The arena of a pool that serves a stream: an existing one, one of a dead pool, or a new one.
    fn arena_of_pool<'a>(
        &'a self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        kind: (Class, bool),
        pool: PoolId,
    ) -> Result<&'a Arena> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        self.prepare(kind.1)?;
        self.scan_for_ended(gpus, device);
        self.stats.with_members(|arenas| {
            self.by_pool.lock().register(pool)?;
            let of_kind =
                || arenas.iter().map(|arena| &***arena).filter(|arena| arena.kind() == kind);
            let is_idle = |arena: &Arena| arena.role() == Role::Idle && arena.is_unused();
            let serves = |arena: &&Arena| {
                let is_its = arena.pool() == pool;
                is_its && (arena.role() == Role::Serving && arena.is_of(stream) || is_idle(arena))
            };
            let found = of_kind().find(serves).or_else(|| {
                // An arena that has memory of this stream is better than one that has none.
                let vacant = of_kind().filter(|arena| arena.can_serve(stream));
                vacant.max_by_key(|arena| arena.is_of(stream))
            });
            let found = found.map(std::ptr::from_ref);
            let address = match found.or_else(|| self.take_spare(kind)) {
                Some(address) => address,
                None => self.add_arena(arenas, kind)?,
            };
            // SAFETY: a member, which lives as long as this thread is inside.
            let arena = unsafe { &*address };
            self.move_to(arena, stream, pool);
            Ok(arena)
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
