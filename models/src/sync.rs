//! What `src/sync.rs` offers, over loom's types, and weakened on request: a model that
//! cannot fail proves nothing, so each runs again with a bug planted here.

use loom::sync::{Arc, Condvar, atomic};
use std::cell::Cell;
use std::collections::HashMap;

pub use atomic::Ordering;
pub use loom::sync::{Mutex, MutexGuard};
pub use loom::thread::yield_now;

/// A bug to plant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    None,
    /// Release becomes relaxed.
    NoRelease,
    /// Acquire becomes relaxed.
    NoAcquire,
    /// Entering has no fence, not even for those who wait with a heavy one.
    NoLightFence,
    /// Waiting has no fence.
    NoHeavyFence,
    /// Sleepers are not woken.
    NoWake,
}

thread_local! {
    static PLANTED: Cell<Bug> = const { Cell::new(Bug::None) };
}

/// Runs a model with a bug planted. All threads of a model are one thread of the machine.
pub fn with_bug(bug: Bug, body: impl FnOnce()) {
    PLANTED.set(bug);
    body();
}

fn planted(bug: Bug) -> bool {
    PLANTED.get() == bug
}

fn weakened(ordering: Ordering) -> Ordering {
    match (PLANTED.get(), ordering) {
        (Bug::NoRelease, Ordering::Release) => Ordering::Relaxed,
        (Bug::NoRelease, Ordering::AcqRel) => Ordering::Acquire,
        (Bug::NoAcquire, Ordering::Acquire) => Ordering::Relaxed,
        (Bug::NoAcquire, Ordering::AcqRel) => Ordering::Release,
        _ => ordering,
    }
}

macro_rules! atomics {
    ($($name:ident $([$generic:ident])? of $value:ty),*) => { $(
        pub struct $name$(<$generic>)?(atomic::$name$(<$generic>)?);

        impl$(<$generic>)? $name$(<$generic>)? {
            pub fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub fn load(&self, ordering: Ordering) -> $value {
                self.0.load(weakened(ordering))
            }

            pub fn store(&self, value: $value, ordering: Ordering) {
                self.0.store(value, weakened(ordering));
            }

            pub fn swap(&self, value: $value, ordering: Ordering) -> $value {
                self.0.swap(value, weakened(ordering))
            }

            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, weakened(success), weakened(failure))
            }
        }
    )* };
}

atomics! {
    AtomicBool of bool, AtomicU32 of u32, AtomicU64 of u64, AtomicUsize of usize,
    AtomicPtr[T] of *mut T
}

/// Not `const`: these atomics belong to one run of a model.
macro_rules! constant {
    ($(#[$meta:meta])* $visibility:vis fn $($rest:tt)*) => {
        $(#[$meta])* $visibility fn $($rest)*
    };
}
pub(crate) use constant;

/// An array of one expression, repeated.
macro_rules! repeat {
    ($value:expr) => {
        std::array::from_fn(|_| $value)
    };
}
pub(crate) use repeat;

/// Lets nobody else go first: a model would then never see a lock held at the second look.
pub fn spin_loop() {}

/// One look, so that both ways of taking a held lock are tried.
pub const LOOKS: u32 = 1;

pub fn fence(ordering: Ordering) {
    if !planted(Bug::NoHeavyFence) {
        atomic::fence(ordering);
    }
}

/// A heavy fence makes it a full one; here it is one always. Two light fences never order each other
/// in the library, and no model relies on that.
pub fn light_fence() {
    if !planted(Bug::NoLightFence) {
        atomic::fence(Ordering::SeqCst);
    }
}

/// Nobody keeps turns here.
pub fn turns_are_kept() -> bool {
    false
}

pub fn give_way() -> bool {
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
    /// The kernel's table of who sleeps on which word. Its lock makes looking at the word and falling
    /// asleep one step, as the kernel's does.
    static ref SLEEPERS: Mutex<HashMap<usize, Arc<Condvar>>> = Mutex::new(HashMap::new());
}

fn address(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word) as usize
}

pub fn sleep_while(word: &AtomicU32, value: u32) {
    let mut sleepers = SLEEPERS.lock().unwrap();
    atomic::fence(Ordering::SeqCst);
    if word.0.load(Ordering::Relaxed) != value {
        return;
    }
    let bed = sleepers.entry(address(word)).or_insert_with(|| Arc::new(Condvar::new()));
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
