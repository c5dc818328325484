//! Being inside the library, and waiting for those who are: every call is an epoch.
//!
//! Whoever takes something away for good (a destroyed handle's object, the whole runtime at shutdown)
//! first makes it unreachable, then waits until the members that were inside have left. Entering costs
//! two plain stores; the waiting side pays with a heavy fence.

use crate::error::{Error, Result};
use crate::lock::{Guard, Lock, Mutex};
use crate::rank::Rank;
use crate::sync::{self, AtomicU32, AtomicU64, Ordering, fence};
use std::cell::UnsafeCell;

/// How members announce that they enter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// By a light fence: those who wait use a heavy one.
    Light,
    /// By a full fence, where there is no heavy one.
    Full,
}

/// Where one thread is.
#[repr(C)]
pub struct Presence {
    /// Odd while it is inside.
    sequence: AtomicU64,
    /// `sequence` when somebody began to wait for everyone.
    waited_for: AtomicU64,
    /// Calls inside calls: callbacks may come back.
    depth: AtomicU32,
}

impl Presence {
    /// Outside. The library's own begin as the zeroes of a thread's block.
    pub fn new() -> Presence {
        Presence {
            sequence: AtomicU64::new(0),
            waited_for: AtomicU64::new(0),
            depth: AtomicU32::new(0),
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
            if how == Fence::Light {
                sync::light_fence();
            } else {
                fence(Ordering::SeqCst);
            }
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

    /// Leaves.
    #[inline]
    pub fn leave(&self) {
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth - 1, Ordering::Relaxed);
        if depth == 1 {
            let sequence = self.sequence.load(Ordering::Relaxed);
            self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
        }
    }

    /// How many calls it is in.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

/// All threads that were ever inside and live. A lock of our own guards the list, which a fork can
/// hold from before to after.
pub struct Members {
    lock: Lock,
    list: UnsafeCell<Vec<usize>>,
}

// SAFETY: the list is used with the lock held only.
unsafe impl Sync for Members {}

impl Members {
    sync::constant! {
        /// Nobody.
        pub fn new() -> Members {
            Members { lock: Lock::new(Rank::LEAF), list: UnsafeCell::new(Vec::new()) }
        }
    }

    fn with<R>(&self, body: impl FnOnce(&mut Vec<usize>) -> R) -> R {
        let _guard: Guard<'_> = self.lock.guard();
        // SAFETY: the lock is held.
        body(unsafe { &mut *self.list.get() })
    }

    /// Adds a thread; with the lock held `also` does what must succeed as well.
    pub fn join(&self, presence: &Presence, also: impl FnOnce() -> Result<()>) -> Result<()> {
        self.with(|list| {
            list.try_reserve(1).map_err(|_| Error::OutOfHostMemory("a thread's state"))?;
            also()?;
            list.push(presence.address());
            Ok(())
        })
    }

    /// Removes a thread, which is about to end.
    pub fn part(&self, presence: &Presence) {
        self.with(|list| list.retain(|known| *known != presence.address()));
    }

    /// Runs `body` on the address of each.
    pub fn each(&self, body: impl FnMut(usize)) {
        self.with(|list| list.iter().copied().for_each(body));
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
        let list = unsafe { &mut *self.list.get() };
        let were_inside = are_others_inside(list, own);
        list.retain(|known| *known == own.address());
        self.lock.unlock();
        were_inside
    }

    /// Is a member inside, other than `own`?
    pub fn are_others_inside(&self, own: &Presence) -> bool {
        self.with(|list| are_others_inside(list, own))
    }

    /// Waits until every member that is inside now, but for `own`, has left. Fences come first.
    pub fn wait_for_others(&self, own: &Presence) {
        let own = own.address();
        self.with(|list| {
            for address in list.iter().copied() {
                // SAFETY: threads leave the list, which is locked, before their block goes.
                let presence = unsafe { &*(address as *const Presence) };
                let sequence = presence.sequence.load(Ordering::Acquire);
                presence.waited_for.store(sequence, Ordering::Relaxed);
            }
        });
        let somebody_stays = || {
            self.with(|list| {
                list.iter().copied().filter(|address| *address != own).any(|address| {
                    // SAFETY: as above.
                    let presence = unsafe { &*(address as *const Presence) };
                    let sequence = presence.sequence.load(Ordering::Acquire);
                    sequence % 2 == 1 && presence.waited_for.load(Ordering::Relaxed) == sequence
                })
            })
        };
        while somebody_stays() {
            sync::yield_now();
        }
    }

    /// Adds the members that are inside now, but for `own`; false: no host memory.
    fn inside_now(&self, own: usize, seen: &mut Vec<(usize, u64)>) -> bool {
        self.with(|list| {
            for address in list.iter().copied().filter(|address| *address != own) {
                // SAFETY: threads leave the list, which is locked, before their block goes.
                let presence = unsafe { &*(address as *const Presence) };
                let sequence = presence.sequence.load(Ordering::Acquire);
                if sequence % 2 == 1 {
                    if seen.try_reserve(1).is_err() {
                        return false;
                    }
                    seen.push((address, sequence));
                }
            }
            true
        })
    }

    /// The call that the thread of this address is in now; none: it is in none, or no member.
    pub fn visit_of(&self, address: usize) -> Option<Visit> {
        self.with(|list| {
            if !list.contains(&address) {
                return None;
            }
            // SAFETY: threads leave the list, which is locked, before their block goes.
            let presence = unsafe { &*(address as *const Presence) };
            let sequence = presence.sequence.load(Ordering::Acquire);
            (sequence % 2 == 1).then_some(Visit { address, sequence })
        })
    }

    /// Is the thread still in that call?
    pub fn is_on(&self, visit: &Visit) -> bool {
        self.still_inside(visit.address, visit.sequence)
    }

    fn still_inside(&self, address: usize, sequence: u64) -> bool {
        self.with(|list| {
            if !list.contains(&address) {
                return false;
            }
            // SAFETY: threads leave the list, which is locked, before their block goes.
            let presence = unsafe { &*(address as *const Presence) };
            presence.sequence.load(Ordering::Acquire) == sequence
        })
    }
}

fn are_others_inside(list: &[usize], own: &Presence) -> bool {
    list.iter().copied().filter(|address| *address != own.address()).any(|address| {
        // SAFETY: threads leave the list, which is locked, before their block goes; in the child of a fork
        // the memory of the others' blocks is there, as it was.
        let presence = unsafe { &*(address as *const Presence) };
        presence.sequence.load(Ordering::Acquire) % 2 == 1
    })
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

/// Room for objects that are retired while host memory is out.
const SPARE: usize = 64;

/// Objects taken out of use, with the members that may still look at them.
pub struct Old {
    objects: Vec<Box<dyn Send>>,
    waiting_for: Vec<(usize, u64)>,
}

/// Objects out of use, dropped once no member that was inside can still see them.
pub struct Retired {
    old: Mutex<Old>,
    young: Mutex<Vec<Box<dyn Send>>>,
    /// Young ones for which `young` found no host memory.
    spare: Mutex<[Option<Box<dyn Send>>; SPARE]>,
}

impl Retired {
    sync::constant! {
        /// None.
        pub fn new() -> Retired {
            let old = Old { objects: Vec::new(), waiting_for: Vec::new() };
            Retired {
                old: Mutex::new(Rank::RETIRED, old),
                young: Mutex::new(Rank::LEAF, Vec::new()),
                spare: Mutex::new(Rank::LEAF, [const { None }; SPARE]),
            }
        }
    }

    /// Adds an object that nobody can reach any more; gives how many are young.
    pub fn add(&self, object: Box<dyn Send>) -> usize {
        let mut young = self.young.lock();
        if young.try_reserve(1).is_err() {
            drop(young);
            match self.spare.lock().iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(object),
                // The only safe place is nowhere.
                None => std::mem::forget(object),
            }
            return 0;
        }
        young.push(object);
        young.len()
    }

    /// Moves objects one step on, dropping those that nobody can see. `own` is the caller's, if what
    /// it looks at does not count. `barrier` makes what was done so far visible to those who enter.
    pub fn collect(&self, members: &Members, own: Option<&Presence>, barrier: impl Fn() -> bool) {
        let own = own.map_or(0, Presence::address);
        let mut retired = self.old.lock();
        retired.waiting_for.retain(|(address, sequence)| members.still_inside(*address, *sequence));
        if !retired.waiting_for.is_empty() {
            return;
        }
        let mut waiting_for = Vec::new();
        let mut objects = std::mem::take(&mut *self.young.lock());
        for place in self.spare.lock().iter_mut().filter(|place| place.is_some()) {
            if objects.try_reserve(1).is_ok() {
                objects.extend(place.take());
            }
        }
        let old = std::mem::replace(&mut retired.objects, objects);
        if !barrier() || !members.inside_now(own, &mut waiting_for) {
            // Nobody can tell who still sees them: they are young again.
            waiting_for.clear();
            self.put_back(std::mem::take(&mut retired.objects));
        }
        let nobody = waiting_for.is_empty();
        retired.waiting_for = waiting_for;
        let young = if nobody { std::mem::take(&mut retired.objects) } else { Vec::new() };
        drop(retired);
        // Outside the lock: what is dropped may retire more.
        drop(old);
        drop(young);
    }

    fn put_back(&self, mut objects: Vec<Box<dyn Send>>) {
        let mut young = self.young.lock();
        if young.try_reserve(objects.len()).is_ok() {
            young.append(&mut objects);
        } else if young.is_empty() {
            *young = objects;
        } else {
            // The only safe place is nowhere.
            std::mem::forget(objects);
        }
    }

    /// Drops all; the caller has waited for everyone who could see them.
    pub fn drain(&self) {
        loop {
            // Under one lock: between the two a collection could make the young ones old.
            let mut retired = self.old.lock();
            let old = std::mem::take(&mut retired.objects);
            let young = std::mem::take(&mut *self.young.lock());
            let spare = self.spare.lock().each_mut().map(Option::take);
            drop(retired);
            if old.is_empty() && young.is_empty() && spare.iter().all(Option::is_none) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_no_barrier_vouched_for_is_kept_until_one_does() {
        let (members, retired) = (Members::new(), Retired::new());
        let object = Arc::new(());
        let alive = || Arc::strong_count(&object) - 1;
        assert_eq!(retired.add(Box::new(Arc::clone(&object))), 1);
        retired.collect(&members, None, || false);
        retired.collect(&members, None, || false);
        assert_eq!((alive(), retired.add(Box::new(Arc::clone(&object)))), (1, 2));
        retired.collect(&members, None, || true);
        assert_eq!(alive(), 0, "nobody is inside");
    }

    /// Objects that count themselves.
    struct Counted(Arc<()>);

    impl Counted {
        fn boxes(&self, count: usize) -> Vec<Box<dyn Send>> {
            (0..count).map(|_| Box::new(Arc::clone(&self.0)) as Box<dyn Send>).collect()
        }

        fn alive(&self) -> usize {
            Arc::strong_count(&self.0) - 1
        }
    }

    /// Runs `body` while the library finds no host memory.
    fn without_memory<R>(body: impl FnOnce() -> R) -> R {
        let ours = crate::host_faults::ours();
        crate::host_faults::set(1, true);
        let result = body();
        crate::host_faults::set(0, false);
        drop(ours);
        result
    }

    #[test]
    fn retiring_needs_no_host_memory() {
        let _alone = crate::driver::sim::test_lock();
        let (members, retired, counted) = (Members::new(), Retired::new(), Counted(Arc::new(())));
        let boxes = counted.boxes(SPARE);
        let last = Box::into_raw(Box::new(Arc::clone(&counted.0)));
        without_memory(|| {
            for object in boxes {
                assert_eq!(retired.add(object), 0, "none of them is young");
            }
            // They stay where they are as long as nothing else has room for them.
            retired.collect(&members, None, || true);
        });
        assert_eq!(counted.alive(), SPARE + 1);
        // One more than there is room for is never dropped: somebody may still look at it.
        // SAFETY: from Box::into_raw above.
        without_memory(|| retired.add(unsafe { Box::from_raw(last) }));
        retired.collect(&members, None, || true);
        retired.collect(&members, None, || true);
        assert_eq!(counted.alive(), 1);
        retired.drain();
        assert_eq!(counted.alive(), 1);
        // SAFETY: nobody has it any more.
        drop(unsafe { Box::from_raw(last) });
    }

    #[test]
    fn what_is_spare_is_drained_with_the_rest() {
        let _alone = crate::driver::sim::test_lock();
        let (retired, counted) = (Retired::new(), Counted(Arc::new(())));
        let object = counted.boxes(1).remove(0);
        without_memory(|| retired.add(object));
        assert_eq!(counted.alive(), 1);
        retired.drain();
        assert_eq!(counted.alive(), 0);
    }

    /// A member that is inside, for which there is no room on the list of those to wait for.
    #[test]
    fn nothing_is_dropped_while_nobody_can_say_who_sees_it() {
        let _alone = crate::driver::sim::test_lock();
        let (members, retired, counted) = (Members::new(), Retired::new(), Counted(Arc::new(())));
        let presence = Presence::new();
        members.join(&presence, || Ok(())).unwrap();
        presence.enter(Fence::Full);
        for object in counted.boxes(3) {
            retired.add(object);
        }
        without_memory(|| {
            retired.collect(&members, None, || true);
            retired.collect(&members, None, || true);
        });
        assert_eq!(counted.alive(), 3);
        retired.collect(&members, None, || true);
        retired.collect(&members, None, || true);
        assert_eq!(counted.alive(), 3, "it is inside since before they were retired");
        presence.leave();
        retired.collect(&members, None, || true);
        assert_eq!(counted.alive(), 0);
        members.part(&presence);
        // Who has parted is waited for no more.
        presence.enter(Fence::Full);
        for object in counted.boxes(1) {
            retired.add(object);
        }
        retired.collect(&members, None, || true);
        assert_eq!(counted.alive(), 0);
    }

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
