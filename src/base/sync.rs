//! The primitives of lock-free code: atomics, fences, sleeping on a word. `models/` compiles the
//! same files against types that try every interleaving; only this module differs.

use std::sync::atomic;

pub use crate::observe::turn::{is_installed as is_scheduled, yield_turn};
pub use atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub use std::hint::spin_loop;
pub use std::sync::{Condvar, Mutex, MutexGuard};
use std::sync::{LockResult, TryLockError};

pub use crate::base::waiting::begin as waiting;

/// Locks a mutex; while it waits the thread is marked as waiting.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> LockResult<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(guard)) => Err(guard),
        Err(TryLockError::WouldBlock) => wait_for(mutex),
    }
}

#[cold]
#[inline(never)]
fn wait_for<T>(mutex: &Mutex<T>) -> LockResult<MutexGuard<'_, T>> {
    let _waiting = waiting();
    mutex.lock()
}

/// Lets other threads run.
pub fn yield_now() {
    if !yield_turn() {
        std::thread::yield_now();
    }
}

/// A cell without concurrent users; the models check that.
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell with this value.
    pub const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Runs `body` on the value; the caller makes sure that no other thread uses it meanwhile.
    #[inline]
    pub fn with_mut<R>(&self, body: impl FnOnce(*mut T) -> R) -> R {
        body(self.0.get())
    }
}

/// A constructor that is `const` here; it is not with the models' atomics.
macro_rules! constant {
    ($(#[$meta:meta])* $visibility:vis fn $($rest:tt)*) => {
        $(#[$meta])* $visibility const fn $($rest)*
    };
}
pub(crate) use constant;

/// State of the process. The models create it again for each run.
macro_rules! state {
    ($($(#[$meta:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$meta])* static $name: $type = $value;)*
    };
}
pub(crate) use state;

/// An array of one expression, repeated.
macro_rules! repeat {
    ($value:expr) => {
        [const { $value }; _]
    };
}
pub(crate) use repeat;

/// Loads of a held lock's word before sleeping. A use takes about ten nanoseconds, and waking a
/// sleeper costs a system call; so it is worth spinning while several threads use the lock.
pub const LOOKS: u32 = 120;

/// The same for a thread that backs off so that another can continue with an arena's lock.
pub const LOOKS_BACK: u32 = 24;

/// Number of times in a row that a thread locks an arena before the lock is biased to it, after
/// another thread has lost the bias; doubles after each further loss, up to MOST_PATIENCE.
pub const PATIENCE: u32 = 64;
/// After so many uses the cost of revoking the bias is negligible.
pub const MOST_PATIENCE: u32 = 1 << 16;

/// Slots in the first chunk of a table of handles.
pub const FIRST_CHUNK: usize = 256;

/// Sleeps for a short time, for rare and long waits.
pub fn nap() {
    if !yield_turn() {
        let _waiting = waiting();
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

/// Spins for some microseconds.
pub fn pause() {
    if !yield_turn() {
        (0..400).for_each(|_| spin_loop());
    }
}

/// Orders the accesses of this thread, only with respect to threads that use [`heavy_fence`].
#[inline]
pub fn light_fence() {
    atomic::compiler_fence(Ordering::SeqCst);
}

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: takes integers only.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    result == 0
}

/// Registers the process for heavy fences; false: the kernel has none.
pub fn register_heavy_fence() -> bool {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED) && heavy_fence()
}

/// Makes the light fence of every running thread a full one at this point; false: it is forbidden.
pub fn heavy_fence() -> bool {
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
}

/// Sleeps until it is woken, if the word still has this value; may wake spuriously.
pub fn sleep_while(word: &AtomicU32, value: u32) {
    futex(word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value);
}

/// Wakes one thread that sleeps on the word.
pub fn wake_one(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
}

fn futex(word: &AtomicU32, operation: i32, value: u32) {
    // SAFETY: the word lives while it is borrowed; no timeout is passed.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            value,
            std::ptr::null::<libc::timespec>(),
        )
    };
}
