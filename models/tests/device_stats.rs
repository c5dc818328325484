//! The statistics of a device: peaks are the true ones in every interleaving of counts. The holder
//! of the ledger reads the data under the heaps' locks while it does not change.

use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::{AtomicI64, Ordering};
use tcuda_models::base::retired::Reclaimable;
use tcuda_models::base::sync::{Bug, UnsafeCell};
use tcuda_models::explore;
use tcuda_models::memory::arena::arena_lock::{ArenaLock, HasLock, LockGuard};
use tcuda_models::memory::arena::member::Member;
use tcuda_models::memory::config::size::Class;
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

/// A heap: an account, and the state whose sum it is. Blocks of up to two bytes are small.
struct Heap {
    lock: ArenaLock,
    account: UnsafeCell<Account>,
    state: UnsafeCell<i64>,
    truth: std::sync::Arc<Truth>,
}

impl HasLock for Heap {
    fn lock(&self) -> &ArenaLock {
        &self.lock
    }
}

impl Member for Heap {
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
    stats: GuardedStats<Heap>,
    heaps: Vec<*const Heap>,
    truth: std::sync::Arc<Truth>,
}

// SAFETY: what the model checks.
unsafe impl Sync for Device {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Device {}

/// The class of a block.
fn class_of(bytes: i64) -> Class {
    if bytes.abs() <= 2 { Class::Small } else { Class::Large }
}

/// The changes of allocating (positive) or freeing (negative) a block.
fn of_block(change: i64) -> Changes {
    only(class_of(change), change_of(change.signum(), change, change, false))
}

impl Device {
    /// A device with two heaps.
    fn new() -> Arc<Device> {
        let truth = std::sync::Arc::new(Truth::default());
        let stats = GuardedStats::new();
        let mut heaps = Vec::new();
        for _ in 0..2 {
            let heap = Box::new(Reclaimable::new(
                Heap {
                    lock: ArenaLock::new(),
                    account: UnsafeCell::new(Account::default()),
                    state: UnsafeCell::new(0),
                    truth: std::sync::Arc::clone(&truth),
                },
                0,
            ));
            heaps.push(&raw const **heap);
            stats.with_members(|members| members.push(heap));
        }
        Arc::new(Device { stats, heaps, truth })
    }

    fn heap(&self, index: usize) -> &Heap {
        // SAFETY: boxed, and alive as long as the device.
        unsafe { &*self.heaps[index] }
    }

    /// Like allocating and freeing.
    fn change(&self, index: usize, change: i64) {
        let heap = self.heap(index);
        let mut guard = LockGuard::of(heap);
        // SAFETY: the lock is held.
        heap.state.with_mut(|state| unsafe { *state += change });
        let class = class_of(change);
        let (classes, bytes) = ((class, class), (change.abs(), change.abs()));
        let is_counted = guard.with_account(|account| match change > 0 {
            true => account.count_alloc(classes, bytes, Split::NONE),
            false => account.count_free(classes, bytes, Split::NONE),
        });
        if !is_counted {
            self.stats.count(&mut guard, &of_block(change));
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
            let states = (0..self.heaps.len()).map(|index| {
                // SAFETY: all heaps are frozen.
                self.heap(index).state.with(|state| unsafe { *state })
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
    let (few, many) = if bodies.len() > 2 { (2, 3) } else { (3, 4) };
    explore(few, many, move || {
        let device = Device::new();
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

/// The same inside the library, where heaps are biased to the using thread.
fn inside(bodies: &'static [Body]) {
    let many = if bodies.len() > 2 { 2 } else { 3 };
    explore(2, many, move || {
        let device = Device::new();
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
    let heap = device.heap(0);
    let mut guard = LockGuard::of(heap);
    device.stats.wait_for_device(&mut guard, loom::thread::yield_now);
    // SAFETY: the lock is held.
    heap.state.with_mut(|state| unsafe { *state += 5 });
    device.stats.count(&mut guard, &of_block(5));
}

#[test]
fn peaks_are_true() {
    together(&[moves_in_the_first, moves_in_the_second]);
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
fn a_parked_heap_is_read_and_not_waited_for() {
    together(&[waits_parked, reads_on, moves_in_the_second]);
}

#[test]
fn peaks_are_true_of_biased_heaps() {
    inside(&[moves_in_the_first, moves_in_the_second]);
}

#[test]
fn peaks_are_true_of_biased_heaps_while_another_reads() {
    inside(&[moves_in_the_first, reads_on]);
}

/// Grows past the headroom in a heap that another thread may own.
fn moves_too(device: &Device) {
    device.change(0, 2);
    device.change(0, -2);
}

#[test]
fn peaks_are_true_of_a_heap_that_changes_hands() {
    inside(&[moves_in_the_first, moves_too]);
}

/// The same after the thread owns the heap.
fn waits_parked_as_the_owner(device: &Device) {
    device.change(0, 1);
    waits_parked(device);
}

#[test]
fn a_parked_owner_is_read_and_not_waited_for() {
    inside(&[waits_parked_as_the_owner, reads_on, moves_in_the_second]);
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
    let _guard = device.heap(0).lock.guard();
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
    let heap = device.heap(0);
    let mut guard = LockGuard::of(heap);
    guard.with_account(|account| account.add(&of_block(4)));
    guard.with_account(|account| account.add(&of_block(-4)));
}

#[test]
fn counting_beyond_the_headroom() {
    fails("counting_beyond_the_headroom", Bug::None, FOUND, || {
        together(&[counts_without_a_grant, reads_on]);
    });
}

/// Counts in an account without its lock.
fn counts_unguarded(device: &Device) {
    // SAFETY: none; the model must detect this.
    let _ = unsafe { device.heap(0).with_account(|account| account.apply(&of_block(1))) };
}

#[test]
fn counting_without_a_lock() {
    fails("counting_without_a_lock", Bug::None, FOUND, || {
        together(&[counts_unguarded, moves_in_the_first]);
    });
}
