//! Scopes: statistics of a span of time, with peaks and totals of their own, which nest on each
//! thread. They cover the device, so that they also count what other threads do there.
//!
//! A peak of a scope is exact for the same reason as the device's: headroom is distributed below
//! the lowest of all open peaks, and an arena that runs out of it raises all of them.
//!
//! Only the newest scope is changed. Each scope has what happened while it was the newest, and what
//! closed scopes added to it. The peaks of an older scope are never below those of a newer one, so
//! that the newest scope has the lowest ones. So everything except closing takes the same time
//! however many scopes are open, and so does closing the newest.

use crate::base::thread::try_box;
use crate::memory::stats::ledger::{Stat, StatArray, Statistics, Sums};

/// An open scope.
pub struct Scope {
    /// The thread that opened it.
    owner: u64,
    /// The highest sums of its part of the time.
    peaks: Sums,
    /// Increases and decreases of the arenas until it was opened, with those that the arenas had
    /// forgotten.
    increased: Sums,
    decreased: Sums,
    /// What the ledger counted in its part of the time.
    counted: Statistics,
}

/// The open scopes of a device, oldest first.
#[derive(Default)]
pub struct Scopes {
    #[allow(
        clippy::vec_box,
        reason = "one that goes from the middle moves pointers, not kilobytes"
    )]
    list: Vec<Box<Scope>>,
    /// Increases and decreases that the arenas have forgotten.
    forgotten: [Sums; 2],
}

impl Scope {
    /// Adds what happened in the part of the next newer scope.
    fn absorb(&mut self, newer: &Scope) {
        each(&mut self.peaks, &newer.peaks, |peak, other| *peak = (*peak).max(other));
        let follow = |stat: &mut Stat, other: &Stat| {
            stat.current = other.current;
            stat.peak = stat.peak.max(other.peak);
            stat.allocated += other.allocated;
            stat.freed += other.freed;
        };
        let (counted, other) = (&mut self.counted, &newer.counted);
        let rows = |row: &mut StatArray, other: &StatArray| {
            row.iter_mut().zip(other).for_each(|(stat, other)| follow(stat, other));
        };
        rows(&mut counted.segment, &other.segment);
        rows(&mut counted.reserved_bytes, &other.reserved_bytes);
        follow(&mut counted.oversize_segments, &other.oversize_segments);
        counted.num_alloc_retries += other.num_alloc_retries;
        counted.num_ooms += other.num_ooms;
        counted.num_sync_all_streams += other.num_sync_all_streams;
        counted.num_device_alloc += other.num_device_alloc;
        counted.num_device_free += other.num_device_free;
        counted.num_oom_rejections += other.num_oom_rejections;
    }
}

fn each(sums: &mut Sums, others: &Sums, body: impl Fn(&mut i64, i64)) {
    for (row, others) in sums.iter_mut().zip(others) {
        for (sum, other) in row.iter_mut().zip(others) {
            body(sum, *other);
        }
    }
}

fn sum(sums: &Sums, others: &Sums) -> Sums {
    let mut all = *sums;
    each(&mut all, others, |sum, other| *sum += other);
    all
}

impl Scopes {
    /// Opens a scope, given the values of the arenas and the ledger; false: no host memory.
    pub fn open(&mut self, owner: u64, sums: [&Sums; 3], counted: &Statistics) -> bool {
        if self.list.try_reserve(1).is_err() {
            return false;
        }
        let begin =
            |stat: &Stat| Stat { current: stat.current, peak: stat.current, ..Stat::default() };
        let counted = Statistics {
            segment: counted.segment.each_ref().map(begin),
            reserved_bytes: counted.reserved_bytes.each_ref().map(begin),
            oversize_segments: begin(&counted.oversize_segments),
            ..Statistics::default()
        };
        let [peaks, increased, decreased] = sums;
        let increased = sum(increased, &self.forgotten[0]);
        let decreased = sum(decreased, &self.forgotten[1]);
        let scope = Scope { owner, peaks: *peaks, increased, decreased, counted };
        match try_box(scope, "a scope of statistics") {
            Ok(scope) => self.list.push(scope),
            Err(_) => return false,
        }
        true
    }

    /// Removes a scope; its part goes to the next older one.
    fn take(&mut self, index: usize) -> Box<Scope> {
        let scope = self.list.remove(index);
        if let Some(older) = index.checked_sub(1).and_then(|older| self.list.get_mut(older)) {
            older.absorb(&scope);
        }
        scope
    }

    /// Removes a scope, and returns it with all that happened since it was opened.
    fn remove(&mut self, index: usize) -> Box<Scope> {
        let mut scope = self.take(index);
        self.list[index..].iter().for_each(|newer| scope.absorb(newer));
        scope
    }

    /// Closes the newest scope of a thread, and returns what happened in it.
    pub fn close(&mut self, owner: u64, sums: [&Sums; 3]) -> Option<Statistics> {
        let index = self.list.iter().rposition(|scope| scope.owner == owner)?;
        let scope = self.remove(index);
        let [current, increased, decreased] = sums;
        let increased = sum(increased, &self.forgotten[0]);
        let decreased = sum(decreased, &self.forgotten[1]);
        let mut all = scope.counted;
        all.fill(current, &scope.peaks, |row, counter| {
            (
                increased[row][counter] - scope.increased[row][counter],
                decreased[row][counter] - scope.decreased[row][counter],
            )
        });
        Some(all)
    }

    /// Removes all scopes of a thread that ends.
    pub fn forget(&mut self, owner: u64) {
        for index in (0..self.list.len()).rev() {
            if self.list[index].owner == owner {
                self.take(index);
            }
        }
        // This thread alone may have opened many.
        if self.list.capacity() > 2 * self.list.len() + 16 {
            self.list.shrink_to(self.list.len());
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Raises all peaks to these sums.
    pub fn raise(&mut self, sums: &Sums) {
        if let Some(scope) = self.list.last_mut() {
            each(&mut scope.peaks, sums, |peak, sum| *peak = (*peak).max(sum));
        }
    }

    /// Lowers peaks to those of the scopes, where these are lower.
    pub fn lower(&self, peaks: &mut Sums) {
        if let Some(scope) = self.list.last() {
            each(peaks, &scope.peaks, |lowest, peak| *lowest = (*lowest).min(peak));
        }
    }

    /// Notes increases and decreases that the arenas are about to forget; the scopes keep them.
    pub fn rebase(&mut self, increased: &Sums, decreased: &Sums) {
        each(&mut self.forgotten[0], increased, |all, sum| *all += sum);
        each(&mut self.forgotten[1], decreased, |all, sum| *all += sum);
    }

    /// Counts for each scope what the ledger counts for the device.
    pub fn count(&mut self, body: impl Fn(&mut Statistics)) {
        self.list.last_mut().into_iter().for_each(|scope| body(&mut scope.counted));
    }
}
