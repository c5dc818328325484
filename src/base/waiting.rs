//! Threads that wait: for a device, a lock, another thread, a file or a host function. Objects that
//! are made and retired meanwhile are not kept for them (`retired.rs`), and they are not cancelled.

use crate::base::epoch::Wait;
use crate::base::error::{Error, Result};
use crate::base::rank;
use crate::base::thread::{self, block};
use std::ffi::c_int;
use std::sync::atomic::Ordering;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// While it lives this thread is not cancelled: a forced unwind cannot pass the library's frames.
pub struct Uncancelled(c_int);

/// Disables cancellation.
#[inline]
pub fn uncancelled() -> Uncancelled {
    let mut before = 0;
    // SAFETY: the state is one of the two, and `before` is writable.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
    Uncancelled(before)
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: the state is the previous one.
        unsafe { pthread_setcancelstate(self.0, &mut disabled) };
    }
}

/// Marks this thread as waiting while it lives: for a device, another thread, a file or a host
/// function. Meanwhile it finds no object that may be retired, and no new object is kept for it;
/// those that it found before are. It is not cancelled either.
pub struct Waiting {
    wait: Option<Wait>,
    _uncancelled: Uncancelled,
}

/// Begins a wait.
// Inlined into each driver call, this and the end would be a third of them.
#[inline(never)]
pub fn begin() -> Waiting {
    Waiting { wait: block().participant.begin_wait(thread::era()), _uncancelled: uncancelled() }
}

/// Begins a wait before a host function, which may call the library.
pub fn in_host_function() -> Waiting {
    rank::before_host_function();
    begin()
}

impl Drop for Waiting {
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(wait) = self.wait.take() {
            block().participant.end_wait(wait, thread::present_fence());
        }
    }
}

/// Checks that a thread that looks an object up is not marked as waiting.
#[inline(always)]
pub fn assert_awake() {
    debug_assert!(
        block().participant.depth() == 0 || block().participant.is_awake(),
        "a thread that waits finds nothing"
    );
}

/// Is this thread in a host function of a stream, for which other threads may wait?
pub fn is_in_callback() -> bool {
    block().callbacks.load(Ordering::Relaxed) & !(OBSERVING | NO_CALLS) > 0
}

/// An error in a host function of a stream: for calls that wait, or that take a lock which others
/// hold while they wait.
pub(crate) fn refuse_in_callback() -> Result<()> {
    if is_in_callback() { Err(Error::InCallback("")) } else { Ok(()) }
}

/// The bit of `callbacks` that is set in an out-of-memory observer.
const OBSERVING: u16 = 1 << 15;

/// Is this thread in an out-of-memory observer?
pub fn is_observing() -> bool {
    block().callbacks.load(Ordering::Relaxed) & OBSERVING != 0
}

/// Marks this thread as in an out-of-memory observer, or no longer.
pub(crate) fn observe(observes: bool) {
    if observes {
        block().callbacks.fetch_or(OBSERVING, Ordering::Relaxed);
    } else {
        block().callbacks.fetch_and(!OBSERVING, Ordering::Relaxed);
    }
}

/// The bit of `callbacks` that is set in a function of the host that must not call the library.
const NO_CALLS: u16 = 1 << 14;

/// Marks this thread as in a function of the host that must not call the library, until it is
/// dropped: one that runs within an operation of the allocator, perhaps with locks held. Meanwhile
/// each call of the library is refused, and the thread is not cancelled.
pub struct NoCalls {
    /// What it changed; `None` in a nested one.
    registered: Option<u32>,
    _uncancelled: Uncancelled,
}

impl NoCalls {
    /// Begins it. The thread counts as not registered, so that all calls take the slow path.
    pub fn begin() -> NoCalls {
        let block = block();
        let is_nested = NoCalls::is_active();
        block.callbacks.fetch_or(NO_CALLS, Ordering::Relaxed);
        let registered = block.registered.swap(0, Ordering::Relaxed);
        NoCalls { registered: (!is_nested).then_some(registered), _uncancelled: uncancelled() }
    }

    /// Is this thread in such a function?
    pub(crate) fn is_active() -> bool {
        block().callbacks.load(Ordering::Relaxed) & NO_CALLS != 0
    }

    /// Fails if it is.
    pub(crate) fn refuse() -> Result<()> {
        if !NoCalls::is_active() {
            return Ok(());
        }
        Err(Error::InvalidState(
            "a function that the allocator calls within an operation (of a memory event, of the \
             references to a frame context, or of a set of streams) must not call tcuda: make the \
             call later",
        ))
    }
}

impl Drop for NoCalls {
    fn drop(&mut self) {
        if let Some(registered) = self.registered {
            block().registered.store(registered, Ordering::Relaxed);
            block().callbacks.fetch_and(!NO_CALLS, Ordering::Relaxed);
        }
    }
}

/// Marks this thread as in a host function of a stream, until it is dropped.
pub struct InCallback;

impl InCallback {
    /// Begins it.
    pub fn begin() -> InCallback {
        block().callbacks.fetch_add(1, Ordering::Relaxed);
        InCallback
    }
}

impl Drop for InCallback {
    fn drop(&mut self) {
        block().callbacks.fetch_sub(1, Ordering::Relaxed);
    }
}
