//! Notification that the host has learnt of completed work. An arena that skips polling its events
//! subscribes here, and polls again when the generation has changed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// In a cache line of its own: each wait reads it.
#[repr(align(64))]
struct Progress {
    /// Has a thread subscribed since the last notification?
    has_subscriber: AtomicBool,
    /// Grows with the first notification after a subscription.
    generation: AtomicU64,
}

static PROGRESS: Progress =
    Progress { has_subscriber: AtomicBool::new(false), generation: AtomicU64::new(0) };

/// Notifies that the host knows of completed work: a wait has returned, a query was true, or a host
/// function runs in a stream.
#[inline]
pub fn notify() {
    // The query happens before the load of `has_subscriber`.
    fence(Ordering::Acquire);
    if PROGRESS.has_subscriber.load(Ordering::Relaxed) {
        publish();
    }
}

#[cold]
fn publish() {
    // In this order, so that a subscription from now on is not lost.
    PROGRESS.has_subscriber.store(false, Ordering::SeqCst);
    PROGRESS.generation.fetch_add(1, Ordering::SeqCst);
}

/// Subscribes, before the caller queries its events. Returns the value that [`generation`] keeps
/// until the next notification.
pub fn subscribe() -> u64 {
    let generation = generation();
    // Before the queries, in the order that every thread sees.
    PROGRESS.has_subscriber.swap(true, Ordering::SeqCst);
    generation
}

/// A number that changes with a notification.
#[inline]
pub fn generation() -> u64 {
    PROGRESS.generation.load(Ordering::Acquire)
}

/// About a microsecond in ticks of [`now`] on any machine; no wait for a device is shorter.
pub const MOMENT: u64 = 2500;

/// A clock that is cheap to read.
#[inline]
pub fn now() -> u64 {
    #[cfg(test)]
    if let Some(now) = by_reading::now() {
        return now;
    }
    if is_repeatable() { READ.fetch_add(2 * MOMENT, Ordering::Relaxed) } else { clock() }
}

/// Must runs be repeatable, so that nothing depends on time? Then [`now`] advances with each
/// reading, by more than a moment.
static REPEATS: AtomicBool = AtomicBool::new(false);
static READ: AtomicU64 = AtomicU64::new(0);

/// Must runs be repeatable?
pub fn is_repeatable() -> bool {
    REPEATS.load(Ordering::Relaxed)
}

/// Sets whether runs must be repeatable.
pub fn set_repeatable(repeats: bool) {
    REPEATS.store(repeats, Ordering::Relaxed);
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn clock() -> u64 {
    // SAFETY: every x86-64 processor has this instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn clock() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// A clock of one thread that advances when it is read, so that tests of durations are repeatable.
#[cfg(test)]
pub mod by_reading {
    use std::cell::Cell;

    /// Advance per reading: 10 ns.
    const STEP: u64 = super::MOMENT / 100;

    thread_local! {
        static NOW: Cell<Option<u64>> = const { Cell::new(None) };
    }

    pub(crate) fn now() -> Option<u64> {
        let now = NOW.get().map(|now| now + STEP);
        NOW.set(now);
        now
    }

    /// Advances the clock.
    pub fn pass(time: u64) {
        NOW.set(NOW.get().map(|now| now + time));
    }

    /// This thread uses the clock while `body` runs.
    pub fn during<R>(body: impl FnOnce() -> R) -> R {
        struct Off;
        impl Drop for Off {
            fn drop(&mut self) {
                NOW.set(None);
            }
        }
        NOW.set(Some(0));
        let _off = Off;
        body()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_sees_a_later_notification() {
        let _alone = crate::driver::sim::test_lock();
        notify();
        let before = subscribe();
        assert_eq!(generation(), before);
        notify();
        assert_ne!(generation(), before);
        let later = generation();
        notify();
        assert_eq!(generation(), later, "there is no subscriber");
    }
}
