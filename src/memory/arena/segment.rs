//! The memory behind an arena's addresses: physical handles, mapped in address order.
//!
//! The driver needs 30 to 60 us for a handle of any size, so that few large handles are faster.
//! Memory is given back, and remapped (`remap.rs`), by whole handles, so that small handles become
//! idle more often, and less is reserved. Two rules choose between the two: an arena grows by the
//! bytes that are missing, but at least by a 256th of itself (`growth_step`); and a handle is at
//! most a 64th of the arena, or an eighth of the growth (`handle_sizes`). docs/benchmark-log.md
//! shows what other fractions cost. An arena that gave memory back grows again in larger steps.
//! With a limit, an arena grows only by what is missing, in smaller handles; after memory has run
//! out, in the smallest.

pub(in crate::memory) mod growth_cursor;
pub(in crate::memory) mod remap;

use crate::base::error::{Error, Result};
use crate::memory::arena::block::NONE;
use crate::memory::arena::events;
use crate::memory::arena::segment::remap::Views;
use crate::memory::backing::virtual_memory::VirtualMemory;
use crate::memory::config::size::UNIT;
use crate::memory::trace::ring::Action;

/// The largest size of a handle, and the largest growth beyond what is missing.
const LARGEST: u64 = 256 << 20;
/// A handle above this size is at most a 128th of its arena.
const LARGE: u64 = 64 << 20;
const LARGE_ARENA_SHIFT: u32 = 7;
/// Without a limit, the fractions below make no handle smaller than this.
const SMALL: u64 = 8 << 20;
/// An arena grows by at least this fraction of itself, as a shift.
const GROWTH_SHIFT: u32 = 8;
/// The same up to the size that it had before it gave memory back.
const REGROWTH_SHIFT: u32 = 6;
/// The largest handle as a fraction, in shifts: of the arena's size, or of the growth; the larger
/// result counts.
const SHIFTS: (u32, u32) = (6, 3);
/// The fractions if a limit is set.
const SHIFTS_WHEN_LIMITED: (u32, u32) = (8, 6);
/// The fractions after memory has run out.
const SHIFTS_WHEN_SHORT: (u32, u32) = (10, 10);

/// The sizes of the handles for a growth by `bytes`, in address order; all are multiples of the
/// granularity. `total` is the size of the arena after the growth.
fn handle_sizes(
    bytes: u64,
    total: u64,
    memory: &VirtualMemory,
) -> impl Iterator<Item = u64> + Clone + use<> {
    let (limit, granularity) = (&memory.limit, memory.granularity());
    let (shifts, smallest) = match (limit.was_short(), limit.is_set()) {
        (true, _) => (SHIFTS_WHEN_SHORT, 0),
        (_, true) => (SHIFTS_WHEN_LIMITED, 0),
        _ => (SHIFTS, SMALL),
    };
    let largest = (total >> shifts.0).max(bytes >> shifts.1).clamp(smallest, LARGE);
    let largest = largest.max(total >> shifts.0.max(LARGE_ARENA_SHIFT)).min(LARGEST);
    let largest = (largest - largest % granularity).max(granularity);
    let mut left = bytes;
    std::iter::from_fn(move || {
        let size = left.min(largest);
        left -= size;
        (size > 0).then_some(size)
    })
}

/// A physical handle and its primary mapping, in units from the arena's base.
#[derive(Clone, Copy)]
pub struct Mapping {
    /// First unit.
    pub start: u32,
    /// Length.
    pub units: u32,
    /// The driver's handle; 0: no memory, while the pool sleeps.
    pub(in crate::memory) handle: u64,
    /// Is it the last mapping of its growth?
    pub(in crate::memory) ends_growth: bool,
    /// Is it remapped: does its memory serve a view?
    pub(in crate::memory) is_remapped: bool,
    /// The result of the last search for idle mappings.
    pub(in crate::memory) mark: Mark,
    /// The free block around an idle mapping, found by the same search.
    pub(in crate::memory) block: u32,
}

/// The state of a mapping in one search for idle mappings; the next search sets it anew.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::memory) enum Mark {
    /// Part of it is in use.
    Busy,
    /// Nothing in it is in use.
    Idle,
    /// Nothing in it is in use, and it becomes part of a new view.
    Chosen,
}

impl Mapping {
    fn new(start: u32, units: u32, handle: u64) -> Mapping {
        let (mark, block) = (Mark::Busy, NONE);
        Mapping { start, units, handle, ends_growth: false, is_remapped: false, mark, block }
    }

    /// One past the last unit.
    pub(in crate::memory) fn end(&self) -> u32 {
        self.start + self.units
    }
}

/// The mappings of an arena, in address order.
pub struct Segment {
    mappings: Vec<Mapping>,
    /// Mappings of a failed growth that could not be unmapped. They are not counted, and unmapping
    /// is tried again later.
    stranded: Vec<Mapping>,
    /// Second mappings of the handles.
    pub(in crate::memory) views: Views,
    bytes: u64,
    /// The largest value of `bytes` so far.
    most: u64,
    /// The number of contiguous ranges of mappings that are not remapped.
    primary_ranges: i64,
}

/// Counts the contiguous ranges of mappings that are not remapped.
fn primary_ranges(mappings: &[Mapping]) -> i64 {
    let (mut ranges, mut end) = (0, None);
    for mapping in mappings.iter().filter(|mapping| !mapping.is_remapped) {
        ranges += i64::from(end != Some(mapping.start));
        end = Some(mapping.end());
    }
    ranges
}

impl Segment {
    pub(in crate::memory) fn new() -> Segment {
        let (mappings, stranded) = (Vec::new(), Vec::new());
        let views = Views::new();
        Segment { mappings, stranded, views, bytes: 0, most: 0, primary_ranges: 0 }
    }

    /// Mapped bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes by which the arena grows if fewer are missing: a multiple of the granularity. 0 if
    /// a limit is set or memory has run out.
    pub(in crate::memory) fn growth_step(&self, memory: &VirtualMemory) -> u64 {
        let limit = &memory.limit;
        if limit.is_set() || limit.was_short() {
            return 0;
        }
        let again = (self.bytes >> REGROWTH_SHIFT).min(self.most - self.bytes);
        let step = (self.bytes >> GROWTH_SHIFT).max(again).min(LARGEST);
        step - step % memory.granularity()
    }

    /// Is nothing mapped, and nothing left to unmap?
    pub(in crate::memory) fn is_bare(&self) -> bool {
        self.mappings.is_empty() && self.stranded.is_empty() && self.views.is_empty()
    }

    /// The number of contiguous ranges in use; statistics and snapshots call them segments.
    pub fn ranges(&self) -> i64 {
        debug_assert_eq!(self.primary_ranges, primary_ranges(&self.mappings));
        self.views.live().count() as i64 + self.primary_ranges
    }

    /// Counts the contiguous primary ranges among the mappings from `first` to `last` and their
    /// neighbours, which are all that a change of these mappings affects.
    fn ranges_about(&self, first: usize, last: usize) -> i64 {
        primary_ranges(&self.mappings[first.saturating_sub(1)..(last + 1).min(self.mappings.len())])
    }

    /// Sets `is_remapped` of all mappings of a contiguous range; each of them changes.
    fn set_remapped(&mut self, start: u32, end: u32, is_remapped: bool) {
        let first = self.mappings.partition_point(|mapping| mapping.start < start);
        let last = first + self.mappings[first..].partition_point(|mapping| mapping.start < end);
        self.mappings[first..last].iter_mut().for_each(|mapping| mapping.is_remapped = is_remapped);
        let serves = |mapping: &&Mapping| !mapping.is_remapped;
        let below = self.mappings[..first].last().filter(serves).is_some_and(|m| m.end() == start);
        let above = self.mappings.get(last).filter(serves).is_some_and(|m| m.start == end);
        // Remapping a range splits its neighbours apart; the return joins them.
        let change = i64::from(below) + i64::from(above) - 1;
        self.primary_ranges += if is_remapped { change } else { -change };
    }

    /// The range, first unit and length, that contains a unit.
    pub(in crate::memory) fn range_of(&self, unit: u32) -> Option<(u32, u32)> {
        let view = self.views.live().map(|view| (view.start, view.units));
        if let Some(found) = view.clone().find(|(start, units)| unit.wrapping_sub(*start) < *units)
        {
            return Some(found);
        }
        let (mut start, mut end) = (0, 0);
        for mapping in self.mappings.iter().filter(|mapping| !mapping.is_remapped) {
            if mapping.start != end {
                if (start..end).contains(&unit) {
                    break;
                }
                start = mapping.start;
            }
            end = mapping.end();
        }
        (start..end).contains(&unit).then_some((start, end - start))
    }

    /// The handles behind some units, each with its length, and the first unit of the first one.
    /// Handles are listed whole, because only whole handles can be shared.
    pub(in crate::memory) fn handles_behind(
        &self,
        start: u32,
        end: u32,
    ) -> (u32, impl Iterator<Item = (u64, u64)>) {
        let view = self.views.live().find(|view| view.holds(start));
        let first = self.mappings.partition_point(|mapping| mapping.end() <= start);
        let own = self.mappings[first..].iter().take_while(move |mapping| mapping.start < end);
        let begin = match view {
            Some(view) => view.start,
            None => self.mappings.get(first).map_or(start, |mapping| mapping.start),
        };
        let primaries = view.into_iter().flat_map(|view| view.primary_starts());
        let remapped = primaries.filter_map(|start| {
            let found = self.mappings.binary_search_by_key(&start, |mapping| mapping.start);
            found.ok().map(|index| &self.mappings[index])
        });
        let chosen = remapped.chain(own.filter(move |_| view.is_none()));
        let bytes = |mapping: &Mapping| u64::from(mapping.units) * UNIT;
        (begin, chosen.map(move |mapping| (mapping.handle, bytes(mapping))))
    }

    /// The mappings, in address order.
    pub(in crate::memory) fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The mappings, writable: to mark or remap them.
    pub(in crate::memory) fn mappings_mut(&mut self) -> &mut [Mapping] {
        &mut self.mappings
    }

    /// Maps `bytes` (a multiple of the granularity) at `start` units from `base`: all or nothing.
    pub(in crate::memory) fn map(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        start: u32,
        bytes: u64,
    ) -> Result<()> {
        self.clear_stranded(memory, base);
        let at = self.mappings.partition_point(|mapping| mapping.start < start);
        let mut sizes = handle_sizes(bytes, self.bytes + bytes, memory);
        let count = sizes.clone().count();
        self.mappings
            .try_reserve(count)
            .map_err(|_| Error::OutOfHostMemory("the list of mapped handles"))?;
        self.stranded
            .try_reserve(count)
            .map_err(|_| Error::OutOfHostMemory("the list of mapped handles"))?;
        if !memory.limit.claim(bytes) {
            return Err(Error::OverLimit);
        }
        let ranges = self.ranges_about(at, at);
        let (mut index, mut offset) = (at, 0);
        let outcome = loop {
            let Some(size) = sizes.next() else {
                break memory.allow_access(base + u64::from(start) * UNIT, bytes);
            };
            let address = base + u64::from(start) * UNIT + offset;
            match memory.create_mapped(address, size) {
                Err(error) => break Err(error),
                Ok(handle) => {
                    let start = start + (offset / UNIT) as u32;
                    let mapping = Mapping::new(start, (size / UNIT) as u32, handle);
                    self.mappings.insert(index, mapping);
                    index += 1;
                    offset += size;
                }
            }
        };
        if let Err(error) = outcome {
            self.stranded.extend(self.mappings.drain(at..index));
            self.clear_stranded(memory, base);
            memory.limit.release(bytes);
            if matches!(error, Error::DriverOutOfMemory { .. }) {
                memory.limit.note_shortage();
            }
            return Err(error);
        }
        self.mappings[index - 1].ends_growth = true;
        self.bytes += bytes;
        self.most = self.most.max(self.bytes);
        self.primary_ranges += self.ranges_about(at, index) - ranges;
        events::segment(Action::SegmentMap, base + u64::from(start) * UNIT, bytes);
        Ok(())
    }

    /// Unmaps the remains of a failed growth. Mappings that the driver refuses to unmap stay for
    /// the next call.
    pub(in crate::memory) fn clear_stranded(&mut self, memory: &VirtualMemory, base: u64) {
        clear(&mut self.stranded, memory, base);
    }

    /// The part of the units from `start` to `end` that consists of whole mappings; may be empty.
    pub(in crate::memory) fn whole_within(&self, start: u32, end: u32) -> (u32, u32) {
        let first = self.mappings.partition_point(|mapping| mapping.start < start);
        let inside = self.mappings[first..].iter().take_while(|mapping| mapping.end() <= end);
        match inside.clone().next() {
            Some(low) => (low.start, inside.last().map_or(low.start, Mapping::end)),
            None => (start, start),
        }
    }

    /// Unmaps whole mappings in address order and gives their memory back. Stops at the first that
    /// the driver refuses to unmap, and returns its first unit; without a failure, returns `end`.
    pub(in crate::memory) fn unmap(
        &mut self,
        memory: &VirtualMemory,
        base: u64,
        start: u32,
        end: u32,
    ) -> (u32, Result<()>) {
        let first = self.mappings.partition_point(|mapping| mapping.start < start);
        let mut last = first;
        let before = self.bytes;
        let mut outcome = (end, Ok(()));
        while let Some(mapping) = self.mappings.get(last).filter(|mapping| mapping.start < end) {
            let length = u64::from(mapping.units) * UNIT;
            let address = base + u64::from(mapping.start) * UNIT;
            if mapping.handle != 0 {
                if let Err(error) = memory.destroy_mapped(address, length, mapping.handle) {
                    outcome = (mapping.start, Err(error));
                    break;
                }
                self.bytes -= length;
                memory.limit.release(length);
            }
            last += 1;
        }
        let ranges = self.ranges_about(first, last);
        self.mappings.drain(first..last);
        self.primary_ranges += self.ranges_about(first, first) - ranges;
        events::segment(Action::SegmentUnmap, base + u64::from(start) * UNIT, before - self.bytes);
        outcome
    }

    /// Gives every mapping back when the arena ends. Tries twice, so that a transient failure
    /// leaves nothing behind.
    pub(in crate::memory) fn close(&mut self, memory: &VirtualMemory, base: u64) {
        for _ in 0..2 {
            let _ = self.views.clear(memory, base, true);
            let _ = self.unmap(memory, base, 0, u32::MAX);
            self.clear_stranded(memory, base);
        }
    }

    /// Releases the memory of all mappings and keeps their addresses. Tries all, and returns the
    /// first failure.
    pub(in crate::memory) fn sleep(&mut self, memory: &VirtualMemory, base: u64) -> Result<()> {
        self.clear_stranded(memory, base);
        let mut outcome = Ok(());
        for mapping in self.mappings.iter_mut().filter(|mapping| mapping.handle != 0) {
            let length = u64::from(mapping.units) * UNIT;
            let address = base + u64::from(mapping.start) * UNIT;
            if let Err(error) = memory.destroy_mapped(address, length, mapping.handle) {
                if outcome.is_ok() {
                    outcome = Err(error);
                }
                continue;
            }
            mapping.handle = 0;
            self.bytes -= length;
            memory.limit.release(length);
            events::segment(Action::SegmentUnmap, address, length);
        }
        outcome
    }

    /// Does a unit lie in a mapping without memory?
    pub(in crate::memory) fn is_asleep_at(&self, unit: u32) -> bool {
        let at = self.mappings.partition_point(|mapping| mapping.end() <= unit);
        self.mappings.get(at).is_some_and(|mapping| mapping.start <= unit && mapping.handle == 0)
    }

    /// Bytes of the mappings without memory.
    pub(in crate::memory) fn sleeping_bytes(&self) -> u64 {
        let asleep = self.mappings.iter().filter(|mapping| mapping.handle == 0);
        asleep.map(|mapping| u64::from(mapping.units) * UNIT).sum()
    }

    /// Is there a mapping without memory?
    pub(in crate::memory) fn has_sleeping(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.handle == 0)
    }

    /// Gives all mappings memory again; stops at the first failure.
    pub(in crate::memory) fn wake(&mut self, memory: &VirtualMemory, base: u64) -> Result<()> {
        self.stranded.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a mapped handle"))?;
        self.clear_stranded(memory, base);
        for mapping in self.mappings.iter_mut().filter(|mapping| mapping.handle == 0) {
            let length = u64::from(mapping.units) * UNIT;
            let address = base + u64::from(mapping.start) * UNIT;
            if !memory.limit.claim(length) {
                return Err(Error::OverLimit);
            }
            let handle = match memory.create_mapped(address, length) {
                Ok(handle) => handle,
                Err(error) => {
                    memory.limit.release(length);
                    return Err(error);
                }
            };
            if let Err(error) = memory.allow_access(address, length) {
                memory.limit.release(length);
                self.stranded.push(Mapping { handle, ..*mapping });
                clear(&mut self.stranded, memory, base);
                return Err(error);
            }
            mapping.handle = handle;
            self.bytes += length;
            events::segment(Action::SegmentMap, address, length);
        }
        Ok(())
    }

    /// Gives a peer access to all mapped addresses.
    pub(in crate::memory) fn allow_peer(
        &self,
        memory: &VirtualMemory,
        base: u64,
        peer: i32,
    ) -> Result<()> {
        for mapping in self.mappings.iter().filter(|mapping| mapping.handle != 0) {
            let address = base + u64::from(mapping.start) * UNIT;
            memory.allow_peer(address, u64::from(mapping.units) * UNIT, peer)?;
        }
        self.views.allow_peer(memory, base, peer)
    }
}

/// Unmaps mappings and gives their memory back; keeps those that the driver refuses to unmap.
fn clear(mappings: &mut Vec<Mapping>, memory: &VirtualMemory, base: u64) {
    mappings.retain(|mapping| {
        let address = base + u64::from(mapping.start) * UNIT;
        let bytes = u64::from(mapping.units) * UNIT;
        memory.destroy_mapped(address, bytes, mapping.handle).is_err()
    });
}
