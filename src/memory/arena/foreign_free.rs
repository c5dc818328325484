//! Foreign free lists: other streams use memory of an arena, in place and in their own order.
//!
//! A block of another stream lies in the arena's list like every other block. When it is freed,
//! only that stream may use it again without a wait. So it lies in the bins of that stream's free
//! list, and merges with free neighbours of the same list. The free memory of an arena thus has
//! several owners: the arena's own stream, and other streams.
//!
//! Memory moves to another owner once that owner's stream is ordered after the stream of the first.
//! The order comes from an event, or the host saw that the first stream has no work left
//! (`cross_stream.rs`). One event covers all that a foreign free list has, so all of it moves. Of
//! the arena's own memory only the needed part moves.

use super::bins::{Bins, WHOLE_WALK};
use crate::base::error::{Error, Result};
use crate::gpu::external_registry::Marker;
use crate::gpu::stream::Stream;
use crate::memory::arena::block::{Block, NONE, State};
use crate::memory::arena::segment::remap::IN_VIEW;
use crate::memory::arena::{Arena, ArenaState};
use crate::memory::config::size::{Request, UNIT};

/// The most foreign free lists of an arena: each has a bit beside that of the arena.
const MOST_STREAMS: usize = 63;

/// A list of streams that use a block ends with the block's owner. For a foreign free list that is
/// this number minus its index. Without such streams the end takes the place of the list.
const LAST_WORD: u32 = IN_VIEW - 1;

/// The stream in whose order a block is free, or will be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum Owner {
    /// The arena's stream.
    Arena,
    /// The stream of a foreign free list, by its index.
    Stream(usize),
}

impl Owner {
    /// The owner that the end of a block's list of streams means.
    pub(in crate::memory) fn of_end(end: u32) -> Owner {
        let index = LAST_WORD.wrapping_sub(end) as usize;
        if index < MOST_STREAMS { Owner::Stream(index) } else { Owner::Arena }
    }

    /// The end of the list of streams of a block of this owner.
    pub(in crate::memory) fn end(self) -> u32 {
        match self {
            Owner::Arena => 0,
            Owner::Stream(index) => LAST_WORD - index as u32,
        }
    }

    /// Its number; 0 is the arena's.
    fn number(self) -> usize {
        match self {
            Owner::Arena => 0,
            Owner::Stream(index) => index + 1,
        }
    }

    /// Its bit in a set of owners.
    pub(in crate::memory) fn bit(self) -> u64 {
        1 << self.number()
    }
}

/// The free list of a stream that uses memory of another stream's arena.
struct StreamFreeList {
    stream: *const Stream,
    /// The blocks that are free in its order.
    bins: Box<Bins>,
    free: u32,
    free_units: u64,
    /// Blocks that the stream has, pending ones included.
    held: u32,
    /// How often memory became free in its order.
    frees: u64,
    seen: Seen,
}

/// What a stream is ordered after: for each owner, by its number, how often memory had become free
/// for it.
type Seen = [u64; MOST_STREAMS + 1];

/// The foreign free lists of an arena.
pub struct ForeignFree {
    list: Vec<StreamFreeList>,
    /// How often blocks of other streams became free.
    freed: u64,
    /// How often memory moved into the arena's own order.
    returns: u64,
    /// What the arena's own stream is ordered after.
    seen: Seen,
}

// SAFETY: streams are shared by all threads and outlive the arenas.
unsafe impl Send for ForeignFree {}

impl ForeignFree {
    pub(in crate::memory) fn new() -> ForeignFree {
        ForeignFree { list: Vec::new(), freed: 0, returns: 0, seen: [0; MOST_STREAMS + 1] }
    }

    /// Has there never been a foreign free list?
    #[inline]
    pub(in crate::memory) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Has the list of this index free memory?
    pub(in crate::memory) fn has_free(&self, index: usize) -> bool {
        self.list.get(index).is_some_and(|list| list.free > 0)
    }

    /// The stream of the list of this index.
    pub(in crate::memory) fn stream<'a>(&self, index: usize) -> Option<&'a Stream> {
        // SAFETY: NULL, or a stream, which stays as long as the list has memory.
        self.list.get(index).and_then(|list| unsafe { list.stream.as_ref() })
    }

    /// Marks the streams of the lists whose streams have memory, and clears the other lists'
    /// streams.
    pub(in crate::memory) fn mark_streams(&mut self, marker: Marker) {
        for list in &mut self.list {
            if list.held == 0 && list.free == 0 {
                list.stream = std::ptr::null();
            }
            marker.mark(list.stream);
        }
    }

    /// The index of the list of a stream.
    pub(in crate::memory) fn find(&self, stream: &Stream) -> Option<usize> {
        self.list.iter().position(|list| std::ptr::eq(list.stream, stream))
    }

    /// The index of the list of a stream. Adds the list if there is none.
    pub(in crate::memory) fn find_or_insert(&mut self, stream: &Stream) -> Result<usize> {
        if let Some(index) = self.find(stream) {
            return Ok(index);
        }
        let is_vacant = |list: &StreamFreeList| list.held == 0 && list.free == 0;
        if let Some(index) = self.list.iter().position(is_vacant) {
            let list = &mut self.list[index];
            (list.stream, list.seen) = (stream, [0; MOST_STREAMS + 1]);
            return Ok(index);
        }
        let no_memory = Error::OutOfHostMemory("an arena's foreign free lists");
        if self.list.len() >= MOST_STREAMS || self.list.try_reserve(1).is_err() {
            return Err(no_memory);
        }
        let bins = Bins::boxed("an arena's foreign free lists")?;
        let (free, free_units, held, frees) = (0, 0, 0, 0);
        let seen = [0; MOST_STREAMS + 1];
        self.list.push(StreamFreeList { stream, bins, free, free_units, held, frees, seen });
        Ok(self.list.len() - 1)
    }

    /// For each list: the blocks of its stream, those that are free, and its bins.
    #[cfg(test)]
    pub(in crate::memory) fn all(&self) -> impl Iterator<Item = (u32, u32, &Bins)> {
        self.list.iter().map(|list| (list.held, list.free, &*list.bins))
    }
}

/// Neighbouring free blocks, of one owner or of several.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Window {
    /// First unit.
    from: u32,
    /// One past the last unit.
    to: u32,
    /// The block below, or none.
    below: u32,
    /// The bits of their owners.
    pub owners: u64,
}

impl Window {
    /// Its cost: how many owners must be waited for, and whether the arena's own stream is one of
    /// them. The owners in `known` cost nothing.
    pub(in crate::memory) fn waits(&self, known: u64) -> (u32, bool) {
        let unknown = self.owners & !known;
        (unknown.count_ones(), unknown & Owner::Arena.bit() != 0)
    }

    /// Its length in units.
    pub(in crate::memory) fn units(&self) -> u32 {
        self.to - self.from
    }
}

impl ArenaState {
    /// The stream in whose order a block is free, or will be.
    pub(in crate::memory) fn owner_of(&self, id: u32) -> Owner {
        Owner::of_end(self.uses.end(self.blocks[id].uses))
    }

    /// The stream in whose order a block is used.
    pub(in crate::memory) fn stream_of<'a>(&self, arena: &'a Arena, id: u32) -> Option<&'a Stream> {
        match self.owner_of(id) {
            Owner::Arena => arena.stream(),
            Owner::Stream(index) => self.foreign.stream(index),
        }
    }

    /// How often memory became free for an owner, if the arena freed `freed` blocks in all.
    fn frees(&self, owner: Owner, freed: u64) -> u64 {
        match owner {
            Owner::Arena => {
                freed.wrapping_sub(self.foreign.freed).wrapping_add(self.foreign.returns)
            }
            Owner::Stream(index) => self.foreign.list[index].frees,
        }
    }

    fn seen(&mut self, owner: Owner) -> &mut Seen {
        match owner {
            Owner::Arena => &mut self.foreign.seen,
            Owner::Stream(index) => &mut self.foreign.list[index].seen,
        }
    }

    /// Is the stream of one owner ordered after everything that is free for another?
    pub(in crate::memory) fn is_ordered_after(
        &mut self,
        after: Owner,
        before: Owner,
        freed: u64,
    ) -> bool {
        after == before || self.seen(after)[before.number()] == self.frees(before, freed)
    }

    /// Notes that the stream of an owner is ordered after all that another owner has now. So it is
    /// also ordered after what that one was ordered after.
    pub(in crate::memory) fn note_ordered(&mut self, before: Owner, after: Owner, freed: u64) {
        let known = *self.seen(before);
        let now = self.frees(before, freed);
        let seen = self.seen(after);
        for (seen, known) in seen.iter_mut().zip(known) {
            *seen = known.max(*seen);
        }
        seen[before.number()] = now;
    }

    /// The next owner with free memory from a number on, and the number after it; none: there are
    /// no more.
    pub(in crate::memory) fn next_owner(&self, from: usize) -> Option<(Owner, usize)> {
        if from == 0 {
            return Some((Owner::Arena, 1));
        }
        let mut foreign = from - 1..self.foreign.list.len();
        let index = foreign.find(|index| self.foreign.has_free(*index))?;
        Some((Owner::Stream(index), index + 2))
    }

    /// Units in the foreign free lists of these owners.
    pub(in crate::memory) fn foreign_units(&self, owners: u64) -> u64 {
        let foreign = self.foreign.list.iter().enumerate();
        let chosen = foreign.filter(|(index, _)| owners & Owner::Stream(*index).bit() != 0);
        chosen.map(|(_, list)| list.free_units).sum()
    }

    /// Takes a block out of a foreign free list; none if nothing fits.
    pub(in crate::memory) fn take_foreign(
        &mut self,
        index: usize,
        request: Request,
    ) -> Result<Option<u32>> {
        self.blocks.prepare(1)?;
        let list = &mut self.foreign.list[index];
        let id = list.bins.find(&self.blocks, request.units, WHOLE_WALK);
        if id == NONE {
            return Ok(None);
        }
        self.prepare_start()?;
        // From here on nothing fails.
        let Block { start, units: whole, next, .. } = self.blocks[id];
        self.remove_foreign(index, id);
        self.free_bytes -= i64::from(request.units) * UNIT as i64;
        if whole > request.units {
            let rest =
                self.new_block(start + request.units, whole - request.units, State::ForeignFree);
            self.blocks[id].units = request.units;
            self.blocks.link(rest, id, next);
            if self.last == id {
                self.last = rest;
            }
            self.insert_foreign(index, rest);
        } else {
            self.free_blocks -= 1;
        }
        self.note_start(id);
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = request.bytes;
        block.set_stack(0);
        block.oversize = request.oversize;
        block.waits = 0;
        self.active_blocks += 1;
        self.foreign.list[index].held += 1;
        Ok(Some(id))
    }

    /// Takes a block out of the arena's own free memory, for a stream that is ordered after it;
    /// none if nothing fits.
    pub(in crate::memory) fn take_own_for(
        &mut self,
        index: usize,
        request: Request,
    ) -> Result<Option<u32>> {
        let Some((id, _)) = self.allocate(request, WHOLE_WALK)? else { return Ok(None) };
        self.blocks[id].uses = Owner::Stream(index).end();
        self.foreign.list[index].held += 1;
        Ok(Some(id))
    }

    /// Frees a block of another stream, which no stream uses any more, into that stream's list.
    pub(in crate::memory) fn free_foreign(&mut self, index: usize, id: u32) {
        self.foreign.freed += 1;
        self.forget_start(id);
        let list = &mut self.foreign.list[index];
        list.held -= 1;
        list.frees += 1;
        self.release_foreign(index, id);
    }

    /// Puts a free block into the bins of a foreign free list.
    fn insert_foreign(&mut self, index: usize, id: u32) {
        let block = &mut self.blocks[id];
        block.state = State::ForeignFree;
        block.uses = Owner::Stream(index).end();
        let units = u64::from(block.units);
        let list = &mut self.foreign.list[index];
        list.free += 1;
        list.free_units += units;
        list.bins.insert(&mut self.blocks, id);
    }

    /// Takes a free block out of the bins of a foreign free list.
    fn remove_foreign(&mut self, index: usize, id: u32) {
        let list = &mut self.foreign.list[index];
        list.free -= 1;
        list.free_units -= u64::from(self.blocks[id].units);
        list.bins.remove(&mut self.blocks, id);
    }

    /// Makes a block free in a foreign free list, and merges it with neighbours of that list.
    /// Returns the merged block.
    pub(in crate::memory) fn release_foreign(&mut self, index: usize, id: u32) -> u32 {
        let Block { previous, next, .. } = self.blocks[id];
        let end = Owner::Stream(index).end();
        let is_its = |state: &ArenaState, id: u32| {
            id != NONE
                && state.blocks[id].state == State::ForeignFree
                && state.blocks[id].uses == end
        };
        let mut id = id;
        self.free_blocks += 1;
        self.free_bytes += self.blocks[id].bytes();
        if is_its(self, next) {
            self.remove_foreign(index, next);
            self.absorb(id, next);
        }
        if is_its(self, previous) {
            self.remove_foreign(index, previous);
            self.absorb(previous, id);
            id = previous;
        }
        self.insert_foreign(index, id);
        id
    }

    /// Moves all blocks of a foreign free list to another owner, whose stream is ordered after the
    /// list's stream.
    pub(in crate::memory) fn move_all(&mut self, from: usize, to: Owner) {
        loop {
            let id = self.foreign.list[from].bins.find(&self.blocks, 1, 1);
            if id == NONE {
                break;
            }
            self.remove_foreign(from, id);
            self.free_blocks -= 1;
            self.free_bytes -= self.blocks[id].bytes();
            match to {
                Owner::Stream(index) => drop(self.release_foreign(index, id)),
                Owner::Arena => {
                    self.blocks[id].uses = 0;
                    self.release(id);
                }
            }
        }
        self.invalidate_waits(to);
    }

    /// Invalidates earlier waits on this owner's free memory.
    fn invalidate_waits(&mut self, to: Owner) {
        match to {
            Owner::Arena => self.foreign.returns += 1,
            Owner::Stream(index) => self.foreign.list[index].frees += 1,
        }
    }

    /// Moves the free memory of a window to one owner, whose stream is ordered after all others in
    /// it. Also moves everything else that the foreign free lists among these have.
    pub(in crate::memory) fn gather(&mut self, window: Window, to: Owner) {
        if let Owner::Stream(index) = to {
            let mut id = if window.below == NONE { self.first } else { window.below };
            while id != NONE && self.blocks[id].start < window.to {
                let block = &self.blocks[id];
                if block.state == State::Free && block.start >= window.from {
                    self.take_out(id);
                    id = self.release_foreign(index, id);
                }
                id = self.blocks[id].next;
            }
            self.invalidate_waits(to);
        }
        for from in 0..self.foreign.list.len() {
            let owner = Owner::Stream(from);
            if owner != to && window.owners & owner.bit() != 0 {
                self.move_all(from, to);
            }
        }
    }

    /// Takes a free block out of the arena's own free memory.
    fn take_out(&mut self, id: u32) {
        self.free_blocks -= 1;
        self.free_bytes -= self.blocks[id].bytes();
        if id == self.wilderness {
            self.wilderness = NONE;
        } else {
            self.bins.remove(&mut self.blocks, id);
        }
    }

    /// The owner of a free block.
    fn owner_of_free(&self, id: u32) -> Option<Owner> {
        match self.blocks[id].state {
            State::Free => Some(Owner::Arena),
            State::ForeignFree => Some(Owner::of_end(self.blocks[id].uses)),
            _ => None,
        }
    }

    /// The cheapest window of `units` or more, of `allowed` owners; those in `known` cost nothing.
    /// The quick lists are empty.
    pub(in crate::memory) fn find_window(
        &self,
        units: u32,
        allowed: u64,
        known: u64,
    ) -> Option<Window> {
        let mut best: Option<Window> = None;
        let (mut low, mut id, mut sum) = (self.first, self.first, 0u64);
        while id != NONE {
            let block = &self.blocks[id];
            let owner = self.owner_of_free(id);
            if owner.is_none_or(|owner| owner.bit() & allowed == 0) {
                (low, sum) = (block.next, 0);
                id = block.next;
                continue;
            }
            sum += u64::from(block.units);
            while sum - u64::from(self.blocks[low].units) >= u64::from(units) {
                sum -= u64::from(self.blocks[low].units);
                low = self.blocks[low].next;
            }
            if sum >= u64::from(units) {
                let found = self.window_of(low, id);
                let cost = |window: Window| (window.waits(known), window.units());
                if best.is_none_or(|best| cost(found) < cost(best)) {
                    best = Some(found);
                }
            }
            id = self.blocks[id].next;
        }
        best
    }

    /// The window from one free block to another.
    fn window_of(&self, low: u32, high: u32) -> Window {
        let Block { start: from, previous: below, .. } = self.blocks[low];
        let (mut owners, mut id) = (0, low);
        loop {
            owners |= self.owner_of_free(id).map_or(0, Owner::bit);
            if id == high {
                return Window { from, to: self.blocks[high].end(), below, owners };
            }
            id = self.blocks[id].next;
        }
    }

    /// The free memory at the end, of any owners: the window and its units.
    pub(in crate::memory) fn tail(&self) -> Option<(Window, u32)> {
        let mut low = NONE;
        let mut id = self.last;
        while id != NONE && self.owner_of_free(id).is_some() {
            (low, id) = (id, self.blocks[id].previous);
        }
        if low == NONE {
            return None;
        }
        let window = self.window_of(low, self.last);
        Some((window, window.units()))
    }
}
