//! The poll policy: when allocations poll the streams that pending blocks wait for.
//!
//! A poll that takes the time t is paid for 24 t later, and while polls are unpaid, only
//! allocations that find no memory poll, on credit. If the unpaid polls took as long as the driver
//! takes to map a handle, such an allocation grows the arena instead, and all polls are paid for.
//! So polls take at most a 24th of the time, plus the time of a handle for each handle that
//! replaces them.
//!
//! Exceptions: If the host has learned that work is complete, the next allocation polls, so that a
//! block counts as active no longer than what the host can know requires. If more than a little
//! memory is pending, allocations poll after a moment, because memory that is taken instead may be
//! part of something larger. Where memory is worth more than time (`device/settle.rs`), an
//! allocation that finds none polls in any case.
//!
//! If allocations follow each other fast, only every fourth reads the clock. A thread that returns
//! after a break thus finds completed work at most three allocations late.

use crate::base::progress::{self, MOMENT};

/// A poll is paid for after so many times its duration.
const SHARE: u64 = 24;
/// The duration of a poll at most: one during which the thread was suspended says nothing.
const LONGEST_POLL: u64 = 4 * MOMENT / 3;
/// What the driver takes for a handle.
const HANDLE: u64 = 40 * MOMENT;
/// Polls on credit prolong the time without polls to this at most.
const MOST_UNPAID: u64 = SHARE * (HANDLE + LONGEST_POLL);
/// So many allocations in a row skip the poll without reading the clock, which costs a tenth of an
/// allocation.
const UNCLOCKED: u32 = 3;

/// When streams are polled again.
#[derive(Default)]
pub(in crate::memory) struct PollPolicy {
    /// The host's generation of known progress at the last poll.
    generation: u64,
    /// When the last poll ended, or blocks began to wait where none did.
    last: u64,
    /// When all polls are paid for.
    paid_at: u64,
    /// When the clock was last read, and how many more allocations may skip the poll before it is
    /// read again.
    clock_read: u64,
    unclocked: u32,
}

impl PollPolicy {
    /// Begins the time until the first poll, as blocks begin to wait where none did. In repeatable
    /// runs, that poll comes with the next allocation.
    pub(in crate::memory) fn begin_waiting(&mut self) {
        self.begin();
        if progress::is_repeatable() {
            self.paid_at = 0;
        }
    }

    /// Begins a poll.
    pub(in crate::memory) fn begin(&mut self) {
        self.generation = progress::subscribe();
        self.unclocked = 0;
        self.last = progress::now();
    }

    /// Ends a poll.
    pub(in crate::memory) fn end(&mut self) {
        let now = progress::now();
        let took = now.wrapping_sub(self.last).min(LONGEST_POLL);
        let unpaid = self.unpaid(now) + SHARE * took;
        (self.last, self.paid_at) = (now, now.wrapping_add(unpaid.min(MOST_UNPAID)));
    }

    /// How long until all polls are paid for.
    fn unpaid(&self, now: u64) -> u64 {
        time_until(self.paid_at, now, MOST_UNPAID)
    }

    /// Called if nothing fits. True: the arena grows instead of polling.
    pub(in crate::memory) fn should_grow(&mut self) -> bool {
        // This allocation has come here twice, which says nothing about the pace of allocations.
        self.unclocked = 0;
        let should_grow = self.unpaid(progress::now()) >= SHARE * HANDLE;
        if should_grow {
            self.paid_at = 0;
        }
        should_grow
    }

    /// May an allocation skip the poll without a look at the clock?
    #[inline(always)]
    pub(in crate::memory) fn skip_without_clock(&mut self) -> bool {
        let should_skip = self.unclocked > 0 && self.generation == progress::generation();
        self.unclocked -= u32::from(should_skip);
        should_skip
    }

    /// May an allocation skip the poll? `is_little`: little memory is pending.
    #[inline]
    pub(in crate::memory) fn should_skip(&mut self, is_little: impl FnOnce() -> bool) -> bool {
        if self.generation != progress::generation() {
            return false;
        }
        let now = progress::now();
        let mut rest = time_until(self.last.wrapping_add(MOMENT), now, MOMENT);
        if self.unpaid(now) > rest && is_little() {
            rest = self.unpaid(now);
        }
        // The next allocations skip without the clock if they take at most half of the rest, at the
        // pace since the clock was last read.
        let since = now.wrapping_sub(std::mem::replace(&mut self.clock_read, now));
        self.unclocked = if since.saturating_mul(2) < rest { UNCLOCKED } else { 0 };
        rest > 0
    }
}

/// The time until `then`; 0 if that is over, or if it is more than `most`: the clock was set back.
fn time_until(then: u64, now: u64, most: u64) -> u64 {
    let time = then.wrapping_sub(now);
    if time <= most { time } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::progress::by_reading;

    /// Runs a test with a clock that advances by its readings.
    fn timed(body: impl FnOnce(&mut PollPolicy)) {
        let _alone = crate::driver::sim::test_lock();
        by_reading::during(|| body(&mut PollPolicy::default()));
    }

    fn should_skip(policy: &mut PollPolicy) -> bool {
        policy.should_skip(|| true)
    }

    /// A poll that takes so long.
    fn poll(policy: &mut PollPolicy, took: u64) {
        policy.begin();
        by_reading::pass(took);
        policy.end();
    }

    #[test]
    fn on_a_gpu_streams_are_not_polled_for_a_moment() {
        timed(|policy| {
            policy.begin_waiting();
            assert!(should_skip(policy));
            by_reading::pass(MOMENT);
            assert!(!should_skip(policy), "the moment is over");
            policy.begin();
            progress::notify();
            assert!(!should_skip(policy), "the host knows more");
        });
    }

    #[test]
    fn polling_takes_a_small_part_of_the_time() {
        for took in [MOMENT / 4, MOMENT, 1000 * MOMENT] {
            timed(|policy| {
                let polls = (0..100_000).filter(|_| {
                    by_reading::pass(MOMENT / 20);
                    let polls = !policy.skip_without_clock() && !should_skip(policy);
                    if polls {
                        poll(policy, took);
                    }
                    polls
                });
                let most = 100_000 * MOMENT / 20 / (SHARE * took.min(LONGEST_POLL));
                let polls = polls.count() as u64;
                assert!((most / 2..=most * 5 / 4).contains(&polls), "{polls} polls of {took}");
            });
        }
        timed(|policy| {
            poll(policy, MOMENT);
            by_reading::pass(2 * MOMENT);
            assert!(should_skip(policy) && !policy.should_skip(|| false), "for much it is short");
            // Blocks that begin to wait neither shorten nor prolong the time.
            let paid_at = policy.paid_at;
            policy.begin_waiting();
            assert_eq!(policy.paid_at, paid_at);
            by_reading::pass(SHARE * MOMENT);
            assert!(
                !should_skip(policy),
                "a host that allocates after a break finds what is complete"
            );
        });
    }

    /// Polls on credit, each so long and so far apart: how many until the arena grows.
    fn until_growth(policy: &mut PollPolicy, took: u64, pause: u64) -> Option<u64> {
        (0..10_000).find(|_| {
            let grows = policy.should_grow();
            if !grows {
                poll(policy, took);
            }
            by_reading::pass(pause);
            grows
        })
    }

    #[test]
    fn polls_that_cost_as_much_as_a_handle_earn_growth_credit() {
        timed(|policy| {
            for _ in 0..3 {
                let polls = until_growth(policy, MOMENT, 0);
                assert!(polls.is_some_and(|count| (36..=48).contains(&count)), "{polls:?}");
            }
            let longer = until_growth(policy, MOMENT, SHARE * MOMENT / 2);
            assert!(longer.is_some_and(|count| (72..=96).contains(&count)), "{longer:?}");
            let seldom = until_growth(policy, MOMENT, 2 * SHARE * MOMENT);
            assert_eq!(seldom, None, "a small part");
            // A thread that was suspended says nothing about the duration of polls.
            let suspended = until_growth(policy, 1000 * MOMENT, 0);
            assert!(suspended.is_none_or(|count| count > 10), "{suspended:?}");
        });
    }

    #[test]
    fn polls_that_are_paid_for_earn_no_growth_credit() {
        timed(|policy| {
            for _ in 0..1000 {
                poll(policy, MOMENT);
                while should_skip(policy) {
                    by_reading::pass(MOMENT / 4);
                }
            }
            assert!(!policy.should_grow());
        });
    }

    #[test]
    fn the_debt_is_bounded() {
        timed(|policy| {
            (0..10_000).for_each(|_| poll(policy, MOMENT));
            by_reading::pass(MOST_UNPAID);
            assert!(!should_skip(policy));
        });
    }

    #[test]
    fn the_clock_is_read_for_each_fourth_of_fast_allocations() {
        timed(|policy| {
            // So many moments are left: how many of 12 allocations read the clock, so far apart,
            // and whether all skip the poll.
            let mut reads = |moments: u64, apart: u64| {
                policy.begin();
                let now = progress::now();
                (policy.paid_at, policy.clock_read) = (now + moments * MOMENT, now);
                let mut reads = 0;
                let mut step = || {
                    by_reading::pass(apart);
                    policy.skip_without_clock() || {
                        reads += 1;
                        should_skip(policy)
                    }
                };
                let all = (0..12).all(|_| step());
                (reads, all)
            };
            assert_eq!(reads(28, MOMENT / 10), (3, true));
            assert_eq!(reads(13, MOMENT), (6, true), "four take more than half of what is left");
            assert_eq!(reads(3, MOMENT / 2), (3, false), "it is over soon, and that is seen");
            policy.begin();
            assert!(!policy.skip_without_clock());
            // After any break, so many allocations skip the poll, and the next one reads the clock.
            policy.unclocked = UNCLOCKED;
            by_reading::pass(1000 * MOST_UNPAID);
            let unclocked = (0..10).take_while(|_| policy.skip_without_clock()).count();
            assert_eq!(unclocked, UNCLOCKED as usize);
            assert!(!should_skip(policy));
            policy.unclocked = UNCLOCKED;
            progress::notify();
            assert!(!policy.skip_without_clock(), "the host knows more");
            // An allocation that found nothing has come here twice.
            policy.begin();
            policy.unclocked = UNCLOCKED;
            policy.should_grow();
            assert!(!policy.skip_without_clock());
        });
    }
}
