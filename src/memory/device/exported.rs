//! Exported blocks: blocks that other processes may have (`ipc`). Such a block stays where it is,
//! and in use, until the last of these processes has closed it, whenever the host frees it. Memory
//! in use is never moved, remapped or given back. So the free of the block only has to find out
//! that it is exported (`arena/marked.rs`).

use crate::base::error::{Error, Result};
use crate::gpu::gpus::Gpus;
use crate::memory::arena::block::State;
use crate::memory::arena::{Arena, ArenaGuard, ArenaState, addresses, events, segmented};
use crate::memory::config::size::UNIT;
use crate::memory::device::hooks::Verdict;
use crate::memory::device::lookup::unknown_pointer;
use crate::memory::device::{DeviceMemory, hooks, uncached};
use crate::memory::stats::ledger::change_of;
use crate::memory::trace::history;

/// The memory behind a block.
pub struct Exported {
    /// The block.
    pub address: u64,
    /// Bytes that were requested.
    pub bytes: u64,
    /// Its device.
    pub device: i32,
    /// First address of the memory that is shared with it, and its length.
    pub base: u64,
    /// The length of that memory.
    pub range_bytes: u64,
    /// The handles of that memory, each with its length; none: it came from cuMemAlloc.
    pub handles: Vec<(u64, u64)>,
}

const NOT_IN_USE: &str = "is in tcuda's memory, but in no allocated block";

/// Exports the block that contains an address.
pub fn keep(address: u64) -> Result<Exported> {
    let cached = addresses::arena_of(address);
    let Some((arena, offset)) = cached.or_else(|| segmented::arena_of(address)) else {
        if uncached::has(address) {
            return Err(Error::NotSupported {
                what: "sharing memory that does not come from the cache with other processes",
                by: "allocator backend",
            });
        }
        return Err(unknown_pointer(address));
    };
    let state = &mut arena.enter()?;
    let not_in_use = Error::InvalidPointer { ptr: address as usize, why: NOT_IN_USE };
    let id = state.find_around((offset / UNIT) as u32).ok_or(not_in_use)?;
    let found = state.behind(arena, id)?;
    // The segment may be gone since the table was read.
    if address.wrapping_sub(found.address) >= state.blocks[id].bytes() as u64 {
        return Err(unknown_pointer(address));
    }
    state.mark_exported(id)?;
    Ok(found)
}

/// Ends the export of the block at an address, which the host still has: no other process has it
/// any more.
pub fn forget(address: u64) {
    let found = addresses::arena_of(address).or_else(|| segmented::arena_of(address));
    let Some((arena, offset)) = found else { return };
    let state = &mut arena.guard();
    if let Some(id) = state.find_around((offset / UNIT) as u32) {
        state.forget_processes(id);
    }
}

/// Frees a block that the host freed before, and that no other process has any more.
pub fn free(gpus: &Gpus, address: u64) {
    let _frames = history::before_free();
    let found = addresses::arena_of(address).or_else(|| segmented::arena_of(address));
    let Some((arena, offset)) = found else { return };
    let Ok(device) = gpus.device(arena.device) else { return };
    let state = &mut arena.guard();
    let Some(id) = state.find_around((offset / UNIT) as u32) else { return };
    let is_listed =
        || hooks::installed().is_some_and(|hooks| (hooks.remove_exported_block)(gpus, address));
    if state.is_exported(id) && is_listed() {
        device.memory().free_forgotten(gpus, state, id);
    }
}

impl ArenaState {
    /// The memory behind a block.
    fn behind(&self, arena: &Arena, id: u32) -> Result<Exported> {
        let block = &self.blocks[id];
        debug_assert!(block.state == State::Allocated, "it is in use");
        let address = self.address(arena.base, id);
        let (bytes, device, mut handles) = (block.requested, arena.device, Vec::new());
        if let Some(segments) = &self.segments {
            let segment = segments.of(block);
            if segment.source.is_some() {
                return Err(Error::NotSupported {
                    what: "sharing memory of a pluggable allocator with other processes",
                    by: "allocator",
                });
            }
            let (base, range_bytes) = (segment.address, segment.bytes);
            return Ok(Exported { address, bytes, device, base, range_bytes, handles });
        }
        let (begin, pieces) = self.segment.handles_behind(block.start, block.end());
        for piece in pieces {
            if piece.0 == 0 {
                return Err(Error::InvalidState(
                    "the memory's private pool sleeps; call tcuda_mem_pool_wake first",
                ));
            }
            handles.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a block's handles"))?;
            handles.push(piece);
        }
        let base = arena.base + u64::from(begin) * UNIT;
        let range_bytes = handles.iter().map(|(_, bytes)| bytes).sum();
        Ok(Exported { address, bytes, device, base, range_bytes, handles })
    }
}

impl DeviceMemory {
    /// Frees a block that other processes may have: now, if none has it.
    #[cold]
    pub(in crate::memory) fn free_exported(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        id: u32,
    ) -> Result<()> {
        let arena = state.arena();
        let address = state.address(arena.base, id);
        let verdict = match hooks::installed() {
            Some(hooks) => (hooks.exported_block_freed)(gpus, address),
            // Unreachable: an exported block comes from an initialised library.
            None => Verdict::Defer,
        };
        match verdict {
            Verdict::Defer => return Ok(()),
            Verdict::AlreadyFreed => {
                let why = "was freed already; another process still has it";
                return Err(Error::InvalidPointer { ptr: address as usize, why });
            }
            Verdict::Free => (),
        }
        self.free_forgotten(gpus, state, id);
        Ok(())
    }

    /// Frees a block that no other process has any more.
    fn free_forgotten(&self, gpus: &Gpus, state: &mut ArenaGuard<'_>, id: u32) {
        state.forget_processes(id);
        state.end_lending(id);
        self.free_used_locally(gpus, state, id);
    }

    /// Frees a block if it was lent; false: it was not.
    pub(in crate::memory) fn free_lent(
        &self,
        gpus: &Gpus,
        state: &mut ArenaGuard<'_>,
        id: u32,
    ) -> bool {
        let was_lent = state.end_lending(id);
        if was_lent {
            self.free_used_locally(gpus, state, id);
        }
        was_lent
    }

    /// Frees a block that no stream but its own uses.
    pub(in crate::memory) fn free_unused(&self, gpus: &Gpus, state: &mut ArenaGuard<'_>, id: u32) {
        let arena = state.arena();
        events::freed(arena, state, id);
        self.end_block(gpus, state, id);
        let before = state.segment.views.contain(id).then(|| {
            state.record_view_end(arena.base, id);
            state.reserved()
        });
        let block = state.blocks[id];
        let change = change_of(-1, -block.bytes(), -(block.requested as i64), block.oversize);
        state.free_pending(id, self.now());
        self.count_with_split(state, arena.class_of(block.units), change);
        if let Some(before) = before {
            self.count_segment(state, before);
        }
    }
}
