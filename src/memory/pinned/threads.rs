//! Internal threads, and those that touch pages of pinned memory. They are created without Rust's
//! thread API, which aborts if there is no host memory.

use super::source::PAGE;
use crate::base::thread_attributes::Attributes;
use std::ffi::c_void;
use std::mem::MaybeUninit;

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

/// Addresses that one thread touches.
type Share = (usize, usize);

extern "C" fn touch_share(share: *mut c_void) -> *mut c_void {
    // SAFETY: the share outlives this thread.
    let (start, end) = unsafe { *share.cast::<Share>() };
    for address in (start..end).step_by(PAGE) {
        // SAFETY: inside the mapping, and no other thread has this share.
        unsafe { (address as *mut u8).write_volatile(0) };
    }
    std::ptr::null_mut()
}

/// Touches every page of new memory, with several threads if they can be started.
#[inline(never)]
pub fn touch(base: usize, bytes: usize, num_threads: usize) {
    let num_threads = num_threads.clamp(1, MOST_THREADS);
    let each = bytes.div_ceil(num_threads).next_multiple_of(PAGE);
    let place = |index: usize| base + bytes.min(index * each);
    let mut shares: [Share; MOST_THREADS] =
        std::array::from_fn(|index| (place(index), place(index + 1)));
    let shares = shares[..num_threads].iter_mut().map(|share| std::ptr::from_mut(share).cast());
    let mut threads = [None; MOST_THREADS];
    // The last share is for this thread, as is one whose thread cannot be started.
    for (index, share) in shares.enumerate() {
        threads[index] = if index + 1 < num_threads { start(touch_share, share) } else { None };
        if threads[index].is_none() {
            touch_share(share);
        }
    }
    threads.into_iter().flatten().for_each(join);
}
