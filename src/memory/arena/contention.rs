//! Who uses an arena's lock, and how: whether one thread has it so often that it should be the owner, and
//! whether several get in each other's way.
//!
//! What the lock guards lies in some ten lines of cache. Where two threads make one call after the other, each
//! of which finds the lock free, all of these go to and fro with nearly every call, which takes far longer
//! than the call. So there each lets the other go on for a *batch* of some calls before it takes the lock: as
//! soon as the other makes no call for a moment, and in any case after some microseconds. Sides become longer
//! where the other makes use of them, as who allocates for a thread that frees, and shorter where it ends them
//! early, as who waits for what the first one does. Where threads do not meet, nobody waits. Where there are
//! more than two, those who wait for the lock leave whoever has it alone for long enough as it is (`lock.rs`).

use super::arena_lock::NO_OWNER;
use crate::base::epoch::Visit;
use crate::base::sync::{self, Ordering};
use crate::base::thread;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32 as Count, AtomicUsize as Name};

/// Calls of a batch: it begins with the fewest, and becomes twice or half as long.
const SHORTEST_BATCH: u32 = 64;
const LONGEST_BATCH: u32 = 1024;
/// Calls of a batch for each pause before the first look of a thread that stands back, and before the last
/// ones: pauses double from the one to the other. All of a short batch take 12 to 24 microseconds on processors
/// of Intel and AMD, the first a tenth of one, those of the longest four times as much.
const CALLS_OF_FIRST_PAUSE: u32 = 8;
const CALLS_OF_LAST_PAUSE: u32 = 4;
/// The last ones of a short batch, so that who is looked at need not bring its line back too often.
const LEAST_LAST_PAUSES: u32 = 64;
/// So often in a row threads stand back in vain before they no longer do.
const MOST_CONFLICTS: u32 = 16;
/// What it counts when a thread finds the lock held.
const CONFLICTS_WHEN_HELD: u32 = 2;
/// So often threads find it held before they stand back again where a third one was seen.
const CROWD: u32 = 256;

/// The habits of those who take a lock. The lock guards them; the first four and the batch are also read without
/// it, by those who decide when to take it, and whatever they find is right.
#[repr(C)]
pub struct Contention {
    /// Who took it last.
    last: Name,
    /// How often in a row the last one took it.
    streak: Count,
    /// Threads get in each other's way, if it is not 0.
    conflicts: Count,
    /// There are more than two of them, if it is not 0.
    crowd: Count,
    /// Calls of a batch now.
    batch_calls: Count,
    /// The streak that makes an owner. The first comer is one; each loss makes it longer.
    patience: Cell<u32>,
    /// How often the ledger has suspended the present bias.
    suspensions: Cell<u32>,
    /// The call in which the last owner may be about to raise or take down the flag.
    former: Cell<Option<Visit>>,
}

impl Contention {
    /// Of a lock that nobody has taken.
    pub fn new() -> Contention {
        Contention {
            last: Name::new(NO_OWNER),
            streak: Count::new(0),
            conflicts: Count::new(0),
            crowd: Count::new(0),
            batch_calls: Count::new(SHORTEST_BATCH),
            patience: Cell::new(0),
            suspensions: Cell::new(0),
            former: Cell::new(None),
        }
    }

    /// A thread, which is not the owner, has the lock once more: often enough in a row to be it? Where it
    /// may not be, it is asked again after another streak.
    #[inline]
    pub fn is_streak_of(&self, me: usize) -> bool {
        let (last, streak) = self.batch();
        let streak = if last == me { streak + 1 } else { 1 };
        let is_long = streak >= self.patience.get();
        self.last.store(me, Ordering::Relaxed);
        self.streak.store(if is_long { 0 } else { streak }, Ordering::Relaxed);
        is_long
    }

    /// Who took it last, and how often in a row.
    #[inline]
    fn batch(&self) -> (usize, u32) {
        (self.last.load(Ordering::Relaxed), self.streak.load(Ordering::Relaxed))
    }

    /// A thread found the lock held.
    pub fn found_held(&self) {
        let crowd = self.crowd.load(Ordering::Relaxed);
        if crowd > 0 {
            self.crowd.store(crowd - 1, Ordering::Relaxed);
            return;
        }
        let conflicts = self.conflicts.load(Ordering::Relaxed) + CONFLICTS_WHEN_HELD;
        self.conflicts.store(conflicts.min(MOST_CONFLICTS), Ordering::Relaxed);
    }

    /// Before a thread takes the lock: lets another one, which makes call after call, go on for a batch.
    #[inline]
    pub fn back_off(&self, me: usize, pause: impl Fn(u32), is_held: impl Fn() -> bool) {
        if self.conflicts.load(Ordering::Relaxed) != 0 && self.batch().0 != me {
            self.wait_for_batch(pause, is_held);
        }
    }

    #[cold]
    fn wait_for_batch(&self, pause: impl Fn(u32), is_held: impl Fn() -> bool) {
        // Where a backend decides who goes on, the other one does not.
        if sync::turns_are_kept() {
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
            // A third thread has had its turn: where there are so many, each waits long enough.
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
        // Whoever makes few calls in all that time is not to be waited for longer.
        let calls = if before.1 >= calls / 2 { 2 * calls } else { calls / 2 };
        self.batch_calls.store(calls.clamp(SHORTEST_BATCH, LONGEST_BATCH), Ordering::Relaxed);
        let conflicts = self.conflicts.load(Ordering::Relaxed);
        let conflicts = if is_vain { conflicts.saturating_sub(1) } else { conflicts + 1 };
        self.conflicts.store(conflicts.min(MOST_CONFLICTS), Ordering::Relaxed);
    }

    /// Is nobody else about to raise or take down the flag?
    pub fn may_rebias(&self, me: usize) -> bool {
        self.former.get().is_none_or(|former| former.is_by(me) || thread::is_over(&former))
    }

    /// The owner has lost the bias, and what it does from now on sees that.
    pub fn note_revoked(&self, owner: usize) {
        self.former.set(thread::visit_of(owner));
        self.last.store(NO_OWNER, Ordering::Relaxed);
        self.suspensions.set(0);
        self.patience.set((self.patience.get() * 2).clamp(sync::PATIENCE, sync::MOST_PATIENCE));
    }

    /// The bias was suspended; is it put back? Each time costs the ledger a system call, at most.
    pub fn keeps_bias(&self) -> bool {
        let suspensions = self.suspensions.get() + 1;
        self.suspensions.set(suspensions);
        suspensions < sync::SUSPENSIONS && thread::has_heavy_fences()
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

    /// How often a thread looks before it takes the lock; before each look the other makes `calls`.
    fn looks(contention: &Contention, calls: u32) -> u32 {
        // The machine of another test may keep turns, and then no thread backs off.
        let _no_machine = crate::sim::test_lock();
        let looks = Cell::new(0);
        let pause = |_| {
            looks.set(looks.get() + 1);
            (0..calls).for_each(|_| assert!(!contention.is_streak_of(OTHER)));
        };
        contention.back_off(ME, pause, || false);
        looks.get()
    }

    #[test]
    fn a_thread_backs_off_neither_from_itself_nor_without_conflicts() {
        let contention = contended();
        assert!(!contention.is_streak_of(ME));
        assert_eq!(looks(&contention, 1), 0);
        let contention = Contention::new();
        contention.patience.set(2);
        assert!(!contention.is_streak_of(OTHER));
        assert_eq!(looks(&contention, 1), 0);
    }

    #[test]
    fn a_thread_that_backs_off_in_vain_soon_stops() {
        let contention = contended();
        assert!(!contention.is_streak_of(OTHER));
        for _ in 0..MOST_CONFLICTS {
            assert_eq!(
                looks(&contention, 0),
                1,
                "one look shows that there is nothing to wait for"
            );
        }
        assert_eq!(looks(&contention, 0), 0);
    }

    #[test]
    fn among_three_threads_none_backs_off() {
        let contention = contended();
        assert!(!contention.is_streak_of(OTHER));
        let third = |_| assert!(!contention.is_streak_of(24));
        contention.back_off(ME, third, || true);
        (0..CROWD).for_each(|_| contention.found_held());
        assert_eq!(looks(&contention, 1), 0);
        contention.found_held();
        assert!(!contention.is_streak_of(OTHER));
        assert_eq!(looks(&contention, 1), sync::LOOKS_BACK, "it is tried again");
    }

    /// Sides in each of which the other makes so many calls and no more: the calls of a batch then.
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
            assert_eq!(looks(&contention, 1), sync::LOOKS_BACK);
            assert_eq!(contention.batch_calls.load(Ordering::Relaxed), SHORTEST_BATCH);
        }
    }

    #[test]
    fn a_batch_ends_after_its_calls_and_the_longest_wait_after_its_polls() {
        let contention = contended();
        assert!(!contention.is_streak_of(OTHER));
        assert_eq!(looks(&contention, 0), 1);
        (1..SHORTEST_BATCH).for_each(|_| assert!(!contention.is_streak_of(OTHER)));
        assert_eq!(looks(&contention, 1), 1, "it has had its batch by the next look");
        assert!(!contention.is_streak_of(ME));
        assert!(!contention.is_streak_of(OTHER));
        assert_eq!(looks(&contention, 1), sync::LOOKS_BACK, "it is slow");
        let conflicts = contention.conflicts.load(Ordering::Relaxed);
        assert_eq!(conflicts, MOST_CONFLICTS, "none of the last was in vain");
    }
}
