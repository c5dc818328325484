//! The functions that PyTorch calls for its memory, on this library's allocator.
//!
//! PyTorch passes streams as native handles and private pools as pairs of numbers. It routes
//! allocations by a C++ function of the stream, which no C interface can express; the driver is
//! queried instead. A pool that a capture began serves the streams of that capture; a pool that a
//! host began serves the thread that began it.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::thread;
use crate::driver::sys::CUstream;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream;
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use crate::memory::arena::pool::Pool;
use crate::memory::pools::route;
use std::sync::atomic::{AtomicUsize, Ordering};

/// PyTorch's id of a pool: the first number is not 0 for a pool of a capture, the second for a pool
/// of a host.
pub type Id = (u64, u64);

/// A route to a pool between begin and end. It keeps the pool, also if that is released before.
struct Route {
    device: i32,
    pool: Pool,
    /// The thread that began it.
    thread: u64,
    /// The capture that it belongs to; 0: not known yet.
    capture: u64,
}

impl Route {
    fn is(&self, device: i32, id: Id) -> bool {
        self.device == device && self.pool.id().pair() == id
    }
}

struct Lists {
    /// One for each begin on a device that was not released.
    kept: Vec<(i32, Pool)>,
    begun: Vec<Route>,
}

/// The private pools that PyTorch uses, the present routes to them, and its captures.
pub struct Pools {
    lists: Mutex<Lists>,
    /// The devices of marked captures, one entry for each.
    marks: Mutex<Vec<i32>>,
    /// Number of routes, readable without the lock.
    routes: AtomicUsize,
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for Pools {
    type Owner = Gpus;
    const KIND: SubsystemKind = SubsystemKind::TorchPools;
}

impl Gpus {
    /// The private pools that PyTorch uses.
    #[inline(always)]
    pub fn torch_pools(&self) -> &Pools {
        self.subsystem()
    }
}

impl Pools {
    pub(crate) fn new() -> Pools {
        let lists = Lists { kept: Vec::new(), begun: Vec::new() };
        let (lists, marks) = (Mutex::new(Rank::LEAF, lists), Mutex::new(Rank::LEAF, Vec::new()));
        Pools { lists, marks, routes: AtomicUsize::new(0) }
    }

    /// Begins to route allocations on a device to a pool, which is created if it is new.
    fn begin(&self, device: i32, id: Id) -> Result<()> {
        // PyTorch's graphs may write unused memory of the pool.
        let pool = Pool::of_pair(id, None)?.for_graph();
        let mut lists = self.lists.lock();
        let lists = &mut *lists;
        if lists.begun.iter().any(|begun| begun.is(device, id)) {
            return Err(Error::InvalidState(
                "allocations go to that pool already: end it before beginning it again",
            ));
        }
        lists.begun.try_reserve(1).map_err(|_| NO_ROOM)?;
        lists.kept.try_reserve(1).map_err(|_| NO_ROOM)?;
        lists.kept.push((device, pool.share()));
        lists.begun.push(Route { device, pool, thread: thread::number(), capture: 0 });
        self.routes.store(lists.begun.len(), Ordering::Release);
        Ok(())
    }

    /// Ends a route; the pool stays until it is released.
    fn end(&self, device: i32, id: Id) -> Result<()> {
        let mut lists = self.lists.lock();
        let found = lists.begun.iter().position(|begun| begun.is(device, id));
        let ended = lists.begun.remove(found.ok_or(NOT_BEGUN)?);
        self.routes.store(lists.begun.len(), Ordering::Release);
        drop(lists);
        drop(ended);
        Ok(())
    }

    /// Releases one use of a pool; after the last its unused memory may be freed by the next
    /// reclaim.
    fn release(&self, device: i32, id: Id) -> Result<()> {
        let mut lists = self.lists.lock();
        let is_it = |(at, pool): &(i32, Pool)| *at == device && pool.id().pair() == id;
        let index = lists.kept.iter().position(is_it).ok_or(NOT_REFERENCED)?;
        let gone = lists.kept.swap_remove(index);
        drop(lists);
        drop(gone);
        Ok(())
    }

    /// The pool of an allocation of this thread on a stream, which belongs to a capture or to none.
    fn pool_of(&self, device: i32, capture: Option<u64>) -> Option<Pool> {
        let mut lists = self.lists.lock();
        let lists = &mut *lists;
        let own = thread::number();
        let on_device =
            || lists.begun.iter().enumerate().rev().filter(|(_, begun)| begun.device == device);
        let index = match capture {
            // The first allocation of a capture determines its route: most likely that of the
            // thread that began both.
            Some(capture) => on_device()
                .find(|(_, begun)| begun.capture == capture)
                .or_else(|| on_device().find(|(_, b)| b.capture == 0 && b.thread == own))
                .or_else(|| on_device().find(|(_, begun)| begun.capture == 0)),
            None => on_device().find(|(_, begun)| {
                begun.capture == 0 && begun.thread == own && begun.pool.id().pair().1 != 0
            }),
        };
        let index = index?.0;
        let begun = &mut lists.begun[index];
        begun.capture = capture.unwrap_or(0);
        Some(begun.pool.share())
    }
}

const NO_ROOM: Error = Error::OutOfHostMemory("the pools of PyTorch");
const NOT_BEGUN: Error = Error::InvalidState("allocations do not go to that pool: begin it first");
const NOT_MARKED: Error =
    Error::InvalidState("no capture is marked on that device: mark its begin first");
const NOT_REFERENCED: Error =
    Error::InvalidState("that pool was never begun, or was released already");

/// A capture of PyTorch has begun on a device.
pub fn mark_capture_begin(gpus: &Gpus, device: i32) -> Result<()> {
    let device = gpus.device(device)?.ordinal();
    let mut marks = gpus.torch_pools().marks.lock();
    marks.try_reserve(1).map_err(|_| Error::OutOfHostMemory("the captures of PyTorch"))?;
    marks.push(device);
    gpus.begin_capture();
    Ok(())
}

/// A capture of PyTorch has ended on a device.
pub fn mark_capture_end(gpus: &Gpus, device: i32) -> Result<()> {
    let device = gpus.device(device)?.ordinal();
    let mut marks = gpus.torch_pools().marks.lock();
    let marked = marks.iter().position(|known| *known == device);
    marks.swap_remove(marked.ok_or(NOT_MARKED)?);
    gpus.end_capture();
    Ok(())
}

/// Allocates for a stream of PyTorch.
pub fn allocate(gpus: &Gpus, device: i32, native: CUstream, bytes: isize) -> Result<u64> {
    if bytes < 0 {
        return Err(Error::OutOfRange {
            name: "bytes",
            value: bytes as i64,
            allowed: "no allocation is larger than PTRDIFF_MAX",
        });
    }
    let device = gpus.device(device)?;
    let stream = device.streams.named(device, native)?;
    let pool = match gpus.torch_pools().routes.load(Ordering::Acquire) {
        0 => None,
        _ => gpus.torch_pools().pool_of(device.ordinal(), capture_of(gpus, device, native)?),
    };
    let Some(pool) = pool else {
        return device.memory().allocate(gpus, device, stream, bytes as u64);
    };
    let (id, generation) = (pool.id(), device.streams.generation());
    route::begin(pool, 0, device.ordinal(), generation)?;
    let allocated = device.memory().allocate(gpus, device, stream, bytes as u64);
    let ended = route::end(id, device.ordinal(), generation);
    allocated.and_then(|address| ended.map(|()| address))
}

/// The id of the capture that a stream belongs to. The query harms no capture.
fn capture_of(gpus: &Gpus, device: &Device, native: CUstream) -> Result<Option<u64>> {
    let _context = device.enter()?;
    stream::capture_of(gpus.driver(), native)
}

/// Routes allocations on a device to a pool.
pub fn begin(gpus: &Gpus, device: i32, id: Id) -> Result<()> {
    gpus.torch_pools().begin(gpus.device(device)?.ordinal(), id)
}

/// Ends that route.
pub fn end(gpus: &Gpus, device: i32, id: Id) -> Result<()> {
    gpus.torch_pools().end(gpus.device(device)?.ordinal(), id)
}

/// Releases one `begin`.
pub fn release(gpus: &Gpus, device: i32, id: Id) -> Result<()> {
    gpus.torch_pools().release(gpus.device(device)?.ordinal(), id)
}
