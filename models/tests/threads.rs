//! Threads that end: their data is not read after their end, and no thread waits for them.

use loom::sync::Arc;
use loom::thread;
use tcuda_models::base::epoch::{Fence, Participant, Participants};
use tcuda_models::base::retired::{Reclaimable, Retired};
use tcuda_models::base::sync::{self, AtomicPtr, Bug, Ordering, UnsafeCell};
use tcuda_models::explore;
use tcuda_models::twin::fails;

struct World {
    participants: Participants,
    retired: Retired,
    owner: Participant,
    thing: UnsafeCell<u32>,
    shown: AtomicPtr<UnsafeCell<u32>>,
}

// SAFETY: what the model checks.
unsafe impl Sync for World {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<World> {
        let (participants, retired, owner) =
            (Participants::new(), Retired::new(), Participant::new());
        let shown = AtomicPtr::new(std::ptr::null_mut());
        let thing = UnsafeCell::new(7);
        let world = Arc::new(World { participants, retired, owner, thing, shown });
        world.shown.store((&raw const world.thing).cast_mut(), Ordering::Release);
        world.participants.add(&world.owner, || Ok(())).unwrap();
        world
    }

    /// The life of a thread: its first call, and its end, which frees its data.
    fn lives(&self, leaves: bool) {
        let participant = Box::new(Participant::new());
        self.participants.add(&participant, || Ok(())).unwrap();
        participant.enter(Fence::Light);
        let thing = self.shown.load(Ordering::Acquire);
        // SAFETY: it lives as long as the world; loom checks its cell.
        if let Some(thing) = unsafe { thing.as_ref() } {
            // SAFETY: it is not ended before this call is over, which is what the model checks.
            assert_eq!(thing.with(|value| unsafe { *value }), 7);
        }
        participant.leave();
        if leaves {
            self.participants.remove(&participant);
        }
    }

    fn take_away(&self) {
        self.shown.swap(std::ptr::null_mut(), Ordering::AcqRel);
        barrier();
    }

    fn end_thing(&self) {
        // SAFETY: no thread reads it any more, which is what the model checks.
        self.thing.with_mut(|value| unsafe { *value = 0 });
    }
}

fn barrier() {
    sync::heavy_fence();
    sync::fence(Ordering::SeqCst);
}

/// A shutdown while a thread begins, calls and ends.
fn shutdown(leaves: bool) {
    explore(3, 4, move || {
        let world = World::new();
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.lives(leaves));
        world.owner.enter(Fence::Light);
        world.take_away();
        world.participants.wait_for_others(&world.owner);
        world.end_thing();
        world.owner.leave();
        thread.join().unwrap();
    });
}

/// The destruction of a handle while a thread begins, calls and ends.
fn destruction(leaves: bool) {
    explore(3, 4, move || {
        let world = World::new();
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.lives(leaves));
        world.owner.enter(Fence::Light);
        world.take_away();
        let ends = Ends(Arc::clone(&world));
        world.retired.add(Box::new(Reclaimable::new(ends, 1)));
        world.retired.collect(&world.participants, Some(&world.owner), usize::MAX, barrier);
        world.retired.collect(&world.participants, Some(&world.owner), usize::MAX, barrier);
        world.owner.leave();
        thread.join().unwrap();
        world.retired.collect(&world.participants, None, usize::MAX, barrier);
    });
}

struct Ends(Arc<World>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end_thing();
    }
}

#[test]
fn a_thread_that_ends_is_not_looked_at_by_shutdown() {
    shutdown(true);
}

#[test]
fn a_thread_that_ends_is_not_read_by_a_destruction() {
    destruction(true);
}

const FOUND: &[&str] = &["Causality violation"];

#[test]
fn ending_without_leaving() {
    fails("ending_without_leaving", Bug::None, FOUND, || shutdown(false));
}

#[test]
fn ending_without_leaving_a_destroyer() {
    fails("ending_without_leaving_a_destroyer", Bug::None, FOUND, || destruction(false));
}

#[test]
fn leaving_a_list_without_release() {
    fails("leaving_a_list_without_release", Bug::NoRelease, FOUND, || shutdown(true));
}
