//! Counts of pinned memory, as PyTorch has them: what hosts use, what the driver gave, and how long it
//! took.

use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::sync::Ordering;
use crate::memory::stats::ledger::Stat;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

/// Microseconds of a kind of call.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Times {
    /// All together.
    pub total: u64,
    /// The longest.
    pub max: u64,
    /// The shortest.
    pub min: u64,
    /// Calls.
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

    /// The mean.
    pub fn average(&self) -> u64 {
        self.total.checked_div(self.count).unwrap_or(0)
    }
}

/// All statistics.
#[derive(Clone, Copy, Default, Debug)]
pub struct HostStatistics {
    /// Segments from the driver.
    pub allocations: Stat,
    /// Their bytes.
    pub allocated_bytes: Stat,
    /// Blocks held by the host, or freed and awaiting streams.
    pub active_requests: Stat,
    /// Their bytes, rounded.
    pub active_bytes: Stat,
    /// What getting memory took.
    pub alloc_time: Times,
    /// What giving it back took.
    pub free_time: Times,
}

/// A quantity that all heaps change: its present value, and the highest one.
#[derive(Default)]
struct Height {
    current: AtomicI64,
    peak: AtomicI64,
}

impl Height {
    #[inline]
    fn rise(&self, by: i64) {
        let now = self.current.fetch_add(by, Ordering::SeqCst) + by;
        if now > self.peak.load(Ordering::SeqCst) {
            self.peak.fetch_max(now, Ordering::SeqCst);
        }
    }

    #[inline]
    fn fall(&self, by: i64) {
        self.current.fetch_sub(by, Ordering::SeqCst);
    }

    fn reset_peak(&self) {
        self.peak.store(self.current.load(Ordering::SeqCst), Ordering::SeqCst);
        // Whoever rose in between may have seen the old peak.
        self.peak.fetch_max(self.current.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    fn stat(&self, allocated: i64, freed: i64) -> Stat {
        let peak = self.peak.load(Ordering::SeqCst);
        let current = self.current.load(Ordering::SeqCst);
        Stat { current, peak: peak.max(current), allocated, freed }
    }
}

/// Both quantities of the blocks.
#[derive(Default)]
#[repr(align(128))]
struct Active {
    requests: Height,
    bytes: Height,
}

/// What is counted for all heaps together.
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
    /// Nothing yet.
    pub fn new() -> Counts {
        Counts {
            active: Active::default(),
            driver: Mutex::new(Rank::LEAF, HostStatistics::default()),
        }
    }

    /// A block is given out.
    #[inline]
    pub fn block(&self, bytes: u64) {
        self.active.requests.rise(1);
        self.active.bytes.rise(bytes as i64);
    }

    /// It is free again.
    #[inline]
    pub fn no_block(&self, bytes: u64) {
        self.active.requests.fall(1);
        self.active.bytes.fall(bytes as i64);
    }

    /// The driver gave memory.
    pub fn segment(&self, bytes: usize, took: Duration) {
        let mut driver = self.driver.lock();
        add(&mut driver.allocations, 1);
        add(&mut driver.allocated_bytes, bytes as i64);
        driver.alloc_time.add(took);
    }

    /// It took memory back.
    pub fn no_segment(&self, bytes: usize, took: Duration) {
        let mut driver = self.driver.lock();
        add(&mut driver.allocations, -1);
        add(&mut driver.allocated_bytes, -(bytes as i64));
        driver.free_time.add(took);
    }

    /// All, with the totals that the heaps counted: numbers and bytes.
    pub fn statistics(&self, allocated: [i64; 2], freed: [i64; 2]) -> HostStatistics {
        let mut all = *self.driver.lock();
        all.active_requests = self.active.requests.stat(allocated[0], freed[0]);
        all.active_bytes = self.active.bytes.stat(allocated[1], freed[1]);
        all
    }

    /// Peaks become their current values; the longest and shortest times are found anew.
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

    /// Totals become 0. Those of the blocks are the heaps'.
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
