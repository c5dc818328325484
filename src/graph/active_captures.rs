//! Captures of ours that are under way: what is allocated on their streams, by whatever thread, comes
//! from their pools, and the pinned memory that they use stays as long as their graphs.
//!
//! A capture is listed before the driver begins it, so that there is no moment at which a stream is
//! captured and its memory comes from elsewhere.

use super::capture::discard;
use super::functions::Functions;
use crate::base::error::{Error, Result, forget_refused};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::thread;
use crate::driver::sys::{CUstream, CUstreamCaptureStatus};
use crate::driver::{CudaError, Driver, code};
use crate::gpu::external_registry::HeldStream;
use crate::gpu::stream::{Stream, is_capturing};
use crate::graph::reclamation::Leaving;
use crate::memory::arena::Arena;
use crate::memory::pools::pool::{Pool, PoolId};
use crate::memory::stats::ledger::Class;
use crate::observe::flags::{self, Watcher};
use crate::runtime::Runtime;
use crate::sanitizer::Recording;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Stands for the number of a capture where the driver is too old to tell: there is one at a time.
pub const SOME_CAPTURE: u64 = u64::MAX;

/// Arenas that a capture remembers.
const REMEMBERED: usize = 4;

/// Numbers routes and captures in the order in which they began: the last one counts.
pub fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// What a capture remembers: the stream, and the arena that serves it.
#[derive(Clone, Copy)]
struct Served {
    /// By which it is remembered.
    stream: u64,
    arena: *const Arena,
}

/// A capture that is under way, or about to begin.
struct Underway {
    number: u64,
    /// On which it began: for a thread's own default stream that very stream.
    stream: HeldStream,
    /// The thread that began it.
    thread: u64,
    /// The driver's number; 0: not known yet.
    id: u64,
    pool: Option<Pool>,
    served: [Option<Served>; REMEMBERED],
    /// The next to be forgotten.
    next: usize,
    uses: Uses,
}

/// What a capture used that must stay as long as its graph.
#[derive(Default)]
pub struct Uses {
    /// What the sanitizer was told.
    pub(super) recording: Option<Recording>,
    /// Pools besides its own.
    pub pools: Vec<Pool>,
    /// Blocks of pinned memory, by address, each once.
    pub pinned: Vec<usize>,
    /// Host functions.
    pub(super) functions: Functions,
}

// SAFETY: arenas are shared by all threads.
unsafe impl Send for Underway {}

impl Drop for Underway {
    fn drop(&mut self) {
        flags::end(Watcher::Route);
    }
}

/// Where memory for a stream that is captured comes from.
pub struct Source {
    /// Which capture it is.
    pub number: u64,
    /// Its pool.
    pub pool: Pool,
    /// The stream, as what has memory is known: of a thread's own default stream that one.
    pub stream: *const Stream,
    /// The arena that the capture remembers for it.
    pub arena: Option<*const Arena>,
}

/// The captures of ours.
pub struct Captures {
    list: Mutex<Vec<Underway>>,
    /// What graphs held that could not be given back yet.
    lingering: Mutex<Vec<Leaving>>,
    /// Streams whose captures the driver refused to end.
    unended: Mutex<Vec<HeldStream>>,
    /// How many, readable without the lock.
    count: AtomicUsize,
}

impl Captures {
    pub(crate) fn new() -> Captures {
        Captures {
            list: Mutex::new(Rank::LEAF, Vec::new()),
            lingering: Mutex::new(Rank::LEAF, Vec::new()),
            unended: Mutex::new(Rank::LEAF, Vec::new()),
            count: AtomicUsize::new(0),
        }
    }

    /// Ends a capture of which nobody wants anything; what the driver refuses is tried again later.
    pub(super) fn discard(&self, driver: &Driver, stream: &Stream) {
        if discard(driver, stream) {
            return;
        }
        let mut unended = self.unended.lock();
        if unended.try_reserve(1).is_ok() {
            unended.push(HeldStream::new(stream));
        }
    }

    /// Tries once more what could not be done when a capture ended or a graph went.
    pub fn tidy(&self, runtime: &Runtime) {
        let unended = std::mem::take(&mut *self.unended.lock());
        for stream in unended {
            let _context = stream.enter(runtime);
            self.discard(runtime.driver(), &stream);
        }
        let lingering = std::mem::take(&mut *self.lingering.lock());
        for leaving in lingering {
            leaving.settle(runtime);
        }
    }

    /// Puts by what cannot be given back yet.
    pub(super) fn linger(&self, leaving: Leaving) {
        let mut lingering = self.lingering.lock();
        if lingering.try_reserve(1).is_ok() {
            return lingering.push(leaving);
        }
        // Where there is no host memory it stays for ever.
        drop(lingering);
        std::mem::forget(leaving);
    }

    /// Is there any?
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Lists a capture that is about to begin; without a pool its memory comes from where it would
    /// have come from. Gives its number.
    pub(super) fn begin(&self, stream: &Stream, pool: Option<Pool>) -> Result<u64> {
        let mut list = self.list.lock();
        list.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a capture"))?;
        let number = next_number();
        flags::begin(Watcher::Route);
        if list.is_empty() {
            forget_refused();
        }
        list.push(Underway {
            number,
            stream: HeldStream::new(stream),
            thread: thread::number(),
            id: 0,
            pool,
            served: [None; REMEMBERED],
            next: 0,
            uses: Uses::default(),
        });
        self.count.store(list.len(), Ordering::Release);
        Ok(number)
    }

    /// The driver has begun it.
    pub(super) fn begun(&self, number: u64, id: u64) {
        if let Some(capture) = find(&mut self.list.lock(), |capture| capture.number == number) {
            capture.id = id;
        }
    }

    /// Strikes it off the list; gives what it used.
    pub(super) fn end(&self, number: u64) -> Uses {
        let mut list = self.list.lock();
        let index = list.iter().position(|capture| capture.number == number);
        let ended = index.map(|index| list.swap_remove(index));
        self.count.store(list.len(), Ordering::Release);
        drop(list);
        ended.map(|mut ended| std::mem::take(&mut ended.uses)).unwrap_or_default()
    }

    /// Runs `body` on the capture of a stream, if it is one of ours.
    fn with<R>(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        body: impl Fn(&mut Underway) -> R,
    ) -> Result<Option<R>> {
        if !self.any() {
            return Ok(None);
        }
        let own = thread::number();
        let began_on = |capture: &Underway| {
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
        // A stream that came into a capture later; the question is asked with no lock held.
        let _context = stream.enter(runtime)?;
        let Some(id) = capture_of(runtime, stream.native())? else { return Ok(None) };
        Ok(find(&mut self.list.lock(), |capture| capture.id == id).map(body))
    }

    /// Where memory for a stream comes from while it is captured; of a class, and in segments or not.
    pub fn source(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        kind: (Class, bool),
    ) -> Result<Option<Source>> {
        let found = self.with(runtime, stream, |capture| {
            let pool = capture.pool.as_ref()?.share();
            let stream = if stream.is_per_thread() { &*capture.stream } else { stream };
            let remembered = stream.served.load(Ordering::Acquire);
            let arena = capture.served.iter().flatten().find_map(|served| {
                if served.stream != remembered {
                    return None;
                }
                // SAFETY: an arena of a pool that lives, which has not left its stream, stays.
                let arena = unsafe { &*served.arena };
                let is_it = arena.kind() == kind && arena.pool() == pool.id();
                is_it.then_some(served.arena)
            });
            Some(Source { number: capture.number, pool, stream, arena })
        })?;
        Ok(found.flatten())
    }

    /// Has a capture remember an arena of its pool.
    pub fn remember(&self, number: u64, stream: &Stream, arena: &Arena) {
        if let Some(capture) = find(&mut self.list.lock(), |capture| capture.number == number) {
            let stream = stream.served.load(Ordering::Acquire);
            capture.served[capture.next] = Some(Served { stream, arena });
            capture.next = (capture.next + 1) % REMEMBERED;
        }
    }

    /// A captured stream gets memory of another pool, which stays as long as the graph.
    pub fn retain(&self, number: u64, pool: Pool) -> Result<()> {
        let mut list = self.list.lock();
        let Some(capture) = find(&mut list, |capture| capture.number == number) else {
            return Ok(());
        };
        let pools = &mut capture.uses.pools;
        if pools.iter().any(|known| known.id() == pool.id()) {
            return Ok(());
        }
        // And room for the graph's own.
        pools.try_reserve(2).map_err(|_| Error::OutOfHostMemory("the pools of a graph"))?;
        pools.push(pool);
        Ok(())
    }

    /// Does a capture use the memory of a pool?
    pub fn uses_pool(&self, pool: PoolId) -> bool {
        self.list.lock().iter().any(|capture| {
            capture.pool.iter().chain(&capture.uses.pools).any(|known| known.id() == pool)
        })
    }

    /// Is a stream's capture one of ours? Its number.
    pub fn number_of(&self, runtime: &Runtime, stream: &Stream) -> Result<Option<u64>> {
        self.with(runtime, stream, |capture| capture.number)
    }

    /// A capture uses a block of pinned memory; true: for the first time.
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

    /// A capture records a host function.
    pub(super) fn take_function(&self, number: u64, function: usize) -> Result<()> {
        match find(&mut self.list.lock(), |capture| capture.number == number) {
            Some(capture) => capture.uses.functions.push(function),
            None => Err(Error::InvalidState("the capture has ended meanwhile")),
        }
    }

    /// It has not recorded it.
    pub(super) fn drop_function(&self, number: u64, function: usize) {
        if let Some(capture) = find(&mut self.list.lock(), |capture| capture.number == number) {
            capture.uses.functions.forget(function);
        }
    }
}

fn find(list: &mut [Underway], is_it: impl Fn(&Underway) -> bool) -> Option<&mut Underway> {
    list.iter_mut().find(|capture| is_it(capture))
}

/// The number of the capture that a stream belongs to. The question harms no capture; a context of the
/// stream's device is current.
pub(crate) fn capture_of(runtime: &Runtime, native: CUstream) -> Result<Option<u64>> {
    if !is_capturing(runtime.driver(), native)? {
        return Ok(None);
    }
    let (mut status, mut id): (i32, u64) = (0, 0);
    let none = std::ptr::null_mut::<c_void>();
    let out = std::ptr::from_mut(&mut status).cast::<CUstreamCaptureStatus>();
    // SAFETY: the driver writes an enum of this size, read as an integer, and the number.
    let asked = unsafe {
        runtime.driver().cuStreamGetCaptureInfo(
            native,
            out,
            &mut id,
            none.cast(),
            none.cast(),
            none.cast(),
        )
    };
    match asked {
        Ok(()) if status != 0 => Ok(Some(id)),
        // The default stream beside the capture of a stream that it would wait for.
        Ok(()) => Ok(None),
        Err(error) if error.code == CudaError::MISSING => Ok(Some(SOME_CAPTURE)),
        Err(error) if error.code == code::STREAM_CAPTURE_IMPLICIT => Ok(None),
        Err(error) => Err(error.into()),
    }
}
