//! The fast path of nearly every call, on one page. It allocates a block from the current stream's
//! arena, frees such a block, and records a stream that uses one, on the thread to which the
//! arena's lock is biased. On other threads, allocation and free do the same with the real lock, in
//! functions of their own. A thread that allocates has a separate entry for this, because otherwise
//! the fast path would save registers for it.
//!
//! If a call needs anything else, the fast path has done nothing, and the call takes the slow path.
//! That does the same and more: errors, first uses, policies, private pools, other streams and
//! growth. Observers (`flags.rs`) were checked before. Two things are visible to other threads at
//! the same time: being inside (`epoch.rs`) and the bias (`arena_lock.rs`). Both have their memory
//! orders and models there. Everything else here is plain memory under the lock.

use super::arena::Arena;
use crate::base::thread::Inside;
use crate::base::waiting;
use crate::gpu::device::CURRENT;
use crate::gpu::gpus;
use crate::gpu::stream::Stream;
use crate::memory::arena::block_index::unit_of;
use crate::memory::arena::poll_policy::PollPolicy;
use crate::memory::arena::{ArenaGuard, addresses};
use crate::memory::config::size::{Size, UNIT};
use crate::memory::stats::ledger::{Account, change_of};
use crate::sanitizer;

/// This thread is the one to which the arena's lock is biased.
pub const OWNER: bool = true;
/// This thread is another one.
pub const OTHER: bool = false;

/// Allocates a block for a stream; none: take the slow path. `BY_OWNER` says whether this thread is
/// the owner, [`OWNER`], or not, [`OTHER`].
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

/// [`allocate`] for the current stream of a device.
#[inline(always)]
pub fn allocate_on_current<const BY_OWNER: bool>(
    inside: &Inside,
    device: i32,
    bytes: u64,
) -> Option<u64> {
    let device = gpus::existing(inside)?.device_if_known(device)?;
    allocate_plain::<BY_OWNER>(inside, device.streams.current(), bytes)
}

/// Rare cases look things up again in functions of their own, so that the fast path saves no
/// registers for them.
#[inline(always)]
fn allocate_plain<const BY_OWNER: bool>(
    inside: &Inside,
    stream: &Stream,
    bytes: u64,
) -> Option<u64> {
    // A size that overflows here fails the comparison with the policy.
    let size = Size { bytes: bytes.wrapping_add(UNIT - 1) / UNIT * UNIT, oversize: false };
    let (class, request) = (size.arena_class(false), size.request(bytes));
    waiting::assert_awake();
    // SAFETY: NULL or a heap of the stream's device, which lives while a call may refer to it.
    let arena = unsafe { stream.heap(false).as_ref() }?.arena(class);
    // Zero bytes take the slow path.
    let is_plain = bytes.wrapping_sub(1) < arena.policy().plain();
    if !is_plain || stream.is_per_thread() {
        return None;
    }
    let mut state = ArenaGuard::enter_as::<BY_OWNER>(arena)?;
    if !state.uses.is_queue_empty() && !state.polls.skip_without_clock() {
        let (state, account) = state.state_and_account();
        if !should_skip(inside, arena.device, &mut state.polls, account) {
            return None;
        }
    }
    let start = match state.allocate_quick(request) {
        Some((_, start)) => start,
        None => match state.allocate_by_short_search(request.units, bytes) {
            Some(start) => start,
            None => return count_merged(inside, state),
        },
    };
    let (bytes, requested) = (size.bytes as i64, bytes as i64);
    let split = state.split_in_use();
    if !state.count_alloc(bytes, requested, split) {
        count(inside, state, 1, bytes, requested);
    }
    Some(arena.base + u64::from(start) * UNIT)
}

/// May an allocation skip the poll of an arena with this account?
#[inline(never)]
fn should_skip(inside: &Inside, device: i32, polls: &mut PollPolicy, account: &Account) -> bool {
    let device = gpus::existing(inside).and_then(|gpus| gpus.device(device).ok());
    device.is_some_and(|device| device.memory().should_skip(polls, account))
}

/// Counts the blocks that the search has merged, where it found nothing.
#[cold]
fn count_merged(inside: &Inside, mut state: ArenaGuard<'_>) -> Option<u64> {
    let device = gpus::existing(inside)?.device(state.arena().device).ok()?;
    device.memory().count_split(&mut state);
    None
}

/// Frees a block; none: take the slow path.
#[inline(always)]
pub fn free(inside: &Inside, address: u64) -> Option<()> {
    gpus::existing(inside)?;
    let (arena, offset) = addresses::arena_of(address)?;
    match ArenaGuard::enter_as::<OWNER>(arena) {
        Some(state) => free_locked::<OWNER>(state, inside, offset),
        None => free_as_other(inside, arena, offset),
    }
}

#[cold]
#[inline(never)]
fn free_as_other(inside: &Inside, arena: &Arena, offset: u64) -> Option<()> {
    free_locked::<OTHER>(ArenaGuard::enter_as::<OTHER>(arena)?, inside, offset)
}

#[inline(always)]
fn free_locked<const BY_OWNER: bool>(
    mut state: ArenaGuard<'_>,
    inside: &Inside,
    offset: u64,
) -> Option<()> {
    let id = state.find_quickly(offset)?;
    let Some((units, requested)) = state.plain(id) else {
        return free_used(inside, state, id);
    };
    if BY_OWNER == OTHER {
        state.prefetch_next(id);
    }
    state.free(id, units, unit_of(offset) as u32);
    let (bytes, split) = (i64::from(units) * UNIT as i64, state.split());
    if !state.count_free(bytes, requested, split) {
        count(inside, state, -1, -bytes, -requested);
    }
    Some(())
}

/// Records that a stream uses a block; none: take the slow path.
#[inline(always)]
pub fn record_stream(inside: &Inside, address: u64, stream: &Stream) -> Option<()> {
    gpus::existing(inside)?;
    if sanitizer::is_on() || stream.is_per_thread() {
        return None;
    }
    let (arena, offset) = addresses::arena_of(address)?;
    let mut state = ArenaGuard::of_owner(arena)?;
    let id = state.find_quickly(offset)?;
    state.add_use_quickly(arena, id, stream)
}

/// Frees a block that other streams use.
#[inline(never)]
fn free_used(inside: &Inside, mut state: ArenaGuard<'_>, id: u32) -> Option<()> {
    let Some((bytes, oversize)) = state.defer_if_used(id) else {
        return free_marked(inside, state, id);
    };
    state.count_deferred_free(bytes, oversize);
    Some(())
}

/// Frees a block of which more is to be known than the streams that use it.
#[cold]
#[inline(never)]
fn free_marked(inside: &Inside, mut state: ArenaGuard<'_>, id: u32) -> Option<()> {
    let is_used = state.blocks[id].uses != 0;
    let gpus = gpus::existing(inside)?;
    let device = gpus.device(state.arena().device).ok().filter(|_| is_used)?;
    device.memory().free_used(gpus, &mut state, id).ok()
}

/// Lets the ledger count a block that was allocated or freed.
#[cold]
#[inline(never)]
fn count(inside: &Inside, mut state: ArenaGuard<'_>, blocks: i64, bytes: i64, requested: i64) {
    let (gpus, arena) = (gpus::existing(inside), state.arena());
    if let Some(Ok(device)) = gpus.map(|gpus| gpus.device(arena.device)) {
        let split = state.split();
        let class = arena.class_of((bytes.unsigned_abs() / UNIT) as u32);
        let change = change_of(blocks, bytes, requested, false);
        device.memory().count_slowly(&mut state, class, change, split);
    }
}
