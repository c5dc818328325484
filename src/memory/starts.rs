//! Where the blocks of an arena start: from an address to its block by arithmetic.
//!
//! The slot is cut into windows, and each has the block that started in it last. That is not cleared when
//! the block goes, so that whoever looks compares: index, start and state tell what it is.

use super::arena::ArenaState;
use super::block::{NONE, State, UNIT};
use super::region::Region;
use super::stats::Class;
use crate::error::{Error, Result};

/// Units to a window of a large arena: 1 MiB. A large block is bigger, so that at most one starts in a
/// window. In a small arena a window is a unit.
const LARGE_WINDOW_SHIFT: u32 = 11;

/// The most units of a small block: a segment of one that is not to be split.
const LONGEST_SMALL: u32 = ((4 << 20) / UNIT) as u32;

/// The windows of an arena.
pub struct Starts {
    table: Region<u32>,
    /// Units to a window, as a shift.
    shift: u32,
}

impl Starts {
    /// For so many units of a class.
    pub fn new(class: Class, units: usize) -> Result<Starts> {
        let shift = match class {
            Class::Small => 0,
            Class::Large => LARGE_WINDOW_SHIFT,
        };
        Ok(Starts { table: Region::reserve(units >> shift)?, shift })
    }

    #[inline(always)]
    fn window(&self, start: u32) -> usize {
        (start >> self.shift) as usize
    }

    /// Makes sure that a block that starts at a unit can be noted.
    #[inline]
    pub fn prepare(&mut self, start: u32) -> Result<()> {
        let window = self.window(start);
        if window < self.table.as_slice().len() { Ok(()) } else { self.table.grow(window + 1) }
    }

    /// Notes a block where it starts, which was prepared.
    #[inline]
    pub fn note(&mut self, start: u32, id: u32) {
        let window = self.window(start);
        self.table.as_mut_slice()[window] = id;
    }

    /// Bytes of host memory that they have.
    #[cfg(test)]
    pub fn resident(&self) -> usize {
        self.table.resident()
    }

    /// The block that started last in the window of a unit.
    #[inline(always)]
    pub fn last(&self, unit: u32) -> Option<u32> {
        self.table.as_slice().get(self.window(unit)).copied()
    }
}

impl ArenaState {
    /// Makes sure that a block that starts at a unit can be noted.
    pub(super) fn prepare_window(&mut self, start: u32) -> Result<()> {
        self.starts.prepare(start)
    }

    /// Notes where a block starts.
    pub(super) fn note_start(&mut self, id: u32) {
        self.starts.note(self.blocks[id].start, id);
    }

    /// The allocated block that starts at `offset` bytes from the base.
    #[inline(always)]
    pub(super) fn find(&self, offset: u64, ptr: usize) -> Result<u32> {
        let start = (offset / UNIT) as u32;
        let id = self.starts.last(start).unwrap_or(NONE);
        // Index 0 exists only once there were blocks.
        if id != NONE && offset.is_multiple_of(UNIT) {
            let block = &self.blocks[id];
            if block.start == start && block.state == State::Allocated {
                return Ok(id);
            }
        }
        Err(self.refuse(id, offset, ptr))
    }

    /// The allocated block that holds a unit. From its window down: the first block that is found there
    /// either holds it or ends below it, and then none does.
    pub(super) fn find_around(&self, unit: u32) -> Option<u32> {
        let shift = self.starts.shift;
        let last = unit >> shift;
        // No small block is longer, where windows are single units.
        let windows = if shift == 0 { LONGEST_SMALL } else { u32::MAX };
        for window in (last.saturating_sub(windows)..=last).rev() {
            let Some(id) = self.starts.last(window << shift).filter(|id| *id != NONE) else {
                continue;
            };
            let Some(block) = self.blocks.get(id) else { continue };
            if block.state == State::Vacant || block.start >> shift != window {
                continue;
            }
            if block.end() > unit {
                // In a window of its own block, a free one may have started above the unit.
                if block.start > unit {
                    continue;
                }
                return (block.state == State::Allocated).then_some(id);
            }
            return None;
        }
        None
    }

    /// What [`ArenaState::find`] gives, without a reason where there is none.
    #[inline(always)]
    pub(super) fn find_quickly(&self, offset: u64) -> Option<u32> {
        let id = self.starts.last((offset / UNIT) as u32)?;
        let block = self.blocks.get(id)?;
        let is_it = u64::from(block.start) * UNIT == offset && block.state == State::Allocated;
        is_it.then_some(id)
    }

    /// Of a block of which nothing else is to be known: its length, and what was asked for.
    #[inline(always)]
    pub(super) fn plain(&self, id: u32) -> Option<(u32, i64)> {
        let block = &self.blocks[id];
        let is_plain = block.uses == 0 && !block.oversize;
        is_plain.then_some((block.units, block.requested as i64))
    }

    #[cold]
    fn refuse(&self, id: u32, offset: u64, ptr: usize) -> Error {
        let starts = |id: u32| u64::from(self.blocks[id].start) * UNIT == offset;
        let why = match id != NONE && starts(id) {
            true => "was freed already",
            false => {
                "is not the start of a block that tcuda allocated: pass what tcuda_malloc gave"
            }
        };
        Error::InvalidPointer { ptr, why }
    }
}
