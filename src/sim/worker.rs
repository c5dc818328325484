//! Threads of the simulated machine, and what it keeps for threads of the host. The standard library's
//! own allocate where no reserve reaches (`crate::base::reserve`) and abort when there is nothing.

use super::lock;
use crate::base::reserve;
use crate::memory::pinned::threads::Attributes;
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Body = Box<dyn FnOnce() + Send>;

/// A thread of the machine; dropped, it goes on by itself.
pub(super) struct Worker {
    thread: libc::pthread_t,
    over: Arc<AtomicBool>,
    joined: bool,
}

/// The stack of a worker, which runs functions and kernels of the host's.
const STACK: usize = 2 << 20;

/// What a new thread is given.
struct Start {
    name: CString,
    body: Body,
    over: Arc<AtomicBool>,
}

impl Worker {
    /// Starts one that holds the reserve; `None`: the system has no more. The caller holds the reserve.
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
            // SAFETY: from `into_raw` above, and no thread got it.
            drop(unsafe { Box::from_raw(start) });
            return None;
        }
        Some(Worker { thread, over, joined: false })
    }

    /// Has its body ended?
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits for its end.
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
    // SAFETY: from `into_raw` in `start`, for this thread alone.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    let Start { name, body, over } = *start;
    // SAFETY: a name that ends with a NUL; what is longer than 15 bytes is cut off.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    // A panic of ours ends this thread, not the host.
    let _ = catch_unwind(AssertUnwindSafe(body));
    over.store(true, Ordering::Release);
    null_mut()
}

/// Wakes a thread that sleeps. No lock stands between the two.
#[derive(Default)]
pub(super) struct Bell(AtomicU32);

impl Bell {
    /// Sleeps until it rings, or so long; not at all if it has rung since the last time. May wake for
    /// no reason.
    pub(super) fn wait(&self, longest: Option<Duration>) {
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

    /// Rings it.
    pub(super) fn ring(&self) {
        self.0.store(1, Ordering::Release);
        self.futex(libc::FUTEX_WAKE, 1, null());
    }

    fn futex(&self, operation: i32, value: u32, time: *const libc::timespec) {
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word and the time live meanwhile.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, value, time) };
    }
}

/// Tells the calling thread from every other, also from those that have ended.
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

/// What is done when a thread ends.
type Ends = Mutex<Vec<Box<dyn FnOnce()>>>;

/// The key of those, plus 1; 0: not made yet.
static KEY: AtomicU64 = AtomicU64::new(0);

/// Has `body` run when the calling thread ends; `false`: the system has no room to remember it. The
/// caller holds the reserve. Not by a thread-local with a destructor: the C library ends the process
/// when it finds no memory to register one.
pub(super) fn at_end(body: impl FnOnce() + 'static) -> bool {
    let Some(key) = key() else { return false };
    // SAFETY: the key exists.
    let mut ends = unsafe { libc::pthread_getspecific(key) }.cast::<Ends>();
    if ends.is_null() {
        ends = Box::into_raw(Box::new(Mutex::default()));
        // SAFETY: the key exists; the value is handed to `end` alone.
        if unsafe { libc::pthread_setspecific(key, ends.cast()) } != 0 {
            // SAFETY: from `into_raw` above, and kept nowhere.
            drop(unsafe { Box::from_raw(ends) });
            return false;
        }
    }
    // SAFETY: this thread's own, until `end`.
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
            // SAFETY: just made, and no thread has a value under it.
            unsafe { libc::pthread_key_delete(key) };
            Some((first - 1) as libc::pthread_key_t)
        }
    }
}

/// Runs when a thread ends that has something to do then.
unsafe extern "C" fn end(ends: *mut c_void) {
    let _reserve = reserve::hold();
    // SAFETY: from `into_raw` in `at_end`; the thread no longer has it.
    let ends = unsafe { Box::from_raw(ends.cast::<Ends>()) };
    let bodies = std::mem::take(&mut *lock(&ends));
    bodies.into_iter().for_each(|body| body());
}
