//! The block of an address, with its arena locked.

use crate::base::error::{Error, Result};
use crate::memory::arena::segmented::table;
use crate::memory::arena::{Arena, ArenaGuard};
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

/// The block at a pointer, with its arena, whose lock is held.
pub(in crate::memory) struct Locked<'a> {
    pub(in crate::memory) state: ArenaGuard<'a>,
    pub(in crate::memory) id: u32,
}

/// The block at an address of a slot.
#[inline(always)]
pub(in crate::memory) fn lock_mapped(
    (arena, offset): (&'static Arena, u64),
    address: u64,
) -> Result<Locked<'static>> {
    let state = arena.enter()?;
    let id = state.find(offset, address as usize)?;
    Ok(Locked { state, id })
}

/// Finds and locks the block at a pointer that is in no reservation.
#[cold]
pub(in crate::memory) fn lock_block(address: u64) -> Result<Locked<'static>> {
    let (arena, offset) = table::arena_of(address).ok_or_else(|| unknown_pointer(address))?;
    let state = arena.enter()?;
    let id = state.find(offset, address as usize)?;
    // The segment may have been freed since the lookup in the table.
    if state.address(arena.base, id) != address {
        return Err(unknown_pointer(address));
    }
    Ok(Locked { state, id })
}
