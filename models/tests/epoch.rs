//! Epochs: what was taken away is not touched before everyone who could see it has left.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use tcuda_models::epoch::{Fence, Members, Presence, Retired};
use tcuda_models::explore;
use tcuda_models::sync::{self, AtomicPtr, Bug, Ordering};
use tcuda_models::twin::fails;

/// Something that a reader looks at and its owner ends; loom tells when the two meet.
struct Thing(UnsafeCell<u32>);

// SAFETY: what the model checks.
unsafe impl Sync for Thing {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Thing {}

impl Thing {
    fn end(&self) {
        // SAFETY: nobody looks any more, which is what the model checks.
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
    members: Members,
    retired: Retired,
    readers: [Presence; 2],
    owner: Presence,
    thing: Arc<Thing>,
    shown: AtomicPtr<Thing>,
}

impl World {
    fn new() -> Arc<World> {
        let thing = Arc::new(Thing(UnsafeCell::new(7)));
        let shown = AtomicPtr::new((&raw const *thing).cast_mut());
        let readers = [Presence::new(), Presence::new()];
        let (members, retired, owner) = (Members::new(), Retired::new(), Presence::new());
        let world = Arc::new(World { members, retired, readers, owner, thing, shown });
        for presence in world.readers.iter().chain([&world.owner]) {
            world.members.join(presence, || Ok(())).unwrap();
        }
        world
    }

    /// A call of the library: enters, looks for the thing, looks at it.
    fn reads(&self, reader: usize, how: Fence) {
        let presence = &self.readers[reader];
        // The first one as a short way does, where there is one.
        let is_brief = reader == 0 && how == Fence::Light;
        if is_brief {
            assert!(presence.enter_first(), "it is outside");
        } else {
            presence.enter(how);
        }
        let thing = self.shown.load(Ordering::Acquire);
        // SAFETY: it lives as long as the world; loom checks its cell.
        if let Some(thing) = unsafe { thing.as_ref() } {
            // SAFETY: nobody ends it before this call is over, which is what the model checks.
            assert_eq!(thing.0.with(|value| unsafe { *value }), 7);
        }
        if is_brief {
            presence.leave_last();
        } else {
            presence.leave();
        }
    }
}

fn barrier() -> bool {
    sync::heavy_fence();
    sync::fence(Ordering::SeqCst);
    true
}

/// As shutdown does: takes away, waits for all, ends it.
fn waits_for_others(how: Fence, calls: usize) {
    explore(4, 5, move || {
        let world = World::new();
        let other = Arc::clone(&world);
        let reader = thread::spawn(move || (0..calls).for_each(|_| other.reads(0, how)));
        world.owner.enter(how);
        world.shown.swap(std::ptr::null_mut(), Ordering::AcqRel);
        barrier();
        world.members.wait_for_others(&world.owner);
        world.thing.end();
        world.owner.leave();
        reader.join().unwrap();
    });
}

/// As the destruction of a handle does: takes away, retires, and some later calls collect.
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
        world.retired.add(Box::new(Ends(Arc::clone(&world.thing))));
        for _ in 0..collections {
            world.retired.collect(&world.members, Some(&world.owner), barrier);
        }
        world.owner.leave();
        others.into_iter().for_each(|other| other.join().unwrap());
        world.retired.drain();
        // SAFETY: all others are gone.
        assert_eq!(world.thing.0.with(|value| unsafe { *value }), 0, "retired for ever");
    });
}

/// Both threads destroy and collect: what one retires, the other may drop.
fn two_collect() {
    explore(3, 4, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let collector = thread::spawn(move || {
            other.reads(0, Fence::Light);
            other.readers[0].enter(Fence::Light);
            other.retired.collect(&other.members, Some(&other.readers[0]), barrier);
            other.readers[0].leave();
        });
        world.owner.enter(Fence::Light);
        world.shown.swap(std::ptr::null_mut(), Ordering::AcqRel);
        world.retired.add(Box::new(Ends(Arc::clone(&world.thing))));
        world.retired.collect(&world.members, Some(&world.owner), barrier);
        world.owner.leave();
        collector.join().unwrap();
        world.retired.drain();
    });
}

/// A shutdown drains while another thread collects: what was retired is gone then, or in the hands of
/// that thread, which is waited for.
fn drains_beside_a_collection() {
    explore(3, 4, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let collector = thread::spawn(move || {
            other.readers[0].enter(Fence::Light);
            other.retired.collect(&other.members, Some(&other.readers[0]), barrier);
            other.readers[0].leave();
        });
        world.owner.enter(Fence::Light);
        world.shown.swap(std::ptr::null_mut(), Ordering::AcqRel);
        world.retired.add(Box::new(Ends(Arc::clone(&world.thing))));
        barrier();
        world.members.wait_for_others(&world.owner);
        world.retired.drain();
        barrier();
        world.members.wait_for_others(&world.owner);
        // SAFETY: it was ended, and by nobody later.
        assert_eq!(world.thing.0.with(|value| unsafe { *value }), 0, "left behind");
        world.owner.leave();
        collector.join().unwrap();
    });
}

#[test]
fn draining_leaves_nothing_to_a_collection() {
    drains_beside_a_collection();
}

#[test]
fn shutdown_waits_for_who_is_inside() {
    waits_for_others(Fence::Light, 2);
}

#[test]
fn shutdown_waits_without_membarrier() {
    waits_for_others(Fence::Full, 2);
}

#[test]
fn retired_objects_outlive_who_sees_them() {
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
