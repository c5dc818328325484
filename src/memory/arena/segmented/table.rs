//! The table of segments by address, for pointers that are in no reservation.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::waiting;
use crate::memory::arena::Arena;
use crate::memory::config::size::UNIT;

/// A segment.
#[derive(Clone, Copy)]
struct Entry {
    address: u64,
    bytes: u64,
    arena: *const Arena,
    /// The segment's first unit in its arena.
    start: u32,
}

// SAFETY: arenas are shared by all threads.
unsafe impl Send for Entry {}

/// All segments of all devices, by address.
static TABLE: Mutex<Vec<Entry>> = Mutex::new(Rank::LEAF, Vec::new());

/// Adds a segment; false: it overlaps another segment, which means that its source is faulty.
pub fn add(arena: &Arena, address: u64, bytes: u64, start: u32) -> Result<bool> {
    let mut table = TABLE.lock();
    let at = table.partition_point(|entry| entry.address < address);
    let end = address.saturating_add(bytes);
    let meets_next = table.get(at).is_some_and(|entry| entry.address < end);
    let meets_last =
        at > 0 && table.get(at - 1).is_some_and(|entry| entry.address + entry.bytes > address);
    if meets_next || meets_last {
        return Ok(false);
    }
    table.try_reserve(1).map_err(|_| Error::OutOfHostMemory("the table of segments"))?;
    table.insert(at, Entry { address, bytes, arena, start });
    Ok(true)
}

/// Removes a segment.
pub fn remove(address: u64) {
    let mut table = TABLE.lock();
    if let Ok(at) = table.binary_search_by_key(&address, |entry| entry.address) {
        table.remove(at);
    }
    if table.is_empty() {
        // No host memory is kept after a shutdown.
        *table = Vec::new();
    }
}

fn find(address: u64) -> Option<Entry> {
    let table = TABLE.lock();
    let at = table.partition_point(|entry| entry.address <= address).checked_sub(1)?;
    let entry = table.get(at)?;
    (address - entry.address < entry.bytes).then_some(*entry)
}

/// The arena whose segment holds an address, and the offset in its units.
pub fn arena_of(address: u64) -> Option<(&'static Arena, u64)> {
    waiting::assert_awake();
    let Entry { arena, start, address: first, .. } = find(address)?;
    // SAFETY: an arena that ends has no segments left, and lives as long as a call may have found
    // it.
    Some((unsafe { &*arena }, u64::from(start) * UNIT + (address - first)))
}

/// Address and length of the segment that holds an address.
pub fn segment_of(address: u64) -> Option<(u64, u64)> {
    find(address).map(|entry| (entry.address, entry.bytes))
}

/// The device whose segment holds an address.
pub fn device_of(address: u64) -> Option<i32> {
    arena_of(address).map(|(arena, _)| arena.device)
}
