//! Arenas: the blocks of one stream, pool and size class, in one slot of addresses. The two arenas
//! of a stream and pool are a heap ([`heap`]), which has their lock and their account.
//!
//! Invariants, checked by `ArenaState::check` of the tests:
//! - The blocks partition the addresses below the mapped end.
//! - Two free blocks of one owner (`foreign_free.rs`) are never neighbours, nor are two holes.
//! - Every free block is in its bin except the last, the *wilderness* at the mapped end. It is used
//!   only if nothing below it fits, since it alone can grow.
//! - The account equals the sums over the blocks.
//!
//! Blocks of the quick lists (`quick.rs`) count as free. They are merged with their neighbours
//! later: when no merged block fits, and in a small arena the wilderness does not fit either, as
//! far as the growth cursor allows it to be used.
//!
//! [`addresses`] leads from an address to its arena. [`segment`] has the mapped memory behind an
//! arena, and [`segmented`] the segments of cuMemAlloc. The guard of the lock ([`arena_lock`])
//! gives the state.

pub mod addresses;
pub mod arena_lock;
pub(crate) mod at_address;
pub(crate) mod bins;
pub mod block;
pub(crate) mod block_index;
pub mod contention;
pub(crate) mod deferred_free;
pub(crate) mod events;
pub(crate) mod foreign_free;
pub mod heap;
pub(crate) mod holes;
pub(crate) mod marked;
pub(crate) mod member;
pub(crate) mod merge;
pub(crate) mod poll_policy;
pub mod pool;
pub(crate) mod quick;
pub mod registry;
pub mod segment;
pub mod segmented;
pub(crate) mod slots;
pub(crate) mod stream_uses;
pub(crate) mod tally;

use crate::base::error::Result;
use crate::base::place::write_fields;
use crate::driver::Driver;
use crate::driver::sys::CUevent;
use crate::gpu::stream::Stream;
use crate::memory::arena::bins::{Bins, SHORT_WALK};
use crate::memory::arena::block::{Block, Blocks, NONE, State};
use crate::memory::arena::block_index::BlockIndex;
use crate::memory::arena::foreign_free::{ForeignFree, Owner};
pub use crate::memory::arena::heap::ArenaGuard;
use crate::memory::arena::heap::Heap;
use crate::memory::arena::poll_policy::PollPolicy;
use crate::memory::arena::quick::Quick;
use crate::memory::arena::segment::{Segment, growth_cursor};
use crate::memory::arena::segmented::Segments;
use crate::memory::arena::stream_uses::Uses;
use crate::memory::config::policy::Policy;
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{Class, Request, SMALL_ARENA, UNIT};
use crate::memory::stats::ledger::Split;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The contents of a block when its pool was put to sleep.
pub(in crate::memory) struct Backup {
    pub(in crate::memory) address: u64,
    pub(in crate::memory) bytes: Vec<u8>,
}

/// The blocks of one stream, pool and size class.
pub struct Arena {
    /// The heap that has it.
    heap: NonNull<Heap>,
    /// Ordinal of its device.
    pub device: i32,
    /// First address.
    pub base: u64,
    /// Bytes from there to the end of the slot in which it grows; 0: it has ended. Changes under
    /// its lock.
    slot_bytes: AtomicU64,
    /// Small or large.
    pub class: Class,
    /// Does its memory come in whole segments?
    pub segmented: bool,
    /// The policy of its device, which lives longer and does not move.
    policy: NonNull<Policy>,
    /// Its reserved bytes in the ledger's counts. Changes under the ledger's lock.
    counted: AtomicI64,
    /// The arena that last served its stream with memory of another stream; NULL: none.
    pub(super) source_arena: AtomicPtr<Arena>,
    /// How often its stream was ordered after another since it found a large free block.
    pub(super) small_waits: AtomicU32,
    /// Guarded by the heap's lock.
    state: UnsafeCell<ArenaState>,
}

// SAFETY: the cell is guarded by the lock that its comment names; the rest is atomic or fixed.
unsafe impl Sync for Arena {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Arena {}

/// The state that the lock guards. The fields that nearly every call uses come first. Counts are
/// not adjacent, for the reason that `headroom.rs` gives.
#[repr(C)]
pub struct ArenaState {
    pub(super) blocks: Blocks,
    /// The index of blocks by their start.
    pub(super) block_index: BlockIndex,
    pub(super) free_blocks: i64,
    /// First block in address order.
    pub(super) first: u32,
    /// Last block in address order.
    pub(super) last: u32,
    pub(super) free_bytes: i64,
    /// The free block at the mapped end, or none.
    pub(super) wilderness: u32,
    /// One past the last unit of the wilderness that is used before a view is
    /// (`segment/growth_cursor.rs`).
    pub(super) growth_cursor: u32,
    pub(super) class: Class,
    /// Allocated and pending blocks.
    pub(super) active_blocks: i64,
    /// Freed blocks that other streams may still use.
    pub(super) polls: PollPolicy,
    /// Free blocks that are not merged yet; in arenas of mapped memory only.
    pub(super) quick: Quick,
    pub(super) bins: Bins,
    /// The memory behind the addresses.
    pub(super) segment: Segment,
    /// The segments, if its memory comes in segments. It then has no mappings, no bins and no
    /// wilderness, and the counts of free blocks leave out free blocks that are a whole segment.
    pub(super) segments: Option<Box<Segments>>,
    /// The contents of blocks when the pool fell asleep.
    pub(super) backups: Vec<Backup>,
    /// The other streams that use blocks.
    pub(super) uses: Uses,
    /// Blocks that other processes may have, and those that are lent. For each of these two, a
    /// block's list of streams has an entry (`marked.rs`).
    pub(super) marked: u32,
    /// Blocks that were lent to allocations outside of the private pool.
    pub(super) lent: u32,
    /// The free lists of other streams that use memory of this arena.
    pub(super) foreign: ForeignFree,
    /// Its addresses.
    pub(super) slots: slots::OwnedSlots,
    /// Units between its slots, below its end.
    pub(super) gaps: u32,
    /// The end of its stream's work, recorded when it had ended and had no blocks.
    pub(super) end: Option<StreamEnd>,
}

/// An event at the end of the stream's work of an arena that had ended and had no blocks. While
/// that stream is captured it cannot be queried again.
#[derive(Clone, Copy)]
pub(super) struct StreamEnd {
    pub(super) event: CUevent,
    stream: *const Stream,
    pool: PoolId,
}

impl StreamEnd {
    /// An event that was recorded just now.
    pub(super) fn new(arena: &Arena, stream: &Stream, event: CUevent) -> StreamEnd {
        StreamEnd { event, stream, pool: arena.pool() }
    }

    /// Does the arena still have the same stream and pool? If it served another pool in the
    /// meantime, it does not.
    pub(super) fn is_of(&self, arena: &Arena, stream: &Stream) -> bool {
        std::ptr::eq(self.stream, stream) && self.pool == arena.pool()
    }
}

impl Arena {
    /// Writes an empty arena of a heap. Its addresses, or units for `segments`, are so many bytes
    /// from a base, and it has at most `memory` bytes at a time.
    fn write(
        place: *mut Arena,
        heap: NonNull<Heap>,
        (device, policy): (i32, &Policy),
        ((base, slot_bytes), memory): ((u64, u64), u64),
        class: Class,
        (segments, block_index): (Option<Box<Segments>>, BlockIndex),
    ) {
        // Between two blocks in use is at most one free block or hole, or both at a segment's edge.
        let smallest = match class {
            Class::Small => UNIT,
            Class::Large => SMALL_ARENA,
        };
        let segmented = segments.is_some();
        let capacity = (memory / smallest * 3 + 1024).min(u64::from(u32::MAX)) as usize;
        let write_state = |place: *mut UnsafeCell<ArenaState>| {
            // A cell has the layout of its content.
            write_fields!(place.cast(), ArenaState {
                class: class,
                blocks: Blocks::new(capacity),
                quick: Quick::new(),
                block_index: block_index,
                first: NONE, last: NONE, wilderness: NONE,
                growth_cursor: growth_cursor::ALL,
                segment: Segment::new(),
                segments: segments,
                backups: Vec::new(),
                uses: Uses::new(),
                polls: PollPolicy::default(),
                marked: 0,
                lent: 0,
                foreign: ForeignFree::new(),
                slots: slots::OwnedSlots::new(),
                gaps: 0,
                end: None,
                free_blocks: 0, free_bytes: 0, active_blocks: 0,
                @ bins: Bins::write_new,
            });
        };
        write_fields!(place, Arena {
            heap: heap,
            device: device,
            policy: NonNull::from(policy),
            base: base,
            slot_bytes: AtomicU64::new(slot_bytes),
            class: class,
            segmented: segmented,
            counted: AtomicI64::new(0),
            source_arena: AtomicPtr::new(std::ptr::null_mut()),
            small_waits: AtomicU32::new(0),
            @ state: write_state,
        });
    }

    /// The heap that has it.
    #[inline(always)]
    pub fn heap(&self) -> &Heap {
        // SAFETY: an arena is a part of its heap, which does not move.
        unsafe { self.heap.as_ref() }
    }

    /// Takes its lock.
    #[inline]
    pub fn guard(&self) -> ArenaGuard<'_> {
        ArenaGuard::of(self)
    }

    /// Takes its lock. Fails in a host function of a stream if the holder waits for the device.
    #[inline]
    pub fn enter(&self) -> Result<ArenaGuard<'_>> {
        ArenaGuard::enter(self)
    }

    /// The state of an arena that no other thread can find yet.
    pub(super) fn state_mut(&mut self) -> &mut ArenaState {
        self.state.get_mut()
    }

    /// The state, which does not change meanwhile.
    ///
    /// # Safety
    /// The ledger has frozen the arena.
    pub(super) unsafe fn frozen_state(&self) -> &ArenaState {
        // SAFETY: the caller's promise: nothing is written.
        unsafe { &*self.state.get() }
    }

    /// The policy of its device.
    #[inline(always)]
    pub(super) fn policy(&self) -> &Policy {
        // SAFETY: the device of the arena has it, and lives longer.
        unsafe { self.policy.as_ref() }
    }

    /// Units from its base to the end of its slot.
    pub(super) fn slot_units(&self) -> u64 {
        self.slot_bytes.load(Ordering::Relaxed) / UNIT
    }

    /// Sets the length of its slot; 0: it has ended. The caller holds its lock.
    pub(super) fn set_slot_bytes(&self, bytes: u64) {
        self.slot_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Its size class, and whether its memory comes in segments.
    pub(crate) fn kind(&self) -> (Class, bool) {
        (self.class, self.segmented)
    }

    /// The pool of its heap.
    #[inline]
    pub fn pool(&self) -> PoolId {
        self.heap().pool()
    }

    /// The stream of its heap.
    #[inline]
    pub fn stream(&self) -> Option<&Stream> {
        self.heap().stream()
    }

    /// Its reserved bytes in the ledger's counts. The caller holds the ledger.
    pub(super) fn counted(&self) -> i64 {
        self.counted.load(Ordering::Relaxed)
    }

    /// Adds to its reserved bytes in the ledger's counts. The caller holds the ledger.
    pub(super) fn add_counted(&self, bytes: i64) {
        self.counted.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl ArenaState {
    /// Destroys the event at the end of its stream's work.
    pub(super) fn destroy_end(&mut self, driver: &Driver) {
        if let Some(end) = self.end.take() {
            // SAFETY: ours, and nothing waits for it.
            let _ = unsafe { driver.cuEventDestroy(end.event) };
        }
    }

    /// Is no block in use or pending, and does no memory sleep?
    fn is_unused(&self) -> bool {
        self.active_blocks == 0 && self.uses.is_queue_empty() && !self.segment.has_sleeping()
    }

    /// Bytes of host memory of its blocks and their index.
    #[cfg(test)]
    pub(super) fn host_bytes(&self) -> usize {
        self.blocks.resident() + self.block_index.resident()
    }

    /// The free blocks as statistics count them while a block is in use.
    #[inline(always)]
    pub(super) fn split_in_use(&self) -> Split {
        debug_assert!(self.active_blocks > 0, "else they are not split");
        Split { blocks: self.free_blocks, bytes: self.free_bytes }
    }

    /// The free blocks as statistics count them: none if no block is in use.
    #[inline(always)]
    pub(super) fn split(&self) -> Split {
        // Without a branch that depends on the program.
        let counts = -i64::from(self.active_blocks > 0);
        Split { blocks: self.free_blocks & counts, bytes: self.free_bytes & counts }
    }

    /// A new block of the given range, not linked.
    #[inline]
    pub(super) fn new_block(&mut self, start: u32, units: u32, state: State) -> u32 {
        self.blocks.take(Block::new(start, units, state))
    }

    /// Takes a block out of the mapped memory. Returns it and its first unit; none: nothing fits.
    #[inline(never)]
    pub(super) fn allocate(&mut self, request: Request, walk: usize) -> Result<Option<(u32, u32)>> {
        match self.allocate_quick(request) {
            None => self.allocate_by_search(request, walk),
            found => Ok(found),
        }
    }

    /// Takes a block of exactly this length that was freed lately. Returns it and its first unit.
    #[inline(always)]
    pub(super) fn allocate_quick(&mut self, request: Request) -> Option<(u32, u32)> {
        let (id, start) = self.take_quick(request.units)?;
        // SAFETY: `take_quick` has read the block of this index.
        unsafe { std::hint::assert_unchecked((id as usize) < self.blocks.indices()) };
        self.blocks[id].set_allocated(request);
        // It still is in the block index: no other block can start there.
        self.free_bytes -= i64::from(request.units) * UNIT as i64;
        self.free_blocks -= 1;
        self.active_blocks += 1;
        Some((id, start))
    }

    /// Takes a block that is not oversize by a short search. Returns its first unit; none: nothing
    /// was found, or there is no host memory.
    #[inline(never)]
    pub(super) fn allocate_by_short_search(&mut self, units: u32, bytes: u64) -> Option<u32> {
        let request = Request { units, bytes, oversize: false };
        match self.allocate_by_search(request, SHORT_WALK) {
            Ok(Some((_, start))) => Some(start),
            _ => None,
        }
    }

    /// Takes a block by a search. Returns it and its first unit; none: nothing was found.
    #[inline(always)]
    pub(super) fn allocate_by_search(
        &mut self,
        request: Request,
        walk: usize,
    ) -> Result<Option<(u32, u32)>> {
        let Some(id) = self.take_best_fit(request.units, walk)? else { return Ok(None) };
        let block = &mut self.blocks[id];
        block.set_allocated(request);
        self.active_blocks += 1;
        Ok(Some((id, block.start)))
    }

    /// Takes the best fit, and splits off what is not needed.
    #[inline(always)]
    fn take_best_fit(&mut self, units: u32, walk: usize) -> Result<Option<u32>> {
        self.forget_best();
        if self.class == Class::Large {
            self.merge_last_freed();
        }
        self.blocks.prepare(2)?;
        let mut id = self.bins.find(&self.blocks, units, walk);
        // Small blocks have little memory, so that their quick lists are worth more than room at
        // the end. Large blocks have no quick lists.
        if id == NONE && !self.quick.is_empty() && !self.fits_at_end(units) {
            self.quick.had_pressure = true;
            self.merge_until(units);
            id = self.bins.find(&self.blocks, units, walk);
        }
        if id == NONE {
            if !self.fits_at_end(units) {
                return Ok(None);
            }
            id = self.wilderness;
        }
        self.prepare_start()?;
        // From here on nothing fails.
        if id != self.wilderness {
            self.bins.remove(&mut self.blocks, id);
        }
        let Block { start, units: whole, next, .. } = self.blocks[id];
        self.free_bytes -= i64::from(units) * UNIT as i64;
        if whole > units {
            let rest = self.new_block(start + units, whole - units, State::Free);
            self.blocks[id].units = units;
            self.blocks.link(rest, id, next);
            if self.last == id {
                self.last = rest;
            }
            if id == self.wilderness {
                self.wilderness = rest;
            } else {
                self.bins.insert(&mut self.blocks, rest);
            }
        } else {
            self.free_blocks -= 1;
            if id == self.wilderness {
                self.wilderness = NONE;
            }
        }
        let block = &mut self.blocks[id];
        block.uses = 0;
        self.note_start(id);
        Ok(Some(id))
    }

    /// Frees a block that no other stream uses, of this length and first unit: it is free at once.
    #[inline(always)]
    pub(super) fn free(&mut self, id: u32, units: u32, start: u32) {
        self.active_blocks -= 1;
        self.release_quick(id, units, start);
    }

    /// Frees a pending block that its last stream is done with.
    pub(super) fn free_pending(&mut self, id: u32, now: u64) {
        self.active_blocks -= 1;
        match self.segments {
            None => match self.owner_of(id) {
                Owner::ARENA => self.release_block_or_view(id),
                owner => self.free_foreign(owner, id),
            },
            Some(_) => self.release_in_segment(id, now),
        }
    }
}
