//! Waits of the host for a device: said in the log, or refused.
//!
//! Every driver call that waits goes through [`check_call`]. A call of the host that is documented to
//! wait enters [`meant`]; one that is refused before it changes anything uses [`before`] first. All other
//! waits of the library are judged where they happen.

use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::thread;
use crate::driver::{Call, CudaError, CudaResult, Driver, sys};
use crate::runtime::Runtime;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// They wait.
pub const DEFAULT: i32 = 0;
/// They wait, and a line of log says so.
pub const WARN: i32 = 1;
/// They fail instead.
pub const ERROR: i32 = 2;

static MODE: AtomicI32 = AtomicI32::new(DEFAULT);

/// For a stream.
pub const STREAM: Wait = Wait {
    what: "tcuda_stream_synchronize",
    instead: "order the work by events, or wait for an event",
};

/// For a copy from or to memory that the device cannot reach.
pub const PAGEABLE_COPY: Wait = Wait {
    what: "a copy from or to pageable host memory",
    instead: "use pinned memory (tcuda_host_malloc)",
};

/// For a collective call whose result is in memory of the host.
pub const HOST_RESULT: Wait = Wait {
    what: "a collective call with a result in memory of the host",
    instead: "pass tensors in pinned memory to the form that ends in _into",
};

/// For the contents of a pool that are kept in memory of the host.
pub const POOL_SLEEP: Wait =
    Wait { what: "tcuda_mem_pool_sleep or _wake", instead: "call it where the program may wait" };

pub use crate::base::error::{OTHER_WAITS as OTHERS, Wait};

/// How a thread's waits are taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// They are said or refused.
    Checked,
    /// They are said; without them memory would be used too early or lost.
    Required,
    /// The host asked for them.
    Documented,
}

thread_local! {
    static SCOPE: Cell<Scope> = const { Cell::new(Scope::Checked) };
    /// A wait under a lock that is to be said when the lock is given back.
    static DEFERRED: Cell<bool> = const { Cell::new(false) };
}

/// Until it is dropped, the waits of this thread are taken in another way.
pub struct ScopeGuard {
    before: Scope,
    /// Of this thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        let _ = SCOPE.try_with(|scope| scope.set(self.before));
    }
}

fn enter(wanted: Scope) -> ScopeGuard {
    let before = SCOPE.try_with(|scope| scope.replace(scope.get().max(wanted)));
    ScopeGuard { before: before.unwrap_or(Scope::Checked), _thread: PhantomData }
}

/// The host asks for a wait by what it calls.
#[inline]
pub fn documented() -> Option<ScopeGuard> {
    if is_on() { Some(enter(Scope::Documented)) } else { None }
}

/// Before a call that is about to wait: an error, or its waits are taken as meant.
#[inline]
pub fn check_documented(wait: Wait) -> Result<Option<ScopeGuard>> {
    check(wait)?;
    Ok(documented())
}

/// A wait that cannot be refused: what follows relies on it.
#[inline]
pub fn required() -> Option<ScopeGuard> {
    if is_on() { Some(enter(Scope::Required)) } else { None }
}

/// Which driver calls wait for a device.
pub const fn waits(call: Call) -> bool {
    use Call::*;
    is_refusable(call)
        || matches!(call, cuMemFree | cuMemFreeHost | cuMemHostUnregister | cuIpcCloseMemHandle)
}

/// Which of them do nothing else.
const fn is_refusable(call: Call) -> bool {
    use Call::*;
    matches!(call, cuStreamSynchronize | cuEventSynchronize | cuCtxSynchronize)
}

/// Before a driver call that waits: refused, said, or nothing.
#[cold]
pub fn check_call(call: Call, name: &'static str) -> CudaResult {
    let scope = scope();
    if scope == Scope::Documented {
        return Ok(());
    }
    if mode() == ERROR && scope == Scope::Checked && is_refusable(call) {
        return Err(CudaError { call: name, code: CudaError::WOULD_WAIT });
    }
    // A call of its own: the one around it may say that it waits, and would find no log then.
    if let Ok(_inside) = thread::enter() {
        warn(OTHERS);
    }
    Ok(())
}

fn scope() -> Scope {
    SCOPE.try_with(Cell::get).unwrap_or(Scope::Documented)
}

/// Before a wait under a lock, where nothing can be said: refused, or said by [`log_deferred`].
pub fn check_under_lock() -> Result<Option<ScopeGuard>> {
    if !is_on() {
        return Ok(None);
    }
    match scope() {
        Scope::Documented => (),
        Scope::Checked if mode() == ERROR => return Err(Error::WouldSynchronize(OTHERS)),
        Scope::Checked | Scope::Required => {
            let _ = DEFERRED.try_with(|deferred| deferred.set(true));
        }
    }
    Ok(documented())
}

/// Says that there was a wait under a lock; the caller holds none.
#[inline]
pub fn log_deferred() {
    if is_on() && DEFERRED.try_with(|deferred| deferred.replace(false)).unwrap_or(false) {
        warn(OTHERS);
    }
}

/// Waits for an event. In a mode other than the default one that is over is not waited for.
///
/// # Safety
/// The event is alive.
pub unsafe fn wait_for_event(driver: &Driver, event: sys::CUevent) -> CudaResult {
    // SAFETY: the caller's promise.
    if is_on() && unsafe { driver.cuEventQuery(event) }.is_ok() {
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { driver.cuEventSynchronize(event) }
}

/// Before a wait of a call that may be captured, where there is none.
#[inline]
pub fn check_uncaptured(runtime: &Runtime, wait: Wait) -> Result<()> {
    if is_on() { judge_uncaptured_wait(runtime, wait) } else { Ok(()) }
}

#[cold]
fn judge_uncaptured_wait(runtime: &Runtime, wait: Wait) -> Result<()> {
    for device in &runtime.devices {
        if device.streams.current().is_capturing(runtime)? {
            return Ok(());
        }
    }
    refuse_or_warn(wait)
}

/// What holds, for the whole process.
pub fn mode() -> i32 {
    MODE.load(Ordering::Relaxed)
}

/// Is any wait of interest?
#[inline]
pub fn is_on() -> bool {
    mode() != DEFAULT
}

/// Changes it.
pub fn set(mode: i32) -> Result<()> {
    static EXPLAINED: AtomicBool = AtomicBool::new(false);
    if !(DEFAULT..=ERROR).contains(&mode) {
        return Err(Error::OutOfRange {
            name: "mode",
            value: mode.into(),
            allowed: "use TCUDA_SYNC_DEBUG_DEFAULT, _WARN or _ERROR",
        });
    }
    MODE.store(mode, Ordering::Relaxed);
    if mode != DEFAULT && !EXPLAINED.swap(true, Ordering::Relaxed) {
        log::warn_as_asked(format_args!(
            "sync debug mode knows the waits of this library for streams and for memory, and copies \
             from and to pageable memory; tcuda_device_synchronize, tcuda_event_synchronize and waits \
             of other libraries pass unseen"
        ));
    }
    Ok(())
}

/// Before a wait of the host's: refused, told, or nothing.
#[inline]
pub fn check(wait: Wait) -> Result<()> {
    if is_on() { refuse_or_warn(wait) } else { Ok(()) }
}

#[cold]
fn refuse_or_warn(wait: Wait) -> Result<()> {
    if mode() == ERROR {
        return Err(Error::WouldSynchronize(wait));
    }
    warn(wait);
    Ok(())
}

fn warn(Wait { what, instead }: Wait) {
    log::warn_as_asked(format_args!("{what} makes the host wait for the device; {instead}"));
}

/// Back to the default.
pub(crate) fn forget() {
    MODE.store(DEFAULT, Ordering::Relaxed);
}
