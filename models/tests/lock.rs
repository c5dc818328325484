//! The one-word lock: it excludes, makes earlier writes visible, and wakes every sleeper.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use tcuda_models::base::lock::Lock;
use tcuda_models::base::rank::Rank;
use tcuda_models::base::sync::Bug;
use tcuda_models::explore;
use tcuda_models::twin::fails;

struct Counter {
    lock: Lock,
    value: UnsafeCell<u32>,
}

// SAFETY: the lock guards the cell, which is what the model checks.
unsafe impl Sync for Counter {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Counter {}

impl Counter {
    fn add(&self) {
        let _guard = self.lock.guard();
        // SAFETY: the lock is held; loom reports it if the lock does not exclude.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }
}

fn counts(threads: usize, each: usize) {
    explore(3, 4, move || {
        let lock = Lock::new(Rank::LEAF);
        let counter = Arc::new(Counter { lock, value: UnsafeCell::new(0) });
        let adds = |counter: &Counter| (0..each).for_each(|_| counter.add());
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let counter = Arc::clone(&counter);
                thread::spawn(move || (0..each).for_each(|_| counter.add()))
            })
            .collect();
        adds(&counter);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(counter.lock.try_lock(), "it is free");
        assert!(!counter.lock.try_lock());
        // SAFETY: all other threads have ended.
        assert_eq!(counter.value.with(|value| unsafe { *value }), (threads * each) as u32);
    });
}

#[test]
fn two_threads_take_turns() {
    counts(2, 2);
}

#[test]
fn three_threads_wake_each_other() {
    counts(3, 1);
}

#[test]
fn without_release() {
    fails("without_release", Bug::NoRelease, &["Causality violation"], || counts(2, 1));
}

#[test]
fn without_acquire() {
    fails("without_acquire", Bug::NoAcquire, &["Causality violation"], || counts(2, 1));
}

#[test]
fn without_waking() {
    fails("without_waking", Bug::NoWake, &["deadlock"], || counts(2, 1));
}
