//! The way that nearly every call takes, on one page: a block of memory that the current stream's arena
//! has, giving such a block back, and saying who uses it, on the thread to which the arena is biased. On any
//! other thread the first two are the same under the real lock, in functions of their own: a thread that
//! allocates finds out by a door of its own that it is not the owner, because the way would keep something for it.
//!
//! Wherever there is anything else to do or to say, nothing has been done here, and the call takes the long
//! way, which does the same and more: for errors, first uses, policies, private pools, other streams and growth.
//! Whoever is watching (`flags.rs`) was asked about before. What may be seen by other threads at the same time
//! is in `epoch.rs` (being inside) and `arena_lock.rs` (the bias), each with its memory orders and models; all
//! else here is plain memory under that lock.

use super::arena::Arena;
use crate::base::thread::Inside;
use crate::base::waiting;
use crate::gpu::device::CURRENT;
use crate::gpu::stream::Stream;
use crate::memory::arena::arena_lock::ArenaGuard;
use crate::memory::arena::block::UNIT;
use crate::memory::arena::block_index::unit_of;
use crate::memory::backing::virtual_memory;
use crate::memory::config::policy;
use crate::memory::stats::ledger::change_of;
use crate::runtime;
use crate::sanitizer;
use std::sync::atomic::Ordering;

/// The thread to which the arena is biased.
pub const OWNER: bool = true;
/// Any other.
pub const OTHER: bool = false;

/// A block for a stream; none: take the long way. Of [`OWNER`] and [`OTHER`] one is right.
#[inline(always)]
pub fn allocate<const BY_OWNER: bool>(
    inside: &Inside,
    device: i32,
    stream: &Stream,
    bytes: u64,
) -> Option<u64> {
    if device != CURRENT && device != stream.device() {
        return None;
    }
    allocate_plain::<BY_OWNER>(inside, stream, bytes)
}

/// The same for the current stream of a device.
#[inline(always)]
pub fn allocate_on_current<const BY_OWNER: bool>(
    inside: &Inside,
    device: i32,
    bytes: u64,
) -> Option<u64> {
    let device = runtime::existing(inside)?.device_at_hand(device)?;
    allocate_plain::<BY_OWNER>(inside, device.streams.current(), bytes)
}

/// What is rarely needed is looked up again in functions of its own, so that the way keeps nothing for it.
#[inline(always)]
fn allocate_plain<const BY_OWNER: bool>(
    inside: &Inside,
    stream: &Stream,
    bytes: u64,
) -> Option<u64> {
    // What is too large for that goes no further than the policy.
    let size = policy::Size { bytes: bytes.wrapping_add(UNIT - 1) / UNIT * UNIT, oversize: false };
    let (class, request) = (size.arena_class(false), size.request(bytes));
    let arena = stream.arenas[class as usize].load(Ordering::Acquire);
    waiting::assert_awake();
    // SAFETY: NULL or an arena of the stream's device, which lives as long as a call may have found it.
    let arena = unsafe { arena.as_ref() }?;
    // Of nothing there is no block either.
    let is_plain = bytes.wrapping_sub(1) < arena.policy().plain();
    if !is_plain || stream.is_per_thread() {
        return None;
    }
    let _guard = arena.lock.guard_of::<BY_OWNER>()?;
    // SAFETY: the lock is held, and this is the only reference.
    let deferred = &mut unsafe { arena.state() }.deferred;
    if !deferred.is_empty()
        && !deferred.poll_policy.skip_without_clock()
        && !should_skip(inside, arena)
    {
        return None;
    }
    // SAFETY: as above.
    let state = unsafe { arena.state() };
    let start = match state.allocate_quick(request) {
        Some((_, start)) => start,
        None => match state.allocate_by_short_search(request.units, bytes) {
            Some(start) => start,
            None => return count_merged(inside, arena),
        },
    };
    let (bytes, requested) = (size.bytes as i64, bytes as i64);
    let split = state.split_in_use();
    // SAFETY: the lock is held and we are not parked.
    if !unsafe { arena.count_alloc(bytes, requested, split) }
        // SAFETY: as above.
        && !unsafe { arena.count_alloc_joint(bytes, requested, split) }
    {
        count(inside, arena, 1, bytes, requested);
    }
    Some(arena.base + u64::from(start) * UNIT)
}

/// May an allocation leave what waits alone? Under the lock.
#[inline(never)]
fn should_skip(inside: &Inside, arena: &Arena) -> bool {
    let Some(runtime) = runtime::existing(inside) else { return false };
    // Where runs are to repeat, who is asked depends on how often it was looked at.
    let repeats = runtime.driver().repeats();
    let device = runtime.device(arena.device).ok().filter(|_| !repeats);
    device.is_some_and(|device| device.memory.should_skip(arena, false))
}

/// Counts what the search has joined, under the lock; nothing was found.
#[cold]
fn count_merged(inside: &Inside, arena: &Arena) -> Option<u64> {
    runtime::existing(inside)?.device(arena.device).ok()?.memory.count_split(arena);
    None
}

/// Gives a block back; none: take the long way.
#[inline(always)]
pub fn free(inside: &Inside, address: u64) -> Option<()> {
    runtime::existing(inside)?;
    let (arena, offset) = virtual_memory::arena_of(address)?;
    match arena.lock.guard_of::<OWNER>() {
        Some(guard) => free_locked::<OWNER>(guard, inside, arena, offset),
        None => free_as_other(inside, arena, offset),
    }
}

#[cold]
#[inline(never)]
fn free_as_other(inside: &Inside, arena: &Arena, offset: u64) -> Option<()> {
    free_locked::<OTHER>(arena.lock.guard_of::<OTHER>()?, inside, arena, offset)
}

#[inline(always)]
fn free_locked<const BY_OWNER: bool>(
    _guard: ArenaGuard<'_>,
    inside: &Inside,
    arena: &Arena,
    offset: u64,
) -> Option<()> {
    // SAFETY: the lock is held, and this is the only reference.
    let state = unsafe { arena.state() };
    let id = state.find_quickly(offset)?;
    let Some((units, requested)) = state.plain(id) else {
        return free_used(inside, arena, id);
    };
    if BY_OWNER == OTHER {
        state.prefetch_next(id);
    }
    state.free(id, units, unit_of(offset) as u32);
    let (bytes, split) = (i64::from(units) * UNIT as i64, state.split());
    // SAFETY: the lock is held and we are not parked.
    if !unsafe { arena.count_free(bytes, requested, split) }
        // SAFETY: as above.
        && !unsafe { arena.count_free_joint(bytes, requested, split) }
    {
        count(inside, arena, -1, -bytes, -requested);
    }
    Some(())
}

/// Notes that a stream uses a block as well; none: take the long way.
#[inline(always)]
pub fn record_stream(inside: &Inside, address: u64, stream: &Stream) -> Option<()> {
    runtime::existing(inside)?;
    if sanitizer::is_on() || stream.is_per_thread() {
        return None;
    }
    let (arena, offset) = virtual_memory::arena_of(address)?;
    let _guard = arena.lock.guard_quickly()?;
    // SAFETY: the lock is held, and this is the only reference.
    let state = unsafe { arena.state() };
    let id = state.find_quickly(offset)?;
    state.add_use_quickly(arena, id, stream)
}

/// Gives a block back that other streams use, under the lock.
#[inline(never)]
fn free_used(inside: &Inside, arena: &Arena, id: u32) -> Option<()> {
    // SAFETY: the caller holds the lock, and has no reference.
    let state = unsafe { arena.state() };
    if let Some((bytes, oversize)) = state.defer_if_used(id) {
        // SAFETY: the lock is held and we are not parked.
        unsafe { arena.count_deferred_free(bytes, oversize) };
        return Some(());
    }
    let is_used = state.blocks[id].uses != 0;
    let runtime = runtime::existing(inside)?;
    let device = runtime.device(arena.device).ok().filter(|_| is_used)?;
    device.memory.free_used(runtime, arena, id).ok()
}

/// Asks the ledger to count a plain block that came or went, under the lock.
#[cold]
#[inline(never)]
fn count(inside: &Inside, arena: &Arena, blocks: i64, bytes: i64, requested: i64) {
    let runtime = runtime::existing(inside);
    if let Some(Ok(device)) = runtime.map(|runtime| runtime.device(arena.device)) {
        // SAFETY: the caller holds the lock, and this is the only reference.
        let split = unsafe { arena.state() }.split();
        let class = arena.class_of((bytes.unsigned_abs() / UNIT) as u32);
        device.memory.count_slowly(arena, class, change_of(blocks, bytes, requested, false), split);
    }
}
