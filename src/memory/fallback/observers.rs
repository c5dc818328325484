//! Out-of-memory observers: functions of the host that are called before an allocation fails. They
//! may free memory, and return whether they did. Others are called when an allocation is refused
//! without a call of the driver. They run on the thread whose allocation fails, with no lock held.
//! They cannot allocate, because there is no memory.

use crate::base::error::{Error, Result};
use crate::base::observers::Observers;
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

/// An allocation that the limit refused, without a call of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The device's ordinal.
    pub device: i32,
    /// The number of bytes that were refused.
    pub wanted: u64,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// The device's memory.
    pub total: u64,
}

/// An observer of shortages or rejections.
pub trait Observes<T>: Send + Sync {
    /// Frees memory if it can; true: the allocation should be tried again. What it returns for a
    /// rejection has no effect.
    fn freed_memory(&self, cause: &T) -> bool;
    /// Called once the observer is in the list; attaching can no longer fail.
    fn attached(&self);
}

type List<T> = Observers<Box<dyn Observes<T>>>;

static SHORTAGES: List<Shortage> = Observers::new();
static REJECTIONS: List<Rejection> = Observers::new();

/// Adds an observer of shortages under its number. On failure the observer is dropped and
/// `attached` was not called.
pub fn attach(number: u64, observer: Box<dyn Observes<Shortage>>) -> Result<()> {
    SHORTAGES.attach(number, observer, |observer| observer.attached())
}

/// The same for an observer of rejections.
pub fn attach_to_rejections(number: u64, observer: Box<dyn Observes<Rejection>>) -> Result<()> {
    REJECTIONS.attach(number, observer, |observer| observer.attached())
}

/// Removes an observer if it is in a list.
pub fn detach(number: u64) {
    SHORTAGES.detach(number);
    REJECTIONS.detach(number);
}

/// Removes all observers.
pub fn detach_all() {
    SHORTAGES.detach_all();
    REJECTIONS.detach_all();
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

/// Runs every observer of shortages, newest first; true: one of them freed memory. The caller holds
/// no lock.
pub(in crate::memory) fn run(shortage: impl FnOnce() -> Shortage) -> bool {
    run_all(&SHORTAGES, shortage)
}

/// Runs every observer of rejections, newest first. The caller holds no lock.
pub(in crate::memory) fn rejected(rejection: impl FnOnce() -> Rejection) {
    run_all(&REJECTIONS, rejection);
}

fn run_all<T>(list: &List<T>, cause: impl FnOnce() -> T) -> bool {
    let Some((mut number, mut observer)) = list.before(u64::MAX) else { return false };
    let cause = cause();
    let _observing = Observing::begin();
    let mut freed = false;
    loop {
        let waiting = waiting::in_host_function();
        freed |= observer.freed_memory(&cause);
        drop(waiting);
        let older = list.before(number);
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
