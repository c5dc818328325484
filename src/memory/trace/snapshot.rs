//! What the caches hold at one moment: segments, the blocks in them, and what was recorded before.
//!
//! A device is listed while its ledger holds every arena still, so that the list is of one moment;
//! what a thread that waits for the ledger or the device has begun there counts as done. Nothing is
//! kept for it beforehand, and no host memory is asked for while the arenas stand still: there is
//! room in advance, or the list is begun again with more.

use super::dictionary::Sink;
use super::frames::Stacks;
use super::ring::Event;
use super::{history, json, page, pickle, stacks};
use crate::base::error::{Error, Result};
use crate::base::file;
use crate::base::text::Text;
use crate::gpu::device::Device;
use crate::memory::arena::block::{NONE, State, UNIT};
use crate::memory::arena::{Arena, ArenaState};
use crate::memory::backing::segmented;
use crate::memory::backing::uncached::{self, Block};
use crate::memory::config::settings::{self, Settings};
use crate::memory::pools::pool::PoolId;
use crate::memory::stats::ledger::{ALL, ALLOCATED_BYTES, Class, Statistics};
use crate::memory::{DeviceMemory, DeviceStats};

/// What a block is, in PyTorch's terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// Cached, and unowned.
    Inactive,
    /// Held by the host.
    ActiveAllocated,
    /// Freed, but awaiting other streams.
    ActivePendingFree,
}

/// A contiguous range of memory from the driver.
#[derive(Clone, Copy, Debug)]
pub struct SegmentView {
    /// Ordinal.
    pub device: i32,
    /// First address.
    pub address: u64,
    /// Length.
    pub bytes: u64,
    /// Bytes of the blocks that the host holds.
    pub allocated: u64,
    /// Those, and the bytes of freed blocks that await other streams.
    pub active: u64,
    /// Bytes that were asked for, of active blocks.
    pub requested: u64,
    /// The driver's handle of the stream that it serves.
    pub stream: usize,
    /// PyTorch's id of it.
    pub stream_id: i64,
    /// The private pool that it belongs to.
    pub pool: PoolId,
    /// Size class.
    pub class: Class,
    /// Is it mapped, and so can grow?
    pub is_expandable: bool,
    /// Index of its first block.
    pub first_block: usize,
    /// Number of its blocks.
    pub blocks: usize,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug)]
pub struct BlockView {
    /// Ordinal.
    pub device: i32,
    /// First address.
    pub address: u64,
    /// Length.
    pub bytes: u64,
    /// Bytes that were asked for; 0 when inactive.
    pub requested: u64,
    /// What it is.
    pub state: BlockState,
    /// Id of the frames that allocated it; 0: none.
    pub stack: u32,
}

/// What a device did: a part of the events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Past {
    /// Index of its first event.
    pub first_event: usize,
    /// Number of its events.
    pub events: usize,
    /// Events that were lost for want of host memory.
    pub dropped: u64,
    /// The peak of the bytes that the host held.
    pub allocated_peak: i64,
    /// The peak of what came from the driver.
    pub reserved_peak: i64,
}

/// The segments of all devices in the order of devices and addresses, and their blocks in theirs.
#[derive(Default)]
pub struct Snapshot {
    /// Segments.
    pub segments: Vec<SegmentView>,
    /// Blocks of all of them.
    pub blocks: Vec<BlockView>,
    /// The past of each device.
    pub devices: Vec<Past>,
    /// That of pinned memory.
    pub host: Past,
    /// Events of all of them, oldest first.
    pub events: Vec<Event>,
    /// The frames of events and blocks.
    pub stacks: Stacks,
    /// The allocator's settings.
    pub settings: Settings,
}

/// Room that a list wants: segments, blocks, events.
type Room = (usize, usize, usize);

/// Address and length of the segment that holds an address.
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
    /// Of no device: what there is to tell before the first use.
    pub fn before_any_use() -> Result<Snapshot> {
        Ok(Snapshot { settings: settings::current()?, ..Snapshot::default() })
    }

    /// Lists the devices, one after the other, with what was recorded if it is asked for;
    /// `pool`: of this private pool alone.
    pub fn of(devices: &[Device], pool: Option<PoolId>, with_history: bool) -> Result<Snapshot> {
        let _records = history::hold_records();
        let mut snapshot = Snapshot::before_any_use()?;
        let no_memory = |_| Error::OutOfHostMemory("a snapshot");
        snapshot.devices.try_reserve_exact(devices.len()).map_err(no_memory)?;
        devices
            .iter()
            .try_for_each(|device| device.memory.list(&mut snapshot, pool, with_history))?;
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

    /// Adds the events of a device, or of pinned memory, for which there is room.
    fn add_events(&mut self, device: Option<i32>, pool: Option<PoolId>) -> Result<Past> {
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
        Ok(Past { first_event, events, dropped, ..Past::default() })
    }

    /// Writes it as a pickle that PyTorch's viewer opens.
    pub fn pickle(&self, sink: &mut Sink<'_>) -> Result<()> {
        pickle::pickle(self, sink)
    }

    /// Writes the same dictionary as JSON, in ASCII.
    pub fn json(&self, sink: &mut Sink<'_>) -> Result<()> {
        json::json(self, sink)
    }

    /// Writes a page that shows it, in ASCII.
    pub fn page(&self, sink: &mut Sink<'_>) -> Result<()> {
        page::page(self, sink)
    }

    /// Writes one of the three to a file, which its suffix names.
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

    /// The events of a past, oldest first.
    pub fn events_of(&self, past: &Past) -> &[Event] {
        &self.events[past.first_event..past.first_event + past.events]
    }

    /// Room for some more than was wanted, since others go on meanwhile.
    fn make_room(&mut self, (segments, blocks, events): Room) -> Result<()> {
        let no_memory = |_| Error::OutOfHostMemory("a snapshot");
        self.segments.try_reserve(segments + segments / 8 + 8).map_err(no_memory)?;
        self.blocks.try_reserve(blocks + blocks / 8 + 64).map_err(no_memory)?;
        let more = if events == 0 { 0 } else { events + events / 8 + 64 };
        self.events.try_reserve(more).map_err(no_memory)
    }

    /// Puts what was added since, arena by arena, into the order of addresses.
    fn sort_from(&mut self, first_segment: usize, first_block: usize) {
        self.blocks[first_block..].sort_unstable_by_key(|block| block.address);
        self.segments[first_segment..].sort_unstable_by_key(|segment| segment.address);
        let mut next = first_block;
        for segment in &mut self.segments[first_segment..] {
            segment.first_block = next;
            next += segment.blocks;
        }
    }

    /// Adds a block that is in no arena, as the one block of its segment; there is room.
    fn add_direct(&mut self, address: u64, block: &Block) {
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

    /// Adds the segments and blocks of an arena, for which there is room.
    fn add(&mut self, arena: &Arena) {
        // SAFETY: the ledger holds all arenas still, by their locks or parked, and none is written.
        let state = unsafe { &*arena.state.get() };
        let views = state.segment.views.live().map(|view| view.block);
        for first in std::iter::once(state.first).chain(views) {
            self.add_blocks(arena, state, first);
        }
    }

    /// Adds the blocks from one on, and their segments.
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
    /// Adds what this device's cache holds, and perhaps what it did.
    fn list(
        &self,
        snapshot: &mut Snapshot,
        pool: Option<PoolId>,
        with_history: bool,
    ) -> Result<()> {
        let (segments, blocks) = (snapshot.segments.len(), snapshot.blocks.len());
        loop {
            let list = |stats: &mut DeviceStats| {
                stats.see();
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
    /// Adds all arenas, or gives the room that they want where there is not enough.
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
            // SAFETY: the ledger holds all arenas still, by their locks or parked.
            let state = unsafe { &*arena.state.get() };
            wanted.0 += state.reserved().1 as usize;
            wanted.1 += state.listed();
        }
        let table = uncached::freeze();
        let direct = || {
            // In no private pool.
            let blocks = table.iter().flat_map(|blocks| blocks.iter());
            blocks.filter(|(_, block)| block.device == device && pool.is_none())
        };
        let count = direct().count();
        wanted.0 += count;
        wanted.1 += count;
        if with_history {
            // This snapshot is an event as well.
            wanted.2 = history::ring(Some(device)).len() + 1;
        }
        if !snapshot.has_room(wanted) {
            return Ok(Some(wanted));
        }
        let first = snapshot.segments.len();
        chosen().for_each(|arena| snapshot.add(arena));
        direct().for_each(|(address, block)| snapshot.add_direct(*address, block));
        let active = snapshot.segments[first..].iter().map(|segment| segment.active).sum();
        history::snapshot_taken(device, active, pool.unwrap_or(PoolId::DEFAULT));
        let past =
            if with_history { snapshot.add_events(Some(device), pool)? } else { Past::default() };
        let mut all = Statistics::default();
        self.statistics(&mut all);
        snapshot.devices.push(Past {
            allocated_peak: all.counters[ALLOCATED_BYTES][ALL].peak,
            reserved_peak: all.reserved_bytes[ALL].peak,
            ..past
        });
        Ok(None)
    }
}
