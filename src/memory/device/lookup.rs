//! The block of an address, with its arena locked.

use crate::base::error::{Error, Result};
use crate::memory::arena::Arena;
use crate::memory::arena::arena_lock::ArenaGuard;
use crate::memory::arena::segmented::table;
use crate::memory::device::uncached;

/// A block as its user sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Bytes that were requested.
    pub requested: u64,
    /// Bytes that it has.
    pub bytes: u64,
}

/// The error of an address that is no block.
pub fn unknown_pointer(address: u64) -> Error {
    let why = match uncached::is_used() {
        false => "was not allocated by tcuda, or tcuda was shut down since",
        // Nothing is known of such a block after it is freed.
        true => "was not allocated by tcuda, was freed already, or tcuda was shut down since",
    };
    Error::InvalidPointer { ptr: address as usize, why }
}

/// The block at a pointer, its arena locked for the life of the guard.
pub(in crate::memory) struct Locked<'a> {
    pub(in crate::memory) arena: &'a Arena,
    pub(in crate::memory) id: u32,
    pub(in crate::memory) _guard: ArenaGuard<'a>,
}

/// The block at an address of a slot.
#[inline(always)]
pub(in crate::memory) fn lock_mapped(
    (arena, offset): (&'static Arena, u64),
    address: u64,
) -> Result<Locked<'static>> {
    let guard = arena.lock.enter()?;
    // SAFETY: the lock is held, and this is the only reference.
    let id = unsafe { arena.state() }.find(offset, address as usize)?;
    Ok(Locked { arena, id, _guard: guard })
}

/// Finds and locks the block at a pointer that is in no reservation.
#[cold]
pub(in crate::memory) fn lock_block(address: u64) -> Result<Locked<'static>> {
    let (arena, offset) = table::arena_of(address).ok_or_else(|| unknown_pointer(address))?;
    let guard = arena.lock.enter()?;
    // SAFETY: the lock is held, and this is the only reference.
    let state = unsafe { arena.state() };
    let id = state.find(offset, address as usize)?;
    // The segment may have been freed since the lookup in the table.
    if state.address(arena.base, id) != address {
        return Err(unknown_pointer(address));
    }
    Ok(Locked { arena, id, _guard: guard })
}
