//! Completed work that is known without a query: a thread has waited for the device or stream
//! since.
//!
//! Each thread counts its waits. A thread that frees something, under a lock, records itself and
//! its count ([`SyncStamp`]). Once the same thread has waited with a higher count ([`LastSync`]),
//! the work that used it is over; so is the work of everything freed earlier under the same lock.
//! The later wait follows in program order. A wait of another thread may have begun before, so it
//! proves nothing.

use crate::base::error::Result;
use crate::base::thread;
use crate::driver::sync_debug::{self, Wait};
use crate::gpu::gpus::Gpus;
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread's number, in the upper half, and its count of waits, in the lower half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncStamp(u64);

impl SyncStamp {
    /// The stamp without a thread: no wait is known to follow it.
    pub const NONE: SyncStamp = SyncStamp(0);

    /// The present stamp of this thread; [`SyncStamp::NONE`] before its first wait.
    #[inline(always)]
    pub fn now() -> SyncStamp {
        SyncStamp(thread::block().waits.load(Ordering::Relaxed))
    }

    fn thread(self) -> u64 {
        self.0 >> 32
    }
}

/// The stamp of the last wait for a device or stream.
pub struct LastSync(AtomicU64);

impl LastSync {
    /// Without a wait.
    pub const fn new() -> LastSync {
        LastSync(AtomicU64::new(0))
    }

    /// Records that this thread's wait is over, and with it all work that was queued when it began.
    pub fn note(&self) {
        let waits = &thread::block().waits;
        let now = match waits.load(Ordering::Relaxed) {
            // After 2^32 threads or waits this stays without effect, and events are queried.
            0 => u32::try_from(thread::number()).map_or(0, |number| u64::from(number) << 32 | 1),
            before if before as u32 == u32::MAX => before,
            before => before + 1,
        };
        waits.store(now, Ordering::Relaxed);
        // Release: a thread that reads it continues after the wait.
        self.0.store(now, Ordering::Release);
    }

    /// Has the thread of this stamp waited since?
    #[inline]
    pub fn is_since(&self, stamp: SyncStamp) -> bool {
        let waited = SyncStamp(self.0.load(Ordering::Acquire));
        stamp != SyncStamp::NONE && waited.thread() == stamp.thread() && waited.0 > stamp.0
    }
}

/// [`sync_debug::check`] for a call that may be captured: only where no capture is under way.
#[inline]
pub fn check_uncaptured(gpus: &Gpus, wait: Wait) -> Result<()> {
    if sync_debug::is_on() { judge_uncaptured_wait(gpus, wait) } else { Ok(()) }
}

#[cold]
fn judge_uncaptured_wait(gpus: &Gpus, wait: Wait) -> Result<()> {
    for device in &gpus.devices {
        if device.streams.current().is_capturing(gpus)? {
            return Ok(());
        }
    }
    sync_debug::refuse_or_warn(wait)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::scope;

    #[test]
    fn work_before_a_wait_is_over_after_it() {
        let (one, other) = (LastSync::new(), LastSync::new());
        other.note();
        let before = SyncStamp::now();
        assert!(!one.is_since(before) && !other.is_since(before));
        one.note();
        assert!(one.is_since(before) && !other.is_since(before));
        let later = SyncStamp::now();
        assert!(!one.is_since(later), "it was waited for before that");
        other.note();
        assert!(!one.is_since(later) && other.is_since(later) && other.is_since(before));
    }

    #[test]
    fn a_wait_of_another_thread_proves_nothing() {
        let device = LastSync::new();
        device.note();
        let here = SyncStamp::now();
        let there = scope(|scope| {
            let there = scope.spawn(|| {
                assert_eq!(SyncStamp::now(), SyncStamp::NONE);
                (0..100).for_each(|_| device.note());
                assert!(!device.is_since(here));
                let stamp = SyncStamp::now();
                device.note();
                assert!(device.is_since(stamp));
                stamp
            });
            there.join().unwrap()
        });
        assert!(device.is_since(there), "it is over for every thread");
        (0..200).for_each(|_| device.note());
        assert!(device.is_since(here) && !device.is_since(there));
        assert!(!device.is_since(SyncStamp::NONE));
    }

    #[test]
    fn a_full_counter_stays_without_effect() {
        let device = LastSync::new();
        device.note();
        let waits = &thread::block().waits;
        let next_to_last = waits.load(Ordering::Relaxed) | u64::from(u32::MAX);
        waits.store(next_to_last - 1, Ordering::Relaxed);
        let before = SyncStamp::now();
        device.note();
        assert!(device.is_since(before));
        let last = SyncStamp::now();
        device.note();
        assert!(!device.is_since(last) && last.thread() == before.thread());
    }
}
