//! Who is asked before an allocation fails: observers may free memory, and say so. They run on the
//! thread that fails, without a lock, and allocate nothing meanwhile: there is no memory.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::thread;
use crate::base::waiting;
use crate::observe::flags::{self, Watcher};

/// An allocation that is about to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The device's ordinal.
    pub device: i32,
    /// Bytes that were asked of the driver.
    pub wanted: u64,
    /// The most that the cache may have: the limit, else the device's memory.
    pub limit: u64,
    /// What the driver says is free.
    pub free: u64,
}

/// Who is asked.
pub trait Observes: Send + Sync {
    /// Was memory freed, so that the allocation should be tried again?
    fn freed_memory(&self, shortage: &Shortage) -> bool;
    /// It is in the list: nothing can fail any more.
    fn attached(&self);
}

/// A box of it: what has several owners has a size.
struct Observer(Box<dyn Observes>);

/// The observers, oldest first, with their numbers.
struct List {
    observers: Vec<(u64, Shared<Observer>)>,
    last: u64,
}

static LIST: Mutex<List> = Mutex::new(Rank::LEAF, List { observers: Vec::new(), last: 0 });

/// A number for an observer, newer than all before.
pub fn next_number() -> u64 {
    let mut list = LIST.lock();
    list.last += 1;
    list.last
}

/// Adds an observer under its number. On failure it is dropped without having been attached.
pub fn attach(number: u64, observer: Box<dyn Observes>) -> Result<()> {
    let observer = Shared::new(Observer(observer), "an observer")?;
    let mut list = LIST.lock();
    if list.observers.try_reserve(1).is_err() {
        drop(list);
        return Err(Error::OutOfHostMemory("the list of observers"));
    }
    observer.0.attached();
    let index = list.observers.partition_point(|(known, _)| *known < number);
    list.observers.insert(index, (number, observer));
    Ok(())
}

/// Takes an observer out, if it is still there. It ends here, or on the last of the threads that are in it.
pub fn detach(number: u64) {
    let mut list = LIST.lock();
    let found = list.observers.binary_search_by_key(&number, |(known, _)| *known);
    let observer = found.ok().map(|index| list.observers.remove(index).1);
    drop(list);
    drop(observer);
}

/// Takes all observers out.
pub fn detach_all() {
    let observers = std::mem::take(&mut LIST.lock().observers);
    drop(observers);
}

/// Says that this thread is in observers, until it is dropped: it may not allocate meanwhile.
struct Asking;

impl Asking {
    fn begin() -> Asking {
        thread::observe(true);
        flags::begin(Watcher::Observer);
        Asking
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        flags::end(Watcher::Observer);
        thread::observe(false);
    }
}

/// The observer that comes before one with this number: the next older.
fn before(number: u64) -> Option<(u64, Shared<Observer>)> {
    let list = LIST.lock();
    let index = list.observers.partition_point(|(known, _)| *known < number).checked_sub(1)?;
    list.observers.get(index).map(|(known, observer)| (*known, observer.share()))
}

/// Asks every observer, newest first: did any free memory? The caller holds no lock.
pub(in crate::memory) fn ask(shortage: impl FnOnce() -> Shortage) -> bool {
    let Some((mut number, mut observer)) = before(u64::MAX) else { return false };
    let shortage = shortage();
    let _asking = Asking::begin();
    let mut freed = false;
    loop {
        let waiting = waiting::in_host_function();
        freed |= observer.0.freed_memory(&shortage);
        drop(waiting);
        let older = before(number);
        // One that was taken out meanwhile ends here.
        drop(observer);
        match older {
            Some(older) => (number, observer) = older,
            None => return freed,
        }
    }
}

/// The error of an allocation by an observer.
pub(in crate::memory) fn check() -> Result<()> {
    if thread::is_observing() {
        return Err(Error::InvalidState(
            "an out-of-memory observer may free memory, but not allocate any: return 1, and the \
             allocation that failed is tried again",
        ));
    }
    Ok(())
}
