//! The lock of an arena, and how the ledger freezes all arenas.
//!
//! One thread makes nearly all uses of an arena. So the lock can be *biased* to a thread, its
//! owner. The owner takes the lock with plain accesses: it sets the `inside` flag, passes a light
//! fence, and reads whether it still is the owner. Every other thread takes the real lock and
//! clears the owner. It then passes a heavy fence, which makes that visible to the owner, and waits
//! until the owner is not inside. Because of the two fences, at least one of the two threads sees
//! the write of the other. Each revocation costs a system call, so a thread that loses the bias
//! often regains it rarely.
//!
//! All owners use the same `inside` flag. A thread may read that it is the owner, lose the bias,
//! and only then set the flag, and clear it because it is no longer the owner. It would clear the
//! flag of the next owner. So no thread becomes the next owner before the call in which the former
//! owner may do this is over.
//!
//! An owner is identified by the address of its thread's data. A new thread may have the address of
//! one that has ended. It is the owner then, which is correct: it joined the list of participants
//! after the other thread had left it, and so sees that thread's writes.
//!
//! A holder of an arena's lock may wait for the ledger, and the holder of the ledger needs the
//! locks of all arenas. The two cannot deadlock. The former marks the lock as *parked*. The latter
//! only tries locks, and treats a parked lock as its own. It suspends all biases with one heavy
//! fence, and restores them afterwards.

use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::base::rank::Rank;
use crate::base::sync::{self, AtomicBool, AtomicUsize, Ordering};
use crate::base::thread;
use crate::memory::arena::contention::Contention;
use std::cell::Cell;
use std::marker::PhantomData;

/// The owner of a lock that is not biased.
pub(in crate::memory) const NO_OWNER: usize = 0;
/// Polls of a condition before the waiting thread sleeps between polls.
const YIELDS: u32 = 10 * sync::LOOKS;

/// The lock of an arena.
#[repr(C)]
pub struct ArenaLock {
    bias: Bias,
    /// Held by every holder except an owner that is inside.
    lock: Lock,
    /// Guarded by `lock`, and placed next to it.
    contention: Contention,
    /// Set by the holder while it waits for the ledger's lock or for the device.
    parked: AtomicBool,
    /// Set by the holder while it waits for the device.
    waits: AtomicBool,
    /// What the ledger did to freeze the lock. Guarded by the ledger's lock.
    frozen: Frozen,
}

/// The bias, on a cache line of its own. A thread that finds that it is not the owner need not
/// fetch this line again each time another thread takes the real lock.
#[repr(align(64))]
struct Bias {
    /// The thread to which the lock is biased, or [`NO_OWNER`]. Changes only with the real lock
    /// held.
    owner: AtomicUsize,
    /// Is the owner inside, or about to find that it no longer is the owner?
    inside: AtomicBool,
}

/// What the ledger did to freeze a lock.
struct Frozen {
    /// Did the ledger take the real lock?
    taken: Cell<bool>,
    /// The owner whose bias the ledger suspended.
    suspended: Cell<usize>,
    /// Is that owner inside and parked?
    inside: Cell<bool>,
}

// SAFETY: the cells are used with the locks held that guard them.
unsafe impl Sync for ArenaLock {}

impl ArenaLock {
    /// A lock that is free and not biased.
    pub fn new() -> ArenaLock {
        ArenaLock {
            bias: Bias { owner: AtomicUsize::new(NO_OWNER), inside: AtomicBool::new(false) },
            lock: Lock::new_short(Rank::ARENA),
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

    /// Takes the lock until the guard is dropped.
    #[inline]
    pub fn guard(&self) -> LockGuard<'_, ArenaLock> {
        LockGuard::of(self)
    }

    /// Takes the lock if this thread is the owner; false: it is not.
    #[inline(always)]
    fn take_quickly(&self) -> bool {
        let me = thread::address();
        if self.bias.owner.load(Ordering::Relaxed) != me {
            return false;
        }
        Rank::ARENA.check();
        self.take_as_owner(me)
    }

    #[inline(always)]
    fn take_as_owner(&self, me: usize) -> bool {
        self.bias.inside.store(true, Ordering::Relaxed);
        sync::light_fence();
        if self.bias.owner.load(Ordering::Acquire) == me {
            debug_assert!(
                thread::is_inside(),
                "an owner is inside a call, where `visit_of` finds it"
            );
            Rank::ARENA.note_taken();
            return true;
        }
        self.bias.inside.store(false, Ordering::Release);
        false
    }

    /// Takes the real lock. False: this is a host function of a stream, and the holder waits for
    /// the device.
    #[inline(never)]
    fn take_slowly(&self, me: usize) -> bool {
        Rank::ARENA.check();
        let pause = |pauses| (0..pauses).for_each(|_| sync::spin_loop());
        self.contention.back_off(me, pause, || self.lock.is_held());
        if !self.lock.try_lock() {
            self.contention.found_held();
            if !self.wait_for_holder() {
                return false;
            }
        }
        let owner = self.bias.owner.load(Ordering::Relaxed);
        if owner == NO_OWNER {
            if self.contention.is_streak_of(me) {
                self.bias_to(me);
            }
        } else if owner != me {
            if !self.revoke_bias(owner) {
                self.lock.unlock();
                return false;
            }
            if self.contention.is_streak_of(me) {
                self.bias_to(me);
            }
        }
        true
    }

    /// Waits for the lock; false: it cannot be had before this host function returns.
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

    /// Revokes the bias, and waits until the owner is not inside; false: the owner waits for the
    /// device, which may wait for this host function.
    #[cold]
    fn revoke_bias(&self, owner: usize) -> bool {
        self.bias.owner.store(NO_OWNER, Ordering::Relaxed);
        thread::fence_all_threads();
        let gives_up = thread::is_in_callback();
        let mut is_inside = true;
        // The owner may be parked and wait for the device.
        wait_while(|| {
            is_inside = self.bias.inside.load(Ordering::Acquire);
            is_inside && !(gives_up && self.waits.load(Ordering::Relaxed))
        });
        if is_inside {
            // The owner is inside without the real lock: only the bias excludes other threads.
            self.bias.owner.store(owner, Ordering::Release);
            return false;
        }
        self.contention.note_revoked(owner);
        true
    }

    #[cold]
    fn bias_to(&self, me: usize) {
        if thread::can_be_biased() && self.contention.may_rebias(me) {
            self.bias.owner.store(me, Ordering::Relaxed);
        }
    }

    /// Lets the ledger use the account until [`ArenaLock::unpark`]. Called by the holder.
    fn park(&self) {
        Rank::ARENA.note_released();
        Rank::PARKED.note_taken();
        self.parked.store(true, Ordering::Release);
    }

    /// Notes that the holder begins to wait for the device, or no longer waits.
    fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Ends what [`ArenaLock::park`] began. Called by the holder, which has the ledger's lock.
    fn unpark(&self) {
        self.parked.store(false, Ordering::Release);
        Rank::PARKED.note_released();
        Rank::ARENA.note_taken();
    }

    /// Waits until no thread changes the arena's account. Called by the holder of the ledger.
    pub fn freeze(&self) {
        ArenaLock::freeze_all(std::iter::once(self));
    }

    /// Waits until no thread changes the account of any of these arenas. Called by the holder of
    /// the ledger.
    pub fn freeze_all<'a>(locks: impl Iterator<Item = &'a ArenaLock> + Clone) {
        let me = thread::address();
        let mut were_suspended = false;
        for lock in locks.clone() {
            were_suspended |= lock.take_and_suspend(me);
        }
        if were_suspended {
            thread::fence_all_threads();
            locks.for_each(ArenaLock::wait_for_suspended);
        }
    }

    /// Takes the lock by trying, or sees that it is parked. True: a bias was suspended.
    #[inline]
    fn take_and_suspend(&self, me: usize) -> bool {
        // The holder of an arena's lock soon releases it, or parks and waits for this thread.
        let mut is_taken = false;
        wait_while(|| {
            is_taken = self.lock.try_lock();
            !is_taken && !self.parked.load(Ordering::Acquire)
        });
        self.frozen.taken.set(is_taken);
        if !is_taken {
            return false;
        }
        // A lock that is biased to this thread is frozen, because the thread is here.
        let owner = self.bias.owner.load(Ordering::Relaxed);
        if owner == NO_OWNER || owner == me {
            return false;
        }
        self.bias.owner.store(NO_OWNER, Ordering::Relaxed);
        self.frozen.suspended.set(owner);
        true
    }

    /// Waits until the owner whose bias was suspended is not inside, or is parked.
    fn wait_for_suspended(&self) {
        if self.frozen.suspended.get() == NO_OWNER {
            return;
        }
        let mut is_inside = false;
        wait_while(|| {
            is_inside = self.bias.inside.load(Ordering::Acquire);
            is_inside && !self.parked.load(Ordering::Acquire)
        });
        // A parked owner stays parked: it cannot return without the ledger's lock.
        self.frozen.inside.set(is_inside);
    }

    /// Did the ledger take the lock, and is no owner parked inside? Called by the holder of the
    /// ledger.
    #[cfg(test)]
    pub fn is_taken(&self) -> bool {
        self.frozen.taken.get() && !self.frozen.inside.get()
    }

    /// Undoes [`ArenaLock::freeze`], if the lock was taken. Called by the holder of the ledger.
    #[inline]
    pub fn thaw(&self) {
        if !self.frozen.taken.replace(false) {
            return;
        }
        let owner = self.frozen.suspended.replace(NO_OWNER);
        let is_inside = self.frozen.inside.replace(false);
        if owner != NO_OWNER {
            // An owner that is inside has no real lock: only the bias excludes other threads.
            if is_inside || thread::has_heavy_fences() {
                self.bias.owner.store(owner, Ordering::Release);
            } else {
                self.contention.note_revoked(owner);
            }
        }
        self.lock.unlock();
    }
}

/// Polls a condition that another thread ends soon, or after it has waited for the device.
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

/// What has an arena's lock.
pub trait HasLock {
    /// The lock.
    fn lock(&self) -> &ArenaLock;
}

impl HasLock for ArenaLock {
    #[inline(always)]
    fn lock(&self) -> &ArenaLock {
        self
    }
}

/// The lock of `T` is held. Releases it when dropped, also during a panic.
pub struct LockGuard<'a, T: HasLock> {
    holder: &'a T,
    is_light: bool,
    /// Only the owner may clear the `inside` flag.
    not_send: PhantomData<*const ()>,
}

impl<'a, T: HasLock> LockGuard<'a, T> {
    #[inline(always)]
    fn new(holder: &'a T, is_light: bool) -> LockGuard<'a, T> {
        LockGuard { holder, is_light, not_send: PhantomData }
    }

    /// Takes the lock.
    #[inline]
    pub fn of(holder: &'a T) -> LockGuard<'a, T> {
        if let Some(guard) = LockGuard::of_owner(holder) {
            return guard;
        }
        while !holder.lock().take_slowly(thread::address()) {
            sync::nap();
        }
        LockGuard::new(holder, false)
    }

    /// Takes the lock. Fails in a host function of a stream if the holder waits for the device,
    /// because the device may wait for this host function.
    #[inline]
    pub fn enter(holder: &'a T) -> Result<LockGuard<'a, T>> {
        match LockGuard::of_owner(holder) {
            Some(guard) => Ok(guard),
            None => LockGuard::slowly(holder, thread::address()).ok_or(Error::InCallback("")),
        }
    }

    /// Takes the lock if this thread is the owner.
    #[inline(always)]
    pub fn of_owner(holder: &'a T) -> Option<LockGuard<'a, T>> {
        holder.lock().take_quickly().then(|| LockGuard::new(holder, true))
    }

    /// With `OWNER`, takes the lock if this thread is the owner. Without, takes the real lock if
    /// this thread is not the owner.
    #[inline(always)]
    pub fn enter_as<const OWNER: bool>(holder: &'a T) -> Option<LockGuard<'a, T>> {
        if OWNER {
            return LockGuard::of_owner(holder);
        }
        let me = thread::address();
        let is_owner = holder.lock().bias.owner.load(Ordering::Relaxed) == me;
        if is_owner { None } else { LockGuard::slowly(holder, me) }
    }

    #[inline(always)]
    fn slowly(holder: &'a T, me: usize) -> Option<LockGuard<'a, T>> {
        holder.lock().take_slowly(me).then(|| LockGuard::new(holder, false))
    }

    /// What has the lock.
    #[inline(always)]
    pub fn holder(&self) -> &'a T {
        self.holder
    }

    /// Runs `body` while the holder of the ledger may use the account and read the state. When
    /// `body` returns, this thread is the holder of the ledger.
    pub fn parked<R>(&mut self, body: impl FnOnce() -> R) -> R {
        let lock = self.holder.lock();
        lock.park();
        let result = body();
        lock.unpark();
        result
    }

    /// The same while `body` waits for the device.
    pub fn parked_for_device<R>(&mut self, body: impl FnOnce() -> R) -> R {
        let lock = self.holder.lock();
        lock.set_waits(true);
        let result = self.parked(body);
        lock.set_waits(false);
        result
    }
}

impl<T: HasLock> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let lock = self.holder.lock();
        if self.is_light {
            Rank::ARENA.note_released();
            lock.bias.inside.store(false, Ordering::Release);
        } else {
            lock.lock.unlock();
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
        /// Takes some time, so that a second holder of the lock is noticed.
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

        /// Locks as an allocation does, or a count beyond the headroom, or a read of the
        /// statistics. Returns the number of additions.
        fn count(&self, choice: u64, pauses: u64) -> u64 {
            if choice == 0 {
                let _ledger = self.ledger.guard();
                self.lock.freeze();
                self.add(pauses);
                self.lock.thaw();
                return 1;
            }
            let mut guard = self.lock.guard();
            self.add(pauses);
            if choice > 1 {
                return 1;
            }
            drop(guard.parked(|| self.ledger.guard()));
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
        // New locks, because a bias that was often lost hardly returns.
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
                // The other threads arrive soon, unless they failed.
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
