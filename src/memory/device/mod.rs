//! The memory of a device: all its arenas, its uncached blocks and the driver's pool.
//!
//! Begin with [`DeviceMemory`] below. `device_stats.rs` adds up the accounts of the arenas,
//! `cross_stream.rs` has the reuse of memory between streams, `ended.rs` the end of arenas,
//! `segments.rs` the segments of cuMemAlloc, and `reclaim.rs` the release of memory to the driver
//! and the completion of deferred frees.

pub mod backend;
pub(crate) mod by_pool;
pub(crate) mod counting;
pub(crate) mod cross_stream;
pub(crate) mod device_stats;
pub(crate) mod driver_pool;
pub(crate) mod ended;
pub mod exported;
pub(crate) mod figures;
pub(crate) mod graph_launches;
pub mod hooks;
pub(crate) mod host_graphs;
pub(crate) mod lookup;
pub(crate) mod poison;
pub(crate) mod reclaim;
pub(crate) mod remap_policy;
pub(crate) mod segments;
pub(crate) mod settle;
pub mod snapshot;
pub(crate) mod stream_end;
pub(crate) mod suballocations;
pub mod uncached;

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::driver::Driver;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use crate::memory::arena::addresses::Addresses;
use crate::memory::arena::heap::Heap;
use crate::memory::arena::{Arena, ArenaGuard, events};
use crate::memory::backing::virtual_memory::VirtualMemory;
use crate::memory::config::policy::Policy;
use crate::memory::config::settings::Settings;
use crate::memory::config::size::{Request, UNIT};
use crate::memory::device::backend::Server;
use crate::memory::device::by_pool::ByPool;
use crate::memory::device::device_stats::GuardedStats;
use crate::memory::device::driver_pool::DriverPool;
use crate::memory::device::ended::EndedHeaps;
use crate::memory::device::segments::DeviceSegments;
use crate::memory::stats::ledger::{
    ACTIVE_BYTES, ALLOCATED_BYTES, COUNTERS, Counters, INACTIVE_SPLIT_BYTES, REQUESTED_BYTES,
    change_of,
};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// If peaks need not be exact (`exact_peaks`), peaks of blocks are too low by at most so many.
const MOST_UNSEEN_BLOCKS: i64 = 1024;

/// The memory of a device.
pub struct DeviceMemory {
    pub(in crate::memory) driver: &'static Driver,
    pub(in crate::memory) ordinal: i32,
    pub(in crate::memory) total: u64,
    pub(in crate::memory) virtual_memory: VirtualMemory,
    pub(in crate::memory) addresses: Addresses,
    pub(in crate::memory) stats: GuardedStats<Heap>,
    pub(in crate::memory) policy: Policy,
    pub(in crate::memory) segments: DeviceSegments,
    pub(in crate::memory) by_pool: Mutex<ByPool>,
    /// [`Server`], its number.
    pub(in crate::memory) server: AtomicU8,
    /// Was an uncached block ever allocated?
    pub(in crate::memory) has_uncached: AtomicBool,
    pub(in crate::memory) pool: DriverPool,
    /// The number of stream waits that cross-stream reuse has added.
    pub(in crate::memory) waits: AtomicU64,
    /// Heaps of streams and pools that have ended.
    pub(in crate::memory) ended: EndedHeaps,
}

/// An allocation that the mapped memory did not serve at once.
#[derive(Clone, Copy)]
pub(in crate::memory) struct Attempt<'a> {
    pub gpus: &'a Gpus,
    pub device: &'a Device,
    pub arena: &'a Arena,
    pub request: Request,
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for DeviceMemory {
    type Owner = Device;
    const KIND: SubsystemKind = SubsystemKind::Memory;
}

impl Device {
    /// Its memory.
    #[inline(always)]
    pub fn memory(&self) -> &DeviceMemory {
        self.subsystem()
    }
}

pub(in crate::memory) type DeviceStats = device_stats::DeviceStats<Heap>;

impl DeviceStats {
    /// The arenas of all heaps.
    pub(in crate::memory) fn arenas(&self) -> impl Iterator<Item = &Arena> {
        self.members.iter().flat_map(|heap| heap.arenas())
    }
}

impl Device {
    /// Lets it use all memory of `peer`.
    pub fn enable_peer(&self, peer: &Device) -> Result<()> {
        self.enable_peer_with(peer, || peer.memory().allow_peer(peer, self.ordinal()))
    }
}

impl DeviceMemory {
    pub(crate) fn new(device: &Device, settings: &Settings) -> Result<DeviceMemory> {
        let (driver, ordinal, total) = (device.driver(), device.ordinal(), device.total_memory());
        let virtual_memory = VirtualMemory::new(driver, device.handle())?;
        let addresses = Addresses::new(driver, ordinal, total);
        virtual_memory.limit.set(settings.per_process_memory_fraction, total);
        let policy = Policy::new(addresses.slot_bytes());
        let memory = DeviceMemory {
            driver,
            ordinal,
            total,
            virtual_memory,
            addresses,
            stats: GuardedStats::new(),
            policy,
            segments: DeviceSegments::new(),
            by_pool: Mutex::new(Rank::LEAF, ByPool::new()),
            server: AtomicU8::new(0),
            has_uncached: AtomicBool::new(false),
            pool: DriverPool::new(driver),
            waits: AtomicU64::new(0),
            ended: EndedHeaps::new(),
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
        self.policy.configure(&settings, self.addresses.slot_bytes());
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
            || self.stats.with_members(|heaps| !heaps.is_empty())
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

    /// Takes a block out of the mapped memory.
    #[inline(always)]
    pub(in crate::memory) fn take<const WATCHED: bool>(
        &self,
        state: &mut ArenaGuard<'_>,
        request: Request,
        walk: usize,
    ) -> Result<Option<u64>> {
        let arena = state.arena();
        let Some((id, start)) = state.allocate(request, walk)? else {
            // The search has merged free blocks.
            self.count_split(state);
            return Ok(None);
        };
        if WATCHED {
            events::allocated(arena, state, id);
        }
        let address = arena.base + u64::from(start) * UNIT;
        let (bytes, requested) = ((u64::from(request.units) * UNIT) as i64, request.bytes as i64);
        let split = state.split();
        if WATCHED && request.oversize {
            let (class, change) =
                (arena.class_of(request.units), change_of(1, bytes, requested, true));
            self.count_slowly(state, class, change, split);
            return Ok(Some(address));
        }
        if !state.count_alloc(bytes, requested, split) {
            let class = arena.class_of(request.units);
            self.count_slowly(state, class, change_of(1, bytes, requested, false), split);
        }
        Ok(Some(address))
    }

    /// Allocates from an arena of either kind.
    pub(in crate::memory) fn take_of_either_kind(
        &self,
        state: &mut ArenaGuard<'_>,
        request: Request,
        walk: usize,
    ) -> Result<Option<u64>> {
        let arena = state.arena();
        match arena.segmented {
            true => self.take_in_segment(state, request),
            false => self.take::<true>(state, request, walk),
        }
    }

    /// Runs `body` while no account of the device changes, and no state of an arena except by
    /// `body`. `own` is an arena whose lock the caller holds, if it holds one.
    pub(in crate::memory) fn with_ledger<R>(
        &self,
        own: Option<&mut ArenaGuard<'_>>,
        body: impl FnOnce(&mut DeviceStats) -> R,
    ) -> R {
        self.stats.with(own.map(|own| &mut own.lock), body)
    }

    /// Gives another device access to all memory of this one, present and future.
    pub(crate) fn allow_peer(&self, device: &Device, peer: i32) -> Result<()> {
        self.virtual_memory.add_peer(peer);
        self.pool.allow_peer(device, peer)?;
        self.each_arena(|state| {
            let arena = state.arena();
            state.segment.allow_peer(&self.virtual_memory, arena.base, peer)
        })
    }

    /// Runs `body` for each arena in turn, holding its lock; stops at the first error.
    pub(in crate::memory) fn each_arena(
        &self,
        body: impl FnMut(&mut ArenaGuard<'_>) -> Result<()>,
    ) -> Result<()> {
        self.each_arena_where(|_| true, body)
    }

    /// The same for the arenas that are `wanted`, which is called with the ledger held.
    pub(in crate::memory) fn each_arena_where<'a>(
        &'a self,
        wanted: impl Fn(&Arena) -> bool,
        mut body: impl FnMut(&mut ArenaGuard<'a>) -> Result<()>,
    ) -> Result<()> {
        let mut index = 0;
        let _walk = self.ended.walk();
        loop {
            let found = self.stats.with_members(|heaps| {
                let mut arenas = heaps.iter().flat_map(|heap| heap.arenas()).skip(index);
                let at = arenas.clone().position(&wanted)?;
                index += at + 1;
                arenas.nth(at).map(std::ptr::from_ref)
            });
            let Some(arena) = found else { return Ok(()) };
            // SAFETY: a part of a heap, which is kept as long as this thread is inside.
            let arena = unsafe { &*arena };
            let state = &mut arena.enter()?;
            body(state)?;
        }
    }

    /// Gives all memory of the device back. No thread is inside, no work is running, and the
    /// context is current.
    pub(crate) fn close(&self, device: &Device) {
        let _ = self.each_arena(|state| {
            let arena = state.arena();
            state.segment.close(&self.virtual_memory, arena.base);
            state.destroy_end(self.driver);
            for awaited in state.uses.awaited.drain(..).filter(|awaited| !awaited.event.is_null()) {
                // SAFETY: ours, and nothing waits for it.
                let _ = unsafe { self.driver.cuEventDestroy(awaited.event) };
            }
            Ok(())
        });
        self.close_segments(device);
        self.virtual_memory.close();
        self.addresses.close();
        self.pool.close();
    }
}
