//! Stream uses: the streams that use live blocks, and the queue of freed blocks that wait for them.
//!
//! The queue consists of groups in the order of release. A group has freed blocks, and the streams
//! that all of them wait for. A freed block joins a group with the same streams, or begins one. An
//! event that is recorded on a stream *covers* the waits of the groups that wait for it then. A
//! group with a covered wait accepts no more blocks: the event does not cover later work. When
//! a group waits for no stream any more, its blocks become free. A stream has at most one event at
//! a time, which many blocks share.
//!
//! All lists are in one array. A free needs no memory: room for the queue is reserved when a stream
//! use is added.

use crate::base::error::{Error, Result};
use crate::driver::sys::CUevent;
use crate::gpu::external_registry::Marker;
use crate::gpu::stream::Stream;
use crate::gpu::waits::SyncStamp;
use crate::memory::arena::block::NONE;
use crate::memory::arena::marked;

pub(in crate::memory) const NO_ROOM: Error = Error::OutOfHostMemory("a block's streams");

/// An entry of a list: a stream of a live block or of a group, or a block of a group.
#[derive(Clone, Copy)]
struct Use {
    stream: *const Stream,
    /// A group's stream: 1 if an event covers the wait, else 0. A group's block: its index.
    value: u32,
    next: u32,
}

/// Freed blocks that wait for the same streams.
pub(in crate::memory) struct Group {
    /// The list of the streams.
    streams: u32,
    /// The next block, and the list of those that follow it.
    pub(in crate::memory) next: u32,
    first: u32,
    last: u32,
    /// When the last of them was freed.
    stamp: SyncStamp,
}

/// A stream that groups wait for.
#[derive(Clone, Copy)]
pub(in crate::memory) struct Awaited {
    pub(in crate::memory) stream: *const Stream,
    /// The event that covers waits; NULL: none.
    pub(in crate::memory) event: CUevent,
}

/// The uses of blocks, as lists in one array. What ends a list is no index of the array: 0, or for
/// a live block its owner.
pub struct Uses {
    nodes: Vec<Use>,
    vacant: u32,
    groups: Vec<Group>,
    pub(in crate::memory) awaited: Vec<Awaited>,
}

// SAFETY: streams and events are shared by all threads and outlive the arenas.
unsafe impl Send for Uses {}

impl Uses {
    pub(in crate::memory) fn new() -> Uses {
        Uses { nodes: Vec::new(), vacant: 0, groups: Vec::new(), awaited: Vec::new() }
    }

    /// Makes sure that one more use can be added.
    pub(in crate::memory) fn prepare(&mut self) -> Result<()> {
        if self.vacant == 0 { self.reserve().ok_or(NO_ROOM) } else { Ok(()) }
    }

    /// Reserves room for one more use, and for a group and a stream for each use.
    fn reserve(&mut self) -> Option<()> {
        self.nodes.try_reserve(1).ok()?;
        let all = self.nodes.len() + 1;
        self.groups.try_reserve(all - self.groups.len()).ok()?;
        self.awaited.try_reserve(all - self.awaited.len()).ok()
    }

    /// Adds a stream to the list `head` of a block, unless it is there already. Returns the new
    /// head.
    #[inline]
    pub(in crate::memory) fn add(&mut self, head: u32, stream: *const Stream) -> Result<u32> {
        match self.end_without(head, stream) {
            Some(_) => self.push(head, stream).ok_or(NO_ROOM),
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
    pub(in crate::memory) fn push(&mut self, head: u32, stream: *const Stream) -> Option<u32> {
        let index = self.vacant;
        let Some(slot) = self.node_mut(index) else { return self.push_new(head, stream) };
        let vacant = slot.next;
        // Word by word, as it is read: a processor stalls when it reads as a whole what was written
        // in parts, and a compiler copies a whole use by way of memory.
        (slot.stream, slot.value, slot.next) = (stream, 0, head);
        self.vacant = vacant;
        Some(index)
    }

    #[cold]
    #[inline(never)]
    fn push_new(&mut self, head: u32, stream: *const Stream) -> Option<u32> {
        self.reserve()?;
        self.nodes.push(Use { stream, value: 0, next: head });
        Some(self.nodes.len() as u32)
    }

    #[inline(always)]
    fn node(&self, index: u32) -> Option<&Use> {
        self.nodes.get((index as usize).wrapping_sub(1))
    }

    #[inline(always)]
    fn node_mut(&mut self, index: u32) -> Option<&mut Use> {
        self.nodes.get_mut((index as usize).wrapping_sub(1))
    }

    /// The entry of a stream in a list, and the entry before it.
    fn find(&self, head: u32, stream: *const Stream) -> Option<(u32, u32)> {
        let (mut before, mut next) = (0, head);
        while let Some(node) = self.node(next) {
            if std::ptr::eq(node.stream, stream) {
                return Some((before, next));
            }
            (before, next) = (next, node.next);
        }
        None
    }

    /// Is this stream in a list?
    pub(in crate::memory) fn lists(&self, head: u32, stream: *const Stream) -> bool {
        self.find(head, stream).is_some()
    }

    /// Takes a stream out of a list. Returns the new head.
    pub(in crate::memory) fn remove(&mut self, head: u32, stream: *const Stream) -> u32 {
        let Some((before, index)) = self.find(head, stream) else { return head };
        let vacant = std::mem::replace(&mut self.vacant, index);
        let Some(node) = self.node_mut(index) else { return head };
        let next = std::mem::replace(&mut node.next, vacant);
        let Some(before) = self.node_mut(before) else { return next };
        before.next = next;
        head
    }

    /// Is there any stream in a list?
    #[inline]
    pub(in crate::memory) fn has(&self, head: u32) -> bool {
        self.node(head).is_some()
    }

    /// The end of a block's list.
    pub(in crate::memory) fn end(&self, head: u32) -> u32 {
        self.end_without(head, std::ptr::null()).unwrap_or(0)
    }

    /// Changes the end of a block's list. Returns the new head.
    pub(in crate::memory) fn set_end(&mut self, head: u32, end: u32) -> u32 {
        let (mut last, mut next) = (0, head);
        while let Some(node) = self.node(next) {
            (last, next) = (next, node.next);
        }
        match self.node_mut(last) {
            Some(node) => node.next = end,
            None => return end,
        }
        head
    }

    /// Does no freed block wait?
    #[inline]
    pub(in crate::memory) fn is_queue_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The number of groups.
    #[cfg(test)]
    pub(in crate::memory) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Adds a freed block to the queue, with its list of streams, which is not empty. Returns the
    /// end of the list.
    #[inline]
    pub(in crate::memory) fn enqueue(&mut self, head: u32, block: u32) -> u32 {
        let stamp = SyncStamp::now();
        let mut newest_first = (0..self.groups.len()).rev();
        let joined = newest_first.find_map(|index| self.join(index, head, block, stamp));
        joined.unwrap_or_else(|| self.begin_group(head, block, stamp))
    }

    /// Adds a freed block to a group, if that waits for the same streams, and no wait is covered.
    /// Its stamp becomes that of the group: what is over then is over for earlier frees too.
    #[inline(always)]
    fn join(&mut self, index: usize, head: u32, block: u32, stamp: SyncStamp) -> Option<u32> {
        let group = self.groups.get(index)?;
        let (mut last, mut end, mut wait) = (0, head, group.streams);
        while let Some(own) = self.node(end) {
            let other = self.node(wait)?;
            if !std::ptr::eq(own.stream, other.stream) || other.value != 0 {
                return None;
            }
            (last, end, wait) = (end, own.next, other.next);
        }
        if self.has(wait) {
            return None;
        }
        // The first entry becomes that of the block; the others become vacant.
        let node = self.node_mut(head)?;
        node.value = block;
        let second = std::mem::replace(&mut node.next, 0);
        if last != head {
            let vacant = std::mem::replace(&mut self.vacant, second);
            self.node_mut(last)?.next = vacant;
        }
        let group = self.groups.get_mut(index)?;
        group.stamp = stamp;
        match std::mem::replace(&mut group.last, head) {
            0 => group.first = head,
            before => self.node_mut(before)?.next = head,
        }
        Some(end)
    }

    /// Adds a freed block to the queue as a group of its own.
    #[inline(never)]
    fn begin_group(&mut self, head: u32, block: u32, stamp: SyncStamp) -> u32 {
        let mut next = head;
        while let Some(&Use { stream, next: following, .. }) = self.node(next) {
            if !self.awaited.iter().any(|awaited| std::ptr::eq(awaited.stream, stream)) {
                self.awaited.push(Awaited { stream, event: std::ptr::null_mut() });
            }
            next = following;
        }
        self.groups.push(Group { streams: head, next: block, first: 0, last: 0, stamp });
        next
    }

    /// Passes each group's wait for a stream to `is_over`: when the group's blocks were freed, and
    /// whether an event covers the wait. Ends the wait if it is over. Returns how many waits
    /// are left, not covered and covered.
    pub(in crate::memory) fn end_waits(
        &mut self,
        stream: *const Stream,
        is_over: impl Fn(SyncStamp, bool) -> bool,
    ) -> [u32; 2] {
        let mut left = [0, 0];
        for index in 0..self.groups.len() {
            let Group { streams, stamp, .. } = self.groups[index];
            let Some((_, wait)) = self.find(streams, stream) else { continue };
            let is_covered = self.node(wait).is_some_and(|node| node.value != 0);
            if is_over(stamp, is_covered) {
                self.groups[index].streams = self.remove(streams, stream);
            } else {
                left[usize::from(is_covered)] += 1;
            }
        }
        left
    }

    /// Sets the event that was recorded on a stream: it covers all waits for the stream.
    pub(in crate::memory) fn cover_waits(&mut self, awaited: usize, event: CUevent) {
        let Awaited { stream, .. } = self.awaited[awaited];
        self.awaited[awaited].event = event;
        for index in 0..self.groups.len() {
            let wait = self.find(self.groups[index].streams, stream);
            if let Some(node) = wait.and_then(|(_, wait)| self.node_mut(wait)) {
                node.value = 1;
            }
        }
    }

    /// Takes all groups out of the queue. The caller passes those that still wait to
    /// [`Uses::put_back`].
    pub(in crate::memory) fn take_groups(&mut self) -> Vec<Group> {
        std::mem::take(&mut self.groups)
    }

    /// Does a group wait for a stream?
    pub(in crate::memory) fn waits(&self, group: &Group) -> bool {
        self.has(group.streams)
    }

    /// Undoes [`Uses::take_groups`]. Nothing was added to the queue since.
    pub(in crate::memory) fn put_back(&mut self, groups: Vec<Group>) {
        debug_assert!(self.groups.is_empty(), "no group began meanwhile");
        self.groups = groups;
    }

    /// Takes the next block out of a group that is not in the queue.
    #[inline]
    pub(in crate::memory) fn next_block(&mut self, group: &mut Group) -> Option<u32> {
        let (vacant, first) = (self.vacant, group.first);
        let following = match self.node_mut(first) {
            None => NONE,
            Some(node) => {
                group.first = std::mem::replace(&mut node.next, vacant);
                let block = node.value;
                self.vacant = first;
                block
            }
        };
        let block = std::mem::replace(&mut group.next, following);
        (block != NONE).then_some(block)
    }

    /// Marks the streams that are in lists.
    pub(in crate::memory) fn mark_streams(&mut self, marker: Marker) {
        let mut next = self.vacant;
        while let Some(node) = self.node_mut(next) {
            node.stream = std::ptr::null();
            next = node.next;
        }
        let streams = self.nodes.iter().map(|node| node.stream);
        streams.filter(|stream| marked::is_stream(*stream)).for_each(|stream| marker.mark(stream));
    }
}
