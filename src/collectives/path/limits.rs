//! From where on which way is taken, in one place, in bytes unless it says otherwise. They follow
//! from what was measured on H200s joined by NVLink, which docs/collectives.md lists.

use std::sync::atomic::{AtomicU64, Ordering};

/// A limit. Tests and measurements change it; nothing else does.
pub struct Limit(AtomicU64);

impl Limit {
    const fn new(value: u64) -> Limit {
        Limit(AtomicU64::new(value))
    }

    /// What it is.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it; what it was.
    #[doc(hidden)]
    pub fn set(&self, value: u64) -> u64 {
        self.0.swap(value, Ordering::Relaxed)
    }
}

/// Up to here, all that goes over links together, the root alone broadcasts, by one kernel.
/// Launches on several devices, and the waits between those, cost more than what their links save:
/// 10 us, in which a link carries 3.7 MB.
pub static SMALL_BROADCAST: Limit = Limit::new(4 << 20);

/// The same of the destination of sums.
pub static SMALL_SUM: Limit = Limit::new(4 << 20);

/// Up to here several rows are one kernel's: every copy of an engine takes 2 us besides.
pub static SMALL_COPIES: Limit = Limit::new(1 << 20);

/// From here on copy engines broadcast: they fill a link better than kernels (396 GB/s against 370,
/// since a packet has 256 bytes instead of 128), and lose 3 us between two copies.
pub static LARGE_BROADCAST: Limit = Limit::new(128 << 20);

/// The least that a copy engine is given at a time; the last chunks are of this size, because
/// nothing hides them.
pub static LEAST_CHUNK: Limit = Limit::new(2 << 20);

/// The most: less takes more calls, more would make the first wait longer.
pub static MOST_CHUNK: Limit = Limit::new(64 << 20);

/// Streams of a device on which it copies, so that it reads and writes at a time; 1 to
/// [`MOST_LANES`].
pub static LANES: Limit = Limit::new(2);

/// The most of those.
pub const MOST_LANES: usize = 4;

/// Rows from this width on are copied by an engine: 380 GB/s; of 64 bytes it copies 186, of 16
/// bytes 47.
pub static WIDE_ROW: Limit = Limit::new(256);

/// The next chunk of what is left, for so many owners: large while much is left. Whole lines.
pub(super) fn chunk(left: u64, owners: u64) -> u64 {
    let least = LEAST_CHUNK.get().max(LINE);
    let wanted = (left / (2 * owners.max(1))).min(MOST_CHUNK.get()).max(least);
    (wanted / LINE * LINE).min(left)
}

/// Ranges are cut at multiples of this: of every size of an element and every vector.
pub(super) const LINE: u64 = 512;
