//! Out-of-memory observers: functions of the host that are called before an allocation fails. They
//! may free memory, and return whether they did. They run on the thread whose allocation fails,
//! with no lock held. They cannot allocate, because there is no memory.

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
    /// The number of bytes that the driver refused.
    pub wanted: u64,
    /// The most that the cache may hold: the limit, or else the device's memory.
    pub limit: u64,
    /// The driver's count of free bytes.
    pub free: u64,
}

/// An observer.
pub trait Observes: Send + Sync {
    /// Frees memory if it can; true: the allocation should be tried again.
    fn freed_memory(&self, shortage: &Shortage) -> bool;
    /// Called once the observer is in the list; attaching can no longer fail.
    fn attached(&self);
}

/// A sized wrapper, which `Shared` needs.
struct Observer(Box<dyn Observes>);

/// The observers with their numbers, oldest first.
struct List {
    observers: Vec<(u64, Shared<Observer>)>,
    last: u64,
}

static LIST: Mutex<List> = Mutex::new(Rank::LEAF, List { observers: Vec::new(), last: 0 });

/// A new number for an observer, greater than all earlier ones.
pub fn next_number() -> u64 {
    let mut list = LIST.lock();
    list.last += 1;
    list.last
}

/// Adds an observer under its number. On failure the observer is dropped and `attached` was not
/// called.
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

/// Removes an observer if it is in the list. It is dropped here, or on the last of the threads that
/// are running it.
pub fn detach(number: u64) {
    let mut list = LIST.lock();
    let found = list.observers.binary_search_by_key(&number, |(known, _)| *known);
    let observer = found.ok().map(|index| list.observers.remove(index).1);
    drop(list);
    drop(observer);
}

/// Removes all observers.
pub fn detach_all() {
    let observers = std::mem::take(&mut LIST.lock().observers);
    drop(observers);
}

/// This thread runs observers until this is dropped; it cannot allocate meanwhile.
struct Observing;

impl Observing {
    fn begin() -> Observing {
        thread::observe(true);
        flags::begin(Watcher::Observer);
        Observing
    }
}

impl Drop for Observing {
    fn drop(&mut self) {
        flags::end(Watcher::Observer);
        thread::observe(false);
    }
}

/// The newest observer with a number below this one.
fn before(number: u64) -> Option<(u64, Shared<Observer>)> {
    let list = LIST.lock();
    let index = list.observers.partition_point(|(known, _)| *known < number).checked_sub(1)?;
    list.observers.get(index).map(|(known, observer)| (*known, observer.share()))
}

/// Runs every observer, newest first; true: one of them freed memory. The caller holds no lock.
pub(in crate::memory) fn run(shortage: impl FnOnce() -> Shortage) -> bool {
    let Some((mut number, mut observer)) = before(u64::MAX) else { return false };
    let shortage = shortage();
    let _observing = Observing::begin();
    let mut freed = false;
    loop {
        let waiting = waiting::in_host_function();
        freed |= observer.0.freed_memory(&shortage);
        drop(waiting);
        let older = before(number);
        // An observer that was removed in the meantime is dropped here.
        drop(observer);
        match older {
            Some(older) => (number, observer) = older,
            None => return freed,
        }
    }
}

/// Fails if this thread runs an observer, which must not allocate.
pub(in crate::memory) fn check() -> Result<()> {
    if thread::is_observing() {
        return Err(Error::InvalidState(
            "an out-of-memory observer may free memory, but not allocate any: return 1, and the \
             allocation that failed is tried again",
        ));
    }
    Ok(())
}
