//! Memory of graphs, and the streams on which the graphs are launched: the next user of the memory
//! is ordered after the launch.

use crate::base::error::Result;
use crate::driver::sync_debug;
use crate::driver::sys::CUevent;
use crate::gpu::device::Device;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::config::pool_id::PoolId;
use crate::memory::device::DeviceMemory;
use crate::memory::device::stream_end::{ordering_stream, record_end, wait_for};

/// The present end of a stream's work.
pub struct End<'a> {
    device: &'a Device,
    event: CUevent,
}

impl End<'_> {
    /// Its event.
    pub(crate) fn event(&self) -> CUevent {
        self.event
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.device.events.give_untimed(self.event);
    }
}

/// The present end of a stream's work. None: nothing can follow on the stream, and what it held is
/// complete.
pub fn end_of<'a>(gpus: &Gpus, device: &'a Device, stream: &Stream) -> Result<Option<End<'a>>> {
    if let EndState::Alive(_named) = stream.end_state() {
        let recorded = record_end(gpus, device, stream)?;
        return Ok(recorded.map(|event| End { device, event }));
    }
    wait_for(gpus, stream).map(|()| None)
}

impl DeviceMemory {
    /// Does a pool have memory here of other streams than this one?
    pub(crate) fn serves_others(&self, pool: PoolId, stream: &Stream) -> bool {
        self.stats.with_members(|heaps| {
            heaps.iter().any(|heap| heap.pool() == pool && !heap.is_of(stream))
        })
    }

    /// Orders the streams of a pool's memory after an event of a stream on which the memory was
    /// used.
    pub(crate) fn order_after_launch(
        &self,
        gpus: &Gpus,
        pool: PoolId,
        used_on: &Stream,
        event: CUevent,
    ) -> Result<()> {
        let own = gpus.device(self.ordinal)?;
        let mut are_captured = false;
        self.each_arena(|state| {
            let arena = state.arena();
            if arena.pool() != pool || arena.heap().is_of(used_on) {
                return Ok(());
            }
            let Some(stream) = arena.stream() else { return Ok(()) };
            let end_state = stream.end_state();
            // The default stream waits for a stream that has ended, because it is ordered after it.
            let follower = match end_state {
                EndState::Alive(_) => ordering_stream(own, stream),
                _ => own.streams.default(),
            };
            are_captured |= !follower.wait_beside_captures(gpus, event)?;
            Ok(())
        })?;
        if are_captured {
            // Captured streams cannot wait, but the host can.
            // SAFETY: an event of the library, which was recorded.
            unsafe { sync_debug::wait_for_event(gpus.driver(), event) }?;
        }
        Ok(())
    }
}
