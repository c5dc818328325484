//! Slots of handles: exactly one of two destructions succeeds, and a handle never finds another
//! handle's object.

use loom::sync::Arc;
use loom::thread;
use tcuda_models::base::sync::{AtomicPtr, AtomicU32, Bug, Ordering};
use tcuda_models::explore;
use tcuda_models::ffi::slot::Slot;
use tcuda_models::twin::fails;

fn object(number: usize) -> *mut u32 {
    std::ptr::without_provenance_mut(number)
}

#[test]
fn one_of_two_destroyers_takes_it() {
    explore(3, 5, || {
        let slot = Arc::new(Slot::new());
        let generation = slot.fill(object(8));
        let other = Arc::clone(&slot);
        let second = thread::spawn(move || other.empty(generation).is_some());
        let first = slot.empty(generation).is_some();
        assert!(first ^ second.join().unwrap());
        assert_eq!(slot.generation(), generation + 1);
        assert_eq!(slot.find(generation), None);
    });
}

#[test]
fn an_old_handle_never_finds_the_next_object() {
    explore(3, 5, || {
        let slot = Arc::new(Slot::new());
        let generation = slot.fill(object(8));
        let other = Arc::clone(&slot);
        let finder = thread::spawn(move || other.find(generation));
        assert_eq!(slot.empty(generation), Some(object(8)));
        assert_eq!(slot.fill(object(16)), generation + 1);
        let found = finder.join().unwrap();
        assert!(found.is_none() || found == Some(object(8).cast_const()), "{found:?}");
    });
}

/// The same search without the second check of the generation.
fn finds_without_recheck() {
    explore(3, 5, || {
        let slot = Arc::new((AtomicU32::new(1), AtomicPtr::new(object(8))));
        let other = Arc::clone(&slot);
        let finder = thread::spawn(move || {
            let current = other.0.load(Ordering::Acquire) == 1;
            current.then(|| other.1.load(Ordering::Acquire))
        });
        slot.1.store(std::ptr::null_mut(), Ordering::Release);
        slot.0.store(2, Ordering::Release);
        slot.1.store(object(16), Ordering::Release);
        assert_ne!(finder.join().unwrap(), Some(object(16)), "another one's object");
    });
}

#[test]
fn without_asking_again() {
    let expected = &["another one's object"];
    fails("without_asking_again", Bug::None, expected, finds_without_recheck);
}
