//! Stream uses: the streams that use live blocks, and the batches of `deferred_free.rs` that freed
//! blocks are in. Both are lists in one array.

use crate::base::error::{Error, Result};
use crate::gpu::external_registry::Marker;
use crate::gpu::stream::Stream;
use crate::gpu::waits::SyncStamp;
use crate::memory::arena::deferred_free::{Batch, DeferredFrees};
use crate::memory::arena::marked;

/// The most streams of a block that can follow another.
pub(in crate::memory) const MOST_STREAMS: usize = 4;
pub(in crate::memory) type StreamSet = [*const Stream; MOST_STREAMS];

/// A use of a block by one stream. It is in the list of the block while that lives, then in the
/// stream's batch.
#[derive(Clone, Copy)]
struct Use {
    stream: *const Stream,
    block: u32,
    next: u32,
}

pub(in crate::memory) const NO_ROOM: Error = Error::OutOfHostMemory("a block's streams");

/// The uses of blocks, as lists in one array. What ends a list is no index of the array: 0, or for
/// a live block its owner. Freeing a block moves its uses to other lists, so that it needs no
/// memory.
pub struct Uses {
    nodes: Vec<Use>,
    vacant: u32,
}

// SAFETY: streams are shared by all threads and outlive the arenas.
unsafe impl Send for Uses {}

impl Uses {
    pub(in crate::memory) fn new() -> Uses {
        Uses { nodes: Vec::new(), vacant: 0 }
    }

    /// Makes sure that one more use can be added.
    pub(in crate::memory) fn prepare(&mut self) -> Result<()> {
        match self.vacant {
            0 => self.nodes.try_reserve(1).map_err(|_| NO_ROOM),
            _ => Ok(()),
        }
    }

    /// Adds a stream to the list `head` of a block, unless it is there already. Returns the new
    /// head.
    #[inline]
    pub(in crate::memory) fn add(
        &mut self,
        head: u32,
        block: u32,
        stream: *const Stream,
    ) -> Result<u32> {
        match self.end_without(head, stream) {
            Some(_) => self.push(head, block, stream).ok_or(NO_ROOM),
            None => Ok(head),
        }
    }

    /// The end of a list; none if the stream is in it.
    #[inline(always)]
    pub(in crate::memory) fn end_without(&self, head: u32, stream: *const Stream) -> Option<u32> {
        let mut next = head;
        while let Some(node) = self.nodes.get((next as usize).wrapping_sub(1)) {
            if std::ptr::eq(node.stream, stream) {
                return None;
            }
            next = node.next;
        }
        Some(next)
    }

    /// Adds a stream to the front of a list; none: there is no host memory.
    #[inline(always)]
    pub(in crate::memory) fn push(
        &mut self,
        head: u32,
        block: u32,
        stream: *const Stream,
    ) -> Option<u32> {
        let node = Use { stream, block, next: head };
        let index = self.vacant;
        let Some(slot) = self.nodes.get_mut((index as usize).wrapping_sub(1)) else {
            return self.push_new(node);
        };
        self.vacant = slot.next;
        // Word by word, as it is read: a processor stalls when it reads as a whole what was written
        // in parts, and a compiler copies a whole use by way of memory.
        (slot.stream, slot.block, slot.next) = (node.stream, node.block, node.next);
        Some(index)
    }

    #[cold]
    #[inline(never)]
    fn push_new(&mut self, node: Use) -> Option<u32> {
        self.nodes.try_reserve(1).ok()?;
        self.nodes.push(node);
        Some(self.nodes.len() as u32)
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
    pub(in crate::memory) fn lists(&self, head: u32, stream: *const Stream) -> bool {
        let mut next = head;
        while let Some(node) = self.node(next) {
            if std::ptr::eq(node.stream, stream) {
                return true;
            }
            next = node.next;
        }
        false
    }

    /// Takes a stream out of a list. Returns the new head.
    pub(in crate::memory) fn remove(&mut self, head: u32, stream: *const Stream) -> u32 {
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

    /// Is there any stream in a list?
    #[inline]
    pub(in crate::memory) fn has(&self, head: u32) -> bool {
        self.node(head).is_some()
    }

    /// Adds a freed block, with its list `head`, to the batch of each of the streams. Returns how
    /// many these are, and the rest of the list: the streams for which there was no host memory, or
    /// the list's end.
    #[inline]
    pub(in crate::memory) fn enqueue(
        &mut self,
        deferred: &mut DeferredFrees,
        stamp: SyncStamp,
        head: u32,
    ) -> (u16, u32) {
        let (mut waits, mut next) = (0, head);
        while let Some(node) = self.nodes.get_mut((next as usize).wrapping_sub(1)) {
            let Some(batch) = deferred.open_batch(node.stream, stamp) else { break };
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
    #[inline]
    pub(in crate::memory) fn pop(&mut self, batch: &mut Batch) -> Option<u32> {
        let index = batch.first;
        let node = self.nodes.get_mut((index as usize).wrapping_sub(1))?;
        batch.first = std::mem::replace(&mut node.next, self.vacant);
        self.vacant = index;
        Some(node.block)
    }

    /// The streams of a list, if they are at most [`MOST_STREAMS`].
    pub(in crate::memory) fn stream_set(&self, head: u32) -> Option<StreamSet> {
        let (mut streams, mut next) = ([std::ptr::null(); MOST_STREAMS], head);
        for place in &mut streams {
            let Some(node) = self.node(next) else { break };
            (*place, next) = (node.stream, node.next);
        }
        (!self.has(next)).then_some(streams)
    }

    /// Makes a list vacant if these are its streams, in this order. Returns its end.
    #[inline(always)]
    pub(in crate::memory) fn give_back(&mut self, head: u32, streams: &StreamSet) -> Option<u32> {
        let (mut last, mut next) = (0, head);
        for stream in streams {
            let Some(node) = self.nodes.get((next as usize).wrapping_sub(1)) else {
                if stream.is_null() {
                    break;
                } else {
                    return None;
                };
            };
            if !std::ptr::eq(node.stream, *stream) {
                return None;
            }
            (last, next) = (next as usize, node.next);
        }
        if self.has(next) {
            return None;
        }
        self.nodes.get_mut(last.wrapping_sub(1))?.next = self.vacant;
        self.vacant = head;
        Some(next)
    }

    /// Marks the streams that are in lists.
    pub(in crate::memory) fn mark_streams(&mut self, marker: Marker) {
        let mut next = self.vacant;
        while let Some(node) = self.nodes.get_mut((next as usize).wrapping_sub(1)) {
            node.stream = std::ptr::null();
            next = node.next;
        }
        let streams = self.nodes.iter().map(|node| node.stream);
        streams.filter(|stream| marked::is_stream(*stream)).for_each(|stream| marker.mark(stream));
    }

    /// The end of a list.
    pub(in crate::memory) fn end(&self, head: u32) -> u32 {
        let mut next = head;
        while let Some(node) = (next as usize).checked_sub(1).and_then(|at| self.nodes.get(at)) {
            next = node.next;
        }
        next
    }
}
