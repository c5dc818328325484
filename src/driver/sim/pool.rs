//! Stream-ordered pools: segments of device memory, cut into blocks that remember which points of
//! streams must be reached before they may be used again.

use super::address_space::{Access, Purpose, Reservation};
use super::copy::Fill;
use super::handles::Handles;
use super::physical::SPOILED;
use super::queue::{Action, Point, Stream};
use super::virtual_memory::{location, rights};
use super::{
    Machine, capture, code, device, entry, graph_memory, lock, peek, put, read, replay, require,
    schedule, stream, write,
};
use crate::driver::sys::{
    CUdevice, CUdeviceptr, CUmemAccessDesc, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool,
    CUstream, cuuint64_t,
};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Least size of a segment, and the unit of blocks.
const SEGMENT: usize = 32 << 20;
const BLOCK: usize = 512;
/// Which of the reuse flags.
const OPPORTUNISTIC: usize = 1;
const INTERNAL_DEPENDENCIES: usize = 2;

/// A pool.
pub(super) struct Pool {
    pub(super) device: usize,
    default: bool,
    handle: AtomicUsize,
    /// Bit `d`: device `d` reaches its memory.
    mask: AtomicU32,
    state: Mutex<State>,
}

struct State {
    /// By address; a block never crosses the end of its segment.
    segments: BTreeMap<usize, usize>,
    free: BTreeMap<usize, Free>,
    used_blocks: BTreeMap<usize, (usize, usize)>,
    threshold: u64,
    /// Follow event dependencies, allow opportunistic reuse, allow internal dependencies. The first
    /// changes nothing: who knows of an event here gets a wait that costs nothing.
    reuse: [c_int; 3],
    reserved: [u64; 2],
    used: [u64; 2],
}

/// A free block, and what must be reached before it may be used.
struct Free {
    bytes: usize,
    after: Vec<Point>,
}

impl Free {
    /// Forgets what is reached.
    fn settle(&mut self) {
        self.after.retain(|point| !point.is_reached());
    }
}

/// Adds to a counter and its high-water mark.
fn count(counter: &mut [u64; 2], bytes: usize) {
    counter[0] += bytes as u64;
    counter[1] = counter[1].max(counter[0]);
}

impl State {
    /// The lowest free block that fits, and what the stream must wait for before it uses it: blocks
    /// that need no wait first.
    fn fit(&mut self, bytes: usize, stream: &Arc<Stream>) -> Option<usize> {
        let mut with_wait = None;
        for (start, block) in &mut self.free {
            if block.bytes < bytes {
                continue;
            }
            if self.reuse[OPPORTUNISTIC] != 0 {
                block.settle();
            }
            if block.after.iter().all(|point| Arc::ptr_eq(&point.stream, stream)) {
                return Some(*start);
            }
            with_wait = with_wait.or(Some(*start));
        }
        with_wait.filter(|_| self.reuse[INTERNAL_DEPENDENCIES] != 0)
    }

    fn take(&mut self, start: usize, bytes: usize, asked: usize) -> Option<Vec<Point>> {
        let block = self.free.remove(&start)?;
        if block.bytes > bytes {
            let rest = Free { bytes: block.bytes - bytes, after: block.after.clone() };
            self.free.insert(start + bytes, rest);
        }
        self.used_blocks.insert(start, (bytes, asked));
        // What is in use counts as it was asked for, not as it is rounded up (580.159).
        count(&mut self.used, asked);
        Some(block.after)
    }

    fn give_back(&mut self, start: usize, after: Vec<Point>) -> Result<(), i32> {
        let (bytes, asked) = self.used_blocks.remove(&start).ok_or(code::INVALID_VALUE)?;
        self.used[0] -= asked as u64;
        let mut merged = (start, Free { bytes, after });
        let is_edge = |address: &usize| self.segments.contains_key(address);
        if !is_edge(&start)
            && let Some((before, room)) = self.free.range(..start).next_back()
            && before + room.bytes == start
        {
            let before = *before;
            let mut block = self.free.remove(&before).ok_or(code::UNKNOWN)?;
            block.bytes += merged.1.bytes;
            block.after.append(&mut merged.1.after);
            merged = (before, block);
        }
        let end = merged.0 + merged.1.bytes;
        if !is_edge(&end)
            && let Some(mut block) = self.free.remove(&end)
        {
            merged.1.bytes += block.bytes;
            merged.1.after.append(&mut block.after);
        }
        self.free.insert(merged.0, merged.1);
        Ok(())
    }

    /// Takes whole free segments out until no more than `keep` bytes are reserved.
    fn trim(&mut self, keep: u64) -> Vec<(usize, usize)> {
        let mut removed = Vec::new();
        for (start, bytes) in &self.segments {
            if self.reserved[0] <= keep {
                break;
            }
            let whole = self.free.get_mut(start).is_some_and(|block| {
                block.settle();
                block.bytes == *bytes && block.after.is_empty()
            });
            if whole {
                self.free.remove(start);
                self.reserved[0] -= *bytes as u64;
                removed.push((*start, *bytes));
            }
        }
        for (start, _) in &removed {
            self.segments.remove(start);
        }
        removed
    }
}

impl Pool {
    fn new(device: usize, default: bool) -> Pool {
        Pool {
            device,
            default,
            handle: AtomicUsize::new(0),
            mask: AtomicU32::new(1 << device),
            state: Mutex::new(State {
                segments: BTreeMap::new(),
                free: BTreeMap::new(),
                used_blocks: BTreeMap::new(),
                threshold: 0,
                reuse: [1; 3],
                reserved: [0; 2],
                used: [0; 2],
            }),
        }
    }

    /// Puts a new pool into a table.
    pub(super) fn insert(pools: &mut Handles<Arc<Pool>>, device: usize, default: bool) -> usize {
        let pool = Arc::new(Pool::new(device, default));
        let handle = pools.insert(Arc::clone(&pool));
        pool.handle.store(handle, Ordering::Relaxed);
        handle
    }

    pub(super) fn handle(&self) -> CUmemoryPool {
        ptr::without_provenance_mut(self.handle.load(Ordering::Relaxed))
    }

    pub(super) fn is_reached_by(&self, device: usize) -> bool {
        self.mask.load(Ordering::Relaxed) >> device & 1 != 0
    }

    /// Blocks that are allocated.
    pub(super) fn blocks(&self) -> usize {
        lock(&self.state).used_blocks.len()
    }

    fn trim(&self, machine: &Machine, keep: Option<u64>) {
        let mut state = lock(&self.state);
        let keep = keep.unwrap_or(state.threshold);
        for (start, bytes) in state.trim(keep) {
            // Nothing else unmaps what a pool mapped.
            let _ = machine.free_mapped(start, bytes);
        }
    }
}

impl Machine {
    /// At a synchronisation, pools give back what they hold above their threshold.
    pub(super) fn release_idle_pool_memory(&self) {
        if !self.pools_in_use.load(Ordering::Relaxed) {
            return;
        }
        replay::let_go(self);
        for pool in read(&self.pools).iter() {
            // What the host waited for is known to be over, opportunistic or not.
            lock(&pool.state).free.values_mut().for_each(Free::settle);
            pool.trim(self, None);
        }
        lock(&self.retired_pools).retain(|pool| {
            pool.trim(self, Some(0));
            lock(&pool.state).reserved[0] > 0
        });
    }
}

pub(super) fn get(machine: &Machine, pool: CUmemoryPool) -> Result<Arc<Pool>, i32> {
    read(&machine.pools).get(pool.addr()).map(Arc::clone).ok_or(code::INVALID_VALUE)
}

fn allocate(
    machine: &Arc<Machine>,
    handle: CUmemoryPool,
    bytes: usize,
    stream: &Arc<Stream>,
) -> Result<usize, i32> {
    let pool = get(machine, handle)?;
    let asked = bytes;
    let bytes = bytes.checked_next_multiple_of(BLOCK).ok_or(code::OUT_OF_MEMORY)?;
    let mut state = lock(&pool.state);
    let start = match state.fit(bytes, stream) {
        Some(start) => start,
        None => {
            let grow = |bytes| {
                let access = Access::Pool(Arc::clone(&pool));
                machine.allocate_mapped(pool.device, bytes, Purpose::Pool, access)
            };
            let exact = bytes.next_multiple_of(super::config::GRANULARITY);
            let mut segment = bytes.next_multiple_of(SEGMENT);
            let mut start = grow(segment);
            if start.is_err() {
                for (start, bytes) in state.trim(0) {
                    machine.free_mapped(start, bytes)?;
                }
                segment = exact;
                start = grow(segment);
            }
            let start = start?;
            machine.pools_in_use.store(true, Ordering::Relaxed);
            state.segments.insert(start, segment);
            state.free.insert(start, Free { bytes: segment, after: Vec::new() });
            count(&mut state.reserved, segment);
            start
        }
    };
    let mut waits = state.take(start, bytes, asked).ok_or(code::UNKNOWN)?;
    drop(state);
    waits.retain(|point| !Arc::ptr_eq(&point.stream, stream) && !point.is_reached());
    if !waits.is_empty() {
        schedule::submit(machine, stream, waits, Action::Nothing)?;
    }
    Ok(start)
}

/// Allocates in the order of a stream, or records that where the stream is captured.
fn allocate_or_record(
    machine: &Arc<Machine>,
    ptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: &Arc<Stream>,
) -> Result<(), i32> {
    let records = capture::records(machine, stream)?;
    require(!ptr.is_null(), code::INVALID_VALUE)?;
    if bytes == 0 {
        return put!(ptr, 0);
    }
    let address = if records {
        graph_memory::allocate(machine, stream, pool, bytes)?
    } else {
        capture::caution(machine)?;
        allocate(machine, pool, bytes, stream)?
    };
    put!(ptr, address as CUdeviceptr)
}

/// The pool that an address was allocated from.
fn owner(machine: &Machine, address: usize) -> Result<Arc<Pool>, i32> {
    match read(&machine.space).mapping(address).map(|(_, mapping)| &mapping.access) {
        Some(Access::Pool(pool)) => Ok(Arc::clone(pool)),
        _ => Err(code::INVALID_VALUE),
    }
}

/// Under a schedule that spoils memory: nothing is left of a block that its stream has freed.
fn spoil(
    machine: &Arc<Machine>,
    pool: &Pool,
    address: usize,
    stream: &Arc<Stream>,
) -> Result<(), i32> {
    let poison = machine.adversary.poison();
    let found = lock(&pool.state).used_blocks.get(&address).map(|block| block.0);
    match found {
        Some(bytes) if poison != 0 && pool.is_reached_by(stream.device) => {
            let (value, count) = (poison.into(), bytes.min(SPOILED));
            let fill = Action::Fill(Fill { address, value, width: 1, count });
            schedule::submit(machine, stream, Vec::new(), fill).map(drop)
        }
        _ => Ok(()),
    }
}

/// The device of the pool that an address was allocated from.
pub(super) fn device_of(machine: &Machine, address: usize) -> Result<usize, i32> {
    Ok(owner(machine, address)?.device)
}

/// Frees a block whose work is known to be over.
pub(super) fn free_now(machine: &Machine, address: usize) -> Result<(), i32> {
    let pool = owner(machine, address)?;
    lock(&pool.state).give_back(address, Vec::new())?;
    machine.release_idle_pool_memory();
    Ok(())
}

pub(super) unsafe extern "C" fn get_default(pool: *mut CUmemoryPool, device: CUdevice) -> c_int {
    entry(|machine| {
        let device = device::get(machine, device)?;
        put!(pool, ptr::without_provenance_mut(device.default_pool))
    })
}

pub(super) unsafe extern "C" fn create(
    pool: *mut CUmemoryPool,
    properties: *const CUmemPoolProps,
) -> c_int {
    entry(|machine| {
        capture::caution(machine)?;
        require(!pool.is_null(), code::INVALID_VALUE)?;
        let properties = peek!(properties)?;
        require(properties.allocType as u32 == 1, code::INVALID_VALUE)?;
        require(properties.handleTypes.0 & !1 == 0, code::NOT_SUPPORTED)?;
        let device = location(machine, &properties.location).map_err(|_| code::INVALID_VALUE)?;
        let handle = Pool::insert(&mut write(&machine.pools), device, false);
        put!(pool, ptr::without_provenance_mut(handle))
    })
}

pub(super) unsafe extern "C" fn destroy(pool: CUmemoryPool) -> c_int {
    entry(|machine| {
        capture::caution(machine)?;
        let found = get(machine, pool)?;
        require(!found.default, code::INVALID_VALUE)?;
        write(&machine.pools).remove(pool.addr()).ok_or(code::INVALID_VALUE)?;
        // Its memory lives on until the last block is freed and no work uses it.
        lock(&machine.retired_pools).push(found);
        machine.release_idle_pool_memory();
        Ok(())
    })
}

pub(super) unsafe extern "C" fn set_attribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> c_int {
    entry(|machine| {
        capture::caution(machine)?;
        let pool = get(machine, pool)?;
        let mut state = lock(&pool.state);
        match attribute as usize {
            reuse @ 1..=3 => state.reuse[reuse - 1] = peek!(value.cast::<c_int>())?,
            4 => state.threshold = peek!(value.cast::<cuuint64_t>())?,
            high @ (6 | 8) => {
                // A high-water mark can only be reset.
                require(peek!(value.cast::<cuuint64_t>())? == 0, code::INVALID_VALUE)?;
                let counter = if high == 6 { &mut state.reserved } else { &mut state.used };
                counter[1] = counter[0];
            }
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn get_attribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> c_int {
    entry(|machine| {
        capture::caution(machine)?;
        let pool = get(machine, pool)?;
        let state = lock(&pool.state);
        let number = match attribute as usize {
            reuse @ 1..=3 => return put!(value.cast::<c_int>(), state.reuse[reuse - 1]),
            4 => state.threshold,
            5 => state.reserved[0],
            6 => state.reserved[1],
            7 => state.used[0],
            8 => state.used[1],
            _ => return Err(code::INVALID_VALUE),
        };
        put!(value.cast::<cuuint64_t>(), number)
    })
}

pub(super) unsafe extern "C" fn set_access(
    pool: CUmemoryPool,
    access: *const CUmemAccessDesc,
    count: usize,
) -> c_int {
    entry(|machine| {
        capture::caution(machine)?;
        let pool = get(machine, pool)?;
        let rights = rights(machine, access, count)?;
        for (device, right) in &rights {
            if *device == pool.device {
                // The owner's access cannot be taken away.
                require(*right == 3, code::INVALID_DEVICE)?;
            } else {
                let reachable = machine.config.can_access_peer(*device, pool.device);
                require(reachable, code::INVALID_DEVICE)?;
                require(*right != 1, code::INVALID_VALUE)?;
            }
        }
        for (device, right) in rights {
            if right == 0 {
                pool.mask.fetch_and(!(1 << device), Ordering::Relaxed);
            } else {
                pool.mask.fetch_or(1 << device, Ordering::Relaxed);
            }
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn trim_to(pool: CUmemoryPool, bytes_to_keep: usize) -> c_int {
    entry(|machine| {
        capture::caution(machine)?;
        get(machine, pool)?.trim(machine, Some(bytes_to_keep as u64));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn allocate_async(
    ptr: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        let stream = stream::get(machine, stream)?;
        let pool = ptr::without_provenance_mut(machine.devices[stream.device].default_pool);
        allocate_or_record(machine, ptr, bytes, pool, &stream)
    })
}

pub(super) unsafe extern "C" fn allocate_from_pool_async(
    ptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> c_int {
    entry(|machine| {
        let stream = stream::get(machine, stream)?;
        allocate_or_record(machine, ptr, bytes, pool, &stream)
    })
}

pub(super) unsafe extern "C" fn free_async(ptr: CUdeviceptr, stream: CUstream) -> c_int {
    entry(|machine| {
        let stream = stream::get(machine, stream)?;
        if ptr == 0 {
            return Ok(());
        }
        if graph_memory::frees(machine, &stream, ptr as usize)? {
            return Ok(());
        }
        let plain = read(&machine.space).reservation(ptr as usize);
        if let Some((start, Reservation { bytes, purpose: Purpose::Allocation(_) })) = plain {
            require(start == ptr as usize, code::INVALID_VALUE)?;
            schedule::wait(machine, &stream.tail())?;
            return machine.free_mapped(start, bytes);
        }
        let pool = owner(machine, ptr as usize)?;
        spoil(machine, &pool, ptr as usize, &stream)?;
        let after = if stream.is_idle() { Vec::new() } else { vec![stream.tail()] };
        lock(&pool.state).give_back(ptr as usize, after)
    })
}
