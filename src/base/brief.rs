//! Visits of one call: what nearly every call is, and cheaper than `thread::enter`, which also knows of calls
//! inside calls.

use crate::base::thread::{self, Inside};
use crate::observe::flags;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::Ordering;

/// Says that this thread is inside the library by its outermost call, until it is dropped.
pub struct Brief(ManuallyDrop<Inside>);

impl Deref for Brief {
    type Target = Inside;

    #[inline(always)]
    fn deref(&self) -> &Inside {
        &self.0
    }
}

impl Drop for Brief {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.block.presence.leave_last();
    }
}

/// Enters the library if this thread was inside before, is not now, and none of `watchers` looks, among whom
/// are those of entries.
#[inline(always)]
pub fn enter(watchers: u64) -> Option<Brief> {
    let block = thread::block();
    if block.registered.load(Ordering::Relaxed) == 0 || !block.presence.enter_first() {
        return None;
    }
    let brief = Brief(ManuallyDrop::new(Inside { block }));
    // Asked inside, so that who looks in the next life of the library is not missed. Where light fences do
    // not work this was no visit, and touched nothing.
    (!flags::is_watched_by(watchers)).then_some(brief)
}
