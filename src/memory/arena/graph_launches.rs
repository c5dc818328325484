//! Memory of graphs, and the streams on which those are launched: who gets it next comes after that.

use crate::base::error::Result;
use crate::driver::sys::CUevent;
use crate::gpu::device::Device;
use crate::gpu::external_life::Standing;
use crate::gpu::stream::Stream;
use crate::gpu::sync_debug;
use crate::memory::DeviceMemory;
use crate::memory::fallback::reclaim::{ordering_stream, record_end, wait_for};
use crate::memory::pools::pool::PoolId;
use crate::runtime::Runtime;

/// The present end of a stream.
pub struct End<'a> {
    device: &'a Device,
    event: CUevent,
}

impl End<'_> {
    /// The event that stands for it.
    pub(crate) fn event(&self) -> CUevent {
        self.event
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.device.events.give_untimed(self.event);
    }
}

/// The present end of a stream; none where nothing more is to come: what it held is over.
pub fn end_of<'a>(
    runtime: &Runtime,
    device: &'a Device,
    stream: &Stream,
) -> Result<Option<End<'a>>> {
    if let Standing::Alive(_named) = stream.standing() {
        let recorded = record_end(runtime, device, stream)?;
        return Ok(recorded.map(|event| End { device, event }));
    }
    wait_for(runtime, stream).map(|()| None)
}

impl DeviceMemory {
    /// Has a pool memory here of other streams than this one?
    pub(crate) fn serves_others(&self, pool: PoolId, stream: &Stream) -> bool {
        self.stats.with_members(|arenas| {
            arenas.iter().any(|arena| arena.pool() == pool && !arena.is_of(stream))
        })
    }

    /// Has the streams of a pool's memory come after an event of a stream on which it was used.
    pub(crate) fn order_after_launch(
        &self,
        runtime: &Runtime,
        pool: PoolId,
        used_on: &Stream,
        event: CUevent,
    ) -> Result<()> {
        let own = runtime.device(self.ordinal)?;
        let mut are_captured = false;
        self.each_arena(|arena| {
            if arena.pool() != pool || arena.is_of(used_on) {
                return Ok(());
            }
            let Some(stream) = arena.stream() else { return Ok(()) };
            let standing = stream.standing();
            // The end of one that is gone is followed by that of the default stream.
            let follower = match standing {
                Standing::Alive(_) => ordering_stream(own, stream),
                _ => own.streams.default(),
            };
            are_captured |= !follower.wait_beside_captures(runtime, event)?;
            Ok(())
        })?;
        if are_captured {
            // They cannot wait, but the host can.
            // SAFETY: our event, recorded.
            unsafe { sync_debug::wait_for_event(runtime.driver(), event) }?;
        }
        Ok(())
    }
}
