//! Streams: ordered queues of device work; pooled by priority, default, or external.

use crate::base::error::{Error, Result};
use crate::base::lock::{Lock, Mutex};
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::base::thread::try_box;
use crate::base::thread_lifetime::Lifetime;
use crate::driver::sys::{CUevent, CUstream, CUstreamCaptureStatus};
use crate::driver::{CudaError, Driver, code};
use crate::gpu::device::{ContextGuard, Device};
use crate::gpu::external_life::{ENDED, EndState, ExternalStreamLife, UNKNOWN};
use crate::gpu::external_registry::{ExternalStreams, Holders};
use crate::gpu::gpus::Gpus;
use crate::gpu::green_context::GreenStream;
use crate::gpu::internal_streams::InternalStreams;
use crate::gpu::waits::LastSync;
use once_cell::sync::OnceCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Streams per priority and device.
pub const PER_PRIORITY: usize = 32;
/// The most priorities that are used, from 0 down.
pub const MAX_PRIORITIES: usize = 4;

const NON_BLOCKING: u32 = 1;
/// CUDA's fixed handles: of the legacy default stream, and of a thread's default stream.
pub(crate) const LEGACY: usize = 1;
pub(crate) const PER_THREAD: usize = 2;

/// A stream. The library's own live until shutdown, external ones as long as something refers to
/// them (`external_registry.rs`), so that threads and blocks may keep references.
pub struct Stream {
    device: i32,
    native: usize,
    id: i64,
    priority: i32,
    /// The driver's stream id, which is never reused as handles are.
    pub(crate) driver_id: u64,
    pub(crate) external: bool,
    /// Counts the handles; without handles the owner of an external stream may destroy it.
    pub(crate) external_life: ExternalStreamLife,
    /// Its owner passes it in each call, and so keeps it alive without a handle.
    pub(crate) is_named: AtomicBool,
    /// Of `memory`: its heap, and its heap with segments; NULL until first used.
    pub(crate) heaps: [AtomicPtr<c_void>; 2],
    /// Held by a thread that queries it or records on it while it is not captured, and while a
    /// capture of it begins.
    capture: Lock,
    /// The borrowed handle of src/ffi; 0: none yet.
    pub handle: AtomicUsize,
    /// The driver's flags of the stream plus 1; 0: not queried yet.
    flags: AtomicU32,
    /// The last wait for it.
    pub(crate) last_sync: LastSync,
    /// The lifetime of the thread whose default stream it is.
    pub(crate) thread: Option<Lifetime>,
    /// Unique among all streams, also past ones.
    pub(crate) serial: u64,
    /// Key by which routes and captures cache its heaps; changes when it loses a heap.
    pub(crate) served: AtomicU64,
    /// Of an external stream: the driver that destroys its event.
    pub(crate) driver: Option<&'static Driver>,
    /// Its end, if the library has created it in a green context.
    pub(crate) green: OnceCell<GreenStream>,
    /// The number of holders, and the state of searches (`external_registry.rs`).
    pub(crate) holders: Holders,
    pub(crate) was_unused: AtomicBool,
    pub(crate) mark: AtomicU64,
}

/// A unique number.
pub(crate) fn next_serial() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// How a stream is ordered relative to the default stream of its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Not ordered.
    Free,
    /// Each waits for the earlier work of the other.
    Blocking,
}

impl Stream {
    pub(crate) fn new(
        device: i32,
        native: usize,
        id: i64,
        priority: i32,
        driver_id: u64,
    ) -> Stream {
        Stream {
            device,
            native,
            id,
            priority,
            driver_id,
            external: false,
            external_life: ExternalStreamLife::new(),
            is_named: AtomicBool::new(false),
            heaps: [const { AtomicPtr::new(std::ptr::null_mut()) }; 2],
            capture: Lock::new(Rank::STREAM),
            handle: AtomicUsize::new(0),
            flags: AtomicU32::new(0),
            last_sync: LastSync::new(),
            thread: None,
            serial: next_serial(),
            served: AtomicU64::new(next_serial()),
            driver: None,
            green: OnceCell::new(),
            holders: Holders::NONE,
            was_unused: AtomicBool::new(false),
            mark: AtomicU64::new(0),
        }
    }

    /// The ordinal of its device.
    #[inline]
    pub fn device(&self) -> i32 {
        self.device
    }

    /// The driver's handle; NULL is the device's default stream.
    #[inline]
    pub fn native(&self) -> CUstream {
        self.native as CUstream
    }

    /// PyTorch's stream id: 0 is the default stream.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Its priority; lower is more urgent.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Is it a device's default stream?
    pub fn is_default(&self) -> bool {
        self.native == 0
    }

    /// Is it external?
    pub fn is_external(&self) -> bool {
        self.external
    }

    /// What may a caller without a handle use in place of the stream?
    pub(crate) fn end_state(&self) -> EndState<'_> {
        self.external_life.end_state()
    }

    /// Counts an owned handle.
    pub fn add_handle(&self) {
        self.external_life.add_handle();
    }

    /// Drops an owned handle. With the last one of an external stream an event is recorded while
    /// the stream is alive; later waits for the stream wait for that event.
    pub fn remove_handle(&self, gpus: &Gpus) -> Result<()> {
        let has_end = self.external && !self.is_per_thread();
        let outcome = if has_end { self.record_end(gpus) } else { Ok(()) };
        self.external_life.drop_handle();
        outcome
    }

    fn record_end(&self, gpus: &Gpus) -> Result<()> {
        if matches!(self.is_capturing(gpus), Ok(true)) {
            return Ok(());
        }
        let Err(error) = self.try_record_end(gpus) else { return Ok(()) };
        // The stream cannot be queried later, so wait for it now.
        let (known, _needed) = (self.external_life.event(), crate::driver::sync_debug::required());
        if self.synchronize(gpus).is_ok() {
            let _ = self.external_life.replace_event(0, ENDED);
            return Ok(());
        }
        if self.external_life.replace_event(known, UNKNOWN).is_ok() && known > UNKNOWN {
            gpus.device(self.device)?.events.give_untimed(known as CUevent);
        }
        Err(error)
    }

    /// Records that the host has waited for the whole context.
    pub(crate) fn note_context_synced(&self) {
        let _ = self.external_life.replace_event(UNKNOWN, ENDED);
    }

    fn try_record_end(&self, gpus: &Gpus) -> Result<()> {
        let device = gpus.device(self.device)?;
        let known = self.external_life.event();
        if known > UNKNOWN {
            return self.record(gpus, known as CUevent);
        }
        let event = device.events.take_untimed(device)?;
        if let Err(error) = self.record(gpus, event) {
            device.events.give_untimed(event);
            return Err(error);
        }
        match self.external_life.replace_event(known, event as usize) {
            Ok(()) => Ok(()),
            Err(first) => {
                device.events.give_untimed(event);
                self.record(gpus, first as CUevent)
            }
        }
    }

    /// Does the handle denote another stream on each thread?
    #[inline]
    pub fn is_per_thread(&self) -> bool {
        self.native == PER_THREAD
    }

    /// The stream of this thread: another object for a per-thread handle.
    #[inline]
    pub fn on_this_thread<'a>(&'a self, gpus: &'a Gpus) -> Result<&'a Stream> {
        if !self.is_per_thread() {
            return Ok(self);
        }
        let device = gpus.device(self.device)?;
        device.streams.external(device, self.native())
    }

    /// Does the driver need its context to be current? CUDA's fixed handles denote a stream of the
    /// current context; other handles determine their context.
    #[inline]
    pub(crate) fn needs_context(&self) -> bool {
        self.native <= PER_THREAD
    }

    /// Makes its context current, if the driver needs that.
    #[inline]
    pub(crate) fn enter(&self, gpus: &Gpus) -> Result<Option<ContextGuard>> {
        if !self.needs_context() {
            return Ok(None);
        }
        Ok(Some(gpus.device(self.device)?.enter()?))
    }

    /// How it is ordered relative to the default stream. It is not the default stream, and not
    /// captured. Queried once.
    pub(crate) fn order(&self, gpus: &Gpus) -> Result<Order> {
        let mut flags = self.flags.load(Ordering::Relaxed);
        if flags == 0 {
            let _context = self.enter(gpus)?;
            let mut queried = 0;
            // SAFETY: the stream is alive, `queried` is writable.
            unsafe { gpus.driver().cuStreamGetFlags(self.native(), &mut queried) }?;
            flags = queried + 1;
            self.flags.store(flags, Ordering::Relaxed);
        }
        Ok(if (flags - 1) & NON_BLOCKING != 0 { Order::Free } else { Order::Blocking })
    }

    /// Has all its work finished? Does not notify subscribers of progress.
    #[inline]
    pub(crate) fn is_done(&self, gpus: &Gpus) -> Result<bool> {
        let _context = self.enter(gpus)?;
        // SAFETY: the stream is alive: the library's until shutdown, external ones by their owner's
        // promise.
        finished(unsafe { gpus.driver().cuStreamQuery(self.native()) })
    }

    /// Waits for all its work.
    pub fn synchronize(&self, gpus: &Gpus) -> Result<()> {
        let _context = self.enter(gpus)?;
        // SAFETY: as in `is_done`.
        unsafe { gpus.driver().cuStreamSynchronize(self.native()) }?;
        self.last_sync.note();
        Ok(())
    }

    /// Makes its further work wait for what `other` holds now.
    pub fn wait_stream(&self, gpus: &Gpus, other: &Stream) -> Result<()> {
        let device = gpus.device(other.device)?;
        let event = device.events.take_untimed(device)?;
        let waited = other.record(gpus, event).and_then(|()| self.wait(gpus, event));
        device.events.give_untimed(event);
        waited
    }

    /// Records a driver event.
    #[inline]
    pub(crate) fn record(&self, gpus: &Gpus, event: CUevent) -> Result<()> {
        let _context = self.enter(gpus)?;
        self.record_here(gpus, event)
    }

    /// [`Stream::record`] with its context current, if it needs that.
    #[inline]
    pub(crate) fn record_here(&self, gpus: &Gpus, event: CUevent) -> Result<()> {
        // SAFETY: stream and event are alive and of one device.
        unsafe { gpus.driver().cuEventRecord(event, self.native()) }?;
        Ok(())
    }

    /// Waits for a driver event.
    #[inline]
    pub(crate) fn wait(&self, gpus: &Gpus, event: CUevent) -> Result<()> {
        let _context = self.enter(gpus)?;
        self.wait_here(gpus, event)
    }

    /// [`Stream::wait`] with its context current, if it needs that.
    #[inline]
    pub(crate) fn wait_here(&self, gpus: &Gpus, event: CUevent) -> Result<()> {
        // An event of a capture would add the stream to that capture.
        let _captured = gpus.has_captures().then(|| self.capture.guard());
        self.wait_at_once(gpus, event)
    }

    /// [`Stream::wait`] unless the stream is captured; the event is not of a capture. True: it
    /// waits.
    pub(crate) fn wait_beside_captures(&self, gpus: &Gpus, event: CUevent) -> Result<bool> {
        let _context = self.enter(gpus)?;
        let waits = self.unless_captured(gpus, || self.wait_at_once(gpus, event))?;
        Ok(waits.is_some())
    }

    #[inline]
    fn wait_at_once(&self, gpus: &Gpus, event: CUevent) -> Result<()> {
        // SAFETY: stream and event are alive.
        unsafe { gpus.driver().cuStreamWaitEvent(self.native(), event, 0) }?;
        Ok(())
    }

    /// Runs `body`, which would harm a capture, unless the stream is captured; no capture by tcuda
    /// begins meanwhile.
    #[inline]
    pub(crate) fn unless_captured<R>(
        &self,
        gpus: &Gpus,
        body: impl FnOnce() -> Result<R>,
    ) -> Result<Option<R>> {
        let _held = self.capture.guard();
        if self.is_capturing(gpus)? { Ok(None) } else { body().map(Some) }
    }

    /// Runs `body`, which begins a capture of it.
    pub(crate) fn captured_by<R>(&self, body: impl FnOnce() -> R) -> R {
        let _held = self.capture.guard();
        body()
    }

    /// Is it being captured into a graph?
    pub fn is_capturing(&self, gpus: &Gpus) -> Result<bool> {
        let _context = self.enter(gpus)?;
        is_capturing(gpus.driver(), self.native())
    }
}

/// Is a stream of the driver being captured? The query harms no capture.
pub(crate) fn is_capturing(driver: &Driver, native: CUstream) -> Result<bool> {
    let mut status: i32 = 0;
    let out = std::ptr::from_mut(&mut status).cast::<CUstreamCaptureStatus>();
    // SAFETY: the driver writes an enum of this size; it is read as an integer.
    match unsafe { driver.cuStreamIsCapturing(native, out) } {
        Ok(()) => Ok(status != 0),
        // The default stream while a stream that it would wait for is captured: treat it as
        // captured.
        Err(error) if error.code == code::STREAM_CAPTURE_IMPLICIT => Ok(true),
        Err(error) if error.code == CudaError::MISSING => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The ID of a capture whose driver is too old to report one: such a driver has one capture at a
/// time.
pub const UNKNOWN_CAPTURE_ID: u64 = u64::MAX;

/// The driver's ID of the capture that a stream belongs to. The query does not invalidate a
/// capture. A context of the stream's device must be current.
pub(crate) fn capture_of(driver: &Driver, native: CUstream) -> Result<Option<u64>> {
    if !is_capturing(driver, native)? {
        return Ok(None);
    }
    let (mut status, mut id): (i32, u64) = (0, 0);
    let none = std::ptr::null_mut::<c_void>();
    let out = std::ptr::from_mut(&mut status).cast::<CUstreamCaptureStatus>();
    // SAFETY: the driver writes an enum of this size, read as an integer, and the number.
    let queried = unsafe {
        driver.cuStreamGetCaptureInfo(native, out, &mut id, none.cast(), none.cast(), none.cast())
    };
    match queried {
        Ok(()) if status != 0 => Ok(Some(id)),
        // The legacy default stream, while a stream that it synchronises with is captured.
        Ok(()) => Ok(None),
        Err(error) if error.code == CudaError::MISSING => Ok(Some(UNKNOWN_CAPTURE_ID)),
        Err(error) if error.code == code::STREAM_CAPTURE_IMPLICIT => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Turns "not ready" into `false`.
pub(crate) fn finished(result: crate::driver::CudaResult) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.code == code::NOT_READY => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The streams of a device.
pub struct Streams {
    pub(crate) driver: &'static Driver,
    pub(crate) ordinal: i32,
    generation: u64,
    default: Stream,
    range: Once<(i32, i32)>,
    pub(crate) pool: [[Once<Box<Stream>>; PER_PRIORITY]; MAX_PRIORITIES],
    next: [AtomicUsize; MAX_PRIORITIES],
    pub(crate) external: Mutex<ExternalStreams>,
    /// Is a thread searching for streams that are over?
    pub(crate) searching: AtomicBool,
    pub(crate) internal: InternalStreams,
}

impl Streams {
    pub(crate) fn new(driver: &'static Driver, ordinal: i32, generation: u64) -> Streams {
        Streams {
            driver,
            ordinal,
            generation,
            default: Stream::new(ordinal, 0, 0, 0, 0),
            range: Once::new(Rank::ONCE),
            pool: [const { [const { Once::new(Rank::ONCE) }; PER_PRIORITY] }; MAX_PRIORITIES],
            next: [const { AtomicUsize::new(0) }; MAX_PRIORITIES],
            external: Mutex::new(Rank::LEAF, ExternalStreams::new()),
            searching: AtomicBool::new(false),
            internal: InternalStreams::new(),
        }
    }

    /// The generation of the library that these streams belong to.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Pooled streams that were created.
    pub(crate) fn pooled(&self) -> impl Iterator<Item = &Stream> {
        self.pool.iter().flatten().filter_map(Once::get).map(|stream| &**stream)
    }

    /// The device's default stream.
    #[inline]
    pub fn default(&self) -> &Stream {
        &self.default
    }

    /// Least (0) and most urgent priority that streams are created with.
    pub fn priority_range(&self, device: &Device) -> Result<(i32, i32)> {
        let range = self.range.get_or_try_init(|| {
            let _context = device.enter()?;
            let (mut least, mut greatest) = (0, 0);
            // SAFETY: both are writable.
            unsafe { self.driver.cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }?;
            Ok::<_, Error>((0, greatest.clamp(1 - MAX_PRIORITIES as i32, 0)))
        })?;
        Ok(*range)
    }

    /// The next stream of the pool of a priority; the priority is clamped to the range.
    pub fn next(&self, device: &Device, priority: i32) -> Result<&Stream> {
        let (_, greatest) = self.priority_range(device)?;
        let priority = priority.clamp(greatest, 0);
        let level = priority.unsigned_abs() as usize;
        let index = self.next[level].fetch_add(1, Ordering::Relaxed) % PER_PRIORITY;
        // PyTorch's stream ids: bit 0, then the priority's level from 1, then the index.
        let id = 1 | (level as i64 + 1) << 1 | (index as i64) << 5;
        let stream =
            self.pool[level][index].get_or_try_init(|| self.create(device, id, priority))?;
        Ok(stream)
    }

    pub(crate) fn create(&self, device: &Device, id: i64, priority: i32) -> Result<Box<Stream>> {
        let _context = device.enter()?;
        // Allocate first: if it fails, no driver stream is lost.
        let mut stream = try_box(Stream::new(self.ordinal, 0, id, priority, 0), "a stream")?;
        let mut native = std::ptr::null_mut();
        // SAFETY: `native` is writable.
        unsafe { self.driver.cuStreamCreateWithPriority(&mut native, NON_BLOCKING, priority) }?;
        stream.native = native as usize;
        stream.driver_id = self.driver_id(native).unwrap_or(native as u64);
        Ok(stream)
    }

    /// Destroys the created streams. The device's context is current, and no thread uses them any
    /// more.
    pub(crate) fn close(&self) {
        for stream in self.pooled().chain(self.internal.made()) {
            // SAFETY: the library's, and at its end.
            let _ = unsafe { self.driver.cuStreamDestroy(stream.native()) };
        }
        // Dropped without the lock: streams of green contexts end with calls of the driver.
        let ended = std::mem::replace(&mut *self.external.lock(), ExternalStreams::new());
        drop(ended);
    }
}
