//! The statistics of pinned memory, as in PyTorch: the memory in use, the memory from the driver,
//! and the duration of the driver calls.

use crate::base::lock::Mutex;
use crate::base::rank::Rank;
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

/// A quantity that all heaps change: its current value and its peak.
#[derive(Default)]
struct Gauge {
    current: AtomicI64,
    peak: AtomicI64,
}

impl Gauge {
    #[inline]
    fn add(&self, by: i64) {
        let now = self.current.fetch_add(by, Ordering::SeqCst) + by;
        if now > self.peak.load(Ordering::SeqCst) {
            self.peak.fetch_max(now, Ordering::SeqCst);
        }
    }

    #[inline]
    fn sub(&self, by: i64) {
        self.current.fetch_sub(by, Ordering::SeqCst);
    }

    fn reset_peak(&self) {
        self.peak.store(self.current.load(Ordering::SeqCst), Ordering::SeqCst);
        // A thread that counted in between may have compared with the old peak.
        self.peak.fetch_max(self.current.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    fn stat(&self, allocated: i64, freed: i64) -> Stat {
        let peak = self.peak.load(Ordering::SeqCst);
        let current = self.current.load(Ordering::SeqCst);
        Stat { current, peak: peak.max(current), allocated, freed }
    }
}

/// The numbers of active blocks and of their bytes.
#[derive(Default)]
#[repr(align(128))]
struct Active {
    requests: Gauge,
    bytes: Gauge,
}

/// The counters that all heaps share.
pub struct Counts {
    active: Active,
    driver: Mutex<HostStatistics>,
}

fn add(stat: &mut Stat, by: i64) {
    stat.current += by;
    stat.peak = stat.peak.max(stat.current);
    if by > 0 {
        stat.allocated += by;
    } else {
        stat.freed -= by;
    }
}

impl Counts {
    /// All counters are 0.
    pub fn new() -> Counts {
        Counts {
            active: Active::default(),
            driver: Mutex::new(Rank::LEAF, HostStatistics::default()),
        }
    }

    /// Counts an allocated block.
    #[inline]
    pub fn count_alloc(&self, bytes: u64) {
        self.active.requests.add(1);
        self.active.bytes.add(bytes as i64);
    }

    /// Counts a block that became free.
    #[inline]
    pub fn count_free(&self, bytes: u64) {
        self.active.requests.sub(1);
        self.active.bytes.sub(bytes as i64);
    }

    /// Counts a segment that the driver allocated.
    pub fn count_segment(&self, bytes: usize, took: Duration) {
        let mut driver = self.driver.lock();
        add(&mut driver.allocations, 1);
        add(&mut driver.allocated_bytes, bytes as i64);
        driver.alloc_time.add(took);
    }

    /// Counts a segment that the driver freed.
    pub fn count_segment_free(&self, bytes: usize, took: Duration) {
        let mut driver = self.driver.lock();
        add(&mut driver.allocations, -1);
        add(&mut driver.allocated_bytes, -(bytes as i64));
        driver.free_time.add(took);
    }

    /// All statistics; the arguments are the heaps' totals of blocks and bytes.
    pub fn statistics(&self, allocated: [i64; 2], freed: [i64; 2]) -> HostStatistics {
        let mut all = *self.driver.lock();
        all.active_requests = self.active.requests.stat(allocated[0], freed[0]);
        all.active_bytes = self.active.bytes.stat(allocated[1], freed[1]);
        all
    }

    /// Resets the peaks to the current values, and the longest and shortest durations.
    pub fn reset_peak(&self) {
        self.active.requests.reset_peak();
        self.active.bytes.reset_peak();
        let mut held = self.driver.lock();
        let driver = &mut *held;
        for stat in [&mut driver.allocations, &mut driver.allocated_bytes] {
            stat.peak = stat.current;
        }
        for times in [&mut driver.alloc_time, &mut driver.free_time] {
            (times.max, times.min) = (0, 0);
        }
    }

    /// Resets the totals to 0, except those of the blocks, which the heaps hold.
    pub fn reset_accumulated(&self) {
        let mut held = self.driver.lock();
        let driver = &mut *held;
        for stat in [&mut driver.allocations, &mut driver.allocated_bytes] {
            (stat.allocated, stat.freed) = (0, 0);
        }
        for times in [&mut driver.alloc_time, &mut driver.free_time] {
            (times.total, times.count) = (0, 0);
        }
    }
}
