//! The statistics of a device's memory, in total and by scope, and its free memory, as the host
//! reads them.

use crate::base::error::{Error, Result};
use crate::base::log::{self, Level};
use crate::base::thread;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::gpus;
use crate::memory::config::size::Class;
use crate::memory::device::backend::Server;
use crate::memory::device::{DeviceMemory, DeviceStats};
use crate::memory::stats::ledger::Statistics;
use std::sync::atomic::Ordering;

/// Called when this thread ends: closes its open scopes.
pub(crate) fn leave() {
    let scopes = &thread::block().scopes;
    if scopes.load(Ordering::Relaxed) == 0 {
        return;
    }
    scopes.store(0, Ordering::Relaxed);
    let Ok(inside) = thread::enter() else { return };
    let Some(gpus) = gpus::existing(&inside) else { return };
    for device in &gpus.devices {
        let forget = |stats: &mut DeviceStats| stats.ledger.forget_scopes(thread::number());
        device.memory().with_ledger(None, forget);
    }
}

/// Changes the number of this thread's open scopes.
fn count_scopes(change: impl FnOnce(u32) -> u32) {
    let scopes = &thread::block().scopes;
    scopes.store(change(scopes.load(Ordering::Relaxed)), Ordering::Relaxed);
}

/// The mapped memory of a stream in a size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSize {
    /// The driver's handle of the stream.
    pub stream: usize,
    /// Size class.
    pub class: Class,
    /// Bytes.
    pub bytes: u64,
}

impl DeviceMemory {
    /// Fills in all statistics except those that the driver counts.
    fn read_statistics(&self, to: &mut Statistics) {
        self.with_ledger(None, |stats| {
            stats.raise_peaks();
            stats.statistics(to);
        });
        to.max_split_size = self.policy.max_split_size();
    }

    /// All statistics except those that the driver counts.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        self.read_statistics(&mut statistics);
        statistics
    }

    /// Fills in all statistics. If the driver's pool serves, its statistics are those that the
    /// driver counts.
    pub fn all_statistics(&self, to: &mut Statistics) -> Result<()> {
        self.read_statistics(to);
        if self.server() == Server::DriverPool {
            let _relaxed = Relaxed::enter(self.driver);
            self.pool.count(to)?;
        }
        Ok(())
    }

    /// Opens a scope of statistics of this thread.
    pub fn open_scope(&self) -> Result<()> {
        if self.server() == Server::DriverPool {
            let (what, by) = ("a scope of statistics", "allocator backend, cudaMallocAsync");
            return Err(Error::NotSupported { what, by });
        }
        let opened = self.with_ledger(None, |stats| stats.open_scope(thread::number()));
        count_scopes(|open| open.saturating_add(u32::from(opened)));
        if opened { Ok(()) } else { Err(Error::OutOfHostMemory("a scope of statistics")) }
    }

    /// Closes the newest scope of this thread, and returns what happened in it.
    pub fn close_scope(&self) -> Result<Statistics> {
        let closed = self.with_ledger(None, |stats| stats.close_scope(thread::number()));
        let statistics = closed.ok_or(Error::InvalidState(
            "this thread has no open scope of statistics on the device; call \
             tcuda_memory_stats_push first",
        ))?;
        count_scopes(|open| open.saturating_sub(1));
        Ok(Statistics { max_split_size: self.policy.max_split_size(), ..statistics })
    }

    /// Bytes of the largest free block of any stream, and of any pool that is awake.
    pub fn largest_free(&self) -> Result<u64> {
        let mut largest = 0;
        self.each_arena(|state| {
            // Blocks of a pool that sleeps have no memory.
            if !state.arena().pool().is_asleep() {
                largest = largest.max(state.largest_free());
            }
            Ok(())
        })?;
        Ok(largest)
    }

    /// The mapped memory of each stream and size class, that of private pools included.
    pub fn segment_sizes(&self) -> Result<Vec<SegmentSize>> {
        let mut list: Vec<SegmentSize> = Vec::new();
        self.each_arena(|state| {
            let arena = state.arena();
            let bytes = state.reserved().0 as u64;
            let Some(stream) = arena.stream().filter(|_| !arena.segmented && bytes > 0) else {
                return Ok(());
            };
            let (native, class) = (stream.native() as usize, arena.class);
            let same = |size: &&mut SegmentSize| (size.stream, size.class) == (native, class);
            match list.iter_mut().find(same) {
                Some(size) => size.bytes += bytes,
                None => {
                    let no_memory = |_| Error::OutOfHostMemory("the sizes of segments");
                    list.try_reserve(1).map_err(no_memory)?;
                    list.push(SegmentSize { stream: native, class, bytes });
                }
            }
            Ok(())
        })?;
        Ok(list)
    }

    /// Resets every peak to its current value.
    pub fn reset_peak(&self) {
        self.with_ledger(None, DeviceStats::reset_peak);
        self.by_pool.lock().reset_peak();
    }

    /// Resets these peaks, and those that the driver keeps.
    pub fn reset_all_peaks(&self) -> Result<()> {
        self.reset_peak();
        if self.server() == Server::DriverPool {
            let _relaxed = Relaxed::enter(self.driver);
            self.pool.reset_peak()?;
        }
        Ok(())
    }

    /// Resets every total to 0.
    pub fn reset_accumulated(&self) {
        if self.server() == Server::DriverPool {
            log::write(
                Level::Warning,
                format_args!(
                    "backend:cudaMallocAsync has no accumulated statistics: nothing is reset but \
                     the number of failures and retries"
                ),
            );
        }
        self.with_ledger(None, DeviceStats::reset_accumulated);
        self.by_pool.lock().reset_accumulated();
    }
}
