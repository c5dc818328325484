//! What the caches hold at one moment: segments, and the blocks in them.
//!
//! A device is listed while its ledger holds every arena still, so that the list is of one moment;
//! what a thread that waits for the ledger or the device has begun there counts as done. Nothing is
//! kept for it beforehand, and no host memory is asked for while the arenas stand still: there is
//! room in advance, or the list is begun again with more.

use super::arena::Arena;
use super::block::{NONE, State, UNIT};
use super::pool::PoolId;
use super::stats::Class;
use super::{Books, DeviceMemory};
use crate::device::Device;
use crate::error::{Error, Result};

/// What a block is, in PyTorch's terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// Cached, and nobody's.
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
}

/// The segments of all devices in the order of devices and addresses, and their blocks in theirs.
#[derive(Default)]
pub struct Snapshot {
    /// Segments.
    pub segments: Vec<SegmentView>,
    /// Blocks of all of them.
    pub blocks: Vec<BlockView>,
}

impl Snapshot {
    /// Lists the devices, one after the other; `pool`: of this private pool alone.
    pub fn of(devices: &[Device], pool: Option<PoolId>) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        devices.iter().try_for_each(|device| device.memory.list(&mut snapshot, pool))?;
        Ok(snapshot)
    }

    fn has_room(&self, (segments, blocks): (usize, usize)) -> bool {
        self.segments.capacity() - self.segments.len() >= segments
            && self.blocks.capacity() - self.blocks.len() >= blocks
    }

    /// Room for some more than was wanted, since others go on meanwhile.
    fn make_room(&mut self, (segments, blocks): (usize, usize)) -> Result<()> {
        let no_memory = |_| Error::OutOfHostMemory("a snapshot");
        self.segments.try_reserve(segments + segments / 8 + 8).map_err(no_memory)?;
        self.blocks.try_reserve(blocks + blocks / 8 + 64).map_err(no_memory)
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

    /// Adds the segments and blocks of an arena, for which there is room.
    fn add(&mut self, arena: &Arena) {
        // SAFETY: the ledger holds all arenas still, by their locks or parked, and none is written.
        let state = unsafe { &*arena.state.get() };
        let stream = arena.stream();
        let (mut id, mut joins) = (state.first, false);
        while id != NONE {
            let block = &state.blocks[id];
            let kind = match block.state {
                State::Free => Some(BlockState::Inactive),
                State::Allocated => Some(BlockState::ActiveAllocated),
                State::Pending => Some(BlockState::ActivePendingFree),
                State::Hole | State::Vacant => None,
            };
            if let Some(kind) = kind {
                let (address, bytes) =
                    (arena.base + u64::from(block.start) * UNIT, block.bytes() as u64);
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
                });
            }
            joins = kind.is_some();
            id = block.next;
        }
    }
}

impl DeviceMemory {
    /// Adds what this device's cache holds.
    fn list(&self, snapshot: &mut Snapshot, pool: Option<PoolId>) -> Result<()> {
        let (segments, blocks) = (snapshot.segments.len(), snapshot.blocks.len());
        while let Some(wanted) = self.with_ledger(None, |books| books.list(snapshot, pool)) {
            snapshot.make_room(wanted)?;
        }
        snapshot.sort_from(segments, blocks);
        Ok(())
    }
}

impl Books {
    /// Adds all arenas, or gives the room that they want where there is not enough.
    fn list(&self, snapshot: &mut Snapshot, pool: Option<PoolId>) -> Option<(usize, usize)> {
        let mut wanted = (0, 0);
        let chosen = || {
            let members = self.members.iter().map(|arena| &**arena);
            members.filter(|arena| pool.is_none_or(|pool| arena.pool() == pool))
        };
        for arena in chosen() {
            // SAFETY: the ledger holds all arenas still, by their locks or parked.
            let state = unsafe { &*arena.state.get() };
            wanted.0 += state.segment.ranges() as usize;
            wanted.1 += (state.active_blocks + state.free_blocks) as usize;
        }
        if !snapshot.has_room(wanted) {
            return Some(wanted);
        }
        chosen().for_each(|arena| snapshot.add(arena));
        None
    }
}
