//! Whose turn it is. The system decides which thread runs next, unless a backend keeps turns, so that
//! a run can be repeated: then threads meet it at each call, and where one waits for another.

use crate::observe::flags::{self, Watcher};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Who keeps turns.
pub struct Keeper {
    /// A call begins; comes back when it is this thread's turn.
    pub call: fn(),
    /// This thread cannot go on before another has done something; comes back when that may be so.
    /// `false`: it is not one of those whose turns are kept, and has to wait by itself.
    pub give_way: fn() -> bool,
}

static KEEPER: AtomicPtr<Keeper> = AtomicPtr::new(std::ptr::null_mut());

/// From now on somebody else decides, or (`None`) the system again.
pub fn keep(keeper: Option<&'static Keeper>) {
    let is_kept = keeper.is_some();
    let keeper = keeper.map_or(std::ptr::null(), std::ptr::from_ref);
    let before = KEEPER.swap(keeper.cast_mut(), Ordering::Release);
    flags::change(Watcher::Turns, !before.is_null(), is_kept);
}

#[inline]
fn keeper() -> Option<&'static Keeper> {
    // Relaxed would do for what is constant, and costs the same here.
    let keeper = KEEPER.load(Ordering::Acquire);
    // SAFETY: NULL, or from a reference that lives for ever.
    unsafe { keeper.as_ref() }
}

/// Does somebody keep turns?
#[inline]
pub fn are_kept() -> bool {
    keeper().is_some()
}

/// Before a thread enters the library.
#[inline]
pub fn call() {
    if let Some(keeper) = keeper() {
        (keeper.call)();
    }
}

/// Lets others go on; `false`: nobody keeps turns for this thread.
#[inline]
pub fn give_way() -> bool {
    keeper().is_some_and(|keeper| (keeper.give_way)())
}
