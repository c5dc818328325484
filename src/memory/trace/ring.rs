//! The events of the allocator, and the ring buffer that keeps the newest of them.
//!
//! A ring has its own mapping and grows in place. If an event finds no memory, it is dropped and
//! counted; no allocation fails or waits because of it.

use crate::base::error::{Error, Result};
use crate::base::region::{Region, Zeroed};
use crate::memory::config::pool_id::PoolId;

/// The kinds of events, with PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// A block was allocated.
    Alloc = 0,
    /// The host freed a block.
    FreeRequested = 1,
    /// The block can be allocated again.
    FreeCompleted = 2,
    /// A segment was allocated by the driver.
    SegmentAlloc = 3,
    /// A segment was freed to the driver.
    SegmentFree = 4,
    /// Memory was mapped.
    SegmentMap = 5,
    /// Memory was unmapped.
    SegmentUnmap = 6,
    /// A snapshot was taken.
    Snapshot = 7,
    /// An allocation failed for lack of memory.
    OutOfMemory = 8,
    /// The host attached a text to an allocated block.
    Annotate = 9,
}

impl Action {
    /// All actions, in the order of their numbers.
    pub const ALL: [Action; 10] = [
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Snapshot,
        Action::OutOfMemory,
        Action::Annotate,
    ];

    /// PyTorch's name of the action.
    pub fn name(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Snapshot => "snapshot",
            Action::OutOfMemory => "oom",
            Action::Annotate => "annotate",
        }
    }

    /// Its bit in a set of actions.
    pub fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Parses a list of names as a set of actions; the error is the first unknown name.
    pub fn parse_set(names: &str) -> Result<u32, &str> {
        let mut set = 0;
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let action = Action::ALL.into_iter().find(|action| action.name() == name);
            set |= action.ok_or(name)?.bit();
        }
        Ok(set)
    }
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// First address; for [`Action::OutOfMemory`], the device's free bytes.
    pub address: u64,
    /// Bytes: as requested, for blocks; as mapped, for segments.
    pub bytes: u64,
    /// The driver's handle of the stream.
    pub stream: u64,
    /// The private pool, as a word of [`crate::memory::config::pool_id::PoolId`].
    pub pool: u64,
    /// Microseconds since 1970.
    pub time_us: i64,
    /// Id of the stack of frames; 0: none.
    pub stack: u32,
    /// Id of the text of the host, which `stacks.rs` keeps as a stack; 0: none.
    pub metadata: u32,
    /// Id of the text of the thread's context of compilation, kept likewise; 0: none.
    pub compilation: u32,
    /// The kind of the event.
    pub action: Action,
}

impl Event {
    /// An event of which nothing is known but its action.
    pub const fn of(action: Action) -> Event {
        Event {
            address: 0,
            bytes: 0,
            stream: 0,
            pool: 0,
            time_us: 0,
            stack: 0,
            metadata: 0,
            compilation: 0,
            action,
        }
    }

    /// The private pool.
    pub fn pool_id(&self) -> PoolId {
        PoolId::of_word(self.pool)
    }
}

// SAFETY: integers, and Action has a value 0.
unsafe impl Zeroed for Event {}

/// The newest events of a device.
pub struct Ring {
    events: Option<Region<Event>>,
    /// The largest number of events; set by the first event.
    most: usize,
    len: usize,
    /// The index of the next event once the ring is full.
    next: usize,
    dropped: u64,
}

impl Ring {
    /// An empty ring without memory.
    pub const fn new() -> Ring {
        Ring { events: None, most: 0, len: 0, next: 0, dropped: 0 }
    }

    /// Adds an event to a ring of at most `most` events; replaces the oldest if it is full.
    pub fn push(&mut self, event: Event, most: usize) {
        if self.most != most && self.resize(most).is_err() && self.most == 0 {
            self.dropped += 1;
            return;
        }
        let Some(events) = &mut self.events else { return };
        if self.len == self.most {
            events.as_mut_slice()[self.next] = event;
            self.next = (self.next + 1) % self.most;
        } else if self.len < events.as_slice().len() || events.grow(self.len + 1).is_ok() {
            events.as_mut_slice()[self.len] = event;
            self.len += 1;
        } else {
            self.dropped += 1;
        }
    }

    /// Changes the largest number of events, keeping the newest.
    fn resize(&mut self, most: usize) -> Result<()> {
        let most = most.max(1);
        let mut events = Region::new(most);
        let kept = self.len.min(most);
        events.grow(kept.max(1))?;
        let older = self.len - kept;
        for (index, event) in self.iter().skip(older).enumerate() {
            events.as_mut_slice()[index] = *event;
        }
        *self = Ring { events: Some(events), most, len: kept, next: 0, dropped: self.dropped };
        Ok(())
    }

    /// The events, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Event> {
        let (older, newer) = self.halves();
        older.iter().chain(newer)
    }

    fn halves(&self) -> (&[Event], &[Event]) {
        let Some(events) = &self.events else { return (&[], &[]) };
        let (newer, older) = events.as_slice()[..self.len].split_at(self.next);
        (older, newer)
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is the ring empty?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of events that were dropped for lack of host memory.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Appends all events to a list that has room.
    pub fn copy_to(&self, list: &mut Vec<Event>) -> Result<()> {
        if list.capacity() - list.len() < self.len {
            return Err(Error::OutOfHostMemory("a snapshot"));
        }
        let (older, newer) = self.halves();
        list.extend_from_slice(older);
        list.extend_from_slice(newer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(address: u64) -> Event {
        Event { address, bytes: 1, ..Event::of(Action::Alloc) }
    }

    fn addresses(ring: &Ring) -> Vec<u64> {
        ring.iter().map(|event| event.address).collect()
    }

    #[test]
    fn keeps_the_newest_in_order() {
        let mut ring = Ring::new();
        assert!(addresses(&ring).is_empty());
        for address in 0..3 {
            ring.push(event(address), 4);
        }
        assert_eq!(addresses(&ring), [0, 1, 2]);
        for address in 3..11 {
            ring.push(event(address), 4);
        }
        assert_eq!(addresses(&ring), [7, 8, 9, 10]);
        let mut list = Vec::new();
        assert!(ring.copy_to(&mut list).is_err(), "there is no room");
        list.reserve(4);
        ring.copy_to(&mut list).unwrap();
        assert_eq!(list, ring.iter().copied().collect::<Vec<_>>());
    }

    #[test]
    fn another_size_keeps_the_newest() {
        let mut ring = Ring::new();
        (0..7).for_each(|address| ring.push(event(address), 5));
        ring.push(event(7), 3);
        assert_eq!(addresses(&ring), [5, 6, 7]);
        ring.push(event(8), 6);
        assert_eq!(addresses(&ring), [5, 6, 7, 8]);
        (9..12).for_each(|address| ring.push(event(address), 6));
        assert_eq!(addresses(&ring), [6, 7, 8, 9, 10, 11]);
        ring.push(event(12), 1);
        assert_eq!(addresses(&ring), [12]);
    }

    #[test]
    fn grows_past_its_first_pages() {
        let mut ring = Ring::new();
        (0..50_000).for_each(|address| ring.push(event(address), 1 << 20));
        assert_eq!(ring.len(), 50_000);
        assert!(addresses(&ring).into_iter().eq(0..50_000));
    }

    #[test]
    fn a_ring_of_huge_limit_uses_only_the_memory_that_it_needs() {
        let mut ring = Ring::new();
        ring.push(event(0), 1 << 57);
        assert_eq!((ring.len(), ring.dropped()), (1, 0));
        ring.push(event(1), 2);
        ring.push(event(2), 1 << 57);
        assert_eq!(addresses(&ring), [0, 1, 2]);
    }

    #[test]
    fn names_of_actions_are_parsed() {
        let set = Action::parse_set("snapshot, segment_map,").unwrap();
        assert_eq!(set, Action::Snapshot.bit() | Action::SegmentMap.bit());
        assert_eq!(Action::parse_set(""), Ok(0));
        assert_eq!(Action::parse_set("alloc,malloc"), Err("malloc"));
        assert!(Action::ALL.iter().enumerate().all(|(n, action)| *action as usize == n));
    }
}
