//! Green contexts: a part of a device's multiprocessors, with streams whose work runs on these.
//!
//! A green context belongs to the primary context of its device: memory, events and kernels are the
//! same, and its streams are external streams ([`external_stream`](super::external_stream)). The
//! driver's context ends with the last of what refers to it: the handle, partitions that were
//! queried from it, and streams, which blocks and threads may refer to.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::thread;
use crate::base::thread_lifetime::Lifetime;
use crate::driver::newer::{self, CUdevResource};
use crate::driver::sys::{CUcontext, CUgreenCtx, CUstream};
use crate::driver::{CudaError, Driver, code};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::{Device, leave};
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::sm_partition::{self, SmPartition};
use crate::gpu::stream::Stream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Streams of a green context, as in PyTorch.
const STREAMS: usize = 32;
const NON_BLOCKING: u32 = 1;
/// A green context has a default stream; the driver accepts no other flags.
const DEFAULT_STREAM: u32 = 1;

/// The driver's green context.
pub(crate) struct NativeGreen {
    driver: &'static Driver,
    green: usize,
    context: usize,
    /// May it be on a thread's stack of contexts? The driver ends the process where a context is
    /// popped that was destroyed.
    is_on_stack: AtomicBool,
}

/// Green contexts that the driver has not destroyed when asked, for another attempt at the end.
static UNDESTROYED: Mutex<Vec<usize>> = Mutex::new(Rank::LEAF, Vec::new());
/// Number of green contexts; the list has room for all.
static LIVE: AtomicUsize = AtomicUsize::new(0);

impl NativeGreen {
    /// Owns a green context, for which the list has room.
    fn new(driver: &'static Driver, green: CUgreenCtx) -> NativeGreen {
        NativeGreen {
            driver,
            green: green as usize,
            context: 0,
            is_on_stack: AtomicBool::new(false),
        }
    }

    /// Makes room in the list for one more.
    fn reserve() -> Result<()> {
        let live = LIVE.fetch_add(1, Ordering::Relaxed) + 1;
        let reserved = UNDESTROYED.lock().try_reserve(live);
        reserved.map_err(|_| {
            LIVE.fetch_sub(1, Ordering::Relaxed);
            Error::OutOfHostMemory("a green context")
        })
    }

    /// Gives the room back.
    fn unreserve() {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for NativeGreen {
    fn drop(&mut self) {
        if self.is_on_stack.load(Ordering::Acquire) || !destroy(self.driver, self.green) {
            let mut list = UNDESTROYED.lock();
            // There is room: nothing is allocated.
            if list.len() < list.capacity() {
                list.push(self.green);
            }
        }
        NativeGreen::unreserve();
    }
}

/// Destroys a green context; false: the driver failed.
fn destroy(driver: &Driver, green: usize) -> bool {
    // SAFETY: created by `create`; its streams are destroyed, and nothing refers to it.
    unsafe { driver.cuGreenCtxDestroy(green as CUgreenCtx) }.is_ok()
}

/// Destroys, at the end of the library, what the driver has not destroyed when asked.
pub(crate) fn close(driver: &Driver) {
    let left = std::mem::take(&mut *UNDESTROYED.lock());
    for green in left {
        let _ = destroy(driver, green) || destroy(driver, green);
    }
}

/// The driver's stream of a green context, which lives as long: it is destroyed with this.
pub(crate) struct GreenStream {
    native: usize,
    context: Shared<NativeGreen>,
}

impl GreenStream {
    pub(crate) fn native(&self) -> CUstream {
        self.native as CUstream
    }
}

impl Drop for GreenStream {
    fn drop(&mut self) {
        // SAFETY: created by `GreenContext::create_stream`, and nothing refers to it.
        let _ = unsafe { self.context.driver.cuStreamDestroy(self.native()) };
    }
}

/// How the work queues of a green context are shared with others.
#[derive(Clone, Copy)]
pub struct Workqueues {
    /// 0: with all contexts of the device; 1: if possible not with other balanced ones.
    pub scope: u32,
    /// Number of streams whose work is expected to run at a time; 0: the driver's default.
    pub concurrency: u32,
}

/// A green context.
pub struct GreenContext {
    device: i32,
    native: Shared<NativeGreen>,
    resource: CUdevResource,
    /// Addresses of streams, each with one handle.
    streams: [Once<usize>; STREAMS],
    next: AtomicUsize,
    set: Mutex<Option<Set>>,
    /// Are the handles of its streams dropped?
    is_ended: AtomicBool,
}

// SAFETY: the resource is a value, whose pointer is NULL; the rest is for all threads.
unsafe impl Send for GreenContext {}
// SAFETY: as above.
unsafe impl Sync for GreenContext {}

/// What was current on a thread before it set the green context.
struct Set {
    thread: Lifetime,
    stream: HeldStream,
    device: u32,
}

/// Makes the later work of the first stream wait for what the second one has.
pub type WaitFor<'a> = &'a dyn Fn(&Stream, &Stream) -> Result<()>;

/// The greatest concurrency of the work queues of a device.
pub fn workqueue_concurrency(device: &Device) -> Result<u32> {
    workqueues_of(device).map(|queues| queues.words[1])
}

fn workqueues_of(device: &Device) -> Result<CUdevResource> {
    sm_partition::resource_of(device, newer::RESOURCE_WORKQUEUE_CONFIG).map_err(|error| match error
    {
        Error::Cuda(CudaError { code: code::INVALID_RESOURCE_TYPE, .. }) => Error::NotSupported {
            what: "the configuration of work queues, of CUDA 13.1,",
            by: "driver",
        },
        error => error,
    })
}

impl GreenContext {
    /// Creates one of the multiprocessors of a partition, or of all, with work queues as the driver
    /// chooses or as given.
    pub fn create(
        device: &Device,
        partition: Option<&SmPartition>,
        queues: Option<Workqueues>,
    ) -> Result<GreenContext> {
        let driver = device.driver();
        let mut resources = [CUdevResource::NONE; 2];
        let mut count = 0;
        if let Some(partition) = partition {
            resources[count] = *partition.resource();
            count += 1;
        }
        if let Some(queues) = queues {
            let mut resource = workqueues_of(device)?;
            let [_, concurrency, scope, ..] = &mut resource.words;
            *scope = queues.scope;
            if queues.concurrency > 0 {
                *concurrency = queues.concurrency;
            }
            resources[count] = resource;
            count += 1;
        }
        // The driver would make it, and end it, with each green context.
        device.context()?;
        let _relaxed = Relaxed::enter(driver);
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: `descriptor` is writable, the list has `count` elements.
        unsafe {
            driver.cuDevResourceGenerateDesc(&mut descriptor, resources.as_mut_ptr(), count as u32)
        }?;
        let mut green = std::ptr::null_mut();
        NativeGreen::reserve()?;
        // SAFETY: `green` is writable; the descriptor is of this device.
        let created = unsafe {
            driver.cuGreenCtxCreate(&mut green, descriptor, device.handle(), DEFAULT_STREAM)
        };
        created.inspect_err(|_| NativeGreen::unreserve())?;
        let mut native = NativeGreen::new(driver, green);
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: `context` is writable, the green context exists.
        unsafe { driver.cuCtxFromGreenCtx(&mut context, green) }?;
        native.context = context as usize;
        let mut resource = CUdevResource::NONE;
        // SAFETY: `resource` is writable, the green context exists.
        unsafe { driver.cuGreenCtxGetDevResource(green, &mut resource, newer::RESOURCE_SM) }?;
        Ok(GreenContext {
            device: device.ordinal(),
            native: Shared::new(native, "a green context")?,
            resource,
            streams: [const { Once::new(Rank::ONCE) }; STREAMS],
            next: AtomicUsize::new(0),
            set: Mutex::new(Rank::LEAF, None),
            is_ended: AtomicBool::new(false),
        })
    }

    /// Its multiprocessors. The driver's context lives as long as the partition.
    pub fn partition(&self) -> SmPartition {
        SmPartition::of_context(self.device, self.resource, self.native.share())
    }

    /// The driver's green context, and its context.
    pub fn native(&self) -> (CUgreenCtx, CUcontext) {
        (self.native.green as CUgreenCtx, self.native.context as CUcontext)
    }

    /// One of its streams: a new one, or from the 33rd on the next in turn.
    pub fn next_stream<'a>(&self, gpus: &'a Gpus) -> Result<&'a Stream> {
        if self.is_ended.load(Ordering::Acquire) {
            return Err(Error::InvalidState("another thread destroys the green context"));
        }
        let device = gpus.device(self.device)?;
        let index = self.next.fetch_add(1, Ordering::Relaxed) % STREAMS;
        let address = self.streams[index].get_or_try_init(|| self.create_stream(device))?;
        // SAFETY: it has a handle until `end`, which no call of this object outlasts.
        Ok(unsafe { &*(*address as *const Stream) })
    }

    fn create_stream(&self, device: &Device) -> Result<usize> {
        let driver = device.driver();
        let mut native = std::ptr::null_mut();
        // SAFETY: `native` is writable, the green context exists.
        unsafe { driver.cuGreenCtxStreamCreate(&mut native, self.native().0, NON_BLOCKING, 0) }?;
        let native = GreenStream { native: native as usize, context: self.native.share() };
        let stream = device.streams.add_green(native)?;
        stream.add_handle();
        Ok(std::ptr::from_ref(stream) as usize)
    }

    /// Makes it and one of its streams current on this thread, until [`GreenContext::pop`]. The
    /// stream waits for the one that was current.
    pub fn set(&self, gpus: &Gpus, wait_for: WaitFor<'_>) -> Result<()> {
        let device = gpus.device(self.device)?;
        let own = self.next_stream(gpus)?;
        let block = thread::block();
        let before = Set {
            thread: Lifetime::own()?,
            stream: HeldStream::new(device.streams.current()),
            device: block.device.load(Ordering::Relaxed),
        };
        wait_for(own, &before.stream)?;
        {
            let mut set = self.set.lock();
            if set.as_ref().is_some_and(|set| !set.thread.has_ended()) {
                return Err(Error::InvalidState(
                    "the green context is set already; call tcuda_green_context_pop on that \
                     thread first, or create another green context of the same partition",
                ));
            }
            *set = Some(before);
        }
        let outcome = device.streams.replace_current(own, |_| {
            // SAFETY: the context lives as long as this object.
            unsafe { gpus.driver().cuCtxPushCurrent(self.native().1) }?;
            Ok(())
        });
        match outcome {
            Ok(()) => block.device.store(self.device as u32, Ordering::Relaxed),
            Err(_) => drop(self.set.lock().take()),
        }
        outcome
    }

    /// Undoes [`GreenContext::set`]: the stream that was current waits for the one that is.
    pub fn pop(&self, gpus: &Gpus, wait_for: WaitFor<'_>) -> Result<()> {
        let before = self.set.lock().take_if(|set| set.thread.is_own());
        let Some(before) = before else {
            return Err(Error::InvalidState(
                "the green context is not set on this thread; call tcuda_green_context_set first",
            ));
        };
        let outcome = self.restore(gpus, &before, wait_for);
        if outcome.is_err() {
            *self.set.lock() = Some(before);
        }
        outcome
    }

    fn restore(&self, gpus: &Gpus, before: &Set, wait_for: WaitFor<'_>) -> Result<()> {
        let device = gpus.device(self.device)?;
        if gpus.current_context()? != self.native().1 {
            return Err(Error::InvalidState(
                "another context is current on this thread than the green one: pop what was pushed \
                 since, or destroy the green context",
            ));
        }
        wait_for(&before.stream, device.streams.current())?;
        device.streams.replace_current(&before.stream, |_| Ok(()))?;
        leave(gpus.driver(), self.native().1);
        thread::block().device.store(before.device, Ordering::Relaxed);
        Ok(())
    }

    /// Fails where another thread has set it.
    pub fn require_unset_elsewhere(&self) -> Result<()> {
        let is_elsewhere = |set: &Set| !set.thread.is_own() && !set.thread.has_ended();
        if self.set.lock().as_ref().is_some_and(is_elsewhere) {
            return Err(Error::InvalidState(
                "another thread has set the green context; call tcuda_green_context_pop there \
                 first",
            ));
        }
        Ok(())
    }

    /// Pops it where it is set on this thread, also if the stream that was current cannot wait.
    pub fn unset(&self, gpus: &Gpus, wait_for: WaitFor<'_>) -> Result<()> {
        let Some(before) = self.set.lock().take() else { return Ok(()) };
        if before.thread.has_ended() {
            return Ok(());
        }
        let is_current = gpus.current_context().is_ok_and(|current| current == self.native().1);
        if !before.thread.is_own() || !is_current {
            // Another thread has set it meanwhile, or the host has changed this thread's context.
            self.native.is_on_stack.store(true, Ordering::Release);
        }
        if !before.thread.is_own() {
            return Ok(());
        }
        let device = gpus.device(self.device)?;
        let current = device.streams.current();
        let waited = if is_current { wait_for(&before.stream, current) } else { Ok(()) };
        if is_current || self.has(current) {
            device.streams.replace_current(&before.stream, |_| Ok(()))?;
        }
        if is_current {
            leave(gpus.driver(), self.native().1);
            thread::block().device.store(before.device, Ordering::Relaxed);
        }
        waited
    }

    /// Drops the handles of its streams, once.
    pub fn end(&self, gpus: &Gpus) -> Result<()> {
        let mut outcome = Ok(());
        if self.is_ended.swap(true, Ordering::AcqRel) {
            return outcome;
        }
        for address in self.streams.iter().filter_map(Once::get) {
            // SAFETY: as in `next_stream`.
            let stream = unsafe { &*(*address as *const Stream) };
            outcome = outcome.and(stream.remove_handle(gpus));
        }
        outcome
    }

    fn has(&self, stream: &Stream) -> bool {
        let address = std::ptr::from_ref(stream) as usize;
        self.streams.iter().filter_map(Once::get).any(|own| *own == address)
    }
}
