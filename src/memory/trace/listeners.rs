//! Functions of the host that are called for each event, on the thread and at the moment of the
//! event: with the lock of the memory that changes held, so that the events of an address come in
//! the order in which they happened. A call of the library from there is refused.

use super::ring::Event;
use super::stacks;
use crate::base::error::{Error, Result};
use crate::base::frames::Stacks;
use crate::base::lock::{Held, Mutex};
use crate::base::published::Published;
use crate::base::rank::Rank;
use crate::base::retired::Reclaimable;
use crate::base::shared::Shared;
use crate::base::thread;
use crate::base::waiting::NoCalls;
use crate::observe::flags::{self, Watcher};

/// A listener.
pub trait Listens: Send + Sync {
    /// An event of a device, or of pinned memory, happens. `stacks` has its texts and its context.
    fn event(&self, device: Option<i32>, event: &Event, stacks: &Stacks);
    /// Called before the first event, when attaching can no longer fail.
    fn attached(&self);
}

type List = Vec<(u64, Shared<Box<dyn Listens>>)>;

/// Lists that are not published yet; they are published, and retired, as boxes.
#[allow(clippy::vec_box, reason = "as above")]
type Spares = Vec<Box<Reclaimable<List>>>;

/// Readers of the list hold locks of the allocator, so that it is replaced as a whole and retired.
static LIST: Published<List> = Published::new();
/// Held while the list is replaced. It has an empty list for each listener, with room for what is
/// left without that, so that a removal needs no host memory.
static SPARE: Mutex<Spares> = Mutex::new(Rank::LEAF, Vec::new());

/// Is there a listener?
#[inline(always)]
pub fn is_on() -> bool {
    LIST.is_some()
}

/// Passes an event to all listeners, oldest first.
pub(in crate::memory) fn notify(device: Option<i32>, event: &Event) {
    let Some(list) = LIST.get() else { return };
    stacks::read(|stacks| {
        let _refused = NoCalls::begin();
        list.iter().for_each(|(_, listener)| listener.event(device, event, stacks));
    });
}

/// An empty list with room for `count` listeners.
fn list_of(count: usize) -> Result<Box<Reclaimable<List>>> {
    let mut list = List::new();
    list.try_reserve_exact(count).map_err(|_| NO_MEMORY)?;
    thread::reclaimable(list, "the list of listeners")
}

const NO_MEMORY: Error = Error::OutOfHostMemory("the list of listeners");

/// The listeners that `is_wanted` accepts, in a list that has room for them.
fn fill(list: &mut List, is_wanted: impl Fn(u64) -> bool) {
    let present = LIST.get().into_iter().flatten();
    let wanted = present.filter(|(number, _)| is_wanted(*number));
    list.extend(wanted.map(|(number, listener)| (*number, listener.share())));
}

/// Replaces the list; the old one is dropped when no thread can be in it any more.
fn publish(spare: Held<'_, Spares>, new: Option<Box<Reclaimable<List>>>) {
    let is_on = new.is_some();
    let old = LIST.replace(new);
    flags::change(Watcher::History, old.is_some(), is_on);
    drop(spare);
    old.into_iter().for_each(thread::retire);
    thread::collect();
}

/// Adds a listener under its number. On failure the listener is dropped and `attached` was not
/// called.
pub fn attach(number: u64, listener: Box<dyn Listens>) -> Result<()> {
    let listener = Shared::new(listener, "a listener")?;
    let mut spare = SPARE.lock();
    spare.try_reserve(1).map_err(|_| NO_MEMORY)?;
    let count = spare.len() + 1;
    let (mut new, reserved) = (list_of(count)?, list_of(count)?);
    fill(&mut new, |_| true);
    listener.attached();
    new.push((number, listener));
    spare.push(reserved);
    publish(spare, Some(new));
    Ok(())
}

/// Removes a listener if it is in the list.
pub fn detach(number: u64) {
    let mut spare = SPARE.lock();
    let is_there = LIST.get().is_some_and(|list| list.iter().any(|(known, _)| *known == number));
    let Some(mut new) = is_there.then(|| spare.pop()).flatten() else { return };
    fill(&mut new, |known| known != number);
    publish(spare, Some(new).filter(|new| !new.is_empty()));
}

/// Removes all listeners.
pub fn detach_all() {
    let mut spare = SPARE.lock();
    spare.clear();
    publish(spare, None);
}
