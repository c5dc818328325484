//! A lock of one word that can be tried, and unlocked by hand: the allocator's ledger holds the locks
//! of many arenas at once without a list of guards.

use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;
/// Looks at a held lock before sleeping. What it guards takes some ten nanoseconds, and a sleeper
/// costs whoever wakes it a system call; so it is worth waiting for several holders in turn.
const LOOKS: u32 = 120;
/// Pauses between two looks double up to this, so that waiters do not take the line from the holder.
const MOST_PAUSES: u32 = 32;

/// The lock. Not recursive.
pub struct Lock(AtomicU32);

impl Lock {
    /// A free lock.
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Takes it if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes it, waiting as long as it takes.
    #[inline]
    pub fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let mut pauses = 1;
        for _ in 0..LOOKS {
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
            if self.0.load(Ordering::Relaxed) == FREE && self.try_lock() {
                return;
            }
            pauses = (pauses * 2).min(MOST_PAUSES);
        }
        while self.0.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            futex(&self.0, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, WAITED_FOR);
        }
    }

    /// Gives it back; only for whoever holds it.
    #[inline]
    pub fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == WAITED_FOR {
            futex(&self.0, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
        }
    }

    /// Takes it for the life of the guard.
    #[inline]
    pub fn guard(&self) -> Guard<'_> {
        self.lock();
        Guard(self)
    }
}

impl Default for Lock {
    fn default() -> Lock {
        Lock::new()
    }
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

/// Unlocks when dropped, also when a panic passes.
pub struct Guard<'a>(&'a Lock);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    #[test]
    fn excludes_and_wakes() {
        struct Shared(Lock, UnsafeCell<u64>);
        // SAFETY: the lock guards the cell.
        unsafe impl Sync for Shared {}
        let shared = Shared(Lock::new(), UnsafeCell::new(0));
        let add = |shared: &Shared| {
            for _ in 0..100_000 {
                let _guard = shared.0.guard();
                // SAFETY: the lock is held.
                unsafe { *shared.1.get() += 1 };
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| add(&shared));
            }
        });
        assert_eq!(shared.1.into_inner(), 400_000);
        assert!(shared.0.try_lock());
        assert!(!shared.0.try_lock());
    }
}
