//! Deferred frees: freed blocks that other streams may still use (`stream_uses.rs`).
//!
//! A freed block joins the open batch of each stream that uses it, without a driver call. When
//! memory is next needed, the blocks of each stream that has no work left become free. The open
//! batch of a busy stream is closed by one event, which many frees share. Its blocks become free
//! when the event has completed. [`PollPolicy`] says when streams are not polled; if nothing else
//! fits, they are. A stream is not polled if the freeing thread has since waited for it
//! (`waits.rs`).
//!
//! Blocks are often freed one after the other with the same recorded streams. The first of them,
//! the *leader*, is in the batches. The others follow it while these batches are open.

use crate::base::error::Result;
use crate::driver::sys::CUevent;
use crate::gpu::device::Device;
use crate::gpu::external_registry::Marker;
use crate::gpu::stream::Stream;
use crate::gpu::waits::SyncStamp;
use crate::memory::arena::block::{Block, NONE, State};
use crate::memory::arena::foreign_free::Owner;
use crate::memory::arena::poll_policy::PollPolicy;
use crate::memory::arena::stream_uses::{MOST_STREAMS, NO_ROOM, StreamSet};
use crate::memory::arena::{Arena, ArenaState};
use crate::memory::config::size::{Class, UNIT};

/// The leader that was enqueued last, with the blocks that follow it.
struct Leader {
    /// The streams in whose batches it is.
    streams: StreamSet,
    /// The last block that follows it, or itself; [`NONE`]: no more blocks may follow.
    last: u32,
    /// When it was enqueued, and those that follow it.
    stamp: SyncStamp,
}

/// Freed blocks that wait until one stream has passed one point.
pub(in crate::memory) struct Batch {
    pub stream: *const Stream,
    /// NULL while the batch is open.
    pub event: CUevent,
    /// The list of those blocks, oldest first.
    pub(in crate::memory) first: u32,
    pub(in crate::memory) last: u32,
    /// When the last block was enqueued.
    stamp: SyncStamp,
}

impl Batch {
    /// Is it known without a query that the stream has passed that point?
    pub(in crate::memory) fn is_known_to_be_over(&self, device: &Device) -> bool {
        // SAFETY: streams that batches name stay (`mark_streams`).
        let stream = unsafe { &*self.stream };
        // An external stream may be of another context, or destroyed. A per-thread stream is a
        // different stream on each thread.
        !stream.is_external()
            && (device.last_sync.is_since(self.stamp)
                || !stream.is_per_thread() && stream.last_sync.is_since(self.stamp))
    }
}

#[cfg(test)]
thread_local! {
    /// Blocks that a thread's calls merged with those that they followed.
    pub(in crate::memory) static JOINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Blocks whose waits are over, merged into one.
pub(in crate::memory) struct CompletedBlocks {
    pub class: Class,
    /// How many blocks they were.
    pub blocks: i64,
    pub bytes: i64,
    pub requested: i64,
    /// The block that follows the last of them.
    pub next: u32,
}

/// The batches of an arena, oldest first.
pub struct DeferredFrees {
    pub(in crate::memory) batches: Vec<Batch>,
    /// Freed blocks that could not be enqueued, for lack of host memory. They keep their lists of
    /// streams, and are enqueued later.
    pub(in crate::memory) overflow: u32,
    leader: Leader,
    /// When the events are polled again.
    pub(in crate::memory) poll_policy: PollPolicy,
}

// SAFETY: streams and events are shared by all threads and outlive the batches.
unsafe impl Send for DeferredFrees {}

impl DeferredFrees {
    pub(in crate::memory) fn new() -> DeferredFrees {
        let leader = Leader {
            streams: [std::ptr::null(); MOST_STREAMS],
            last: NONE,
            stamp: SyncStamp::NONE,
        };
        DeferredFrees {
            batches: Vec::new(),
            overflow: 0,
            leader,
            poll_policy: PollPolicy::default(),
        }
    }

    /// Is no block pending?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.overflow == 0
    }

    /// The open batch of a stream, for a block that is enqueued now. Adds a batch if there is none.
    /// None: there is no host memory.
    #[inline]
    pub(in crate::memory) fn open_batch(
        &mut self,
        stream: *const Stream,
        now: SyncStamp,
    ) -> Option<&mut Batch> {
        let is_it = |batch: &Batch| batch.event.is_null() && std::ptr::eq(batch.stream, stream);
        match self.batches.iter().rposition(is_it) {
            Some(index) => {
                let batch = self.batches.get_mut(index)?;
                batch.stamp = now;
                Some(batch)
            }
            None => self.add_batch(stream, now),
        }
    }

    #[cold]
    fn add_batch(&mut self, stream: *const Stream, stamp: SyncStamp) -> Option<&mut Batch> {
        self.batches.try_reserve(1).ok()?;
        let event = std::ptr::null_mut();
        self.batches.push(Batch { stream, event, first: 0, last: 0, stamp });
        self.batches.last_mut()
    }

    /// Marks the streams that blocks wait for.
    pub(in crate::memory) fn mark_streams(&self, marker: Marker) {
        self.batches.iter().for_each(|batch| marker.mark(batch.stream));
        if self.leader.last != NONE {
            self.leader.streams.iter().for_each(|stream| marker.mark(*stream));
        }
    }

    /// Ends the leader's group before batches are closed: a block that followed later would wait
    /// for too little.
    pub(in crate::memory) fn end_following(&mut self) {
        self.leader.last = NONE;
    }

    /// Is there an earlier batch of the same stream? At most one batch of a stream is closed:
    /// blocks that are freed meanwhile share the next event.
    pub(in crate::memory) fn is_behind(&self, index: usize) -> bool {
        let (earlier, rest) = self.batches.split_at(index);
        let stream = rest.first().map(|batch| batch.stream);
        earlier.iter().any(|batch| Some(batch.stream) == stream)
    }
}

impl ArenaState {
    /// Notes that a stream uses a block, unless the block is in the order of that stream.
    pub(in crate::memory) fn add_use(
        &mut self,
        arena: &Arena,
        id: u32,
        stream: &Stream,
    ) -> Result<()> {
        self.add_use_quickly(arena, id, stream).ok_or(NO_ROOM)
    }

    /// [`ArenaState::add_use`]; none: there is no host memory.
    #[inline(always)]
    pub(in crate::memory) fn add_use_quickly(
        &mut self,
        arena: &Arena,
        id: u32,
        stream: &Stream,
    ) -> Option<()> {
        let head = self.blocks[id].uses;
        let Some(end) = self.uses.end_without(head, stream) else { return Some(()) };
        let own = self.stream_of_owner(arena, Owner::of_end(end));
        if own.is_none_or(|own| !std::ptr::eq(own, stream)) {
            self.blocks[id].uses = self.uses.push(head, id, stream)?;
        }
        Some(())
    }

    /// Makes a block wait for the streams that use it, if nothing else is to be done when it is
    /// freed. Returns its bytes, and whether it counts as oversize.
    #[inline]
    pub(in crate::memory) fn defer_if_used(&mut self, id: u32) -> Option<(i64, bool)> {
        let is_plain = self.marked == 0 && self.uses.has(self.blocks[id].uses);
        is_plain.then(|| self.defer_free(id))
    }

    /// Makes a block pending until the streams that use it are done with it.
    #[inline]
    pub(in crate::memory) fn defer_free(&mut self, id: u32) -> (i64, bool) {
        if !self.follow(id) {
            self.lead(id);
        }
        let block = &mut self.blocks[id];
        block.state = State::Pending;
        (block.bytes(), block.oversize)
    }

    /// Lets a block follow the leader, if it waits for the same streams.
    #[inline(always)]
    fn follow(&mut self, id: u32) -> bool {
        let Leader { streams, last, stamp } = &mut self.deferred.leader;
        if *last == NONE || *stamp != SyncStamp::now() {
            return false;
        }
        let block = &mut self.blocks[id];
        let Some(end) = self.uses.give_back(block.uses, streams) else { return false };
        block.uses = Owner::of_end(end).end();
        block.bin_next = NONE;
        let before = std::mem::replace(last, id);
        self.blocks[before].bin_next = id;
        true
    }

    /// Enqueues a block, and makes it the leader.
    #[inline(never)]
    fn lead(&mut self, id: u32) {
        let followed = self.uses.stream_set(self.blocks[id].uses);
        let stamp = SyncStamp::now();
        let is_whole = self.enqueue(id, stamp);
        self.deferred.overflow += u32::from(!is_whole);
        self.deferred.leader.last = NONE;
        // A block of a segment refers to its segment where other blocks refer to their follower.
        if self.segments.is_none() {
            self.blocks[id].bin_next = NONE;
            if let Some(streams) = followed.filter(|_| is_whole) {
                self.deferred.leader = Leader { streams, last: id, stamp };
            }
        }
    }

    /// The block that follows one whose wait is over.
    #[inline]
    pub(in crate::memory) fn follower(&self, id: u32) -> u32 {
        if self.segments.is_some() { NONE } else { self.blocks[id].bin_next }
    }

    /// A block whose waits are over, not merged.
    #[inline]
    pub(in crate::memory) fn complete_alone(&self, arena: &Arena, id: u32) -> CompletedBlocks {
        let block = &self.blocks[id];
        let (class, bytes) = (arena.class_of(block.units), block.bytes());
        CompletedBlocks {
            class,
            blocks: 1,
            bytes,
            requested: block.requested as i64,
            next: self.follower(id),
        }
    }

    /// Merges a block whose waits are over with those that follow it, as long as each starts where
    /// the one before ends and counts in the same class. Such blocks often came from one place.
    #[inline]
    pub(in crate::memory) fn complete_merged(&mut self, arena: &Arena, id: u32) -> CompletedBlocks {
        let CompletedBlocks { class, mut blocks, bytes: _, mut requested, mut next } =
            self.complete_alone(arena, id);
        let Block { mut units, next: mut above, uses, .. } = self.blocks[id];
        // Blocks of other streams are not merged here, and no blocks of an arena with remapped
        // memory.
        let is_plain = uses == 0 && self.segment.views.is_empty();
        while is_plain && next != NONE && next == above {
            let Block { units: more, next: after, bin_next, requested: asked, uses, .. } =
                self.blocks[next];
            if uses != 0 || arena.class_of(more) != class {
                break;
            }
            self.forget_start(next);
            self.blocks.give(next);
            if self.last == next {
                self.last = id;
            }
            units += more;
            requested += asked as i64;
            blocks += 1;
            (above, next) = (after, bin_next);
        }
        #[cfg(test)]
        JOINED.set(JOINED.get() + blocks as usize - 1);
        if blocks > 1 {
            self.forget_best();
            (self.blocks[id].units, self.blocks[id].next) = (units, above);
            self.blocks[above].previous = id;
            self.active_blocks -= blocks - 1;
        }
        CompletedBlocks { class, blocks, bytes: i64::from(units) * UNIT as i64, requested, next }
    }

    /// Counts that one of the streams that a block waits for is done with it. True: it was the
    /// last.
    #[inline]
    pub(in crate::memory) fn end_one_wait(&mut self, id: u32) -> bool {
        let block = &mut self.blocks[id];
        block.waits = block.waits.saturating_sub(1);
        block.waits == 0 && !self.uses.has(block.uses)
    }

    /// Adds a freed block to the batch of each stream that uses it; false: not to all, for lack of
    /// host memory.
    fn enqueue(&mut self, id: u32, now: SyncStamp) -> bool {
        if self.deferred.is_empty() {
            self.deferred.poll_policy.begin();
        }
        let block = &mut self.blocks[id];
        let (waits, rest) = self.uses.enqueue(&mut self.deferred, now, block.uses);
        let is_whole = !self.uses.has(rest);
        block.waits += waits;
        // The end of the list is the block's owner.
        block.uses = if is_whole { Owner::of_end(rest).end() } else { rest };
        is_whole
    }

    /// Enqueues the blocks that could not be enqueued before, as far as there is host memory now.
    pub(in crate::memory) fn enqueue_overflow(&mut self) {
        if self.deferred.overflow == 0 {
            return;
        }
        for index in 0..=self.segment.views.len() {
            let mut id = match index {
                0 => self.first,
                _ => self.segment.views.block(index - 1),
            };
            while self.deferred.overflow > 0 && id != NONE {
                let block = &self.blocks[id];
                let next = block.next;
                if block.state == State::Pending && self.uses.has(block.uses) {
                    // The stamp may be of another thread than the one that freed the block: it is
                    // later in any case.
                    if !self.enqueue(id, SyncStamp::now()) {
                        return;
                    }
                    self.deferred.overflow -= 1;
                }
                id = next;
            }
        }
    }
}
