//! The table of reservations: an address leads to its arena or to none, never to another arena or a
//! partly written one. After shutdown removed an entry, no thread reads it.

use loom::sync::Arc;
use loom::thread;
use tcuda_models::base::epoch::{Fence, Participant, Participants};
use tcuda_models::base::sync::{self, AtomicPtr, Bug, Ordering, UnsafeCell};
use tcuda_models::explore;
use tcuda_models::memory::arena::registry::Registry;
use tcuda_models::twin::fails;

const FIRST: u64 = 0x1000;
const SECOND: u64 = 0x8000;

/// An arena: the address of its slot.
struct Arena(UnsafeCell<u64>);

type Table = Registry<Arena, 2, 2>;

struct World {
    table: Table,
    arenas: [Arena; 2],
    participants: Participants,
    reader: Participant,
    owner: Participant,
    /// NULL without a runtime; calls check this before they look up an address.
    runtime: AtomicPtr<u32>,
}

// SAFETY: what the model checks.
unsafe impl Sync for World {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for World {}

fn some_runtime() -> *mut u32 {
    std::ptr::without_provenance_mut(8)
}

impl World {
    fn new() -> Arc<World> {
        let arenas = [Arena(UnsafeCell::new(0)), Arena(UnsafeCell::new(0))];
        let (participants, reader, owner) =
            (Participants::new(), Participant::new(), Participant::new());
        let runtime = AtomicPtr::new(std::ptr::null_mut());
        let table = Registry::new();
        let world = Arc::new(World { table, arenas, participants, reader, owner, runtime });
        world.participants.add(&world.reader, || Ok(())).unwrap();
        world.participants.add(&world.owner, || Ok(())).unwrap();
        world
    }

    /// Like growing: adds a reservation with slots of `slot` bytes, and an arena in the first slot.
    fn makes(&self, device: i32, base: u64, slot: u64) {
        self.table.add(device, base, 2 * slot, slot);
        let vacant = self.table.vacant(device, None).unwrap();
        assert_eq!((vacant.base, vacant.bytes), (base, slot));
        let arena = &self.arenas[device as usize];
        // SAFETY: not published yet.
        arena.0.with_mut(|address| unsafe { *address = base });
        self.table.publish(&vacant, (&raw const *arena).cast_mut());
    }

    /// Looks an address up that is 16 bytes into its slot.
    fn finds(&self, base: u64) -> bool {
        let Some((arena, offset)) = self.table.arena_of(base + 16) else { return false };
        assert_eq!(offset, 16);
        // SAFETY: it lives as long as the world; loom checks its cell.
        let arena = unsafe { &*arena };
        // SAFETY: published and not removed, which is what the model checks.
        assert_eq!(arena.0.with(|address| unsafe { *address }), base, "another arena");
        true
    }

    fn calls(&self, base: u64) {
        self.reader.enter(Fence::Light);
        if !self.runtime.load(Ordering::Acquire).is_null() {
            self.finds(base);
        }
        self.reader.leave();
    }
}

/// Two devices grow while a third thread looks up the addresses of both.
fn grows() {
    explore(3, 5, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let grower = thread::spawn(move || {
            other.makes(0, FIRST, 0x100);
            other.makes(1, SECOND, 0x400);
        });
        world.finds(SECOND);
        let device = world.table.device_of(FIRST);
        assert!(device.is_none_or(|device| device == 0));
        world.finds(FIRST);
        grower.join().unwrap();
        assert!(world.finds(FIRST) && world.finds(SECOND));
        assert!(world.table.is_full());
    });
}

/// A shutdown, and a new life in which the entry has another device and size.
fn ends_and_begins_anew() {
    explore(3, 5, || {
        let world = World::new();
        world.makes(0, FIRST, 0x100);
        world.runtime.store(some_runtime(), Ordering::Release);
        let other = Arc::clone(&world);
        let caller = thread::spawn(move || {
            other.calls(FIRST);
            other.calls(SECOND);
        });
        world.owner.enter(Fence::Light);
        world.runtime.swap(std::ptr::null_mut(), Ordering::AcqRel);
        sync::heavy_fence();
        sync::fence(Ordering::SeqCst);
        world.participants.wait_for_others(&world.owner);
        let mut gone = Vec::new();
        world.table.remove(0, |base, bytes| gone.push((base, bytes)));
        assert_eq!(gone, [(FIRST, 0x200)]);
        // SAFETY: no thread reads it any more, which is what the model checks.
        world.arenas[0].0.with_mut(|address| unsafe { *address = 0 });
        world.makes(1, SECOND, 0x400);
        world.runtime.store(some_runtime(), Ordering::Release);
        world.owner.leave();
        caller.join().unwrap();
        assert!(world.finds(SECOND) && !world.finds(FIRST));
    });
}

#[test]
fn an_address_leads_to_its_arena_or_to_none() {
    grows();
}

#[test]
fn what_shutdown_takes_off_is_not_looked_at() {
    ends_and_begins_anew();
}

const FOUND: &[&str] = &["Causality violation", "another arena", "index out of bounds"];

#[test]
fn publishing_without_release() {
    fails("publishing_without_release", Bug::NoRelease, FOUND, grows);
}

#[test]
fn looking_without_acquire() {
    fails("looking_without_acquire", Bug::NoAcquire, FOUND, grows);
}

#[test]
fn ending_without_a_fence() {
    fails("ending_without_a_fence", Bug::NoHeavyFence, FOUND, ends_and_begins_anew);
}
