//! Poison: a debugging mode in which freed memory is overwritten, so that whoever still reads it finds
//! it out.
//!
//! The byte is 0xff: not a number in every floating point type, -1 as an integer, and no address.
//! It is written in the order of the block's own stream, after the streams that were recorded on the
//! block, and before anything that is allocated for that stream afterwards. The host does not wait.

use super::arena::Arena;
use super::{DeviceMemory, Relaxed, suballocations};
use crate::base::error::Result;
use crate::gpu::external_life::Standing;
use crate::gpu::stream::Stream;
use crate::memory::fallback::reclaim::ordering_stream;
use crate::observe::flags::{self, Watcher};
use crate::runtime::Runtime;
use std::sync::atomic::{AtomicBool, Ordering};

/// What freed memory is filled with.
const POISON: u8 = 0xff;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Poisons from now on, or no longer.
pub(super) fn set(on: bool) {
    match (IS_ON.swap(on, Ordering::Relaxed), on) {
        (false, true) => flags::begin(Watcher::Debugging),
        (true, false) => flags::end(Watcher::Debugging),
        _ => {}
    }
}

impl DeviceMemory {
    /// A block is about to be free: nobody may use it from here on. The caller holds the arena's lock.
    pub(super) fn end_block(&self, runtime: &Runtime, arena: &Arena, id: u32) {
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        match state.heap(id) {
            // A tool that knows the blocks tells more, and would take poison for an access.
            heap @ Some(_) => {
                let address = state.address(arena.base, id);
                let _context = runtime.device(arena.device).ok().and_then(suballocations::context);
                suballocations::block_goes(heap, address);
            }
            None => self.poison(runtime, arena, id),
        }
    }

    /// Poisons a block, if that is wanted.
    fn poison(&self, runtime: &Runtime, arena: &Arena, id: u32) {
        if !IS_ON.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        let (address, bytes) = (state.address(arena.base, id), state.blocks[id].bytes());
        let Some(stream) = state.stream_of(arena, id) else { return };
        // Freeing does not fail, and a listener of the log is not called with a lock held: what is not
        // poisoned is as without the mode.
        let _ = self.fill_with_poison(runtime, stream, address, bytes as usize);
    }

    fn fill_with_poison(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        address: u64,
        bytes: usize,
    ) -> Result<()> {
        let device = runtime.device(stream.device())?;
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        // What the owner of a stream destroyed has no order to write in.
        let Standing::Alive(_named) = stream.standing() else { return Ok(()) };
        let stream = ordering_stream(device, stream);
        // In a capture it would be written again whenever the graph is launched, whoever has the
        // memory then.
        if stream.is_capturing(runtime)? {
            return Ok(());
        }
        // SAFETY: memory of a block that its holder gave up; the stream is alive.
        unsafe { self.driver.cuMemsetD8Async(address, POISON, bytes, stream.native()) }?;
        Ok(())
    }
}
