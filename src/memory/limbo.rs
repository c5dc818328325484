//! Blocks that other streams use: who uses a live block, and which freed ones still wait.
//!
//! A freed block joins the open batch of each stream that uses it; no driver call is made. When memory
//! is next wanted, each open batch is closed by one event on its stream, so that many frees share one
//! event, and the blocks of batches whose event has passed become free.

use super::arena::ArenaState;
use super::block::{NONE, State};
use super::guests::Order;
use crate::driver::sys::CUevent;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// One stream that uses a block.
#[derive(Clone, Copy)]
struct Use {
    stream: *const Stream,
    next: u32,
}

/// The streams that use the live blocks of an arena, as lists in one array; what ends a list is
/// no place in it: 0, or what says whose the block is.
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

    /// Adds a stream to the list `head`, once, and gives the new head.
    pub(super) fn add(&mut self, head: u32, stream: &Stream) -> Result<u32> {
        let wanted = std::ptr::from_ref(stream);
        if self.iter(head).any(|known| std::ptr::eq(known, wanted)) {
            return Ok(head);
        }
        let node = Use { stream: wanted, next: head };
        if self.vacant != 0 {
            let index = self.vacant;
            let slot = &mut self.nodes[index as usize - 1];
            self.vacant = slot.next;
            *slot = node;
            return Ok(index);
        }
        self.nodes.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a block's streams"))?;
        self.nodes.push(node);
        Ok(self.nodes.len() as u32)
    }

    /// The streams of a list.
    pub(super) fn iter(&self, head: u32) -> impl Iterator<Item = *const Stream> {
        let mut next = head;
        std::iter::from_fn(move || {
            let node = self.nodes.get((next as usize).checked_sub(1)?)?;
            next = node.next;
            Some(node.stream)
        })
    }

    /// What a list ends with.
    pub(super) fn end(&self, head: u32) -> u32 {
        let mut next = head;
        while let Some(node) = (next as usize).checked_sub(1).and_then(|at| self.nodes.get(at)) {
            next = node.next;
        }
        next
    }

    /// Takes the first stream off a list: it and the rest.
    pub(super) fn pop(&mut self, head: u32) -> Option<(*const Stream, u32)> {
        let slot = self.nodes.get_mut((head as usize).checked_sub(1)?)?;
        let Use { stream, next } = *slot;
        slot.next = self.vacant;
        self.vacant = head;
        Some((stream, next))
    }
}

/// Freed blocks that wait for one stream to get past one point.
pub(super) struct Batch {
    pub stream: *const Stream,
    /// NULL while the batch is open.
    pub event: CUevent,
    pub blocks: Vec<u32>,
}

/// The batches of an arena, oldest first.
pub struct Limbo {
    pub(super) batches: Vec<Batch>,
    /// Freed blocks for which there was no host memory to stand in line: they keep their streams,
    /// and are lined up later.
    pub(super) left_out: u32,
}

// SAFETY: streams and events are shared by all threads and outlive the batches.
unsafe impl Send for Limbo {}

impl Limbo {
    pub(super) fn new() -> Limbo {
        Limbo { batches: Vec::new(), left_out: 0 }
    }

    /// Does anything wait?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.left_out == 0
    }

    /// Makes room so that `join` for this stream cannot fail.
    pub(super) fn prepare(&mut self, stream: *const Stream) -> Result<()> {
        let no_memory = |_| Error::OutOfHostMemory("the list of freed blocks");
        match self.open_batch(stream) {
            Some(batch) => batch.blocks.try_reserve(1).map_err(no_memory),
            None => {
                let mut blocks = Vec::new();
                blocks.try_reserve(8).map_err(no_memory)?;
                self.batches.try_reserve(1).map_err(no_memory)?;
                self.batches.push(Batch { stream, event: std::ptr::null_mut(), blocks });
                Ok(())
            }
        }
    }

    /// Adds a freed block to the open batch of a stream.
    pub(super) fn join(&mut self, stream: *const Stream, block: u32) -> bool {
        match self.open_batch(stream) {
            Some(batch) if batch.blocks.len() < batch.blocks.capacity() => {
                batch.blocks.push(block);
                true
            }
            _ => false,
        }
    }

    fn open_batch(&mut self, stream: *const Stream) -> Option<&mut Batch> {
        self.batches
            .iter_mut()
            .rev()
            .find(|batch| batch.event.is_null() && std::ptr::eq(batch.stream, stream))
    }
}

impl ArenaState {
    /// Puts a block that is freed in line for each of the streams that use it.
    pub(super) fn line_up(&mut self, id: u32) -> Result<()> {
        let mut head = self.blocks[id].uses;
        for stream in self.uses.iter(head) {
            self.limbo.prepare(stream)?;
        }
        let mut waits = 0;
        while let Some((stream, rest)) = self.uses.pop(head) {
            head = rest;
            waits += u16::from(self.limbo.join(stream, id));
        }
        // What is left says whose it is.
        self.blocks[id].uses = Order::of_end(head).end();
        self.blocks[id].waits = waits;
        Ok(())
    }

    /// The same for those that were left out, where there is host memory now.
    pub(super) fn line_up_the_left_out(&mut self) {
        for index in 0..=self.segment.aliases.len() {
            let mut id = match index {
                0 => self.first,
                _ => self.segment.aliases.block(index - 1),
            };
            while self.limbo.left_out > 0 && id != NONE {
                let block = &self.blocks[id];
                let next = block.next;
                if block.state == State::Pending && self.uses.iter(block.uses).next().is_some() {
                    if self.line_up(id).is_err() {
                        return;
                    }
                    self.limbo.left_out -= 1;
                }
                id = next;
            }
        }
    }
}
