//! A lock of one word, which can be tried, and unlocked without a guard: the allocator's ledger
//! holds the locks of many arenas at once without a list of guards. Also the standard mutex, with a
//! rank.
//!
//! The lock is not fair: a thread that unlocks it may lock it again before the waiters see it free.
//! The data under the lock is in the caches of that thread; where each use takes about ten
//! nanoseconds, moving the data costs more than using it. So waiters of a contended short lock spin
//! with long pauses, and each thread uses the lock many times in a row.

use crate::base::rank::Rank;
use crate::base::sync::{self, AtomicU32, LOOKS, Ordering};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32 as Pace;
use std::sync::{PoisonError, TryLockError};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;
/// Limit of the pauses between two loads, which double: waiters must not take the cache line from
/// the holder.
const MAX_PAUSES: u32 = 32;
/// The same for a short lock, which is held for less time than it takes to move its data: some
/// microseconds.
const MAX_PAUSES_SHORT: u32 = 512;
/// Total pauses before a waiter sleeps. A use takes about ten nanoseconds, and waking a sleeper
/// costs a system call; so it is worth spinning while several threads use the lock.
const ALL_PAUSES: u32 = 4096;

/// A lock. Not recursive.
pub struct Lock {
    word: AtomicU32,
    /// Pauses before a waiter's first load. A short lock that is contended now is likely to be
    /// contended the next time.
    pace: Pace,
    max_pauses: u32,
    rank: Rank,
}

impl Lock {
    sync::constant! {
        /// A free lock.
        pub fn new(rank: Rank) -> Lock {
            Lock {
                word: AtomicU32::new(FREE),
                pace: Pace::new(1),
                max_pauses: MAX_PAUSES,
                rank,
            }
        }
    }

    /// A free lock that is contended often and held for about ten nanoseconds.
    pub fn new_short(rank: Rank) -> Lock {
        Lock { max_pauses: MAX_PAUSES_SHORT, ..Lock::new(rank) }
    }

    /// Locks it if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        let taken = self.try_word(HELD);
        if taken {
            self.rank.note_taken();
        }
        taken
    }

    /// Is it held now?
    pub fn is_held(&self) -> bool {
        self.word.load(Ordering::Relaxed) != FREE
    }

    #[inline]
    fn try_word(&self, taken: u32) -> bool {
        self.word.compare_exchange(FREE, taken, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Locks it; waits as long as necessary.
    #[inline]
    pub fn lock(&self) {
        self.rank.check();
        if !self.try_word(HELD) {
            self.wait();
        }
        self.rank.note_taken();
    }

    #[cold]
    fn wait(&self) {
        while sync::yield_turn() {
            if self.try_word(HELD) {
                return;
            }
        }
        if self.spin(HELD) {
            return;
        }
        // From here on other waiters may sleep too, which the word says until a thread has unlocked
        // it.
        let _waiting = sync::waiting();
        while self.word.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            sync::sleep_while(&self.word, WAITED_FOR);
            if self.spin(WAITED_FOR) {
                return;
            }
        }
    }

    /// Spins until the lock is free, and locks it; false: it took so long that sleeping costs less.
    fn spin(&self, taken: u32) -> bool {
        let mut pauses = self.pace.load(Ordering::Relaxed);
        let mut all = 0;
        for look in 0..LOOKS {
            for _ in 0..pauses {
                sync::spin_loop();
            }
            if self.word.load(Ordering::Relaxed) == FREE && self.try_word(taken) {
                if self.max_pauses > MAX_PAUSES {
                    let pace = if look == 0 { (pauses * 3 / 4).max(1) } else { pauses };
                    self.pace.store(pace, Ordering::Relaxed);
                }
                return true;
            }
            all += pauses;
            if all >= ALL_PAUSES {
                break;
            }
            pauses = (pauses * 2).min(self.max_pauses);
        }
        false
    }

    /// Unlocks it; only for the holder.
    #[inline]
    pub fn unlock(&self) {
        self.rank.note_released();
        if self.word.swap(FREE, Ordering::Release) == WAITED_FOR {
            sync::wake_one(&self.word);
        }
    }

    /// Locks it for the lifetime of the guard, if it is free.
    pub fn try_guard(&self) -> Option<Guard<'_>> {
        self.try_lock().then(|| Guard(self))
    }

    /// Locks it for the lifetime of the guard.
    #[inline]
    pub fn guard(&self) -> Guard<'_> {
        self.lock();
        Guard(self)
    }
}

/// Unlocks when it is dropped, also by a panic.
pub struct Guard<'a>(&'a Lock);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// The standard mutex with a rank. Poisoning is ignored: between any two statements that can panic
/// the guarded data is consistent.
pub struct Mutex<T> {
    inner: sync::Mutex<T>,
    rank: Rank,
}

impl<T> Mutex<T> {
    sync::constant! {
        /// A free mutex.
        pub fn new(rank: Rank, value: T) -> Mutex<T> {
            Mutex { inner: sync::Mutex::new(value), rank }
        }
    }

    /// Locks it; waits as long as necessary.
    pub fn lock(&self) -> Held<'_, T> {
        self.rank.check();
        while sync::is_scheduled() {
            if let Some(held) = self.try_lock() {
                return held;
            }
            if !sync::yield_turn() {
                break;
            }
        }
        self.held(sync::lock(&self.inner).unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks it if it is free.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(self.held(guard)),
            Err(TryLockError::Poisoned(guard)) => Some(self.held(guard.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks it by trying, for a caller that holds several locks of one rank. Only for mutexes
    /// whose holders wait for nothing.
    pub fn hold(&self) -> Held<'_, T> {
        loop {
            match self.try_lock() {
                Some(held) => return held,
                None => sync::yield_now(),
            }
        }
    }

    fn held<'a>(&self, guard: sync::MutexGuard<'a, T>) -> Held<'a, T> {
        self.rank.note_taken();
        Held { guard, rank: self.rank }
    }
}

/// A locked mutex.
pub struct Held<'a, T> {
    guard: sync::MutexGuard<'a, T>,
    rank: Rank,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.rank.note_released();
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
        let shared = Shared(Lock::new(Rank::LEAF), UnsafeCell::new(0));
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
