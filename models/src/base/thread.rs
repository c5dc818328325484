//! The data of threads, like `src/base/thread.rs`, but for loom's threads, which share one thread
//! of the system.

use crate::base::epoch::{Fence, Members, Presence, Visit};
use crate::base::error::Result;
use crate::base::retired::{Reclaimable, Retired};
use crate::base::sync::{self, Bug};

sync::state! {
    static MEMBERS: Members = Members::new();
    static RETIRED: Retired = Retired::new();
}

loom::thread_local! {
    static PRESENCE: Presence = Presence::new();
}

/// The calling thread's participant. A run of a model keeps the data of its threads until its end.
fn presence() -> &'static Presence {
    let presence = PRESENCE.with(|presence| std::ptr::from_ref(presence));
    // SAFETY: thread-local, and used by its thread, or by others while it is registered.
    unsafe { &*presence }
}

/// A call: the thread is inside until it is dropped.
pub struct Inside(());

/// Registers this thread, before its first call.
pub fn register() {
    MEMBERS.join(presence(), || Ok(())).unwrap();
}

/// Unregisters this thread, which is ending.
pub fn leave() {
    MEMBERS.part(presence());
}

/// Enters the library.
pub fn enter() -> Inside {
    presence().enter(Fence::Light);
    Inside(())
}

impl Drop for Inside {
    fn drop(&mut self) {
        presence().leave();
    }
}

fn barrier() {
    sync::heavy_fence();
    sync::fence(sync::Ordering::SeqCst);
}

/// A number that identifies this thread.
pub fn address() -> usize {
    std::ptr::from_ref(presence()) as usize
}

pub fn has_heavy_fences() -> bool {
    true
}

pub fn is_inside() -> bool {
    presence().depth() > 0
}

pub fn is_in_callback() -> bool {
    false
}

pub fn may_own() -> bool {
    is_inside()
}

pub fn reach_all() {
    barrier();
}

pub fn visit_of(thread: usize) -> Option<Visit> {
    MEMBERS.visit_of(thread)
}

pub fn is_over(visit: &Visit) -> bool {
    sync::planted(Bug::NoVisit) || !MEMBERS.is_on(visit)
}

pub fn wait_for_others() {
    barrier();
    MEMBERS.wait_for_others(presence());
}

/// A box.
pub fn try_box<T>(value: T, _what: &'static str) -> Result<Box<T>> {
    Ok(Box::new(value))
}

/// Boxes a value that will be retired.
pub fn reclaimable<T>(value: T, _what: &'static str) -> Result<Box<Reclaimable<T>>> {
    Ok(Box::new(Reclaimable::new(value, RETIRED.era())))
}

/// Drops an object once no thread that is inside now can still see it.
pub fn retire<T: Send + 'static>(object: Box<Reclaimable<T>>) {
    RETIRED.add(object);
}

pub fn collect() {
    if sync::planted(Bug::NoSight) {
        RETIRED.collect(&Members::new(), None, usize::MAX, barrier);
    } else {
        RETIRED.collect(&MEMBERS, Some(presence()), usize::MAX, barrier);
    }
}

/// Collects as inside a callback of a call, where the calling thread counts as inside.
pub fn collect_in_callback() {
    RETIRED.collect(&MEMBERS, None, usize::MAX, barrier);
}
