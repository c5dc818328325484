//! What is remembered of accesses, each thing once: operations' touches, and *cells*, the accesses
//! that count for some bytes. Many ranges have the same cell.

use super::Mode;
use super::clock::{NO_MEMORY, NO_SLOT, push};
use super::domain::StreamInfo;
use super::shape::Shape;
use super::text::Label;
use crate::base::error::Result;

/// What a report says of an access.
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
    /// Accesses that name it, and the operation while it is looked at.
    refs: u32,
    pub(super) details: AccessDetails,
    /// Not all bytes from `start` to `end`, but these.
    pub(super) shape: Option<Box<Shape>>,
}

/// The access was made in an earlier life of the memory.
pub(super) const EARLIER: u32 = 1;
/// The memory was freed since, and what the allocator waits for covers it.
pub(super) const COVERED: u32 = 2;
/// The same, and it is not covered.
pub(super) const UNCOVERED: u32 = 4;
/// The same, and only the next work of the legacy stream comes after it.
pub(super) const IMPLIED: u32 = 8;
/// The access is a launch's of a graph.
pub(super) const LAUNCHED: u32 = 16;

/// An access, as what comes later is compared with it.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Access {
    pub(super) slot: u32,
    pub(super) touched: u32,
    pub(super) time: u64,
    /// Who comes after this comes after it as well: its bytes were given out there. NOBODY: none.
    pub(super) realloc_slot: u32,
    pub(super) flags: u32,
    pub(super) realloc_time: u64,
}

impl Access {
    pub(super) fn new(slot: u32, time: u64, touched: u32, flags: u32) -> Access {
        Access { slot, touched, time, realloc_slot: NO_SLOT, flags, realloc_time: 0 }
    }

    /// Is it before what `knows` a time of a stream?
    #[inline]
    pub(super) fn is_before(&self, knows: impl Fn(u32, u64) -> bool) -> bool {
        knows(self.slot, self.time)
            || self.realloc_slot != NO_SLOT && knows(self.realloc_slot, self.realloc_time)
    }
}

/// The accesses that count for some bytes.
#[derive(Default)]
pub(super) struct Cell {
    /// Ranges that have it.
    refs: u32,
    /// The last one to all of these bytes.
    pub(super) write: Option<Access>,
    /// All since, but for those before another one.
    pub(super) reads: Vec<Access>,
    /// Those to some of these bytes.
    pub(super) partial: Vec<Access>,
}

impl Cell {
    pub(super) fn all(&self) -> impl Iterator<Item = &Access> {
        self.write.iter().chain(&self.reads).chain(&self.partial)
    }
}

/// No cell.
pub(super) const NO_CELL: u32 = u32::MAX;

/// Things by number, whose places serve again.
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

    /// A new place. Room to give it back is there then.
    fn add(&mut self, item: T) -> Result<u32> {
        let place = u32::try_from(self.items.len()).map_err(|_| NO_MEMORY)?;
        if place == NO_CELL {
            return Err(NO_MEMORY);
        }
        // Free places fit: none of those that are out has to be put back without room.
        let more = (self.items.len() + 1).saturating_sub(self.free.len());
        self.free.try_reserve(more).map_err(|_| NO_MEMORY)?;
        push(&mut self.items, item)?;
        Ok(place)
    }
}

impl Slab<Touched> {
    /// An owner less.
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

/// All of them.
pub(super) struct Store {
    touched: Slab<Touched>,
    cells: Slab<Cell>,
}

impl Store {
    pub(super) const fn new() -> Store {
        Store { touched: Slab::new(), cells: Slab::new() }
    }

    /// The frames of all touches; 0 of places that are free.
    pub(super) fn frames(&self) -> impl Iterator<Item = u32> {
        self.touched.items.iter().map(|touched| touched.details.frames)
    }

    /// How many cells there are.
    pub(super) fn cells(&self) -> usize {
        self.cells.live()
    }

    /// Do all counts agree with what is there? The ranges' numbers are those of cells.
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

    /// A touch, the caller's until it settles it.
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

    /// Which bytes a touch has.
    pub(super) fn place(&mut self, place: u32, start: u64, end: u64, shape: Option<Box<Shape>>) {
        let touched = &mut self.touched.items[place as usize];
        (touched.details.start, touched.details.end, touched.shape) = (start, end, shape);
    }

    /// Does an access only read?
    pub(super) fn is_read(&self, access: &Access) -> bool {
        self.touched(access.touched).details.mode == Mode::Read
    }

    /// The caller needs it no more.
    pub(super) fn settle(&mut self, place: u32) {
        self.touched.settle(place);
    }

    pub(super) fn cell(&self, place: u32) -> &Cell {
        &self.cells.items[place as usize]
    }

    /// A cell of these accesses, of no range yet.
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
        // On a failure the place is lost, and everything is forgotten.
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

    /// One range more has a cell.
    pub(super) fn share(&mut self, place: u32) {
        self.cells.items[place as usize].refs += 1;
    }

    /// One range less: the last one's takes the cell along.
    pub(super) fn release(&mut self, place: u32) {
        let cell = &mut self.cells.items[place as usize];
        cell.refs -= 1;
        if cell.refs == 0 {
            self.end(place);
        }
    }

    /// A range of one cell has another one; somebody holds both besides.
    #[inline]
    pub(super) fn replace_held(&mut self, old: u32, new: u32) {
        self.cells.items[new as usize].refs += 1;
        self.cells.items[old as usize].refs -= 1;
    }

    /// Keeps a cell, if it is one, for as long as it may be wanted.
    pub(super) fn hold(&mut self, place: u32) {
        if place != NO_CELL {
            self.share(place);
        }
    }

    /// No longer.
    pub(super) fn drop_hold(&mut self, place: u32) {
        if place != NO_CELL {
            self.release(place);
        }
    }

    fn end(&mut self, place: u32) {
        self.clear(place);
        self.cells.free.push(place);
    }

    /// Nothing is in a cell any more. Its lists keep their room.
    #[inline]
    fn clear(&mut self, place: u32) {
        let Store { touched, cells } = self;
        let cell = &mut cells.items[place as usize];
        cell.all().for_each(|access| touched.settle(access.touched));
        cell.write = None;
        cell.reads.clear();
        cell.partial.clear();
    }

    /// Has one range a cell, and nobody else? Then it may change.
    #[inline]
    pub(super) fn is_sole(&self, place: u32) -> bool {
        self.cells.items[place as usize].refs == 1
    }

    /// Changes a cell that only one range has: to one write.
    #[inline]
    pub(super) fn write_over(&mut self, place: u32, access: Access) {
        self.clear(place);
        self.cells.items[place as usize].write = Some(access);
        self.touched.items[access.touched as usize].refs += 1;
    }

    /// The same: one read more, which stands for some of those before it.
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

    /// The same: each access as `change` makes it, `None` forgets it. Is there still one?
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

/// A cell that stands for another one now, held while it may be wanted again.
#[derive(Clone, Copy)]
pub(super) struct Memo {
    pub(super) old: u32,
    pub(super) new: u32,
}

pub(super) const NO_MEMO: Memo = Memo { old: NO_CELL, new: NO_CELL };

impl Memo {
    /// Both are held, so that no other cell gets the number of one.
    pub(super) fn remember(&mut self, store: &mut Store, old: u32, new: u32) {
        store.hold(old);
        store.hold(new);
        store.drop_hold(self.old);
        store.drop_hold(self.new);
        *self = Memo { old, new };
    }
}
