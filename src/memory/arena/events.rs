//! The recorded events of an arena's blocks and memory (`trace/history.rs`).

use crate::memory::arena::addresses::arena_of;
use crate::memory::arena::{Arena, ArenaState};
use crate::memory::trace::history::{is_on, pending_stack, push, take_stack};
use crate::memory::trace::ring::{Action, Event};

fn push_block(arena: &Arena, state: &ArenaState, id: u32, action: Action, stack: u32) {
    push(arena.device as usize, event_of(arena, state, id, action, stack));
}

fn event_of(arena: &Arena, state: &ArenaState, id: u32, action: Action, stack: u32) -> Event {
    let block = &state.blocks[id];
    let address = state.address(arena.base, id);
    let stream = state.stream_of(arena, id).map_or(0, |stream| stream.native() as u64);
    let bytes = block.requested;
    let pool = arena.pool().word();
    Event { address, bytes, stream, pool, stack, ..Event::of(action) }
}

/// Records that the host attached a stored text to an allocated block.
pub fn annotated(arena: &Arena, state: &ArenaState, id: u32, metadata: u32) {
    let event = event_of(arena, state, id, Action::Annotate, take_stack());
    push(arena.device as usize, Event { metadata, ..event });
}

/// Records that a block was allocated. The caller holds the arena's lock, as for the functions
/// below.
#[inline(always)]
pub fn allocated(arena: &Arena, state: &mut ArenaState, id: u32) {
    if is_on() {
        record_allocated(arena, state, id);
    }
}

#[cold]
fn record_allocated(arena: &Arena, state: &mut ArenaState, id: u32) {
    let stack = take_stack();
    state.blocks[id].set_stack(stack);
    push_block(arena, state, id, Action::Alloc, stack);
}

/// Records a block that is freed at once.
#[inline(always)]
pub fn freed(arena: &Arena, state: &ArenaState, id: u32) {
    if is_on() {
        record_freed(arena, state, id);
    }
}

#[cold]
fn record_freed(arena: &Arena, state: &ArenaState, id: u32) {
    let stack = stack_of_free(state, id);
    push_block(arena, state, id, Action::FreeRequested, stack);
    push_block(arena, state, id, Action::FreeCompleted, stack);
}

/// As in PyTorch, a free without frames of its own gets those of the allocation.
fn stack_of_free(state: &ArenaState, id: u32) -> u32 {
    match take_stack() {
        0 => state.blocks[id].stack(),
        stack => stack,
    }
}

/// Records that a block was freed which waits for other streams.
#[inline(always)]
pub fn free_requested(arena: &Arena, state: &ArenaState, id: u32) {
    if is_on() {
        push_block(arena, state, id, Action::FreeRequested, stack_of_free(state, id));
    }
}

/// Records that a pending block is about to become free.
#[inline(always)]
pub fn free_completed(arena: &Arena, state: &ArenaState, id: u32) {
    if is_on() {
        push_block(arena, state, id, Action::FreeCompleted, state.blocks[id].stack());
    }
}

/// Records that addresses of an arena were mapped or unmapped.
#[inline(always)]
pub fn segment(action: Action, address: u64, bytes: u64) {
    if is_on() && bytes > 0 {
        record_segment(action, address, bytes);
    }
}

#[cold]
fn record_segment(action: Action, address: u64, bytes: u64) {
    if let Some((arena, _)) = arena_of(address) {
        record_segment_of(arena, action, address, bytes);
    }
}

/// Records that an arena gained or lost a segment.
#[inline(always)]
pub fn segment_of(arena: &Arena, action: Action, address: u64, bytes: u64) {
    if is_on() {
        record_segment_of(arena, action, address, bytes);
    }
}

#[cold]
fn record_segment_of(arena: &Arena, action: Action, address: u64, bytes: u64) {
    let stream = arena.stream().map_or(0, |stream| stream.native() as u64);
    let (pool, stack) = (arena.pool().word(), pending_stack());
    let event = Event { address, bytes, stream, pool, stack, ..Event::of(action) };
    push(arena.device as usize, event);
}
