//! The stacks of the record. A stack is stored while an event, a block or a call references it.
//!
//! Events and blocks refer to a stack by its id, without a reference count. Thus a block that is
//! freed while recording is off need not release its stack. From time to time a search
//! (`history.rs`) marks the referenced ids, and the other stacks are removed. The search visits
//! blocks, then events, because an id moves from a block to an event and never back. An id that is
//! in neither has a [`Pin`]: it belongs to a call that has not stored it yet, or to a block in the
//! table of `uncached.rs`. A stack stays if it was pinned when the search began, is pinned when the
//! search ends, or was stored in between.

use crate::base::error::Result;
use crate::base::frames::{Context, Ids, Named, Stacks};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::stack_table::StackTable;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

/// The stacks of the allocators.
struct Recorded {
    table: StackTable,
    /// Incremented when all stacks are dropped; pins of an earlier generation have no effect.
    generation: u32,
}

static RECORDED: Mutex<Recorded> =
    Mutex::new(Rank::LEAF, Recorded { table: StackTable::new(), generation: 0 });

/// Is a search for unreferenced stacks worthwhile?
static ARE_MANY: AtomicBool = AtomicBool::new(false);

/// Keeps a stack stored until this is dropped.
#[derive(Debug)]
pub struct Pin {
    id: u32,
    generation: u32,
}

impl Pin {
    /// A pin of no stack.
    pub const NONE: Pin = Pin { id: 0, generation: 0 };
    /// The same, for a thread-local that is not dropped at the thread's end.
    pub const UNDROPPED: ManuallyDrop<Pin> = ManuallyDrop::new(Pin::NONE);

    /// The id of the stack; 0: none.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.id == 0 {
            return;
        }
        let mut recorded = RECORDED.lock();
        if recorded.generation == self.generation {
            recorded.table.unpin(self.id);
        }
    }
}

/// Stores a stack, innermost frame first.
pub fn keep(
    context: Option<Context>,
    named: &mut dyn Iterator<Item = Named<'_>>,
    native: &[usize],
) -> Pin {
    let mut recorded = RECORDED.lock();
    let id = recorded.table.keep(context, named, native);
    ARE_MANY.store(recorded.table.are_many(), Ordering::Relaxed);
    Pin { id, generation: recorded.generation }
}

/// Adds a pin to a stack that this thread has pinned; 0: no stack.
pub fn pin(id: u32) -> Pin {
    if id == 0 {
        return Pin::NONE;
    }
    let mut recorded = RECORDED.lock();
    Pin { id: recorded.table.pin(id), generation: recorded.generation }
}

/// Does a pin refer to the present table, or was that dropped since?
pub fn has(pin: &Pin) -> bool {
    RECORDED.lock().generation == pin.generation
}

/// Do the stacks take so much memory that the unreferenced ones should be removed?
pub fn are_many() -> bool {
    ARE_MANY.load(Ordering::Relaxed)
}

/// Begins a search; the caller adds the ids that blocks and events reference.
pub fn begin() -> Option<Ids> {
    RECORDED.lock().table.begin()
}

/// Ends a search that visited `walked` blocks and events.
pub fn finish(ids: &Ids, walked: usize) {
    let mut recorded = RECORDED.lock();
    let old = recorded.table.finish(ids, walked);
    ARE_MANY.store(false, Ordering::Relaxed);
    drop(recorded);
    drop(old);
}

/// The context of a stored stack.
pub fn context(id: u32) -> Option<Context> {
    RECORDED.lock().table.stacks().context(id).map(Context::share)
}

/// Passes all stacks to a function, which must not use this table.
pub fn read<R>(body: impl FnOnce(&Stacks) -> R) -> R {
    body(RECORDED.lock().table.stacks())
}

/// A copy of all stacks, for reading.
pub fn copy() -> Result<Stacks> {
    let mut copy = RECORDED.lock().table.stacks().copy_for_reading()?;
    copy.resolve()?;
    Ok(copy)
}

/// The largest id.
#[cfg(test)]
pub fn count() -> usize {
    RECORDED.lock().table.stacks().count()
}

/// The number of stored stacks.
#[cfg(test)]
pub fn named() -> usize {
    let recorded = RECORDED.lock();
    let stacks = recorded.table.stacks();
    (1..=stacks.count() as u32).filter(|id| stacks.stack(*id).count() > 0).count()
}

/// Drops all stacks; there are no blocks.
pub fn forget() {
    let mut recorded = RECORDED.lock();
    let generation = recorded.generation.wrapping_add(1);
    let new = Recorded { table: StackTable::new(), generation };
    let old = std::mem::replace(&mut *recorded, new);
    ARE_MANY.store(false, Ordering::Relaxed);
    drop(recorded);
    drop(old);
}
