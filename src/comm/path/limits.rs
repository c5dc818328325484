//! From where on which way is taken, in one place. Each was found on H200s joined by NVLink, by timing
//! both ways over sizes (benches of collectives), and is a number of bytes unless it says otherwise.

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

/// Up to here, over links, one kernel on the leader does all: the root or the destination. Where the
/// launches of several are more than what their links save.
pub static SMALL: Limit = Limit::new(256 << 10);

/// From here on copy engines broadcast: they fill a link better than kernels (256 bytes in a packet
/// instead of 128), and take longer to begin.
pub static LARGE_BROADCAST: Limit = Limit::new(16 << 20);

/// From here on they carry what is added, through scratch memory.
pub static LARGE_SUM: Limit = Limit::new(32 << 20);

/// The least that a copy engine is given at a time; the last chunks are of this size, because nothing
/// hides them.
pub static LEAST_CHUNK: Limit = Limit::new(1 << 20);

/// The most of a broadcast: more would make the first wait longer, less takes more calls.
pub static MOST_CHUNK: Limit = Limit::new(16 << 20);

/// The most of a sum; scratch memory is as many of these as there are lanes and sources elsewhere.
pub static MOST_SUM_CHUNK: Limit = Limit::new(8 << 20);

/// Streams of a device whose copies fill each other's gaps; 1 to [`MOST_LANES`].
pub static LANES: Limit = Limit::new(2);

/// The most of those.
pub const MOST_LANES: usize = 4;

/// Rows from this width on are copied by an engine, which is slow with short ones.
pub static WIDE_ROW: Limit = Limit::new(4 << 10);

/// The next chunk of what is left, when `shares` of them are under way at a time: large while much is
/// left. Whole cache lines, so that vectors stay aligned.
pub(super) fn chunk(left: u64, shares: u64, most: u64) -> u64 {
    let least = LEAST_CHUNK.get().clamp(LINE, u64::MAX / 2);
    let wanted = (left / (2 * shares.max(1))).min(most).max(least);
    (wanted / LINE * LINE).min(left)
}

/// Ranges are cut at multiples of this: of every size of an element and every vector.
pub(super) const LINE: u64 = 512;
