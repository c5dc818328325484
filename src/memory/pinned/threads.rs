//! Internal threads for pinned memory: some that touch pages, and one that obtains segments ahead.
//! They are created without Rust's thread API, which aborts if there is no host memory.

use super::source::PAGE;
use crate::base::sync::{self, AtomicU32, AtomicUsize, Ordering};
use crate::base::thread_attributes::Attributes;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The largest number of threads that touch pages at once.
const MOST_THREADS: usize = 128;

type Entry = extern "C" fn(*mut c_void) -> *mut c_void;

/// The stack size of such a thread. glibc caches 40 MiB of unused stacks; beyond that it unmaps
/// them, and ends the process if the system refuses.
const STACK: usize = 512 << 10;

/// Starts a thread that blocks all signals; `None` if the system refuses.
pub(crate) fn start(entry: Entry, argument: *mut c_void) -> Option<libc::pthread_t> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    let mut thread = MaybeUninit::uninit();
    // SAFETY: `all` is writable.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` was filled, `before` is writable.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let attributes = Attributes::new(STACK);
    // SAFETY: the caller promises that `argument` lives until it joins the thread.
    let failed =
        unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes.get(), entry, argument) };
    // SAFETY: `before` was written by the first call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    // SAFETY: written, as it did not fail.
    (failed == 0).then(|| unsafe { thread.assume_init() })
}

/// Waits until a thread has ended.
pub(crate) fn join(thread: libc::pthread_t) {
    // SAFETY: made by `start`, and joined once.
    unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
}

/// New memory, divided into shares of whole pages, each for the thread that takes it first.
struct Shares {
    base: usize,
    bytes: usize,
    each: usize,
    /// The offset of the next share.
    next: AtomicUsize,
}

impl Shares {
    /// Takes shares and touches every page of them until all are taken.
    fn touch(&self) {
        loop {
            // Relaxed: each thread gets a different value, and the join orders the writes.
            let from = self.next.fetch_add(self.each, Ordering::Relaxed);
            if from >= self.bytes {
                return;
            }
            for offset in (from..self.bytes.min(from + self.each)).step_by(PAGE) {
                // SAFETY: inside the mapping, and no other thread uses this share.
                unsafe { ((self.base + offset) as *mut u8).write_volatile(0) };
            }
        }
    }
}

extern "C" fn touch_shares(shares: *mut c_void) -> *mut c_void {
    // SAFETY: the shares outlive this thread.
    unsafe { &*shares.cast::<Shares>() }.touch();
    std::ptr::null_mut()
}

/// Touches every page of new memory, with several threads if they can be started.
#[inline(never)]
pub fn touch(base: usize, bytes: usize, num_threads: usize) {
    let num_threads = num_threads.clamp(1, MOST_THREADS);
    let each = bytes.div_ceil(num_threads).next_multiple_of(PAGE);
    let shares = Shares { base, bytes, each, next: AtomicUsize::new(0) };
    let argument = std::ptr::from_ref(&shares).cast_mut().cast::<c_void>();
    let others = bytes.div_ceil(each.max(1)).saturating_sub(1);
    let (mut threads, mut started) = ([0; MOST_THREADS], 0);
    for thread in (0..others).map_while(|_| start(touch_shares, argument)) {
        threads[started] = thread;
        started += 1;
    }
    shares.touch();
    threads[..started].iter().for_each(|thread| join(*thread));
}

/// The bit that ends the thread.
const END: u32 = 1 << 31;

/// A thread that performs tasks, each named by a bit.
pub struct Helper {
    wanted: AtomicU32,
}

/// The owner of a helper, whose tasks it performs.
pub trait HelperOwner: Sync {
    /// The helper.
    fn helper(&self) -> &Helper;

    /// Performs the task of a bit.
    fn perform(&self, bit: u32);
}

extern "C" fn run<T: HelperOwner>(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `begin` passed it, and the owner lives until `end`.
    let owner = unsafe { &*argument.cast::<T>() };
    let wanted = &owner.helper().wanted;
    loop {
        let bits = wanted.fetch_and(END, Ordering::AcqRel);
        if bits & END != 0 {
            return std::ptr::null_mut();
        }
        if bits == 0 {
            sync::sleep_while(wanted, 0);
        }
        for bit in (0..31).filter(|bit| bits >> bit & 1 == 1) {
            // A failure is ignored here: it occurs again when the memory is needed, and is reported
            // then.
            let _ = catch_unwind(AssertUnwindSafe(|| owner.perform(bit)));
        }
    }
}

impl Helper {
    pub fn new() -> Helper {
        Helper { wanted: AtomicU32::new(0) }
    }

    /// Starts the thread; the owner must not move until `end`.
    pub fn begin<T: HelperOwner>(owner: &T) -> Option<libc::pthread_t> {
        start(run::<T>, std::ptr::from_ref(owner).cast_mut().cast())
    }

    /// Requests a task; a repeated request has no effect while the first is pending.
    pub fn request(&self, bit: u32) {
        if self.wanted.fetch_or(1 << bit, Ordering::AcqRel) >> bit & 1 == 0 {
            sync::wake_one(&self.wanted);
        }
    }

    /// Ends the thread and waits for it.
    pub fn end(&self, thread: libc::pthread_t) {
        self.wanted.fetch_or(END, Ordering::AcqRel);
        sync::wake_one(&self.wanted);
        join(thread);
        self.wanted.store(0, Ordering::Release);
    }
}
