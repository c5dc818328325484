//! The lock of an arena, and how the ledger holds all of them still.
//!
//! An arena is nearly always used by one thread. So the lock can be *biased* to a thread, its owner,
//! which then takes it the *light* way: it says that it is inside, and looks whether it is the owner
//! still. Both are plain accesses with a light fence between them. Whoever else wants the lock takes
//! the real one, takes the bias away, makes that visible to the owner with a heavy fence, and waits
//! until the owner is not inside. So of the two one sees the other. What takes a bias away costs a
//! system call: who loses it often gets it back rarely.
//!
//! All owners say that they are inside with one flag. A thread may have found that it is the owner,
//! lose the bias, and only then raise the flag, and take it down again, since it is the owner no more:
//! it would take down the flag of the next owner. So there is no next one before the call is over in
//! which the thread may be about to do this.
//!
//! An owner is known by its address, which another thread may have once it has ended. That one is the
//! owner then, and rightly: it joined the list of members after the other had left it, and so sees what
//! that one did.
//!
//! Whoever holds an arena's lock may go to the ledger, and the ledger's holder needs the locks of all
//! arenas. The two cannot deadlock: the former says that it is *parked*, and the latter takes locks by
//! trying only, and counts a parked arena's as its own. It suspends biases meanwhile, all of them with
//! one heavy fence, and puts them back.

use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::base::rank::Rank;
use crate::base::sync::{self, AtomicBool, AtomicUsize, Ordering};
use crate::base::thread;
use crate::memory::arena::contention::Contention;
use std::cell::Cell;
use std::marker::PhantomData;

/// Nobody, as an owner.
pub(in crate::memory) const NO_OWNER: usize = 0;
/// Looks at what soon changes before the looking thread sleeps between them.
const YIELDS: u32 = 10 * sync::LOOKS;

/// The lock of an arena.
#[repr(C)]
pub struct ArenaLock {
    bias: Bias,
    /// Held by all holders but an owner that is inside.
    lock: Lock,
    /// Guarded by `lock`, and beside it.
    contention: Contention,
    /// Set by the holder while it waits for the ledger's lock, or for the device.
    parked: AtomicBool,
    /// Set by the holder while it waits for the device.
    waits: AtomicBool,
    /// What the ledger did. Guarded by the ledger's lock.
    frozen: Frozen,
}

/// The light way, on a line of its own: whoever finds that it is not the owner need not fetch that line
/// each time that somebody else takes the real lock.
#[repr(align(64))]
struct Bias {
    /// The thread to which it is biased, or nobody. Changes only with the real lock held.
    owner: AtomicUsize,
    /// Is the owner inside, or about to find out that it is the owner no more?
    inside: AtomicBool,
}

/// What the ledger holds of a lock.
struct Frozen {
    /// Did it take the lock itself?
    taken: Cell<bool>,
    /// The owner whose bias it suspended.
    suspended: Cell<usize>,
    /// Is that owner inside, parked?
    inside: Cell<bool>,
}

// SAFETY: the cells are used with the locks held that guard them.
unsafe impl Sync for ArenaLock {}

impl ArenaLock {
    /// A free lock.
    pub fn new() -> ArenaLock {
        ArenaLock {
            bias: Bias { owner: AtomicUsize::new(NO_OWNER), inside: AtomicBool::new(false) },
            lock: Lock::new_brief(Rank::ARENA),
            contention: Contention::new(),
            parked: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            frozen: Frozen {
                taken: Cell::new(false),
                suspended: Cell::new(NO_OWNER),
                inside: Cell::new(false),
            },
        }
    }

    /// Takes it for the life of the guard.
    #[inline]
    pub fn guard(&self) -> ArenaGuard<'_> {
        if let Some(guard) = self.guard_quickly() {
            return guard;
        }
        loop {
            if let Some(guard) = self.guard_slowly(thread::address()) {
                return guard;
            }
            sync::nap();
        }
    }

    /// Takes it for the life of the guard. An error in a host function of a stream where the holder waits
    /// for the device: that may wait for this function.
    #[inline]
    pub fn enter(&self) -> Result<ArenaGuard<'_>> {
        match self.guard_quickly() {
            Some(guard) => Ok(guard),
            None => self.guard_slowly(thread::address()).ok_or(Error::InCallback("")),
        }
    }

    /// Takes it if this thread is the owner.
    #[inline(always)]
    pub fn guard_quickly(&self) -> Option<ArenaGuard<'_>> {
        let me = thread::address();
        if self.bias.owner.load(Ordering::Relaxed) != me {
            return None;
        }
        Rank::ARENA.before();
        self.guard_as_owner(me)
    }

    /// Takes it if this thread is the owner; or if it is not, the real way.
    #[inline(always)]
    pub fn guard_of<const OWNER: bool>(&self) -> Option<ArenaGuard<'_>> {
        if OWNER {
            return self.guard_quickly();
        }
        let me = thread::address();
        let is_owner = self.bias.owner.load(Ordering::Relaxed) == me;
        if is_owner { None } else { self.guard_slowly(me) }
    }

    /// Takes it beside another arena's, which this thread holds, if it is the owner and does not frozen
    /// this one: it waits for nobody.
    #[inline]
    pub fn guard_second(&self) -> Option<ArenaGuard<'_>> {
        let me = thread::address();
        let is_owner = self.bias.owner.load(Ordering::Relaxed) == me;
        // An owner alone raises the flag.
        if !is_owner || self.bias.inside.load(Ordering::Relaxed) {
            return None;
        }
        self.guard_as_owner(me)
    }

    #[inline(always)]
    fn guard_as_owner(&self, me: usize) -> Option<ArenaGuard<'_>> {
        self.bias.inside.store(true, Ordering::Relaxed);
        sync::light_fence();
        if self.bias.owner.load(Ordering::Acquire) == me {
            debug_assert!(thread::is_inside(), "whoever asks where an owner is looks at its call");
            Rank::ARENA.taken();
            return Some(ArenaGuard { lock: self, is_light: true, not_send: PhantomData });
        }
        self.bias.inside.store(false, Ordering::Release);
        None
    }

    /// The real way. None: this is a host function of a stream, and the holder waits for the device.
    #[inline(never)]
    fn guard_slowly(&self, me: usize) -> Option<ArenaGuard<'_>> {
        Rank::ARENA.before();
        let pause = |pauses| (0..pauses).for_each(|_| sync::spin_loop());
        self.contention.back_off(me, pause, || self.lock.is_held());
        if !self.lock.try_lock() {
            self.contention.found_held();
            if !self.wait_for_holder() {
                return None;
            }
        }
        let guard = ArenaGuard { lock: self, is_light: false, not_send: PhantomData };
        let owner = self.bias.owner.load(Ordering::Relaxed);
        if owner == NO_OWNER {
            if self.contention.is_streak_of(me) {
                self.bias_to(me);
            }
        } else if owner != me {
            if !self.revoke_bias(owner) {
                return None;
            }
            if self.contention.is_streak_of(me) {
                self.bias_to(me);
            }
        }
        Some(guard)
    }

    /// Waits for the lock; false: it is not to be had before this function returns.
    #[cold]
    fn wait_for_holder(&self) -> bool {
        if !thread::is_in_callback() {
            self.lock.lock();
            return true;
        }
        let mut is_taken = false;
        wait_while(|| {
            is_taken = self.lock.try_lock();
            !is_taken && !self.waits.load(Ordering::Relaxed)
        });
        is_taken
    }

    /// The same for an owner that is inside.
    #[cold]
    fn revoke_bias(&self, owner: usize) -> bool {
        self.bias.owner.store(NO_OWNER, Ordering::Relaxed);
        thread::reach_all();
        let gives_up = thread::is_in_callback();
        let mut is_inside = true;
        // It may be parked, and wait for the device.
        wait_while(|| {
            is_inside = self.bias.inside.load(Ordering::Acquire);
            is_inside && !(gives_up && self.waits.load(Ordering::Relaxed))
        });
        if is_inside {
            // It has nothing but the bias that keeps others out.
            self.bias.owner.store(owner, Ordering::Release);
            return false;
        }
        self.contention.note_revoked(owner);
        true
    }

    #[cold]
    fn bias_to(&self, me: usize) {
        if thread::may_own() && self.contention.may_rebias(me) {
            self.bias.owner.store(me, Ordering::Relaxed);
        }
    }

    /// The holder lets the ledger use what the lock guards of the ledger's, until it is back.
    pub fn park(&self) {
        Rank::ARENA.given();
        Rank::PARKED.taken();
        self.parked.store(true, Ordering::Release);
    }

    /// The holder begins to wait for the device, or has ended.
    pub fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// The holder is back; it has the ledger's lock.
    pub fn unpark(&self) {
        self.parked.store(false, Ordering::Release);
        Rank::PARKED.given();
        Rank::ARENA.taken();
    }

    /// For the ledger's holder: waits until nobody changes the arena's account.
    pub fn freeze(&self) {
        ArenaLock::freeze_all(std::iter::once(self));
    }

    /// For the ledger's holder: waits until nobody changes the account of any of these arenas.
    pub fn freeze_all<'a>(locks: impl Iterator<Item = &'a ArenaLock> + Clone) {
        let me = thread::address();
        let mut were_suspended = false;
        for lock in locks.clone() {
            were_suspended |= lock.take_and_suspend(me);
        }
        if were_suspended {
            thread::reach_all();
            locks.for_each(ArenaLock::wait_for_suspended);
        }
    }

    /// Takes the lock by trying, or sees it parked; was a bias suspended?
    #[inline]
    fn take_and_suspend(&self, me: usize) -> bool {
        // Whoever holds an arena's lock soon gives it back, or parks, waiting for us.
        let mut is_taken = false;
        wait_while(|| {
            is_taken = self.lock.try_lock();
            !is_taken && !self.parked.load(Ordering::Acquire)
        });
        self.frozen.taken.set(is_taken);
        if !is_taken {
            return false;
        }
        // One that is biased to this very thread is held still by its being here.
        let owner = self.bias.owner.load(Ordering::Relaxed);
        if owner == NO_OWNER || owner == me {
            return false;
        }
        self.bias.owner.store(NO_OWNER, Ordering::Relaxed);
        self.frozen.suspended.set(owner);
        true
    }

    /// Waits for an owner whose bias was suspended: until it is not inside, or parked.
    fn wait_for_suspended(&self) {
        if self.frozen.suspended.get() == NO_OWNER {
            return;
        }
        let mut is_inside = false;
        wait_while(|| {
            is_inside = self.bias.inside.load(Ordering::Acquire);
            is_inside && !self.parked.load(Ordering::Acquire)
        });
        // Parked, it stays so: it cannot come back without the ledger's lock.
        self.frozen.inside.set(is_inside);
    }

    /// For the ledger's holder: is the lock its own, and nobody parked with it?
    #[cfg(test)]
    pub fn is_taken(&self) -> bool {
        self.frozen.taken.get() && !self.frozen.inside.get()
    }

    /// For the ledger's holder: lets go, if there was anything to frozen.
    #[inline]
    pub fn thaw(&self) {
        if !self.frozen.taken.replace(false) {
            return;
        }
        let owner = self.frozen.suspended.replace(NO_OWNER);
        let is_inside = self.frozen.inside.replace(false);
        if owner != NO_OWNER {
            // Who is inside has nothing but the bias that keeps others out.
            if self.contention.keeps_bias() || is_inside {
                self.bias.owner.store(owner, Ordering::Release);
            } else {
                self.contention.note_revoked(owner);
            }
        }
        self.lock.unlock();
    }
}

/// Looks at what another thread changes: soon, or once it has waited for the device.
fn wait_while(mut is_so: impl FnMut() -> bool) {
    let mut looks = 0u32;
    let mut waiting = None;
    while is_so() {
        looks = looks.saturating_add(1);
        if looks < sync::LOOKS {
            sync::spin_loop();
        } else if looks < YIELDS {
            sync::yield_now();
        } else {
            waiting.get_or_insert_with(sync::waiting);
            sync::nap();
        }
    }
}

/// Gives the lock back when dropped, also when a panic passes.
pub struct ArenaGuard<'a> {
    lock: &'a ArenaLock,
    is_light: bool,
    /// Only the owner may say that it is no longer inside.
    not_send: PhantomData<*const ()>,
}

impl Drop for ArenaGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_light {
            Rank::ARENA.given();
            self.lock.bias.inside.store(false, Ordering::Release);
        } else {
            self.lock.lock.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::atomic::AtomicU64;

    struct Counter {
        lock: ArenaLock,
        ledger: Lock,
        value: UnsafeCell<u64>,
    }

    // SAFETY: the lock guards the cell, or the ledger's holder has it.
    unsafe impl Sync for Counter {}

    impl Counter {
        /// Takes some time, so that whoever has the lock as well is seen.
        fn add(&self, pauses: u64) {
            // SAFETY: the caller has the lock.
            let value = unsafe { self.value.get().read_volatile() };
            (0..pauses).for_each(|_| std::hint::spin_loop());
            if pauses == 0 {
                std::thread::yield_now();
            }
            // SAFETY: as above.
            unsafe { self.value.get().write_volatile(value + 1) };
        }

        /// As allocating does, or counting beyond the headroom, or asking for the statistics; gives how
        /// often it added.
        fn count(&self, choice: u64, pauses: u64) -> u64 {
            if choice == 0 {
                let _ledger = self.ledger.guard();
                self.lock.freeze();
                self.add(pauses);
                self.lock.thaw();
                return 1;
            }
            let _guard = self.lock.guard();
            self.add(pauses);
            if choice > 1 {
                return 1;
            }
            self.lock.park();
            {
                let _ledger = self.ledger.guard();
                self.lock.unpark();
            }
            self.add(pauses);
            2
        }
    }

    #[test]
    fn the_lock_is_exclusive() {
        const THREADS: u64 = 3;
        let counter = |_| Counter {
            lock: ArenaLock::new(),
            ledger: Lock::new(Rank::LEDGER),
            value: UnsafeCell::new(0),
        };
        // Fresh ones, because a bias that was lost often hardly comes back.
        let counters: Vec<Counter> = (0..1000).map(counter).collect();
        let arrived = AtomicU64::new(0);
        let uses_all = &|thread: u64| {
            let mut random = 0x9e37_79b9 * (thread + 1);
            let mut below = |bound: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % bound
            };
            let mut counts = Vec::new();
            for (index, counter) in (1..).zip(&counters) {
                arrived.fetch_add(1, Ordering::Relaxed);
                // The others come soon, unless they failed.
                let all = THREADS * index;
                (0..1000)
                    .take_while(|_| arrived.load(Ordering::Relaxed) < all)
                    .for_each(|_| std::thread::yield_now());
                let times = 1 + below(150);
                let count = |_| {
                    let _inside = thread::enter().unwrap();
                    counter.count(below(8), below(20))
                };
                counts.push((0..times).map(count).sum());
            }
            counts
        };
        let counts: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|index| scope.spawn(move || uses_all(index))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (index, counter) in counters.into_iter().enumerate() {
            let expected: u64 = counts.iter().map(|counts| counts[index]).sum();
            assert_eq!(counter.value.into_inner(), expected, "lock {index}");
        }
    }
}
