//! Stream-ordered pools of memory.

use super::address_space::PoolAccess;
use super::handles::Handles;
use super::memory::Memory;
use super::segment::{Free, PoolState};
use super::sync::{lock, read, write};
use super::unit::Block;
use crate::base::code;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// All pools.
pub(super) struct Pools {
    table: RwLock<Handles<Arc<Pool>>>,
    /// The handles of the default pools, by device.
    pub(super) default: Vec<usize>,
    /// The handles of the pools from which `cuMemAllocAsync` allocates, by device.
    current: Vec<AtomicUsize>,
    /// Destroyed pools with blocks that the host or unfinished work still uses.
    retired: Mutex<Vec<Arc<Pool>>>,
    /// True once any pool has allocated memory.
    in_use: AtomicBool,
}

impl Pools {
    /// Default pools for this number of devices.
    pub(super) fn new(devices: usize) -> Pools {
        let mut table = Handles::new(6);
        let default: Vec<usize> =
            (0..devices).map(|device| Pool::insert(&mut table, Some(device), true)).collect();
        let current = default.iter().copied().map(AtomicUsize::new).collect();
        let (table, retired) = (RwLock::new(table), Mutex::default());
        Pools { table, default, current, retired, in_use: AtomicBool::new(false) }
    }

    /// Creates a pool of a device's memory, or of the host's, and returns its handle.
    pub(super) fn create(&self, device: Option<usize>) -> usize {
        Pool::insert(&mut write(&self.table), device, false)
    }

    /// The handle of a device's current pool.
    pub(super) fn current(&self, device: usize) -> usize {
        self.current[device].load(Ordering::Relaxed)
    }

    pub(super) fn set_current(&self, device: usize, handle: usize) {
        self.current[device].store(handle, Ordering::Relaxed);
    }

    pub(super) fn get(&self, handle: usize) -> Result<Arc<Pool>, i32> {
        read(&self.table).get(handle).map(Arc::clone).ok_or(code::INVALID_VALUE)
    }

    /// The pool with this access, destroyed or not; `None` if its last segment is freed.
    pub(super) fn of(&self, access: &Arc<PoolAccess>) -> Option<Arc<Pool>> {
        let table = read(&self.table);
        let retired = lock(&self.retired);
        let found = table.iter().chain(&*retired).find(|pool| Arc::ptr_eq(&pool.access, access));
        found.map(Arc::clone)
    }

    /// Removes a pool. Its memory lives until the last block is freed and no work uses it.
    pub(super) fn retire(&self, handle: usize) -> Result<(), i32> {
        let mut table = write(&self.table);
        let removed = table.remove(handle).ok_or(code::INVALID_VALUE)?;
        if let Some(device) = removed.access.device
            && self.current(device) == handle
        {
            self.set_current(device, self.default[device]);
        }
        lock(&self.retired).push(removed);
        Ok(())
    }

    /// Notes that a pool allocates memory.
    pub(super) fn note_use(&self) {
        self.in_use.store(true, Ordering::Relaxed);
    }

    pub(super) fn are_in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// At a synchronisation, pools release idle memory above their threshold.
    pub(super) fn release_idle(&self, memory: &Memory) {
        for pool in read(&self.table).iter() {
            // Work that the host waited for has finished, so no opportunistic flag is needed.
            lock(&pool.state).free.values_mut().for_each(Free::settle);
            pool.trim(memory, None);
        }
        lock(&self.retired).retain(|pool| {
            pool.trim(memory, Some(0));
            lock(&pool.state).reserved[0] > 0
        });
    }

    /// Number of pools that the host has created and not destroyed.
    pub(super) fn len(&self) -> usize {
        read(&self.table).len() - self.default.len()
    }

    /// Number of allocated blocks.
    pub(super) fn blocks(&self) -> usize {
        let blocks = |pools: &mut dyn Iterator<Item = &Arc<Pool>>| -> usize {
            pools.map(|pool| pool.blocks()).sum()
        };
        blocks(&mut read(&self.table).iter()) + blocks(&mut lock(&self.retired).iter())
    }
}

/// A pool.
pub(super) struct Pool {
    pub(super) access: Arc<PoolAccess>,
    pub(super) default: bool,
    pub(super) state: Mutex<PoolState>,
}

impl Pool {
    /// Inserts a new pool into a table.
    fn insert(pools: &mut Handles<Arc<Pool>>, device: Option<usize>, default: bool) -> usize {
        let mask = AtomicU32::new(device.map_or(0, |device| 1 << device));
        pools.insert_with(|handle| {
            let access = Arc::new(PoolAccess { device, handle, mask });
            Arc::new(Pool { access, default, state: Mutex::new(PoolState::new()) })
        })
    }

    /// The block that contains an address.
    pub(super) fn block(&self, address: usize) -> Option<(usize, Block)> {
        lock(&self.state).block(address)
    }

    /// Number of allocated blocks.
    fn blocks(&self) -> usize {
        lock(&self.state).used_blocks.len()
    }

    pub(super) fn trim(&self, memory: &Memory, keep: Option<u64>) {
        let mut state = lock(&self.state);
        let keep = keep.unwrap_or(state.threshold);
        for (start, bytes) in state.trim(keep) {
            // Only this unmaps a pool's memory, so it cannot fail.
            let _ = memory.free_mapped(start, bytes);
        }
    }
}
