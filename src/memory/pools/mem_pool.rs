//! A private pool as the host sees it: routes to it, sleep, and its end.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::waiting;
use crate::driver::sync_debug;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::memory::arena::pool::{NO_SPLIT, Pool, USE_ON_OOM};
use crate::memory::backing::pluggable::Pluggable;
use crate::memory::config::pool_id::PoolId;
use crate::memory::device::backend::Server;
use crate::memory::pools::stream_routes::{self, Filter};
use crate::memory::pools::{route, sleep};

/// A private pool as the host sees it.
pub struct MemPool {
    id: PoolId,
    /// The host's own reference; `None` once it is destroyed.
    own: Mutex<Option<Pool>>,
}

fn check_flags(flags: u32) -> Result<()> {
    if flags & !(USE_ON_OOM | NO_SPLIT) == 0 {
        return Ok(());
    }
    Err(Error::OutOfRange {
        name: "flags",
        value: flags.into(),
        allowed: "combine TCUDA_MEM_POOL_USE_ON_OOM and _NO_SPLIT, or use 0",
    })
}

/// Fails where the allocator backend has no private pools.
fn require_native(device: &Device) -> Result<()> {
    if matches!(device.memory().server(), Server::DriverPool | Server::Pluggable) {
        let (what, by) = ("a private pool", "allocator backend: only \"native\" has them");
        return Err(Error::NotSupported { what, by });
    }
    Ok(())
}

const DESTROYED: Error = Error::InvalidState("the pool is being destroyed by another thread");

impl MemPool {
    /// Makes a pool with memory from `source`; without one, from the driver.
    pub fn new(flags: u32, source: Option<Pluggable>) -> Result<MemPool> {
        check_flags(flags)?;
        if let Some(source) = &source {
            source.begin_use();
        }
        Ok(MemPool::of(Pool::new(flags, source)?))
    }

    /// The host's view of the pool with a pair of numbers of another library, made if it is new.
    /// PyTorch's graphs, to which pairs with a first number belong, write unused memory of it.
    pub fn of_pair(pair: (u64, u64), source: Option<Pluggable>) -> Result<MemPool> {
        let pool = Pool::of_pair(pair, source)?;
        Ok(MemPool::of(if pair.0 == 0 { pool } else { pool.for_graph() }))
    }

    /// Sets the flags of the pool. Blocks that exist stay as they are.
    pub fn set_flags(&self, flags: u32) -> Result<()> {
        check_flags(flags)?;
        self.share()?.id().set_flags(flags)
    }

    /// Makes the host's view of an existing pool.
    pub fn of(pool: Pool) -> MemPool {
        MemPool { id: pool.id(), own: Mutex::new(Rank::LEAF, Some(pool)) }
    }

    /// The pool.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Adds a reference, unless the pool was destroyed.
    pub fn share(&self) -> Result<Pool> {
        self.own.lock().as_ref().map(Pool::share).ok_or(DESTROYED)
    }

    /// Routes this thread's allocations on a device to the pool, until the matching `end`. `handle`
    /// is the host's name of the pool.
    pub fn begin(&self, handle: usize, device: &Device) -> Result<()> {
        require_native(device)?;
        route::begin(self.share()?, handle, device.ordinal(), device.streams.generation())
    }

    /// Routes the allocations of all threads on the streams of a device that the filter accepts to
    /// the pool, until the matching `end_streams`. `handle` is the host's name of the pool.
    pub fn begin_streams(
        &self,
        handle: usize,
        device: &Device,
        filter: Box<dyn Filter>,
    ) -> Result<()> {
        require_native(device)?;
        let generation = device.streams.generation();
        stream_routes::begin(|| self.share(), handle, device.ordinal(), generation, filter)
    }

    /// Ends the route that `begin_streams` began.
    pub fn end_streams(&self, device: &Device) -> Result<()> {
        stream_routes::end(self.id, device.ordinal(), device.streams.generation())
    }

    /// Ends the route that `begin` began.
    pub fn end(&self, device: &Device) -> Result<()> {
        route::end(self.id, device.ordinal(), device.streams.generation())
    }

    /// Ends a route to a pool whose handle was destroyed since. Returns false if this thread's last
    /// `begin` on that device was with another handle.
    pub fn end_destroyed(handle: usize, device: &Device) -> bool {
        route::end_by_handle(handle, device.ordinal(), device.streams.generation())
    }

    /// Releases the pool's physical memory and keeps its addresses; `keep`: copies the contents of
    /// its blocks to host memory. Waits for the devices. If the driver takes only part of the
    /// memory back, all of it is mapped again. If that fails too, the pool sleeps nevertheless.
    pub fn sleep(&self, gpus: &Gpus, keep: bool) -> Result<()> {
        waiting::refuse_in_callback()?;
        let pool = self.share()?;
        let released = {
            let _held = pool.id().sleep_lock().guard();
            let was_asleep = pool.id().set_asleep(true);
            if !was_asleep && let Err(error) = sleep::prepare(gpus, pool.id(), keep) {
                pool.id().set_asleep(false);
                return Err(error);
            }
            // If the pool slept already, this releases what the driver refused to take back before.
            sleep::release_memory(gpus, pool.id())
        };
        if released.is_err() {
            let _ = self.wake(gpus);
        }
        released
    }

    /// Maps memory at the same addresses and restores the kept contents, using all fallbacks. On
    /// failure the pool continues to sleep without memory.
    pub fn wake(&self, gpus: &Gpus) -> Result<()> {
        waiting::refuse_in_callback()?;
        let pool = self.share()?;
        let id = pool.id();
        if !id.is_asleep() {
            return Ok(());
        }
        // Observers may run, so that no lock is held.
        let found = sleep::find_memory(gpus, id);
        let _held = id.sleep_lock().guard();
        if !id.is_asleep() {
            return Ok(());
        }
        let woken = found.and_then(|()| sleep::restore(gpus, id));
        match woken {
            Ok(()) => _ = id.set_asleep(false),
            Err(_) => _ = sleep::release_memory(gpus, id),
        }
        woken
    }

    /// Drops the host's reference; no thread can begin to use the pool any more.
    pub fn close(&self) {
        let own = self.own.lock().take();
        drop(own);
    }
}

/// Gives the unused memory of a pool back at once if no reference exists. Tries all devices, and
/// returns the first failure.
pub fn release(gpus: &Gpus, pool: PoolId) -> Result<()> {
    let _required = sync_debug::required();
    let mut outcome = Ok(());
    for device in &gpus.devices {
        let released = device.memory().release_pool(gpus, pool);
        if outcome.is_ok() {
            outcome = released;
        }
    }
    sync_debug::log_deferred();
    outcome
}
