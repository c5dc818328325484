//! The thresholds between the paths, in bytes unless noted otherwise. They are derived from
//! measurements on H200s with NVLink, which `docs/collectives.md` lists.

use std::sync::atomic::{AtomicU64, Ordering};

/// A threshold. Only tests and measurements change it.
pub struct Limit(AtomicU64);

impl Limit {
    const fn new(value: u64) -> Limit {
        Limit(AtomicU64::new(value))
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the value; returns the previous one.
    #[doc(hidden)]
    pub fn set(&self, value: u64) -> u64 {
        self.0.swap(value, Ordering::Relaxed)
    }
}

/// The largest broadcast, in bytes over all links, that the root does alone with one kernel.
/// Launches on several devices and the waits between them cost 10 us, in which a link carries 3.7
/// MB.
pub static SMALL_BROADCAST: Limit = Limit::new(4 << 20);

/// The largest sum, in bytes over all links, that the destination computes alone.
pub static SMALL_SUM: Limit = Limit::new(4 << 20);

/// The largest copy of several rows that one kernel does: each copy by an engine costs 2 us.
pub static SMALL_COPIES: Limit = Limit::new(1 << 20);

/// The least broadcast that copy engines do. They use a link better than kernels (396 GB/s against
/// 370, because a packet has 256 bytes instead of 128), and lose 3 us between two copies.
pub static LARGE_BROADCAST: Limit = Limit::new(128 << 20);

/// The smallest chunk for a copy engine. The last chunks have this size, because no other work
/// hides them.
pub static MIN_CHUNK: Limit = Limit::new(2 << 20);

/// The largest chunk. Smaller chunks take more calls; larger ones delay the first wait.
pub static MAX_CHUNK: Limit = Limit::new(64 << 20);

/// Number of copy streams per device, so that reads and writes overlap; 1 to [`MAX_LANES`].
pub static LANES: Limit = Limit::new(2);

/// The maximum of [`LANES`].
pub use crate::gpu::internal_streams::MAX_LANES;

/// The least width of rows that copy engines do: 380 GB/s. They reach 186 GB/s with 64 bytes, and
/// 47 with 16.
pub static WIDE_ROW: Limit = Limit::new(256);

/// Size of the next chunk, a multiple of a line. It is large while much is left.
pub(super) fn chunk(left: u64, owners: u64) -> u64 {
    let least = MIN_CHUNK.get().max(LINE);
    let wanted = (left / (2 * owners.max(1))).min(MAX_CHUNK.get()).max(least);
    (wanted / LINE * LINE).min(left)
}

/// Ranges are cut at multiples of this, which every element and vector size divides.
pub(super) const LINE: u64 = 512;
