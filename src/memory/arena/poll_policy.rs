//! The poll policy: when streams are polled for freed blocks that they may still use.
//!
//! A poll costs more than an allocation. PyTorch polls at each allocation, but records its events
//! when blocks are freed; none of these completes within a moment. So streams are not polled for a
//! moment, and then not for a pause that makes polls a small part of the time. The cost of a poll
//! is measured, because it differs by machine and depends on the other threads that call the
//! driver.
//!
//! The pause ends at once when the host learns that work is complete. So a block counts as active
//! no longer than what the host can know requires. It also ends when nothing else fits: an arena
//! polls before it grows, remaps memory or fails. If more than a little memory is pending, the
//! pause is only that moment, because memory that is taken instead may be part of something larger.
//! If allocations follow each other fast, only every fourth reads the clock. A thread that returns
//! after a break thus finds completed work at most three allocations late.
//!
//! If an arena has hardly more memory than its pending blocks, polls come early, before the end of
//! the pause, again and again. What they take beyond their part of the time is a *debt*. When the
//! debt is as much as the driver takes for a handle, the arena has growth credit
//! (`growth_credit.rs`). So early polls never cost much more than the memory that makes them
//! unnecessary.
//!
//! Runs of the simulated machine are repeatable, and do not depend on time. There streams are
//! polled at each allocation, and less and less often after they were busy several times in a row.

use crate::base::progress::{self, MOMENT};

/// In repeatable runs, so many polls in a row find all streams busy before allocations skip the
/// poll.
const PATIENCE: u32 = 4;
/// In repeatable runs, the most allocations that skip the poll in a row.
const MOST_SKIPS: u32 = 15;

/// Early polls make a debt if they take more of the time than one part in so many.
const DEBT_SHARE: u64 = 12;
/// The pause after a poll is so many times as long as the poll took.
const PAUSE_FACTOR: u64 = 24;
/// The longest pause: a poll during which the thread was suspended says nothing.
const LONGEST_PAUSE: u64 = 32 * MOMENT;

/// So many allocations in a row skip the poll without reading the clock, if they are much faster
/// than the pause is long. Reading the clock costs a tenth of an allocation.
const UNCLOCKED: u32 = 3;

/// The debt that gives growth credit: what the driver takes for a handle.
const CREDIT_AT: u64 = 40 * MOMENT;

/// When streams are polled again.
#[derive(Default)]
pub(in crate::memory) struct PollPolicy {
    /// The host's generation of known progress when the pause began.
    generation: u64,
    /// When the pause began and how long it is, in runs that depend on time.
    started: u64,
    pause: u64,
    /// When the clock was last read, and how many more allocations may skip the poll before it is
    /// read again.
    clock_read: u64,
    unclocked: u32,
    /// How many allocations have skipped the poll since.
    skipped: u32,
    /// In repeatable runs: allocations that still skip the poll, and how many did after the last
    /// poll.
    skips_left: u32,
    skip_length: u32,
    /// How many polls in a row found all streams busy.
    busy_polls: u32,
    /// Is the next poll early?
    is_early: bool,
    /// What early polls took beyond their part of the time, and when the last poll was.
    debt: u64,
    last_poll: u64,
}

/// The measured duration of a poll.
pub(in crate::memory) struct PollTimer {
    /// When the poll began, plus the time that does not count.
    since: u64,
}

impl PollTimer {
    /// Excludes the time spent releasing blocks since `started`.
    pub(in crate::memory) fn exclude(&mut self, started: u64) {
        self.since = self.since.wrapping_add(progress::now().wrapping_sub(started));
    }
}

impl PollPolicy {
    /// Begins a pause as blocks begin to wait, where none did: a moment, or the rest of the present
    /// pause.
    pub(in crate::memory) fn begin(&mut self) {
        self.generation = progress::subscribe();
        let now = progress::now();
        let rest = self.pause.saturating_sub(now.wrapping_sub(self.started));
        (self.started, self.pause) = (now, rest.max(MOMENT));
        self.unclocked = 0;
    }

    /// Begins a poll.
    pub(in crate::memory) fn begin_poll(&mut self) -> PollTimer {
        self.generation = progress::subscribe();
        self.unclocked = 0;
        PollTimer { since: progress::now() }
    }

    /// Ends a poll. `are_busy`: all streams that blocks still wait for are busy.
    pub(in crate::memory) fn end_poll(&mut self, timer: &PollTimer, are_busy: bool) {
        self.busy_polls = if are_busy { self.busy_polls.saturating_add(1) } else { 0 };
        self.skip_length = match self.busy_polls > PATIENCE {
            true => (2 * self.skip_length + 1).min(MOST_SKIPS),
            false => 0,
        };
        self.skips_left = self.skip_length;
        self.started = progress::now();
        let took = self.started.wrapping_sub(timer.since);
        self.pause = took.saturating_mul(PAUSE_FACTOR).clamp(MOMENT, LONGEST_PAUSE);
        let passed =
            self.started.wrapping_sub(std::mem::replace(&mut self.last_poll, self.started));
        if std::mem::take(&mut self.is_early) {
            self.debt += took.min(LONGEST_PAUSE / DEBT_SHARE);
        }
        if self.debt > 0 {
            self.debt = self.debt.saturating_sub(passed / DEBT_SHARE);
        }
    }

    /// Notes that what is complete was known without a poll: the pause begins again.
    pub(in crate::memory) fn note_known(&mut self) {
        self.started = progress::now();
        self.is_early = false;
    }

    /// Called if nothing fits, so that the poll is early. True: the arena uses its growth credit
    /// instead of polling.
    pub(in crate::memory) fn take_growth_credit(&mut self) -> bool {
        self.is_early = self.debt < CREDIT_AT;
        // This allocation has come here twice, which says nothing about the pace of allocations.
        self.unclocked = 0;
        if !self.is_early {
            self.debt = 0;
        }
        !self.is_early
    }

    /// May an allocation skip the poll without a look at the clock?
    #[inline(always)]
    pub(in crate::memory) fn skip_without_clock(&mut self) -> bool {
        let should_skip = self.unclocked > 0 && self.generation == progress::generation();
        self.unclocked -= u32::from(should_skip);
        self.skipped += u32::from(should_skip);
        should_skip
    }

    /// May an allocation skip the poll? `repeats`: runs are repeatable. `is_little`: little memory
    /// is pending.
    #[inline]
    pub(in crate::memory) fn should_skip(
        &mut self,
        repeats: bool,
        is_little: impl FnOnce() -> bool,
    ) -> bool {
        if self.generation != progress::generation() {
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
        // The next allocations skip without the clock if all of them, at their present pace, fit
        // into half of the rest of the pause.
        let since = now.wrapping_sub(std::mem::replace(&mut self.clock_read, now));
        let pace = since / (1 + u64::from(std::mem::take(&mut self.skipped)));
        let rest = if passed <= MOMENT { MOMENT } else { self.pause }.saturating_sub(passed);
        let are_fast = should_skip && pace.saturating_mul(2 * (1 + u64::from(UNCLOCKED))) < rest;
        self.unclocked = if are_fast { UNCLOCKED } else { 0 };
        should_skip
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::progress::by_reading;
    use std::time::Duration;

    /// The longest pause, and what the system may add to a test.
    const LONG: Duration = Duration::from_millis(1);

    fn should_skip(policy: &mut PollPolicy) -> bool {
        policy.should_skip(false, || true)
    }

    /// A poll that takes so long.
    fn poll(policy: &mut PollPolicy, took: u64, are_busy: bool) {
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
        let learns = |policy: &mut PollPolicy| {
            policy.begin();
            progress::notify();
            !should_skip(policy)
        };
        assert!((0..1000).all(|_| learns(&mut policy)), "the host knows more");
    }

    #[test]
    fn polling_takes_a_small_part_of_the_time() {
        let _alone = crate::sim::test_lock();
        let mut policy = PollPolicy::default();
        let pause = |policy: &mut PollPolicy, took, are_busy| {
            poll(policy, took, are_busy);
            policy.pause
        };
        let shortest = (0..100).map(|_| pause(&mut policy, MOMENT / 2, false)).min();
        assert!(
            shortest >= Some(PAUSE_FACTOR * MOMENT / 2) && shortest < Some(PAUSE_FACTOR * MOMENT)
        );
        assert!((0..100).any(|_| pause(&mut policy, 0, false) < 2 * MOMENT));
        assert_eq!(pause(&mut policy, 1 << 40, false), LONGEST_PAUSE, "the clock stood still");
        let is_over = |policy: &mut PollPolicy| {
            poll(policy, 1 << 40, false);
            policy.started -= 2 * MOMENT;
            (should_skip(policy), policy.should_skip(false, || false))
        };
        assert!((0..100).any(|_| is_over(&mut policy) == (true, false)), "for much it is short");
        // Blocks that begin to wait neither shorten nor prolong the pause.
        poll(&mut policy, 1 << 40, false);
        let end = policy.started + policy.pause;
        policy.begin();
        assert!(policy.started + policy.pause <= end.max(policy.started + MOMENT));
        assert!(policy.pause >= MOMENT);
        std::thread::sleep(LONG);
        assert!(
            !should_skip(&mut policy),
            "a host that allocates after a break finds what is complete"
        );
    }

    /// Early polls, each so long and so far apart: how many until the arena has growth credit.
    fn until_credit(policy: &mut PollPolicy, took: u64, pause: u64) -> Option<u64> {
        (0..10_000).find(|_| {
            policy.begin();
            let has_credit = policy.take_growth_credit();
            if !has_credit {
                poll(policy, took, false);
            }
            by_reading::pass(pause);
            has_credit
        })
    }

    #[test]
    fn polls_that_cost_as_much_as_a_handle_earn_growth_credit() {
        let _alone = crate::sim::test_lock();
        by_reading::during(|| {
            let mut policy = PollPolicy::default();
            for _ in 0..3 {
                let polls = until_credit(&mut policy, MOMENT, 0);
                assert!(polls.is_some_and(|count| (36..=48).contains(&count)), "{polls:?}");
            }
            let longer = until_credit(&mut policy, MOMENT, DEBT_SHARE * MOMENT / 2);
            assert!(longer.is_some_and(|count| (72..=96).contains(&count)), "{longer:?}");
            assert_eq!(
                until_credit(&mut policy, MOMENT, 2 * DEBT_SHARE * MOMENT),
                None,
                "a small part"
            );
            // A thread that was suspended says nothing about the duration of polls.
            assert!(until_credit(&mut policy, 1000 * MOMENT, 0) > Some(10));
        });
    }

    #[test]
    fn the_clock_is_read_for_each_fourth_of_fast_allocations() {
        let _alone = crate::sim::test_lock();
        by_reading::during(|| {
            // A pause of so many moments: how many of 12 allocations read the clock, so far apart,
            // and whether all skip the poll.
            let reads = |pause: u64, apart: u64| {
                let mut policy = PollPolicy::default();
                (policy.started, policy.pause) =
                    (progress::now().wrapping_sub(2 * MOMENT), pause * MOMENT);
                policy.clock_read = progress::now();
                policy.generation = progress::generation();
                let mut reads = 0;
                let mut step = || {
                    by_reading::pass(apart);
                    policy.skip_without_clock() || {
                        reads += 1;
                        should_skip(&mut policy)
                    }
                };
                let all = (0..12).all(|_| step());
                (reads, all)
            };
            assert_eq!(reads(30, MOMENT / 10), (3, true));
            assert_eq!(
                reads(15, MOMENT),
                (9, true),
                "four of them take more than half of what is left"
            );
            assert_eq!(reads(5, MOMENT / 2), (6, false), "it is over soon, and that is seen");
            let mut policy = PollPolicy { unclocked: UNCLOCKED, ..PollPolicy::default() };
            policy.generation = progress::subscribe();
            assert!(policy.skip_without_clock());
            progress::notify();
            assert!(!policy.skip_without_clock(), "the host knows more");
            policy.begin();
            assert!(!policy.skip_without_clock());
            // After any break, so many allocations skip the poll, and the next one reads the clock.
            policy.unclocked = UNCLOCKED;
            by_reading::pass(1000 * LONGEST_PAUSE);
            let unclocked = (0..10).take_while(|_| policy.skip_without_clock()).count();
            assert_eq!(unclocked, UNCLOCKED as usize);
            assert!(!should_skip(&mut policy));
            // An allocation that found nothing has come here twice.
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
                poll(&mut policy, MOMENT, false);
            }
            assert!(!policy.take_growth_credit());
            assert_eq!(policy.debt, 0);
        });
    }
}
