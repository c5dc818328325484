//! Where the allocations of a thread go: the private pools that it has begun to use, for each device.

use super::arena::{Arena, Request};
use super::bins::WHOLE_WALK;
use super::pool::{Pool, PoolId};
use super::stats::Class;
use super::watch::{self, Watcher};
use super::{DeviceMemory, Relaxed};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::stream::Stream;
use crate::thread::{self, Block, try_box};
use std::sync::atomic::Ordering;

/// Arenas that a route remembers.
const REMEMBERED: usize = 4;

/// What a route remembers: the stream, and the arena that serves it there.
#[derive(Clone, Copy)]
struct Served {
    stream: *const Stream,
    arena: *const Arena,
}

/// A thread's allocations on one device go to one pool.
struct Route {
    pool: Pool,
    device: i32,
    /// The runtime in which it began: with that its arenas went.
    generation: u64,
    served: [Option<Served>; REMEMBERED],
    /// The next to be forgotten.
    next: usize,
}

impl Route {
    fn new(pool: Pool, device: i32, generation: u64) -> Route {
        watch::begin(Watcher::Route);
        Route { pool, device, generation, served: [None; REMEMBERED], next: 0 }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        watch::end(Watcher::Route);
    }
}

/// A thread's routes, the innermost last.
#[derive(Default)]
pub struct Routes(Vec<Route>);

/// Runs `body` on this thread's routes, which nobody else sees.
fn with_own<R>(body: impl FnOnce(&mut Routes) -> R) -> Option<R> {
    let routes = thread::block().routes.load(Ordering::Relaxed).cast::<Routes>();
    // SAFETY: NULL or this thread's own, and `body` calls nothing of the host's.
    unsafe { routes.as_mut() }.map(body)
}

/// Begins to send this thread's allocations on a device to a pool.
pub fn begin(pool: Pool, device: i32, generation: u64) -> Result<()> {
    let block = thread::block();
    if block.routes.load(Ordering::Relaxed).is_null() {
        let fresh = try_box(Routes::default(), "a thread's pools")?;
        block.routes.store(Box::into_raw(fresh).cast(), Ordering::Relaxed);
    }
    let begun = with_own(|routes| {
        routes.0.retain(|route| route.generation == generation);
        routes.0.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a thread's pools"))?;
        routes.0.push(Route::new(pool, device, generation));
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
    let ended = with_own(|routes| {
        routes.0.retain(|route| route.generation == generation);
        let last = routes.0.iter().rposition(|route| route.device == device);
        match last.filter(|index| routes.0[*index].pool.id() == pool) {
            Some(index) => {
                routes.0.remove(index);
                Ok(routes.0.is_empty())
            }
            None => Err(NOT_BEGUN),
        }
    });
    if ended.unwrap_or(Err(NOT_BEGUN))? {
        forget(thread::block());
    }
    Ok(())
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

/// The pool to which this thread's allocations on a device go.
pub fn pool(device: i32, generation: u64) -> PoolId {
    let found = with_own(|routes| {
        let is_it = |route: &&Route| route.device == device && route.generation == generation;
        routes.0.iter().rev().find(is_it).map(|route| route.pool.id())
    });
    found.flatten().unwrap_or(PoolId::DEFAULT)
}

/// The arena that this thread's innermost route on a device remembers for a stream.
pub fn recall<'a>(
    device: i32,
    generation: u64,
    stream: &Stream,
    class: Class,
) -> Option<&'a Arena> {
    let found = with_own(|routes| {
        let is_it = |route: &&Route| route.device == device && route.generation == generation;
        let route = routes.0.iter().rev().find(is_it)?;
        route.served.iter().flatten().find_map(|served| {
            // SAFETY: arenas live as long as the runtime of this generation, which is there.
            let arena = unsafe { &*served.arena };
            (std::ptr::eq(served.stream, stream) && arena.class == class).then_some(arena)
        })
    });
    found.flatten()
}

/// Has the innermost route on a device remember an arena of its pool.
pub fn remember(device: i32, generation: u64, stream: &Stream, arena: &Arena) {
    with_own(|routes| {
        let is_it = |route: &&mut Route| route.device == device && route.generation == generation;
        if let Some(route) = routes.0.iter_mut().rev().find(is_it) {
            route.served[route.next] = Some(Served { stream, arena });
            route.next = (route.next + 1) % REMEMBERED;
        }
    });
}

impl DeviceMemory {
    /// The arena that serves a stream for this thread, which uses private pools.
    #[cold]
    pub(super) fn routed_arena<'a>(
        &'a self,
        device: &Device,
        stream: &Stream,
        class: Class,
    ) -> Result<&'a Arena> {
        let generation = device.streams.generation();
        let pool = pool(self.ordinal, generation);
        if pool == PoolId::DEFAULT {
            return self.arena(device, stream, class);
        }
        let own = match stream.is_per_thread() {
            true => device.streams.external(device, stream.native())?,
            false => stream,
        };
        pool.require_awake()?;
        if let Some(arena) = recall(self.ordinal, generation, own, class) {
            return Ok(arena);
        }
        let arena = self.arena_of_pool(device, own, class, pool)?;
        remember(self.ordinal, generation, own, arena);
        Ok(arena)
    }

    /// The arena of a pool that serves a stream: its own, one of a dead pool, or a new one.
    fn arena_of_pool<'a>(
        &'a self,
        device: &Device,
        stream: &Stream,
        class: Class,
        pool: PoolId,
    ) -> Result<&'a Arena> {
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        self.virtual_memory.prepare()?;
        self.books.with_members(|arenas| {
            let of_class =
                || arenas.iter().map(|arena| &**arena).filter(|arena| arena.class == class);
            let serves = |arena: &&Arena| arena.pool() == pool && arena.is_of(stream);
            let found = of_class().find(serves).or_else(|| {
                // What has memory of this stream is better than what has none.
                let vacant = of_class().filter(|arena| arena.can_serve(stream));
                vacant.max_by_key(|arena| arena.is_of(stream))
            });
            let found = found.map(std::ptr::from_ref);
            let address = match found {
                Some(address) => address,
                None => self.add_arena(arenas, class)?.cast_const(),
            };
            // SAFETY: boxed, and kept until shutdown.
            let arena = unsafe { &*address };
            arena.assign(stream, pool);
            Ok(arena)
        })
    }

    /// Gives back what is unused in the arenas of a pool that is dead; waits for what may still use it.
    pub fn release_pool(&self, runtime: &Runtime, pool: PoolId) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver);
        self.each_arena(|arena| match arena.pool() == pool && !pool.is_alive() {
            true => self.reclaim_arena(runtime, arena, u64::MAX, true),
            false => Ok(()),
        })
    }

    /// A block of a pool that lends its own, for a stream that it has served.
    pub(super) fn borrow_block(
        &self,
        stream: &Stream,
        class: Class,
        request: Request,
    ) -> Result<Option<u64>> {
        let mut found = None;
        self.each_arena(|arena| {
            let lends = arena.class == class && arena.pool().lends() && arena.is_of(stream);
            if found.is_none() && lends {
                found = self.take::<true>(arena, request, WHOLE_WALK)?;
            }
            Ok(())
        })?;
        Ok(found)
    }
}
