//! The lock of an arena, and how the ledger holds all of them still.
//!
//! Whoever holds an arena's lock may go to the ledger, and the ledger's holder needs the locks of all
//! arenas. The two cannot deadlock: the former says that it is *parked*, and the latter takes locks by
//! trying only, and counts a parked arena's as its own.

use crate::lock::{Guard, Lock};
use crate::rank::Rank;
use crate::sync::{self, AtomicBool, Ordering};
use std::cell::Cell;

/// The lock of an arena.
pub struct ArenaLock {
    lock: Lock,
    /// Set by the holder while it waits for the ledger's lock, or for the device.
    parked: AtomicBool,
    /// Did the ledger take the lock itself? Guarded by the ledger's lock.
    taken: Cell<bool>,
}

// SAFETY: the cell is used with the ledger's lock held only.
unsafe impl Sync for ArenaLock {}

impl ArenaLock {
    /// A free lock.
    pub fn new() -> ArenaLock {
        let (parked, taken) = (AtomicBool::new(false), Cell::new(false));
        ArenaLock { lock: Lock::new(Rank::ARENA), parked, taken }
    }

    /// Takes it for the life of the guard.
    #[inline]
    pub fn guard(&self) -> Guard<'_> {
        self.lock.guard()
    }

    /// The holder lets the ledger use what the lock guards of the ledger's, until it is back.
    pub fn park(&self) {
        Rank::ARENA.given();
        Rank::PARKED.taken();
        self.parked.store(true, Ordering::Release);
    }

    /// The holder is back; it has the ledger's lock.
    pub fn unpark(&self) {
        self.parked.store(false, Ordering::Release);
        Rank::PARKED.given();
        Rank::ARENA.taken();
    }

    /// For the ledger's holder: waits until nobody changes the arena's account.
    pub fn hold_still(&self) {
        // Whoever holds an arena's lock soon gives it back, or parks, waiting for us.
        let mut spins = 0u32;
        let taken = loop {
            if self.lock.try_lock() {
                break true;
            }
            if self.parked.load(Ordering::Acquire) {
                break false;
            }
            spins += 1;
            if spins < sync::LOOKS { sync::spin_loop() } else { sync::yield_now() }
        };
        self.taken.set(taken);
    }

    /// For the ledger's holder: is the lock its own?
    #[cfg(test)]
    pub fn is_taken(&self) -> bool {
        self.taken.get()
    }

    /// For the ledger's holder: lets go, if there was anything to hold.
    pub fn let_go(&self) {
        if self.taken.replace(false) {
            self.lock.unlock();
        }
    }
}
