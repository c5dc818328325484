//! Being inside the library, and waiting for those who are: every call is an epoch.
//!
//! Whoever takes something away for good (a destroyed handle's object, the whole runtime at shutdown)
//! first makes it unreachable, then waits until the members that were inside have left
//! (`retired.rs`: or until none of them can have found it). Entering costs two plain stores; the
//! waiting side pays with a heavy fence.

use crate::base::error::{Error, Result};
use crate::base::lock::{Guard, Lock};
use crate::base::rank::Rank;
use crate::base::retired::{List, Object};
use crate::base::sync::{self, AtomicU32, AtomicU64, Ordering, fence};
use std::cell::UnsafeCell;

/// How members announce that they enter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// By a light fence: those who wait use a heavy one.
    Light,
    /// By a full fence, where there is no heavy one.
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

/// In `Presence::until`: the call waits.
const WAITS: u64 = 1;
/// In `Presence::depth`: a collection is due when the outermost call ends.
const COLLECTION_DUE: u32 = 1 << 31;

/// Where one thread is.
#[repr(C)]
pub struct Presence {
    /// Odd while it is inside.
    sequence: AtomicU64,
    /// Twice the era in which it began to wait (for a device, a lock, a function of the host's);
    /// odd while it waits.
    until: AtomicU64,
    /// Calls inside calls: callbacks may come back. [`COLLECTION_DUE`] may be added while it is inside.
    depth: AtomicU32,
    /// The depth of the call that waits; 0: none does.
    waits_at: AtomicU32,
}

/// What a call that waits has to put back.
pub struct Wait {
    until: u64,
    waits_at: u32,
}

impl Presence {
    /// Outside. The library's own begin as the zeroes of a thread's block.
    pub fn new() -> Presence {
        Presence {
            sequence: AtomicU64::new(0),
            until: AtomicU64::new(0),
            depth: AtomicU32::new(0),
            waits_at: AtomicU32::new(0),
        }
    }

    /// Enters.
    #[inline(always)]
    pub fn enter(&self, how: Fence) {
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        if depth == 0 {
            let sequence = self.sequence.load(Ordering::Relaxed);
            // Released as well: who waits may see this, not the last leaving, and must know what was before.
            self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
            how.pass();
        } else {
            self.enter_again(depth, how);
        }
    }

    /// A call inside a call that waits may find whatever there is.
    #[cold]
    fn enter_again(&self, depth: u32, how: Fence) {
        if self.waits_at.load(Ordering::Relaxed) == depth & !COLLECTION_DUE {
            let until = self.until.load(Ordering::Relaxed);
            self.until.store(until & !WAITS, Ordering::Release);
            how.pass();
        }
    }

    /// Enters by a light fence, unless it is inside already: then it does nothing, and gives false.
    #[inline(always)]
    pub fn enter_first(&self) -> bool {
        if self.depth.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.depth.store(1, Ordering::Relaxed);
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
        sync::light_fence();
        true
    }

    /// Leaves the call that entered first.
    #[inline(always)]
    pub fn leave_last(&self) {
        self.depth.store(0, Ordering::Relaxed);
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// Leaves; true: a collection is due first ([`Presence::request_collection`]), then `leave_last`.
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

    /// Back in a call that waits: what was found meanwhile is in use no more.
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

    /// Says that a collection is due when the outermost call ends, which this thread is in.
    pub fn request_collection(&self) {
        self.depth.fetch_or(COLLECTION_DUE, Ordering::Relaxed);
    }

    /// The call begins to wait in an era that was read now: it finds nothing before `go_on`.
    /// `None`: it waits already, or the thread is outside.
    pub fn wait(&self, era: u64) -> Option<Wait> {
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

    /// The wait is over.
    pub fn go_on(&self, wait: Wait, how: Fence) {
        self.waits_at.store(wait.waits_at, Ordering::Relaxed);
        self.until.store(wait.until, Ordering::Release);
        how.pass();
    }

    /// May the thread find objects now?
    pub fn is_awake(&self) -> bool {
        let depth = self.depth();
        depth > 0 && self.waits_at.load(Ordering::Relaxed) != depth
    }

    /// How many calls it is in.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed) & !COLLECTION_DUE
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

/// What the call of a thread may have found.
#[derive(Clone, Copy)]
enum Sight {
    /// Nothing: there is no call.
    Nothing,
    /// What was made up to an era: it has waited since.
    Until(u64),
    /// Whatever there is.
    Everything,
}

/// A thread on the list.
struct Member {
    address: usize,
    /// `sequence` when the last collection looked.
    seen: u64,
    /// The call that was seen then has found nothing that was retired before this era.
    since: u64,
    sight: Sight,
    /// `sequence` when a thread began to wait for all members.
    waited_for: u64,
    /// The lowest era since when it was seen to wait; MAX: it was not.
    lowest: u64,
    /// Objects that were made no later than that: kept as long as the call.
    holds: List,
    /// Others that the call may have found, unless it goes back to an earlier wait.
    may_hold: List,
    /// The era of the wait for which `may_hold` was sorted; MAX: it was not.
    sorted_for: u64,
}

impl Member {
    fn presence(&self) -> &Presence {
        // SAFETY: threads leave the list, which is locked, before their block goes; in the child of a
        // fork the memory of the others' blocks is there, as it was.
        unsafe { &*(self.address as *const Presence) }
    }

    fn sequence(&self) -> u64 {
        self.presence().sequence.load(Ordering::Acquire)
    }

    /// Finds out what its call may have found; what that keeps no more is `free`. `era`: the one
    /// that ends.
    fn look(&mut self, era: u64, free: &mut List) {
        let sequence = self.sequence();
        let until = self.presence().until.load(Ordering::Acquire);
        if sequence != self.seen {
            (self.seen, self.since) = (sequence, era);
            (self.lowest, self.sorted_for) = (u64::MAX, u64::MAX);
            free.append(&mut self.may_hold);
            free.append(&mut self.holds);
        }
        self.sight = match (sequence % 2, until & WAITS) {
            (0, _) => Sight::Nothing,
            (_, WAITS) => Sight::Until(until >> 1),
            _ => Sight::Everything,
        };
        if let Sight::Until(until) = self.sight
            && until != self.sorted_for
        {
            self.sort(until, free);
        }
    }

    /// It waits since an era.
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

    /// May its call have found the object?
    fn sees(&self, object: &Object) -> bool {
        let until = match self.sight {
            Sight::Nothing => return false,
            Sight::Until(until) => until,
            Sight::Everything => u64::MAX,
        };
        self.since <= object.retired() && object.born() <= until
    }

    /// Keeps an object that it sees.
    fn keep(&mut self, object: Object) {
        if self.lowest != u64::MAX && object.born() <= self.lowest {
            self.holds.push(object);
            return;
        }
        if let Sight::Everything = self.sight {
            self.sorted_for = u64::MAX;
        }
        self.may_hold.push(object);
    }
}

/// The members, and objects that members who have left have kept.
struct Crowd {
    members: Vec<Member>,
    /// Objects that no member keeps, and that no collection has looked at since.
    left: List,
}

/// All threads that were ever inside and live. A lock of our own guards the list, which a fork can
/// hold from before to after.
pub struct Members {
    lock: Lock,
    crowd: UnsafeCell<Crowd>,
}

// SAFETY: the list is used with the lock held only.
unsafe impl Sync for Members {}

impl Members {
    sync::constant! {
        /// Nobody.
        pub fn new() -> Members {
            let crowd = Crowd { members: Vec::new(), left: List::new() };
            Members { lock: Lock::new(Rank::LEAF), crowd: UnsafeCell::new(crowd) }
        }
    }

    fn with<R>(&self, body: impl FnOnce(&mut Crowd) -> R) -> R {
        let _guard: Guard<'_> = self.lock.guard();
        // SAFETY: the lock is held.
        body(unsafe { &mut *self.crowd.get() })
    }

    /// Adds a thread; with the lock held `also` does what must succeed as well.
    pub fn join(&self, presence: &Presence, also: impl FnOnce() -> Result<()>) -> Result<()> {
        self.with(|crowd| {
            crowd.members.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a thread's state"))?;
            also()?;
            crowd.members.push(Member {
                address: presence.address(),
                seen: presence.sequence.load(Ordering::Relaxed),
                since: 0,
                sight: Sight::Nothing,
                waited_for: 0,
                lowest: u64::MAX,
                holds: List::new(),
                may_hold: List::new(),
                sorted_for: u64::MAX,
            });
            Ok(())
        })
    }

    /// Removes a thread, which is about to end.
    pub fn part(&self, presence: &Presence) {
        self.with(|crowd| crowd.keep(|address| address != presence.address()));
    }

    /// Runs `body` on the address of each.
    pub fn each(&self, body: impl FnMut(usize)) {
        self.with(|crowd| crowd.members.iter().map(|member| member.address).for_each(body));
    }

    /// Holds the list still, for a fork. Tries, since a fork holds other leaves by then; whoever has
    /// the list waits for none of them.
    pub fn hold(&self) {
        while !self.lock.try_lock() {
            sync::yield_now();
        }
    }

    /// Gives it back.
    pub fn release(&self) {
        self.lock.unlock();
    }

    /// In the child of a fork, where only this thread exists: keeps it alone, and gives the list back.
    /// Were others inside at the fork?
    pub fn keep_only(&self, own: &Presence) -> bool {
        // SAFETY: the lock is held since before the fork.
        let crowd = unsafe { &mut *self.crowd.get() };
        let were_inside = crowd.are_others_inside(own);
        crowd.keep(|address| address == own.address());
        self.lock.unlock();
        were_inside
    }

    /// Is a member inside, other than `own`?
    pub fn are_others_inside(&self, own: &Presence) -> bool {
        self.with(|crowd| crowd.are_others_inside(own))
    }

    /// Waits until every member that is inside now, but for `own`, has left. Fences come first.
    pub fn wait_for_others(&self, own: &Presence) {
        let own = own.address();
        self.with(|crowd| {
            for member in &mut crowd.members {
                member.waited_for = member.sequence();
            }
        });
        let somebody_stays = || {
            self.with(|crowd| {
                crowd.members.iter().filter(|member| member.address != own).any(|member| {
                    let sequence = member.sequence();
                    sequence % 2 == 1 && member.waited_for == sequence
                })
            })
        };
        while somebody_stays() {
            sync::yield_now();
        }
    }

    /// Takes some retired objects, and gives those of them, and of earlier ones, that no call may have
    /// found, but for `own`'s, after a look at so many. They were retired before a fence that came first,
    /// in `era` or earlier; collections come one after the other.
    pub fn keep_what_is_seen(
        &self,
        own: Option<&Presence>,
        era: u64,
        most: usize,
        objects: &mut List,
    ) {
        let own = own.map_or(0, Presence::address);
        self.with(|Crowd { members, left }| {
            left.append(objects);
            for member in members.iter_mut() {
                member.look(era, left);
                if member.address == own {
                    member.sight = Sight::Nothing;
                    left.append(&mut member.may_hold);
                    left.append(&mut member.holds);
                }
            }
            for _ in 0..most.min(left.len()) {
                let Some(object) = left.pop() else { return };
                match members.iter_mut().find(|member| member.sees(&object)) {
                    Some(member) => member.keep(object),
                    None => objects.push(object),
                }
            }
        });
    }

    /// The call that the thread of this address is in now; none: it is in none, or no member.
    pub fn visit_of(&self, address: usize) -> Option<Visit> {
        let sequence = self.sequence_of(address)?;
        (sequence % 2 == 1).then_some(Visit { address, sequence })
    }

    /// Is the thread still in that call?
    pub fn is_on(&self, visit: &Visit) -> bool {
        self.sequence_of(visit.address) == Some(visit.sequence)
    }

    fn sequence_of(&self, address: usize) -> Option<u64> {
        self.with(|crowd| {
            crowd.members.iter().find(|member| member.address == address).map(Member::sequence)
        })
    }
}

impl Crowd {
    fn are_others_inside(&self, own: &Presence) -> bool {
        let mut others = self.members.iter().filter(|member| member.address != own.address());
        others.any(|member| member.sequence() % 2 == 1)
    }

    /// Keeps some members; what the others kept is left.
    fn keep(&mut self, mut stays: impl FnMut(usize) -> bool) {
        let Crowd { members, left } = self;
        members.retain_mut(|member| {
            let stays = stays(member.address);
            if !stays {
                left.append(&mut member.may_hold);
                left.append(&mut member.holds);
            }
            stays
        });
    }
}

/// A call in which a thread was seen.
#[derive(Clone, Copy)]
pub struct Visit {
    address: usize,
    sequence: u64,
}

impl Visit {
    /// Is it the call of the thread of this address?
    pub fn is_by(&self, address: usize) -> bool {
        self.address == address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_waits_for_whoever_has_the_list() {
        use std::sync::atomic::AtomicU32;
        let members = Members::new();
        let step = AtomicU32::new(0);
        members.hold();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                step.store(1, Ordering::SeqCst);
                members.hold();
                step.store(2, Ordering::SeqCst);
                members.release();
            });
            while step.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            (0..1000).for_each(|_| std::thread::yield_now());
            assert_eq!(step.load(Ordering::SeqCst), 1, "two have the list");
            members.release();
        });
        assert_eq!(step.load(Ordering::SeqCst), 2);
    }
}
