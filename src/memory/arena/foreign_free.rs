//! ForeignFree: streams that use memory of another stream's arena, in place and in their own order.
//!
//! A block that a list has lies in the arena's list like every other. When it is freed, what may use
//! it next without being told is the list's stream alone: the block is *a list's*, lies in the list's
//! bins, and merges with what is the same list's. So the free memory of an arena has several orders,
//! its own and its foreign'. Memory goes from one order to another once the other stream comes after it,
//! by an event or because the host saw that the first has nothing left to do (`cross_stream.rs`): all that
//! a list has free at a time, since one event is for all of it; of the arena's own just what is wanted.

use super::bins::{Bins, WHOLE_WALK};
use super::block::{Block, NONE, State, UNIT};
use crate::base::error::{Error, Result};
use crate::gpu::external_registry::Marker;
use crate::gpu::stream::Stream;
use crate::memory::arena::{Arena, ArenaState, Request};
use crate::memory::backing::segment::remap::IN_VIEW;

/// ForeignFree of an arena at a time: each is a bit beside the arena's own.
const MOST_STREAMS: usize = 63;

/// What a block of a guest has in place of the first of its other streams, or their list as its end:
/// the guest's number from here down.
const LAST_WORD: u32 = IN_VIEW - 1;

/// Whose order a block is free in, or will be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum Owner {
    /// The arena's stream.
    Arena,
    /// A list, by its number.
    Stream(usize),
}

impl Owner {
    /// The order that a block's list of streams ends with.
    pub(in crate::memory) fn of_end(end: u32) -> Owner {
        let index = LAST_WORD.wrapping_sub(end) as usize;
        if index < MOST_STREAMS { Owner::Stream(index) } else { Owner::Arena }
    }

    /// What a list of streams ends with in a block of this order.
    pub(in crate::memory) fn end(self) -> u32 {
        match self {
            Owner::Arena => 0,
            Owner::Stream(index) => LAST_WORD - index as u32,
        }
    }

    /// Its number: 0 is the arena's own.
    fn number(self) -> usize {
        match self {
            Owner::Arena => 0,
            Owner::Stream(index) => index + 1,
        }
    }

    /// A bit for it.
    pub(in crate::memory) fn bit(self) -> u64 {
        1 << self.number()
    }
}

/// A stream that uses memory of another's arena.
struct StreamFreeList {
    stream: *const Stream,
    /// What is free in its order.
    bins: Box<Bins>,
    free: u32,
    free_units: u64,
    /// Blocks that it has, pending ones too.
    held: u32,
    /// How often memory became free in its order.
    frees: u64,
    seen: Seen,
}

/// What a stream comes after: of each order, by its number, how often memory had become free in it.
type Seen = [u64; MOST_STREAMS + 1];

/// The foreign of an arena.
pub struct ForeignFree {
    list: Vec<StreamFreeList>,
    /// How often blocks of foreign became free.
    freed: u64,
    /// How often memory came into the arena's own order.
    returns: u64,
    /// What the arena's own stream comes after.
    seen: Seen,
}

// SAFETY: streams are shared by all threads and outlive the arenas.
unsafe impl Send for ForeignFree {}

impl ForeignFree {
    pub(in crate::memory) fn new() -> ForeignFree {
        ForeignFree { list: Vec::new(), freed: 0, returns: 0, seen: [0; MOST_STREAMS + 1] }
    }

    /// Was there ever one?
    #[inline]
    pub(in crate::memory) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Has a list free memory?
    pub(in crate::memory) fn has_free(&self, index: usize) -> bool {
        self.list.get(index).is_some_and(|list| list.free > 0)
    }

    /// The stream of a list.
    pub(in crate::memory) fn stream<'a>(&self, index: usize) -> Option<&'a Stream> {
        // SAFETY: NULL, or a stream, which stays as long as the list has memory.
        self.list.get(index).and_then(|list| unsafe { list.stream.as_ref() })
    }

    /// Marks the streams of those that have memory, and forgets the others'.
    pub(in crate::memory) fn mark_streams(&mut self, marker: Marker) {
        for list in &mut self.list {
            if list.held == 0 && list.free == 0 {
                list.stream = std::ptr::null();
            }
            marker.mark(list.stream);
        }
    }

    /// The list that a stream is.
    pub(in crate::memory) fn find(&self, stream: &Stream) -> Option<usize> {
        self.list.iter().position(|list| std::ptr::eq(list.stream, stream))
    }

    /// The same, made now if there is none.
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

    /// Blocks that a list has, those that are free, and its bins.
    #[cfg(test)]
    pub(in crate::memory) fn all(&self) -> impl Iterator<Item = (u32, u32, &Bins)> {
        self.list.iter().map(|list| (list.held, list.free, &*list.bins))
    }
}

/// Neighbouring free blocks, of one order or of several.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Window {
    /// First unit.
    from: u32,
    /// One past the last.
    to: u32,
    /// The neighbour below, or none.
    below: u32,
    /// The bits of their orders.
    pub orders: u64,
}

impl Window {
    /// How much it costs: how many orders must be waited for, and whether the arena's own is one.
    pub(in crate::memory) fn waits(&self, known: u64) -> (u32, bool) {
        let unknown = self.orders & !known;
        (unknown.count_ones(), unknown & Owner::Arena.bit() != 0)
    }

    /// Its length.
    pub(in crate::memory) fn units(&self) -> u32 {
        self.to - self.from
    }
}

impl ArenaState {
    /// The order in which a block is free, or will be.
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

    /// How often memory became free in an order, where `freed` blocks of the arena did at all.
    fn frees(&self, order: Owner, freed: u64) -> u64 {
        match order {
            Owner::Arena => {
                freed.wrapping_sub(self.foreign.freed).wrapping_add(self.foreign.returns)
            }
            Owner::Stream(index) => self.foreign.list[index].frees,
        }
    }

    fn seen(&mut self, order: Owner) -> &mut Seen {
        match order {
            Owner::Arena => &mut self.foreign.seen,
            Owner::Stream(index) => &mut self.foreign.list[index].seen,
        }
    }

    /// Does the stream of one order come after everything that is free in another?
    pub(in crate::memory) fn is_ordered_after(
        &mut self,
        after: Owner,
        before: Owner,
        freed: u64,
    ) -> bool {
        after == before || self.seen(after)[before.number()] == self.frees(before, freed)
    }

    /// The stream of an order comes after all that another holds now, and so after what that one came
    /// after.
    pub(in crate::memory) fn note_ordered(&mut self, before: Owner, after: Owner, freed: u64) {
        let known = *self.seen(before);
        let now = self.frees(before, freed);
        let seen = self.seen(after);
        for (seen, known) in seen.iter_mut().zip(known) {
            *seen = known.max(*seen);
        }
        seen[before.number()] = now;
    }

    /// The orders in which memory is free, by numbers from 0; none: there are no more.
    pub(in crate::memory) fn next_owner(&self, from: usize) -> Option<(Owner, usize)> {
        if from == 0 {
            return Some((Owner::Arena, 1));
        }
        let mut foreign = from - 1..self.foreign.list.len();
        let index = foreign.find(|index| self.foreign.has_free(*index))?;
        Some((Owner::Stream(index), index + 2))
    }

    /// Units that are free in the orders of some foreign.
    pub(in crate::memory) fn foreign_units(&self, orders: u64) -> u64 {
        let foreign = self.foreign.list.iter().enumerate();
        let chosen = foreign.filter(|(index, _)| orders & Owner::Stream(*index).bit() != 0);
        chosen.map(|(_, list)| list.free_units).sum()
    }

    /// Takes a block out of what is free in a list's order; none if nothing fits.
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

    /// Takes a block out of the arena's own free memory for a list that comes after it; none if
    /// nothing fits.
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

    /// A block of a list that nobody uses any more is free in the list's order.
    pub(in crate::memory) fn free_foreign(&mut self, index: usize, id: u32) {
        self.foreign.freed += 1;
        self.forget_start(id);
        let list = &mut self.foreign.list[index];
        list.held -= 1;
        list.frees += 1;
        self.release_foreign(index, id);
    }

    /// Puts a block into a list's bins.
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

    /// Takes it out of them.
    fn remove_foreign(&mut self, index: usize, id: u32) {
        let list = &mut self.foreign.list[index];
        list.free -= 1;
        list.free_units -= u64::from(self.blocks[id].units);
        list.bins.remove(&mut self.blocks, id);
    }

    /// Makes a block free in a list's order, and merges it with neighbours that are; gives the block.
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

    /// Moves all that is free in a list's order into another, whose stream comes after the list's.
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
        self.memory_came(to);
    }

    /// Who came after an order does not come after what has come into it since.
    fn memory_came(&mut self, to: Owner) {
        match to {
            Owner::Arena => self.foreign.returns += 1,
            Owner::Stream(index) => self.foreign.list[index].frees += 1,
        }
    }

    /// Moves what is free in a window into one order, whose stream comes after all others of it; and
    /// all that the foreign among those have free elsewhere.
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
            self.memory_came(to);
        }
        for from in 0..self.foreign.list.len() {
            let order = Owner::Stream(from);
            if order != to && window.orders & order.bit() != 0 {
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

    /// The order of a free block.
    fn owner_of_free(&self, id: u32) -> Option<Owner> {
        match self.blocks[id].state {
            State::Free => Some(Owner::Arena),
            State::ForeignFree => Some(Owner::of_end(self.blocks[id].uses)),
            _ => None,
        }
    }

    /// The cheapest window of `units` or more, of `allowed` orders, where `known` ones cost nothing.
    /// Nothing is in quick lists.
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
            let order = self.owner_of_free(id);
            if order.is_none_or(|order| order.bit() & allowed == 0) {
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
        let (mut orders, mut id) = (0, low);
        loop {
            orders |= self.owner_of_free(id).map_or(0, Owner::bit);
            if id == high {
                return Window { from, to: self.blocks[high].end(), below, orders };
            }
            id = self.blocks[id].next;
        }
    }

    /// What is free at the end, in whatever orders: the window, and its units.
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
