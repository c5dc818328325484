//! The lock of an arena: at most one thread accesses the guarded data and sees earlier writes. That
//! holds for the owner, for a thread that revokes the bias, and for the ledger's holder.

use loom::sync::Arc;
use loom::thread;
use tcuda_models::base::lock::Lock;
use tcuda_models::base::rank::Rank;
use tcuda_models::base::sync::{Bug, UnsafeCell};
use tcuda_models::base::thread::{enter, leave, register};
use tcuda_models::explore;
use tcuda_models::memory::arena::arena_lock::ArenaLock;
use tcuda_models::twin::fails;

struct Arena {
    lock: ArenaLock,
    ledger: Lock,
    /// The number of times the lock was held.
    value: UnsafeCell<u32>,
}

// SAFETY: the lock guards the cell, which is what the model checks.
unsafe impl Sync for Arena {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Arena {}

impl Arena {
    /// The caller holds the lock in one of the ways; loom reports it if another thread does as
    /// well.
    fn count(&self) {
        // SAFETY: as above.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }

    /// As allocating does.
    fn uses(&self) {
        let _guard = self.lock.guard();
        self.count();
    }

    /// Like counting beyond the headroom: meanwhile the ledger's holder may hold the lock.
    fn parks(&self) {
        let mut guard = self.lock.guard();
        self.count();
        let ledger = guard.parked(|| self.ledger.guard());
        self.count();
        drop(ledger);
        self.count();
    }

    /// As the statistics do.
    fn reads(&self) {
        let _ledger = self.ledger.guard();
        self.lock.freeze();
        self.count();
        self.lock.thaw();
    }
}

type Body = fn(&Arena);

/// The whole life of a thread. A later thread may have the same address.
fn lives(arena: &Arena, body: Body) {
    register();
    body(arena);
    leave();
}

/// Runs each body on a thread of its own, the last one on this thread; then checks the count.
fn together(expected: u32, bodies: &'static [Body]) {
    let (few, many) = if bodies.len() > 2 { (2, 3) } else { (3, 4) };
    explore(few, many, move || {
        let (lock, ledger) = (ArenaLock::new(), Lock::new(Rank::LEDGER));
        let arena = Arc::new(Arena { lock, ledger, value: UnsafeCell::new(0) });
        let (last, others) = bodies.split_last().unwrap();
        let others: Vec<_> = others
            .iter()
            .map(|body| {
                let arena = Arc::clone(&arena);
                thread::spawn(move || lives(&arena, *body))
            })
            .collect();
        lives(&arena, *last);
        others.into_iter().for_each(|other| other.join().unwrap());
        let _inside = enter();
        let _guard = arena.lock.guard();
        // SAFETY: the lock is held.
        assert_eq!(arena.value.with(|value| unsafe { *value }), expected);
    });
}

fn uses_it_twice(arena: &Arena) {
    let _inside = enter();
    arena.uses();
    arena.uses();
}

fn uses_it_once(arena: &Arena) {
    let _inside = enter();
    arena.uses();
}

/// Between its calls its bias does not matter to other threads.
fn uses_it_in_two_calls(arena: &Arena) {
    uses_it_once(arena);
    uses_it_twice(arena);
}

fn uses_it_and_parks(arena: &Arena) {
    let _inside = enter();
    arena.uses();
    arena.parks();
}

fn reads_once(arena: &Arena) {
    let _inside = enter();
    arena.reads();
}

fn reads_thrice(arena: &Arena) {
    let _inside = enter();
    arena.reads();
    arena.reads();
    arena.reads();
}

#[test]
fn an_owner_and_another_take_turns() {
    together(4, &[uses_it_twice, uses_it_twice]);
}

#[test]
fn a_bias_goes_on_to_the_next() {
    together(5, &[uses_it_in_two_calls, uses_it_twice]);
}

#[test]
fn three_threads_take_turns() {
    together(4, &[uses_it_once, uses_it_once, uses_it_twice]);
}

#[test]
fn the_ledger_suspends_a_bias() {
    together(5, &[reads_thrice, uses_it_twice]);
}

#[test]
fn a_parked_owner_counts_as_frozen() {
    together(7, &[reads_thrice, uses_it_and_parks]);
}

/// The thread that revokes the bias holds the real lock, and waits for an owner that waits for the
/// ledger.
#[test]
fn a_parked_owner_counts_as_frozen_where_its_bias_is_revoked() {
    together(6, &[reads_once, uses_it_once, uses_it_and_parks]);
}

/// The ledger's holder is the owner itself.
fn uses_it_and_reads(arena: &Arena) {
    let _inside = enter();
    arena.uses();
    arena.reads();
    arena.uses();
}

#[test]
fn a_bias_to_the_ledgers_holder_stays() {
    together(5, &[uses_it_and_reads, uses_it_twice]);
}

const FOUND: &[&str] = &["Causality violation"];

#[test]
fn entering_without_a_fence() {
    fails("entering_without_a_fence", Bug::NoLightFence, FOUND, || {
        together(4, &[uses_it_twice, uses_it_twice]);
    });
}

#[test]
fn revoking_without_a_fence() {
    fails("revoking_without_a_fence", Bug::NoHeavyFence, FOUND, || {
        together(4, &[uses_it_twice, uses_it_twice]);
    });
}

#[test]
fn suspending_without_a_fence() {
    fails("suspending_without_a_fence", Bug::NoHeavyFence, FOUND, || {
        together(5, &[reads_thrice, uses_it_twice]);
    });
}

#[test]
fn revoking_without_waiting() {
    fails("revoking_without_waiting", Bug::NoWait, FOUND, || {
        together(4, &[uses_it_twice, uses_it_twice]);
    });
}

#[test]
fn suspending_without_waiting() {
    fails("suspending_without_waiting", Bug::NoWait, FOUND, || {
        together(5, &[reads_thrice, uses_it_twice]);
    });
}

/// `inside` is a flag.
#[test]
fn leaving_without_release() {
    fails("leaving_without_release", Bug::NoReleaseOf("AtomicBool"), FOUND, || {
        together(4, &[uses_it_twice, uses_it_twice]);
    });
}

/// `owner` is a number of this type.
#[test]
fn restoring_without_release() {
    fails("restoring_without_release", Bug::NoReleaseOf("AtomicUsize"), FOUND, || {
        together(5, &[reads_thrice, uses_it_twice]);
    });
}

/// The former owner is about to clear the flag, which now belongs to the next owner.
#[test]
fn a_next_owner_too_soon() {
    fails("a_next_owner_too_soon", Bug::NoVisit, FOUND, || {
        together(4, &[uses_it_twice, uses_it_twice]);
    });
}
