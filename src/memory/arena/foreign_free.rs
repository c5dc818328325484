//! Owners of memory: other streams use memory of an arena, in place and in their own order.
//!
//! A block of another stream lies in the arena's list like every other block. When it is freed,
//! only that stream may use it again without a wait. So each free block has an *owner*: the stream
//! in whose order it is free, which is the arena's stream or one with a *foreign free list*. A free
//! block is in the bins of its owner, and merges with free neighbours of the same owner.
//!
//! `frees(p)` counts how often memory became free for owner `p`, and `seen(o, p)` is what it was
//! when the stream of `o` was last ordered after that of `p`. The stream of `o` may use all free
//! memory of `p`, without a wait, if and only if
//!
//! ```text
//! o = p  or  seen(o, p) = frees(p)
//! ```
//!
//! An event of `p`, or that `p` has no work left, makes that true for all memory of `p` at once
//! (`cross_stream.rs`). Then all of it moves to `o`, except that the arena's stream keeps what is
//! not needed now.

use super::bins::{Bins, WHOLE_WALK};
use crate::base::error::{Error, Result};
use crate::gpu::external_registry::Marker;
use crate::gpu::stream::Stream;
use crate::memory::arena::block::{Blocks, NONE, State};
use crate::memory::arena::segment::growth_cursor;
use crate::memory::arena::segment::remap::IN_VIEW;
use crate::memory::arena::{Arena, ArenaGuard, ArenaState};
use crate::memory::config::size::Request;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The most owners of an arena: each has a bit of a word.
const MOST_OWNERS: usize = 64;

/// The stream in whose order a block is free, or will be, by its number in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) struct Owner(usize);

impl Owner {
    /// The arena's stream.
    pub(in crate::memory) const ARENA: Owner = Owner(0);

    /// The owner that the end of a block's list of streams means.
    #[inline(always)]
    pub(in crate::memory) fn of_end(end: u32) -> Owner {
        let number = IN_VIEW.wrapping_sub(end) as usize;
        Owner(if number < MOST_OWNERS { number } else { 0 })
    }

    /// The end of the list of streams of a block of this owner.
    #[inline(always)]
    pub(in crate::memory) fn end(self) -> u32 {
        if self == Owner::ARENA { 0 } else { IN_VIEW - self.0 as u32 }
    }

    /// The state of its free blocks.
    #[inline(always)]
    pub(in crate::memory) fn free_state(self) -> State {
        if self == Owner::ARENA { State::Free } else { State::ForeignFree }
    }

    /// Its bit in a set of owners.
    pub(in crate::memory) fn bit(self) -> u64 {
        1 << self.0
    }

    /// The owners in a set.
    pub(in crate::memory) fn all_in(owners: u64) -> impl Iterator<Item = Owner> {
        (0..MOST_OWNERS).map(Owner).filter(move |owner| owners & owner.bit() != 0)
    }
}

/// What an arena has for an owner.
struct OwnerState {
    /// NULL: the arena's stream, or no stream.
    stream: *const Stream,
    /// Its free blocks; none: they are in the arena's bins.
    bins: Option<Box<Bins>>,
    /// How often memory became free for it; for the arena's stream, minus its account's total.
    frees: u64,
    /// By owner: how often memory had become free for that one when this one was last ordered after
    /// it.
    seen: [u64; MOST_OWNERS],
}

/// The owners of an arena's memory by number; empty if there was never another than its stream.
pub struct ForeignFree(Vec<OwnerState>);

// SAFETY: streams are shared by all threads and outlive the arenas.
unsafe impl Send for ForeignFree {}

impl ForeignFree {
    pub(in crate::memory) fn new() -> ForeignFree {
        ForeignFree(Vec::new())
    }

    /// Has there never been a foreign free list?
    #[inline]
    pub(in crate::memory) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The owner that another stream than the arena's is.
    pub(in crate::memory) fn find(&self, stream: &Stream) -> Option<Owner> {
        let number = self.0.iter().position(|owner| std::ptr::eq(owner.stream, stream));
        number.map(Owner)
    }

    /// Is a block in the bins of this owner?
    #[cfg(test)]
    pub(in crate::memory) fn is_in_bins(&self, blocks: &Blocks, owner: Owner, id: u32) -> bool {
        let bins = self.0.get(owner.0).and_then(|owner| owner.bins.as_ref());
        bins.is_some_and(|bins| bins.contains(blocks, id))
    }
}

/// Neighbouring free blocks, of one owner or of several.
#[derive(Clone, Copy)]
pub(in crate::memory) struct Window {
    /// The first block.
    first: u32,
    /// Its length in units.
    pub units: u32,
    /// The units that it lacks, which the arena has to grow by. It ends where the memory does.
    pub missing: u32,
    /// The bits of its owners.
    pub owners: u64,
}

impl Window {
    /// How many owners must be waited for, and whether the arena's stream is one of them. The
    /// owners in `known` cost nothing.
    pub(in crate::memory) fn waits(&self, known: u64) -> (u32, bool) {
        let unknown = self.owners & !known;
        (unknown.count_ones(), unknown & Owner::ARENA.bit() != 0)
    }
}

impl ArenaState {
    /// The stream in whose order a block is free, or will be.
    pub(in crate::memory) fn owner_of(&self, id: u32) -> Owner {
        Owner::of_end(self.uses.end(self.blocks[id].uses))
    }

    /// The stream of an owner, if it has one.
    #[inline(always)]
    pub(in crate::memory) fn stream_of_owner<'a>(
        &self,
        arena: &'a Arena,
        owner: Owner,
    ) -> Option<&'a Stream> {
        let stream = match owner {
            Owner::ARENA => arena.heap().stream.load(Ordering::Acquire),
            Owner(number) => self.foreign.0.get(number)?.stream.cast_mut(),
        };
        // SAFETY: NULL, or a stream, which stays as long as the arena or a block refers to it.
        unsafe { stream.as_ref() }
    }

    /// The stream in whose order a block is used.
    pub(in crate::memory) fn stream_of<'a>(&self, arena: &'a Arena, id: u32) -> Option<&'a Stream> {
        self.stream_of_owner(arena, self.owner_of(id))
    }

    /// The owners of the blocks in these states.
    pub(in crate::memory) fn owners_of(&self, states: &[State]) -> u64 {
        let blocks = self.blocks.all().filter(|id| states.contains(&self.blocks[*id].state));
        blocks.fold(0, |owners, id| owners | self.owner_of(id).bit())
    }

    /// The owners that have blocks.
    fn owners(&self) -> u64 {
        let states = [State::Allocated, State::Pending, State::ForeignFree];
        self.owners_of(&states) | Owner::ARENA.bit()
    }

    /// Marks the streams that own memory here, and forgets the others.
    pub(in crate::memory) fn mark_owners(&mut self, marker: Marker) {
        let owners = self.owners();
        for (number, owner) in self.foreign.0.iter_mut().enumerate() {
            if owners & Owner(number).bit() == 0 {
                owner.stream = std::ptr::null();
            }
            marker.mark(owner.stream);
        }
    }

    /// The owner that another stream than the arena's is. A new one gets the number of one that has
    /// no blocks.
    pub(in crate::memory) fn find_or_insert(&mut self, stream: &Stream) -> Result<Owner> {
        if let Some(owner) = self.foreign.find(stream) {
            return Ok(owner);
        }
        const WHAT: &str = "an arena's foreign free lists";
        let number = self.owners().trailing_ones() as usize;
        let owners = &mut self.foreign.0;
        while number < MOST_OWNERS && owners.len() <= number {
            owners.try_reserve(1).map_err(|_| Error::OutOfHostMemory(WHAT))?;
            let bins = if owners.is_empty() { None } else { Some(Bins::boxed(WHAT)?) };
            let stream = std::ptr::null();
            owners.push(OwnerState { stream, bins, frees: 0, seen: [0; MOST_OWNERS] });
        }
        let owner = owners.get_mut(number).ok_or(Error::OutOfHostMemory(WHAT))?;
        (owner.stream, owner.seen) = (stream, [0; MOST_OWNERS]);
        self.growth_cursor = growth_cursor::ALL;
        Ok(Owner(number))
    }

    /// The owner of a free block.
    pub(in crate::memory) fn owner_of_free(&self, id: u32) -> Option<Owner> {
        match self.blocks[id].state {
            State::Free => Some(Owner::ARENA),
            State::ForeignFree => Some(Owner::of_end(self.blocks[id].uses)),
            _ => None,
        }
    }

    /// The bins of an owner, and the blocks.
    #[inline(always)]
    pub(in crate::memory) fn bins_of(&mut self, owner: Owner) -> (&mut Bins, &mut Blocks) {
        let bins = match self.foreign.0.get_mut(owner.0) {
            Some(OwnerState { bins: Some(bins), .. }) if owner != Owner::ARENA => bins,
            _ => &mut self.bins,
        };
        (bins, &mut self.blocks)
    }

    /// Takes a block out of its owner's free memory.
    #[inline(always)]
    pub(in crate::memory) fn take_out(&mut self, owner: Owner, id: u32) {
        self.free_blocks -= 1;
        self.free_bytes -= self.blocks[id].bytes();
        if id == self.wilderness {
            self.wilderness = NONE;
        } else {
            let (bins, blocks) = self.bins_of(owner);
            bins.remove(blocks, id);
        }
    }

    /// The best fit in a foreign free list.
    pub(in crate::memory) fn find_free(&mut self, owner: Owner, units: u32) -> Option<u32> {
        let (bins, blocks) = self.bins_of(owner);
        Some(bins.find(blocks, units, WHOLE_WALK)).filter(|id| *id != NONE)
    }

    /// Allocates the start of a free block for an owner that may use it.
    pub(in crate::memory) fn allocate_for(
        &mut self,
        owner: Owner,
        id: u32,
        request: Request,
    ) -> Result<()> {
        self.blocks.prepare(1)?;
        self.prepare_start()?;
        // From here on nothing fails.
        self.forget_best();
        let start = self.blocks[id].start;
        self.cut_out(id, start, start + request.units, State::Allocated);
        self.note_start(id);
        let block = &mut self.blocks[id];
        block.set_allocated(request);
        (block.uses, block.waits) = (owner.end(), 0);
        self.active_blocks += 1;
        Ok(())
    }

    /// Makes `stream` the owner of an allocated block that is in no view and that no other process
    /// has. On failure the block is unchanged.
    pub(in crate::memory) fn change_owner(
        &mut self,
        arena: &Arena,
        id: u32,
        stream: &Stream,
    ) -> Result<()> {
        let is_own = arena.stream().is_some_and(|own| std::ptr::eq(own, stream));
        let owner = if is_own { Owner::ARENA } else { self.find_or_insert(stream)? };
        // Its order includes its own use.
        let uses = self.uses.remove(self.blocks[id].uses, stream);
        self.blocks[id].uses = self.uses.set_end(uses, owner.end());
        Ok(())
    }

    /// Frees a block of another stream, which no stream uses any more, into that stream's list.
    pub(in crate::memory) fn free_foreign(&mut self, owner: Owner, id: u32) {
        self.forget_start(id);
        self.count_frees(owner, 1);
        // The account counts it as the arena's.
        self.count_frees(Owner::ARENA, -1);
        self.release_to(owner, id);
    }

    fn count_frees(&mut self, owner: Owner, count: i64) {
        let frees = &mut self.foreign.0[owner.0].frees;
        *frees = frees.wrapping_add_signed(count);
    }

    /// Moves the free memory of these owners to another one, whose stream is ordered after theirs;
    /// of the arena's own only blocks that start in `range`. Returns the block that the blocks in
    /// `range` are part of then.
    pub(in crate::memory) fn gather(&mut self, owners: u64, range: Range<u32>, to: Owner) -> u32 {
        let (mut id, mut found) = (self.first, NONE);
        while id != NONE {
            let is_inside = range.contains(&self.blocks[id].start);
            if let Some(owner) = self.owner_of_free(id)
                && owner != to
                && owners & owner.bit() != 0
                && (is_inside || owner != Owner::ARENA)
            {
                self.take_out(owner, id);
                id = self.release_to(to, id);
                self.count_frees(to, 1);
            }
            found = if is_inside { id } else { found };
            id = self.blocks[id].next;
        }
        found
    }

    /// Moves a window to one owner and returns its block. A single block of the arena's own stays
    /// as it is: its rest is not needed.
    pub(in crate::memory) fn gather_window(&mut self, window: Window, to: Owner) -> u32 {
        if window.owners == Owner::ARENA.bit() {
            return window.first;
        }
        let start = self.blocks[window.first].start;
        self.gather(window.owners, start..start + window.units, to)
    }

    /// The cheapest window for `units`: by the units that it lacks, the owners that must be waited
    /// for, which are not in `known`, and its length. The quick lists are empty.
    pub(in crate::memory) fn find_window(&self, units: u32, known: u64) -> Option<Window> {
        let cost = |window: &Window| (window.missing, window.waits(known), window.units);
        let (mut best, mut first): (Option<Window>, u32) = (None, self.first);
        while first != NONE {
            let mut found = Window { first, units: 0, missing: units, owners: 0 };
            let mut id = first;
            while found.missing > 0
                && let Some(owner) = self.owner_of_free(id)
            {
                found.units += self.blocks[id].units;
                found.missing = units.saturating_sub(found.units);
                found.owners |= owner.bit();
                id = self.blocks[id].next;
            }
            let is_usable = found.missing == 0 || id == NONE && found.units > 0;
            if is_usable && best.is_none_or(|best| cost(&found) < cost(&best)) {
                best = Some(found);
            }
            first = self.blocks[first].next;
        }
        best
    }
}

impl ArenaGuard<'_> {
    fn frees(&mut self, owner: Owner) -> u64 {
        let own = if owner == Owner::ARENA { self.account().total_freed() } else { 0 };
        self.foreign.0[owner.0].frees.wrapping_add(own)
    }

    /// The owners whose free memory another one may use without a wait.
    pub(in crate::memory) fn ordered(&mut self, after: Owner) -> u64 {
        let owners = (0..self.foreign.0.len()).map(Owner);
        owners.fold(after.bit(), |ordered, before| {
            let is_ordered = self.foreign.0[after.0].seen[before.0] == self.frees(before);
            if is_ordered { ordered | before.bit() } else { ordered }
        })
    }

    /// Notes that the stream of an owner is ordered after all that another owner has now, and thus
    /// after what that one was ordered after.
    pub(in crate::memory) fn note_ordered(&mut self, before: Owner, after: Owner) {
        let now = self.frees(before);
        let known = self.foreign.0[before.0].seen;
        let seen = &mut self.foreign.0[after.0].seen;
        seen.iter_mut().zip(known).for_each(|(seen, known)| *seen = known.max(*seen));
        seen[before.0] = now;
    }
}
