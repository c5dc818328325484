//! What each private pool of a device has from the driver, for as long as the device is open: the
//! counts of a pool that is gone are history, with nothing left.

use super::DeviceMemory;
use super::arena::Arena;
use super::pool::PoolId;
use super::stats::{ALL, Class, Stat, StatRow};
use crate::error::{Error, Result};
use crate::stream::Stream;

/// The reserved bytes of each pool, in the order in which they were first used.
pub struct ByPool(Vec<(PoolId, StatRow)>);

impl ByPool {
    /// No pool.
    pub const fn new() -> ByPool {
        ByPool(Vec::new())
    }

    /// Makes sure that a pool can be counted.
    pub fn know(&mut self, pool: PoolId) -> Result<()> {
        if self.0.iter().any(|(known, _)| *known == pool) {
            return Ok(());
        }
        self.0.try_reserve(1).map_err(|_| Error::OutOfHostMemory("the statistics of a pool"))?;
        self.0.push((pool, StatRow::default()));
        Ok(())
    }

    /// Counts memory that a pool, which is known if it is one, got or gave back.
    pub fn count(&mut self, pool: PoolId, class: Class, bytes: i64) {
        if let Some((_, row)) = self.0.iter_mut().rev().find(|(known, _)| *known == pool) {
            for index in [ALL, class.row()] {
                row[index].change(bytes);
            }
        }
    }

    /// The counts of the pool with this pair of numbers.
    pub fn of(&self, pair: (u64, u64)) -> Option<StatRow> {
        self.0.iter().find(|(pool, _)| pool.pair() == pair).map(|(_, row)| *row)
    }

    /// The counts of all, by their pairs of numbers.
    fn all(&self) -> Result<Vec<((u64, u64), StatRow)>> {
        let mut all = Vec::new();
        all.try_reserve_exact(self.0.len()).map_err(|_| Error::OutOfHostMemory("statistics"))?;
        all.extend(self.0.iter().map(|(pool, row)| (pool.pair(), *row)));
        Ok(all)
    }

    /// Every peak becomes its current value.
    pub fn reset_peak(&mut self) {
        self.0.iter_mut().flat_map(|(_, row)| row).for_each(Stat::reset_peak);
    }

    /// Every total becomes 0.
    pub fn reset_accumulated(&mut self) {
        self.0.iter_mut().flat_map(|(_, row)| row).for_each(Stat::reset_accumulated);
    }
}

impl DeviceMemory {
    /// Counts memory that an arena got or gave back, for its pool. The caller holds the ledger.
    pub(super) fn count_of(&self, arena: &Arena, bytes: i64) {
        arena.add_counted(bytes);
        self.by_pool.lock().count(arena.pool(), arena.class, bytes);
    }

    /// Gives an arena, and what it has, to a stream and a pool that is known. The caller holds the
    /// ledger.
    pub(super) fn move_to(&self, arena: &Arena, stream: &Stream, pool: PoolId) {
        let mut by_pool = self.by_pool.lock();
        let (old, bytes) = (arena.pool(), arena.counted());
        arena.assign(stream, pool);
        if old != pool && bytes != 0 {
            by_pool.count(old, arena.class, -bytes);
            by_pool.count(pool, arena.class, bytes);
        }
    }

    /// What each private pool has from the driver.
    pub fn reserved_by_pools(&self) -> Result<Vec<((u64, u64), StatRow)>> {
        self.by_pool.lock().all()
    }

    /// What the private pool with this pair of numbers has from the driver.
    pub fn reserved_by_pool(&self, pair: (u64, u64)) -> Option<StatRow> {
        self.by_pool.lock().of(pair)
    }
}
