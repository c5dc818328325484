//! When streams are asked whether they are done with freed blocks.
//!
//! Asking costs more than an allocation, and PyTorch, which asks at each, has recorded its events when
//! the blocks were freed: within a moment of that none of them is over. So streams are left alone for a
//! moment, and then for as long as makes asking a small part of the time: its cost is taken by the clock,
//! since it differs by machine and by who else calls the driver. While they answer that they are busy, that
//! grows. It ends at once where the host has heard of work that is over, so that a block counts as active
//! no longer than what the host can know of the device allows, and where nothing else fits: an arena asks
//! before it grows, lends or fails. Where large blocks wait, or more than a little memory, it is but that
//! moment: what is taken meanwhile in their place may be a piece of something larger.
//!
//! The simulated machine's runs are to repeat, and do not depend on time: there streams are asked
//! at each allocation, and more and more rarely where they have been busy several times.

use crate::progress::{self, MOMENT};

/// So often in a row streams are busy before allocations go by, where runs are to repeat.
const PATIENCE: u32 = 4;
/// Allocations that go by at most there.
const MOST_REST: u32 = 15;

/// Streams are left alone for so many times what asking them took.
const SHARE: u64 = 12;
/// The longest that they are: a clock that stood still while they were asked says nothing.
const LONGEST: u64 = 32 * MOMENT;
/// The same where all of them were busy.
const LONGEST_BUSY: u64 = 16 * MOMENT;

/// When streams are asked again.
#[derive(Default)]
pub(super) struct Rest {
    /// The host's news when it began.
    news: u64,
    /// When that was, and how long it lasts, where it is a matter of time.
    began: u64,
    lasts: u64,
    /// Allocations that go by, and how many went by the last time, where it is not.
    left: u32,
    length: u32,
    /// How often in a row all streams were busy.
    refusals: u32,
}

/// What asking takes, by the clock.
pub(super) struct Asking {
    /// When it began, or would have, had nothing else been done meanwhile.
    since: u64,
}

impl Asking {
    /// What an answer has made free is free, which began at a time: that is not counted.
    pub(super) fn but_for(&mut self, began: u64) {
        self.since = self.since.wrapping_add(progress::now().wrapping_sub(began));
    }
}

impl Rest {
    /// Blocks begin to wait, where none did: for a moment, or as long as they were to be left alone
    /// already.
    pub(super) fn begin(&mut self) {
        self.news = progress::listen();
        let now = progress::now();
        let left = self.lasts.saturating_sub(now.wrapping_sub(self.began));
        (self.began, self.lasts) = (now, left.max(MOMENT));
    }

    /// Streams are about to be asked.
    pub(super) fn ask(&mut self) -> Asking {
        self.news = progress::listen();
        Asking { since: progress::now() }
    }

    /// Streams were asked; are all that blocks still wait for busy?
    pub(super) fn asked(&mut self, asking: &Asking, are_busy: bool) {
        self.refusals = if are_busy { self.refusals.saturating_add(1) } else { 0 };
        self.length = match self.refusals > PATIENCE {
            true => (2 * self.length + 1).min(MOST_REST),
            false => 0,
        };
        self.left = self.length;
        let patient = (MOMENT << self.refusals.min(16)).min(LONGEST_BUSY);
        self.began = progress::now();
        let took = self.began.wrapping_sub(asking.since);
        self.lasts = took.saturating_mul(SHARE).max(patient).min(LONGEST);
    }

    /// May an allocation go by without asking, where little memory waits, or not?
    #[inline]
    pub(super) fn goes_by(&mut self, is_simulated: bool, is_little: impl FnOnce() -> bool) -> bool {
        if self.news != progress::news() {
            return false;
        }
        if !is_simulated {
            let passed = progress::now().wrapping_sub(self.began);
            return passed <= MOMENT || passed <= self.lasts && is_little();
        }
        let goes_by = self.left > 0;
        self.left = self.left.saturating_sub(1);
        goes_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let _alone = crate::driver::sim::test_lock();
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
        let _alone = crate::driver::sim::test_lock();
        let mut rest = Rest::default();
        let lasts = |rest: &mut Rest, took, are_busy| {
            ask(rest, took, are_busy);
            rest.lasts
        };
        let shortest = (0..100).map(|_| lasts(&mut rest, MOMENT / 2, false)).min();
        assert!(shortest >= Some(SHARE * MOMENT / 2) && shortest < Some(SHARE * MOMENT));
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
        assert!(!goes_by(&mut rest), "a host that comes back finds what is over");
    }

    #[test]
    fn busy_streams_are_asked_more_and_more_rarely() {
        let _alone = crate::driver::sim::test_lock();
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
