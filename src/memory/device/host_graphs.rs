//! Graphs that the host captured through the driver, as PyTorch does. The library does not know on
//! which streams they are launched. So when a pool that they used has ended, its memory is neither
//! unmapped nor used again before a wait for all work of the device.

use crate::base::error::Result;
use crate::driver::sync_debug;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::memory::arena::heap::{FIRST_WAIT, Heap};
use crate::memory::device::DeviceMemory;
use std::sync::atomic::{AtomicU64, Ordering};

impl DeviceMemory {
    /// Waits for launches that may use memory of ended pools. Does nothing while a stream is
    /// captured, because the wait would invalidate the capture: the memory is kept. The caller
    /// holds no lock.
    pub(in crate::memory) fn wait_for_launches(&self, gpus: &Gpus) -> Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(FIRST_WAIT);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let is_awaited = self.stats.with_members(|heaps| {
            let awaiting = heaps.iter().filter(|heap| heap.awaits_launches());
            awaiting.map(|heap| heap.begin_wait_for_launches(number)).count() > 0
        });
        if !is_awaited || self.may_be_captured(gpus) {
            return Ok(());
        }
        let _judged = sync_debug::check_under_lock()?;
        gpus.device(self.ordinal)?.synchronize()?;
        self.stats.with_members(|heaps| {
            heaps.iter().for_each(|heap| heap.end_wait_for_launches(number));
        });
        Ok(())
    }

    /// May a stream be captured now that the host has captured before? True also if that cannot be
    /// queried.
    fn may_be_captured(&self, gpus: &Gpus) -> bool {
        if gpus.has_captures() {
            return true;
        }
        let mut index = 0;
        let _walk = self.ended.walk();
        // Other streams may have been destroyed; these are alive as long as the pool has memory.
        while let Some(heap) = self.next_member(&mut index, Heap::is_of_host_graph) {
            if let Some(stream) = heap.stream()
                && let EndState::Alive(_named) = stream.end_state()
                && stream.is_capturing(gpus).unwrap_or(true)
            {
                return true;
            }
        }
        false
    }
}
