//! The driver's memory pools as a backend, which PyTorch calls cudaMallocAsync. The driver caches
//! memory, reuses it in stream order, and counts it. This module tracks the live blocks and the
//! streams that use each of them.
//!
//! **Captures.** A block that is allocated on a captured stream belongs to the graph, and its free
//! becomes a node of the graph. A block that was allocated elsewhere may be freed while a stream
//! that uses it is captured. Its free is postponed until the capture ends; otherwise it would
//! become part of a graph that may run many times.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::log::{self, Level};
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::driver::sys::{CUdevice_attribute, CUevent, CUmemPool_attribute, CUmemoryPool};
use crate::driver::{Driver, sync_debug};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::{Device, MAX_DEVICES};
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::device::DeviceMemory;
use crate::memory::device::stream_end::ordering_stream;
use crate::memory::device::uncached::{Block, Origin};
use crate::memory::stats::ledger::{ACTIVE_BYTES, ALL, ALLOCATED_BYTES, Statistics};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use CUmemPool_attribute as Attribute;

/// The settings of PyTorch: memory is kept, and every way of reuse that the driver has is enabled.
const SETTINGS: [(Attribute, u64); 4] = [
    (Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1),
    (Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 1),
    (Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1),
    (Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX),
];

/// A memory pool of the driver that is set up.
struct Ready {
    pool: usize,
    /// The settings before the set-up, restored at the end.
    before: [u64; SETTINGS.len()],
}

/// The default pool of a device.
pub(in crate::memory) struct DriverPool {
    driver: &'static Driver,
    ready: Once<Ready>,
    /// Blocks that are freed when a capture ends. The capacity is at least the number of live
    /// blocks.
    postponed: Mutex<Vec<(u64, Block)>>,
    postponed_count: AtomicUsize,
    live: AtomicUsize,
    /// Was the warning about a postponed free logged?
    has_warned: AtomicBool,
}

impl DriverPool {
    pub fn new(driver: &'static Driver) -> DriverPool {
        DriverPool {
            driver,
            ready: Once::new(Rank::ONCE),
            postponed: Mutex::new(Rank::LEAF, Vec::new()),
            postponed_count: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
            has_warned: AtomicBool::new(false),
        }
    }

    /// Reads an attribute. Those of reuse are 32-bit integers; the upper half stays 0.
    fn get(&self, pool: usize, attribute: Attribute) -> Result<u64> {
        let mut value = 0u64;
        let to = (&raw mut value).cast::<c_void>();
        // SAFETY: the pool exists, and no attribute is longer than this.
        unsafe { self.driver.cuMemPoolGetAttribute(pool as CUmemoryPool, attribute, to) }?;
        Ok(value)
    }

    fn set(&self, pool: usize, attribute: Attribute, value: u64) -> Result<()> {
        let mut value = value;
        let from = (&raw mut value).cast::<c_void>();
        // SAFETY: as in `get`.
        unsafe { self.driver.cuMemPoolSetAttribute(pool as CUmemoryPool, attribute, from) }?;
        Ok(())
    }

    /// Sets the pool up at the first use. The device's context is current.
    fn ready(&self, device: &Device, peers: u64) -> Result<&Ready> {
        self.ready.get_or_try_init(|| {
            let supported = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
            if device.attribute_or(supported, 0)? == 0 {
                return Err(Error::NotSupported {
                    what: "backend:cudaMallocAsync (cuMemAllocAsync)",
                    by: "device",
                });
            }
            let mut pool = std::ptr::null_mut();
            // SAFETY: `pool` is writable, the device exists.
            unsafe { self.driver.cuDeviceGetDefaultMemPool(&mut pool, device.handle()) }?;
            let pool = pool as usize;
            let mut before = [0; SETTINGS.len()];
            for ((attribute, _), before) in SETTINGS.iter().zip(&mut before) {
                *before = self.get(pool, *attribute)?;
            }
            let set_up = || {
                SETTINGS.iter().try_for_each(|(attribute, to)| self.set(pool, *attribute, *to))?;
                (0..MAX_DEVICES as i32)
                    .filter(|peer| peers >> peer & 1 == 1)
                    .try_for_each(|peer| self.grant(pool, device, peer))
            };
            set_up().inspect_err(|_| self.restore(pool, &before))?;
            Ok(Ready { pool, before })
        })
    }

    fn restore(&self, pool: usize, before: &[u64; SETTINGS.len()]) {
        for ((attribute, _), before) in SETTINGS.iter().zip(before) {
            let _ = self.set(pool, *attribute, *before);
        }
    }

    fn grant(&self, pool: usize, device: &Device, peer: i32) -> Result<()> {
        let access = device.memory().virtual_memory.access(peer);
        // SAFETY: the pool exists, one description is passed.
        unsafe { self.driver.cuMemPoolSetAccess(pool as CUmemoryPool, &access, 1) }?;
        Ok(())
    }

    /// Gives a peer access to the pool, if the pool is set up.
    pub fn allow_peer(&self, device: &Device, peer: i32) -> Result<()> {
        self.ready.get().map_or(Ok(()), |ready| self.grant(ready.pool, device, peer))
    }

    /// Gives unused memory back to the driver. Blocks whose free has not completed on the device
    /// stay.
    fn trim(&self) -> Result<()> {
        let Some(ready) = self.ready.get() else { return Ok(()) };
        // SAFETY: the pool exists.
        unsafe { self.driver.cuMemPoolTrimTo(ready.pool as CUmemoryPool, 0) }?;
        Ok(())
    }

    /// Reads the driver's counters, which are all that PyTorch reports for this backend.
    pub fn count(&self, all: &mut Statistics) -> Result<()> {
        let Some(ready) = self.ready.get() else { return Ok(()) };
        let get = |attribute| self.get(ready.pool, attribute).map(|value| value as i64);
        let used = get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        let used_peak = get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
        let reserved = get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let reserved_peak = get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
        for counter in [ALLOCATED_BYTES, ACTIVE_BYTES] {
            all.counters[counter][ALL].current = used;
            all.counters[counter][ALL].peak = used_peak;
        }
        all.reserved_bytes[ALL].current = reserved;
        all.reserved_bytes[ALL].peak = reserved_peak;
        Ok(())
    }

    /// Resets every peak to its current value.
    pub fn reset_peak(&self) -> Result<()> {
        let Some(ready) = self.ready.get() else { return Ok(()) };
        self.set(ready.pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
        self.set(ready.pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)
    }

    /// Counts one more live block and reserves its entry in `postponed`, so that freeing needs no
    /// host memory.
    fn reserve_postponed(&self) -> Result<()> {
        let live = self.live.fetch_add(1, Ordering::Relaxed) + 1;
        let mut postponed = self.postponed.lock();
        let missing = live.saturating_sub(postponed.len());
        let no_memory = |_| Error::OutOfHostMemory("what is freed after a capture");
        postponed.try_reserve(missing).map_err(no_memory).inspect_err(|_| self.uncount())
    }

    fn uncount(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// Postpones the free of a block until a capture ends.
    fn postpone_free(&self, address: u64, block: Block) {
        let mut postponed = self.postponed.lock();
        postponed.push((address, block));
        self.postponed_count.store(postponed.len(), Ordering::Relaxed);
        drop(postponed);
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            log::write(
                Level::Warning,
                format_args!(
                    "tcuda_free was called on an uncaptured allocation during graph capture \
                     (address = {address:#x}); it is freed after the capture. If the graph uses \
                     it, freeing it is an error."
                ),
            );
        }
    }

    /// The number of postponed frees.
    fn postponed(&self) -> usize {
        self.postponed_count.load(Ordering::Relaxed)
    }

    /// Takes the oldest postponed block; the capacity stays.
    fn take_postponed(&self) -> Option<(u64, Block)> {
        let mut postponed = self.postponed.lock();
        let first = (!postponed.is_empty()).then(|| postponed.remove(0));
        self.postponed_count.store(postponed.len(), Ordering::Relaxed);
        first
    }

    /// Frees all postponed blocks and restores the pool's settings, at shutdown. The context is
    /// current.
    pub fn close(&self) {
        let Some(ready) = self.ready.get() else { return };
        while let Some((address, _)) = self.take_postponed() {
            // SAFETY: ours, and no longer in use.
            let _ = unsafe { self.driver.cuMemFree(address) };
        }
        self.restore(ready.pool, &ready.before);
        let _ = self.trim();
    }
}

/// Is a stream that uses an uncaptured block captured now?
fn is_in_capture(gpus: &Gpus, block: &Block) -> Result<bool> {
    if matches!(block.origin, Origin::DriverPool { captured: true }) {
        return Ok(false);
    }
    for stream in std::iter::once(block.stream()).chain(block.uses()) {
        if let EndState::Alive(_named) = stream.end_state()
            && ordering(gpus, stream)?.is_capturing(gpus)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn ordering<'a>(gpus: &'a Gpus, stream: &'a Stream) -> Result<&'a Stream> {
    Ok(ordering_stream(gpus.device(stream.device())?, stream))
}

/// Makes a stream wait for the work that is queued on another now, or that was queued at its end.
fn wait_for_end(gpus: &Gpus, waiter: &Stream, stream: &Stream) -> Result<()> {
    match stream.end_state() {
        EndState::Alive(_named) => waiter.wait_stream(gpus, ordering(gpus, stream)?),
        EndState::Gone(None) => Ok(()),
        EndState::Gone(Some(event)) => waiter.wait(gpus, event as CUevent),
        EndState::Lost => {
            gpus.device(stream.device())?.synchronize()?;
            stream.note_context_synced();
            Ok(())
        }
    }
}

impl DeviceMemory {
    /// Allocates from the pool; also returns whether the allocation is part of a capture.
    pub(in crate::memory) fn allocate_in_pool(
        &self,
        gpus: &Gpus,
        device: &Device,
        stream: &Stream,
        bytes: u64,
    ) -> Result<(u64, bool)> {
        self.free_postponed(gpus, device);
        let _context = device.enter()?;
        let ready = self.pool.ready(device, self.virtual_memory.peers())?;
        let captured = stream.is_capturing(gpus)?;
        self.pool.reserve_postponed()?;
        let (pool, mut address) = (ready.pool as CUmemoryPool, 0);
        // SAFETY: `address` is writable, the pool exists, the stream is alive.
        let given = unsafe {
            self.driver.cuMemAllocFromPoolAsync(&mut address, bytes as usize, pool, stream.native())
        };
        given.inspect_err(|_| self.pool.uncount())?;
        Ok((address, captured))
    }

    /// Frees a block after the work of all streams that use it.
    pub(in crate::memory) fn free_in_pool(
        &self,
        gpus: &Gpus,
        device: &Device,
        address: u64,
        block: &Block,
    ) -> Result<()> {
        let _context = device.enter()?;
        let own = block.stream();
        if matches!(block.origin, Origin::DriverPool { captured: true }) {
            if own.is_capturing(gpus)? {
                // All these streams belong to the capture. The block's own stream waits for them,
                // which joins them to the capture's origin.
                for stream in block.uses() {
                    if stream.is_capturing(gpus)? {
                        own.wait_stream(gpus, stream)?;
                    }
                }
                return self.free_async(address, own);
            }
            log::write(
                Level::Warning,
                format_args!(
                    "Attempting uncaptured free of a captured allocation with address \
                     {address:#x}: what later launches of its graph put there can no longer be read"
                ),
            );
        }
        if block.uses().next().is_none()
            && !own.is_per_thread()
            && let EndState::Alive(_named) = own.end_state()
        {
            return self.free_async(address, own);
        }
        match self.free_after_all(gpus, device, address, block) {
            // Freeing must not need host memory: the host waits for the devices instead.
            Err(Error::OutOfHostMemory(_)) => {
                let _required = sync_debug::required();
                for stream in std::iter::once(own).chain(block.uses()) {
                    gpus.device(stream.device())?.synchronize()?;
                }
                // SAFETY: from the pool, taken out of the table, and no longer in use.
                unsafe { self.driver.cuMemFree(address) }?;
                self.pool.uncount();
                Ok(())
            }
            other => other,
        }
    }

    /// Frees on an internal stream that waits for all streams that use the block, so that none of
    /// these waits for another.
    fn free_after_all(
        &self,
        gpus: &Gpus,
        device: &Device,
        address: u64,
        block: &Block,
    ) -> Result<()> {
        let unifying = device.streams.unifying(device)?;
        for stream in std::iter::once(block.stream()).chain(block.uses()) {
            wait_for_end(gpus, unifying, stream)?;
        }
        self.free_async(address, unifying)
    }

    fn free_async(&self, address: u64, stream: &Stream) -> Result<()> {
        // SAFETY: from the pool, taken out of the table; the stream is alive.
        unsafe { self.driver.cuMemFreeAsync(address, stream.native()) }?;
        self.pool.uncount();
        Ok(())
    }

    /// Postpones the free of a block if a stream that uses it is captured; otherwise returns the
    /// block.
    #[expect(clippy::result_large_err, reason = "the block goes back without host memory")]
    pub(in crate::memory) fn postpone(
        &self,
        gpus: &Gpus,
        address: u64,
        block: Block,
    ) -> Result<Option<Block>, (Error, Block)> {
        if !matches!(block.origin, Origin::DriverPool { .. }) {
            return Ok(Some(block));
        }
        let _relaxed = Relaxed::enter(self.driver);
        match is_in_capture(gpus, &block) {
            Ok(false) => Ok(Some(block)),
            Ok(true) => {
                self.pool.postpone_free(address, block);
                Ok(None)
            }
            Err(error) => Err((error, block)),
        }
    }

    /// Frees the postponed blocks whose captures have ended. A block that cannot be freed now stays
    /// postponed.
    fn free_postponed(&self, gpus: &Gpus, device: &Device) {
        for _ in 0..self.pool.postponed() {
            let Some((address, block)) = self.pool.take_postponed() else { return };
            match self.postpone(gpus, address, block) {
                Ok(None) => (),
                Ok(Some(block)) => drop(self.release_now(gpus, device, address, block)),
                Err((_, block)) => crate::memory::device::uncached::put_back(address, block),
            }
        }
    }

    /// Waits for all uncaptured work of the device, then gives unused memory back. Returns false if
    /// the pool was never used.
    pub(in crate::memory) fn trim_pool(&self, gpus: &Gpus, device: &Device) -> Result<bool> {
        if self.pool.ready.get().is_none() {
            return Ok(false);
        }
        let _relaxed = Relaxed::enter(self.driver);
        self.free_postponed(gpus, device);
        let _context = device.enter()?;
        let unifying = device.streams.unifying(device)?;
        device.streams.each(|stream| {
            match stream.end_state() {
                EndState::Alive(_named) if ordering(gpus, stream)?.is_capturing(gpus)? => {
                    return Ok(());
                }
                _ => (),
            }
            wait_for_end(gpus, unifying, stream)
        })?;
        unifying.synchronize(gpus)?;
        self.pool.trim()?;
        Ok(true)
    }
}
