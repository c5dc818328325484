//! What the lock-free pieces are made of: atomics, fences, sleeping on a word. `models/` compiles the
//! same files against types that try every interleaving; nothing else tells the two apart.

use std::sync::atomic;

pub use crate::observe::turn::{are_kept as turns_are_kept, give_way};
pub use atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub use std::hint::spin_loop;
pub use std::sync::{Condvar, Mutex, MutexGuard};
use std::sync::{LockResult, TryLockError};

pub use crate::base::waiting::begin as waiting;

/// Locks a mutex; a thread that has to wait for it is marked as waiting.
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
    if !give_way() {
        std::thread::yield_now();
    }
}

/// A cell whose users keep out of each other's way; the models check that they do.
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell with this value.
    pub const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Runs `body` on the value, which nobody else uses meanwhile.
    #[inline]
    pub fn with_mut<R>(&self, body: impl FnOnce(*mut T) -> R) -> R {
        body(self.0.get())
    }
}

/// A constructor that is `const` here; those of the models' atomics are not.
macro_rules! constant {
    ($(#[$meta:meta])* $visibility:vis fn $($rest:tt)*) => {
        $(#[$meta])* $visibility const fn $($rest)*
    };
}
pub(crate) use constant;

/// State of the process. The models make it anew for each run.
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

/// Looks at a held lock before sleeping. What it guards takes some ten nanoseconds, and a sleeper
/// costs whoever wakes it a system call; so it is worth waiting for several holders in turn.
pub const LOOKS: u32 = 120;

/// Looks of a thread that lets another go on with an arena's lock.
pub const LOOKS_BACK: u32 = 24;

/// How often in a row a thread takes an arena's lock before the lock is biased to it, once another has
/// lost the bias; twice as often after each further loss, up to the most.
pub const PATIENCE: u32 = 64;
/// At that many, what a bias costs when it is taken away is nothing beside what was done meanwhile.
pub const MOST_PATIENCE: u32 = 1 << 16;
/// So often the ledger suspends a bias before it is lost.
pub const SUSPENSIONS: u32 = 8;

/// Slots in the first chunk of a table of handles.
pub const FIRST_CHUNK: usize = 256;

/// Lets some time pass, for what takes long and rarely happens.
pub fn nap() {
    if !give_way() {
        let _waiting = waiting();
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

/// Lets some microseconds pass without sleep.
pub fn pause() {
    if !give_way() {
        (0..400).for_each(|_| spin_loop());
    }
}

/// Orders what this thread does, for those who use [`heavy_fence`] alone.
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

/// Asks for heavy fences; false: this kernel has none.
pub fn register_heavy_fence() -> bool {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED) && heavy_fence()
}

/// Makes the light fence of every running thread a full one at this point; false: forbidden.
pub fn heavy_fence() -> bool {
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
}

/// Sleeps until woken, if the word still has this value; may wake for no reason.
pub fn sleep_while(word: &AtomicU32, value: u32) {
    futex(word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value);
}

/// Wakes one of those who sleep on the word.
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
