//! What is known of a device or a stream without a question, because a thread has waited for it: that what the
//! thread knew to be queued there is over.
//!
//! Each thread counts its waits. Whoever lets go of something, under a lock, notes the thread and its count
//! ([`SyncStamp`]); once the same thread has waited under a higher one ([`LastSync`]), the work that used it is done, and all
//! that was let go of before, under the same lock. That this thread waited later is its program's order. A wait of
//! another thread may have begun earlier, and is not known to say anything.

use crate::base::thread;
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread, in the upper half, and how often it had waited, in the lower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncStamp(u64);

impl SyncStamp {
    /// Of nobody: no wait is known to come after it.
    pub const NONE: SyncStamp = SyncStamp(0);

    /// Now, by this thread; of nobody before its first wait.
    #[inline(always)]
    pub fn now() -> SyncStamp {
        SyncStamp(thread::block().waits.load(Ordering::Relaxed))
    }

    fn thread(self) -> u64 {
        self.0 >> 32
    }
}

/// When a device or stream was waited for last.
pub struct LastSync(AtomicU64);

impl LastSync {
    /// Never.
    pub const fn new() -> LastSync {
        LastSync(AtomicU64::new(0))
    }

    /// This thread's wait is over, and all that was queued there when it began.
    pub fn note(&self) {
        let waits = &thread::block().waits;
        let now = match waits.load(Ordering::Relaxed) {
            // One of billions of threads, or of waits, asks.
            0 => u32::try_from(thread::number()).map_or(0, |number| u64::from(number) << 32 | 1),
            before if before as u32 == u32::MAX => before,
            before => before + 1,
        };
        waits.store(now, Ordering::Relaxed);
        // Whoever reads it does what comes after the wait.
        self.0.store(now, Ordering::Release);
    }

    /// Has the thread that left this stamp waited since?
    #[inline]
    pub fn is_since(&self, stamp: SyncStamp) -> bool {
        let waited = SyncStamp(self.0.load(Ordering::Acquire));
        stamp != SyncStamp::NONE && waited.thread() == stamp.thread() && waited.0 > stamp.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::scope;

    #[test]
    fn what_was_noted_before_a_wait_is_over_after_it() {
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
    fn a_wait_of_another_thread_says_nothing() {
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
        assert!(device.is_since(there), "it is over, whoever asks");
        (0..200).for_each(|_| device.note());
        assert!(device.is_since(here) && !device.is_since(there));
        assert!(!device.is_since(SyncStamp::NONE));
    }

    #[test]
    fn who_has_waited_too_often_asks() {
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
