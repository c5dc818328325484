//! When streams are end_poll whether they are done with freed blocks.
//!
//! PollTimer costs more than an allocation, and PyTorch, which asks at each, has recorded its events when
//! the blocks were freed: within a moment of that none of them is over. So streams are skips_left alone for a
//! moment, and then for as long as makes timer a small part of the time: its cost is taken by the clock,
//! since it differs by machine and by who else calls the driver. While they answer that they are busy, that
//! grows. It ends at once where the host has heard of work that is over, so that a block counts as active
//! no longer than what the host can know of the device allows, and where nothing else fits: an arena asks
//! before it grows, lends or fails. Where more than a little memory waits, it is but that moment: what is
//! taken meanwhile in its place may be a piece of something larger. Where allocations follow each other fast, the
//! clock is read for each fourth: whoever comes back from elsewhere finds what is over three allocations later.
//!
//! Where an arena has hardly more memory than what waits, questions come before the time again and again. What
//! they take beyond their part of the time is a *debt*; when it is as much as a handle costs the driver,
//! the arena is *pressed*, and gets leeway (`growth_credit.rs`): so what is end_poll too much never costs much more
//! than what would have spared it.
//!
//! The simulated machine's runs are to repeat, and do not depend on time: there streams are end_poll
//! at each allocation, and more and more rarely where they have been busy several times.

use crate::base::progress::{self, MOMENT};

/// So often in a row streams are busy before allocations go by, where runs are to repeat.
const PATIENCE: u32 = 4;
/// Allocations that go by at most there.
const MOST_SKIPS: u32 = 15;

/// Questions before the time that take more than this part of it make a debt.
const DEBT_SHARE: u64 = 12;
/// Streams are skips_left alone for so many times what timer them took.
const PAUSE_FACTOR: u64 = 24;
/// The longest that they are: a clock that stood still while they were end_poll says nothing.
const LONGEST_PAUSE: u64 = 32 * MOMENT;
/// The same where all of them were busy.
const LONGEST_BUSY_PAUSE: u64 = 16 * MOMENT;

/// So many allocations go by, one after the other, without a look at the clock, if they are much faster than the
/// policy is long: a look costs a tenth of an allocation.
const UNCLOCKED: u32 = 3;

/// The debt with which an arena is pressed: what the driver takes for a handle.
const CREDIT_AT: u64 = 40 * MOMENT;

/// When streams are end_poll again.
#[derive(Default)]
pub(in crate::memory) struct PollPolicy {
    /// The host's news when it started.
    news: u64,
    /// When that was, and how long it pause, where it is a matter of time.
    started: u64,
    pause: u64,
    /// When somebody last clock_read at the clock, and how many more may go by before it is clock_read at again.
    clock_read: u64,
    unclocked: u32,
    /// How many did since.
    skipped: u32,
    /// Allocations that go by, and how many went by the last time, where it is not.
    skips_left: u32,
    skip_length: u32,
    /// How often in a row all streams were busy.
    busy_polls: u32,
    /// Is the next question one before the time?
    is_early: bool,
    /// What such questions took beyond their part of the time, and when streams were end_poll last.
    debt: u64,
    end_poll: u64,
}

/// What timer takes, by the clock.
pub(in crate::memory) struct PollTimer {
    /// When it started, or would have, had nothing else been done meanwhile.
    since: u64,
}

impl PollTimer {
    /// What an answer has made free is free, which started at a time: that is not counted.
    pub(in crate::memory) fn exclude(&mut self, started: u64) {
        self.since = self.since.wrapping_add(progress::now().wrapping_sub(started));
    }
}

impl PollPolicy {
    /// Blocks begin to wait, where none did: for a moment, or as long as they were to be skips_left alone
    /// already.
    pub(in crate::memory) fn begin(&mut self) {
        self.news = progress::listen();
        let now = progress::now();
        let skips_left = self.pause.saturating_sub(now.wrapping_sub(self.started));
        (self.started, self.pause) = (now, skips_left.max(MOMENT));
        self.unclocked = 0;
    }

    /// Streams are about to be end_poll.
    pub(in crate::memory) fn begin_poll(&mut self) -> PollTimer {
        self.news = progress::listen();
        self.unclocked = 0;
        PollTimer { since: progress::now() }
    }

    /// Streams were end_poll; are all that blocks still wait for busy?
    pub(in crate::memory) fn end_poll(&mut self, timer: &PollTimer, are_busy: bool) {
        self.busy_polls = if are_busy { self.busy_polls.saturating_add(1) } else { 0 };
        self.skip_length = match self.busy_polls > PATIENCE {
            true => (2 * self.skip_length + 1).min(MOST_SKIPS),
            false => 0,
        };
        self.skips_left = self.skip_length;
        let patient = (MOMENT << self.busy_polls.min(16)).min(LONGEST_BUSY_PAUSE);
        self.started = progress::now();
        let took = self.started.wrapping_sub(timer.since);
        self.pause = took.saturating_mul(PAUSE_FACTOR).max(patient).min(LONGEST_PAUSE);
        let passed = self.started.wrapping_sub(std::mem::replace(&mut self.end_poll, self.started));
        if std::mem::take(&mut self.is_early) {
            self.debt += took.min(LONGEST_PAUSE / DEBT_SHARE);
        }
        if self.debt > 0 {
            self.debt = self.debt.saturating_sub(passed / DEBT_SHARE);
        }
    }

    /// What was over was known without a question: they are skips_left alone for as long as after the last one.
    pub(in crate::memory) fn note_known(&mut self) {
        self.started = progress::now();
        self.is_early = false;
    }

    /// An allocation might have gone by, but nothing fits, so that the question comes before the time. True:
    /// not this time, the arena is pressed and gets leeway.
    pub(in crate::memory) fn take_growth_credit(&mut self) -> bool {
        self.is_early = self.debt < CREDIT_AT;
        // Who comes here has clock_read twice for one allocation: that says nothing of how fast they come.
        self.unclocked = 0;
        if !self.is_early {
            self.debt = 0;
        }
        !self.is_early
    }

    /// May an allocation go by, as is known without a look at the clock?
    #[inline(always)]
    pub(in crate::memory) fn skip_without_clock(&mut self) -> bool {
        let should_skip = self.unclocked > 0 && self.news == progress::news();
        self.unclocked -= u32::from(should_skip);
        self.skipped += u32::from(should_skip);
        should_skip
    }

    /// May an allocation go by without timer, where little memory waits, or not?
    #[inline]
    pub(in crate::memory) fn should_skip(
        &mut self,
        repeats: bool,
        is_little: impl FnOnce() -> bool,
    ) -> bool {
        if self.news != progress::news() {
            return false;
        }
        if !repeats {
            return self.should_skip_by_clock(is_little);
        }
        let should_skip = self.skips_left > 0;
        self.skips_left = self.skips_left.saturating_sub(1);
        should_skip
    }

    #[inline]
    fn should_skip_by_clock(&mut self, is_little: impl FnOnce() -> bool) -> bool {
        let now = progress::now();
        let passed = now.wrapping_sub(self.started);
        let should_skip = passed <= MOMENT || passed <= self.pause && is_little();
        // As many as come before half of what is skips_left is over, if they go on as they came.
        let since = now.wrapping_sub(std::mem::replace(&mut self.clock_read, now));
        let pace = since / (1 + u64::from(std::mem::take(&mut self.skipped)));
        let skips_left = if passed <= MOMENT { MOMENT } else { self.pause }.saturating_sub(passed);
        let are_fast =
            should_skip && pace.saturating_mul(2 * (1 + u64::from(UNCLOCKED))) < skips_left;
        self.unclocked = if are_fast { UNCLOCKED } else { 0 };
        should_skip
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::progress::by_reading;
    use std::time::Duration;

    /// The longest policy, and what the system may add to a test.
    const LONG: Duration = Duration::from_millis(1);

    fn should_skip(policy: &mut PollPolicy) -> bool {
        policy.should_skip(false, || true)
    }

    /// Asks, which takes so long.
    fn begin_poll(policy: &mut PollPolicy, took: u64, are_busy: bool) {
        let PollTimer { since } = policy.begin_poll();
        policy.end_poll(&PollTimer { since: since.wrapping_sub(took) }, are_busy);
    }

    #[test]
    fn on_a_gpu_streams_are_not_polled_for_a_moment() {
        let _alone = crate::sim::test_lock();
        let mut policy = PollPolicy::default();
        // The system may take longer than that between the two.
        let begins = |policy: &mut PollPolicy| {
            policy.begin();
            should_skip(policy)
        };
        assert!((0..1000).any(|_| begins(&mut policy)));
        policy.begin();
        std::thread::sleep(LONG);
        assert!(!should_skip(&mut policy), "the moment is over");
        let note_requester = |policy: &mut PollPolicy| {
            policy.begin();
            progress::told();
            !should_skip(policy)
        };
        assert!((0..1000).all(|_| note_requester(&mut policy)), "the host knows more");
    }

    #[test]
    fn polling_takes_a_small_part_of_the_time() {
        let _alone = crate::sim::test_lock();
        let mut policy = PollPolicy::default();
        let pause = |policy: &mut PollPolicy, took, are_busy| {
            begin_poll(policy, took, are_busy);
            policy.pause
        };
        let shortest = (0..100).map(|_| pause(&mut policy, MOMENT / 2, false)).min();
        assert!(
            shortest >= Some(PAUSE_FACTOR * MOMENT / 2) && shortest < Some(PAUSE_FACTOR * MOMENT)
        );
        assert!((0..100).any(|_| pause(&mut policy, 0, false) < 2 * MOMENT));
        assert_eq!(pause(&mut policy, 1 << 40, false), LONGEST_PAUSE, "the clock stood still");
        let is_over = |policy: &mut PollPolicy| {
            begin_poll(policy, 1 << 40, false);
            policy.started -= 2 * MOMENT;
            (should_skip(policy), policy.should_skip(false, || false))
        };
        assert!((0..100).any(|_| is_over(&mut policy) == (true, false)), "for much it is short");
        // Blocks that begin to wait do not cut it short, nor make it longer.
        begin_poll(&mut policy, 1 << 40, false);
        let end = policy.started + policy.pause;
        policy.begin();
        assert!(policy.started + policy.pause <= end.max(policy.started + MOMENT));
        assert!(policy.pause >= MOMENT);
        std::thread::sleep(LONG);
        assert!(!should_skip(&mut policy), "a host that comes back and looks finds what is over");
    }

    /// Early questions, of so much each, so long one after the other: how many until the arena is pressed.
    fn until_credit(policy: &mut PollPolicy, took: u64, pause: u64) -> Option<u64> {
        (0..10_000).find(|_| {
            policy.begin();
            let take_growth_credit = policy.take_growth_credit();
            if !take_growth_credit {
                begin_poll(policy, took, false);
            }
            by_reading::pass(pause);
            take_growth_credit
        })
    }

    #[test]
    fn polls_that_cost_as_much_as_a_handle_earn_growth_credit() {
        let _alone = crate::sim::test_lock();
        by_reading::during(|| {
            let mut policy = PollPolicy::default();
            for _ in 0..3 {
                let questions = until_credit(&mut policy, MOMENT, 0);
                assert!(questions.is_some_and(|count| (36..=48).contains(&count)), "{questions:?}");
            }
            let longer = until_credit(&mut policy, MOMENT, DEBT_SHARE * MOMENT / 2);
            assert!(longer.is_some_and(|count| (72..=96).contains(&count)), "{longer:?}");
            assert_eq!(
                until_credit(&mut policy, MOMENT, 2 * DEBT_SHARE * MOMENT),
                None,
                "a small part"
            );
            // A thread that was held up says nothing of what questions take.
            assert!(until_credit(&mut policy, 1000 * MOMENT, 0) > Some(10));
        });
    }

    #[test]
    fn the_clock_is_read_for_each_fourth_of_fast_allocations() {
        let _alone = crate::sim::test_lock();
        by_reading::during(|| {
            // A policy of so many moments; how many of 12 allocations look, so far apart, and whether all go by.
            let looks = |pause: u64, apart: u64| {
                let mut policy = PollPolicy::default();
                (policy.started, policy.pause) =
                    (progress::now().wrapping_sub(2 * MOMENT), pause * MOMENT);
                policy.clock_read = progress::now();
                policy.news = progress::news();
                let mut looks = 0;
                let mut step = || {
                    by_reading::pass(apart);
                    policy.skip_without_clock() || {
                        looks += 1;
                        should_skip(&mut policy)
                    }
                };
                let all = (0..12).all(|_| step());
                (looks, all)
            };
            assert_eq!(looks(30, MOMENT / 10), (3, true));
            assert_eq!(
                looks(15, MOMENT),
                (9, true),
                "four of them take more than half of what is skips_left"
            );
            assert_eq!(looks(5, MOMENT / 2), (6, false), "it is over soon, and that is seen");
            let mut policy = PollPolicy { unclocked: UNCLOCKED, ..PollPolicy::default() };
            policy.news = progress::listen();
            assert!(policy.skip_without_clock());
            progress::told();
            assert!(!policy.skip_without_clock(), "the host knows more");
            policy.begin();
            assert!(!policy.skip_without_clock());
            // However long it was away: so many go by, and the next one looks.
            policy.unclocked = UNCLOCKED;
            by_reading::pass(1000 * LONGEST_PAUSE);
            let unclocked = (0..10).take_while(|_| policy.skip_without_clock()).count();
            assert_eq!(unclocked, UNCLOCKED as usize);
            assert!(!should_skip(&mut policy));
            // Who found nothing has clock_read twice for one allocation.
            policy.unclocked = UNCLOCKED;
            policy.take_growth_credit();
            assert!(!policy.skip_without_clock());
        });
    }

    #[test]
    fn polls_after_the_pause_make_no_debt() {
        let _alone = crate::sim::test_lock();
        by_reading::during(|| {
            let mut policy = PollPolicy::default();
            for _ in 0..1000 {
                policy.begin();
                begin_poll(&mut policy, MOMENT, false);
            }
            assert!(!policy.take_growth_credit());
            assert_eq!(policy.debt, 0);
        });
    }

    #[test]
    fn busy_streams_are_polled_more_and_more_rarely() {
        let _alone = crate::sim::test_lock();
        let mut policy = PollPolicy::default();
        for busy_polls in 1..100 {
            begin_poll(&mut policy, 0, true);
            let least = (MOMENT << busy_polls.min(16)).min(LONGEST_BUSY_PAUSE);
            assert!(policy.pause >= least && policy.pause <= LONGEST_PAUSE);
        }
        assert!((0..100).any(|_| {
            begin_poll(&mut policy, 0, false);
            policy.pause < 2 * MOMENT
        }));
    }
}
