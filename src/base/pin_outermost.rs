//! Entering the library for an outermost call: the usual case. It is cheaper than `thread::enter`,
//! which also handles nested calls.

use crate::base::thread::{self, Inside};
use crate::observe::flags;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::Ordering;

/// Marks that this thread is inside the library by its outermost call, until it is dropped.
pub struct OutermostPin(ManuallyDrop<Inside>);

impl Deref for OutermostPin {
    type Target = Inside;

    #[inline(always)]
    fn deref(&self) -> &Inside {
        &self.0
    }
}

impl Drop for OutermostPin {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.block.participant.leave_outermost();
    }
}

/// Enters the library, if this thread is registered, is outside, and no flag of `watchers` is set.
/// `watchers` includes the flags of entries.
#[inline(always)]
pub fn enter(watchers: u64) -> Option<OutermostPin> {
    let block = thread::block();
    if block.registered.load(Ordering::Relaxed) == 0 || !block.participant.enter_outermost() {
        return None;
    }
    let pin = OutermostPin(ManuallyDrop::new(Inside { block }));
    // Read inside, so that a watcher of the next generation of the library is not missed. If light
    // fences are not enough, the flag is set; then this entry was none, and has touched nothing.
    (!flags::is_watched_by(watchers)).then_some(pin)
}
