//! Who is asked before an allocation fails: observers may free memory, and say so. They run on the
//! thread that fails, without a lock, and allocate nothing meanwhile: there is no memory.

use crate::error::{Error, Result};
use crate::lock::Mutex;
use crate::rank::{Rank, before_host_function};
use crate::thread::{self, try_box};
use crate::watch::{self, Watcher};

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
}

/// A box of it: what is retired must have a size.
struct Observer(Box<dyn Observes>);

/// The observers, oldest first, with their numbers.
struct List {
    observers: Vec<(u64, Box<Observer>)>,
    last: u64,
}

static LIST: Mutex<List> = Mutex::new(Rank::LEAF, List { observers: Vec::new(), last: 0 });

/// Adds an observer and gives its number.
pub fn attach(observer: Box<dyn Observes>) -> Result<u64> {
    let observer = try_box(Observer(observer), "an observer")?;
    let mut list = LIST.lock();
    list.observers.try_reserve(1).map_err(|_| Error::OutOfHostMemory("the list of observers"))?;
    list.last += 1;
    let number = list.last;
    list.observers.push((number, observer));
    Ok(number)
}

/// Takes an observer out, if it is still there; it goes once no thread can be in it.
pub fn detach(number: u64) {
    let mut list = LIST.lock();
    let found = list.observers.iter().position(|(known, _)| *known == number);
    let observer = found.map(|index| list.observers.remove(index).1);
    drop(list);
    if let Some(observer) = observer {
        thread::retire(observer);
    }
}

/// Takes all observers out.
pub fn detach_all() {
    let observers = std::mem::take(&mut LIST.lock().observers);
    for (_, observer) in observers {
        thread::retire(observer);
    }
}

/// Says that this thread is in observers, until it is dropped: it may not allocate meanwhile.
struct Asking;

impl Asking {
    fn begin() -> Asking {
        thread::observe(true);
        watch::begin(Watcher::Observer);
        Asking
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        watch::end(Watcher::Observer);
        thread::observe(false);
    }
}

/// The observer that comes before one with this number: the next older.
fn before(number: u64) -> Option<(u64, *const Observer)> {
    let list = LIST.lock();
    let found = list.observers.iter().rev().find(|(known, _)| *known < number);
    found.map(|(known, observer)| (*known, std::ptr::from_ref::<Observer>(observer)))
}

/// Asks every observer, newest first: did any free memory? The caller holds no lock.
pub(super) fn ask(shortage: impl FnOnce() -> Shortage) -> bool {
    let Some(mut next) = before(u64::MAX) else { return false };
    let shortage = shortage();
    let _asking = Asking::begin();
    let mut freed = false;
    loop {
        before_host_function();
        // SAFETY: one that is taken out lives until the threads that are inside have left; this is one.
        let observer = unsafe { &*next.1 };
        freed |= observer.0.freed_memory(&shortage);
        match before(next.0) {
            Some(older) => next = older,
            None => return freed,
        }
    }
}

/// The error of an allocation by an observer.
pub(super) fn check() -> Result<()> {
    if thread::is_observing() {
        return Err(Error::InvalidState(
            "an out-of-memory observer may free memory, but not allocate any: return 1, and the \
             allocation that failed is tried again",
        ));
    }
    Ok(())
}
