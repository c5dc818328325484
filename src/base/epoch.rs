//! Epochs: which threads are inside the library, and waits for them to leave. Every call is an
//! epoch.
//!
//! A thread that removes something for good (the object of a destroyed handle, the runtime at
//! shutdown) first makes it unreachable. Then it waits until the participants that were inside have
//! left (`retired.rs`: or until none of them can have found it). Entering costs two plain stores
//! and a light fence; the waiting side pays with a heavy fence.

use crate::base::error::{Error, Result};
use crate::base::lock::{Guard, Lock};
use crate::base::rank::Rank;
use crate::base::retired::{List, Object};
use crate::base::sync::{self, AtomicU32, AtomicU64, Ordering, fence};
use std::cell::UnsafeCell;

/// The fence that a participant executes when it enters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// A light fence: threads that wait for participants use a heavy one.
    Light,
    /// A full fence, where there is no heavy one.
    Full,
}

impl Fence {
    fn pass(self) {
        if self == Fence::Light {
            sync::light_fence();
        } else {
            fence(Ordering::SeqCst);
        }
    }
}

/// In `Participant::until`: the call waits.
const WAITS: u64 = 1;
/// In `Participant::depth`: a collection is due when the outermost call ends.
const COLLECTION_DUE: u32 = 1 << 31;

/// The epoch of one thread: whether it is inside, and whether it waits.
#[repr(C)]
pub struct Participant {
    /// Odd while the thread is inside.
    sequence: AtomicU64,
    /// Twice the era in which the thread began to wait (for a device, a lock, a host function); odd
    /// while it waits.
    until: AtomicU64,
    /// Number of nested calls: callbacks may call the library. Plus [`COLLECTION_DUE`], perhaps,
    /// while the thread is inside.
    depth: AtomicU32,
    /// Depth of the call that waits; 0: none waits.
    waits_at: AtomicU32,
}

/// What a call restores when its wait is over.
pub struct Wait {
    until: u64,
    waits_at: u32,
}

impl Participant {
    /// A participant that is outside. Those of threads begin as the zeroes of the thread's block.
    pub fn new() -> Participant {
        Participant {
            sequence: AtomicU64::new(0),
            until: AtomicU64::new(0),
            depth: AtomicU32::new(0),
            waits_at: AtomicU32::new(0),
        }
    }

    /// Enters the library, perhaps in a nested call.
    #[inline(always)]
    pub fn enter(&self, how: Fence) {
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        if depth == 0 {
            let sequence = self.sequence.load(Ordering::Relaxed);
            // Release: a waiter that reads this value but not the last leave must see what was done
            // before that.
            self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
            how.pass();
        } else {
            self.enter_again(depth, how);
        }
    }

    /// A nested call inside a call that waits may find any object.
    #[cold]
    fn enter_again(&self, depth: u32, how: Fence) {
        if self.waits_at.load(Ordering::Relaxed) == depth & !COLLECTION_DUE {
            let until = self.until.load(Ordering::Relaxed);
            self.until.store(until & !WAITS, Ordering::Release);
            how.pass();
        }
    }

    /// Enters with a light fence, if the thread is outside; otherwise does nothing and returns
    /// false.
    #[inline(always)]
    pub fn enter_outermost(&self) -> bool {
        if self.depth.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.depth.store(1, Ordering::Relaxed);
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
        sync::light_fence();
        true
    }

    /// Leaves the outermost call.
    #[inline(always)]
    pub fn leave_outermost(&self) {
        self.depth.store(0, Ordering::Relaxed);
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// Leaves a call. True: do a collection first ([`Participant::request_collection`]), then call
    /// `leave_outermost`.
    #[inline]
    pub fn leave(&self) -> bool {
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth - 1, Ordering::Relaxed);
        if depth == 1 {
            let sequence = self.sequence.load(Ordering::Relaxed);
            self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
            return false;
        }
        self.leave_inner(depth - 1)
    }

    /// After the return to a call that waits: objects that the nested call found are no longer in
    /// use.
    #[cold]
    fn leave_inner(&self, depth: u32) -> bool {
        if depth == COLLECTION_DUE {
            self.depth.store(1, Ordering::Relaxed);
            return true;
        }
        if self.waits_at.load(Ordering::Relaxed) == depth & !COLLECTION_DUE {
            let until = self.until.load(Ordering::Relaxed);
            self.until.store(until | WAITS, Ordering::Release);
        }
        false
    }

    /// Requests a collection when the outermost call of this thread ends.
    pub fn request_collection(&self) {
        self.depth.fetch_or(COLLECTION_DUE, Ordering::Relaxed);
    }

    /// The call begins to wait in `era`, which was read now: it finds no object before `end_wait`.
    /// `None`: it waits already, or the thread is outside.
    pub fn begin_wait(&self, era: u64) -> Option<Wait> {
        let depth = self.depth();
        let waits_at = self.waits_at.load(Ordering::Relaxed);
        if depth == waits_at || depth == 0 {
            return None;
        }
        let until = self.until.load(Ordering::Relaxed);
        self.waits_at.store(depth, Ordering::Relaxed);
        self.until.store(era << 1 | WAITS, Ordering::Release);
        Some(Wait { until, waits_at })
    }

    /// Ends a wait.
    pub fn end_wait(&self, wait: Wait, how: Fence) {
        self.waits_at.store(wait.waits_at, Ordering::Relaxed);
        self.until.store(wait.until, Ordering::Release);
        how.pass();
    }

    /// May the thread find objects now?
    pub fn is_awake(&self) -> bool {
        let depth = self.depth();
        depth > 0 && self.waits_at.load(Ordering::Relaxed) != depth
    }

    /// Number of nested calls.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed) & !COLLECTION_DUE
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

/// The objects that the call of a thread may have found.
#[derive(Clone, Copy)]
enum Visible {
    /// None: the thread is outside.
    Nothing,
    /// Those with `born <= era`: it has waited since.
    Until(u64),
    /// Any.
    Everything,
}

/// A thread in the list of participants.
struct Entry {
    address: usize,
    /// `sequence` at the last collection.
    seen: u64,
    /// The present call cannot have found an object that was retired before this era.
    since: u64,
    visible: Visible,
    /// `sequence` when a thread began to wait for all participants.
    waited_for: u64,
    /// The lowest era from which on this call was seen to wait; MAX: it was not seen to wait.
    lowest: u64,
    /// Objects with `born <= lowest`: kept until the call ends.
    holds: List,
    /// Other objects that the call may have found; an earlier wait may become the present one
    /// again.
    may_hold: List,
    /// The era of the wait for which `may_hold` was sorted; MAX: it was not sorted.
    sorted_for: u64,
}

impl Entry {
    fn participant(&self) -> &Participant {
        // SAFETY: a thread leaves the locked list before its block is freed; in a forked child the
        // memory of the other threads' blocks is still there.
        unsafe { &*(self.address as *const Participant) }
    }

    fn sequence(&self) -> u64 {
        self.participant().sequence.load(Ordering::Acquire)
    }

    /// Reads what the thread's call may have found, and moves objects that it no longer keeps to
    /// `free`. `era` is the one that ends.
    fn update(&mut self, era: u64, free: &mut List) {
        let sequence = self.sequence();
        let until = self.participant().until.load(Ordering::Acquire);
        if sequence != self.seen {
            (self.seen, self.since) = (sequence, era);
            (self.lowest, self.sorted_for) = (u64::MAX, u64::MAX);
            free.append(&mut self.may_hold);
            free.append(&mut self.holds);
        }
        self.visible = match (sequence % 2, until & WAITS) {
            (0, _) => Visible::Nothing,
            (_, WAITS) => Visible::Until(until >> 1),
            _ => Visible::Everything,
        };
        if let Visible::Until(until) = self.visible
            && until != self.sorted_for
        {
            self.sort(until, free);
        }
    }

    /// Sorts `may_hold` for a call that has waited since the era `until`.
    fn sort(&mut self, until: u64, free: &mut List) {
        self.sorted_for = until;
        if until < self.lowest {
            self.lowest = until;
            self.may_hold.append(&mut self.holds);
        }
        let mut objects = std::mem::take(&mut self.may_hold);
        while let Some(object) = objects.pop() {
            if object.born() <= until {
                self.keep(object);
            } else {
                free.push(object);
            }
        }
    }

    /// May the thread's call have found the object?
    fn may_see(&self, object: &Object) -> bool {
        let until = match self.visible {
            Visible::Nothing => return false,
            Visible::Until(until) => until,
            Visible::Everything => u64::MAX,
        };
        self.since <= object.retired() && object.born() <= until
    }

    /// Keeps an object that the call may have found.
    fn keep(&mut self, object: Object) {
        if self.lowest != u64::MAX && object.born() <= self.lowest {
            self.holds.push(object);
            return;
        }
        if let Visible::Everything = self.visible {
            self.sorted_for = u64::MAX;
        }
        self.may_hold.push(object);
    }
}

/// The list of participants, and objects that removed participants have kept.
struct ParticipantList {
    entries: Vec<Entry>,
    /// Objects that no participant keeps, and that no collection has checked since.
    left: List,
}

/// All living threads that were ever inside. A lock of this module guards the list, because a fork
/// must be able to hold it from before to after.
pub struct Participants {
    lock: Lock,
    list: UnsafeCell<ParticipantList>,
}

// SAFETY: the list is used only with the lock held.
unsafe impl Sync for Participants {}

impl Participants {
    sync::constant! {
        /// An empty list.
        pub fn new() -> Participants {
            let list = ParticipantList { entries: Vec::new(), left: List::new() };
            Participants { lock: Lock::new(Rank::LEAF), list: UnsafeCell::new(list) }
        }
    }

    fn with<R>(&self, body: impl FnOnce(&mut ParticipantList) -> R) -> R {
        let _guard: Guard<'_> = self.lock.guard();
        // SAFETY: the lock is held.
        body(unsafe { &mut *self.list.get() })
    }

    /// Adds a thread; `also` runs with the lock held, and if it fails the thread is not added.
    pub fn add(&self, participant: &Participant, also: impl FnOnce() -> Result<()>) -> Result<()> {
        self.with(|list| {
            list.entries.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a thread's state"))?;
            also()?;
            list.entries.push(Entry {
                address: participant.address(),
                seen: participant.sequence.load(Ordering::Relaxed),
                since: 0,
                visible: Visible::Nothing,
                waited_for: 0,
                lowest: u64::MAX,
                holds: List::new(),
                may_hold: List::new(),
                sorted_for: u64::MAX,
            });
            Ok(())
        })
    }

    /// Removes a thread that is about to end.
    pub fn remove(&self, participant: &Participant) {
        self.with(|list| list.keep(|address| address != participant.address()));
    }

    /// Runs `body` on the address of each participant.
    pub fn each(&self, body: impl FnMut(usize)) {
        self.with(|list| list.entries.iter().map(|entry| entry.address).for_each(body));
    }

    /// Locks the list, for a fork. It only tries the lock, because a fork holds other leaf locks by
    /// then; the holder of the list waits for none of them.
    pub fn lock_list(&self) {
        while !self.lock.try_lock() {
            sync::yield_now();
        }
    }

    /// Unlocks the list.
    pub fn unlock_list(&self) {
        self.lock.unlock();
    }

    /// In a forked child, where only this thread exists: removes all others, and unlocks the list.
    /// Returns true if another thread was inside at the fork.
    pub fn keep_only(&self, own: &Participant) -> bool {
        // SAFETY: the lock is held since before the fork.
        let list = unsafe { &mut *self.list.get() };
        let were_inside = list.are_others_inside(own);
        list.keep(|address| address == own.address());
        self.lock.unlock();
        were_inside
    }

    /// Is another participant than `own` inside?
    pub fn are_others_inside(&self, own: &Participant) -> bool {
        self.with(|list| list.are_others_inside(own))
    }

    /// Waits until every participant except `own` that is inside now has left. The caller executes
    /// the fences before.
    pub fn wait_for_others(&self, own: &Participant) {
        let own = own.address();
        self.with(|list| {
            for entry in &mut list.entries {
                entry.waited_for = entry.sequence();
            }
        });
        let one_is_still_inside = || {
            self.with(|list| {
                list.entries.iter().filter(|entry| entry.address != own).any(|entry| {
                    let sequence = entry.sequence();
                    sequence % 2 == 1 && entry.waited_for == sequence
                })
            })
        };
        while one_is_still_inside() {
            sync::yield_now();
        }
    }

    /// Adds `objects` to the objects that are kept; then puts those into `objects` that no call,
    /// except `own`'s, may have found. It checks at most `most` objects. `objects` were retired in
    /// `era` or earlier, and before a fence of the caller. Collections are serialised.
    pub fn take_unseen(
        &self,
        own: Option<&Participant>,
        era: u64,
        most: usize,
        objects: &mut List,
    ) {
        let own = own.map_or(0, Participant::address);
        self.with(|ParticipantList { entries, left }| {
            left.append(objects);
            for entry in entries.iter_mut() {
                entry.update(era, left);
                if entry.address == own {
                    entry.visible = Visible::Nothing;
                    left.append(&mut entry.may_hold);
                    left.append(&mut entry.holds);
                }
            }
            for _ in 0..most.min(left.len()) {
                let Some(object) = left.pop() else { return };
                match entries.iter_mut().find(|entry| entry.may_see(&object)) {
                    Some(entry) => entry.keep(object),
                    None => objects.push(object),
                }
            }
        });
    }

    /// The present call of the thread with this address; `None`: it is outside, or not in the list.
    pub fn visit_of(&self, address: usize) -> Option<Visit> {
        let sequence = self.sequence_of(address)?;
        (sequence % 2 == 1).then_some(Visit { address, sequence })
    }

    /// Is the thread still in that call?
    pub fn is_on(&self, visit: &Visit) -> bool {
        self.sequence_of(visit.address) == Some(visit.sequence)
    }

    fn sequence_of(&self, address: usize) -> Option<u64> {
        self.with(|list| {
            list.entries.iter().find(|entry| entry.address == address).map(Entry::sequence)
        })
    }
}

impl ParticipantList {
    fn are_others_inside(&self, own: &Participant) -> bool {
        let mut others = self.entries.iter().filter(|entry| entry.address != own.address());
        others.any(|entry| entry.sequence() % 2 == 1)
    }

    /// Removes entries for which `stays` is false; objects that they kept are moved to `left`.
    fn keep(&mut self, mut stays: impl FnMut(usize) -> bool) {
        let ParticipantList { entries, left } = self;
        entries.retain_mut(|entry| {
            let stays = stays(entry.address);
            if !stays {
                left.append(&mut entry.may_hold);
                left.append(&mut entry.holds);
            }
            stays
        });
    }
}

/// One outermost call of a thread, as it was seen inside.
#[derive(Clone, Copy)]
pub struct Visit {
    address: usize,
    sequence: u64,
}

impl Visit {
    /// Is it a call of the thread with this address?
    pub fn is_by(&self, address: usize) -> bool {
        self.address == address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_waits_for_the_holder_of_the_list() {
        use std::sync::atomic::AtomicU32;
        let participants = Participants::new();
        let step = AtomicU32::new(0);
        participants.lock_list();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                step.store(1, Ordering::SeqCst);
                participants.lock_list();
                step.store(2, Ordering::SeqCst);
                participants.unlock_list();
            });
            while step.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            (0..1000).for_each(|_| std::thread::yield_now());
            assert_eq!(step.load(Ordering::SeqCst), 1, "two have the list");
            participants.unlock_list();
        });
        assert_eq!(step.load(Ordering::SeqCst), 2);
    }
}
