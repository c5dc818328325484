//! The interface of `src/base/sync.rs` over loom's types, weakened on request. A model that cannot
//! fail proves nothing, so each also runs with a bug planted here.

use loom::sync::{Arc, atomic};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::LockResult;

pub use atomic::Ordering;
pub use loom::sync::{Mutex, MutexGuard};

/// A bug to plant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    None,
    /// Release becomes relaxed.
    NoRelease,
    /// Acquire becomes relaxed.
    NoAcquire,
    /// Entering has no fence, not even with waiters that use a heavy one.
    NoLightFence,
    /// Waiting has no fence.
    NoHeavyFence,
    /// Sleepers are not woken.
    NoWake,
    /// Release becomes relaxed in atomics of one type.
    NoReleaseOf(&'static str),
    /// A thread that waits for a flag sees that it is cleared.
    NoWait,
    /// Calls count as finished while threads are in them.
    NoVisit,
    /// Retired objects are dropped although a call may see them, as by a shutdown that ignores
    /// other threads.
    NoSight,
}

const MOST_YIELDS: usize = 8;

/// Resets the state before each run of a model.
pub fn begin_run() {
    YIELDS.set(0);
}

thread_local! {
    static YIELDS: Cell<usize> = const { Cell::new(0) };
    static PLANTED: Cell<Bug> = const { Cell::new(Bug::None) };
}

/// Runs a model with a planted bug. All threads of a model are one thread of the system.
pub fn with_bug(bug: Bug, body: impl FnOnce()) {
    PLANTED.set(bug);
    body();
}

pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == bug
}

fn weakened(of: &'static str, ordering: Ordering) -> Ordering {
    match (PLANTED.get(), ordering) {
        (Bug::NoReleaseOf(planted), Ordering::Release) if planted == of => Ordering::Relaxed,
        (Bug::NoRelease, Ordering::Release) => Ordering::Relaxed,
        (Bug::NoRelease, Ordering::AcqRel) => Ordering::Acquire,
        (Bug::NoAcquire, Ordering::Acquire) => Ordering::Relaxed,
        (Bug::NoAcquire, Ordering::AcqRel) => Ordering::Release,
        _ => ordering,
    }
}

macro_rules! atomics {
    ($($name:ident $([$generic:ident])? of $value:ty, unset $unset:expr;)*) => { $(
        pub struct $name$(<$generic>)? {
            value: atomic::$name$(<$generic>)?,
            /// Written at drop, read at each use: no use may come after or beside the drop.
            life: loom::cell::UnsafeCell<()>,
            /// Changed at each load, so that loads depend on each other. Loom compares a store only
            /// with the last access. If that access is a load, for example of the storing thread,
            /// it would not try the store before the loads of others.
            loads: atomic::AtomicUsize,
        }

        impl$(<$generic>)? $name$(<$generic>)? {
            pub fn new(value: $value) -> Self {
                Self {
                    value: atomic::$name::new(value),
                    life: loom::cell::UnsafeCell::new(()),
                    loads: atomic::AtomicUsize::new(0),
                }
            }

            fn alive(&self) -> &atomic::$name$(<$generic>)? {
                self.life.with(|_| ());
                &self.value
            }

            pub fn load(&self, ordering: Ordering) -> $value {
                self.loads.fetch_add(0, Ordering::Relaxed);
                let value = self.alive().load(weakened(stringify!($name), ordering));
                if planted(Bug::NoWait) && stringify!($name) == "AtomicBool" {
                    return $unset;
                }
                value
            }

            pub fn store(&self, value: $value, ordering: Ordering) {
                self.alive().store(value, weakened(stringify!($name), ordering));
            }

            pub fn swap(&self, value: $value, ordering: Ordering) -> $value {
                self.alive().swap(value, weakened(stringify!($name), ordering))
            }

            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let weakened = |ordering| weakened(stringify!($name), ordering);
                let (success, failure) = (weakened(success), weakened(failure));
                self.alive().compare_exchange(current, new, success, failure)
            }
        }

        impl$(<$generic>)? Drop for $name$(<$generic>)? {
            fn drop(&mut self) {
                if !std::thread::panicking() {
                    self.life.with_mut(|_| ());
                }
            }
        }
    )* };
}

atomics! {
    AtomicBool of bool, unset false;
    AtomicU32 of u32, unset 0;
    AtomicU64 of u64, unset 0;
    AtomicUsize of usize, unset 0;
    AtomicPtr[T] of *mut T, unset std::ptr::null_mut();
}

macro_rules! arithmetic {
    ($($name:ident of $value:ty),*) => { $(
        impl $name {
            pub fn fetch_add(&self, value: $value, ordering: Ordering) -> $value {
                self.alive().fetch_add(value, weakened(stringify!($name), ordering))
            }

            pub fn fetch_sub(&self, value: $value, ordering: Ordering) -> $value {
                self.alive().fetch_sub(value, weakened(stringify!($name), ordering))
            }

            pub fn fetch_or(&self, value: $value, ordering: Ordering) -> $value {
                self.alive().fetch_or(value, weakened(stringify!($name), ordering))
            }
        }
    )* };
}

arithmetic! { AtomicU32 of u32, AtomicU64 of u64, AtomicUsize of usize }

/// Reports concurrent accesses.
pub struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(loom::cell::UnsafeCell::new(value))
    }

    pub fn with<R>(&self, body: impl FnOnce(*const T) -> R) -> R {
        self.0.with(body)
    }

    pub fn with_mut<R>(&self, body: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(body)
    }
}

/// Not `const`: these atomics belong to one run of a model.
macro_rules! constant {
    ($(#[$meta:meta])* $visibility:vis fn $($rest:tt)*) => {
        $(#[$meta])* $visibility fn $($rest)*
    };
}
pub(crate) use constant;

/// Created at first use in each run of a model.
macro_rules! state {
    ($($(#[$meta:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        loom::lazy_static! { $($(#[$meta])* static ref $name: $type = $value;)* }
    };
}
pub(crate) use state;

/// An array of one expression, repeated.
macro_rules! repeat {
    ($value:expr) => {
        std::array::from_fn(|_| $value)
    };
}
pub(crate) use repeat;

pub use crate::base::waiting::begin as waiting;

/// Locks a mutex.
pub fn lock<T>(mutex: &Mutex<T>) -> LockResult<MutexGuard<'_, T>> {
    mutex.lock()
}

/// Does not switch threads: otherwise a model would never see a lock held at the second check.
pub fn spin_loop() {}

/// Lets other threads run first. A thread that polls could do so forever: a run with many polls
/// runs to its end, but its variants are not tried.
pub fn yield_now() {
    if YIELDS.replace(YIELDS.get() + 1) >= MOST_YIELDS {
        loom::skip_branch();
    }
    loom::thread::yield_now();
}

/// Lets other threads continue.
pub fn pause() {
    loom::thread::yield_now();
}

/// Sleeps as long as another thread needs.
pub fn nap() {
    yield_now();
}

/// One check, so that both ways of taking a held lock are tried.
pub const LOOKS: u32 = 1;

/// Biases change their owner at once.
pub const PATIENCE: u32 = 1;
/// A thread that backs off only waits.
pub const LOOKS_BACK: u32 = 1;
pub const MOST_PATIENCE: u32 = 2;

/// One slot, so that tables grow.
pub const FIRST_CHUNK: usize = 1;

/// The standard condition variable, which wakes no thread with [`Bug::NoWake`].
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    #[expect(clippy::new_without_default, reason = "as the standard one is used")]
    pub fn new() -> Condvar {
        Condvar(loom::sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    pub fn notify_one(&self) {
        if !planted(Bug::NoWake) {
            self.0.notify_one();
        }
    }

    pub fn notify_all(&self) {
        if !planted(Bug::NoWake) {
            self.0.notify_all();
        }
    }
}

pub fn fence(ordering: Ordering) {
    if !planted(Bug::NoHeavyFence) {
        atomic::fence(ordering);
    }
}

/// A heavy fence makes it a full fence; here it always is one. Two light fences never order each
/// other in the library, and no model relies on that.
pub fn light_fence() {
    if !planted(Bug::NoLightFence) {
        atomic::fence(Ordering::SeqCst);
    }
}

/// No thread scheduler in a model.
pub fn is_scheduled() -> bool {
    false
}

pub fn yield_turn() -> bool {
    false
}

pub fn register_heavy_fence() -> bool {
    true
}

pub fn heavy_fence() -> bool {
    fence(Ordering::SeqCst);
    true
}

loom::lazy_static! {
    /// The kernel's table of the threads that sleep on each word. Its lock makes the comparison and
    /// falling asleep one step, as in the kernel.
    static ref SLEEPERS: Mutex<HashMap<usize, Arc<loom::sync::Condvar>>> =
        Mutex::new(HashMap::new());
}

fn address(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word) as usize
}

pub fn sleep_while(word: &AtomicU32, value: u32) {
    let mut sleepers = SLEEPERS.lock().unwrap();
    atomic::fence(Ordering::SeqCst);
    if word.alive().load(Ordering::Relaxed) != value {
        return;
    }
    let bed = sleepers.entry(address(word)).or_insert_with(|| Arc::new(loom::sync::Condvar::new()));
    let bed = Arc::clone(bed);
    drop(bed.wait(sleepers).unwrap());
}

pub fn wake_one(word: &AtomicU32) {
    if planted(Bug::NoWake) {
        return;
    }
    atomic::fence(Ordering::SeqCst);
    let sleepers = SLEEPERS.lock().unwrap();
    if let Some(bed) = sleepers.get(&address(word)) {
        bed.notify_one();
    }
}
