//! The fallbacks before the allocation of an uncached block fails: the limit and the source, the
//! caches of the source, and the host's observers.

use crate::base::error::{Error, OutOfMemory, Result};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::memory::device::DeviceMemory;
use crate::memory::device::uncached::Origin;
use crate::memory::fallback::slow_path::is_out_of_memory;
use crate::memory::trace::history;

impl DeviceMemory {
    /// Runs all fallbacks; `attempt` is the first. The caller holds no lock.
    pub(in crate::memory) fn try_fallbacks_uncached(
        &self,
        gpus: &Gpus,
        device: &Device,
        origin: &Origin,
        bytes: u64,
        attempt: impl Fn() -> Result<u64>,
    ) -> Result<u64> {
        let mut failure = match self.try_once(gpus, device, origin, &attempt) {
            Err(error) if is_out_of_memory(&error) => error,
            other => return other,
        };
        if self.run_observers(device, bytes) {
            failure = match self.try_once(gpus, device, origin, &attempt) {
                Err(error) if is_out_of_memory(&error) => error,
                other => return other,
            };
        }
        if self.rejects(&failure) {
            return Err(self.reject(gpus, device, bytes));
        }
        Err(self.refuse_uncached(gpus, device, origin, bytes))
    }

    fn try_once(
        &self,
        gpus: &Gpus,
        device: &Device,
        origin: &Origin,
        attempt: &impl Fn() -> Result<u64>,
    ) -> Result<u64> {
        let failure = match attempt() {
            Err(error) if is_out_of_memory(&error) && !self.rejects(&error) => error,
            other => return other,
        };
        if !self.release_caches(gpus, device, origin)? {
            return Err(failure);
        }
        self.with_ledger(None, |stats| stats.ledger.count(|all| all.num_alloc_retries += 1));
        match attempt() {
            Err(error) if is_out_of_memory(&error) && matches!(origin, Origin::Driver) => {
                if self.reclaim_pools(gpus)? { attempt() } else { Err(error) }
            }
            other => other,
        }
    }

    /// Has the caches of the source give their memory back; false: there is no cache.
    fn release_caches(&self, gpus: &Gpus, device: &Device, origin: &Origin) -> Result<bool> {
        match origin {
            Origin::Driver => {
                if self.stats.with_members(|heaps| heaps.is_empty()) {
                    return Ok(false);
                }
                let _relaxed = Relaxed::enter(self.driver);
                self.with_ledger(None, |stats| {
                    stats.ledger.count(|all| all.num_sync_all_streams += 1);
                });
                self.reclaim(gpus)?;
                Ok(true)
            }
            Origin::DriverPool { .. } => self.trim_pool(gpus, device),
            Origin::Pluggable(allocator) => allocator.reset(),
        }
    }

    #[cold]
    fn refuse_uncached(&self, gpus: &Gpus, device: &Device, origin: &Origin, bytes: u64) -> Error {
        self.with_ledger(None, |stats| stats.ledger.count(|all| all.num_ooms += 1));
        match self.out_of_memory(gpus, device, bytes, false) {
            Error::OutOfMemory(numbers) => {
                history::out_of_memory(self.ordinal, bytes, numbers.free);
                if !matches!(origin, Origin::DriverPool { .. }) {
                    return Error::OutOfMemory(numbers);
                }
                let allocated = self.virtual_memory.limit.claimed();
                Error::PoolOutOfMemory(OutOfMemory { allocated, ..numbers })
            }
            other => other,
        }
    }
}
