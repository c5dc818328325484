//! Guests: streams that use memory of another stream's arena, in place and in their own order.
//!
//! A block that a guest has lies in the arena's list like every other. When it is freed, what may use
//! it next without being told is the guest's stream alone: the block is *a guest's*, lies in the guest's
//! bins, and merges with what is the same guest's. So the free memory of an arena has several orders,
//! its own and its guests'. Memory goes from one order to another once the other stream comes after it,
//! by an event or because the host saw that the first has nothing left to do (`cross_stream.rs`): all that
//! a guest has free at a time, since one event is for all of it; of the arena's own just what is wanted.

use super::bins::{Bins, WHOLE_WALK};
use super::block::{Block, NONE, State, UNIT};
use crate::base::error::{Error, Result};
use crate::gpu::external_registry::Marker;
use crate::gpu::stream::Stream;
use crate::memory::arena::{Arena, ArenaState, Request};
use crate::memory::backing::segment::remap::BORROWED;

/// Guests of an arena at a time: each is a bit beside the arena's own.
const MOST: usize = 63;

/// What a block of a guest has in place of the first of its other streams, or their list as its end:
/// the guest's number from here down.
const LAST_WORD: u32 = BORROWED - 1;

/// Whose order a block is free in, or will be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum Order {
    /// The arena's stream.
    Own,
    /// A guest, by its number.
    Guest(usize),
}

impl Order {
    /// The order that a block's list of streams ends with.
    pub(in crate::memory) fn of_end(end: u32) -> Order {
        let index = LAST_WORD.wrapping_sub(end) as usize;
        if index < MOST { Order::Guest(index) } else { Order::Own }
    }

    /// What a list of streams ends with in a block of this order.
    pub(in crate::memory) fn end(self) -> u32 {
        match self {
            Order::Own => 0,
            Order::Guest(index) => LAST_WORD - index as u32,
        }
    }

    /// Its number: 0 is the arena's own.
    fn number(self) -> usize {
        match self {
            Order::Own => 0,
            Order::Guest(index) => index + 1,
        }
    }

    /// A bit for it.
    pub(in crate::memory) fn bit(self) -> u64 {
        1 << self.number()
    }
}

/// A stream that uses memory of another's arena.
struct Guest {
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
type Seen = [u64; MOST + 1];

/// The guests of an arena.
pub struct Guests {
    list: Vec<Guest>,
    /// How often blocks of guests became free.
    freed: u64,
    /// How often memory came into the arena's own order.
    returns: u64,
    /// What the arena's own stream comes after.
    seen: Seen,
}

// SAFETY: streams are shared by all threads and outlive the arenas.
unsafe impl Send for Guests {}

impl Guests {
    pub(in crate::memory) fn new() -> Guests {
        Guests { list: Vec::new(), freed: 0, returns: 0, seen: [0; MOST + 1] }
    }

    /// Was there ever one?
    #[inline]
    pub(in crate::memory) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Has a guest free memory?
    pub(in crate::memory) fn has_free(&self, index: usize) -> bool {
        self.list.get(index).is_some_and(|guest| guest.free > 0)
    }

    /// The stream of a guest.
    pub(in crate::memory) fn stream<'a>(&self, index: usize) -> Option<&'a Stream> {
        // SAFETY: NULL, or a stream, which stays as long as the guest has memory.
        self.list.get(index).and_then(|guest| unsafe { guest.stream.as_ref() })
    }

    /// Marks the streams of those that have memory, and forgets the others'.
    pub(in crate::memory) fn mark_streams(&mut self, marker: Marker) {
        for guest in &mut self.list {
            if guest.held == 0 && guest.free == 0 {
                guest.stream = std::ptr::null();
            }
            marker.mark(guest.stream);
        }
    }

    /// The guest that a stream is.
    pub(in crate::memory) fn find(&self, stream: &Stream) -> Option<usize> {
        self.list.iter().position(|guest| std::ptr::eq(guest.stream, stream))
    }

    /// The same, made now if there is none.
    pub(in crate::memory) fn welcome(&mut self, stream: &Stream) -> Result<usize> {
        if let Some(index) = self.find(stream) {
            return Ok(index);
        }
        let is_vacant = |guest: &Guest| guest.held == 0 && guest.free == 0;
        if let Some(index) = self.list.iter().position(is_vacant) {
            let guest = &mut self.list[index];
            (guest.stream, guest.seen) = (stream, [0; MOST + 1]);
            return Ok(index);
        }
        let no_memory = Error::OutOfHostMemory("an arena's guests");
        if self.list.len() >= MOST || self.list.try_reserve(1).is_err() {
            return Err(no_memory);
        }
        let bins = Bins::boxed("an arena's guests")?;
        let (free, free_units, held, frees) = (0, 0, 0, 0);
        let seen = [0; MOST + 1];
        self.list.push(Guest { stream, bins, free, free_units, held, frees, seen });
        Ok(self.list.len() - 1)
    }

    /// Blocks that a guest has, those that are free, and its bins.
    #[cfg(test)]
    pub(in crate::memory) fn all(&self) -> impl Iterator<Item = (u32, u32, &Bins)> {
        self.list.iter().map(|guest| (guest.held, guest.free, &*guest.bins))
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
        (unknown.count_ones(), unknown & Order::Own.bit() != 0)
    }

    /// Its length.
    pub(in crate::memory) fn units(&self) -> u32 {
        self.to - self.from
    }
}

impl ArenaState {
    /// The order in which a block is free, or will be.
    pub(in crate::memory) fn order_of(&self, id: u32) -> Order {
        Order::of_end(self.uses.end(self.blocks[id].uses))
    }

    /// The stream in whose order a block is used.
    pub(in crate::memory) fn stream_of<'a>(&self, arena: &'a Arena, id: u32) -> Option<&'a Stream> {
        match self.order_of(id) {
            Order::Own => arena.stream(),
            Order::Guest(index) => self.guests.stream(index),
        }
    }

    /// How often memory became free in an order, where `freed` blocks of the arena did at all.
    fn frees(&self, order: Order, freed: u64) -> u64 {
        match order {
            Order::Own => freed.wrapping_sub(self.guests.freed).wrapping_add(self.guests.returns),
            Order::Guest(index) => self.guests.list[index].frees,
        }
    }

    fn seen(&mut self, order: Order) -> &mut Seen {
        match order {
            Order::Own => &mut self.guests.seen,
            Order::Guest(index) => &mut self.guests.list[index].seen,
        }
    }

    /// Does the stream of one order come after everything that is free in another?
    pub(in crate::memory) fn comes_after(
        &mut self,
        after: Order,
        before: Order,
        freed: u64,
    ) -> bool {
        after == before || self.seen(after)[before.number()] == self.frees(before, freed)
    }

    /// The stream of an order comes after all that another holds now, and so after what that one came
    /// after.
    pub(in crate::memory) fn note_order(&mut self, before: Order, after: Order, freed: u64) {
        let known = *self.seen(before);
        let now = self.frees(before, freed);
        let seen = self.seen(after);
        for (seen, known) in seen.iter_mut().zip(known) {
            *seen = known.max(*seen);
        }
        seen[before.number()] = now;
    }

    /// The orders in which memory is free, by numbers from 0; none: there are no more.
    pub(in crate::memory) fn next_order(&self, from: usize) -> Option<(Order, usize)> {
        if from == 0 {
            return Some((Order::Own, 1));
        }
        let mut guests = from - 1..self.guests.list.len();
        let index = guests.find(|index| self.guests.has_free(*index))?;
        Some((Order::Guest(index), index + 2))
    }

    /// Units that are free in the orders of some guests.
    pub(in crate::memory) fn free_of_guests(&self, orders: u64) -> u64 {
        let guests = self.guests.list.iter().enumerate();
        let chosen = guests.filter(|(index, _)| orders & Order::Guest(*index).bit() != 0);
        chosen.map(|(_, guest)| guest.free_units).sum()
    }

    /// Takes a block out of what is free in a guest's order; none if nothing fits.
    pub(in crate::memory) fn take_of_guest(
        &mut self,
        index: usize,
        request: Request,
    ) -> Result<Option<u32>> {
        self.blocks.prepare(1)?;
        let guest = &mut self.guests.list[index];
        let id = guest.bins.find(&self.blocks, request.units, WHOLE_WALK);
        if id == NONE {
            return Ok(None);
        }
        self.prepare_start()?;
        // From here on nothing fails.
        let Block { start, units: whole, next, .. } = self.blocks[id];
        self.unshelve_of_guest(index, id);
        self.free_bytes -= i64::from(request.units) * UNIT as i64;
        if whole > request.units {
            let rest = self.new_block(start + request.units, whole - request.units, State::Guest);
            self.blocks[id].units = request.units;
            self.blocks.link(rest, id, next);
            if self.last == id {
                self.last = rest;
            }
            self.shelve_for_guest(index, rest);
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
        self.guests.list[index].held += 1;
        Ok(Some(id))
    }

    /// Takes a block out of the arena's own free memory for a guest that comes after it; none if
    /// nothing fits.
    pub(in crate::memory) fn take_own_for(
        &mut self,
        index: usize,
        request: Request,
    ) -> Result<Option<u32>> {
        let Some((id, _)) = self.allocate(request, WHOLE_WALK)? else { return Ok(None) };
        self.blocks[id].uses = Order::Guest(index).end();
        self.guests.list[index].held += 1;
        Ok(Some(id))
    }

    /// A block of a guest that nobody uses any more is free in the guest's order.
    pub(in crate::memory) fn free_of_guest(&mut self, index: usize, id: u32) {
        self.guests.freed += 1;
        self.forget_start(id);
        let guest = &mut self.guests.list[index];
        guest.held -= 1;
        guest.frees += 1;
        self.release_to_guest(index, id);
    }

    /// Puts a block into a guest's bins.
    fn shelve_for_guest(&mut self, index: usize, id: u32) {
        let block = &mut self.blocks[id];
        block.state = State::Guest;
        block.uses = Order::Guest(index).end();
        let units = u64::from(block.units);
        let guest = &mut self.guests.list[index];
        guest.free += 1;
        guest.free_units += units;
        guest.bins.insert(&mut self.blocks, id);
    }

    /// Takes it out of them.
    fn unshelve_of_guest(&mut self, index: usize, id: u32) {
        let guest = &mut self.guests.list[index];
        guest.free -= 1;
        guest.free_units -= u64::from(self.blocks[id].units);
        guest.bins.remove(&mut self.blocks, id);
    }

    /// Makes a block free in a guest's order, and merges it with neighbours that are; gives the block.
    pub(in crate::memory) fn release_to_guest(&mut self, index: usize, id: u32) -> u32 {
        let Block { previous, next, .. } = self.blocks[id];
        let end = Order::Guest(index).end();
        let is_its = |state: &ArenaState, id: u32| {
            id != NONE && state.blocks[id].state == State::Guest && state.blocks[id].uses == end
        };
        let mut id = id;
        self.free_blocks += 1;
        self.free_bytes += self.blocks[id].bytes();
        if is_its(self, next) {
            self.unshelve_of_guest(index, next);
            self.absorb(id, next);
        }
        if is_its(self, previous) {
            self.unshelve_of_guest(index, previous);
            self.absorb(previous, id);
            id = previous;
        }
        self.shelve_for_guest(index, id);
        id
    }

    /// Moves all that is free in a guest's order into another, whose stream comes after the guest's.
    pub(in crate::memory) fn move_all(&mut self, from: usize, to: Order) {
        loop {
            let id = self.guests.list[from].bins.find(&self.blocks, 1, 1);
            if id == NONE {
                break;
            }
            self.unshelve_of_guest(from, id);
            self.free_blocks -= 1;
            self.free_bytes -= self.blocks[id].bytes();
            match to {
                Order::Guest(index) => drop(self.release_to_guest(index, id)),
                Order::Own => {
                    self.blocks[id].uses = 0;
                    self.release(id);
                }
            }
        }
        self.memory_came(to);
    }

    /// Who came after an order does not come after what has come into it since.
    fn memory_came(&mut self, to: Order) {
        match to {
            Order::Own => self.guests.returns += 1,
            Order::Guest(index) => self.guests.list[index].frees += 1,
        }
    }

    /// Moves what is free in a window into one order, whose stream comes after all others of it; and
    /// all that the guests among those have free elsewhere.
    pub(in crate::memory) fn gather(&mut self, window: Window, to: Order) {
        if let Order::Guest(index) = to {
            let mut id = if window.below == NONE { self.first } else { window.below };
            while id != NONE && self.blocks[id].start < window.to {
                let block = &self.blocks[id];
                if block.state == State::Free && block.start >= window.from {
                    self.take_out(id);
                    id = self.release_to_guest(index, id);
                }
                id = self.blocks[id].next;
            }
            self.memory_came(to);
        }
        for from in 0..self.guests.list.len() {
            let order = Order::Guest(from);
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
    fn order_of_free(&self, id: u32) -> Option<Order> {
        match self.blocks[id].state {
            State::Free => Some(Order::Own),
            State::Guest => Some(Order::of_end(self.blocks[id].uses)),
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
            let order = self.order_of_free(id);
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
            orders |= self.order_of_free(id).map_or(0, Order::bit);
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
        while id != NONE && self.order_of_free(id).is_some() {
            (low, id) = (id, self.blocks[id].previous);
        }
        if low == NONE {
            return None;
        }
        let window = self.window_of(low, self.last);
        Some((window, window.units()))
    }
}
