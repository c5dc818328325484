//! Statistics of a stretch of time: scopes with peaks and totals of their own, which nest on each
//! thread. The device is what they look at, so that they see what other threads do there as well.
//!
//! A peak of a scope is the true one for the same reason as the device's: the slack of the arenas is
//! shared out below the lowest of all open peaks, and whoever runs out of slack raises all of them.

use super::stats::{Stat, Statistics, Sums};

/// An open scope.
pub struct Scope {
    /// The thread that opened it.
    owner: u64,
    /// The highest sums since then.
    peaks: Sums,
    /// Increases and decreases of the arenas until then.
    increased: Sums,
    decreased: Sums,
    /// What the ledger counted since then.
    counted: Statistics,
}

/// The open scopes of a device, oldest first.
#[derive(Default)]
pub struct Scopes(Vec<Scope>);

fn each(sums: &mut Sums, others: &Sums, body: impl Fn(&mut i64, i64)) {
    for (row, others) in sums.iter_mut().zip(others) {
        for (sum, other) in row.iter_mut().zip(others) {
            body(sum, *other);
        }
    }
}

impl Scopes {
    /// Opens a scope, where the arenas and the ledger have these values; false: no host memory.
    pub fn open(&mut self, owner: u64, sums: [&Sums; 3], counted: &Statistics) -> bool {
        if self.0.try_reserve(1).is_err() {
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
        let [peaks, increased, decreased] = sums.map(|sums| *sums);
        self.0.push(Scope { owner, peaks, increased, decreased, counted });
        true
    }

    /// Closes the newest scope of a thread, and gives what happened in it.
    pub fn close(&mut self, owner: u64, sums: [&Sums; 3]) -> Option<Statistics> {
        let index = self.0.iter().rposition(|scope| scope.owner == owner)?;
        let scope = self.0.remove(index);
        let [current, increased, decreased] = sums;
        let mut all = scope.counted;
        all.fill(current, &scope.peaks, |row, lane| {
            (
                increased[row][lane] - scope.increased[row][lane],
                decreased[row][lane] - scope.decreased[row][lane],
            )
        });
        Some(all)
    }

    /// Removes all scopes of a thread that ends.
    pub fn forget(&mut self, owner: u64) {
        self.0.retain(|scope| scope.owner != owner);
        // Many may have been open at once, in this thread alone.
        if self.0.capacity() > 2 * self.0.len() + 16 {
            self.0.shrink_to(self.0.len());
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Raises all peaks to these sums.
    pub fn raise(&mut self, sums: &Sums) {
        for scope in &mut self.0 {
            each(&mut scope.peaks, sums, |peak, sum| *peak = (*peak).max(sum));
        }
    }

    /// Lowers peaks to the lowest of the scopes'.
    pub fn lower(&self, peaks: &mut Sums) {
        for scope in &self.0 {
            each(peaks, &scope.peaks, |lowest, peak| *lowest = (*lowest).min(peak));
        }
    }

    /// The arenas forget these increases and decreases; the scopes do not.
    pub fn rebase(&mut self, increased: &Sums, decreased: &Sums) {
        for scope in &mut self.0 {
            each(&mut scope.increased, increased, |begin, sum| *begin -= sum);
            each(&mut scope.decreased, decreased, |begin, sum| *begin -= sum);
        }
    }

    /// Counts for each scope what the ledger counts for the device.
    pub fn count(&mut self, body: impl Fn(&mut Statistics)) {
        self.0.iter_mut().for_each(|scope| body(&mut scope.counted));
    }
}
