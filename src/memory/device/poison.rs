//! Poison: a debugging mode that overwrites freed memory, so that a program that still reads it
//! gets conspicuous values.
//!
//! The byte is 0xff: not a number in every floating point type, -1 as an integer, and no address.
//! It is written in the order of the block's own stream, after the streams that were recorded on
//! the block, and before anything that is allocated for that stream afterwards. The host does not
//! wait.

use crate::base::error::Result;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::external_life::EndState;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::ArenaGuard;
use crate::memory::device::stream_end::ordering_stream;
use crate::memory::device::{DeviceMemory, suballocations};
use crate::observe::flags::{self, Watcher};
use std::sync::atomic::{AtomicBool, Ordering};

/// What freed memory is filled with.
const POISON: u8 = 0xff;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Turns the mode on or off.
pub(in crate::memory) fn set(on: bool) {
    match (IS_ON.swap(on, Ordering::Relaxed), on) {
        (false, true) => flags::begin(Watcher::Debugging),
        (true, false) => flags::end(Watcher::Debugging),
        _ => {}
    }
}

impl DeviceMemory {
    /// Called when a block is about to be free, and must not be used any more.
    pub(in crate::memory) fn end_block(&self, gpus: &Gpus, state: &mut ArenaGuard<'_>, id: u32) {
        let arena = state.arena();
        match state.heap(id) {
            // A tool that knows the blocks reports more, and would report poison as an access.
            heap @ Some(_) => {
                let address = state.address(arena.base, id);
                let _context = gpus.device(arena.device).ok().and_then(suballocations::context);
                suballocations::report_free(heap, address);
            }
            None => self.poison(gpus, state, id),
        }
    }

    /// Poisons a block, if the mode is on.
    fn poison(&self, gpus: &Gpus, state: &mut ArenaGuard<'_>, id: u32) {
        let arena = state.arena();
        if !IS_ON.load(Ordering::Relaxed) {
            return;
        }
        let (address, bytes) = (state.address(arena.base, id), state.blocks[id].bytes());
        let Some(stream) = state.stream_of(arena, id) else { return };
        // A free does not fail, and the log's callback is not called with a lock held. So an error
        // leaves the block as without the mode.
        let _ = self.fill_with_poison(gpus, stream, address, bytes as usize);
    }

    fn fill_with_poison(
        &self,
        gpus: &Gpus,
        stream: &Stream,
        address: u64,
        bytes: usize,
    ) -> Result<()> {
        let device = gpus.device(stream.device())?;
        let _relaxed = Relaxed::enter(self.driver);
        let _context = device.enter()?;
        // A stream that the host has destroyed has no order to write in.
        let EndState::Alive(_named) = stream.end_state() else { return Ok(()) };
        let stream = ordering_stream(device, stream);
        // A captured write would repeat at each launch of the graph, when the memory may belong to
        // another block.
        if stream.is_capturing(gpus)? {
            return Ok(());
        }
        // SAFETY: memory of a freed block; the stream is alive.
        unsafe { self.driver.cuMemsetD8Async(address, POISON, bytes, stream.native()) }?;
        Ok(())
    }
}
