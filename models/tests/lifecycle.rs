//! The life of the library: threads that were inside can use runtime and driver until these end. No
//! thread waits forever when calls, initialisations, shutdowns and destructions are concurrent.

use loom::sync::Arc;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use tcuda_models::base::lifecycle::Lifecycle;
use tcuda_models::base::sync::{self, Bug, UnsafeCell};
use tcuda_models::base::thread;
use tcuda_models::explore;
use tcuda_models::ffi::boundary::Call;
use tcuda_models::ffi::handle::Table;
use tcuda_models::twin::fails;

/// A driver or a runtime: calls read it, and shutdown ends it.
struct Thing(UnsafeCell<bool>);

// SAFETY: what the model checks.
unsafe impl Sync for Thing {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Thing {}

impl Thing {
    fn new() -> Box<Thing> {
        Box::new(Thing(UnsafeCell::new(true)))
    }

    fn look(&self) {
        // SAFETY: it exists while a thread that saw it is inside, which is what the model checks.
        assert!(self.0.with(|alive| unsafe { *alive }), "something that has ended");
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        // SAFETY: no thread reads it any more, which is what the model checks.
        self.0.with_mut(|alive| unsafe { *alive = false });
    }
}

/// An object with a handle, which uses its runtime when it is dropped, like an event.
struct Object(*const Thing);

// SAFETY: what the model checks.
unsafe impl Sync for Object {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Object {}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: objects are dropped before their runtime, which is what the model checks.
        unsafe { &*self.0 }.look();
    }
}

struct World {
    life: Lifecycle<Thing, Thing>,
    table: Table<Object>,
    /// Objects that need no runtime: they are created and destroyed during a shutdown.
    free: Table<Box<Thing>>,
    /// The handle of one of them; 0: none yet.
    shown: sync::AtomicUsize,
    /// The wait that shutdown leaves out: 1 to 3, or 4 for the driver's end; 0: none.
    missing: usize,
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl World {
    /// Like `runtime::get`; `None`: refused.
    fn get(&self) -> Option<&Thing> {
        // SAFETY: the caller stays inside while it uses the reference.
        if let Some(runtime) = unsafe { self.life.runtime() } {
            return Some(runtime);
        }
        let held = self.life.hold().ok()?;
        // SAFETY: as above.
        if let Some(runtime) = unsafe { self.life.runtime() } {
            return Some(runtime);
        }
        if !self.life.has_driver() {
            self.life.begin_driver(&held, Thing::new());
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.life.begin(&held, Thing::new());
        // SAFETY: as above.
        unsafe { self.life.runtime() }
    }

    /// A call that needs the runtime and its driver.
    fn calls(&self) {
        let _call = Call::begin();
        if let Some(runtime) = self.get() {
            runtime.look();
            // SAFETY: inside.
            unsafe { self.life.driver() }.expect("a runtime without a driver").look();
        }
    }

    /// A call that creates an object.
    fn makes(&self) -> usize {
        let _call = Call::begin();
        let runtime = self.get().map(std::ptr::from_ref);
        runtime.map_or(0, |runtime| self.table.insert(Object(runtime)).unwrap())
    }

    /// A call that destroys an object.
    fn destroys(&self, handle: usize) {
        let _call = Call::begin();
        if self.table.remove(handle, "object").is_ok() {
            thread::collect();
        }
    }

    /// Retires an object that only this call keeps: the next collection drops it.
    fn leaves_one_to_drop(&self) {
        let _call = Call::begin();
        if let Some(runtime) = self.get() {
            thread::retire(thread::reclaimable(Object(runtime), "an object").unwrap());
            thread::collect_in_callback();
        }
    }

    /// As `runtime::shutdown` does.
    fn ends(&self) -> bool {
        let _call = Call::begin();
        let Ok(held) = self.life.hold() else { return false };
        let waits = Cell::new(0);
        let others = || {
            waits.set(waits.get() + 1);
            if waits.get() != self.missing {
                thread::wait_for_others();
            }
        };
        let destroy = || self.table.remove_all(|_| true) + self.free.remove_all(|_| true);
        let close = |runtime: &Thing| {
            runtime.look();
            self.ended.fetch_add(1, Ordering::Relaxed);
        };
        let stop = |driver: Box<Thing>| driver.look();
        self.life.end(&held, others, destroy, thread::collect, close, stop);
        true
    }
}

type Body = fn(&World, usize);

/// Runs some bodies concurrently with a shutdown; each gets the handle of an object.
fn beside_a_shutdown(missing: usize, bodies: &'static [Body]) {
    let (few, many) = if bodies.len() > 1 { (1, 2) } else { (2, 3) };
    explore(few, many, move || {
        thread::register();
        let world = Arc::new(World {
            life: Lifecycle::new(),
            table: Table::new(1, "object"),
            free: Table::new(2, "free object"),
            shown: sync::AtomicUsize::new(0),
            missing,
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        });
        let handle = world.makes();
        world.leaves_one_to_drop();
        let others: Vec<_> = bodies
            .iter()
            .map(|body| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || {
                    thread::register();
                    body(&world, handle);
                    thread::leave();
                })
            })
            .collect();
        world.ends();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(world.ends(), "no other thread holds the lock");
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        assert_eq!(count(&world.begun), count(&world.ended), "every runtime that begins ends");
        thread::leave();
    });
}

fn calls(world: &World, _handle: usize) {
    world.calls();
}

fn calls_twice(world: &World, _handle: usize) {
    world.calls();
    world.calls();
}

/// Reads only the driver, like counting its calls.
fn asks(world: &World, _handle: usize) {
    let _call = Call::begin();
    // SAFETY: inside.
    if let Some(driver) = unsafe { world.life.driver() } {
        driver.look();
    }
}

fn destroys(world: &World, handle: usize) {
    world.destroys(handle);
}

fn ends(world: &World, _handle: usize) {
    world.ends();
}

/// Another thread's call drops an object that a third thread retired.
fn collects(_world: &World, _handle: usize) {
    let _call = Call::begin();
    thread::collect();
}

fn makes(world: &World, _handle: usize) {
    world.makes();
}

/// Creates an object that needs no runtime, publishes it, and destroys it.
fn makes_and_destroys_free(world: &World, _handle: usize) {
    let made = {
        let _call = Call::begin();
        world.free.insert(Thing::new()).unwrap()
    };
    world.shown.store(made, sync::Ordering::Release);
    let _call = Call::begin();
    let _ = world.free.remove(made, "free object");
}

/// Reads that object.
fn looks_at_free(world: &World, _handle: usize) {
    let call = Call::begin();
    let handle = world.shown.load(sync::Ordering::Acquire);
    if let Ok(thing) = world.free.get(handle, "free object", &call) {
        thing.look();
    }
}

#[test]
fn objects_without_a_runtime_beside_a_shutdown() {
    beside_a_shutdown(0, &[makes_and_destroys_free, looks_at_free]);
}

#[test]
fn a_shutdown_that_thinks_itself_alone() {
    fails("a_shutdown_that_thinks_itself_alone", Bug::NoSight, FOUND, || {
        beside_a_shutdown(0, &[makes_and_destroys_free, looks_at_free]);
    });
}

#[test]
fn a_call_beside_a_shutdown() {
    beside_a_shutdown(0, &[calls_twice]);
}

#[test]
fn two_calls_begin_one_runtime() {
    beside_a_shutdown(0, &[calls, calls]);
}

#[test]
fn a_destruction_beside_a_shutdown() {
    beside_a_shutdown(0, &[destroys]);
}

#[test]
fn a_collection_beside_a_shutdown() {
    beside_a_shutdown(0, &[collects]);
}

#[test]
fn a_destruction_and_a_collection_beside_a_shutdown() {
    beside_a_shutdown(0, &[destroys, collects]);
}

#[test]
fn asking_for_the_driver_beside_a_shutdown() {
    beside_a_shutdown(0, &[asks]);
}

#[test]
fn an_insertion_beside_a_shutdown() {
    beside_a_shutdown(0, &[makes]);
}

#[test]
fn two_shutdowns_and_a_call() {
    beside_a_shutdown(0, &[ends, calls]);
}

const FOUND: &[&str] = &["Causality violation", "something that has ended"];

#[test]
fn not_waiting_for_calls_that_saw_the_runtime() {
    fails("not_waiting_for_calls_that_saw_the_runtime", Bug::None, FOUND, || {
        beside_a_shutdown(1, &[makes]);
    });
}

#[test]
fn not_waiting_for_calls_that_may_see_an_object() {
    fails("not_waiting_for_calls_that_may_see_an_object", Bug::None, FOUND, || {
        beside_a_shutdown(3, &[calls_twice]);
    });
}

#[test]
fn not_waiting_for_calls_that_saw_the_driver() {
    fails("not_waiting_for_calls_that_saw_the_driver", Bug::None, FOUND, || {
        beside_a_shutdown(4, &[asks]);
    });
}

#[test]
fn showing_a_runtime_without_release() {
    fails("showing_a_runtime_without_release", Bug::NoRelease, FOUND, || {
        beside_a_shutdown(0, &[calls_twice]);
    });
}

#[test]
fn entering_a_life_without_a_fence() {
    fails("entering_a_life_without_a_fence", Bug::NoLightFence, FOUND, || {
        beside_a_shutdown(0, &[calls_twice]);
    });
}

/// Waits for the lock although its holder waits for this thread.
fn insists(world: &World, _handle: usize) {
    let _call = Call::begin();
    while world.life.hold().is_err() {
        loom::thread::yield_now();
    }
}

#[test]
fn insisting_on_the_lock() {
    let expected = &["Model exceeded maximum number of branches", "deadlock"];
    fails("insisting_on_the_lock", Bug::None, expected, || beside_a_shutdown(0, &[insists]));
}
