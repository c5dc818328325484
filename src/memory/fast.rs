//! The way that nearly every call takes, on one page: a block of memory that the current stream's arena
//! has, giving such a block back, and saying who uses it, on the thread to which the arena is biased.
//!
//! Wherever there is anything else to do or to say, nothing has been done here, and the call takes the long
//! way, which does the same and more: for errors, first uses, policies, private pools, other streams, growth
//! and whoever is watching. What may be seen by other threads at the same time is in `epoch.rs` (being
//! inside) and `arena_lock.rs` (the bias), each with its memory orders and models; all else here is plain
//! memory under that lock.

use super::DeviceMemory;
use super::arena::Arena;
use super::bins::SHORT_WALK;
use super::block::UNIT;
use super::stats::change_of;
use super::watch::Watcher;
use super::{policy, round_size, virtual_memory, watch};
use crate::device::CURRENT;
use crate::runtime::{self, Runtime};
use crate::sanitizer;
use crate::stream::Stream;
use crate::thread::Inside;
use std::sync::atomic::Ordering;

/// A block for a stream, or for the current one of a device; none: take the long way.
#[inline(always)]
pub fn allocate(inside: &Inside, device: i32, stream: Option<&Stream>, bytes: u64) -> Option<u64> {
    let runtime = runtime::existing(inside)?;
    let Some(stream) = stream else {
        let device = runtime.device_at_hand(device)?;
        return device.memory.allocate_quickly(device.streams.current(), bytes);
    };
    let is_its = device == CURRENT || device == stream.device();
    let device = runtime.device_at_hand(stream.device()).filter(|_| is_its)?;
    device.memory.allocate_quickly(stream, bytes)
}

/// Gives a block back; none: take the long way.
#[inline(always)]
pub fn free(inside: &Inside, address: u64) -> Option<()> {
    let runtime = runtime::existing(inside)?;
    if watch::is_watched() {
        return free_told(runtime, address);
    }
    free_quickly(runtime, address)
}

/// The same while only the sanitizer watches.
#[cold]
#[inline(never)]
fn free_told(runtime: &Runtime, address: u64) -> Option<()> {
    if !watch::is_only(Watcher::Sanitizer) {
        return None;
    }
    // Before another thread can have it. Where the long way is to be taken it is told again, which is
    // nothing new then.
    sanitizer::freed(address);
    free_quickly(runtime, address)
}

#[inline(always)]
fn free_quickly(runtime: &Runtime, address: u64) -> Option<()> {
    let (arena, offset) = virtual_memory::arena_of(address)?;
    let _guard = arena.lock.guard_quickly()?;
    // SAFETY: the lock is held, and this is the only reference.
    let state = unsafe { arena.state() };
    let Some((id, units, requested)) = state.find_plain(offset) else {
        return free_used(runtime, arena, offset);
    };
    state.free(id, units);
    let (bytes, split) = (i64::from(units) * UNIT as i64, state.split());
    // SAFETY: the lock is held and we are not parked.
    if !unsafe { arena.account() }.fall(bytes, requested, split) {
        count(runtime, arena, -bytes, -requested);
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
    state.add_use(arena, id, stream).ok()
}

/// Gives a block back that other streams use, under the lock.
#[inline(never)]
fn free_used(runtime: &Runtime, arena: &Arena, offset: u64) -> Option<()> {
    // SAFETY: the caller holds the lock, and has no reference.
    let state = unsafe { arena.state() };
    let id = state.find_quickly(offset)?;
    let is_used = state.blocks[id].uses != 0;
    let device = runtime.device(arena.device).ok().filter(|_| is_used)?;
    device.memory.free_used(runtime, arena, id).ok()
}

impl DeviceMemory {
    #[inline(always)]
    fn allocate_quickly(&self, stream: &Stream, bytes: u64) -> Option<u64> {
        // Of nothing there is no block either.
        let is_plain = bytes.wrapping_sub(1) < self.policy.plain();
        if !is_plain || watch::is_watched() || stream.is_per_thread() {
            return None;
        }
        self.take_quickly(stream, bytes)
    }

    /// The same while only the sanitizer watches.
    #[inline]
    pub(super) fn allocate_told(&self, stream: &Stream, bytes: u64) -> Option<u64> {
        let is_plain = bytes.wrapping_sub(1) < self.policy.plain();
        // A stream of the host's may have to be asked what it is.
        if !is_plain || !watch::is_only(Watcher::Sanitizer) || stream.is_external() {
            return None;
        }
        let address = self.take_quickly(stream, bytes)?;
        sanitizer::allocated_plainly(address, bytes, stream);
        Some(address)
    }

    #[inline(always)]
    fn take_quickly(&self, stream: &Stream, bytes: u64) -> Option<u64> {
        let size = policy::Size { bytes: round_size(bytes), oversize: false };
        let (class, request) = (size.class(), size.request(bytes));
        let arena = stream.arenas[class as usize].load(Ordering::Acquire);
        // SAFETY: NULL or an arena of this device, which lives until shutdown.
        let arena = unsafe { arena.as_ref() }?;
        let _guard = arena.lock.guard_quickly()?;
        // SAFETY: the lock is held, and this is the only reference.
        let state = unsafe { arena.state() };
        // Where runs are to repeat, who is asked depends on how often it was looked at.
        let is_alone = state.limbo.is_empty()
            || !self.driver.is_simulated() && state.limbo.rest.goes_by(false);
        if !is_alone {
            return None;
        }
        let Ok(Some((_, start))) = state.allocate(request, SHORT_WALK) else {
            // The search has joined free blocks.
            self.count_free(arena);
            return None;
        };
        let (bytes, requested) = (size.bytes as i64, request.bytes as i64);
        let split = state.split();
        // SAFETY: the lock is held and we are not parked.
        if !unsafe { arena.account() }.rise(bytes, requested, split) {
            self.count_risen(arena, (bytes, requested), split);
        }
        Some(arena.base + u64::from(start) * UNIT)
    }
}

/// Asks the ledger to count a plain block that went.
#[cold]
fn count(runtime: &Runtime, arena: &Arena, bytes: i64, requested: i64) {
    if let Ok(device) = runtime.device(arena.device) {
        // SAFETY: the caller holds the lock, and this is the only reference.
        let split = unsafe { arena.state() }.split();
        device.memory.count_slowly(arena, change_of(-1, bytes, requested, false), split);
    }
}
