//! The statistics of pinned memory, as in PyTorch: the memory in use, the memory from the driver,
//! and the duration of the driver calls.

use crate::base::sync::Ordering;
use crate::memory::stats::ledger::Stat;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

/// The durations of a kind of call, in microseconds.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Times {
    /// The sum.
    pub total: u64,
    /// The longest.
    pub max: u64,
    /// The shortest.
    pub min: u64,
    /// The number of calls.
    pub count: u64,
}

impl Times {
    fn add(&mut self, took: Duration) {
        let took = took.as_micros() as u64;
        self.total += took;
        self.count += 1;
        self.max = self.max.max(took);
        self.min = if self.min == 0 { took } else { self.min.min(took) };
    }

    /// The mean duration.
    pub fn average(&self) -> u64 {
        self.total.checked_div(self.count).unwrap_or(0)
    }
}

/// All statistics.
#[derive(Clone, Copy, Default, Debug)]
pub struct HostStatistics {
    /// Segments from the driver.
    pub allocations: Stat,
    /// The bytes of the segments.
    pub allocated_bytes: Stat,
    /// Blocks that are allocated, or freed and waiting for streams.
    pub active_requests: Stat,
    /// The bytes of these blocks, after rounding.
    pub active_bytes: Stat,
    /// Durations of allocations by the driver.
    pub alloc_time: Times,
    /// Durations of frees by the driver.
    pub free_time: Times,
}

impl HostStatistics {
    /// Counts a segment that the driver allocated, or with a negative number of bytes, freed.
    pub fn count(&mut self, bytes: i64, took: Duration) {
        self.allocations.change(bytes.signum());
        self.allocated_bytes.change(bytes);
        let times = if bytes > 0 { &mut self.alloc_time } else { &mut self.free_time };
        times.add(took);
    }

    /// Resets the peaks of segments, and the longest and shortest durations.
    pub fn reset_peak(&mut self) {
        self.allocations.reset_peak();
        self.allocated_bytes.reset_peak();
        for times in [&mut self.alloc_time, &mut self.free_time] {
            (times.max, times.min) = (0, 0);
        }
    }

    /// Resets the totals of segments and durations to 0.
    pub fn reset_accumulated(&mut self) {
        self.allocations.reset_accumulated();
        self.allocated_bytes.reset_accumulated();
        for times in [&mut self.alloc_time, &mut self.free_time] {
            (times.total, times.count) = (0, 0);
        }
    }
}

/// The numbers of active blocks and of their bytes, which all heaps change: their current values
/// and their peaks.
#[derive(Default)]
#[repr(align(128))]
pub struct Active {
    current: [AtomicI64; 2],
    peak: [AtomicI64; 2],
}

impl Active {
    /// Counts blocks that were allocated, and their bytes; or with negative numbers, blocks that
    /// became free.
    #[inline]
    pub fn count(&self, blocks: i64, bytes: i64) {
        for (lane, by) in [blocks, bytes].into_iter().enumerate() {
            let now = self.current[lane].fetch_add(by, Ordering::SeqCst) + by;
            if now > self.peak[lane].load(Ordering::SeqCst) {
                self.peak[lane].fetch_max(now, Ordering::SeqCst);
            }
        }
    }

    /// The statistics; the arguments are the heaps' totals.
    pub fn stats(&self, allocated: [i64; 2], freed: [i64; 2]) -> [Stat; 2] {
        std::array::from_fn(|lane| {
            let peak = self.peak[lane].load(Ordering::SeqCst);
            let current = self.current[lane].load(Ordering::SeqCst);
            let (allocated, freed) = (allocated[lane], freed[lane]);
            Stat { current, peak: peak.max(current), allocated, freed }
        })
    }

    /// Resets the peaks to the current values.
    pub fn reset_peak(&self) {
        for (peak, current) in self.peak.iter().zip(&self.current) {
            peak.store(current.load(Ordering::SeqCst), Ordering::SeqCst);
            // A thread that counted in between may have compared with the old peak.
            peak.fetch_max(current.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }
}
