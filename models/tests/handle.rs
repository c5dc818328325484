//! Tables of handles while they grow: two new handles differ, and a handle finds its own fully
//! written object. The object lives until all calls that could see it have returned.

use loom::sync::Arc;
use tcuda_models::base::sync::{AtomicUsize, Bug, Ordering, UnsafeCell};
use tcuda_models::base::thread;
use tcuda_models::explore;
use tcuda_models::ffi::boundary::Call;
use tcuda_models::ffi::handle::Table;
use tcuda_models::twin::fails;

/// An object with its name, which is cleared at its end.
struct Object(UnsafeCell<u32>);

// SAFETY: what the model checks.
unsafe impl Sync for Object {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Object {}

impl Object {
    fn new(name: u32) -> Object {
        Object(UnsafeCell::new(name))
    }

    fn name(&self) -> u32 {
        // SAFETY: it is not ended before this call is over, which is what the model checks.
        self.0.with(|name| unsafe { *name })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: no thread uses it any more, which is what the model checks.
        self.0.with_mut(|name| unsafe { *name = 0 });
    }
}

struct World {
    table: Table<Object>,
    /// A handle that one thread passes to another; 0: none yet.
    passed: AtomicUsize,
}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World { table: Table::new(1, "object"), passed: AtomicUsize::new(0) })
    }
}

/// Runs a body as a thread that calls the library.
fn spawn(
    world: &Arc<World>,
    body: impl FnOnce(&World) + Send + 'static,
) -> loom::thread::JoinHandle<()> {
    let world = Arc::clone(world);
    loom::thread::spawn(move || {
        thread::register();
        body(&world);
        thread::leave();
    })
}

/// Drops the remaining objects before the run ends.
fn finish(world: &World) {
    {
        let _call = Call::begin();
        world.table.remove_all(|_| true);
    }
    thread::collect();
    thread::leave();
}

fn inserts(world: &World, name: u32) -> usize {
    let call = Call::begin();
    let handle = world.table.insert(Object::new(name)).unwrap();
    assert_eq!(world.table.get(handle, "object", &call).unwrap().name(), name);
    handle
}

/// Two threads insert: one gets the first slot, the other a slot in a new chunk.
fn two_insert() {
    explore(3, 4, || {
        thread::register();
        let world = World::new();
        let other = spawn(&world, |world| {
            inserts(world, 1);
        });
        let own = inserts(&world, 2);
        other.join().unwrap();
        {
            let call = Call::begin();
            assert_eq!(world.table.get(own, "object", &call).unwrap().name(), 2);
            assert_eq!(world.table.remove_all(|_| true), 2, "two handles are one");
        }
        finish(&world);
    });
}

/// One thread passes a handle to another with `ordering`; the handle leads to its object in a new
/// chunk.
fn passes_a_handle(ordering: Ordering) {
    explore(3, 4, move || {
        thread::register();
        let world = World::new();
        let other = spawn(&world, move |world| {
            inserts(world, 1);
            world.passed.store(inserts(world, 2), ordering);
        });
        let passed = world.passed.load(Ordering::Relaxed);
        if passed != 0 {
            let call = Call::begin();
            // With a relaxed hand-over the object may not be visible yet; if it is, it is fully
            // written.
            if let Ok(object) = world.table.get(passed, "object", &call) {
                assert_eq!(object.name(), 2);
            }
        }
        other.join().unwrap();
        finish(&world);
    });
}

/// One thread destroys a handle while another uses it and inserts again, perhaps into the same
/// slot.
fn destroys_beside_a_call() {
    explore(3, 4, || {
        thread::register();
        let world = World::new();
        let handle = inserts(&world, 1);
        let other = spawn(&world, move |world| {
            {
                let call = Call::begin();
                if let Ok(object) = world.table.get(handle, "object", &call) {
                    assert_eq!(object.name(), 1, "another one's object");
                }
            }
            inserts(world, 2);
        });
        {
            let _call = Call::begin();
            world.table.remove(handle, "object").unwrap();
            thread::collect();
        }
        other.join().unwrap();
        let call = Call::begin();
        assert!(world.table.get(handle, "object", &call).is_err());
        drop(call);
        finish(&world);
    });
}

#[test]
fn two_new_handles_are_never_one() {
    two_insert();
}

#[test]
fn a_handle_that_was_passed_finds_a_whole_object() {
    passes_a_handle(Ordering::Relaxed);
}

#[test]
fn a_call_keeps_what_it_found() {
    destroys_beside_a_call();
}

const FOUND: &[&str] = &["Causality violation", "another one's object"];

#[test]
fn growing_without_release() {
    fails("growing_without_release", Bug::NoRelease, FOUND, || passes_a_handle(Ordering::Relaxed));
}

#[test]
fn looking_into_a_chunk_without_acquire() {
    fails("looking_into_a_chunk_without_acquire", Bug::NoAcquire, FOUND, || {
        passes_a_handle(Ordering::Relaxed);
    });
}

#[test]
fn calling_without_a_fence() {
    fails("calling_without_a_fence", Bug::NoLightFence, FOUND, destroys_beside_a_call);
}

#[test]
fn destroying_without_a_fence() {
    fails("destroying_without_a_fence", Bug::NoHeavyFence, FOUND, destroys_beside_a_call);
}
