//! Routes by streams: the allocations of all threads on one device, on those streams that a
//! function of the host accepts, go to one pool. PyTorch routes the allocations of a capture so.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::observers::Observers;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::waiting::NoCalls;
use crate::driver::sys::CUstream;
use crate::gpu::stream::Stream;
use crate::memory::arena::heap::Heap;
use crate::memory::arena::pool::Pool;
use crate::memory::config::pool_id::PoolId;
use crate::memory::pools::active_captures::next_number;
use crate::memory::pools::cached_heaps::CachedHeaps;
use crate::observe::flags::{self, Watcher};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A set of streams.
pub trait Filter: Send + Sync {
    /// Is a stream in the set?
    fn accepts(&self, stream: CUstream) -> bool;
    /// Called once the route has begun; beginning it can no longer fail.
    fn attached(&self);
}

/// A route.
pub struct StreamRoute {
    /// The pool.
    pub pool: Pool,
    /// Its number in the order of routes and captures.
    pub number: u64,
    /// The handle with which the host began it.
    handle: usize,
    device: i32,
    /// The generation of the library in which it began; later generations have other arenas.
    generation: u64,
    filter: Box<dyn Filter>,
    cached: Mutex<CachedHeaps>,
}

// SAFETY: heaps are shared by all threads.
unsafe impl Send for StreamRoute {}
// SAFETY: as above.
unsafe impl Sync for StreamRoute {}

impl StreamRoute {
    /// The heap of the pool that the route caches for a stream, in segments or not.
    pub fn cached_heap(&self, stream: &Stream, segmented: bool) -> Option<*const Heap> {
        self.cached.lock().find(stream, segmented)
    }

    /// Caches a heap of the pool.
    pub fn remember(&self, stream: &Stream, heap: &Heap) {
        self.cached.lock().add(stream, heap);
    }
}

impl Drop for StreamRoute {
    fn drop(&mut self) {
        flags::end(Watcher::Route);
    }
}

static ROUTES: Observers<StreamRoute> = Observers::new();
/// Number of routes that have begun and not ended.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Held while routes begin and end.
static CHANGING: Mutex<()> = Mutex::new(Rank::POOL, ());

/// Is there a route on any device?
#[inline]
pub fn are_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// The newest route that `is_it` accepts.
fn newest(is_it: impl Fn(&StreamRoute) -> bool) -> Option<Shared<StreamRoute>> {
    let mut found = ROUTES.before(u64::MAX);
    while let Some((number, route)) = found {
        if is_it(&route) {
            return Some(route);
        }
        found = ROUTES.before(number);
    }
    None
}

/// The newest route of a stream.
pub fn find(device: i32, generation: u64, stream: &Stream) -> Option<Shared<StreamRoute>> {
    if !are_any() {
        return None;
    }
    newest(|route| {
        let is_here = (route.device, route.generation) == (device, generation);
        is_here && {
            let _refused = NoCalls::begin();
            route.filter.accepts(stream.native())
        }
    })
}

/// Routes the allocations on some streams of a device to a pool. `handle` is the host's name of the
/// pool, which `share` gives unless the host destroys it. On failure the filter is dropped and
/// `attached` was not called.
pub fn begin(
    share: impl FnOnce() -> Result<Pool>,
    handle: usize,
    device: i32,
    generation: u64,
    filter: Box<dyn Filter>,
) -> Result<()> {
    let _changing = CHANGING.lock();
    let pool = share()?;
    if newest(|route| is_of(route, pool.id(), device, generation)).is_some() {
        return Err(Error::InvalidState(
            "streams of that device are routed to the pool already: end that first",
        ));
    }
    flags::begin(Watcher::Route);
    let (number, cached) = (next_number(), Mutex::new(Rank::LEAF, CachedHeaps::default()));
    let route = StreamRoute { pool, number, handle, device, generation, filter, cached };
    ROUTES.attach(number, route, |route| {
        route.filter.attached();
        COUNT.fetch_add(1, Ordering::Relaxed);
    })
}

fn is_of(route: &StreamRoute, pool: PoolId, device: i32, generation: u64) -> bool {
    route.pool.id() == pool && (route.device, route.generation) == (device, generation)
}

/// Ends the newest route that `is_it` accepts; false: there is none.
fn end_where(is_it: impl Fn(&StreamRoute) -> bool) -> bool {
    let changing = CHANGING.lock();
    let Some(route) = newest(is_it) else { return false };
    // Here and on other threads that use it, it is dropped with no lock held.
    ROUTES.detach(route.number);
    COUNT.fetch_sub(1, Ordering::Relaxed);
    drop(changing);
    drop(route);
    true
}

/// Ends the route of streams of a device to a pool.
pub fn end(pool: PoolId, device: i32, generation: u64) -> Result<()> {
    match end_where(|route| is_of(route, pool, device, generation)) {
        true => Ok(()),
        false => Err(Error::InvalidState(
            "no streams of that device are routed to the pool; call tcuda_mem_pool_begin_streams \
             first",
        )),
    }
}

/// Ends the routes that the host began with a handle of a pool.
pub fn end_by_handle(handle: usize) {
    while end_where(|route| route.handle == handle) {}
}

/// Ends all routes.
pub fn end_all() {
    while end_where(|_| true) {}
}
