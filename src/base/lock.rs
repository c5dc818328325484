//! A lock of one word that can be tried, and unlocked by hand: the allocator's ledger holds the locks
//! of many arenas at once without a list of guards. And the standard mutex, with a rank.
//!
//! The lock is not handed over: whoever gives it back may take it again before those who wait have
//! looked. What it guards is in the caches of that thread, and where it is used for some ten
//! nanoseconds, taking it over costs more than using it. So those who wait for such a lock look
//! rarely if it is wanted often, and each thread uses it many times in a row.

use crate::base::rank::Rank;
use crate::base::sync::{self, AtomicU32, LOOKS, Ordering};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32 as Pace;
use std::sync::{PoisonError, TryLockError};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;
/// Pauses between two looks double up to this, so that waiters do not take the line from the holder.
const MOST_PAUSES: u32 = 32;
/// The same of a lock that is held for less time than it takes to move what it guards: some
/// microseconds.
const MOST_PAUSES_OF_BRIEF: u32 = 512;
/// Pauses that a thread makes in all before it sleeps. What is guarded takes some ten nanoseconds,
/// and a sleeper costs whoever wakes it a system call; so it is worth waiting for many holders in
/// turn.
const ALL_PAUSES: u32 = 4096;

/// The lock. Not recursive.
pub struct Lock {
    word: AtomicU32,
    /// Pauses before the first look of the next who waits. Where a brief lock is busy it is busy
    /// the next time.
    pace: Pace,
    most_pauses: u32,
    rank: Rank,
}

impl Lock {
    sync::constant! {
        /// A free lock.
        pub fn new(rank: Rank) -> Lock {
            Lock {
                word: AtomicU32::new(FREE),
                pace: Pace::new(1),
                most_pauses: MOST_PAUSES,
                rank,
            }
        }
    }

    /// A free lock that is wanted often and held for some ten nanoseconds.
    pub fn new_brief(rank: Rank) -> Lock {
        Lock { most_pauses: MOST_PAUSES_OF_BRIEF, ..Lock::new(rank) }
    }

    /// Takes it if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        let taken = self.try_word(HELD);
        if taken {
            self.rank.taken();
        }
        taken
    }

    /// Is it held just now?
    pub fn is_held(&self) -> bool {
        self.word.load(Ordering::Relaxed) != FREE
    }

    #[inline]
    fn try_word(&self, taken: u32) -> bool {
        self.word.compare_exchange(FREE, taken, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes it, waiting as long as it takes.
    #[inline]
    pub fn lock(&self) {
        self.rank.before();
        if !self.try_word(HELD) {
            self.wait();
        }
        self.rank.taken();
    }

    #[cold]
    fn wait(&self) {
        while sync::give_way() {
            if self.try_word(HELD) {
                return;
            }
        }
        if self.look(HELD) {
            return;
        }
        // From here on others may sleep too, which the word says until nobody has waited for a
        // while.
        let _waiting = sync::waiting();
        while self.word.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            sync::sleep_while(&self.word, WAITED_FOR);
            if self.look(WAITED_FOR) {
                return;
            }
        }
    }

    /// Looks until the lock is free, and takes it; false: not for so long that sleeping costs less.
    fn look(&self, taken: u32) -> bool {
        let mut pauses = self.pace.load(Ordering::Relaxed);
        let mut all = 0;
        for look in 0..LOOKS {
            for _ in 0..pauses {
                sync::spin_loop();
            }
            if self.word.load(Ordering::Relaxed) == FREE && self.try_word(taken) {
                if self.most_pauses > MOST_PAUSES {
                    let pace = if look == 0 { (pauses * 3 / 4).max(1) } else { pauses };
                    self.pace.store(pace, Ordering::Relaxed);
                }
                return true;
            }
            all += pauses;
            if all >= ALL_PAUSES {
                break;
            }
            pauses = (pauses * 2).min(self.most_pauses);
        }
        false
    }

    /// Gives it back; only for whoever holds it.
    #[inline]
    pub fn unlock(&self) {
        self.rank.given();
        if self.word.swap(FREE, Ordering::Release) == WAITED_FOR {
            sync::wake_one(&self.word);
        }
    }

    /// Takes it for the life of the guard, if it is free.
    pub fn try_guard(&self) -> Option<Guard<'_>> {
        self.try_lock().then(|| Guard(self))
    }

    /// Takes it for the life of the guard.
    #[inline]
    pub fn guard(&self) -> Guard<'_> {
        self.lock();
        Guard(self)
    }
}

/// Unlocks when dropped, also when a panic passes.
pub struct Guard<'a>(&'a Lock);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// The standard mutex with a rank. A panic under it changes nothing: what it guards is whole between
/// any two of our statements that can panic.
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

    /// Takes it, waiting as long as it takes.
    pub fn lock(&self) -> Held<'_, T> {
        self.rank.before();
        while sync::turns_are_kept() {
            if let Some(held) = self.try_lock() {
                return held;
            }
            if !sync::give_way() {
                break;
            }
        }
        self.held(sync::lock(&self.inner).unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        match self.inner.try_lock() {
            Ok(guard) => Some(self.held(guard)),
            Err(TryLockError::Poisoned(guard)) => Some(self.held(guard.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes it by trying, for a caller that holds several of a rank at once: only where a thread that
    /// has it waits for nothing.
    pub fn hold(&self) -> Held<'_, T> {
        loop {
            match self.try_lock() {
                Some(held) => return held,
                None => sync::yield_now(),
            }
        }
    }

    fn held<'a>(&self, guard: sync::MutexGuard<'a, T>) -> Held<'a, T> {
        self.rank.taken();
        Held { guard, rank: self.rank }
    }
}

/// A mutex that is held.
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
        self.rank.given();
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
