//! The state of the caches at one moment: segments, their blocks, and the recorded history.
//!
//! A device is listed while its ledger freezes every arena, so that the list is consistent. A
//! thread that waits for the ledger or the device has completed its change there. No bookkeeping is
//! done before a snapshot, and no host memory is allocated while the arenas are frozen: room is
//! reserved in advance, and if it is too small, the list is started again with more.

use super::dictionary::Sink;
use super::ring::Event;
use super::{history, json, page, pickle, stacks};
use crate::base::error::{Error, Result};
use crate::base::file;
use crate::base::frames::Stacks;
use crate::base::text::Text;
use crate::gpu::device::Device;
use crate::memory::arena::block::{NONE, State};
use crate::memory::arena::{Arena, ArenaState};
use crate::memory::backing::segmented;
use crate::memory::backing::uncached::{self, Block};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::settings::{self, Settings};
use crate::memory::config::size::{Class, UNIT};
use crate::memory::stats::ledger::{ALL, ALLOCATED_BYTES, Statistics};
use crate::memory::{DeviceMemory, DeviceStats};

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
type Room = (usize, usize, usize);

/// Address and length of the segment that contains an address.
pub fn segment_of(address: u64) -> Result<(u64, u64)> {
    let Some((arena, offset)) = crate::memory::backing::virtual_memory::arena_of(address) else {
        if uncached::has(address) {
            return uncached::segment_of(address);
        }
        return segmented::segment_of(address)
            .ok_or_else(|| crate::memory::unknown_pointer(address));
    };
    let _guard = arena.lock.enter()?;
    // SAFETY: the lock is held, and this is the only reference.
    let range = unsafe { arena.state() }.segment.range_of((offset / UNIT) as u32);
    let (start, units) = range.ok_or_else(|| crate::memory::unknown_pointer(address))?;
    Ok((arena.base + u64::from(start) * UNIT, u64::from(units) * UNIT))
}

impl Snapshot {
    /// A snapshot of no device, for the time before the first use.
    pub fn before_any_use() -> Result<Snapshot> {
        Ok(Snapshot { settings: settings::current()?, ..Snapshot::default() })
    }

    /// Lists the devices one after the other, with their history if `with_history`; with `pool`,
    /// only this private pool.
    pub fn of(devices: &[Device], pool: Option<PoolId>, with_history: bool) -> Result<Snapshot> {
        let _records = history::lock_records();
        let mut snapshot = Snapshot::before_any_use()?;
        let no_memory = |_| Error::OutOfHostMemory("a snapshot");
        snapshot.devices.try_reserve_exact(devices.len()).map_err(no_memory)?;
        devices
            .iter()
            .try_for_each(|device| device.memory().list(&mut snapshot, pool, with_history))?;
        if with_history {
            let room = history::ring(None).len();
            snapshot.make_room((0, 0, room))?;
            snapshot.host = snapshot.add_events(None, None)?;
            snapshot.stacks = stacks::copy()?;
        }
        Ok(snapshot)
    }

    fn has_room(&self, (segments, blocks, events): Room) -> bool {
        self.segments.capacity() - self.segments.len() >= segments
            && self.blocks.capacity() - self.blocks.len() >= blocks
            && self.events.capacity() - self.events.len() >= events
    }

    /// Adds the events of a device, or of pinned memory. Room was reserved.
    fn add_events(&mut self, device: Option<i32>, pool: Option<PoolId>) -> Result<EventRange> {
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
    fn make_room(&mut self, (segments, blocks, events): Room) -> Result<()> {
        let no_memory = |_| Error::OutOfHostMemory("a snapshot");
        self.segments.try_reserve(segments + segments / 8 + 8).map_err(no_memory)?;
        self.blocks.try_reserve(blocks + blocks / 8 + 64).map_err(no_memory)?;
        let more = if events == 0 { 0 } else { events + events / 8 + 64 };
        self.events.try_reserve(more).map_err(no_memory)
    }

    /// Sorts the segments and blocks that were added arena by arena, by address.
    fn sort_from(&mut self, first_segment: usize, first_block: usize) {
        self.blocks[first_block..].sort_unstable_by_key(|block| block.address);
        self.segments[first_segment..].sort_unstable_by_key(|segment| segment.address);
        let mut next = first_block;
        for segment in &mut self.segments[first_segment..] {
            segment.first_block = next;
            next += segment.blocks;
        }
    }

    /// Adds an uncached block as the only block of its segment. Room was reserved.
    fn add_uncached(&mut self, address: u64, block: &Block) {
        let (device, bytes, stream) = (block.device, block.bytes, block.stream());
        self.segments.push(SegmentView {
            device,
            address,
            bytes,
            allocated: bytes,
            active: bytes,
            requested: bytes,
            stream: stream.native() as usize,
            stream_id: stream.id(),
            pool: PoolId::DEFAULT,
            class: block.class(),
            is_expandable: false,
            first_block: self.blocks.len(),
            blocks: 1,
        });
        self.blocks.push(BlockView {
            device,
            address,
            bytes,
            requested: bytes,
            state: BlockState::ActiveAllocated,
            stack: block.stack.id(),
        });
    }

    /// Adds the segments and blocks of an arena. Room was reserved.
    fn add(&mut self, arena: &Arena) {
        // SAFETY: the ledger has frozen all arenas, by their locks or parked, and none is written.
        let state = unsafe { &*arena.state.get() };
        let views = state.segment.views.live().map(|view| view.block);
        for first in std::iter::once(state.first).chain(views) {
            self.add_blocks(arena, state, first);
        }
    }

    /// Adds the blocks from `first` on, and their segments.
    fn add_blocks(&mut self, arena: &Arena, state: &ArenaState, first: u32) {
        let stream = arena.stream();
        let (mut id, mut joins) = (first, false);
        while id != NONE {
            let block = &state.blocks[id];
            let kind = match block.state {
                State::Free | State::Quick | State::ForeignFree => Some(BlockState::Inactive),
                State::Allocated => Some(BlockState::ActiveAllocated),
                State::Pending => Some(BlockState::ActivePendingFree),
                State::Hole | State::Gap | State::Lent | State::Vacant => None,
            };
            if let Some(kind) = kind {
                let (address, bytes) = (state.address(arena.base, id), block.bytes() as u64);
                if !joins {
                    self.segments.push(SegmentView {
                        device: arena.device,
                        address,
                        bytes: 0,
                        allocated: 0,
                        active: 0,
                        requested: 0,
                        stream: stream.map_or(0, |stream| stream.native() as usize),
                        stream_id: stream.map_or(0, |stream| stream.id()),
                        pool: arena.pool(),
                        class: arena.class,
                        is_expandable: !arena.segmented,
                        first_block: self.blocks.len(),
                        blocks: 0,
                    });
                }
                let is_active = kind != BlockState::Inactive;
                let requested = if is_active { block.requested } else { 0 };
                if let Some(segment) = self.segments.last_mut() {
                    segment.bytes += bytes;
                    segment.blocks += 1;
                    segment.requested += requested;
                    segment.active += if is_active { bytes } else { 0 };
                    segment.allocated +=
                        if kind == BlockState::ActiveAllocated { bytes } else { 0 };
                }
                self.blocks.push(BlockView {
                    device: arena.device,
                    address,
                    bytes,
                    requested,
                    state: kind,
                    stack: block.stack(),
                });
            }
            joins = kind.is_some();
            id = block.next;
        }
    }
}

impl DeviceMemory {
    /// Adds the contents of this device's cache, and its history if `with_history`.
    fn list(
        &self,
        snapshot: &mut Snapshot,
        pool: Option<PoolId>,
        with_history: bool,
    ) -> Result<()> {
        let (segments, blocks) = (snapshot.segments.len(), snapshot.blocks.len());
        loop {
            let list = |stats: &mut DeviceStats| {
                stats.raise_peaks();
                stats.list(snapshot, self.ordinal, pool, with_history)
            };
            match self.with_ledger(None, list)? {
                None => break,
                Some(wanted) => snapshot.make_room(wanted)?,
            }
        }
        snapshot.sort_from(segments, blocks);
        Ok(())
    }
}

impl DeviceStats {
    /// Adds all arenas; returns the room that they need if there is too little.
    fn list(
        &self,
        snapshot: &mut Snapshot,
        device: i32,
        pool: Option<PoolId>,
        with_history: bool,
    ) -> Result<Option<Room>> {
        let mut wanted = (0, 0, 0);
        let chosen = || {
            let members = self.members.iter().map(|arena| &**arena);
            members.filter(|arena| pool.is_none_or(|pool| arena.pool() == pool))
        };
        for arena in chosen() {
            // SAFETY: the ledger has frozen all arenas, by their locks or parked.
            let state = unsafe { &*arena.state.get() };
            wanted.0 += state.reserved().1 as usize;
            wanted.1 += state.listed();
        }
        let table = uncached::freeze();
        let uncached_blocks = || {
            // Uncached blocks are in no private pool.
            let blocks = table.iter().flat_map(|blocks| blocks.iter());
            blocks.filter(|(_, block)| block.device == device && pool.is_none())
        };
        let count = uncached_blocks().count();
        wanted.0 += count;
        wanted.1 += count;
        if with_history {
            // This snapshot is recorded as an event too.
            wanted.2 = history::ring(Some(device)).len() + 1;
        }
        if !snapshot.has_room(wanted) {
            return Ok(Some(wanted));
        }
        let first = snapshot.segments.len();
        chosen().for_each(|arena| snapshot.add(arena));
        uncached_blocks().for_each(|(address, block)| snapshot.add_uncached(*address, block));
        let active = snapshot.segments[first..].iter().map(|segment| segment.active).sum();
        history::snapshot_taken(device, active, pool.unwrap_or(PoolId::DEFAULT));
        let range = if with_history {
            snapshot.add_events(Some(device), pool)?
        } else {
            EventRange::default()
        };
        let mut all = Statistics::default();
        self.statistics(&mut all);
        snapshot.devices.push(EventRange {
            allocated_peak: all.counters[ALLOCATED_BYTES][ALL].peak,
            reserved_peak: all.reserved_bytes[ALL].peak,
            ..range
        });
        Ok(None)
    }
}
