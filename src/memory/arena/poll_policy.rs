//! When streams are asked whether they are done with freed blocks.
//!
//! Asking costs more than an allocation, and PyTorch, which asks at each, has recorded its events when
//! the blocks were freed: within a moment of that none of them is over. So streams are left alone for a
//! moment, and then for as long as makes asking a small part of the time: its cost is taken by the clock,
//! since it differs by machine and by who else calls the driver. While they answer that they are busy, that
//! grows. It ends at once where the host has heard of work that is over, so that a block counts as active
//! no longer than what the host can know of the device allows, and where nothing else fits: an arena asks
//! before it grows, lends or fails. Where more than a little memory waits, it is but that moment: what is
//! taken meanwhile in its place may be a piece of something larger. Where allocations follow each other fast, the
//! clock is read for each fourth: whoever comes back from elsewhere finds what is over three allocations later.
//!
//! Where an arena has hardly more memory than what waits, questions come before the time again and again. What
//! they take beyond their part of the time is a *debt*; when it is as much as a handle costs the driver,
//! the arena is *pressed*, and gets leeway (`growth_credit.rs`): so what is asked too much never costs much more
//! than what would have spared it.
//!
//! The simulated machine's runs are to repeat, and do not depend on time: there streams are asked
//! at each allocation, and more and more rarely where they have been busy several times.

use crate::base::progress::{self, MOMENT};

/// So often in a row streams are busy before allocations go by, where runs are to repeat.
const PATIENCE: u32 = 4;
/// Allocations that go by at most there.
const MOST_REST: u32 = 15;

/// Questions before the time that take more than this part of it make a debt.
const SHARE: u64 = 12;
/// Streams are left alone for so many times what asking them took.
const ALONE: u64 = 24;
/// The longest that they are: a clock that stood still while they were asked says nothing.
const LONGEST: u64 = 32 * MOMENT;
/// The same where all of them were busy.
const LONGEST_BUSY: u64 = 16 * MOMENT;

/// So many allocations go by, one after the other, without a look at the clock, if they are much faster than the
/// rest is long: a look costs a tenth of an allocation.
const UNSEEN: u32 = 3;

/// The debt with which an arena is pressed: what the driver takes for a handle.
const PRICE: u64 = 40 * MOMENT;

/// When streams are asked again.
#[derive(Default)]
pub(in crate::memory) struct Rest {
    /// The host's news when it began.
    news: u64,
    /// When that was, and how long it lasts, where it is a matter of time.
    began: u64,
    lasts: u64,
    /// When somebody last looked at the clock, and how many more may go by before it is looked at again.
    looked: u64,
    unseen: u32,
    /// How many did since.
    gone_by: u32,
    /// Allocations that go by, and how many went by the last time, where it is not.
    left: u32,
    length: u32,
    /// How often in a row all streams were busy.
    refusals: u32,
    /// Is the next question one before the time?
    is_early: bool,
    /// What such questions took beyond their part of the time, and when streams were asked last.
    debt: u64,
    asked: u64,
}

/// What asking takes, by the clock.
pub(in crate::memory) struct Asking {
    /// When it began, or would have, had nothing else been done meanwhile.
    since: u64,
}

impl Asking {
    /// What an answer has made free is free, which began at a time: that is not counted.
    pub(in crate::memory) fn but_for(&mut self, began: u64) {
        self.since = self.since.wrapping_add(progress::now().wrapping_sub(began));
    }
}

impl Rest {
    /// Blocks begin to wait, where none did: for a moment, or as long as they were to be left alone
    /// already.
    pub(in crate::memory) fn begin(&mut self) {
        self.news = progress::listen();
        let now = progress::now();
        let left = self.lasts.saturating_sub(now.wrapping_sub(self.began));
        (self.began, self.lasts) = (now, left.max(MOMENT));
        self.unseen = 0;
    }

    /// Streams are about to be asked.
    pub(in crate::memory) fn ask(&mut self) -> Asking {
        self.news = progress::listen();
        self.unseen = 0;
        Asking { since: progress::now() }
    }

    /// Streams were asked; are all that blocks still wait for busy?
    pub(in crate::memory) fn asked(&mut self, asking: &Asking, are_busy: bool) {
        self.refusals = if are_busy { self.refusals.saturating_add(1) } else { 0 };
        self.length = match self.refusals > PATIENCE {
            true => (2 * self.length + 1).min(MOST_REST),
            false => 0,
        };
        self.left = self.length;
        let patient = (MOMENT << self.refusals.min(16)).min(LONGEST_BUSY);
        self.began = progress::now();
        let took = self.began.wrapping_sub(asking.since);
        self.lasts = took.saturating_mul(ALONE).max(patient).min(LONGEST);
        let passed = self.began.wrapping_sub(std::mem::replace(&mut self.asked, self.began));
        if std::mem::take(&mut self.is_early) {
            self.debt += took.min(LONGEST / SHARE);
        }
        if self.debt > 0 {
            self.debt = self.debt.saturating_sub(passed / SHARE);
        }
    }

    /// What was over was known without a question: they are left alone for as long as after the last one.
    pub(in crate::memory) fn was_known(&mut self) {
        self.began = progress::now();
        self.is_early = false;
    }

    /// An allocation might have gone by, but nothing fits, so that the question comes before the time. True:
    /// not this time, the arena is pressed and gets leeway.
    pub(in crate::memory) fn is_pressed(&mut self) -> bool {
        self.is_early = self.debt < PRICE;
        // Who comes here has looked twice for one allocation: that says nothing of how fast they come.
        self.unseen = 0;
        if !self.is_early {
            self.debt = 0;
        }
        !self.is_early
    }

    /// May an allocation go by, as is known without a look at the clock?
    #[inline(always)]
    pub(in crate::memory) fn goes_by_unseen(&mut self) -> bool {
        let goes_by = self.unseen > 0 && self.news == progress::news();
        self.unseen -= u32::from(goes_by);
        self.gone_by += u32::from(goes_by);
        goes_by
    }

    /// May an allocation go by without asking, where little memory waits, or not?
    #[inline]
    pub(in crate::memory) fn goes_by(
        &mut self,
        repeats: bool,
        is_little: impl FnOnce() -> bool,
    ) -> bool {
        if self.news != progress::news() {
            return false;
        }
        if !repeats {
            return self.goes_by_clock(is_little);
        }
        let goes_by = self.left > 0;
        self.left = self.left.saturating_sub(1);
        goes_by
    }

    #[inline]
    fn goes_by_clock(&mut self, is_little: impl FnOnce() -> bool) -> bool {
        let now = progress::now();
        let passed = now.wrapping_sub(self.began);
        let goes_by = passed <= MOMENT || passed <= self.lasts && is_little();
        // As many as come before half of what is left is over, if they go on as they came.
        let since = now.wrapping_sub(std::mem::replace(&mut self.looked, now));
        let pace = since / (1 + u64::from(std::mem::take(&mut self.gone_by)));
        let left = if passed <= MOMENT { MOMENT } else { self.lasts }.saturating_sub(passed);
        let is_fast = goes_by && pace.saturating_mul(2 * (1 + u64::from(UNSEEN))) < left;
        self.unseen = if is_fast { UNSEEN } else { 0 };
        goes_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::progress::by_reading;
    use std::time::Duration;

    /// The longest rest, and what the system may add to a test.
    const LONG: Duration = Duration::from_millis(1);

    fn goes_by(rest: &mut Rest) -> bool {
        rest.goes_by(false, || true)
    }

    /// Asks, which takes so long.
    fn ask(rest: &mut Rest, took: u64, are_busy: bool) {
        let Asking { since } = rest.ask();
        rest.asked(&Asking { since: since.wrapping_sub(took) }, are_busy);
    }

    #[test]
    fn on_a_gpu_streams_are_left_alone_for_a_moment() {
        let _alone = crate::sim::test_lock();
        let mut rest = Rest::default();
        // The system may take longer than that between the two.
        let begins = |rest: &mut Rest| {
            rest.begin();
            goes_by(rest)
        };
        assert!((0..1000).any(|_| begins(&mut rest)));
        rest.begin();
        std::thread::sleep(LONG);
        assert!(!goes_by(&mut rest), "the moment is over");
        let hears = |rest: &mut Rest| {
            rest.begin();
            progress::told();
            !goes_by(rest)
        };
        assert!((0..1000).all(|_| hears(&mut rest)), "the host knows more");
    }

    #[test]
    fn asking_takes_a_small_part_of_the_time() {
        let _alone = crate::sim::test_lock();
        let mut rest = Rest::default();
        let lasts = |rest: &mut Rest, took, are_busy| {
            ask(rest, took, are_busy);
            rest.lasts
        };
        let shortest = (0..100).map(|_| lasts(&mut rest, MOMENT / 2, false)).min();
        assert!(shortest >= Some(ALONE * MOMENT / 2) && shortest < Some(ALONE * MOMENT));
        assert!((0..100).any(|_| lasts(&mut rest, 0, false) < 2 * MOMENT));
        assert_eq!(lasts(&mut rest, 1 << 40, false), LONGEST, "the clock stood still");
        let is_over = |rest: &mut Rest| {
            ask(rest, 1 << 40, false);
            rest.began -= 2 * MOMENT;
            (goes_by(rest), rest.goes_by(false, || false))
        };
        assert!((0..100).any(|_| is_over(&mut rest) == (true, false)), "for much it is short");
        // Blocks that begin to wait do not cut it short, nor make it longer.
        ask(&mut rest, 1 << 40, false);
        let end = rest.began + rest.lasts;
        rest.begin();
        assert!(rest.began + rest.lasts <= end.max(rest.began + MOMENT));
        assert!(rest.lasts >= MOMENT);
        std::thread::sleep(LONG);
        assert!(!goes_by(&mut rest), "a host that comes back and looks finds what is over");
    }

    /// Early questions, of so much each, so long one after the other: how many until the arena is pressed.
    fn until_pressed(rest: &mut Rest, took: u64, pause: u64) -> Option<u64> {
        (0..10_000).find(|_| {
            rest.begin();
            let is_pressed = rest.is_pressed();
            if !is_pressed {
                ask(rest, took, false);
            }
            by_reading::pass(pause);
            is_pressed
        })
    }

    #[test]
    fn who_asks_too_much_is_pressed_when_that_has_cost_a_handle() {
        let _alone = crate::sim::test_lock();
        by_reading::during(|| {
            let mut rest = Rest::default();
            for _ in 0..3 {
                let questions = until_pressed(&mut rest, MOMENT, 0);
                assert!(questions.is_some_and(|count| (36..=48).contains(&count)), "{questions:?}");
            }
            let longer = until_pressed(&mut rest, MOMENT, SHARE * MOMENT / 2);
            assert!(longer.is_some_and(|count| (72..=96).contains(&count)), "{longer:?}");
            assert_eq!(until_pressed(&mut rest, MOMENT, 2 * SHARE * MOMENT), None, "a small part");
            // A thread that was held up says nothing of what questions take.
            assert!(until_pressed(&mut rest, 1000 * MOMENT, 0) > Some(10));
        });
    }

    #[test]
    fn the_clock_is_read_for_each_fourth_of_those_that_come_fast() {
        let _alone = crate::sim::test_lock();
        by_reading::during(|| {
            // A rest of so many moments; how many of 12 allocations look, so far apart, and whether all go by.
            let looks = |lasts: u64, apart: u64| {
                let mut rest = Rest::default();
                (rest.began, rest.lasts) =
                    (progress::now().wrapping_sub(2 * MOMENT), lasts * MOMENT);
                rest.looked = progress::now();
                rest.news = progress::news();
                let mut looks = 0;
                let mut step = || {
                    by_reading::pass(apart);
                    rest.goes_by_unseen() || {
                        looks += 1;
                        goes_by(&mut rest)
                    }
                };
                let all = (0..12).all(|_| step());
                (looks, all)
            };
            assert_eq!(looks(30, MOMENT / 10), (3, true));
            assert_eq!(
                looks(15, MOMENT),
                (9, true),
                "four of them take more than half of what is left"
            );
            assert_eq!(looks(5, MOMENT / 2), (6, false), "it is over soon, and that is seen");
            let mut rest = Rest { unseen: UNSEEN, ..Rest::default() };
            rest.news = progress::listen();
            assert!(rest.goes_by_unseen());
            progress::told();
            assert!(!rest.goes_by_unseen(), "the host knows more");
            rest.begin();
            assert!(!rest.goes_by_unseen());
            // However long it was away: so many go by, and the next one looks.
            rest.unseen = UNSEEN;
            by_reading::pass(1000 * LONGEST);
            let unseen = (0..10).take_while(|_| rest.goes_by_unseen()).count();
            assert_eq!(unseen, UNSEEN as usize);
            assert!(!goes_by(&mut rest));
            // Who found nothing has looked twice for one allocation.
            rest.unseen = UNSEEN;
            rest.is_pressed();
            assert!(!rest.goes_by_unseen());
        });
    }

    #[test]
    fn questions_in_time_make_no_debt() {
        let _alone = crate::sim::test_lock();
        by_reading::during(|| {
            let mut rest = Rest::default();
            for _ in 0..1000 {
                rest.begin();
                ask(&mut rest, MOMENT, false);
            }
            assert!(!rest.is_pressed());
            assert_eq!(rest.debt, 0);
        });
    }

    #[test]
    fn busy_streams_are_asked_more_and_more_rarely() {
        let _alone = crate::sim::test_lock();
        let mut rest = Rest::default();
        for refusals in 1..100 {
            ask(&mut rest, 0, true);
            let least = (MOMENT << refusals.min(16)).min(LONGEST_BUSY);
            assert!(rest.lasts >= least && rest.lasts <= LONGEST);
        }
        assert!((0..100).any(|_| {
            ask(&mut rest, 0, false);
            rest.lasts < 2 * MOMENT
        }));
    }
}
