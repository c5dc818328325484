//! Vector clocks: for each thread of a grid, the last of its epochs that happened before.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

/// Runs of a clock at most. Beyond it neighbours get the larger epoch of both: races may be missed,
/// but none is reported that is not there.
const MOST_RUNS: usize = 4096;

/// The last known epoch of each thread, as runs of threads with the same one. Most clocks have few
/// runs, since a barrier gives all its threads the same epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    /// The first thread of a run, and the epoch; a run ends where the next one begins. Threads
    /// before the first run have epoch 0.
    runs: Vec<(u32, u32)>,
}

impl Clock {
    /// A clock that knows these epochs only. The threads ascend.
    pub(super) fn of(epochs: impl IntoIterator<Item = (u32, u32)>) -> Clock {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let mut end = None;
        for (thread, epoch) in epochs {
            match end {
                Some(end) if end == thread => {}
                Some(end) => runs.push((end, 0)),
                None => {}
            }
            if runs.last().is_none_or(|last| last.1 != epoch) {
                runs.push((thread, epoch));
            }
            end = thread.checked_add(1);
        }
        if let Some(end) = end {
            runs.push((end, 0));
        }
        Clock { runs }
    }

    /// The number of runs that begin at or before a thread.
    #[inline]
    fn runs_to(&self, thread: u32) -> usize {
        if self.runs.len() <= 4 {
            return self.runs.iter().take_while(|run| run.0 <= thread).count();
        }
        self.runs.partition_point(|run| run.0 <= thread)
    }

    /// The epoch of a thread.
    #[cfg(test)]
    pub(super) fn epoch(&self, thread: u32) -> u32 {
        self.runs_to(thread).checked_sub(1).map_or(0, |at| self.runs[at].1)
    }

    /// The first of `count` threads whose known epoch is before `epoch`.
    #[inline]
    pub(super) fn first_before(&self, first: u32, count: u32, epoch: u32) -> Option<u32> {
        let end = u64::from(first) + u64::from(count);
        let mut at = self.runs_to(first);
        let mut thread = first;
        loop {
            let known = at.checked_sub(1).map_or(0, |at| self.runs[at].1);
            if known < epoch {
                return Some(thread);
            }
            thread = match self.runs.get(at) {
                Some((next, _)) if u64::from(*next) < end => *next,
                _ => return None,
            };
            at += 1;
        }
    }

    /// The later epoch of both for each thread.
    pub(super) fn join(&self, other: &Clock) -> Clock {
        if other.runs.is_empty() {
            return self.clone();
        }
        let (mut a, mut b) = (self.runs.as_slice(), other.runs.as_slice());
        let (mut epoch_a, mut epoch_b) = (0, 0);
        let mut runs: Vec<(u32, u32)> = Vec::with_capacity(a.len() + b.len());
        while let Some(thread) = match (a.first(), b.first()) {
            (Some(a), Some(b)) => Some(a.0.min(b.0)),
            (Some(one), None) | (None, Some(one)) => Some(one.0),
            (None, None) => None,
        } {
            if let Some((run, rest)) = a.split_first()
                && run.0 == thread
            {
                (epoch_a, a) = (run.1, rest);
            }
            if let Some((run, rest)) = b.split_first()
                && run.0 == thread
            {
                (epoch_b, b) = (run.1, rest);
            }
            let epoch = epoch_a.max(epoch_b);
            if runs.last().map_or(0, |last| last.1) != epoch {
                runs.push((thread, epoch));
            }
        }
        while runs.len() > MOST_RUNS {
            let pairs = runs.chunks(2);
            runs = pairs.map(|pair| (pair[0].0, pair[0].1.max(pair[pair.len() - 1].1))).collect();
        }
        Clock { runs }
    }
}

/// Both clocks joined; one of them if it knows all of the other, so that threads that know the same
/// share it.
pub(super) fn joined(a: &Rc<Clock>, b: &Rc<Clock>) -> Rc<Clock> {
    if Rc::ptr_eq(a, b) {
        return Rc::clone(a);
    }
    let both = a.join(b);
    if both == **b {
        Rc::clone(b)
    } else if both == **a {
        Rc::clone(a)
    } else {
        Rc::new(both)
    }
}

/// Numbers of words and pages, which need no hash against an attacker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// A map from numbers of words or pages.
pub(super) type NumberMap<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// Joins a clock into one that may not exist yet.
pub(super) fn join_into(to: &mut Option<Rc<Clock>>, other: &Rc<Clock>) {
    match to {
        None => *to = Some(Rc::clone(other)),
        Some(known) if Rc::ptr_eq(known, other) => {}
        Some(known) => *known = joined(known, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_knows_the_later_epoch_of_each_thread() {
        let a = Clock::of([(2, 5), (3, 5), (4, 6), (9, 1)]);
        assert_eq!([1, 2, 3, 4, 5, 9, 10].map(|t| a.epoch(t)), [0, 5, 5, 6, 0, 1, 0]);
        let b = Clock::of([(3, 7), (4, 2), (20, 1)]);
        let both = a.join(&b);
        assert_eq!(both, b.join(&a));
        for thread in 0..30 {
            assert_eq!(both.epoch(thread), a.epoch(thread).max(b.epoch(thread)), "{thread}");
        }
        assert_eq!(a.join(&Clock::default()), a);
    }

    #[test]
    fn the_first_thread_with_an_unknown_epoch_is_found() {
        let clock = Clock::of((0..64).map(|t| (t, 3)).chain((64..96).map(|t| (t, 2))));
        assert_eq!(clock.first_before(0, 96, 2), None);
        assert_eq!(clock.first_before(0, 96, 3), Some(64));
        assert_eq!(clock.first_before(90, 10, 1), Some(96));
        assert_eq!(clock.first_before(u32::MAX, 1, 1), Some(u32::MAX));
        assert_eq!(clock.first_before(7, 1, 0), None);
    }

    #[test]
    fn a_clock_of_many_runs_never_knows_less() {
        let scattered = |first: u32| Clock::of((0..4000).map(move |i| (first + 4 * i, 1 + i % 3)));
        let (a, b) = (scattered(0), scattered(2));
        let both = a.join(&b);
        assert!(both.runs.len() <= MOST_RUNS + 1);
        assert!((0..16_000).all(|t| both.epoch(t) >= a.epoch(t).max(b.epoch(t))));
    }
}
