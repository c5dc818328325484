//! Who uses an arena's lock, and how: whether one thread has it so often that it should be the owner, and
//! whether several get in each other's way.
//!
//! What the lock guards lies in some ten lines of cache. Where two threads make one call after the other, each
//! of which finds the lock free, all of these go to and fro with nearly every call, which takes far longer
//! than the call. So there each lets the other go on for a *side* of some calls before it takes the lock: as
//! soon as the other makes no call for a moment, and in any case after some microseconds. Sides become longer
//! where the other makes use of them, as who allocates for a thread that frees, and shorter where it ends them
//! early, as who waits for what the first one does. Where threads do not meet, nobody waits. Where there are
//! more than two, those who wait for the lock leave whoever has it alone for long enough as it is (`lock.rs`).

use super::arena_lock::NOBODY;
use crate::base::epoch::Visit;
use crate::base::sync::{self, Ordering};
use crate::base::thread;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32 as Count, AtomicUsize as Name};

/// Calls of a side: it begins with the fewest, and becomes twice or half as long.
const SHORTEST_SIDE: u32 = 64;
const LONGEST_SIDE: u32 = 1024;
/// Calls of a side for each pause before the first look of a thread that stands back, and before the last
/// ones: pauses double from the one to the other. All of a short side take 12 to 24 microseconds on processors
/// of Intel and AMD, the first a tenth of one, those of the longest four times as much.
const CALLS_OF_FIRST_PAUSE: u32 = 8;
const CALLS_OF_LAST_PAUSE: u32 = 4;
/// The last ones of a short side, so that who is looked at need not bring its line back too often.
const LEAST_LAST_PAUSES: u32 = 64;
/// So often in a row threads stand back in vain before they no longer do.
const MOST_TROUBLE: u32 = 16;
/// What it counts when a thread finds the lock held.
const MEETING: u32 = 2;
/// So often threads find it held before they stand back again where a third one was seen.
const CROWD: u32 = 256;

/// The habits of those who take a lock. The lock guards them; the first four and the side are also read without
/// it, by those who decide when to take it, and whatever they find is right.
#[repr(C)]
pub struct Habit {
    /// Who took it last.
    last: Name,
    /// How often in a row the last one took it.
    streak: Count,
    /// Threads get in each other's way, if it is not 0.
    trouble: Count,
    /// There are more than two of them, if it is not 0.
    crowd: Count,
    /// Calls of a side now.
    side_calls: Count,
    /// The streak that makes an owner. The first comer is one; each loss makes it longer.
    patience: Cell<u32>,
    /// How often the ledger has suspended the present bias.
    suspensions: Cell<u32>,
    /// The call in which the last owner may be about to raise or take down the flag.
    former: Cell<Option<Visit>>,
}

impl Habit {
    /// Of a lock that nobody has taken.
    pub fn new() -> Habit {
        Habit {
            last: Name::new(NOBODY),
            streak: Count::new(0),
            trouble: Count::new(0),
            crowd: Count::new(0),
            side_calls: Count::new(SHORTEST_SIDE),
            patience: Cell::new(0),
            suspensions: Cell::new(0),
            former: Cell::new(None),
        }
    }

    /// A thread, which is not the owner, has the lock once more: often enough in a row to be it? Where it
    /// may not be, it is asked again after another streak.
    #[inline]
    pub fn is_streak_of(&self, me: usize) -> bool {
        let (last, streak) = self.side();
        let streak = if last == me { streak + 1 } else { 1 };
        let is_long = streak >= self.patience.get();
        self.last.store(me, Ordering::Relaxed);
        self.streak.store(if is_long { 0 } else { streak }, Ordering::Relaxed);
        is_long
    }

    /// Who took it last, and how often in a row.
    #[inline]
    fn side(&self) -> (usize, u32) {
        (self.last.load(Ordering::Relaxed), self.streak.load(Ordering::Relaxed))
    }

    /// A thread found the lock held.
    pub fn met(&self) {
        let crowd = self.crowd.load(Ordering::Relaxed);
        if crowd > 0 {
            self.crowd.store(crowd - 1, Ordering::Relaxed);
            return;
        }
        let trouble = self.trouble.load(Ordering::Relaxed) + MEETING;
        self.trouble.store(trouble.min(MOST_TROUBLE), Ordering::Relaxed);
    }

    /// Before a thread takes the lock: lets another one, which makes call after call, go on for a side.
    #[inline]
    pub fn stand_back(&self, me: usize, pause: impl Fn(u32), is_held: impl Fn() -> bool) {
        if self.trouble.load(Ordering::Relaxed) != 0 && self.side().0 != me {
            self.wait_for_side(pause, is_held);
        }
    }

    #[cold]
    fn wait_for_side(&self, pause: impl Fn(u32), is_held: impl Fn() -> bool) {
        // Where a backend decides who goes on, the other one does not.
        if sync::turns_are_kept() {
            return;
        }
        let mut before = self.side();
        let mut is_vain = true;
        let calls = self.side_calls.load(Ordering::Relaxed);
        let mut pauses = calls / CALLS_OF_FIRST_PAUSE;
        let most_pauses = (calls / CALLS_OF_LAST_PAUSE).max(LEAST_LAST_PAUSES);
        for _ in 0..sync::LOOKS_BACK {
            pause(pauses);
            let now = self.side();
            if now == before && !is_held() {
                break;
            }
            // A third thread has had its turn: where there are so many, each waits long enough.
            if now.0 != before.0 && before.0 != NOBODY {
                self.trouble.store(0, Ordering::Relaxed);
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
        self.side_calls.store(calls.clamp(SHORTEST_SIDE, LONGEST_SIDE), Ordering::Relaxed);
        let trouble = self.trouble.load(Ordering::Relaxed);
        let trouble = if is_vain { trouble.saturating_sub(1) } else { trouble + 1 };
        self.trouble.store(trouble.min(MOST_TROUBLE), Ordering::Relaxed);
    }

    /// Is nobody else about to raise or take down the flag?
    pub fn lets_be_owner(&self, me: usize) -> bool {
        self.former.get().is_none_or(|former| former.is_by(me) || thread::is_over(&former))
    }

    /// The owner has lost the bias, and what it does from now on sees that.
    pub fn is_lost_by(&self, owner: usize) {
        self.former.set(thread::visit_of(owner));
        self.last.store(NOBODY, Ordering::Relaxed);
        self.suspensions.set(0);
        self.patience.set((self.patience.get() * 2).clamp(sync::PATIENCE, sync::MOST_PATIENCE));
    }

    /// The bias was suspended; is it put back? Each time costs the ledger a system call, at most.
    pub fn is_kept(&self) -> bool {
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

    fn troubled() -> Habit {
        let habit = Habit::new();
        habit.patience.set(sync::MOST_PATIENCE);
        (0..MOST_TROUBLE).for_each(|_| habit.met());
        habit
    }

    /// How often a thread looks before it takes the lock; before each look the other makes `calls`.
    fn looks(habit: &Habit, calls: u32) -> u32 {
        let looks = Cell::new(0);
        let pause = |_| {
            looks.set(looks.get() + 1);
            (0..calls).for_each(|_| assert!(!habit.is_streak_of(OTHER)));
        };
        habit.stand_back(ME, pause, || false);
        looks.get()
    }

    #[test]
    fn nobody_stands_back_from_itself_or_without_trouble() {
        let habit = troubled();
        assert!(!habit.is_streak_of(ME));
        assert_eq!(looks(&habit, 1), 0);
        let habit = Habit::new();
        habit.patience.set(2);
        assert!(!habit.is_streak_of(OTHER));
        assert_eq!(looks(&habit, 1), 0);
    }

    #[test]
    fn who_stands_back_in_vain_soon_does_no_longer() {
        let habit = troubled();
        assert!(!habit.is_streak_of(OTHER));
        for _ in 0..MOST_TROUBLE {
            assert_eq!(looks(&habit, 0), 1, "one look shows that there is nothing to wait for");
        }
        assert_eq!(looks(&habit, 0), 0);
    }

    #[test]
    fn among_three_nobody_stands_back() {
        let habit = troubled();
        assert!(!habit.is_streak_of(OTHER));
        let third = |_| assert!(!habit.is_streak_of(24));
        habit.stand_back(ME, third, || true);
        (0..CROWD).for_each(|_| habit.met());
        assert_eq!(looks(&habit, 1), 0);
        habit.met();
        assert!(!habit.is_streak_of(OTHER));
        assert_eq!(looks(&habit, 1), sync::LOOKS_BACK, "it is tried again");
    }

    /// Sides in each of which the other makes so many calls and no more: the calls of a side then.
    fn after_sides(habit: &Habit, sides: u32, calls: u32) -> u32 {
        for _ in 0..sides {
            assert!(!habit.is_streak_of(ME));
            assert!(!habit.is_streak_of(OTHER));
            let left = Cell::new(calls);
            let pause = |_| (0..left.take()).for_each(|_| assert!(!habit.is_streak_of(OTHER)));
            habit.stand_back(ME, pause, || false);
        }
        habit.side_calls.load(Ordering::Relaxed)
    }

    #[test]
    fn sides_are_as_long_as_they_are_used() {
        let habit = troubled();
        assert_eq!(after_sides(&habit, 20, SHORTEST_SIDE / 4), SHORTEST_SIDE);
        assert_eq!(after_sides(&habit, 1, SHORTEST_SIDE / 2), 2 * SHORTEST_SIDE);
        let of_300 = [20, 1].map(|sides| after_sides(&habit, sides, 300));
        assert!(of_300.contains(&512) && of_300.contains(&1024), "twice as long, and half as long");
        assert_eq!(after_sides(&habit, 20, 10_000), LONGEST_SIDE);
        assert_eq!(after_sides(&habit, 20, 3), SHORTEST_SIDE);
    }

    #[test]
    fn who_makes_few_calls_in_all_the_time_has_short_sides() {
        let habit = troubled();
        for _ in 0..20 {
            assert!(!habit.is_streak_of(ME));
            assert!(!habit.is_streak_of(OTHER));
            assert_eq!(looks(&habit, 1), sync::LOOKS_BACK);
            assert_eq!(habit.side_calls.load(Ordering::Relaxed), SHORTEST_SIDE);
        }
    }

    #[test]
    fn a_side_ends_after_its_calls_and_the_longest_wait_after_its_looks() {
        let habit = troubled();
        assert!(!habit.is_streak_of(OTHER));
        assert_eq!(looks(&habit, 0), 1);
        (1..SHORTEST_SIDE).for_each(|_| assert!(!habit.is_streak_of(OTHER)));
        assert_eq!(looks(&habit, 1), 1, "it has had its side by the next look");
        assert!(!habit.is_streak_of(ME));
        assert!(!habit.is_streak_of(OTHER));
        assert_eq!(looks(&habit, 1), sync::LOOKS_BACK, "it is slow");
        let trouble = habit.trouble.load(Ordering::Relaxed);
        assert_eq!(trouble, MOST_TROUBLE, "none of the last was in vain");
    }
}
