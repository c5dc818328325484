//! Contexts, and each thread's stack of them.

use super::physical::next_id;
use super::queue::{Kind, Point, Stream};
use super::settings::Settings;
use super::sync::{lock, read, write};
use super::worker;
use crate::base::code;
use cudarc::driver::sys::CUcontext;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// Handle of context 0; context `n` has `FIRST + n * STRIDE`.
const FIRST: usize = 1 << 36;
const STRIDE: usize = 64;
/// Maximum depth of a thread's context stack.
const MAX_DEPTH: usize = 64;

/// A context: the primary one of a device, or one that the host created beside it.
pub(super) struct Context {
    /// Of a primary context it is the number of the device. Never reused.
    pub(super) number: usize,
    pub(super) device: usize,
    /// How often a primary context was retained.
    pub(super) retained: Mutex<usize>,
    /// False for a primary context that is not retained, and for a destroyed context.
    pub(super) active: AtomicBool,
    /// Status of the first failed operation; never cleared.
    pub(super) error: AtomicI32,
    /// Never used again, unlike the handle. A primary context that begins anew has another.
    pub(super) id: AtomicU64,
    pub(super) settings: Mutex<Settings>,
    pub(super) legacy: Arc<Stream>,
    per_thread: Mutex<Vec<(u64, Arc<Stream>)>>,
    /// When waits for values are given up, by the clock of the machine: `u64::MAX`, unless the
    /// context is ending.
    pub(super) gives_up: AtomicU64,
    /// What all work that is queued from now on waits for.
    pub(super) barrier: Barrier,
    /// All streams except `legacy`, including destroyed streams until they are idle.
    pub(super) members: RwLock<Vec<Arc<Stream>>>,
}

impl Context {
    /// The primary context of a device.
    pub(super) fn new(device: usize) -> Context {
        Context::numbered(device, device)
    }

    fn numbered(number: usize, device: usize) -> Context {
        Context {
            number,
            device,
            retained: Mutex::new(0),
            active: AtomicBool::new(false),
            error: AtomicI32::new(0),
            id: AtomicU64::new(next_id()),
            settings: Mutex::new(Settings::new(0)),
            legacy: Stream::of(number, device, Kind::Legacy, 0),
            per_thread: Mutex::default(),
            gives_up: AtomicU64::new(u64::MAX),
            barrier: Barrier::default(),
            members: RwLock::default(),
        }
    }

    /// Returns the sticky error of a failed operation, if any.
    #[inline]
    pub(super) fn check(&self) -> Result<(), i32> {
        match self.error.load(Ordering::Relaxed) {
            code::SUCCESS => Ok(()),
            error => Err(error),
        }
    }

    /// Makes the context unusable, unless it is already.
    pub(super) fn fail(&self, code: i32) {
        let _ = self.error.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Ends a primary context: a later one has no settings but the flags.
    pub(super) fn renew(&self) {
        self.begin_anew();
        let mut settings = lock(&self.settings);
        *settings = Settings::new(settings.flags);
    }

    /// The number of the context with a handle.
    pub(super) fn number_of(handle: CUcontext) -> Option<usize> {
        let distance = handle.addr().checked_sub(FIRST)?;
        (distance % STRIDE == 0).then_some(distance / STRIDE)
    }

    pub(super) fn handle(&self) -> CUcontext {
        ptr::without_provenance_mut(FIRST + self.number * STRIDE)
    }

    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// The calling thread's per-thread default stream.
    pub(super) fn per_thread(&self) -> Arc<Stream> {
        let thread = worker::identity();
        let mut streams = lock(&self.per_thread);
        if let Some((_, stream)) = streams.iter().find(|(owner, _)| *owner == thread) {
            return Arc::clone(stream);
        }
        streams.retain(|(_, stream)| !stream.destroyed.load(Ordering::Relaxed));
        let stream = Stream::of(self.number, self.device, Kind::Blocking, 0);
        self.add_stream(&stream);
        // If this cannot be registered, the stream lives until the machine is powered off.
        let own = Arc::downgrade(&stream);
        worker::at_end(move || own.upgrade().iter().for_each(|stream| stream.destroy()));
        streams.push((thread, Arc::clone(&stream)));
        stream
    }

    pub(super) fn add_stream(&self, stream: &Arc<Stream>) {
        let mut members = write(&self.members);
        members.retain(|member| !member.destroyed.load(Ordering::Relaxed) || !member.is_idle());
        members.push(Arc::clone(stream));
    }

    /// Its number and its device.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.number, self.device)
    }

    /// All streams.
    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        let mut streams = read(&self.members).clone();
        streams.push(Arc::clone(&self.legacy));
        streams
    }

    /// Ends the streams of a destroyed context, which have no work.
    pub(super) fn close(&self) {
        self.streams().iter().for_each(|stream| stream.destroy());
        lock(&self.per_thread).clear();
        write(&self.members).clear();
    }

    /// Makes the record of a destroyed context that of a new one.
    fn reopen(&self) {
        self.error.store(code::SUCCESS, Ordering::Relaxed);
        self.begin_anew();
        *lock(&self.settings) = Settings::new(0);
        self.legacy.reopen();
    }

    /// Forgets what an ended context had.
    fn begin_anew(&self) {
        self.id.store(next_id(), Ordering::Relaxed);
        self.gives_up.store(u64::MAX, Ordering::Relaxed);
        lock(&self.barrier.points).clear();
    }

    /// References of the host: how often a primary context was retained; 1 for another one.
    pub(super) fn live(&self) -> usize {
        *lock(&self.retained)
    }
}

/// Points for which the later work of a context waits, or that of one of its green contexts, whose
/// ID is beside the point.
#[derive(Default)]
pub(super) struct Barrier {
    /// True if there may be points.
    is_set: AtomicBool,
    points: Mutex<Vec<(Option<u64>, Point)>>,
}

impl Barrier {
    pub(super) fn add(&self, green: Option<u64>, point: Point) {
        let mut points = lock(&self.points);
        points.retain(|(_, point)| !point.is_reached());
        points.push((green, point));
        self.is_set.store(true, Ordering::Release);
    }

    /// Appends the points that are not reached to the waits of an operation of a stream.
    #[inline]
    pub(super) fn add_to(&self, waits: &mut Vec<Point>, stream: &Stream) {
        if self.is_set.load(Ordering::Acquire) {
            let mut points = lock(&self.points);
            points.retain(|(_, point)| !point.is_reached());
            self.is_set.store(!points.is_empty(), Ordering::Release);
            let concerns = |green: &Option<u64>| green.is_none() || *green == stream.green_id();
            let own = points.iter().filter(|(green, _)| concerns(green));
            waits.extend(own.map(|(_, point)| point.clone()));
        }
    }
}

/// Number of created contexts in the first chunk; each chunk is twice as long as that before it.
const FIRST_CHUNK: usize = 64;
const CHUNKS: usize = 16;

/// Number of destroyed contexts whose handles mean no other context.
const MOST_DESTROYED: usize = 1024;

/// The contexts that the host created. The record of a destroyed one is used again, with its
/// handle, when many others have been destroyed after it.
#[derive(Default)]
pub(super) struct Created {
    chunks: [OnceLock<Box<[OnceLock<Context>]>>; CHUNKS],
    places: Mutex<Places>,
}

/// The records in use, and those of destroyed contexts, the oldest first.
#[derive(Default)]
struct Places {
    count: usize,
    destroyed: VecDeque<usize>,
}

impl Created {
    /// The chunk of an index, and the place in it.
    fn place(index: usize) -> (usize, usize) {
        let distance = index + FIRST_CHUNK;
        let chunk = (distance / FIRST_CHUNK).ilog2() as usize;
        (chunk, distance - (FIRST_CHUNK << chunk))
    }

    pub(super) fn get(&self, index: usize) -> Option<&Context> {
        let (chunk, place) = Self::place(index);
        self.chunks.get(chunk)?.get()?.get(place)?.get()
    }

    /// Creates a context whose number is its index after `first`.
    pub(super) fn create(&self, first: usize, device: usize) -> Option<&Context> {
        let mut places = lock(&self.places);
        if let Some(surplus) = places.destroyed.len().checked_sub(MOST_DESTROYED) {
            let is_of_device =
                |index: &usize| self.get(*index).is_some_and(|it| it.device == device);
            let found = places.destroyed.iter().take(surplus + 1).position(is_of_device);
            if let Some(index) = found.and_then(|at| places.destroyed.remove(at)) {
                let context = self.get(index)?;
                context.reopen();
                return Some(context);
            }
        }
        let (chunk, place) = Self::place(places.count);
        let chunk = self
            .chunks
            .get(chunk)?
            .get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| OnceLock::new()).collect());
        let number = first + places.count;
        let created = chunk.get(place)?.get_or_init(|| Context::numbered(number, device));
        places.count += 1;
        Some(created)
    }

    /// Notes that a context was destroyed, whose number is its index after `first`.
    pub(super) fn note_destroyed(&self, first: usize, context: &Context) {
        lock(&self.places).destroyed.push_back(context.number - first);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Context> {
        (0..lock(&self.places).count).filter_map(|index| self.get(index))
    }
}

/// State of a thread, valid for one machine. It has no destructor, since exit handlers run after
/// destructors.
struct Thread {
    generation: u64,
    stack: Stack,
}

/// The context stack; the current context is last.
pub(super) struct Stack {
    handles: [usize; MAX_DEPTH],
    depth: usize,
}

impl Stack {
    const fn new() -> Stack {
        Stack { handles: [0; MAX_DEPTH], depth: 0 }
    }

    pub(super) fn last(&self) -> Option<usize> {
        self.handles.get(self.depth.checked_sub(1)?).copied()
    }

    pub(super) fn pop(&mut self) -> Option<usize> {
        let last = self.last()?;
        self.depth -= 1;
        Some(last)
    }

    pub(super) fn push(&mut self, handle: usize) -> Result<(), i32> {
        let place = self.handles.get_mut(self.depth).ok_or(code::OUT_OF_MEMORY)?;
        *place = handle;
        self.depth += 1;
        Ok(())
    }
}

thread_local! {
    static THREAD: RefCell<Thread> = const {
        RefCell::new(Thread { generation: 0, stack: Stack::new() })
    };
}

thread_local! {
    static HAS_OWN_DEFAULT: Cell<bool> = const { Cell::new(false) };
}

/// True if stream 0 means the calling thread's default stream.
pub(super) fn has_own_default_stream() -> bool {
    HAS_OWN_DEFAULT.get()
}

/// Runs a call in which stream 0 means the calling thread's default stream. The call does not
/// unwind.
pub(super) fn with_own_default_stream<R>(body: impl FnOnce() -> R) -> R {
    let before = HAS_OWN_DEFAULT.replace(true);
    let outcome = body();
    HAS_OWN_DEFAULT.set(before);
    outcome
}

/// Runs `body` with the calling thread's context stack for the machine of this generation.
pub(super) fn with_stack<R>(generation: u64, body: impl FnOnce(&mut Stack) -> R) -> Result<R, i32> {
    let outcome = THREAD.try_with(|thread| {
        let mut thread = thread.borrow_mut();
        if thread.generation != generation {
            thread.generation = generation;
            thread.stack = Stack::new();
        }
        body(&mut thread.stack)
    });
    outcome.map_err(|_| code::DEINITIALIZED)
}
