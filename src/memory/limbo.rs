//! Blocks that other streams use: who uses a live block, and which freed ones still wait.
//!
//! A freed block joins the open batch of each stream that uses it; no driver call is made. When
//! memory is next wanted, the blocks of each stream that has nothing left to do become free; the
//! open batch of one that is busy is closed by one event, so that many frees share it, and its
//! blocks become free when the event has passed. [`Rest`] says when streams are left alone; never
//! where nothing else fits.

use super::arena::{Arena, ArenaState};
use super::block::{NONE, State};
use super::guests::Order;
use super::rest::Rest;
use crate::driver::sys::CUevent;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// A block that one stream uses: in the list of the block while that lives, then in the stream's
/// batch.
#[derive(Clone, Copy)]
struct Use {
    stream: *const Stream,
    block: u32,
    next: u32,
}

/// Who uses blocks, as lists in one array. What ends a list is no place in it: 0, or in a live block
/// what says whose it is. What is freed goes from list to list, so that freeing needs no memory.
pub struct Uses {
    nodes: Vec<Use>,
    vacant: u32,
}

// SAFETY: streams are shared by all threads and outlive the arenas.
unsafe impl Send for Uses {}

impl Uses {
    pub(super) fn new() -> Uses {
        Uses { nodes: Vec::new(), vacant: 0 }
    }

    /// Adds a stream to the list `head` of a block, once, and gives the new head.
    #[inline]
    pub(super) fn add(&mut self, head: u32, block: u32, stream: *const Stream) -> Result<u32> {
        let wanted = stream;
        let mut next = head;
        while let Some(node) = self.node(next) {
            if std::ptr::eq(node.stream, wanted) {
                return Ok(head);
            }
            next = node.next;
        }
        let node = Use { stream: wanted, block, next: head };
        let index = self.vacant;
        if let Some(slot) = self.nodes.get_mut((index as usize).wrapping_sub(1)) {
            self.vacant = slot.next;
            *slot = node;
            return Ok(index);
        }
        self.nodes.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a block's streams"))?;
        self.nodes.push(node);
        Ok(self.nodes.len() as u32)
    }

    #[inline]
    fn node(&self, index: u32) -> Option<Use> {
        self.nodes.get((index as usize).wrapping_sub(1)).copied()
    }

    fn set_next(&mut self, index: u32, next: u32) {
        if let Some(node) = self.nodes.get_mut((index as usize).wrapping_sub(1)) {
            node.next = next;
        }
    }

    /// Is this stream in a list?
    pub(super) fn lists(&self, head: u32, stream: *const Stream) -> bool {
        let mut next = head;
        while let Some(node) = self.node(next) {
            if std::ptr::eq(node.stream, stream) {
                return true;
            }
            next = node.next;
        }
        false
    }

    /// Takes a stream out of a list, and gives the new head.
    pub(super) fn remove(&mut self, head: u32, stream: *const Stream) -> u32 {
        let (mut before, mut next) = (0, head);
        while let Some(node) = self.node(next) {
            if std::ptr::eq(node.stream, stream) {
                self.set_next(before, node.next);
                self.set_next(next, self.vacant);
                self.vacant = next;
                return if before == 0 { node.next } else { head };
            }
            (before, next) = (next, node.next);
        }
        head
    }

    /// Is there a stream in a list?
    #[inline]
    pub(super) fn has(&self, head: u32) -> bool {
        self.node(head).is_some()
    }

    /// Puts a freed block, with its list `head`, in line for each of the streams: gives how many
    /// those are, and what is left of the list: those for which there was no host memory, or its end.
    #[inline]
    pub(super) fn line_up(&mut self, limbo: &mut Limbo, head: u32) -> (u16, u32) {
        let (mut waits, mut next) = (0, head);
        while let Some(node) = self.nodes.get_mut((next as usize).wrapping_sub(1)) {
            let Ok(batch) = limbo.open_batch(node.stream) else { break };
            let after = std::mem::replace(&mut node.next, 0);
            let last = std::mem::replace(&mut batch.last, next);
            if last == 0 {
                batch.first = next;
            } else {
                self.set_next(last, next);
            }
            waits += 1;
            next = after;
        }
        (waits, next)
    }

    /// Takes the block that has waited longest out of a batch.
    pub(super) fn pop(&mut self, batch: &mut Batch) -> Option<u32> {
        let index = batch.first;
        let node = self.node(index)?;
        self.set_next(index, self.vacant);
        self.vacant = index;
        batch.first = node.next;
        Some(node.block)
    }

    /// What a list ends with.
    pub(super) fn end(&self, head: u32) -> u32 {
        let mut next = head;
        while let Some(node) = (next as usize).checked_sub(1).and_then(|at| self.nodes.get(at)) {
            next = node.next;
        }
        next
    }
}

/// Freed blocks that wait for one stream to get past one point.
pub(super) struct Batch {
    pub stream: *const Stream,
    /// NULL while the batch is open.
    pub event: CUevent,
    /// The list of those blocks, oldest first.
    first: u32,
    last: u32,
}

/// The batches of an arena, oldest first.
pub struct Limbo {
    pub(super) batches: Vec<Batch>,
    /// Freed blocks for which there was no host memory to stand in line: they keep their streams,
    /// and are lined up later.
    pub(super) left_out: u32,
    /// When the events are asked again.
    pub(super) rest: Rest,
}

// SAFETY: streams and events are shared by all threads and outlive the batches.
unsafe impl Send for Limbo {}

impl Limbo {
    pub(super) fn new() -> Limbo {
        Limbo { batches: Vec::new(), left_out: 0, rest: Rest::default() }
    }

    /// Does anything wait?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.left_out == 0
    }

    /// The open batch of a stream, made now if there is none.
    #[inline]
    fn open_batch(&mut self, stream: *const Stream) -> Result<&mut Batch> {
        let is_it = |batch: &Batch| batch.event.is_null() && std::ptr::eq(batch.stream, stream);
        match self.batches.iter().rposition(is_it) {
            Some(index) => Ok(&mut self.batches[index]),
            None => self.add_batch(stream),
        }
    }

    #[cold]
    fn add_batch(&mut self, stream: *const Stream) -> Result<&mut Batch> {
        let no_memory = |_| Error::OutOfHostMemory("the list of freed blocks");
        self.batches.try_reserve(1).map_err(no_memory)?;
        let index = self.batches.len();
        self.batches.push(Batch { stream, event: std::ptr::null_mut(), first: 0, last: 0 });
        Ok(&mut self.batches[index])
    }

    /// Is a batch behind an earlier one of the same stream? At most one is closed: what is freed
    /// meanwhile shares the next event.
    pub(super) fn is_behind(&self, index: usize) -> bool {
        let (earlier, rest) = self.batches.split_at(index);
        let stream = rest.first().map(|batch| batch.stream);
        earlier.iter().any(|batch| Some(batch.stream) == stream)
    }
}

impl ArenaState {
    /// Notes that a stream uses a block: another than the one in whose order it is.
    #[inline]
    pub(super) fn add_use(&mut self, arena: &Arena, id: u32, stream: &Stream) -> Result<()> {
        if self.stream_of(arena, id).is_some_and(|own| std::ptr::eq(own, stream)) {
            return Ok(());
        }
        self.blocks[id].uses = self.uses.add(self.blocks[id].uses, id, stream)?;
        Ok(())
    }

    /// Puts a block that is freed in line for each of the streams that use it; false: not for all,
    /// since there is no host memory.
    pub(super) fn line_up(&mut self, id: u32) -> bool {
        if self.limbo.is_empty() {
            self.limbo.rest.begin();
        }
        let block = &mut self.blocks[id];
        let (waits, rest) = self.uses.line_up(&mut self.limbo, block.uses);
        let is_whole = !self.uses.has(rest);
        block.waits += waits;
        // What is left in the end says whose it is.
        block.uses = if is_whole { Order::of_end(rest).end() } else { rest };
        is_whole
    }

    /// The same for those that were left out, where there is host memory now.
    pub(super) fn line_up_the_left_out(&mut self) {
        if self.limbo.left_out == 0 {
            return;
        }
        for index in 0..=self.segment.aliases.len() {
            let mut id = match index {
                0 => self.first,
                _ => self.segment.aliases.block(index - 1),
            };
            while self.limbo.left_out > 0 && id != NONE {
                let block = &self.blocks[id];
                let next = block.next;
                if block.state == State::Pending && self.uses.has(block.uses) {
                    if !self.line_up(id) {
                        return;
                    }
                    self.limbo.left_out -= 1;
                }
                id = next;
            }
        }
    }
}
