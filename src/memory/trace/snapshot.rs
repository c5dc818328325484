//! The state of the caches at one moment: segments, their blocks, and the recorded history.
//! `device/snapshot.rs` makes the list.

use super::dictionary::Sink;
use super::ring::Event;
use super::{history, json, page, pickle};
use crate::base::error::{Error, Result};
use crate::base::file;
use crate::base::frames::Stacks;
use crate::base::text::Text;
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::settings::{self, Settings};
use crate::memory::config::size::Class;

/// The state of a block, in PyTorch's terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// Cached and free.
    Inactive,
    /// Allocated.
    ActiveAllocated,
    /// Freed, and waiting for other streams.
    ActivePendingFree,
}

/// A contiguous range of memory from the driver.
#[derive(Clone, Copy, Debug)]
pub struct SegmentView {
    /// The device's ordinal.
    pub device: i32,
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes of allocated blocks and of pending blocks.
    pub active: u64,
    /// Requested bytes of the active blocks.
    pub requested: u64,
    /// The driver's handle of the stream that it serves.
    pub stream: usize,
    /// PyTorch's id of the stream.
    pub stream_id: i64,
    /// The private pool that it belongs to.
    pub pool: PoolId,
    /// Size class.
    pub class: Class,
    /// Is it mapped, so that it can grow?
    pub is_expandable: bool,
    /// Index of its first block.
    pub first_block: usize,
    /// Number of its blocks.
    pub blocks: usize,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug)]
pub struct BlockView {
    /// The device's ordinal.
    pub device: i32,
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Requested bytes; 0 if inactive.
    pub requested: u64,
    /// The state.
    pub state: BlockState,
    /// Id of the stack that allocated it; 0: none.
    pub stack: u32,
}

/// The history of a device: a range of the events.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventRange {
    /// Index of its first event.
    pub first_event: usize,
    /// Number of its events.
    pub events: usize,
    /// Events that were dropped for lack of host memory.
    pub dropped: u64,
    /// The peak of the allocated bytes.
    pub allocated_peak: i64,
    /// The peak of the reserved bytes.
    pub reserved_peak: i64,
}

/// The segments of all devices, ordered by device and address, and their blocks in the same order.
#[derive(Default)]
pub struct Snapshot {
    /// Segments.
    pub segments: Vec<SegmentView>,
    /// The blocks of all segments.
    pub blocks: Vec<BlockView>,
    /// The history of each device.
    pub devices: Vec<EventRange>,
    /// The history of pinned memory.
    pub host: EventRange,
    /// The events of all histories, oldest first in each.
    pub events: Vec<Event>,
    /// The stacks of events and blocks.
    pub stacks: Stacks,
    /// The allocator's settings.
    pub settings: Settings,
}

/// The room that a list needs: segments, blocks, events.
pub(in crate::memory) type Room = (usize, usize, usize);

impl Snapshot {
    /// A snapshot of no device, for the time before the first use.
    pub fn before_any_use() -> Result<Snapshot> {
        Ok(Snapshot { settings: settings::current()?, ..Snapshot::default() })
    }

    pub(in crate::memory) fn has_room(&self, (segments, blocks, events): Room) -> bool {
        self.segments.capacity() - self.segments.len() >= segments
            && self.blocks.capacity() - self.blocks.len() >= blocks
            && self.events.capacity() - self.events.len() >= events
    }

    /// Adds the events of a device, or of pinned memory. Room was reserved.
    pub(in crate::memory) fn add_events(
        &mut self,
        device: Option<i32>,
        pool: Option<PoolId>,
    ) -> Result<EventRange> {
        let ring = history::ring(device);
        let first_event = self.events.len();
        match pool {
            None => ring.copy_to(&mut self.events)?,
            Some(pool) if self.has_room((0, 0, ring.len())) => {
                self.events.extend(ring.iter().filter(|event| event.pool == pool.word()));
            }
            Some(_) => return Err(Error::OutOfHostMemory("a snapshot")),
        }
        let (events, dropped) = (self.events.len() - first_event, ring.dropped());
        Ok(EventRange { first_event, events, dropped, ..EventRange::default() })
    }

    /// Writes a pickle that PyTorch's viewer opens.
    pub fn pickle(&self, sink: &mut Sink<'_>) -> Result<()> {
        pickle::pickle(self, sink)
    }

    /// Writes the same dictionary as JSON, in ASCII.
    pub fn json(&self, sink: &mut Sink<'_>) -> Result<()> {
        json::json(self, sink)
    }

    /// Writes an HTML page that shows the snapshot, in ASCII.
    pub fn page(&self, sink: &mut Sink<'_>) -> Result<()> {
        page::page(self, sink)
    }

    /// Writes one of the three formats to a file, chosen by its suffix.
    pub fn save(&self, path: &str) -> Result<()> {
        let write = match path.rsplit_once('.') {
            Some((_, "pickle")) => Snapshot::pickle,
            Some((_, "json")) => Snapshot::json,
            Some((_, "html")) => Snapshot::page,
            _ => {
                return Err(Error::BadText {
                    name: "path",
                    value: Text::new(path),
                    allowed: "end it in .pickle, .json or .html",
                });
            }
        };
        file::replace(path, |put| write(self, put))
    }

    /// The events of a history, oldest first.
    pub fn events_in(&self, range: &EventRange) -> &[Event] {
        &self.events[range.first_event..range.first_event + range.events]
    }

    /// Reserves somewhat more room than was needed, because other threads allocate meanwhile.
    pub(in crate::memory) fn make_room(&mut self, (segments, blocks, events): Room) -> Result<()> {
        let no_memory = |_| Error::OutOfHostMemory("a snapshot");
        self.segments.try_reserve(segments + segments / 8 + 8).map_err(no_memory)?;
        self.blocks.try_reserve(blocks + blocks / 8 + 64).map_err(no_memory)?;
        let more = if events == 0 { 0 } else { events + events / 8 + 64 };
        self.events.try_reserve(more).map_err(no_memory)
    }

    /// Sorts the segments and blocks that were added arena by arena, by address.
    pub(in crate::memory) fn sort_from(&mut self, first_segment: usize, first_block: usize) {
        self.blocks[first_block..].sort_unstable_by_key(|block| block.address);
        self.segments[first_segment..].sort_unstable_by_key(|segment| segment.address);
        let mut next = first_block;
        for segment in &mut self.segments[first_segment..] {
            segment.first_block = next;
            next += segment.blocks;
        }
    }
}
