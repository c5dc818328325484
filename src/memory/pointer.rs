//! Blocks by their addresses: finding the memory of an address, freeing it, and recording streams
//! that use it.

use super::arena::Arena;
use crate::base::error::{Error, Result};
use crate::base::frames::Context;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::memory::arena::block::Block;
use crate::memory::arena::{addresses, events, segmented};
use crate::memory::config::size::UNIT;
use crate::memory::device::lookup::{Found, Locked, lock_mapped};
use crate::memory::device::{DeviceMemory, lookup, segments, uncached};
use crate::memory::stats::ledger::change_of;
use crate::memory::trace::dictionary::Sink;
use crate::memory::trace::{history, json, metadata, stacks};
use crate::observe::flags::{self, Watcher};
use crate::sanitizer;

/// The device of an address in tcuda's memory. Reserved addresses that no arena has are not memory:
/// the driver does not know them either.
pub fn device_of(address: u64) -> Option<i32> {
    let cached = addresses::arena_of(address).map(|(arena, _)| arena.device);
    let cached = cached.or_else(|| segmented::device_of(address));
    cached.or_else(|| uncached::device_of(address))
}

/// Frees a block in the order of its stream. If other streams use it, it is pending until they are
/// done.
#[inline(always)]
pub fn free(gpus: &Gpus, address: u64) -> Result<()> {
    if flags::is_watched() {
        return free_watched(gpus, address);
    }
    free_block::<false>(gpus, address)
}

/// Frees a block in the order of `stream`, which comes after all uses of the block except those on
/// recorded streams. Later work of `stream` may use the memory at once. Memory that keeps its own
/// stream is free there after the work that `stream` has now. On failure it is not freed.
pub fn free_on(gpus: &Gpus, address: u64, stream: &Stream) -> Result<()> {
    let stream = stream.on_this_thread(gpus)?;
    let is_moved = match addresses::arena_of(address) {
        Some((arena, _)) => {
            let device = gpus.device(arena.device)?;
            device.memory().hand_over(gpus, device, address, stream)?
        }
        None => uncached::has(address) && uncached::hand_over(address, stream)?,
    };
    match is_moved {
        true => sanitizer_reports::handed_over(gpus, address, stream),
        false => record_stream(address, stream)?,
    }
    free(gpus, address)
}

#[cold]
fn free_watched(gpus: &Gpus, address: u64) -> Result<()> {
    if flags::is_only(Watcher::Sanitizer) {
        sanitizer::freed(address);
        return free_block::<false>(gpus, address);
    }
    let _frames = history::before_free();
    // Before another thread can have it.
    sanitizer::freed(address);
    free_block::<true>(gpus, address)
}

#[cold]
fn free_unmapped(gpus: &Gpus, address: u64) -> Result<()> {
    match uncached::has(address) {
        true => uncached::free(gpus, address),
        false => segments::free(gpus, address),
    }
}

#[inline(always)]
fn free_block<const WATCHED: bool>(gpus: &Gpus, address: u64) -> Result<()> {
    let Some(found) = addresses::arena_of(address) else {
        return free_unmapped(gpus, address);
    };
    let Locked { mut state, id } = lock_mapped(found, address)?;
    let arena = state.arena();
    if state.blocks[id].uses != 0 {
        return memory_of(gpus, arena)?.free_used(gpus, &mut state, id);
    }
    if WATCHED {
        events::freed(arena, &state, id);
        memory_of(gpus, arena)?.end_block(gpus, &mut state, id);
    }
    let Block { requested, oversize, units, start, .. } = state.blocks[id];
    let (bytes, requested) = (i64::from(units) * UNIT as i64, requested as i64);
    state.free(id, units, start);
    let split = state.split();
    if oversize || !state.count_free(bytes, requested, split) {
        let change = change_of(-1, -bytes, -requested, oversize);
        memory_of(gpus, arena)?.count_slowly(&mut state, arena.class_of(units), change, split);
    }
    Ok(())
}

/// The memory to which an arena belongs.
#[cold]
fn memory_of<'a>(gpus: &'a Gpus, arena: &Arena) -> Result<&'a DeviceMemory> {
    Ok(gpus.device(arena.device)?.memory())
}

/// Records that a block is also used on `stream`. When the block is freed, it waits for the work
/// that is then queued there.
pub fn record_stream(address: u64, stream: &Stream) -> Result<()> {
    note_use(address, stream)?;
    sanitizer_reports::used_on(address, stream);
    Ok(())
}

fn note_use(address: u64, stream: &Stream) -> Result<()> {
    let Locked { mut state, id } = match addresses::arena_of(address) {
        Some(found) => lock_mapped(found, address)?,
        None if uncached::has(address) => return uncached::record_stream(address, stream),
        None => lookup::lock_block(address)?,
    };
    let arena = state.arena();
    state.add_use(arena, id, stream)
}

/// [`record_stream`] for the block that contains an address, or else begins at `start`. Does
/// nothing for memory that is not tcuda's.
pub fn record_around(address: u64, start: u64, stream: &Stream) -> Result<()> {
    note_use_around(address, start, stream)?;
    sanitizer_reports::used_on(address, stream);
    Ok(())
}

fn note_use_around(address: u64, start: u64, stream: &Stream) -> Result<()> {
    let cached = addresses::arena_of(address);
    let Some((arena, offset)) = cached.or_else(|| segmented::arena_of(address)) else {
        return match uncached::has(start) && !uncached::is_of(start, stream) {
            true => uncached::record_stream(start, stream),
            false => require_others(address),
        };
    };
    let state = &mut arena.enter()?;
    let id = state.find_around((offset / UNIT) as u32).ok_or_else(|| unallocated(address))?;
    state.add_use(arena, id, stream)
}

/// If an address is in a block of a device that contains a whole range, records that a stream uses
/// the block. False: nothing was done, and the two are to be checked separately.
pub fn use_inside(
    device: i32,
    address: u64,
    (first, end): (u64, u64),
    stream: &Stream,
) -> Result<bool> {
    let Some((arena, offset)) = addresses::arena_of(address) else { return Ok(false) };
    let state = &mut arena.enter()?;
    let Some(id) = state.find_around((offset / UNIT) as u32) else { return Ok(false) };
    let start = state.address(arena.base, id);
    let is_inside = first >= start && end - start <= state.blocks[id].requested;
    if arena.device != device || !is_inside {
        return Ok(false);
    }
    state.add_use(arena, id, stream).map(|()| true)
}

/// The error of an address in tcuda's memory that is in no allocated block.
fn unallocated(address: u64) -> Error {
    let why = "is in tcuda's memory, but in no allocated block";
    Error::InvalidPointer { ptr: address as usize, why }
}

/// Fails for an address in tcuda's reserved addresses. The caller knows that no arena has it.
#[cold]
fn require_others(address: u64) -> Result<()> {
    match addresses::device_of(address) {
        Some(_) => Err(unallocated(address)),
        None => Ok(()),
    }
}

/// The sizes of a live block.
pub fn find(address: u64) -> Result<Found> {
    let Locked { state, id } = match addresses::arena_of(address) {
        Some(found) => lock_mapped(found, address)?,
        None if uncached::has(address) => return uncached::find(address),
        None => lookup::lock_block(address)?,
    };
    let found = &state.blocks[id];
    Ok(Found { requested: found.requested, bytes: found.bytes() as u64 })
}

/// Id of the stack that allocated a live block; 0: none was recorded.
fn stack_of(address: u64) -> Result<u32> {
    let Locked { state, id } = match addresses::arena_of(address) {
        Some(found) => lock_mapped(found, address)?,
        None if uncached::has(address) => return uncached::stack_of(address),
        None => lookup::lock_block(address)?,
    };
    Ok(state.blocks[id].stack())
}

/// Records a text about a live block as an event of its own.
pub fn annotate(address: u64, text: &str) -> Result<()> {
    if !history::is_on() {
        return find(address).map(|_| ());
    }
    let _frames = history::before_free();
    let stored = metadata::store(text.as_bytes());
    let Locked { state, id } = match addresses::arena_of(address) {
        Some(found) => lock_mapped(found, address)?,
        None if uncached::has(address) => return uncached::annotate(address, stored.id()),
        None => lookup::lock_block(address)?,
    };
    events::annotated(state.arena(), &state, id, stored.id());
    Ok(())
}

/// Writes the frames of the allocation of a live block, as JSON.
pub fn write_frames(address: u64, sink: &mut Sink<'_>) -> Result<()> {
    let (stacks, stack) = {
        // No stack is removed meanwhile.
        let _records = history::lock_records();
        let stack = stack_of(address)?;
        (stacks::copy()?, stack)
    };
    json::stack(&stacks, stack, sink)
}

/// The context of the allocation of a live block.
pub fn context_of(address: u64) -> Result<Option<Context>> {
    // No stack is removed meanwhile.
    let _records = history::lock_records();
    Ok(stacks::context(stack_of(address)?))
}

/// Start and requested bytes of the block that contains an address. `None`: it is not in tcuda's
/// memory, or not known to be. An address in tcuda's memory that is in no block is an error.
pub fn extent(address: u64) -> Result<Option<(u64, u64)>> {
    let cached = addresses::arena_of(address);
    let Some((arena, offset)) = cached.or_else(|| segmented::arena_of(address)) else {
        return match uncached::has(address) {
            true => uncached::find(address).map(|found| Some((address, found.requested))),
            false => require_others(address).map(|()| None),
        };
    };
    let state = &mut arena.enter()?;
    let id = state.find_around((offset / UNIT) as u32).ok_or_else(|| unallocated(address))?;
    Ok(Some((state.address(arena.base, id), state.blocks[id].requested)))
}

/// The device, the start and the requested bytes of the cached block that contains an address; none
/// for every other address.
#[inline]
pub fn cached_extent(address: u64) -> Option<(i32, u64, u64)> {
    let cached = addresses::arena_of(address);
    let (arena, offset) = cached.or_else(|| segmented::arena_of(address))?;
    let state = arena.enter().ok()?;
    let id = state.find_around((offset / UNIT) as u32)?;
    Some((arena.device, state.address(arena.base, id), state.blocks[id].requested))
}
