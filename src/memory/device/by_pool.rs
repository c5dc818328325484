//! The reserved bytes of each private pool of a device, while the pool is alive or has memory.
//! Those of other pools are only in the sums of the device.

use crate::base::error::{Error, Result};
use crate::gpu::stream::Stream;
use crate::memory::arena::Arena;
use crate::memory::arena::heap::Heap;
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::Class;
use crate::memory::device::DeviceMemory;
use crate::memory::stats::ledger::{ALL, Stat, StatArray};

/// Up to so many pools are not searched for dead ones.
const FEW: usize = 16;

/// The reserved bytes of pools.
pub struct ByPool {
    /// Sorted by their ids.
    pools: Vec<(PoolId, StatArray)>,
    /// With so many pools the dead ones are removed. At least twice as many as were left the last
    /// time.
    sweep_at: usize,
}

/// Is a pool alive, or does it have memory?
fn is_current((pool, row): &(PoolId, StatArray)) -> bool {
    row[ALL].current != 0 || pool.is_alive()
}

impl ByPool {
    /// No pools.
    pub const fn new() -> ByPool {
        ByPool { pools: Vec::new(), sweep_at: FEW }
    }

    fn find(&self, pool: PoolId) -> std::result::Result<usize, usize> {
        self.pools.binary_search_by_key(&pool.word(), |(known, _)| known.word())
    }

    /// Makes sure that a pool, which is alive, can be counted.
    pub fn register(&mut self, pool: PoolId) -> Result<()> {
        if self.find(pool).is_ok() {
            return Ok(());
        }
        if self.pools.len() >= self.sweep_at {
            self.pools.retain(is_current);
            self.sweep_at = FEW.max(2 * self.pools.len());
        }
        self.pools
            .try_reserve(1)
            .map_err(|_| Error::OutOfHostMemory("the statistics of a pool"))?;
        let (Ok(place) | Err(place)) = self.find(pool);
        self.pools.insert(place, (pool, StatArray::default()));
        Ok(())
    }

    /// Counts memory that a pool got or gave back. Does nothing for a pool that is not known.
    pub fn count(&mut self, pool: PoolId, class: Class, bytes: i64) {
        let Ok(place) = self.find(pool) else { return };
        for index in [ALL, class.row()] {
            self.pools[place].1[index].change(bytes);
        }
        if !is_current(&self.pools[place]) {
            self.pools.remove(place);
        }
    }

    /// The counts of the pool with this pair of numbers.
    pub fn of(&self, pair: (u64, u64)) -> Option<StatArray> {
        // An earlier pool with these numbers may still have memory.
        let known = self.pools.iter().filter(|(pool, _)| pool.pair() == pair);
        let found = known.filter(|known| is_current(known)).max_by_key(|(pool, _)| pool.is_alive());
        found.map(|(_, row)| *row)
    }

    /// The counts of all, by their pairs of numbers.
    fn all(&self) -> Result<Vec<((u64, u64), StatArray)>> {
        let mut all = Vec::new();
        let current = self.pools.iter().filter(|known| is_current(known));
        let count = current.clone().count();
        all.try_reserve_exact(count).map_err(|_| Error::OutOfHostMemory("statistics"))?;
        // A pool may die or begin meanwhile.
        all.extend(current.take(count).map(|(pool, row)| (pool.pair(), *row)));
        Ok(all)
    }

    /// Resets every peak to its current value.
    pub fn reset_peak(&mut self) {
        self.pools.iter_mut().flat_map(|(_, row)| row).for_each(Stat::reset_peak);
    }

    /// Resets every total to 0.
    pub fn reset_accumulated(&mut self) {
        self.pools.iter_mut().flat_map(|(_, row)| row).for_each(Stat::reset_accumulated);
    }
}

impl DeviceMemory {
    /// Counts memory that an arena got or gave back, for its pool. The caller holds the ledger.
    pub(in crate::memory) fn count_of(&self, arena: &Arena, bytes: i64) {
        arena.add_counted(bytes);
        self.by_pool.lock().count(arena.pool(), arena.class, bytes);
    }

    /// Assigns a heap, with its reserved bytes, to a stream and a pool that is known. The caller
    /// holds the ledger.
    pub(in crate::memory) fn move_to(&self, heap: &Heap, stream: &Stream, pool: PoolId) {
        let mut by_pool = self.by_pool.lock();
        let old = heap.pool();
        heap.assign(stream, pool);
        if old == pool {
            return;
        }
        for arena in heap.arenas().iter().filter(|arena| arena.counted() != 0) {
            by_pool.count(old, arena.class, -arena.counted());
            by_pool.count(pool, arena.class, arena.counted());
        }
    }

    /// The reserved bytes of each private pool.
    pub fn reserved_by_pools(&self) -> Result<Vec<((u64, u64), StatArray)>> {
        self.by_pool.lock().all()
    }

    /// The reserved bytes of the private pool with this pair of numbers.
    pub fn reserved_by_pool(&self, pair: (u64, u64)) -> Option<StatArray> {
        self.by_pool.lock().of(pair)
    }
}
