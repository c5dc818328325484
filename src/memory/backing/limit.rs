//! The limit of the memory that the cache may hold on a device. Memory is claimed before the driver
//! is called, so that threads which grow at the same time do not exceed the limit together.

use crate::memory::config::fraction::bytes_of;
use std::sync::atomic::{AtomicU64, Ordering};

/// The limit and the claimed bytes.
pub struct Limit {
    /// `u64::MAX`: no limit.
    most: AtomicU64,
    claimed: AtomicU64,
    /// The bits of the requested fraction of the device's memory.
    fraction: AtomicU64,
    /// The claimed bytes at the last time that memory ran out; `u64::MAX`: it never did.
    short_at: AtomicU64,
}

impl Limit {
    /// No limit.
    pub fn new() -> Limit {
        Limit {
            most: AtomicU64::new(u64::MAX),
            claimed: AtomicU64::new(0),
            fraction: AtomicU64::new(1f64.to_bits()),
            short_at: AtomicU64::new(u64::MAX),
        }
    }

    /// Sets the limit to a fraction of `total`, rounded down. The fraction 1 means no limit.
    pub fn set(&self, fraction: f64, total: u64) {
        let most = if fraction == 1.0 { u64::MAX } else { bytes_of(fraction, total) };
        self.fraction.store(fraction.to_bits(), Ordering::Relaxed);
        self.most.store(most, Ordering::Relaxed);
        self.short_at.store(u64::MAX, Ordering::Relaxed);
    }

    /// Is a limit set?
    pub fn is_set(&self) -> bool {
        self.most() != u64::MAX
    }

    /// Records that memory ran out: the driver's, or the memory below the limit.
    pub fn note_shortage(&self) {
        self.short_at.store(self.claimed().max(1), Ordering::Relaxed);
    }

    /// Did memory run out since the limit was set, and is at least half as much claimed as was
    /// then? After the host gave most of it back, memory is no longer short.
    pub fn was_short(&self) -> bool {
        self.claimed() >= self.short_at.load(Ordering::Relaxed).div_ceil(2)
    }

    /// The fraction as it was set.
    pub fn fraction(&self) -> f64 {
        f64::from_bits(self.fraction.load(Ordering::Relaxed))
    }

    /// The limit in bytes; `u64::MAX`: no limit.
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// The claimed bytes.
    pub fn claimed(&self) -> u64 {
        self.claimed.load(Ordering::Relaxed)
    }

    /// Claims memory; false: the limit forbids it.
    pub fn claim(&self, bytes: u64) -> bool {
        let most = self.most();
        let more = |claimed: u64| claimed.checked_add(bytes).filter(|sum| *sum <= most);
        let claimed = self.claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        claimed.map_err(|_| self.note_shortage()).is_ok()
    }

    /// Releases claimed memory.
    pub fn release(&self, bytes: u64) {
        self.claimed.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_rounded_down_and_1_is_no_limit() {
        let limit = Limit::new();
        assert_eq!((limit.fraction(), limit.most()), (1.0, u64::MAX));
        limit.set(0.3, 1001);
        assert_eq!((limit.fraction(), limit.most()), (0.3, 300));
        limit.set(0.0, 1001);
        assert_eq!(limit.most(), 0);
        assert!(!limit.claim(1));
        limit.set(1.0, 1001);
        assert_eq!(limit.most(), u64::MAX);
    }

    #[test]
    fn memory_is_short_until_half_of_it_is_released() {
        let limit = Limit::new();
        assert!(!limit.was_short());
        limit.set(0.5, 2000);
        assert!(limit.claim(900) && !limit.was_short());
        assert!(!limit.claim(101) && limit.was_short());
        limit.release(450);
        assert!(limit.was_short());
        limit.release(1);
        assert!(!limit.was_short());
        // Memory can run out at a lower level: other processes may use it by now.
        limit.note_shortage();
        assert!(limit.was_short());
        limit.set(0.5, 2000);
        assert!(!limit.was_short());
    }

    #[test]
    fn threads_do_not_exceed_the_limit_together() {
        let limit = Limit::new();
        limit.set(0.5, 2000);
        let claims: usize = std::thread::scope(|scope| {
            let claim = || (0..1000).filter(|_| limit.claim(3)).count();
            let threads = [(); 4].map(|()| scope.spawn(claim));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((claims, limit.claimed()), (333, 999));
        limit.release(999);
        assert_eq!(limit.claimed(), 0);
    }
}
