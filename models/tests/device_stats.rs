//! The statistics of a device: peaks are the true ones in every interleaving of counts. The holder
//! of the ledger reads the data under the arenas' locks while it does not change.

use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};
use tcuda_models::base::retired::Reclaimable;
use tcuda_models::base::sync::{Bug, UnsafeCell};
use tcuda_models::explore;
use tcuda_models::memory::arena::arena_lock::{ArenaLock, HasLock, LockGuard};
use tcuda_models::memory::config::size::Class;
use tcuda_models::memory::arena::member::Member;
use tcuda_models::memory::device::device_stats::GuardedStats;
use tcuda_models::memory::stats::ledger::{
    ALL, ALLOCATED_BYTES, Account, Changes, Split, Statistics, change_of, only,
};
use tcuda_models::twin::fails;

/// The true values: the sum of all accounts at every moment, and its maximum. They are not of
/// loom's types, since they are read from outside the model.
#[derive(Default)]
struct Truth {
    now: AtomicI64,
    peak: AtomicI64,
    /// The highest since the scope was opened.
    scope: AtomicI64,
}

/// The class of an arena's memory, and whether its blocks are of that class only.
type Kind = (Class, bool);

/// Small blocks alone, and blocks of both classes.
const KINDS: &[Kind] = &[(Class::Small, true), (Class::Large, false)];

/// An arena: an account, and the state whose sum it is.
struct Arena {
    lock: ArenaLock,
    kind: Kind,
    account: UnsafeCell<Account>,
    state: UnsafeCell<i64>,
    /// Set before the arena is shared.
    partner: AtomicPtr<Arena>,
    truth: std::sync::Arc<Truth>,
}

impl HasLock for Arena {
    fn lock(&self) -> &ArenaLock {
        &self.lock
    }
}

impl Member for Arena {
    fn partner(&self) -> Option<&Arena> {
        // SAFETY: NULL, or boxed and alive as long as the device.
        unsafe { self.partner.load(Ordering::Relaxed).as_ref() }
    }

    unsafe fn with_account<R>(&self, body: impl FnOnce(&mut Account) -> R) -> R {
        self.account.with_mut(|account| {
            // SAFETY: the caller's promise; loom checks it.
            let account = unsafe { &mut *account };
            let before = account.now(ALLOCATED_BYTES);
            let result = body(account);
            let change = account.now(ALLOCATED_BYTES) - before;
            let now = self.truth.now.fetch_add(change, Ordering::Relaxed) + change;
            self.truth.peak.fetch_max(now, Ordering::Relaxed);
            self.truth.scope.fetch_max(now, Ordering::Relaxed);
            result
        })
    }
}

struct Device {
    stats: GuardedStats<Arena>,
    arenas: Vec<*const Arena>,
    truth: std::sync::Arc<Truth>,
}

// SAFETY: what the model checks.
unsafe impl Sync for Device {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Device {}

impl Arena {
    /// The class of a block.
    fn class_of(&self, bytes: i64) -> Class {
        match self.kind {
            (class, true) => class,
            _ if bytes.abs() <= 2 => Class::Small,
            _ => Class::Large,
        }
    }

    /// The changes of allocating (positive) or freeing (negative) a block.
    fn bytes(&self, change: i64) -> Changes {
        only(self.class_of(change), change_of(change.signum(), change, change, false))
    }
}

impl Device {
    fn new(kinds: &[Kind]) -> Arc<Device> {
        let truth = std::sync::Arc::new(Truth::default());
        let stats = GuardedStats::new();
        let mut arenas = Vec::new();
        for kind in kinds {
            let arena = Box::new(Reclaimable::new(
                Arena {
                    lock: ArenaLock::new(),
                    kind: *kind,
                    account: UnsafeCell::new(Account::new(kind.0)),
                    state: UnsafeCell::new(0),
                    partner: AtomicPtr::default(),
                    truth: std::sync::Arc::clone(&truth),
                },
                0,
            ));
            arenas.push(&raw const **arena);
            stats.with_members(|members| members.push(arena));
        }
        let device = Device { stats, arenas, truth };
        for (index, other) in [(0, 1), (1, 0)] {
            let other = device.arenas[other].cast_mut();
            device.arena(index).partner.store(other, Ordering::Relaxed);
        }
        Arc::new(device)
    }

    fn arena(&self, index: usize) -> &Arena {
        // SAFETY: boxed, and alive as long as the device.
        unsafe { &*self.arenas[index] }
    }

    /// Like allocating and freeing.
    fn change(&self, index: usize, change: i64) {
        let arena = self.arena(index);
        let mut guard = LockGuard::of(arena);
        // SAFETY: the lock is held.
        arena.state.with_mut(|state| unsafe { *state += change });
        let class = arena.class_of(change);
        let rise = |account: &mut Account| account.count_alloc(class, change, change, Split::NONE);
        let count_alloc_with = |account: &mut Account, other: &mut Account| {
            account.count_alloc_with(other, class, (change, change), Split::NONE)
        };
        let fall = |account: &mut Account| account.count_free(class, -change, -change, Split::NONE);
        let is_counted = match change > 0 {
            true => guard.with_account(rise),
            false => guard.with_account(fall),
        };
        if !(is_counted || change > 0 && guard.with_partner(count_alloc_with)) {
            self.stats.count(&mut guard, &arena.bytes(change));
        }
    }

    /// Like the statistics and a snapshot: returns the peak and the sum of the states.
    fn reads(&self) -> (i64, i64) {
        self.stats.with(None, |stats| {
            let mut statistics = Statistics::default();
            stats.statistics(&mut statistics);
            let total = statistics.counters[ALLOCATED_BYTES][ALL];
            assert_eq!(total.peak, self.truth.peak.load(Ordering::Relaxed), "not the true peak");
            assert_eq!(total.current, self.truth.now.load(Ordering::Relaxed));
            let states = (0..self.arenas.len()).map(|index| {
                // SAFETY: all arenas are frozen.
                self.arena(index).state.with(|state| unsafe { *state })
            });
            (total.peak, states.sum())
        })
    }

    fn resets(&self) {
        self.stats.with(None, |stats| {
            stats.reset_peak();
            let now = self.truth.now.load(Ordering::Relaxed);
            self.truth.peak.store(now, Ordering::Relaxed);
        });
    }
}

type Body = fn(&Device);

/// Runs bodies on threads of their own, the last one on this thread; then checks the sums.
fn together(bodies: &'static [Body]) {
    together_of(KINDS, bodies);
}

/// The same inside the library, where arenas are biased to the using thread.
fn inside(bodies: &'static [Body]) {
    let many = if bodies.len() > 2 { 2 } else { 3 };
    explore(2, many, move || {
        let device = Device::new(KINDS);
        let call = |device: &Device, body: Body| {
            tcuda_models::base::thread::register();
            let inside = tcuda_models::base::thread::enter();
            body(device);
            drop(inside);
            tcuda_models::base::thread::leave();
        };
        let (last, others) = bodies.split_last().unwrap();
        let others: Vec<_> = others
            .iter()
            .map(|body| {
                let device = Arc::clone(&device);
                thread::spawn(move || call(&device, *body))
            })
            .collect();
        call(&device, *last);
        others.into_iter().for_each(|other| other.join().unwrap());
        let (_, states) = device.reads();
        assert_eq!(states, device.truth.now.load(Ordering::Relaxed));
    });
}

/// The same with arenas of these kinds.
fn together_of(kinds: &'static [Kind], bodies: &'static [Body]) {
    let (few, many) = if bodies.len() > 2 { (2, 3) } else { (3, 4) };
    explore(few, many, move || {
        let device = Device::new(kinds);
        let (last, others) = bodies.split_last().unwrap();
        let others: Vec<_> = others
            .iter()
            .map(|body| {
                let device = Arc::clone(&device);
                thread::spawn(move || body(&device))
            })
            .collect();
        last(&device);
        others.into_iter().for_each(|other| other.join().unwrap());
        let (_, states) = device.reads();
        assert_eq!(states, device.truth.now.load(Ordering::Relaxed));
    });
}

/// Grows past the headroom, then changes within it.
fn moves_in_the_first(device: &Device) {
    device.change(0, 4);
    device.change(0, -4);
    device.change(0, 1);
}

fn moves_in_the_second(device: &Device) {
    device.change(1, 3);
    device.change(1, 1);
}

fn reads_on(device: &Device) {
    device.reads();
}

/// Opens a scope of statistics, with a reset of the device's peaks inside.
fn opens_a_scope(device: &Device) {
    device.stats.with(None, |stats| {
        assert!(stats.open_scope(1));
        let now = device.truth.now.load(Ordering::Relaxed);
        device.truth.scope.store(now, Ordering::Relaxed);
    });
    device.stats.with(None, |stats| {
        let closed = stats.close_scope(1).unwrap().counters[ALLOCATED_BYTES][ALL];
        let truth = device.truth.scope.load(Ordering::Relaxed);
        assert_eq!(closed.peak, truth, "not the scope's true peak");
    });
}

/// Waits for the device with the lock held, like giving memory back.
fn waits_parked(device: &Device) {
    let arena = device.arena(0);
    let mut guard = LockGuard::of(arena);
    device.stats.wait_for_device(&mut guard, loom::thread::yield_now);
    // SAFETY: the lock is held.
    arena.state.with_mut(|state| unsafe { *state += 5 });
    device.stats.count(&mut guard, &arena.bytes(5));
}

#[test]
fn peaks_are_true() {
    together(&[moves_in_the_first, moves_in_the_second]);
}

#[test]
fn peaks_are_true_of_two_of_a_class() {
    let kinds = &[(Class::Small, true), (Class::Small, true)];
    together_of(kinds, &[moves_in_the_first, moves_in_the_second]);
}

#[test]
fn peaks_are_true_while_another_reads() {
    together(&[moves_in_the_first, reads_on]);
}

#[test]
fn peaks_are_true_across_a_reset() {
    together(&[moves_in_the_first, Device::resets]);
}

#[test]
fn peaks_of_a_scope_are_true() {
    together(&[moves_in_the_first, opens_a_scope]);
}

#[test]
fn a_parked_arena_is_read_and_not_waited_for() {
    together(&[waits_parked, reads_on, moves_in_the_second]);
}

#[test]
fn peaks_are_true_of_biased_arenas() {
    inside(&[moves_in_the_first, moves_in_the_second]);
}

#[test]
fn peaks_are_true_of_biased_arenas_while_another_reads() {
    inside(&[moves_in_the_first, reads_on]);
}

/// Grows past the headroom in an arena that another thread may own.
fn moves_too(device: &Device) {
    device.change(0, 2);
    device.change(0, -2);
}

#[test]
fn peaks_are_true_of_an_arena_that_changes_hands() {
    inside(&[moves_in_the_first, moves_too]);
}

/// The same after the thread owns the arena.
fn waits_parked_as_the_owner(device: &Device) {
    device.change(0, 1);
    waits_parked(device);
}

#[test]
fn a_parked_owner_is_read_and_not_waited_for() {
    inside(&[waits_parked_as_the_owner, reads_on, moves_in_the_second]);
}

/// Stays below the peak but in the other arena: that takes headroom of the first, which then lacks
/// it.
fn moves_from_one_to_the_other(device: &Device) {
    for (index, change) in [(1, 3), (1, -3), (0, 4), (0, -4), (1, 2), (0, 4)] {
        device.change(index, change);
    }
}

#[test]
fn peaks_are_true_of_headroom_that_moves_while_another_reads() {
    inside(&[moves_from_one_to_the_other, reads_on]);
}

#[test]
fn peaks_are_true_of_headroom_that_moves_while_an_arena_changes_hands() {
    inside(&[moves_from_one_to_the_other, moves_too]);
}

const FOUND: &[&str] = &["Causality violation", "not the true peak", "lock order"];

#[test]
fn accounts_without_release() {
    fails("accounts_without_release", Bug::NoRelease, FOUND, || {
        together(&[moves_in_the_first, reads_on]);
    });
}

#[test]
fn accounts_without_acquire() {
    fails("accounts_without_acquire", Bug::NoAcquire, FOUND, || {
        together(&[moves_in_the_first, reads_on]);
    });
}

/// Takes the ledger with the lock held, without parking: the two threads wait for each other.
fn goes_unparked(device: &Device) {
    let _guard = device.arena(0).lock.guard();
    device.reads();
}

#[test]
fn taking_the_ledger_unparked() {
    // The ledger's holder polls forever: loom ends a run with too many steps.
    let expected = &["Model exceeded maximum number of branches", "deadlock"];
    fails("taking_the_ledger_unparked", Bug::None, expected, || {
        together(&[goes_unparked, reads_on]);
    });
}

/// Raises an account beyond its headroom without a grant.
fn counts_without_a_grant(device: &Device) {
    let arena = device.arena(0);
    let mut guard = LockGuard::of(arena);
    guard.with_account(|account| account.add(&arena.bytes(4)));
    guard.with_account(|account| account.add(&arena.bytes(-4)));
}

#[test]
fn counting_beyond_the_headroom() {
    fails("counting_beyond_the_headroom", Bug::None, FOUND, || {
        together(&[counts_without_a_grant, reads_on]);
    });
}

/// Takes headroom of an arena without its lock.
fn takes_headroom_unguarded(device: &Device) {
    let (own, other) = (device.arena(1), device.arena(0));
    let mut guard = LockGuard::of(own);
    let count_alloc_with = |account: &mut Account| {
        // SAFETY: none; the model must detect this.
        unsafe {
            other.with_account(|other| {
                account.count_alloc_with(other, Class::Large, (1, 1), Split::NONE)
            })
        }
    };
    let _ = guard.with_account(count_alloc_with);
}

#[test]
fn headroom_taken_without_a_lock() {
    fails("headroom_taken_without_a_lock", Bug::None, FOUND, || {
        together(&[takes_headroom_unguarded, moves_in_the_first]);
    });
}
