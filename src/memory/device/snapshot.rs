//! The list of the caches of devices at one moment (`trace/snapshot.rs`).
//!
//! A device is listed while its ledger freezes every arena, so that the list is consistent. A
//! thread that waits for the ledger or the device has completed its change there. No bookkeeping is
//! done before a snapshot, and no host memory is allocated while the arenas are frozen: room is
//! reserved in advance, and if it is too small, the list is started again with more.

use crate::base::error::{Error, Result};
use crate::gpu::device::Device;
use crate::memory::arena::block::{NONE, State};
use crate::memory::arena::{Arena, ArenaState, addresses, segmented};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::UNIT;
use crate::memory::device::lookup::unknown_pointer;
use crate::memory::device::uncached::{self, Block};
use crate::memory::device::{DeviceMemory, DeviceStats};
use crate::memory::stats::ledger::{ALL, ALLOCATED_BYTES, Statistics};
use crate::memory::trace::snapshot::{
    BlockState, BlockView, EventRange, Room, SegmentView, Snapshot,
};
use crate::memory::trace::{history, stacks};

/// Address and length of the segment that contains an address.
pub fn segment_of(address: u64) -> Result<(u64, u64)> {
    let Some((arena, offset)) = addresses::arena_of(address) else {
        if uncached::has(address) {
            return uncached::segment_of(address);
        }
        return segmented::segment_of(address).ok_or_else(|| unknown_pointer(address));
    };
    let state = &mut arena.enter()?;
    let range = state.segment.range_of((offset / UNIT) as u32);
    let (start, units) = range.ok_or_else(|| unknown_pointer(address))?;
    Ok((arena.base + u64::from(start) * UNIT, u64::from(units) * UNIT))
}

impl Snapshot {
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
        let state = unsafe { arena.frozen_state() };
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

    /// Calls `add` with the stack of each live block, and with 0 for other indices.
    pub(in crate::memory) fn each_stack(&self, add: &mut dyn FnMut(u32)) {
        let _ = self.each_arena(|state| {
            let blocks = &state.blocks;
            blocks.all().for_each(|id| add(blocks[id].stack()));
            Ok(())
        });
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
        let chosen = || self.arenas().filter(|arena| pool.is_none_or(|pool| arena.pool() == pool));
        for arena in chosen() {
            // SAFETY: the ledger has frozen all arenas, by their locks or parked.
            let state = unsafe { arena.frozen_state() };
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
            wanted.2 = history::ring(Some(device)).len();
        }
        if !snapshot.has_room(wanted) {
            return Ok(Some(wanted));
        }
        let first = snapshot.segments.len();
        chosen().for_each(|arena| snapshot.add(arena));
        uncached_blocks().for_each(|(address, block)| snapshot.add_uncached(*address, block));
        let active = snapshot.segments[first..].iter().map(|segment| segment.active).sum();
        let range = if with_history {
            snapshot.add_events(Some(device), pool)?
        } else {
            EventRange::default()
        };
        // As in PyTorch, a snapshot has the events of earlier ones, not its own.
        history::snapshot_taken(device, active, pool.unwrap_or(PoolId::DEFAULT));
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
