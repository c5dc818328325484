//! The data of threads, like `src/base/thread.rs`, but for loom's threads, which share one thread
//! of the system.

use crate::base::epoch::{Fence, Participant, Participants, Visit};
use crate::base::error::Result;
use crate::base::retired::{Reclaimable, Retired};
use crate::base::sync::{self, Bug};

sync::state! {
    static PARTICIPANTS: Participants = Participants::new();
    static RETIRED: Retired = Retired::new();
}

loom::thread_local! {
    static PARTICIPANT: Participant = Participant::new();
}

/// The calling thread's participant. A run of a model keeps the data of its threads until its end.
fn participant() -> &'static Participant {
    let participant = PARTICIPANT.with(|participant| std::ptr::from_ref(participant));
    // SAFETY: thread-local, and used by its thread, or by others while it is registered.
    unsafe { &*participant }
}

/// A call: the thread is inside until it is dropped.
pub struct Inside(());

/// Registers this thread, before its first call.
pub fn register() {
    PARTICIPANTS.add(participant(), || Ok(())).unwrap();
}

/// Unregisters this thread, which is ending.
pub fn leave() {
    PARTICIPANTS.remove(participant());
}

/// Enters the library.
pub fn enter() -> Inside {
    participant().enter(Fence::Light);
    Inside(())
}

impl Drop for Inside {
    fn drop(&mut self) {
        participant().leave();
    }
}

fn barrier() {
    sync::heavy_fence();
    sync::fence(sync::Ordering::SeqCst);
}

/// A number that identifies this thread.
pub fn address() -> usize {
    std::ptr::from_ref(participant()) as usize
}

pub fn has_heavy_fences() -> bool {
    true
}

pub fn is_inside() -> bool {
    participant().depth() > 0
}

pub fn is_in_callback() -> bool {
    false
}

pub fn can_be_biased() -> bool {
    is_inside()
}

pub fn fence_all_threads() {
    barrier();
}

pub fn visit_of(thread: usize) -> Option<Visit> {
    PARTICIPANTS.visit_of(thread)
}

pub fn is_over(visit: &Visit) -> bool {
    sync::planted(Bug::NoVisit) || !PARTICIPANTS.is_on(visit)
}

pub fn wait_for_others() {
    barrier();
    PARTICIPANTS.wait_for_others(participant());
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
        RETIRED.collect(&Participants::new(), None, usize::MAX, barrier);
    } else {
        RETIRED.collect(&PARTICIPANTS, Some(participant()), usize::MAX, barrier);
    }
}

/// Collects as inside a callback of a call, where the calling thread counts as inside.
pub fn collect_in_callback() {
    RETIRED.collect(&PARTICIPANTS, None, usize::MAX, barrier);
}
