//! Sync debug mode: waits of the host for a device are logged or refused.
//!
//! Every driver call that waits goes through [`check_call`]. A call of the host that is documented
//! to wait enters [`documented`]. A call that must be refused before it changes anything calls
//! [`check`] first. All other waits of the library are checked where they happen.

use crate::base::error::{Error, Result};
use crate::base::log;
use crate::base::thread;
use crate::driver::{Call, CudaError, CudaResult, Driver, sys};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Waits are allowed.
pub const DEFAULT: i32 = 0;
/// Waits are allowed and logged.
pub const WARN: i32 = 1;
/// Waits fail.
pub const ERROR: i32 = 2;

static MODE: AtomicI32 = AtomicI32::new(DEFAULT);

/// A wait for a stream.
pub const STREAM: Wait = Wait {
    what: "tcuda_stream_synchronize",
    instead: "order the work by events, or wait for an event",
};

/// A copy from or to memory that the device cannot reach.
pub const PAGEABLE_COPY: Wait = Wait {
    what: "a copy from or to pageable host memory",
    instead: "use pinned memory (tcuda_host_malloc)",
};

/// A collective call whose result is in memory of the host.
pub const HOST_RESULT: Wait = Wait {
    what: "a collective call with a result in memory of the host",
    instead: "pass tensors in pinned memory to the form that ends in _into",
};

/// A copy of the contents of a pool to or from memory of the host.
pub const POOL_SLEEP: Wait =
    Wait { what: "tcuda_mem_pool_sleep or _wake", instead: "call it where the program may wait" };

/// A transfer between a file and device memory.
pub const FILE_TRANSFER: Wait =
    Wait { what: "tcuda_file_read or _write", instead: "call it where the program may wait" };

pub use crate::base::error::{OTHER_WAITS as OTHERS, Wait};

/// How the waits of a thread are handled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// They are logged or refused.
    Checked,
    /// They are logged; refused, they would let memory be used too early or be lost.
    Required,
    /// They are allowed, because the host's call is documented to wait.
    Documented,
}

thread_local! {
    static SCOPE: Cell<Scope> = const { Cell::new(Scope::Checked) };
    /// A wait under a lock, to be logged when the lock is released.
    static DEFERRED: Cell<bool> = const { Cell::new(false) };
}

/// Changes how the waits of this thread are handled, until it is dropped.
pub struct ScopeGuard {
    before: Scope,
    /// The guard stays on its thread.
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

/// The host's call is documented to wait.
#[inline]
pub fn documented() -> Option<ScopeGuard> {
    if is_on() { Some(enter(Scope::Documented)) } else { None }
}

/// Before a call that is about to wait: an error, or its waits count as documented.
#[inline]
pub fn check_documented(wait: Wait) -> Result<Option<ScopeGuard>> {
    check(wait)?;
    Ok(documented())
}

/// The waits cannot be refused, because correctness depends on them.
#[inline]
pub fn required() -> Option<ScopeGuard> {
    if is_on() { Some(enter(Scope::Required)) } else { None }
}

/// Does this driver call wait for a device?
pub const fn waits(call: Call) -> bool {
    use Call::*;
    is_refusable(call)
        || matches!(call, cuMemFree | cuMemFreeHost | cuMemHostUnregister | cuIpcCloseMemHandle)
}

/// Does it do nothing else?
const fn is_refusable(call: Call) -> bool {
    use Call::*;
    matches!(call, cuStreamSynchronize | cuEventSynchronize | cuCtxSynchronize)
}

/// Before a driver call that waits: refuses it, logs it, or does nothing.
#[cold]
pub fn check_call(call: Call, name: &'static str) -> CudaResult {
    let scope = scope();
    if scope == Scope::Documented {
        return Ok(());
    }
    if mode() == ERROR && scope == Scope::Checked && is_refusable(call) {
        return Err(CudaError { call: name, code: CudaError::WOULD_WAIT });
    }
    // A nested call, because the outer one may be marked as waiting, and could not use the log.
    if let Ok(_inside) = thread::enter() {
        warn(OTHERS);
    }
    Ok(())
}

fn scope() -> Scope {
    SCOPE.try_with(Cell::get).unwrap_or(Scope::Documented)
}

/// Before a wait under a lock, where nothing can be logged: refuses it, or lets [`log_deferred`]
/// log it.
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

/// Logs a wait that happened under a lock; the caller holds none.
#[inline]
pub fn log_deferred() {
    if is_on() && DEFERRED.try_with(|deferred| deferred.replace(false)).unwrap_or(false) {
        warn(OTHERS);
    }
}

/// Waits for an event. In a mode other than the default one, a completed event counts as no wait.
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

/// The mode of the process.
pub fn mode() -> i32 {
    MODE.load(Ordering::Relaxed)
}

/// Is the mode other than the default one?
#[inline]
pub fn is_on() -> bool {
    mode() != DEFAULT
}

/// Sets the mode.
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
            "sync debug mode knows the waits of this library for streams and for memory, and \
             copies from and to pageable memory; tcuda_device_synchronize, \
             tcuda_event_synchronize and waits of other libraries pass unseen"
        ));
    }
    Ok(())
}

/// Before a wait of the host: refuses it, logs it, or does nothing.
#[inline]
pub fn check(wait: Wait) -> Result<()> {
    if is_on() { refuse_or_warn(wait) } else { Ok(()) }
}

#[cold]
pub(crate) fn refuse_or_warn(wait: Wait) -> Result<()> {
    if mode() == ERROR {
        return Err(Error::WouldSynchronize(wait));
    }
    warn(wait);
    Ok(())
}

fn warn(Wait { what, instead }: Wait) {
    log::warn_as_asked(format_args!("{what} makes the host wait for the device; {instead}"));
}

/// Resets the mode.
pub(crate) fn forget() {
    MODE.store(DEFAULT, Ordering::Relaxed);
}
