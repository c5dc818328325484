//! Where the allocations of a thread go: to the arena of their stream and class, in the private pools
//! that the thread has begun to use, for each device.

use super::pool::{Pool, PoolId};
use crate::base::error::{Error, Result};
use crate::base::retired::Reclaimable;
use crate::base::thread::{self, Block, try_box};
use crate::gpu::device::Device;
use crate::gpu::stream::Stream;
use crate::graph::active_captures::{Source, next_number};
use crate::memory::arena::bins::WHOLE_WALK;
use crate::memory::arena::block::UNIT;
use crate::memory::arena::{Arena, Request, Role, place};
use crate::memory::backing::segmented::{self, DetachedSegments};
use crate::memory::config::policy::Size;
use crate::memory::stats::ledger::Class;
use crate::memory::{DeviceMemory, Relaxed};
use crate::observe::flags::{self, Watcher};
use crate::runtime::Runtime;
use std::sync::atomic::Ordering;

/// Arenas that a route remembers.
const REMEMBERED: usize = 4;

/// What a route remembers: the stream, and the arena that serves it there.
#[derive(Clone, Copy)]
struct Served {
    /// By which it is remembered.
    stream: u64,
    arena: *const Arena,
}

/// A thread's allocations on one device go to one pool.
struct Route {
    pool: Pool,
    /// The handle by which the host began it, which may be destroyed since; 0: none.
    handle: usize,
    device: i32,
    /// The runtime in which it began: with that its arenas went.
    generation: u64,
    /// Its place among routes and captures.
    number: u64,
    served: [Option<Served>; REMEMBERED],
    /// The next to be forgotten.
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
            served: [None; REMEMBERED],
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
    /// Drops what began in an earlier runtime: that lies before all others.
    fn forget_older(&mut self, generation: u64) {
        if self.0.first().is_some_and(|route| route.generation != generation) {
            self.0.retain(|route| route.generation == generation);
        }
    }
}

/// Runs `body` on this thread's routes, which nobody else sees.
fn with_own<R>(body: impl FnOnce(&mut Routes) -> R) -> Option<R> {
    let routes = thread::block().routes.load(Ordering::Relaxed).cast::<Routes>();
    // SAFETY: NULL or this thread's own, and `body` calls nothing of the host's.
    unsafe { routes.as_mut() }.map(body)
}

/// Begins to send this thread's allocations on a device to a pool, which the host names by a handle; 0:
/// it has none.
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

/// Ends what the last `begin` on this device began, which must have been with this pool.
pub fn end(pool: PoolId, device: i32, generation: u64) -> Result<()> {
    match end_where(device, generation, |route| route.pool.id() == pool) {
        true => Ok(()),
        false => Err(NOT_BEGUN),
    }
}

/// The same by the handle with which it was begun, where that is destroyed; false: it was another one.
pub fn end_by_handle(handle: usize, device: i32, generation: u64) -> bool {
    handle != 0 && end_where(device, generation, |route| route.handle == handle)
}

/// Ends the innermost route on a device if it is this one.
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
    // It may be the last reference to the pool, and close a library.
    drop(route);
    true
}

const NOT_BEGUN: Error = Error::InvalidState(
    "this thread's last tcuda_mem_pool_begin on that device, if there was one, was with another \
     pool: end in the reverse order",
);

/// Lets go of all pools, when the thread ends.
pub(crate) fn forget(block: &Block) {
    let routes = block.routes.swap(std::ptr::null_mut(), Ordering::Relaxed).cast::<Routes>();
    if !routes.is_null() {
        // SAFETY: made by `begin` with Box::into_raw, and no longer reachable.
        drop(unsafe { Box::from_raw(routes) });
    }
}

/// Does this thread use a pool anywhere?
#[inline]
pub fn is_routed() -> bool {
    !thread::block().routes.load(Ordering::Relaxed).is_null()
}

/// The pool to which this thread's allocations on a device go, and its number among routes.
pub fn pool(device: i32, generation: u64) -> (PoolId, u64) {
    let found = with_own(|routes| {
        let is_it = |route: &&Route| route.device == device && route.generation == generation;
        routes.0.iter().rev().find(is_it).map(|route| (route.pool.id(), route.number))
    });
    found.flatten().unwrap_or((PoolId::DEFAULT, 0))
}

/// One reference more to that pool.
fn share(device: i32, generation: u64) -> Option<Pool> {
    let found = with_own(|routes| {
        let is_it = |route: &&Route| route.device == device && route.generation == generation;
        routes.0.iter().rev().find(is_it).map(|route| route.pool.share())
    });
    found.flatten()
}

/// The arena that this thread's innermost route on a device remembers for a stream; of a class, and in
/// segments or not.
pub fn recall<'a>(
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
            // SAFETY: an arena of a pool that lives, which has not left its stream, stays.
            let arena = unsafe { &*served.arena };
            (arena.kind() == kind).then_some(arena)
        })
    });
    found.flatten()
}

/// Has the innermost route on a device remember an arena of its pool.
pub fn remember(device: i32, generation: u64, stream: &Stream, arena: &Arena) {
    with_own(|routes| {
        let is_it = |route: &&mut Route| route.device == device && route.generation == generation;
        if let Some(route) = routes.0.iter_mut().rev().find(is_it) {
            let stream = stream.served.load(Ordering::Acquire);
            route.served[route.next] = Some(Served { stream, arena });
            route.next = (route.next + 1) % REMEMBERED;
        }
    });
}

impl DeviceMemory {
    #[cold]
    pub(in crate::memory) fn arena_slowly<'a>(
        &'a self,
        runtime: &Runtime,
        device: &Device,
        stream: &Stream,
        kind: (Class, bool),
    ) -> Result<&'a Arena> {
        let place = &stream.arenas[place(kind)];
        // SAFETY: NULL or an arena of this device, which lives as long as this thread is inside.
        if let Some(arena) = unsafe { place.load(Ordering::Acquire).as_ref() } {
            return Ok(arena);
        }
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        self.prepare(kind.1)?;
        self.scan_for_ended(runtime, device);
        self.stats.with_members(|arenas| {
            // SAFETY: as above.
            if let Some(arena) = unsafe { place.load(Ordering::Acquire).as_ref() } {
                return Ok(arena);
            }
            let address = match self.take_spare(kind) {
                Some(spare) => spare,
                None => self.add_arena(arenas, kind)?,
            };
            // SAFETY: a member, as above.
            let arena = unsafe { &*address };
            self.move_to(arena, stream, PoolId::DEFAULT);
            place.store(address.cast_mut(), Ordering::Release);
            Ok(arena)
        })
    }

    /// Before the first arena of a kind: segments need nothing of the driver.
    fn prepare(&self, segmented: bool) -> Result<()> {
        if segmented { Ok(()) } else { self.virtual_memory.prepare() }
    }

    /// A new arena, unowned yet. The caller holds the ledger.
    #[allow(clippy::vec_box, reason = "arenas must not move when the list grows")]
    fn add_arena(
        &self,
        arenas: &mut Vec<Box<Reclaimable<Arena>>>,
        (class, segmented): (Class, bool),
    ) -> Result<*const Arena> {
        arenas.try_reserve(1).map_err(|_| Error::OutOfHostMemory("an arena"))?;
        let (slot, range, segments) = if segmented {
            let segments = try_box(segmented::Segments::new(), "an arena's segments")?;
            (None, segmented::units_for(self.virtual_memory.slot_bytes()), Some(segments))
        } else {
            let slot = self.virtual_memory.take_slot()?;
            let range = (slot.base, slot.bytes);
            (Some(slot), range, None)
        };
        let arena = Arena::new(self.ordinal, &self.policy, range, self.total, class, segments);
        let arena = match (arena, slot) {
            (Ok(arena), _) => arena,
            (Err(error), slot) => {
                slot.iter().for_each(|slot| self.virtual_memory.give_slot(slot));
                return Err(error);
            }
        };
        let address: *const Arena = &**arena;
        if let Some(slot) = slot {
            // SAFETY: nobody else knows it yet.
            unsafe { arena.state() }.slots.push(slot)?;
            self.virtual_memory.publish(&slot, address);
        }
        arenas.push(arena);
        Ok(address)
    }

    /// The arena that serves a stream where pools are used: that of the capture or of the thread's
    /// route, whichever began later.
    #[cold]
    pub(in crate::memory) fn routed_arena<'a>(
        &'a self,
        runtime: &Runtime,
        device: &Device,
        stream: &Stream,
        size: Size,
    ) -> Result<&'a Arena> {
        let generation = device.streams.generation();
        let (pool, number) = pool(self.ordinal, generation);
        let kind_of = |segmented: bool| (size.arena_class(segmented), segmented);
        let kind = kind_of(self.policy.is_segmented());
        if let Some(source) = runtime.captures.source(runtime, stream, kind)? {
            if source.number > number {
                let kind = kind_of(kind.1 || source.pool.id().wants_segments());
                return self.captured_arena(runtime, device, source, kind);
            }
            // The graph uses what this allocation gets.
            if let Some(pool) = share(self.ordinal, generation) {
                runtime.captures.retain(source.number, pool.for_graph())?;
            }
        }
        let kind = kind_of(self.policy.is_segmented() || pool.wants_segments());
        if pool == PoolId::DEFAULT {
            return self.arena(runtime, device, stream, kind);
        }
        let own = match stream.is_per_thread() {
            true => device.streams.external(device, stream.native())?,
            false => stream,
        };
        pool.require_awake()?;
        // What a graph that the host captures by the driver writes is not known here: it keeps the pool.
        if pool.may_shrink() && !own.is_default() && own.is_capturing(runtime)? {
            pool.note_capture();
        }
        if let Some(arena) = recall(self.ordinal, generation, own, kind) {
            return Ok(arena);
        }
        let arena = self.arena_of_pool(runtime, device, own, kind, pool)?;
        remember(self.ordinal, generation, own, arena);
        Ok(arena)
    }

    /// The arena that serves a stream of a capture.
    fn captured_arena<'a>(
        &'a self,
        runtime: &Runtime,
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
        let arena = self.arena_of_pool(runtime, device, stream, kind, id)?;
        runtime.captures.remember(source.number, stream, arena);
        Ok(arena)
    }

    /// The arena of a pool that serves a stream: its own, one of a dead pool, or a new one.
    fn arena_of_pool<'a>(
        &'a self,
        runtime: &Runtime,
        device: &Device,
        stream: &Stream,
        kind: (Class, bool),
        pool: PoolId,
    ) -> Result<&'a Arena> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        self.prepare(kind.1)?;
        self.scan_for_ended(runtime, device);
        self.stats.with_members(|arenas| {
            self.by_pool.lock().know(pool)?;
            let of_kind =
                || arenas.iter().map(|arena| &***arena).filter(|arena| arena.kind() == kind);
            let is_idle = |arena: &Arena| arena.role() == Role::Idle && arena.is_unused();
            let serves = |arena: &&Arena| {
                let is_its = arena.pool() == pool;
                is_its && (arena.role() == Role::Serving && arena.is_of(stream) || is_idle(arena))
            };
            let found = of_kind().find(serves).or_else(|| {
                // What has memory of this stream is better than what has none.
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

    /// Gives back what is unused in the arenas of a pool that is dead; waits for what may still use it.
    pub fn release_pool(&self, runtime: &Runtime, pool: PoolId) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        let mut detached = DetachedSegments::new();
        let released = self.each_arena(|arena| match arena.pool() == pool && !pool.is_alive() {
            true => self.unload(runtime, arena, &mut detached),
            false => Ok(()),
        });
        let given = self.give_back(runtime.device(self.ordinal)?, detached);
        self.drop_ended();
        released.and(given)
    }

    /// A block of a pool that lends its own, for a stream that it has served.
    pub(in crate::memory) fn borrow_block(
        &self,
        stream: &Stream,
        request: Request,
    ) -> Result<Option<u64>> {
        let mut found = None;
        let size = Size { bytes: u64::from(request.units) * UNIT, oversize: request.oversize };
        self.each_arena(|arena| {
            // The pool's memory may come otherwise than that of the arena that asked.
            let is_of_class = arena.class == size.arena_class(arena.segmented);
            let lends = is_of_class && arena.pool().lends() && arena.is_of(stream);
            if found.is_some() || !lends {
                return Ok(());
            }
            // SAFETY: `each_arena` holds the lock, and this is the only reference.
            unsafe { arena.state() }.prepare_lending()?;
            found = self.take_of_any(arena, request, WHOLE_WALK)?;
            // SAFETY: as above.
            let state = unsafe { arena.state() };
            // Segments do not sleep, so that nobody asks what they lend.
            if let Some(address) = found.filter(|_| !arena.segmented) {
                let id = state.find(address - arena.base, address as usize)?;
                state.lend(id);
            }
            Ok(())
        })?;
        Ok(found)
    }
}
