//! Storage of touches and cells. A touch is the access of one operation to some bytes. A cell is
//! the list of accesses that matter for some bytes; many ranges share a cell.

use super::Mode;
use super::clock::{NO_MEMORY, NO_SLOT, push};
use super::domain::StreamInfo;
use super::shape::Shape;
use super::text::Label;
use crate::base::error::Result;

/// What a report says about an access.
#[derive(Clone, Copy)]
pub(super) struct AccessDetails {
    pub(super) sequence: u64,
    pub(super) label: Label,
    pub(super) frames: u32,
    pub(super) stream: StreamInfo,
    pub(super) mode: Mode,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A touch of an operation.
pub(super) struct Touched {
    /// Number of accesses in cells that name it, plus one while its operation is checked.
    refs: u32,
    pub(super) details: AccessDetails,
    /// The touched bytes, if they are not all of `start..end`.
    pub(super) shape: Option<Box<Shape>>,
}

/// The bytes were freed and allocated again since the access.
pub(super) const EARLIER: u32 = 1;
/// The bytes were freed since; the allocator waits for the access before it reuses them.
pub(super) const COVERED: u32 = 2;
/// The bytes were freed since; the allocator does not wait for the access.
pub(super) const UNCOVERED: u32 = 4;
/// The bytes were freed since; only the next work of the legacy default stream is ordered after the
/// access.
pub(super) const IMPLIED: u32 = 8;
/// The access belongs to a launch of a graph.
pub(super) const LAUNCHED: u32 = 16;

/// An access, with what is needed to compare later ones with it.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Access {
    pub(super) slot: u32,
    pub(super) touched: u32,
    pub(super) time: u64,
    /// Stream and time of an allocation that reused the bytes: what is ordered after that
    /// allocation is ordered after this access. `NO_SLOT`: none.
    pub(super) realloc_slot: u32,
    pub(super) flags: u32,
    pub(super) realloc_time: u64,
}

impl Access {
    pub(super) fn new(slot: u32, time: u64, touched: u32, flags: u32) -> Access {
        Access { slot, touched, time, realloc_slot: NO_SLOT, flags, realloc_time: 0 }
    }

    /// Returns whether the access is ordered before a stream or the host. `knows(slot, time)` says
    /// whether a time of a stream is.
    #[inline]
    pub(super) fn is_before(&self, knows: impl Fn(u32, u64) -> bool) -> bool {
        knows(self.slot, self.time)
            || self.realloc_slot != NO_SLOT && knows(self.realloc_slot, self.realloc_time)
    }
}

/// The accesses that matter for some bytes.
#[derive(Default)]
pub(super) struct Cell {
    /// Number of ranges that have the cell.
    refs: u32,
    /// The last write to all of these bytes.
    pub(super) write: Option<Access>,
    /// Reads of all of these bytes since `write`, without those ordered before a later read.
    pub(super) reads: Vec<Access>,
    /// Accesses to some of these bytes.
    pub(super) partial: Vec<Access>,
}

impl Cell {
    pub(super) fn all(&self) -> impl Iterator<Item = &Access> {
        self.write.iter().chain(&self.reads).chain(&self.partial)
    }
}

pub(super) const NO_CELL: u32 = u32::MAX;

/// A vector whose free places are reused.
struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    const fn new() -> Slab<T> {
        Slab { items: Vec::new(), free: Vec::new() }
    }

    fn live(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Adds an item at a new place, and reserves room for its place in `free`.
    fn add(&mut self, item: T) -> Result<u32> {
        let place = u32::try_from(self.items.len()).map_err(|_| NO_MEMORY)?;
        if place == NO_CELL {
            return Err(NO_MEMORY);
        }
        // `free` has room for every place, so that freeing cannot fail.
        let more = (self.items.len() + 1).saturating_sub(self.free.len());
        self.free.try_reserve(more).map_err(|_| NO_MEMORY)?;
        push(&mut self.items, item)?;
        Ok(place)
    }
}

impl Slab<Touched> {
    /// Drops a reference.
    #[inline]
    fn settle(&mut self, place: u32) {
        let touched = &mut self.items[place as usize];
        touched.refs -= 1;
        if touched.refs == 0 {
            touched.shape = None;
            touched.details.frames = 0;
            self.free.push(place);
        }
    }
}

pub(super) struct Store {
    touched: Slab<Touched>,
    cells: Slab<Cell>,
}

impl Store {
    pub(super) const fn new() -> Store {
        Store { touched: Slab::new(), cells: Slab::new() }
    }

    /// The frames of all touches; 0 for free places.
    pub(super) fn frames(&self) -> impl Iterator<Item = u32> {
        self.touched.items.iter().map(|touched| touched.details.frames)
    }

    pub(super) fn cells(&self) -> usize {
        self.cells.live()
    }

    /// Checks that all counts agree with the contents. `ranges` are the cells of all ranges.
    #[cfg(test)]
    pub(super) fn check(&self, ranges: impl Iterator<Item = u32>) {
        let mut cells = vec![0; self.cells.items.len()];
        ranges.for_each(|cell| cells[cell as usize] += 1);
        let mut touched = vec![0; self.touched.items.len()];
        for (place, cell) in self.cells.items.iter().enumerate() {
            assert_eq!(cell.refs, cells[place], "cell {place}");
            assert_eq!(cell.refs == 0, cell.all().next().is_none(), "cell {place}");
            cell.all().for_each(|access| touched[access.touched as usize] += 1);
        }
        for (place, refs) in touched.iter().enumerate() {
            assert_eq!(self.touched.items[place].refs, *refs, "touch {place}");
        }
        let live = touched.iter().filter(|refs| **refs > 0).count();
        assert_eq!(
            (self.touched.live(), self.cells()),
            (live, cells.iter().filter(|c| **c > 0).count())
        );
    }

    /// Adds a touch with one reference, which the caller drops with `settle`.
    pub(super) fn add_touched(&mut self, details: AccessDetails) -> Result<u32> {
        let touched = Touched { refs: 1, details, shape: None };
        match self.touched.free.pop() {
            Some(place) => {
                self.touched.items[place as usize] = touched;
                Ok(place)
            }
            None => self.touched.add(touched),
        }
    }

    pub(super) fn touched(&self, place: u32) -> &Touched {
        &self.touched.items[place as usize]
    }

    /// Sets the bytes of a touch.
    pub(super) fn place(&mut self, place: u32, start: u64, end: u64, shape: Option<Box<Shape>>) {
        let touched = &mut self.touched.items[place as usize];
        (touched.details.start, touched.details.end, touched.shape) = (start, end, shape);
    }

    pub(super) fn is_read(&self, access: &Access) -> bool {
        self.touched(access.touched).details.mode == Mode::Read
    }

    /// Drops the caller's reference to a touch.
    pub(super) fn settle(&mut self, place: u32) {
        self.touched.settle(place);
    }

    pub(super) fn cell(&self, place: u32) -> &Cell {
        &self.cells.items[place as usize]
    }

    /// Adds a cell with these accesses; no range has it yet.
    pub(super) fn add_cell(
        &mut self,
        write: Option<Access>,
        reads: &[Access],
        partial: &[Access],
    ) -> Result<u32> {
        let place = match self.cells.free.pop() {
            Some(place) => place,
            None => self.cells.add(Cell::default())?,
        };
        let cell = &mut self.cells.items[place as usize];
        // On failure the place is lost, but then everything is forgotten anyway.
        cell.reads.try_reserve(reads.len()).map_err(|_| NO_MEMORY)?;
        cell.partial.try_reserve(partial.len()).map_err(|_| NO_MEMORY)?;
        (cell.refs, cell.write) = (0, write);
        cell.reads.extend_from_slice(reads);
        cell.partial.extend_from_slice(partial);
        for access in write.iter().chain(reads).chain(partial) {
            self.touched.items[access.touched as usize].refs += 1;
        }
        Ok(place)
    }

    /// Adds a reference to a cell.
    pub(super) fn share(&mut self, place: u32) {
        self.cells.items[place as usize].refs += 1;
    }

    /// Drops a reference to a cell; the last one frees it.
    pub(super) fn release(&mut self, place: u32) {
        let cell = &mut self.cells.items[place as usize];
        cell.refs -= 1;
        if cell.refs == 0 {
            self.end(place);
        }
    }

    /// Moves a reference from one cell to another. The caller holds further references to both.
    #[inline]
    pub(super) fn replace_held(&mut self, old: u32, new: u32) {
        self.cells.items[new as usize].refs += 1;
        self.cells.items[old as usize].refs -= 1;
    }

    /// Adds a reference, unless `place` is `NO_CELL`.
    pub(super) fn hold(&mut self, place: u32) {
        if place != NO_CELL {
            self.share(place);
        }
    }

    /// Drops the reference of `hold`.
    pub(super) fn drop_hold(&mut self, place: u32) {
        if place != NO_CELL {
            self.release(place);
        }
    }

    fn end(&mut self, place: u32) {
        self.clear(place);
        self.cells.free.push(place);
    }

    /// Removes all accesses of a cell. Its lists keep their capacity.
    #[inline]
    fn clear(&mut self, place: u32) {
        let Store { touched, cells } = self;
        let cell = &mut cells.items[place as usize];
        cell.all().for_each(|access| touched.settle(access.touched));
        cell.write = None;
        cell.reads.clear();
        cell.partial.clear();
    }

    /// Returns whether a cell has exactly one reference, so that it may be changed in place.
    #[inline]
    pub(super) fn is_sole(&self, place: u32) -> bool {
        self.cells.items[place as usize].refs == 1
    }

    /// Replaces the contents of an unshared cell by one write.
    #[inline]
    pub(super) fn write_over(&mut self, place: u32, access: Access) {
        self.clear(place);
        self.cells.items[place as usize].write = Some(access);
        self.touched.items[access.touched as usize].refs += 1;
    }

    /// Adds a read to an unshared cell and removes the reads for which `is_done` returns true.
    pub(super) fn read_over(
        &mut self,
        place: u32,
        access: Access,
        is_done: impl Fn(&Access) -> bool,
    ) -> Result<()> {
        let Store { touched, cells } = self;
        touched.items[access.touched as usize].refs += 1;
        let reads = &mut cells.items[place as usize].reads;
        reads.retain(|known| {
            let stays = !is_done(known);
            if !stays {
                touched.settle(known.touched);
            }
            stays
        });
        push(reads, access)
    }

    /// Applies `change` to each access of an unshared cell and removes those for which it returns
    /// `None`. Returns whether accesses remain.
    #[inline]
    pub(super) fn alter(
        &mut self,
        place: u32,
        mut change: impl FnMut(&Access) -> Option<Access>,
    ) -> bool {
        let Store { touched, cells } = self;
        let Cell { write, reads, partial, .. } = &mut cells.items[place as usize];
        let mut stays = |access: &mut Access| match change(access) {
            Some(new) => {
                *access = new;
                true
            }
            None => {
                touched.settle(access.touched);
                false
            }
        };
        if write.as_mut().is_some_and(|access| !stays(access)) {
            *write = None;
        }
        for list in [&mut *reads, &mut *partial] {
            if !list.is_empty() {
                list.retain_mut(&mut stays);
            }
        }
        write.is_some() || !reads.is_empty() || !partial.is_empty()
    }
}

/// The last replacement of a cell by another. Both are held, because the same replacement often
/// follows.
#[derive(Clone, Copy)]
pub(super) struct Memo {
    pub(super) old: u32,
    pub(super) new: u32,
}

pub(super) const NO_MEMO: Memo = Memo { old: NO_CELL, new: NO_CELL };

impl Memo {
    /// Stores a replacement. It holds both cells, so that their numbers are not reused.
    pub(super) fn remember(&mut self, store: &mut Store, old: u32, new: u32) {
        store.hold(old);
        store.hold(new);
        store.drop_hold(self.old);
        store.drop_hold(self.new);
        *self = Memo { old, new };
    }
}
