//! The caching allocator: memory ordered on streams, without driver calls in steady state.
//!
//! [`arena`] has the blocks, [`backing`] the memory behind them, [`stats`] the counters, and
//! [`fallback`] what happens when memory runs out. This module connects them for a device: which
//! arena serves a stream, and how a request is served.

pub mod arena;
pub mod backend;
pub mod backing;
pub mod config;
pub mod exported;
pub mod fallback;
pub mod fast;
pub mod hooks;
pub mod pinned;
mod pointer;
mod poison;
pub mod pools;
pub mod stats;
mod suballocations;
#[cfg(test)]
mod tests;
pub mod trace;
mod wrong_kind;

use crate::base::error::{Error, Result, TOO_LARGE};
pub use crate::memory::arena::graph_launches::end_of;
use crate::memory::config::size::{Class, Request, UNIT, round_size};
pub(crate) use crate::memory::fallback::reclaim::wait_for;
pub(crate) use crate::memory::pools::sleep::require_awake;
pub use crate::memory::stats::keys::{AllKeys, Json, Key, Keys, in_row, nearest, pool_in};
pub use crate::memory::stats::summary::Summary;
pub(crate) use backing::uncached::is_used as has_uncached_blocks;
pub use pointer::{
    Found, cached_extent, device_of, extent, find, free, record_around, record_stream,
    unknown_pointer, use_inside,
};
pub use wrong_kind::{Kind, name_kind};

use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::waiting;
use crate::driver::Driver;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::observed;
use crate::gpu::stream::Stream;
use crate::gpu::subsystem::{Slot, Subsystem};
use crate::memory::arena::bins::SHORT_WALK;
use crate::memory::backing::driver_pool::DriverPool;
use crate::memory::backing::virtual_memory::VirtualMemory;
use crate::memory::config::policy::Policy;
use crate::memory::config::settings::{self, Settings};
use crate::memory::stats::device_stats::GuardedStats;
use crate::memory::stats::ledger::{
    ACTIVE_BYTES, ALLOCATED_BYTES, COUNTERS, Counters, INACTIVE_SPLIT_BYTES, REQUESTED_BYTES,
    change_of,
};
use crate::observe::flags::{self, Watcher};
use arena::Arena;
use backend::Server;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// If peaks need not be exact (`exact_peaks`), peaks of blocks are too low by at most so many.
const MOST_UNSEEN_BLOCKS: i64 = 1024;

/// The memory of a device.
pub struct DeviceMemory {
    driver: &'static Driver,
    ordinal: i32,
    total: u64,
    virtual_memory: VirtualMemory,
    stats: GuardedStats<Arena>,
    policy: Policy,
    segments: crate::memory::backing::segmented::DeviceSegments,
    by_pool: Mutex<crate::memory::stats::by_pool::ByPool>,
    /// [`Server`], its number.
    server: AtomicU8,
    /// Was an uncached block ever allocated?
    has_uncached: AtomicBool,
    pool: DriverPool,
    /// The number of stream waits that cross-stream reuse has added.
    waits: AtomicU64,
    /// Arenas of streams and pools that have ended.
    ended: crate::memory::arena::ended::EndedArenas,
}

// SAFETY: no other type has this slot, and the runtime sets it before a call can use it.
unsafe impl Subsystem for DeviceMemory {
    const SLOT: Slot = Slot::Memory;
}

impl Device {
    /// Its memory.
    #[inline(always)]
    pub fn memory(&self) -> &DeviceMemory {
        self.subsystem()
    }
}

type DeviceStats = crate::memory::stats::device_stats::DeviceStats<Arena>;

impl Device {
    /// Lets it use all memory of `peer`.
    pub fn enable_peer(&self, peer: &Device) -> Result<()> {
        self.enable_peer_with(peer, || peer.memory().allow_peer(peer, self.ordinal()))
    }
}

impl DeviceMemory {
    pub(crate) fn new(device: &Device, settings: &Settings) -> Result<DeviceMemory> {
        let (driver, ordinal, total) = (device.driver(), device.ordinal(), device.total_memory());
        let virtual_memory = VirtualMemory::new(driver, ordinal, device.handle(), total)?;
        virtual_memory.limit.set(settings.per_process_memory_fraction, total);
        let policy = Policy::new(virtual_memory.slot_bytes());
        let memory = DeviceMemory {
            driver,
            ordinal,
            total,
            virtual_memory,
            stats: GuardedStats::new(),
            policy,
            segments: crate::memory::backing::segmented::DeviceSegments::new(),
            by_pool: Mutex::new(Rank::LEAF, crate::memory::stats::by_pool::ByPool::new()),
            server: AtomicU8::new(0),
            has_uncached: AtomicBool::new(false),
            pool: DriverPool::new(driver),
            waits: AtomicU64::new(0),
            ended: crate::memory::arena::ended::EndedArenas::new(),
        };
        memory.configure(settings);
        Ok(memory)
    }

    /// What serves requests.
    pub(crate) fn server(&self) -> Server {
        Server::of(self.server.load(Ordering::Relaxed))
    }

    /// Applies changed settings.
    pub(crate) fn configure(&self, settings: &Settings) {
        let server = backend::server(settings);
        self.server.store(server as u8, Ordering::Relaxed);
        self.policy.divert(server != Server::Cache);
        // Without virtual memory there are only segments.
        let expandable_segments =
            settings.expandable_segments && self.virtual_memory.is_supported();
        let settings = Settings { expandable_segments, ..*settings };
        self.policy.configure(&settings, self.virtual_memory.slot_bytes());
        let allowance = if settings.exact_peaks { [0; COUNTERS] } else { self.allowance() };
        self.with_ledger(None, |stats| stats.allow(allowance));
    }

    /// How much too low peaks may be, where they need not be exact.
    fn allowance(&self) -> Counters {
        let mut allowance = [MOST_UNSEEN_BLOCKS; COUNTERS];
        for counter in [ALLOCATED_BYTES, ACTIVE_BYTES, INACTIVE_SPLIT_BYTES, REQUESTED_BYTES] {
            allowance[counter] = self.few_bytes() as i64;
        }
        allowance
    }

    /// Has anything been allocated here?
    pub(crate) fn is_used(&self) -> bool {
        self.has_uncached.load(Ordering::Relaxed)
            || self.stats.with_members(|arenas| !arenas.is_empty())
    }

    /// The share of the device's memory that may be reserved.
    pub fn fraction(&self) -> f64 {
        self.virtual_memory.limit.fraction()
    }

    /// Sets this share. Memory that is reserved already stays until it is given back.
    pub fn set_fraction(&self, fraction: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::Fraction(fraction));
        }
        let before = self.fraction();
        self.virtual_memory.limit.set(fraction, self.total);
        match backend::pluggable() {
            Some(allocator) => allocator
                .set_fraction(fraction, self.ordinal)
                .inspect_err(|_| self.virtual_memory.limit.set(before, self.total)),
            None => Ok(()),
        }
    }

    /// Memory of the device.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Allocates for a stream of `device`, whose memory this is.
    #[inline(always)]
    pub fn allocate(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
    ) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        // No policy changes the request, and a slot has enough addresses: it has more of them than
        // the device has memory.
        if bytes <= self.policy.plain() && !flags::is_watched() {
            let size =
                crate::memory::config::size::Size { bytes: round_size(bytes), oversize: false };
            return self.allocate_block::<false>(gpus, device, stream, bytes, size);
        }
        self.allocate_watched(gpus, device, stream, bytes)
    }

    #[cold]
    fn allocate_watched(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
    ) -> Result<u64> {
        // The driver may have to be queried about an external stream.
        let is_plain = bytes <= self.policy.plain() && !stream.is_external();
        if is_plain && flags::is_only(Watcher::Sanitizer) {
            let size =
                crate::memory::config::size::Size { bytes: round_size(bytes), oversize: false };
            let address = self.allocate_block::<false>(gpus, device, stream, bytes, size)?;
            observed::allocated_uncaptured(address, bytes, stream);
            return Ok(address);
        }
        let address = self.allocate_by_policy(gpus, device, stream, bytes)?;
        observed::allocated(gpus, address, bytes, stream);
        Ok(address)
    }

    fn allocate_by_policy(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
    ) -> Result<u64> {
        crate::memory::trace::history::before_allocation(stream);
        crate::memory::fallback::observers::check()?;
        if self.server() != Server::Cache && bytes < TOO_LARGE {
            return self.allocate_uncached(gpus, device, stream, bytes);
        }
        let most = self.virtual_memory.slot_bytes();
        if bytes <= most {
            let size = self.policy.size_of(bytes);
            if size.bytes <= most {
                if self.policy.is_segmented() {
                    let arena = self.routed_arena(gpus, device, stream, size)?;
                    return self.allocate_in_segment(gpus, device, arena, size.request(bytes));
                }
                return self.allocate_block::<true>(gpus, device, stream, bytes, size);
            }
        }
        if bytes < TOO_LARGE {
            let wanted = self.driver_bytes(bytes, self.policy.is_segmented());
            self.run_observers(device, wanted);
        }
        Err(self.refuse(gpus, device, bytes, self.policy.is_segmented()))
    }

    /// Allocates a block of this size for a request. `WATCHED`: what [`flags::is_watched`]
    /// returned.
    #[inline(always)]
    fn allocate_block<const WATCHED: bool>(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
        size: crate::memory::config::size::Size,
    ) -> Result<u64> {
        let request = size.request(bytes);
        let is_routed = || crate::memory::pools::route::is_routed() || gpus.has_captures();
        let arena = match WATCHED && is_routed() {
            false => self.arena(gpus, device, stream, (size.arena_class(false), false))?,
            true => match self.routed_arena(gpus, device, stream, size)? {
                arena if arena.segmented => {
                    return self.allocate_in_segment(gpus, device, arena, request);
                }
                arena => arena,
            },
        };
        {
            let _guard = arena.lock.enter()?;
            // SAFETY: the lock is held, and this is the only reference.
            if unsafe { arena.state() }.deferred.is_empty() {
                if let Some(address) = self.take::<WATCHED>(arena, request, SHORT_WALK)? {
                    return Ok(address);
                }
            } else if let Some(address) = self.settle_and_take(gpus, arena, request)? {
                return Ok(address);
            }
        }
        self.allocate_slowly(gpus, device, arena, request)
    }

    /// Takes a block out of the mapped memory. The caller holds the arena's lock.
    #[inline(always)]
    fn take<const WATCHED: bool>(
        &self,
        arena: &Arena,
        request: Request,
        walk: usize,
    ) -> Result<Option<u64>> {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let Some((id, start)) = state.allocate(request, walk)? else {
            // The search has merged free blocks.
            self.count_split(arena);
            return Ok(None);
        };
        if WATCHED {
            crate::memory::trace::history::allocated(arena, state, id);
        }
        let address = arena.base + u64::from(start) * UNIT;
        let (bytes, requested) = ((u64::from(request.units) * UNIT) as i64, request.bytes as i64);
        let split = state.split();
        if WATCHED && request.oversize {
            let (class, change) =
                (arena.class_of(request.units), change_of(1, bytes, requested, true));
            self.count_slowly(arena, class, change, split);
            return Ok(Some(address));
        }
        // SAFETY: the lock is held and we are not parked.
        if !unsafe { arena.count_alloc(bytes, requested, split) }
            // SAFETY: as above.
            && !unsafe { arena.count_alloc_joint(bytes, requested, split) }
        {
            let class = arena.class_of(request.units);
            self.count_slowly(arena, class, change_of(1, bytes, requested, false), split);
        }
        Ok(Some(address))
    }

    /// Runs `body` while no account of the device changes, and no state of an arena except by
    /// `body`. `own` is an arena whose lock the caller holds, if it holds one.
    fn with_ledger<R>(&self, own: Option<&Arena>, body: impl FnOnce(&mut DeviceStats) -> R) -> R {
        self.stats.with(own, body)
    }

    /// The arena that serves a stream. Creates it if there is none.
    #[inline(always)]
    fn arena<'a>(
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
        let arena = stream.arena(arena::place(kind));
        // SAFETY: NULL or an arena of this device, which lives as long as this thread is inside.
        match unsafe { arena.as_ref() } {
            Some(arena) => Ok(arena),
            None => self.arena_slowly(gpus, device, stream, kind),
        }
    }

    /// Gives another device access to all memory of this one, present and future.
    pub(crate) fn allow_peer(&self, device: &Device, peer: i32) -> Result<()> {
        self.virtual_memory.add_peer(peer);
        self.pool.allow_peer(device, peer)?;
        self.each_arena(|arena| {
            // SAFETY: `each_arena` holds the lock.
            let state = unsafe { arena.state() };
            state.segment.allow_peer(&self.virtual_memory, arena.base, peer)
        })
    }

    /// Runs `body` for each arena in turn, holding its lock; stops at the first error.
    fn each_arena(&self, mut body: impl FnMut(&Arena) -> Result<()>) -> Result<()> {
        let mut index = 0;
        let _walk = self.ended.walk();
        loop {
            let found = self.stats.with_members(|arenas| {
                arenas.get(index).map(|arena| std::ptr::from_ref::<Arena>(arena))
            });
            let Some(arena) = found else { return Ok(()) };
            // SAFETY: boxed, and kept as long as this thread is inside.
            let arena = unsafe { &*arena };
            let _guard = arena.lock.enter()?;
            body(arena)?;
            index += 1;
        }
    }

    /// Gives all memory of the device back. No thread is inside, no work is running, and the
    /// context is current.
    pub(crate) fn close(&self, device: &Device) {
        let _ = self.each_arena(|arena| {
            // SAFETY: `each_arena` holds the lock.
            let state = unsafe { arena.state() };
            state.segment.close(&self.virtual_memory, arena.base);
            state.destroy_end(self.driver);
            for batch in state.deferred.batches.drain(..) {
                if !batch.event.is_null() {
                    // SAFETY: ours, and nothing waits for it.
                    let _ = unsafe { self.driver.cuEventDestroy(batch.event) };
                }
            }
            Ok(())
        });
        self.close_segments(device);
        self.virtual_memory.close();
        self.pool.close();
    }
}

/// Puts settings in force, except those that each device has.
pub(crate) fn choose_settings(settings: Settings) {
    settings::choose(settings);
    poison::set(settings.poison_on_free);
    suballocations::set(settings.nvtx_suballocations);
}

/// Resets the settings: the environment is read again.
pub(crate) fn forget_settings() {
    settings::forget();
    poison::set(false);
    suballocations::set(false);
}

/// Gives all unused memory of all devices back to the driver, and waits for streams that may still
/// use it.
pub fn empty_cache(gpus: &Gpus) -> Result<()> {
    waiting::refuse_in_callback()?;
    if let Some(hooks) = hooks::installed() {
        (hooks.release_unused)(gpus);
    }
    if let Some(allocator) = backend::pluggable() {
        allocator.reset()?;
    }
    gpus.devices.iter().try_for_each(|device| device.memory().empty_cache(gpus))
}
