//! What threads carry, as `src/base/thread.rs` has it, but that loom's threads are no threads of the machine.

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

/// This thread's. A run of a model keeps what belongs to its threads until it is over.
fn presence() -> &'static Presence {
    let presence = PRESENCE.with(|presence| std::ptr::from_ref(presence));
    // SAFETY: thread-local, and used by its thread, or by others as long as it is a member.
    unsafe { &*presence }
}

/// A call: the thread is inside until it is dropped.
pub struct Inside(());

/// Adds this thread to the members; before its first call.
pub fn register() {
    MEMBERS.join(presence(), || Ok(())).unwrap();
}

/// Takes it off; the thread ends.
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

/// This thread, as a number.
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

/// A box for a value that will be retired.
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

/// As inside a callback of a call, whose own thread counts too.
pub fn collect_in_callback() {
    RETIRED.collect(&MEMBERS, None, usize::MAX, barrier);
}
