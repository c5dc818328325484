//! Streams: ordered queues of device work, pooled by priority, default or foreign, and each thread's current ones.

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
use crate::gpu::internal_streams::InternalStreams;
use crate::gpu::waits::LastSync;
use crate::memory::arena::Arena;
use crate::runtime::Runtime;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Streams per priority and device.
pub const PER_PRIORITY: usize = 32;
/// At most so many priorities are used, from 0 down.
pub const MAX_PRIORITIES: usize = 4;

const NON_BLOCKING: u32 = 1;
/// CUDA's fixed handles: the legacy default stream by name, and the default stream of a thread.
pub(crate) const LEGACY: usize = 1;
pub(crate) const PER_THREAD: usize = 2;

/// A stream. The library's own live until shutdown, others' as long as something names them (`external_registry.rs`),
/// so that threads and blocks may refer to them freely.
pub struct Stream {
    device: i32,
    native: usize,
    id: i64,
    priority: i32,
    /// The driver's number for it, which is never recycled as handles are.
    pub(crate) driver_id: u64,
    pub(crate) external: bool,
    /// Owned handles; without any the owner of an external stream may destroy it.
    pub(crate) external_life: ExternalStreamLife,
    /// Its owner names it in each call, and so keeps it alive without a handle.
    pub(crate) is_named: AtomicBool,
    /// Where its small and its large blocks come from, then the same in segments; NULL until the first.
    pub(crate) arenas: [AtomicPtr<Arena>; 4],
    /// Held by who asks it or records on it because it is not captured, and by who has it captured.
    capture: Lock,
    /// The borrowed handle that the door gave out for it; 0: none yet.
    pub handle: AtomicUsize,
    /// What the driver said of its order: its flags and one; 0: it was not asked.
    flags: AtomicU32,
    /// When it was waited for.
    pub(crate) last_sync: LastSync,
    /// Of the thread whose default stream it is.
    pub(crate) thread: Option<Lifetime>,
    /// No other stream has it, or had it.
    pub(crate) serial: u64,
    /// By which routes and captures remember arenas of it; another one once it has lost an arena.
    pub(crate) served: AtomicU64,
    /// Of an external stream: who destroys what stands for it.
    pub(crate) driver: Option<&'static Driver>,
    /// How many hold it, and what searches have found (`external_registry.rs`).
    pub(crate) holders: Holders,
    pub(crate) was_unused: AtomicBool,
    pub(crate) mark: AtomicU64,
}

/// A number that nothing else of this kind has.
pub(crate) fn next_serial() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// How a stream is ordered with the default stream of its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Not at all.
    Free,
    /// Each waits for what the other held.
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
            arenas: [const { AtomicPtr::new(std::ptr::null_mut()) }; 4],
            capture: Lock::new(Rank::STREAM),
            handle: AtomicUsize::new(0),
            flags: AtomicU32::new(0),
            last_sync: LastSync::new(),
            thread: None,
            serial: next_serial(),
            served: AtomicU64::new(next_serial()),
            driver: None,
            holders: Holders::NONE,
            was_unused: AtomicBool::new(false),
            mark: AtomicU64::new(0),
        }
    }

    /// Its device.
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

    /// Does it belong to someone else?
    pub fn is_external(&self) -> bool {
        self.external
    }

    /// May the stream be named to the driver by who has no handle of it?
    pub(crate) fn end_state(&self) -> EndState<'_> {
        self.external_life.end_state()
    }

    /// Counts an owned handle.
    pub fn add_handle(&self) {
        self.external_life.add_handle();
    }

    /// An owned handle goes. With the last one of an external stream its present end is recorded,
    /// while the stream is alive: what waits for it later, waits for that.
    pub fn remove_handle(&self, runtime: &Runtime) -> Result<()> {
        let has_end = self.external && !self.is_per_thread();
        let outcome = if has_end { self.record_end(runtime) } else { Ok(()) };
        self.external_life.drop_handle();
        outcome
    }

    fn record_end(&self, runtime: &Runtime) -> Result<()> {
        if matches!(self.is_capturing(runtime), Ok(true)) {
            return Ok(());
        }
        let Err(error) = self.try_record_end(runtime) else { return Ok(()) };
        // Nobody could ask the stream later: it is waited for now.
        let (known, _needed) = (self.external_life.event(), crate::gpu::sync_debug::required());
        if self.synchronize(runtime).is_ok() {
            let _ = self.external_life.replace_event(0, ENDED);
            return Ok(());
        }
        if self.external_life.replace_event(known, UNKNOWN).is_ok() && known > UNKNOWN {
            runtime.device(self.device)?.events.give_untimed(known as CUevent);
        }
        Err(error)
    }

    /// All of its context was waited for.
    pub(crate) fn note_context_synced(&self) {
        let _ = self.external_life.replace_event(UNKNOWN, ENDED);
    }

    fn try_record_end(&self, runtime: &Runtime) -> Result<()> {
        let device = runtime.device(self.device)?;
        let known = self.external_life.event();
        if known > UNKNOWN {
            return self.record(runtime, known as CUevent);
        }
        let event = device.events.take_untimed(device)?;
        if let Err(error) = self.record(runtime, event) {
            device.events.give_untimed(event);
            return Err(error);
        }
        match self.external_life.replace_event(known, event as usize) {
            Ok(()) => Ok(()),
            Err(first) => {
                device.events.give_untimed(event);
                self.record(runtime, first as CUevent)
            }
        }
    }

    /// Does the handle mean another stream on each thread?
    #[inline]
    pub fn is_per_thread(&self) -> bool {
        self.native == PER_THREAD
    }

    /// What the stream is on this thread: another than elsewhere where the handle means a thread's own.
    #[inline]
    pub fn on_this_thread<'a>(&'a self, runtime: &'a Runtime) -> Result<&'a Stream> {
        if !self.is_per_thread() {
            return Ok(self);
        }
        let device = runtime.device(self.device)?;
        device.streams.external(device, self.native())
    }

    /// Does the driver need its context to be current? CUDA's fixed handles mean a stream of the
    /// current context, and every other handle knows its own.
    #[inline]
    pub(crate) fn needs_context(&self) -> bool {
        self.native <= PER_THREAD
    }

    /// Makes its context current, where the driver needs that.
    #[inline]
    pub(crate) fn enter(&self, runtime: &Runtime) -> Result<Option<ContextGuard>> {
        if !self.needs_context() {
            return Ok(None);
        }
        Ok(Some(runtime.device(self.device)?.enter()?))
    }

    /// How it is ordered with the default stream; it is neither that nor captured. Asked for once.
    pub(crate) fn order(&self, runtime: &Runtime) -> Result<Order> {
        let mut flags = self.flags.load(Ordering::Relaxed);
        if flags == 0 {
            let _context = self.enter(runtime)?;
            let mut asked = 0;
            // SAFETY: the stream is alive, `asked` is writable.
            unsafe { runtime.driver().cuStreamGetFlags(self.native(), &mut asked) }?;
            flags = asked + 1;
            self.flags.store(flags, Ordering::Relaxed);
        }
        Ok(if (flags - 1) & NON_BLOCKING != 0 { Order::Free } else { Order::Blocking })
    }

    /// Has all its work finished? The host does not hear of it.
    #[inline]
    pub(crate) fn is_done(&self, runtime: &Runtime) -> Result<bool> {
        let _context = self.enter(runtime)?;
        // SAFETY: the stream is alive: ours until shutdown, external ones by their owner's promise.
        finished(unsafe { runtime.driver().cuStreamQuery(self.native()) })
    }

    /// Waits for all its work.
    pub fn synchronize(&self, runtime: &Runtime) -> Result<()> {
        let _context = self.enter(runtime)?;
        // SAFETY: as in `is_done`.
        unsafe { runtime.driver().cuStreamSynchronize(self.native()) }?;
        self.last_sync.note();
        Ok(())
    }

    /// Makes its further work wait for what `other` holds now.
    pub fn wait_stream(&self, runtime: &Runtime, other: &Stream) -> Result<()> {
        let device = runtime.device(other.device)?;
        let event = device.events.take_untimed(device)?;
        let waited = other.record(runtime, event).and_then(|()| self.wait(runtime, event));
        device.events.give_untimed(event);
        waited
    }

    /// Records a driver's event.
    #[inline]
    pub(crate) fn record(&self, runtime: &Runtime, event: CUevent) -> Result<()> {
        let _context = self.enter(runtime)?;
        self.record_here(runtime, event)
    }

    /// The same where its context is current, if it needs that.
    #[inline]
    pub(crate) fn record_here(&self, runtime: &Runtime, event: CUevent) -> Result<()> {
        // SAFETY: stream and event are alive and of one device.
        unsafe { runtime.driver().cuEventRecord(event, self.native()) }?;
        Ok(())
    }

    /// Waits for a driver's event.
    #[inline]
    pub(crate) fn wait(&self, runtime: &Runtime, event: CUevent) -> Result<()> {
        let _context = self.enter(runtime)?;
        self.wait_here(runtime, event)
    }

    /// The same where its context is current, if it needs that.
    #[inline]
    pub(crate) fn wait_here(&self, runtime: &Runtime, event: CUevent) -> Result<()> {
        // An event of a capture takes the stream into it.
        let _captured = runtime.captures.any().then(|| self.capture.guard());
        self.wait_at_once(runtime, event)
    }

    /// The same unless the stream is captured, with which the event has nothing to do; true: it waits.
    pub(crate) fn wait_beside_captures(&self, runtime: &Runtime, event: CUevent) -> Result<bool> {
        let _context = self.enter(runtime)?;
        let waits = self.unless_captured(runtime, || self.wait_at_once(runtime, event))?;
        Ok(waits.is_some())
    }

    #[inline]
    fn wait_at_once(&self, runtime: &Runtime, event: CUevent) -> Result<()> {
        // SAFETY: stream and event are alive.
        unsafe { runtime.driver().cuStreamWaitEvent(self.native(), event, 0) }?;
        Ok(())
    }

    /// Runs `body`, which would harm a capture, unless the stream is captured; no capture of ours begins meanwhile.
    #[inline]
    pub(crate) fn unless_captured<R>(
        &self,
        runtime: &Runtime,
        body: impl FnOnce() -> Result<R>,
    ) -> Result<Option<R>> {
        let _held = self.capture.guard();
        if self.is_capturing(runtime)? { Ok(None) } else { body().map(Some) }
    }

    /// Runs `body`, which begins a capture of it.
    pub(crate) fn captured_by<R>(&self, body: impl FnOnce() -> R) -> R {
        let _held = self.capture.guard();
        body()
    }

    /// Is it being captured into a graph?
    pub fn is_capturing(&self, runtime: &Runtime) -> Result<bool> {
        let _context = self.enter(runtime)?;
        is_capturing(runtime.driver(), self.native())
    }
}

/// Is a stream of the driver's being captured? The question harms no capture.
pub(crate) fn is_capturing(driver: &Driver, native: CUstream) -> Result<bool> {
    let mut status: i32 = 0;
    let out = std::ptr::from_mut(&mut status).cast::<CUstreamCaptureStatus>();
    // SAFETY: the driver writes an enum of this size; it is read as an integer.
    match unsafe { driver.cuStreamIsCapturing(native, out) } {
        Ok(()) => Ok(status != 0),
        // The default stream while a stream that it waits for is captured: hands off as well.
        Err(error) if error.code == code::STREAM_CAPTURE_IMPLICIT => Ok(true),
        Err(error) if error.code == CudaError::MISSING => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Turns "not ready" into an answer.
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
    /// Does a thread look for streams that are over?
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

    /// Tells the runtime of these streams from those before and after.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Pooled streams that were made.
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

    /// The next stream of the pool of a priority; priorities out of range are brought into it.
    pub fn next(&self, device: &Device, priority: i32) -> Result<&Stream> {
        let (_, greatest) = self.priority_range(device)?;
        let priority = priority.clamp(greatest, 0);
        let level = priority.unsigned_abs() as usize;
        let index = self.next[level].fetch_add(1, Ordering::Relaxed) % PER_PRIORITY;
        // PyTorch's numbers: bit 0, then the priority's level from 1, then the index.
        let id = 1 | (level as i64 + 1) << 1 | (index as i64) << 5;
        let stream =
            self.pool[level][index].get_or_try_init(|| self.create(device, id, priority))?;
        Ok(stream)
    }

    pub(crate) fn create(&self, device: &Device, id: i64, priority: i32) -> Result<Box<Stream>> {
        let _context = device.enter()?;
        // First what may fail for want of host memory: the driver's stream is not lost then.
        let mut stream = try_box(Stream::new(self.ordinal, 0, id, priority, 0), "a stream")?;
        let mut native = std::ptr::null_mut();
        // SAFETY: `native` is writable.
        unsafe { self.driver.cuStreamCreateWithPriority(&mut native, NON_BLOCKING, priority) }?;
        stream.native = native as usize;
        stream.driver_id = self.driver_id(native).unwrap_or(native as u64);
        Ok(stream)
    }

    /// Destroys what was created; the device's context is current, nobody uses it any more.
    pub(crate) fn close(&self) {
        for stream in self.pooled().chain(self.internal.made()) {
            // SAFETY: ours, and at its end.
            let _ = unsafe { self.driver.cuStreamDestroy(stream.native()) };
        }
        *self.external.lock() = ExternalStreams::new();
    }
}
