//! The live blocks of a private pool as a list, and the return to such a list: PyTorch's
//! checkpoints of a pool, with which a tree of graphs replays from the same state.
//!
//! A checkpoint is the list itself. A return frees the live blocks that are not in it. It allocates
//! the others of the list at their addresses. All of it is planned and reserved before anything
//! changes. If another thread uses the pool meanwhile and the plan fails, it is undone.

use crate::base::error::{Error, Result};
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::memory::arena::block::{NONE, State};
use crate::memory::arena::heap::{Heap, Role};
use crate::memory::arena::pool::Pool;
use crate::memory::arena::{Arena, ArenaGuard, addresses, segmented};
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::size::{Request, Size, UNIT};
use crate::memory::device::lookup::unknown_pointer;
use crate::memory::device::{DeviceMemory, suballocations};
use crate::memory::pointer;
use crate::memory::pools::mem_pool::MemPool;
use crate::memory::pools::route;
use crate::memory::trace::history;

/// A live block of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolBlock {
    /// First address.
    pub address: u64,
    /// Bytes that were requested.
    pub requested: u64,
    /// Bytes that it has.
    pub bytes: u64,
    /// PyTorch's id of the stream in whose order it is used.
    pub stream: i64,
}

impl PoolBlock {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    fn refuse(&self, why: &'static str) -> Error {
        Error::InvalidPointer { ptr: self.address as usize, why }
    }
}

const NO_ROOM: Error = Error::OutOfHostMemory("the blocks of a pool");
const NOT_FREE: &str = "is not the start of a free range of the pool that is long enough: free \
                        what is there first, and wait for other streams that use it";
const NOT_IN_POOL: &str = "is not in the pool's memory on that device, or that went back to the \
                           driver";
const ENDED: &str = "is in memory of a stream that has ended, or of another one than then";

/// The bytes of a pool at an address: its arena, and the offset there.
fn arena_in(pool: PoolId, address: u64) -> Option<(&'static Arena, u64)> {
    let found = addresses::arena_of(address).or_else(|| segmented::arena_of(address));
    found.filter(|(arena, _)| arena.pool() == pool)
}

/// The live blocks of a pool on a device, by address.
pub fn live_blocks(device: &Device, pool: &MemPool) -> Result<Vec<PoolBlock>> {
    let mut list = Vec::new();
    device.memory().each_arena(|state| {
        if state.arena().pool() != pool.id() {
            return Ok(());
        }
        list.try_reserve(state.active_blocks.max(0) as usize).map_err(|_| NO_ROOM)?;
        state.each_live(|_, block| list.push(block));
        Ok(())
    })?;
    list.sort_unstable_by_key(|block| block.address);
    Ok(list)
}

impl ArenaGuard<'_> {
    /// Passes each allocated block to a function.
    fn each_live(&self, mut body: impl FnMut(u32, PoolBlock)) {
        let arena = self.arena();
        let stream = arena.stream().map_or(0, Stream::id);
        let mut id = self.first;
        while id != NONE {
            let block = &self.blocks[id];
            if block.state == State::Allocated {
                let (address, bytes) = (self.address(arena.base, id), block.bytes() as u64);
                body(id, PoolBlock { address, requested: block.requested, bytes, stream });
            }
            id = block.next;
        }
    }

    /// Is the arena's memory that of a stream with this id, which has not ended?
    fn serves(&self, stream: i64) -> bool {
        let arena = self.arena();
        let own = arena.stream().filter(|_| arena.heap().role() == Role::Serving);
        own.is_some_and(|own| own.id() == stream)
    }
}

/// Allocates a block at an address of a pool's memory.
pub fn allocate_at(gpus: &Gpus, pool: &MemPool, address: u64, requested: u64) -> Result<()> {
    let device = pointer::device_of(address).ok_or_else(|| unknown_pointer(address))?;
    let device = gpus.device(device)?;
    device.memory().allocate_at(gpus, device, &pool.share()?, address, requested)
}

/// What a return to a list has to do.
struct Plan {
    /// The live blocks that are not in the list, by address.
    stale: Vec<PoolBlock>,
    /// The blocks of the list that are not live, by address.
    missing: Vec<PoolBlock>,
}

/// Frees and allocates until the live blocks of a pool on a device are those of a list. On failure
/// nothing has changed.
pub fn restore(gpus: &Gpus, device: &Device, pool: &MemPool, list: &mut [PoolBlock]) -> Result<()> {
    let pool = &pool.share()?;
    pool.id().require_awake()?;
    list.sort_unstable_by_key(|block| block.address);
    for pair in list.windows(2) {
        if pair[0].end() > pair[1].address {
            return Err(pair[1].refuse("overlaps another block of the list"));
        }
    }
    let plan = plan(gpus, device, pool, list)?;
    let memory = device.memory();
    let put = |block: &PoolBlock| {
        let oversize = memory.policy.size_of(block.requested).oversize;
        let place = (block.address, block.bytes, oversize);
        memory.put(gpus, device, pool.id(), place, block.requested, false)
    };
    let free = |block: &PoolBlock| pointer::free(gpus, block.address);
    apply(&plan.stale, free, put)?;
    apply(&plan.missing, put, free).inspect_err(|_| {
        for block in &plan.stale {
            let _ = put(block);
        }
    })
}

/// Does something to each block, or undoes it.
fn apply(
    blocks: &[PoolBlock],
    mut body: impl FnMut(&PoolBlock) -> Result<()>,
    mut undo: impl FnMut(&PoolBlock) -> Result<()>,
) -> Result<()> {
    for (index, block) in blocks.iter().enumerate() {
        if let Err(error) = body(block) {
            for block in &blocks[..index] {
                let _ = undo(block);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// What is to be done, for which everything is reserved.
fn plan(gpus: &Gpus, device: &Device, pool: &Pool, list: &[PoolBlock]) -> Result<Plan> {
    let mut plan = Plan { stale: Vec::new(), missing: Vec::new() };
    let mut kept = Vec::new();
    kept.try_reserve_exact(list.len()).map_err(|_| NO_ROOM)?;
    kept.resize(list.len(), false);
    device.memory().each_arena(|state| {
        if state.arena().pool() != pool.id() {
            return Ok(());
        }
        device.memory().settle(gpus, state, false)?;
        plan.stale.try_reserve(state.active_blocks.max(0) as usize).map_err(|_| NO_ROOM)?;
        let mut outcome = Ok(());
        state.each_live(|id, block| {
            match list.binary_search_by_key(&block.address, |other| other.address) {
                Ok(index) if list[index] == block => kept[index] = true,
                _ => plan.stale.push(block),
            }
            let is_stale = plan.stale.last() == Some(&block);
            if is_stale && state.blocks[id].uses != 0 && outcome.is_ok() {
                outcome = Err(block.refuse(
                    "is not in the list, and other streams, processes or allocations outside of \
                     the pool may use it: free it first",
                ));
            }
        });
        outcome
    })?;
    plan.stale.sort_unstable_by_key(|block| block.address);
    plan.missing.try_reserve_exact(list.len()).map_err(|_| NO_ROOM)?;
    plan.missing
        .extend(list.iter().zip(&kept).filter(|(_, kept)| !**kept).map(|(block, _)| *block));
    let mut noted = None;
    for block in &plan.missing {
        check(device, pool.id(), block, &plan)?;
        let heap = arena_in(pool.id(), block.address).map(|(arena, _)| arena.heap());
        if let Some(heap) = heap.filter(|heap| noted != Some(std::ptr::from_ref(*heap))) {
            noted = Some(std::ptr::from_ref(heap));
            device.memory().note_capture_of(gpus, heap, pool)?;
        }
    }
    Ok(plan)
}

/// Can a missing block be allocated once the stale ones are free? Reserves what all need.
fn check(device: &Device, pool: PoolId, block: &PoolBlock, plan: &Plan) -> Result<()> {
    let size = Size { bytes: block.bytes, oversize: false };
    let is_size = block.bytes.is_multiple_of(UNIT)
        && (1..=block.bytes).contains(&block.requested)
        && block.bytes <= device.memory().addresses.slot_bytes();
    if !is_size {
        return Err(
            block.refuse("has sizes that no block has: pass what tcuda_mem_pool_blocks gave")
        );
    }
    let found = arena_in(pool, block.address).filter(|(at, _)| at.device == device.ordinal());
    let (arena, offset) = found.ok_or_else(|| block.refuse(NOT_IN_POOL))?;
    let state = &mut arena.enter()?;
    let unit = state.unit_at(arena.base, offset, block.address);
    // In segments, what is left of one may make a block longer than its class.
    let unit = unit.filter(|_| arena.segmented || arena.class == size.arena_class(false));
    let unit = unit.ok_or_else(|| block.refuse(NOT_IN_POOL))?;
    if !state.serves(block.stream) {
        return Err(block.refuse(ENDED));
    }
    let base = arena.base;
    let is_free = state.would_be_free(unit, (block.bytes / UNIT) as u32, |id| {
        let address = state.address(base, id);
        state.blocks[id].state == State::Allocated
            && plan.stale.binary_search_by_key(&address, |stale| stale.address).is_ok()
    });
    if !is_free {
        return Err(block.refuse(NOT_FREE));
    }
    let count = plan.missing.len() + plan.stale.len();
    state.prepare_at(u32::try_from(count).unwrap_or(u32::MAX))
}

impl DeviceMemory {
    /// Allocates a block of a pool at an address.
    fn allocate_at(
        &self,
        gpus: &Gpus,
        device: &Device,
        pool: &Pool,
        address: u64,
        requested: u64,
    ) -> Result<()> {
        let refuse = |why| Error::InvalidPointer { ptr: address as usize, why };
        pool.id().require_awake()?;
        let (arena, _) = arena_in(pool.id(), address).ok_or_else(|| refuse(NOT_IN_POOL))?;
        if requested > self.addresses.slot_bytes() {
            return Err(refuse(NOT_FREE));
        }
        arena.stream().ok_or_else(|| refuse(ENDED))?;
        self.note_capture_of(gpus, arena.heap(), pool)?;
        let settled = {
            let state = &mut arena.enter()?;
            self.settle(gpus, state, false)
        };
        let Size { bytes, oversize } = self.policy.size_of(requested);
        let taken = self.put(gpus, device, pool.id(), (address, bytes, oversize), requested, true);
        // An error of another stream does not fail this allocation.
        taken.map_err(|error| settled.err().unwrap_or(error))
    }

    /// Allocates a block of so many bytes at an address. `by_rules`: with what the rules of its
    /// memory add. Makes no driver call.
    fn put(
        &self,
        gpus: &Gpus,
        device: &Device,
        pool: PoolId,
        (address, bytes, oversize): (u64, u64, bool),
        requested: u64,
        by_rules: bool,
    ) -> Result<()> {
        let refuse = |why| Error::InvalidPointer { ptr: address as usize, why };
        let (arena, offset) = arena_in(pool, address).ok_or_else(|| refuse(NOT_IN_POOL))?;
        let stream = arena.stream().ok_or_else(|| refuse(ENDED))?;
        let _frames = history::before_allocation(stream);
        let _context = suballocations::context(device);
        {
            let state = &mut arena.enter()?;
            let unit = state.unit_at(arena.base, offset, address);
            let size = Size { bytes, oversize };
            // In segments, what is left of one may make a block longer than its class.
            let is_known = arena.segmented && !by_rules;
            let is_class = is_known || arena.class == size.arena_class(arena.segmented);
            let unit = unit.filter(|_| is_class).ok_or_else(|| refuse(NOT_IN_POOL))?;
            if !state.serves(stream.id()) {
                return Err(refuse(ENDED));
            }
            let taken = self.take_at(state, unit, size.request(requested), by_rules)?;
            taken.ok_or_else(|| refuse(NOT_FREE))?;
        }
        sanitizer_reports::allocated(gpus, address, requested, stream);
        Ok(())
    }

    /// Takes a block that begins at a unit; `by_rules`: with the rest of the free block, if the
    /// rules for segments do not split that off.
    fn take_at(
        &self,
        state: &mut ArenaGuard<'_>,
        unit: u32,
        request: Request,
        by_rules: bool,
    ) -> Result<Option<u64>> {
        let arena = state.arena();
        let rules = self.rules_of(arena);
        let used = (by_rules && arena.segmented).then_some(&rules);
        let Some(id) = state.take_at(unit, request, used, self.now())? else {
            // The search has merged free blocks.
            self.count_split(state);
            return Ok(None);
        };
        if arena.segmented {
            let bytes = state.blocks[id].bytes() as u64;
            state.blocks[id].oversize = rules.is_oversize(bytes);
        }
        let address = self.count_allocated(state, id);
        suballocations::block(state.heap(id), address, request.bytes);
        Ok(Some(address))
    }

    /// Keeps a pool for the capture that the stream of one of its heaps is part of.
    fn note_capture_of(&self, gpus: &Gpus, heap: &Heap, pool: &Pool) -> Result<()> {
        let Some(stream) = heap.stream() else { return Ok(()) };
        if gpus.has_captures()
            && let Some(source) = gpus.captures().source(gpus, stream, |_| false)?
        {
            gpus.captures().retain(source.number, pool.share().for_graph())?;
        }
        let id = pool.id();
        route::note_host_capture(gpus, stream, id)?;
        if id.has_host_graph() {
            heap.note_host_graph();
        }
        Ok(())
    }
}
