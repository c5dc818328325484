//! Contention on an arena's lock: which thread should be the owner, and whether several threads
//! conflict.
//!
//! The lock guards about ten cache lines. Two threads may make calls in turns, and each may find
//! the lock free. Then nearly every call moves all of these lines between processors, which takes
//! far longer than the call itself. So each thread lets the other make a *batch* of calls before it
//! takes the lock. It takes the lock as soon as the other thread makes no call for a moment, and in
//! any case after some microseconds.
//!
//! Batches become longer while the other thread uses them up, such as a thread that allocates for a
//! thread that frees. They become shorter if the other thread ends them early, such as a thread
//! that waits for this one. Without conflicts no thread waits. With more than two threads, those
//! that wait for the lock leave its holder alone long enough without batches (`lock.rs`).

use super::arena_lock::NO_OWNER;
use crate::base::epoch::Visit;
use crate::base::sync::{self, Ordering};
use crate::base::thread;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32 as Count, AtomicUsize as Name};

/// Calls in a batch: the number begins with the shortest, and doubles or halves.
const SHORTEST_BATCH: u32 = 64;
const LONGEST_BATCH: u32 = 1024;
/// Calls in a batch for each pause before the first poll of a thread that backs off, and before its
/// last polls. The number of pauses doubles from the one to the other. On Intel and AMD processors,
/// all pauses of a shortest batch take 12 to 24 microseconds, the first a tenth of a microsecond.
/// Those of a longest batch take four times as much.
const CALLS_OF_FIRST_PAUSE: u32 = 8;
const CALLS_OF_LAST_PAUSE: u32 = 4;
/// The fewest pauses before the last polls, so that the polled thread does not fetch its cache line
/// again too often.
const LEAST_LAST_PAUSES: u32 = 64;
/// After so many backoffs in vain in a row, threads no longer back off.
const MOST_CONFLICTS: u32 = 16;
/// The conflicts that count when a thread finds the lock held.
const CONFLICTS_WHEN_HELD: u32 = 2;
/// After a third thread was seen, threads find the lock held so often before they back off again.
const CROWD: u32 = 256;

/// The recent uses of a lock, which guards them. Threads that decide when to take the lock read the
/// first four fields and `batch_calls` without it; any value is correct for them.
#[repr(C)]
pub struct Contention {
    /// The thread that took the lock last.
    last: Name,
    /// How often in a row that thread took it.
    streak: Count,
    /// Not 0: threads conflict.
    conflicts: Count,
    /// Not 0: more than two threads use the lock.
    crowd: Count,
    /// Calls in a batch now.
    batch_calls: Count,
    /// The streak that makes a thread the owner. At first a single call is enough; each loss of the
    /// bias makes it longer.
    patience: Cell<u32>,
    /// The call in which the last owner may be about to set or clear the `inside` flag.
    former: Cell<Option<Visit>>,
}

impl Contention {
    /// The state of a lock that was never taken.
    pub fn new() -> Contention {
        Contention {
            last: Name::new(NO_OWNER),
            streak: Count::new(0),
            conflicts: Count::new(0),
            crowd: Count::new(0),
            batch_calls: Count::new(SHORTEST_BATCH),
            patience: Cell::new(0),
            former: Cell::new(None),
        }
    }

    /// Counts that a thread, which is not the owner, took the lock. True: it took it often enough
    /// in a row to become the owner. The count of its streak then begins again.
    #[inline]
    pub fn is_streak_of(&self, me: usize) -> bool {
        let (last, streak) = self.batch();
        let streak = if last == me { streak + 1 } else { 1 };
        let is_long = streak >= self.patience.get();
        self.last.store(me, Ordering::Relaxed);
        self.streak.store(if is_long { 0 } else { streak }, Ordering::Relaxed);
        is_long
    }

    /// The thread that took the lock last, and how often in a row.
    #[inline]
    fn batch(&self) -> (usize, u32) {
        (self.last.load(Ordering::Relaxed), self.streak.load(Ordering::Relaxed))
    }

    /// Counts that a thread found the lock held.
    pub fn found_held(&self) {
        let crowd = self.crowd.load(Ordering::Relaxed);
        if crowd > 0 {
            self.crowd.store(crowd - 1, Ordering::Relaxed);
            return;
        }
        let conflicts = self.conflicts.load(Ordering::Relaxed) + CONFLICTS_WHEN_HELD;
        self.conflicts.store(conflicts.min(MOST_CONFLICTS), Ordering::Relaxed);
    }

    /// Called before a thread takes the lock: lets another thread, which makes call after call,
    /// complete a batch.
    #[inline]
    pub fn back_off(&self, me: usize, pause: impl Fn(u32), is_held: impl Fn() -> bool) {
        if self.conflicts.load(Ordering::Relaxed) != 0 && self.batch().0 != me {
            self.wait_for_batch(pause, is_held);
        }
    }

    #[cold]
    fn wait_for_batch(&self, pause: impl Fn(u32), is_held: impl Fn() -> bool) {
        // If the simulated machine schedules the threads, the other one does not run meanwhile.
        if sync::is_scheduled() {
            return;
        }
        let mut before = self.batch();
        let mut is_vain = true;
        let calls = self.batch_calls.load(Ordering::Relaxed);
        let mut pauses = calls / CALLS_OF_FIRST_PAUSE;
        let most_pauses = (calls / CALLS_OF_LAST_PAUSE).max(LEAST_LAST_PAUSES);
        for _ in 0..sync::LOOKS_BACK {
            pause(pauses);
            let now = self.batch();
            if now == before && !is_held() {
                break;
            }
            // A third thread took the lock. With so many threads, each waits long enough without
            // batches.
            if now.0 != before.0 && before.0 != NO_OWNER {
                self.conflicts.store(0, Ordering::Relaxed);
                self.crowd.store(CROWD, Ordering::Relaxed);
                return;
            }
            is_vain = false;
            before = now;
            if now.1 >= calls {
                break;
            }
            pauses = (2 * pauses).min(most_pauses);
        }
        // A thread that made few calls in all that time gets a shorter batch.
        let calls = if before.1 >= calls / 2 { 2 * calls } else { calls / 2 };
        self.batch_calls.store(calls.clamp(SHORTEST_BATCH, LONGEST_BATCH), Ordering::Relaxed);
        let conflicts = self.conflicts.load(Ordering::Relaxed);
        let conflicts = if is_vain { conflicts.saturating_sub(1) } else { conflicts + 1 };
        self.conflicts.store(conflicts.min(MOST_CONFLICTS), Ordering::Relaxed);
    }

    /// May this thread become the owner? No other thread may still set or clear the flag.
    pub fn may_rebias(&self, me: usize) -> bool {
        self.former.get().is_none_or(|former| former.is_by(me) || thread::is_over(&former))
    }

    /// Notes that the owner has lost the bias, which its next accesses will see.
    pub fn note_revoked(&self, owner: usize) {
        self.former.set(thread::visit_of(owner));
        self.last.store(NO_OWNER, Ordering::Relaxed);
        self.patience.set((self.patience.get() * 2).clamp(sync::PATIENCE, sync::MOST_PATIENCE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: usize = 8;
    const OTHER: usize = 16;

    fn contended() -> Contention {
        let contention = Contention::new();
        contention.patience.set(sync::MOST_PATIENCE);
        (0..MOST_CONFLICTS).for_each(|_| contention.found_held());
        contention
    }

    /// The number of polls of a thread before it takes the lock. The other thread makes `calls`
    /// calls before each poll.
    fn polls(contention: &Contention, calls: u32) -> u32 {
        // The machine of another test may keep turns, and then no thread backs off.
        let _no_machine = crate::driver::sim::test_lock();
        let polls = Cell::new(0);
        let pause = |_| {
            polls.set(polls.get() + 1);
            (0..calls).for_each(|_| assert!(!contention.is_streak_of(OTHER)));
        };
        contention.back_off(ME, pause, || false);
        polls.get()
    }

    #[test]
    fn a_thread_backs_off_neither_from_itself_nor_without_conflicts() {
        let contention = contended();
        assert!(!contention.is_streak_of(ME));
        assert_eq!(polls(&contention, 1), 0);
        let contention = Contention::new();
        contention.patience.set(2);
        assert!(!contention.is_streak_of(OTHER));
        assert_eq!(polls(&contention, 1), 0);
    }

    #[test]
    fn a_thread_that_backs_off_in_vain_soon_stops() {
        let contention = contended();
        assert!(!contention.is_streak_of(OTHER));
        for _ in 0..MOST_CONFLICTS {
            assert_eq!(
                polls(&contention, 0),
                1,
                "one poll shows that there is nothing to wait for"
            );
        }
        assert_eq!(polls(&contention, 0), 0);
    }

    #[test]
    fn among_three_threads_none_backs_off() {
        let contention = contended();
        assert!(!contention.is_streak_of(OTHER));
        let third = |_| assert!(!contention.is_streak_of(24));
        contention.back_off(ME, third, || true);
        (0..CROWD).for_each(|_| contention.found_held());
        assert_eq!(polls(&contention, 1), 0);
        contention.found_held();
        assert!(!contention.is_streak_of(OTHER));
        assert_eq!(polls(&contention, 1), sync::LOOKS_BACK, "it is tried again");
    }

    /// Runs batches in each of which the other thread makes exactly so many calls. Returns the
    /// calls in a batch then.
    fn after_batches(contention: &Contention, batches: u32, calls: u32) -> u32 {
        for _ in 0..batches {
            assert!(!contention.is_streak_of(ME));
            assert!(!contention.is_streak_of(OTHER));
            let left = Cell::new(calls);
            let pause = |_| (0..left.take()).for_each(|_| assert!(!contention.is_streak_of(OTHER)));
            contention.back_off(ME, pause, || false);
        }
        contention.batch_calls.load(Ordering::Relaxed)
    }

    #[test]
    fn batches_are_as_long_as_they_are_used() {
        let contention = contended();
        assert_eq!(after_batches(&contention, 20, SHORTEST_BATCH / 4), SHORTEST_BATCH);
        assert_eq!(after_batches(&contention, 1, SHORTEST_BATCH / 2), 2 * SHORTEST_BATCH);
        let of_300 = [20, 1].map(|batches| after_batches(&contention, batches, 300));
        assert!(of_300.contains(&512) && of_300.contains(&1024), "twice as long, and half as long");
        assert_eq!(after_batches(&contention, 20, 10_000), LONGEST_BATCH);
        assert_eq!(after_batches(&contention, 20, 3), SHORTEST_BATCH);
    }

    #[test]
    fn a_slow_thread_has_short_batches() {
        let contention = contended();
        for _ in 0..20 {
            assert!(!contention.is_streak_of(ME));
            assert!(!contention.is_streak_of(OTHER));
            assert_eq!(polls(&contention, 1), sync::LOOKS_BACK);
            assert_eq!(contention.batch_calls.load(Ordering::Relaxed), SHORTEST_BATCH);
        }
    }

    #[test]
    fn a_batch_ends_after_its_calls_and_the_longest_wait_after_its_polls() {
        let contention = contended();
        assert!(!contention.is_streak_of(OTHER));
        assert_eq!(polls(&contention, 0), 1);
        (1..SHORTEST_BATCH).for_each(|_| assert!(!contention.is_streak_of(OTHER)));
        assert_eq!(polls(&contention, 1), 1, "it has had its batch by the next poll");
        assert!(!contention.is_streak_of(ME));
        assert!(!contention.is_streak_of(OTHER));
        assert_eq!(polls(&contention, 1), sync::LOOKS_BACK, "it is slow");
        let conflicts = contention.conflicts.load(Ordering::Relaxed);
        assert_eq!(conflicts, MOST_CONFLICTS, "none of the last was in vain");
    }
}
