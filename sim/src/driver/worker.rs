//! Threads of the simulated machine, and functions that run when a host thread ends. The standard
//! library's threads and destructors allocate outside the reserve (`crate::base::reserve`) and
//! abort without memory.

use super::sync::lock;
use crate::base::reserve;
use crate::base::thread_attributes::Attributes;
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Body = Box<dyn FnOnce() + Send>;

/// A thread of the machine; if dropped, it is detached.
pub(super) struct Worker {
    thread: libc::pthread_t,
    over: Arc<AtomicBool>,
    joined: bool,
}

/// Stack size of a worker, which runs functions and kernels of the host.
const STACK: usize = 2 << 20;

/// The arguments of a new thread.
struct Start {
    name: CString,
    body: Body,
    over: Arc<AtomicBool>,
}

impl Worker {
    /// Starts a thread that holds the reserve; `None` if the system refuses. The caller holds the
    /// reserve.
    pub(super) fn start(name: String, body: impl FnOnce() + Send + 'static) -> Option<Worker> {
        let over = Arc::new(AtomicBool::new(false));
        let name = CString::new(name).unwrap_or_default();
        let start = Start { name, body: Box::new(body), over: Arc::clone(&over) };
        let start = Box::into_raw(Box::new(start));
        let mut thread = 0;
        let attributes = Attributes::new(STACK);
        // SAFETY: `thread` is writable; `run` takes what `start` points to.
        let failed =
            unsafe { libc::pthread_create(&mut thread, attributes.get(), run, start.cast()) };
        if failed != 0 {
            // SAFETY: from `into_raw` above, and no thread was started with it.
            drop(unsafe { Box::from_raw(start) });
            return None;
        }
        Some(Worker { thread, over, joined: false })
    }

    /// True if the body has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits until the thread has ended.
    pub(super) fn join(mut self) {
        self.joined = true;
        // SAFETY: neither joined nor detached before.
        unsafe { libc::pthread_join(self.thread, null_mut()) };
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.joined {
            // SAFETY: neither joined nor detached before.
            unsafe { libc::pthread_detach(self.thread) };
        }
    }
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    let _reserve = reserve::hold();
    // SAFETY: from `into_raw` in `start`, passed only to this thread.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    let Start { name, body, over } = *start;
    // SAFETY: a NUL-terminated name; the system truncates it to 15 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    // A panic in the body ends this thread, not the host.
    let _ = catch_unwind(AssertUnwindSafe(body));
    over.store(true, Ordering::Release);
    null_mut()
}

/// Parks and unparks a thread, without a lock.
#[derive(Default)]
pub(super) struct Parker(AtomicU32);

impl Parker {
    /// Sleeps until [`unpark`](Self::unpark) or until `longest` has passed. Returns at once if
    /// `unpark` was called since the last time. May wake spuriously.
    pub(super) fn park(&self, longest: Option<Duration>) {
        if self.0.swap(0, Ordering::Acquire) == 0 {
            let time = longest.map(|longest| libc::timespec {
                tv_sec: longest.as_secs().cast_signed(),
                tv_nsec: longest.subsec_nanos().into(),
            });
            let time = time.as_ref().map_or(null(), ptr::from_ref);
            self.futex(libc::FUTEX_WAIT, 0, time);
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Wakes the parked thread, or the next one to park.
    pub(super) fn unpark(&self) {
        self.0.store(1, Ordering::Release);
        self.futex(libc::FUTEX_WAKE, 1, null());
    }

    fn futex(&self, operation: i32, value: u32, time: *const libc::timespec) {
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word and the time outlive the call.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, value, time) };
    }
}

/// A number for the calling thread that no other thread has or had.
pub(super) fn identity() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static OWN: Cell<u64> = const { Cell::new(0) };
    }
    if OWN.get() == 0 {
        OWN.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    OWN.get()
}

/// The functions that run when a thread ends.
type Ends = Mutex<Vec<Box<dyn FnOnce()>>>;

/// The thread-specific key of the `Ends`, plus 1; 0: not created yet.
static KEY: AtomicU64 = AtomicU64::new(0);

/// Registers `body` to run when the calling thread ends; `false` if the system has no room for it.
/// The caller holds the reserve. This is no thread-local with a destructor: the C library ends the
/// process if it has no memory to register one.
pub(super) fn at_end(body: impl FnOnce() + 'static) -> bool {
    let Some(key) = key() else { return false };
    // SAFETY: the key exists.
    let mut ends = unsafe { libc::pthread_getspecific(key) }.cast::<Ends>();
    if ends.is_null() {
        ends = Box::into_raw(Box::new(Mutex::default()));
        // SAFETY: the key exists; only `end` takes the value.
        if unsafe { libc::pthread_setspecific(key, ends.cast()) } != 0 {
            // SAFETY: from `into_raw` above, and stored nowhere.
            drop(unsafe { Box::from_raw(ends) });
            return false;
        }
    }
    // SAFETY: owned by this thread until `end`.
    let ends = unsafe { &*ends };
    lock(ends).push(Box::new(body));
    true
}

fn key() -> Option<libc::pthread_key_t> {
    let made = KEY.load(Ordering::Acquire);
    if made != 0 {
        return Some((made - 1) as libc::pthread_key_t);
    }
    let mut key = 0;
    // SAFETY: `key` is writable; the destructor lives in a library that is never unloaded.
    if unsafe { libc::pthread_key_create(&mut key, Some(end)) } != 0 {
        return None;
    }
    let ours = u64::from(key) + 1;
    match KEY.compare_exchange(0, ours, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(key),
        Err(first) => {
            // SAFETY: just created, and no thread has a value under it.
            unsafe { libc::pthread_key_delete(key) };
            Some((first - 1) as libc::pthread_key_t)
        }
    }
}

/// Destructor of the key: runs the functions of the ending thread.
unsafe extern "C" fn end(ends: *mut c_void) {
    let _reserve = reserve::hold();
    // SAFETY: from `into_raw` in `at_end`; the thread no longer refers to it.
    let ends = unsafe { Box::from_raw(ends.cast::<Ends>()) };
    let bodies = std::mem::take(&mut *lock(&ends));
    bodies.into_iter().for_each(|body| body());
}
