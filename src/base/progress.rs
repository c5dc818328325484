//! What the host has heard of work that is over. Whoever leaves events unasked for a while hears
//! from here that the host may know more by now.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// On a line of its own: each wait reads it.
#[repr(align(64))]
struct Progress {
    /// Does anybody listen?
    is_wanted: AtomicBool,
    /// Grows when the host has heard something since somebody began to listen.
    news: AtomicU64,
}

static PROGRESS: Progress = Progress { is_wanted: AtomicBool::new(false), news: AtomicU64::new(0) };

/// The host knows of work that is over: a wait has come back, a question was answered with yes, or
/// a function of its own runs in a stream.
#[inline]
pub fn told() {
    // What was looked at is looked at before this.
    fence(Ordering::Acquire);
    if PROGRESS.is_wanted.load(Ordering::Relaxed) {
        spread();
    }
}

#[cold]
fn spread() {
    // In this order: who listens from now on is not forgotten.
    PROGRESS.is_wanted.store(false, Ordering::SeqCst);
    PROGRESS.news.fetch_add(1, Ordering::SeqCst);
}

/// Begins to listen, before asking what is over: gives what [`news`] says as long as there are
/// none.
pub fn listen() -> u64 {
    let news = news();
    // Before the questions, as every thread sees it.
    PROGRESS.is_wanted.swap(true, Ordering::SeqCst);
    news
}

/// A number that changes when there are news.
#[inline]
pub fn news() -> u64 {
    PROGRESS.news.load(Ordering::Acquire)
}

/// About a microsecond, in what [`now`] counts on any machine: no wait for a device is shorter.
pub const MOMENT: u64 = 2500;

/// A clock that costs little to read.
#[inline]
pub fn now() -> u64 {
    #[cfg(test)]
    if let Some(now) = by_reading::now() {
        return now;
    }
    clock()
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn clock() -> u64 {
    // SAFETY: every processor of this kind has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn clock() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// A clock of one thread that goes on by being read, so that a test of what takes how long repeats.
#[cfg(test)]
pub mod by_reading {
    use std::cell::Cell;

    /// What it goes on by: 10 ns.
    const STEP: u64 = super::MOMENT / 100;

    thread_local! {
        static NOW: Cell<Option<u64>> = const { Cell::new(None) };
    }

    pub(crate) fn now() -> Option<u64> {
        let now = NOW.get().map(|now| now + STEP);
        NOW.set(now);
        now
    }

    /// Lets time pass.
    pub fn pass(time: u64) {
        NOW.set(NOW.get().map(|now| now + time));
    }

    /// Has this thread such a clock while `body` runs.
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
    fn who_listens_hears_what_is_told_afterwards() {
        let _alone = crate::sim::test_lock();
        told();
        let before = listen();
        assert_eq!(news(), before);
        told();
        assert_ne!(news(), before);
        let later = news();
        told();
        assert_eq!(news(), later, "nobody has listened since");
    }
}
