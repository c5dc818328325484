//! Deferred frees: a freed block that other streams may still use is *pending*, and waits for them
//! in a queue (`stream_uses.rs`), without a driver call. When memory is next needed, the streams
//! are polled (`device/settle.rs`), unless the poll can be skipped (`poll_policy.rs`).

use crate::base::error::Result;
use crate::gpu::stream::Stream;
use crate::memory::arena::block::{Block, NONE, State};
use crate::memory::arena::foreign_free::Owner;
use crate::memory::arena::stream_uses::{Group, NO_ROOM};
use crate::memory::arena::{Arena, ArenaState};
use crate::memory::config::size::{Class, UNIT};
use crate::observe::flags;

#[cfg(test)]
thread_local! {
    /// Blocks that a thread's calls merged with those that they followed.
    pub(in crate::memory) static JOINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
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
            self.blocks[id].uses = self.uses.push(head, stream)?;
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
        if self.uses.is_queue_empty() {
            self.polls.begin_waiting();
        }
        let block = &mut self.blocks[id];
        let end = self.uses.enqueue(block.uses, id);
        // Only its owner is left.
        block.uses = Owner::of_end(end).end();
        block.state = State::Pending;
        (block.bytes(), block.oversize)
    }

    /// Merges a block whose waits are over with those that follow it in its group, as long as each
    /// starts where the one before ends and counts in the same class. Such blocks often came from
    /// one place. Returns the class, and how many blocks, bytes and requested bytes they were.
    #[inline]
    pub(in crate::memory) fn merge_completed(
        &mut self,
        arena: &Arena,
        id: u32,
        group: &mut Group,
    ) -> (Class, [i64; 3]) {
        let Block { mut units, next: mut above, uses, requested, .. } = self.blocks[id];
        let (class, mut blocks, mut requested) = (arena.class_of(units), 1, requested as i64);
        // Blocks of other streams are not merged here, and no blocks of an arena with remapped
        // memory or segments. Observers see each block.
        let is_plain = uses == 0 && self.segment.views.is_empty() && self.segments.is_none();
        let merges = is_plain && !flags::is_watched();
        while merges && group.next != NONE && group.next == above {
            let next = group.next;
            let Block { units: more, next: after, requested: asked, uses, .. } = self.blocks[next];
            if uses != 0 || arena.class_of(more) != class {
                break;
            }
            self.uses.next_block(group);
            self.forget_start(next);
            self.blocks.give(next);
            if self.last == next {
                self.last = id;
            }
            units += more;
            requested += asked as i64;
            blocks += 1;
            above = after;
        }
        #[cfg(test)]
        JOINED.set(JOINED.get() + blocks as usize - 1);
        if blocks > 1 {
            self.forget_best();
            (self.blocks[id].units, self.blocks[id].next) = (units, above);
            self.blocks[above].previous = id;
            self.active_blocks -= blocks - 1;
        }
        (class, [blocks, i64::from(units) * UNIT as i64, requested])
    }
}
