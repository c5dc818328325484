//! Active captures: stream captures that the library has begun and not ended. Any thread's
//! allocations on their streams come from their pools. The pinned memory that they use is kept as
//! long as their graphs.
//!
//! A capture is listed before the driver begins it. So a captured stream never takes memory from
//! another pool.

use crate::base::error::{Error, Result, forget_refused};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::thread;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{Stream, capture_of};
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use crate::memory::arena::heap::Heap;
use crate::memory::arena::pool::Pool;
use crate::memory::config::pool_id::PoolId;
use crate::memory::pools::cached_heaps::CachedHeaps;
use crate::observe::flags::{self, Watcher};
use crate::sanitizer::Recording;
use std::sync::atomic::{AtomicU64, Ordering};

/// The next number for a route or a capture. Where several apply, the highest number takes effect.
pub fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// A capture that has begun or is about to begin.
struct ActiveCapture {
    number: u64,
    /// The stream on which it began; for the per-thread default stream, that of the thread.
    stream: HeldStream,
    /// The thread that began it.
    thread: u64,
    /// The driver's ID of the capture; 0: not known yet.
    id: u64,
    /// For the body of a conditional node: the number of the capture of its graph, which keeps what
    /// the body uses.
    outer: Option<u64>,
    pool: Option<Pool>,
    cached: CachedHeaps,
    uses: Uses,
}

/// What a capture used, and its graph must keep.
#[derive(Default)]
pub struct Uses {
    /// What the sanitizer recorded.
    pub recording: Option<Recording>,
    /// Pools other than its own.
    pub pools: Vec<Pool>,
    /// Addresses of blocks of pinned memory, sorted and unique.
    pub pinned: Vec<usize>,
    /// The numbers of its host functions.
    pub functions: Vec<usize>,
}

// SAFETY: heaps are shared by all threads.
unsafe impl Send for ActiveCapture {}

impl Drop for ActiveCapture {
    fn drop(&mut self) {
        flags::end(Watcher::Route);
    }
}

/// The source of memory for a captured stream.
pub struct Source {
    /// Number of the capture.
    pub number: u64,
    /// Pool of the capture.
    pub pool: Pool,
    /// The stream that owns the memory. For the per-thread default stream, that of the thread that
    /// began the capture.
    pub stream: *const Stream,
    /// The heap that the capture remembers for the stream.
    pub heap: Option<*const Heap>,
}

/// The active captures.
pub struct Captures {
    list: Mutex<Vec<ActiveCapture>>,
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for Captures {
    type Owner = Gpus;
    const KIND: SubsystemKind = SubsystemKind::Captures;
}

impl Gpus {
    /// The captures that the library has begun.
    #[inline(always)]
    pub fn captures(&self) -> &Captures {
        self.subsystem()
    }
}

impl Captures {
    pub(crate) fn new() -> Captures {
        Captures { list: Mutex::new(Rank::LEAF, Vec::new()) }
    }

    /// Lists a capture that is about to begin, and returns its number. Without a pool its
    /// allocations come from the usual place. `outer`: it is the body of a conditional node of the
    /// graph of this capture.
    pub(crate) fn begin(
        &self,
        gpus: &Gpus,
        stream: &Stream,
        pool: Option<Pool>,
        outer: Option<u64>,
    ) -> Result<u64> {
        let mut list = self.list.lock();
        list.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a capture"))?;
        let number = next_number();
        flags::begin(Watcher::Route);
        if list.is_empty() {
            forget_refused();
        }
        list.push(ActiveCapture {
            number,
            stream: HeldStream::new(stream),
            thread: thread::number(),
            id: 0,
            outer,
            pool,
            cached: CachedHeaps::default(),
            uses: Uses::default(),
        });
        gpus.begin_capture();
        Ok(number)
    }

    /// Stores the driver's ID of a capture that has begun.
    pub(crate) fn set_driver_id(&self, number: u64, id: u64) {
        if let Some(capture) = find(&mut self.list.lock(), |capture| capture.number == number) {
            capture.id = id;
        }
    }

    /// Removes a capture from the list, and returns what it used.
    #[must_use = "its host functions count the capture as a holder, until a graph takes them"]
    pub(crate) fn end(&self, gpus: &Gpus, number: u64) -> Uses {
        let mut list = self.list.lock();
        let index = list.iter().position(|capture| capture.number == number);
        let ended = index.map(|index| list.swap_remove(index));
        drop(list);
        ended.iter().for_each(|_| gpus.end_capture());
        ended.map(|mut ended| std::mem::take(&mut ended.uses)).unwrap_or_default()
    }

    /// Runs `body` on the active capture that a stream belongs to, if there is one.
    fn with<R>(
        &self,
        gpus: &Gpus,
        stream: &Stream,
        body: impl Fn(&mut ActiveCapture) -> R,
    ) -> Result<Option<R>> {
        if !gpus.has_captures() {
            return Ok(None);
        }
        let own = thread::number();
        let began_on = |capture: &ActiveCapture| {
            let first = &*capture.stream;
            let is_own = stream.is_per_thread()
                && first.is_per_thread()
                && first.device() == stream.device()
                && capture.thread == own;
            is_own || std::ptr::eq(first, stream) && !stream.is_per_thread()
        };
        if let Some(capture) = find(&mut self.list.lock(), began_on) {
            return Ok(Some(body(capture)));
        }
        // The stream may have joined a capture later. The driver is queried with no lock held.
        let _context = stream.enter(gpus)?;
        let Some(id) = capture_of(gpus.driver(), stream.native())? else { return Ok(None) };
        Ok(find(&mut self.list.lock(), |capture| capture.id == id).map(body))
    }

    /// The source of memory for a captured stream. `is_segmented`: whether a pool has segments.
    pub fn source(
        &self,
        gpus: &Gpus,
        stream: &Stream,
        is_segmented: impl Fn(PoolId) -> bool,
    ) -> Result<Option<Source>> {
        let found = self.with(gpus, stream, |capture| {
            let pool = capture.pool.as_ref()?.share();
            let stream = if stream.is_per_thread() { &*capture.stream } else { stream };
            let heap = capture.cached.find(stream, is_segmented(pool.id()));
            // SAFETY: the pool lives, and a heap that has not left its stream stays.
            let heap = heap.filter(|heap| unsafe { (**heap).pool() } == pool.id());
            Some(Source { number: capture.number, pool, stream, heap })
        })?;
        Ok(found.flatten())
    }

    /// Remembers a heap of a capture's pool.
    pub fn remember(&self, number: u64, stream: &Stream, heap: &Heap) {
        if let Some(capture) = find(&mut self.list.lock(), |capture| capture.number == number) {
            capture.cached.add(stream, heap);
        }
    }

    /// Keeps a pool as long as the graph, because a captured stream got memory of it.
    pub fn retain(&self, number: u64, pool: Pool) -> Result<()> {
        let mut list = self.list.lock();
        let body = list.iter().find(|capture| capture.number == number);
        let number = body.and_then(|body| body.outer).unwrap_or(number);
        let Some(capture) = find(&mut list, |capture| capture.number == number) else {
            return Ok(());
        };
        let pools = &mut capture.uses.pools;
        if pools.iter().any(|known| known.id() == pool.id()) {
            return Ok(());
        }
        // And space for the graph's own pool.
        pools.try_reserve(2).map_err(|_| Error::OutOfHostMemory("the pools of a graph"))?;
        pools.push(pool);
        Ok(())
    }

    /// Does an active capture use memory of this pool?
    pub fn uses_pool(&self, pool: PoolId) -> bool {
        self.list.lock().iter().any(|capture| {
            capture.pool.iter().chain(&capture.uses.pools).any(|known| known.id() == pool)
        })
    }

    /// The number of the active capture that a stream belongs to; in the body of a conditional
    /// node, that of the capture of the graph.
    pub fn number_of(&self, gpus: &Gpus, stream: &Stream) -> Result<Option<u64>> {
        self.with(gpus, stream, |capture| capture.outer.unwrap_or(capture.number))
    }

    /// The number of the active capture that a stream belongs to; `None` also in the body of a
    /// conditional node.
    pub fn number_outside_bodies(&self, gpus: &Gpus, stream: &Stream) -> Result<Option<u64>> {
        let number =
            self.with(gpus, stream, |capture| capture.outer.is_none().then_some(capture.number))?;
        Ok(number.flatten())
    }

    /// Is the capture with this ID of the driver the body of a conditional node?
    pub fn is_body(&self, id: u64) -> bool {
        self.list.lock().iter().any(|capture| capture.id == id && capture.outer.is_some())
    }

    /// Records that a capture uses a block of pinned memory. True on the first use.
    pub fn use_pinned(&self, number: u64, address: usize) -> Result<bool> {
        let mut list = self.list.lock();
        let Some(capture) = find(&mut list, |capture| capture.number == number) else {
            return Err(Error::InvalidState("the capture has ended meanwhile"));
        };
        let pinned = &mut capture.uses.pinned;
        let Err(place) = pinned.binary_search(&address) else { return Ok(false) };
        pinned
            .try_reserve(1)
            .map_err(|_| Error::OutOfHostMemory("the pinned memory of a graph"))?;
        pinned.insert(place, address);
        Ok(true)
    }

    /// Records that a capture has a host function.
    pub(crate) fn take_function(&self, number: u64, function: usize) -> Result<()> {
        match find(&mut self.list.lock(), |capture| capture.number == number) {
            Some(capture) => {
                let functions = &mut capture.uses.functions;
                functions
                    .try_reserve(1)
                    .map_err(|_| Error::OutOfHostMemory("the host functions of a graph"))?;
                functions.push(function);
                Ok(())
            }
            None => Err(Error::InvalidState("the capture has ended meanwhile")),
        }
    }

    /// Removes a host function that the driver did not record.
    pub(crate) fn drop_function(&self, number: u64, function: usize) {
        if let Some(capture) = find(&mut self.list.lock(), |capture| capture.number == number) {
            capture.uses.functions.retain(|known| *known != function);
        }
    }
}

fn find(
    list: &mut [ActiveCapture],
    is_it: impl Fn(&ActiveCapture) -> bool,
) -> Option<&mut ActiveCapture> {
    list.iter_mut().find(|capture| is_it(capture))
}
