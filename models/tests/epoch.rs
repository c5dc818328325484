//! Epochs: a removed object is not ended before every thread that could see it has left.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use tcuda_models::base::epoch::{Fence, Participant, Participants};
use tcuda_models::base::retired::{Reclaimable, Retired};
use tcuda_models::base::sync::{self, AtomicPtr, Bug, Ordering};
use tcuda_models::explore;
use tcuda_models::twin::fails;

/// An object that a reader reads and its owner ends; loom reports concurrent accesses.
struct Thing(UnsafeCell<u32>);

// SAFETY: what the model checks.
unsafe impl Sync for Thing {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Thing {}

impl Thing {
    fn end(&self) {
        // SAFETY: no thread reads it any more, which is what the model checks.
        self.0.with_mut(|value| unsafe { *value = 0 });
    }
}

/// Ends the thing when it is dropped.
struct Ends(Arc<Thing>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end();
    }
}

struct World {
    participants: Participants,
    retired: Retired,
    readers: [Participant; 2],
    owner: Participant,
    thing: Arc<Thing>,
    shown: AtomicPtr<Thing>,
}

impl World {
    fn new() -> Arc<World> {
        let thing = Arc::new(Thing(UnsafeCell::new(7)));
        let shown = AtomicPtr::new((&raw const *thing).cast_mut());
        let readers = [Participant::new(), Participant::new()];
        let (participants, retired, owner) =
            (Participants::new(), Retired::new(), Participant::new());
        let world = Arc::new(World { participants, retired, readers, owner, thing, shown });
        for participant in world.readers.iter().chain([&world.owner]) {
            world.participants.add(participant, || Ok(())).unwrap();
        }
        world
    }

    /// Retires the thing, which was created in era `born`.
    fn retire(&self, born: u64) {
        self.retired.add(Box::new(Reclaimable::new(Ends(Arc::clone(&self.thing)), born)));
    }

    /// Drops objects that no call can see.
    fn collect(&self) {
        self.retired.collect(&self.participants, Some(&self.owner), usize::MAX, barrier);
    }

    /// A call of the library: enters, finds the thing, and reads it.
    fn reads(&self, reader: usize, how: Fence) {
        let participant = &self.readers[reader];
        // The first reader pins as a fast path does, if there is one.
        let is_brief = reader == 0 && how == Fence::Light;
        if is_brief {
            assert!(participant.enter_outermost(), "it is outside");
        } else {
            participant.enter(how);
        }
        let thing = self.shown.load(Ordering::Acquire);
        // SAFETY: it lives as long as the world; loom checks its cell.
        if let Some(thing) = unsafe { thing.as_ref() } {
            // SAFETY: it lives until this call is over, which is what the model checks.
            assert_eq!(thing.0.with(|value| unsafe { *value }), 7);
        }
        if is_brief {
            participant.leave_outermost();
        } else {
            participant.leave();
        }
    }
}

fn barrier() {
    sync::heavy_fence();
    sync::fence(Ordering::SeqCst);
}

/// Like shutdown: removes the thing, waits for all threads, ends it.
fn waits_for_others(how: Fence, calls: usize) {
    explore(4, 5, move || {
        let world = World::new();
        let other = Arc::clone(&world);
        let reader = thread::spawn(move || (0..calls).for_each(|_| other.reads(0, how)));
        world.owner.enter(how);
        world.shown.swap(std::ptr::null_mut(), Ordering::AcqRel);
        barrier();
        world.participants.wait_for_others(&world.owner);
        world.thing.end();
        world.owner.leave();
        reader.join().unwrap();
    });
}

/// Like the destruction of a handle: removes and retires the thing; later calls collect it.
fn retires(how: Fence, readers: usize, collections: usize) {
    let (few, many) = if readers > 1 { (3, 4) } else { (4, 6) };
    explore(few, many, move || {
        let world = World::new();
        let others: Vec<_> = (0..readers)
            .map(|reader| {
                let world = Arc::clone(&world);
                thread::spawn(move || world.reads(reader, how))
            })
            .collect();
        world.owner.enter(how);
        world.shown.swap(std::ptr::null_mut(), Ordering::AcqRel);
        world.retire(1);
        for _ in 0..collections {
            world.collect();
        }
        world.owner.leave();
        others.into_iter().for_each(|other| other.join().unwrap());
        world.collect();
        // SAFETY: all others are gone.
        assert_eq!(world.thing.0.with(|value| unsafe { *value }), 0, "retired for ever");
    });
}

/// Both threads destroy and collect: each may drop the object that the other retired.
fn two_collect() {
    explore(3, 4, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let collector = thread::spawn(move || {
            other.reads(0, Fence::Light);
            other.readers[0].enter(Fence::Light);
            other.retired.collect(
                &other.participants,
                Some(&other.readers[0]),
                usize::MAX,
                barrier,
            );
            other.readers[0].leave();
        });
        world.owner.enter(Fence::Light);
        world.shown.swap(std::ptr::null_mut(), Ordering::AcqRel);
        world.retire(1);
        world.collect();
        world.owner.leave();
        collector.join().unwrap();
        world.collect();
    });
}

/// A shutdown collects, waits and collects during another thread's collection. It drops all objects
/// retired before, whichever thread retired them and whichever call could see them.
fn empties_beside_a_collection() {
    explore(3, 4, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let collector = thread::spawn(move || {
            other.readers[0].enter(Fence::Light);
            other.retired.collect(
                &other.participants,
                Some(&other.readers[0]),
                usize::MAX,
                barrier,
            );
            other.readers[0].leave();
        });
        world.owner.enter(Fence::Light);
        world.shown.swap(std::ptr::null_mut(), Ordering::AcqRel);
        world.retire(1);
        world.collect();
        barrier();
        world.participants.wait_for_others(&world.owner);
        world.collect();
        barrier();
        world.participants.wait_for_others(&world.owner);
        // SAFETY: it was ended, and no thread writes it later.
        assert_eq!(world.thing.0.with(|value| unsafe { *value }), 0, "left behind");
        world.owner.leave();
        collector.join().unwrap();
    });
}

#[test]
fn a_shutdown_leaves_nothing_to_a_collection() {
    empties_beside_a_collection();
}

/// A call waits. It reads an object that it found before the wait, or with `finds_later`, after it.
/// With `in_callback`, a callback may find the object during the wait. `born` is the object's era
/// of creation; a waiting call does not protect an object with a later era than its own.
fn waits(finds_later: bool, in_callback: bool, born: u64) {
    explore(3, 4, move || {
        let world = World::new();
        let other = Arc::clone(&world);
        let reader = thread::spawn(move || {
            let participant = &other.readers[0];
            let look = || {
                // SAFETY: it lives as long as the world; loom checks its cell.
                let thing = unsafe { other.shown.load(Ordering::Acquire).as_ref() };
                move || {
                    // SAFETY: it lives until this call is over, which is what the model checks.
                    thing.map(|thing| thing.0.with(|value| assert_eq!(unsafe { *value }, 7)))
                }
            };
            participant.enter(Fence::Light);
            let early = (!finds_later && !in_callback).then(look);
            let wait = participant.begin_wait(other.retired.era()).unwrap();
            if in_callback {
                participant.enter(Fence::Light);
                look()();
                participant.leave();
            }
            participant.end_wait(wait, Fence::Light);
            early.map_or_else(|| finds_later.then(|| look()()), |early| Some(early()));
            participant.leave();
        });
        world.owner.enter(Fence::Light);
        world.shown.swap(std::ptr::null_mut(), Ordering::AcqRel);
        world.retire(born);
        world.collect();
        world.owner.leave();
        reader.join().unwrap();
        world.collect();
        // SAFETY: all others are gone.
        assert_eq!(world.thing.0.with(|value| unsafe { *value }), 0, "retired for ever");
    });
}

#[test]
fn a_call_that_waits_keeps_what_it_found() {
    waits(false, false, 1);
}

#[test]
fn a_call_that_has_waited_finds_what_is_there() {
    waits(true, false, u64::MAX);
}

#[test]
fn a_callback_of_a_call_that_waits_finds_what_is_there() {
    waits(false, true, u64::MAX);
}

#[test]
fn shutdown_waits_for_threads_inside() {
    waits_for_others(Fence::Light, 2);
}

#[test]
fn shutdown_waits_without_membarrier() {
    waits_for_others(Fence::Full, 2);
}

#[test]
fn retired_objects_outlive_their_readers() {
    retires(Fence::Light, 1, 2);
}

#[test]
fn retired_objects_outlive_two() {
    retires(Fence::Light, 2, 1);
}

#[test]
fn two_threads_collect() {
    two_collect();
}

const FOUND: &[&str] = &["Causality violation", "assertion `left == right` failed"];

#[test]
fn entering_without_its_fence() {
    fails("entering_without_its_fence", Bug::NoLightFence, FOUND, || {
        waits_for_others(Fence::Light, 1);
    });
}

#[test]
fn waiting_without_its_fence() {
    fails("waiting_without_its_fence", Bug::NoHeavyFence, FOUND, || {
        waits_for_others(Fence::Light, 1);
    });
}

#[test]
fn leaving_without_release() {
    fails("leaving_without_release", Bug::NoRelease, FOUND, || {
        waits_for_others(Fence::Light, 1);
    });
}

#[test]
fn retiring_without_fence_of_those_who_enter() {
    fails("retiring_without_fence_of_those_who_enter", Bug::NoLightFence, FOUND, || {
        retires(Fence::Light, 1, 1);
    });
}

#[test]
fn retiring_without_a_fence_of_its_own() {
    fails("retiring_without_a_fence_of_its_own", Bug::NoHeavyFence, FOUND, || {
        retires(Fence::Light, 1, 1);
    });
}

/// The era is later than the true one, so the wait seems to have begun before the creation.
#[test]
fn a_wrong_era_of_birth() {
    fails("a_wrong_era_of_birth", Bug::None, FOUND, || waits(false, false, u64::MAX));
}

#[test]
fn going_on_without_a_fence() {
    fails("going_on_without_a_fence", Bug::NoLightFence, FOUND, || waits(true, false, u64::MAX));
}

#[test]
fn a_callback_without_a_fence() {
    fails("a_callback_without_a_fence", Bug::NoLightFence, FOUND, || waits(false, true, u64::MAX));
}

#[test]
fn a_callback_that_ends_without_release() {
    fails("a_callback_that_ends_without_release", Bug::NoRelease, FOUND, || {
        waits(false, true, u64::MAX);
    });
}
