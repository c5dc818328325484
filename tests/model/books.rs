//! What the allocator should have: live and pending blocks, and the five exact statistics.

use super::ops::{MIB, SMALL_ARENA};
use super::order::Point;
use std::collections::{BTreeMap, BTreeSet};
use tcuda::ffi::statistics::{tcuda_memory_statistics, tcuda_stat, tcuda_stat_by_pool};

/// Bytes of a block whose contents are followed.
pub const WINDOW: usize = 192;

pub fn round_size(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(512) * 512
}

/// A block as the allocator knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub device: i32,
    /// The queue in whose order it is reused.
    pub queue: usize,
    pub requested: u64,
}

impl Held {
    pub fn bytes(&self) -> u64 {
        round_size(self.requested)
    }

    pub fn is_small(&self) -> bool {
        self.bytes() <= MIB
    }

    pub fn is_of_arena(&self, other: &Held) -> bool {
        self.queue == other.queue && self.is_in_small() == other.is_in_small()
    }

    /// Is it in a small arena?
    pub fn is_in_small(&self) -> bool {
        self.bytes() <= SMALL_ARENA
    }
}

/// A live block and what is known of its contents.
#[derive(Clone, Debug)]
pub struct Live {
    pub held: Held,
    /// Queues that tcuda_record_stream named.
    pub recorded: BTreeSet<usize>,
    /// The last use by each queue.
    pub uses: BTreeMap<usize, Point>,
    pub written: Option<Point>,
    pub reads: Vec<Point>,
    /// Offset and contents of what is followed; nothing where that is unknown.
    pub offset: u64,
    pub bytes: Option<Vec<u8>>,
}

/// torch's Stat.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stat {
    current: i64,
    peak: i64,
    allocated: i64,
    freed: i64,
}

impl Stat {
    fn of(stat: &tcuda_stat) -> Stat {
        Stat {
            current: stat.current as i64,
            peak: stat.peak as i64,
            allocated: stat.allocated as i64,
            freed: stat.freed as i64,
        }
    }
}

pub const LANES: [&str; 5] =
    ["allocation", "allocated_bytes", "active", "active_bytes", "requested_bytes"];
const ROWS: [&str; 3] = ["all", "small_pool", "large_pool"];

/// The statistics of one device.
#[derive(Default)]
pub struct Stats {
    lanes: [[Stat; 3]; 5],
    pub retries: u64,
    pub ooms: u64,
}

impl Stats {
    fn add(&mut self, lane: usize, is_small: bool, by: i64) {
        for row in [0, if is_small { 1 } else { 2 }] {
            let stat = &mut self.lanes[lane][row];
            stat.current += by;
            stat.peak = stat.peak.max(stat.current);
            *(if by > 0 { &mut stat.allocated } else { &mut stat.freed }) += by.abs();
        }
    }

    pub fn hold(&mut self, held: &Held, sign: i64) {
        self.add(0, held.is_small(), sign);
        self.add(1, held.is_small(), sign * held.bytes() as i64);
    }

    pub fn activate(&mut self, held: &Held, sign: i64) {
        self.add(2, held.is_small(), sign);
        self.add(3, held.is_small(), sign * held.bytes() as i64);
        self.add(4, held.is_small(), sign * held.requested as i64);
    }

    pub fn reset_peak(&mut self) {
        self.lanes.as_flattened_mut().iter_mut().for_each(|stat| stat.peak = stat.current);
    }

    pub fn reset_accumulated(&mut self) {
        let stats = self.lanes.as_flattened_mut();
        stats.iter_mut().for_each(|stat| (stat.allocated, stat.freed) = (0, 0));
        (self.retries, self.ooms) = (0, 0);
    }

    pub fn compare(&self, device: i32, found: &tcuda_memory_statistics) {
        let lanes: [&tcuda_stat_by_pool; 5] = [
            &found.allocation,
            &found.allocated_bytes,
            &found.active,
            &found.active_bytes,
            &found.requested_bytes,
        ];
        for (lane, found) in lanes.into_iter().enumerate() {
            let rows = [&found.all, &found.small_pool, &found.large_pool];
            for (row, found) in rows.into_iter().enumerate() {
                let (found, wanted) = (Stat::of(found), self.lanes[lane][row]);
                let name = (LANES[lane], ROWS[row]);
                assert_eq!(found, wanted, "device {device}, {}.{}", name.0, name.1);
            }
        }
        assert_eq!(found.num_ooms, self.ooms, "device {device}, num_ooms");
        assert_eq!(found.num_alloc_retries, self.retries, "device {device}, num_alloc_retries");
    }
}
