//! Primary contexts, and each thread's stack of contexts.

use super::arguments::{put, require};
use super::queue::{Kind, Stream};
use super::sync::{lock, write};
use super::{Machine, capture, device, entry, schedule, worker};
use crate::driver::code;
use crate::driver::sys::{CUcontext, CUdevice};
use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Handle of the context of device 0; device `n` has `FIRST + n * STRIDE`.
const FIRST: usize = 1 << 36;
const STRIDE: usize = 64;
/// Maximum depth of a thread's context stack.
const MAX_DEPTH: usize = 64;
/// `CU_CTX_SCHED_...` flags that `cuDevicePrimaryCtxGetState` reports.
const FLAGS: c_uint = 0;

/// The primary context of a device.
pub(super) struct Context {
    pub(super) device: usize,
    retained: Mutex<usize>,
    active: AtomicBool,
    /// Status of the first failed operation; never cleared.
    pub(super) error: AtomicI32,
    pub(super) legacy: Arc<Stream>,
    per_thread: Mutex<Vec<(u64, Arc<Stream>)>>,
    /// All streams except `legacy`, including destroyed streams until they are idle.
    pub(super) members: RwLock<Vec<Arc<Stream>>>,
}

impl Context {
    pub(super) fn new(device: usize) -> Context {
        Context {
            device,
            retained: Mutex::new(0),
            active: AtomicBool::new(false),
            error: AtomicI32::new(0),
            legacy: Stream::new(device, Kind::Legacy, 0),
            per_thread: Mutex::default(),
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

    pub(super) fn handle(&self) -> CUcontext {
        ptr::without_provenance_mut(FIRST + self.device * STRIDE)
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
        let stream = Stream::new(self.device, Kind::Blocking, 0);
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

    /// All streams.
    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        let mut streams = super::sync::read(&self.members).clone();
        streams.push(Arc::clone(&self.legacy));
        streams
    }

    pub(super) fn retain_count(&self) -> usize {
        *lock(&self.retained)
    }
}

/// State of a thread, valid for one machine. It has no destructor, since exit handlers run after
/// destructors.
struct Thread {
    generation: u64,
    stack: Stack,
}

/// The context stack; the current context is last.
struct Stack {
    handles: [usize; MAX_DEPTH],
    depth: usize,
}

impl Stack {
    const fn new() -> Stack {
        Stack { handles: [0; MAX_DEPTH], depth: 0 }
    }

    fn last(&self) -> Option<usize> {
        self.handles.get(self.depth.checked_sub(1)?).copied()
    }

    fn pop(&mut self) -> Option<usize> {
        let last = self.last()?;
        self.depth -= 1;
        Some(last)
    }

    fn push(&mut self, handle: usize) -> Result<(), i32> {
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

/// Runs `body` with the calling thread's context stack for this machine.
fn with_stack<R>(machine: &Machine, body: impl FnOnce(&mut Stack) -> R) -> Result<R, i32> {
    let outcome = THREAD.try_with(|thread| {
        let mut thread = thread.borrow_mut();
        if thread.generation != machine.generation {
            thread.generation = machine.generation;
            thread.stack = Stack::new();
        }
        body(&mut thread.stack)
    });
    outcome.map_err(|_| code::DEINITIALIZED)
}

impl Machine {
    /// The context of a handle.
    pub(super) fn context(&self, handle: CUcontext) -> Result<&Context, i32> {
        let distance = handle.addr().checked_sub(FIRST).ok_or(code::INVALID_CONTEXT)?;
        if distance % STRIDE != 0 {
            return Err(code::INVALID_CONTEXT);
        }
        let found = self.devices.get(distance / STRIDE).ok_or(code::INVALID_CONTEXT)?;
        Ok(&found.context)
    }

    #[inline]
    pub(super) fn context_of(&self, stream: &Stream) -> &Context {
        &self.devices[stream.device].context
    }

    /// The calling thread's current context, whatever its state.
    fn top(&self) -> Result<Option<&Context>, i32> {
        match with_stack(self, |stack| stack.last())? {
            None | Some(0) => Ok(None),
            Some(handle) => self.context(ptr::without_provenance_mut(handle)).map(Some),
        }
    }

    /// The calling thread's current context; an error if it is unusable.
    #[inline]
    pub(super) fn current(&self) -> Result<&Context, i32> {
        let context = self.top()?.ok_or(code::INVALID_CONTEXT)?;
        if !context.is_active() {
            return Err(code::CONTEXT_IS_DESTROYED);
        }
        context.check()?;
        Ok(context)
    }

    /// Checks that the current context, if there is one, is usable.
    pub(super) fn usable(&self) -> Result<(), i32> {
        match self.top()? {
            Some(context) if !context.is_active() => Err(code::CONTEXT_IS_DESTROYED),
            Some(context) => context.check(),
            None => Ok(()),
        }
    }
}

pub(super) unsafe extern "C" fn retain(context: *mut CUcontext, device: CUdevice) -> c_int {
    entry(|machine| {
        let found = &device::get(machine, device)?.context;
        require(!context.is_null(), code::INVALID_VALUE)?;
        let mut retained = lock(&found.retained);
        // A process whose context failed cannot retain it again (580.159).
        if !found.is_active() {
            found.check()?;
        }
        *retained += 1;
        found.active.store(true, Ordering::Release);
        put!(context, found.handle())
    })
}

pub(super) unsafe extern "C" fn release(device: CUdevice) -> c_int {
    entry(|machine| {
        let context = &device::get(machine, device)?.context;
        let mut retained = lock(&context.retained);
        *retained = retained.checked_sub(1).ok_or(code::INVALID_CONTEXT)?;
        if *retained == 0 {
            context.active.store(false, Ordering::Release);
            schedule::drain(machine, [context]);
            machine.report_leaks_of(context);
            machine.destroy_objects_of(context);
        }
        Ok(())
    })
}

/// Destroys a context regardless of its retain count. Each retain must still be released.
pub(super) unsafe extern "C" fn reset(device: CUdevice) -> c_int {
    entry(|machine| {
        let context = &device::get(machine, device)?.context;
        let _retained = lock(&context.retained);
        if context.active.swap(false, Ordering::AcqRel) {
            schedule::drain(machine, [context]);
            machine.destroy_objects_of(context);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn state(
    device: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> c_int {
    entry(|machine| {
        require(!flags.is_null() && !active.is_null(), code::INVALID_VALUE)?;
        let context = &device::get(machine, device)?.context;
        put!(flags, FLAGS)?;
        put!(active, c_int::from(context.is_active()))
    })
}

pub(super) unsafe extern "C" fn enable_peer_access(peer: CUcontext, flags: c_uint) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        let peer = machine.context(peer)?;
        require(flags == 0, code::INVALID_VALUE)?;
        require(peer.is_active(), code::INVALID_CONTEXT)?;
        require(peer.device != context.device, code::PEER_ACCESS_UNSUPPORTED)?;
        let reachable = machine.config.can_access_peer(context.device, peer.device);
        require(reachable, code::PEER_ACCESS_UNSUPPORTED)?;
        let bit = 1 << peer.device;
        let before = machine.memory.peers[context.device].fetch_or(bit, Ordering::Relaxed);
        require(before & bit == 0, code::PEER_ACCESS_ALREADY_ENABLED)
    })
}

pub(super) unsafe extern "C" fn get_current(context: *mut CUcontext) -> c_int {
    entry(|machine| {
        require(!context.is_null(), code::INVALID_VALUE)?;
        let handle = with_stack(machine, |stack| stack.last())?.unwrap_or(0);
        put!(context, ptr::without_provenance_mut(handle))
    })
}

pub(super) unsafe extern "C" fn set_current(context: CUcontext) -> c_int {
    entry(|machine| {
        if !context.is_null() {
            // A context that is not retained can be current; using it is refused (580.159).
            machine.context(context)?;
        }
        with_stack(machine, |stack| {
            stack.pop();
            if context.is_null() { Ok(()) } else { stack.push(context.addr()) }
        })?
    })
}

pub(super) unsafe extern "C" fn push_current(context: CUcontext) -> c_int {
    entry(|machine| {
        require(!context.is_null(), code::INVALID_VALUE)?;
        machine.context(context)?;
        with_stack(machine, |stack| stack.push(context.addr()))?
    })
}

pub(super) unsafe extern "C" fn pop_current(context: *mut CUcontext) -> c_int {
    entry(|machine| {
        let popped = with_stack(machine, Stack::pop)?.ok_or(code::INVALID_CONTEXT)?;
        if !context.is_null() {
            put!(context, ptr::without_provenance_mut(popped))?;
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn get_device(device: *mut CUdevice) -> c_int {
    entry(|machine| {
        require(!device.is_null(), code::INVALID_VALUE)?;
        let context = machine.top()?.ok_or(code::INVALID_CONTEXT)?;
        put!(device, context.device as CUdevice)
    })
}

pub(super) unsafe extern "C" fn synchronize() -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        capture::refuse_wait_for_all(machine, context.device)?;
        schedule::drain(machine, [context]);
        context.check()?;
        machine.release_idle_pool_memory();
        Ok(())
    })
}

/// Starts or stops the profiler; the machine has none, so only the context is checked.
pub(super) unsafe extern "C" fn profiler() -> c_int {
    entry(|machine| machine.current().map(drop))
}

pub(super) unsafe extern "C" fn priority_range(least: *mut c_int, greatest: *mut c_int) -> c_int {
    entry(|machine| {
        machine.current()?;
        if !least.is_null() {
            put!(least, device::LEAST_PRIORITY)?;
        }
        if !greatest.is_null() {
            put!(greatest, device::GREATEST_PRIORITY)?;
        }
        Ok(())
    })
}
