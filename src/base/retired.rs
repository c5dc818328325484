//! Objects that were taken out of use, and when they may be dropped: interval-based reclamation.
//!
//! Time is counted in eras; each collection begins a new one. An object is of use to calls from the
//! era in which it was made to the one in which it was retired. A call may have found what was not
//! retired before it began; while it waits (for a device, a lock, a function of the host's) it
//! finds nothing, so that what was made after it began to wait is none of its objects. An object is
//! dropped once no call is left that may have found it. So a thread that waits for hours keeps what
//! there was when it began to, and nothing that came later.
//!
//! Nothing here needs host memory: the lists go through the objects.

use crate::base::epoch::{Members, Presence};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::sync::{self, AtomicU64, Ordering};
use std::ops::{Deref, DerefMut};

/// A value that threads look at without a lock, and that is retired at its end.
pub struct Reclaimable<T: ?Sized> {
    /// Era in which it was made.
    born: u64,
    /// Era in which it was retired.
    retired: u64,
    next: Option<Object>,
    value: T,
}

/// One of any type.
pub type Object = Box<Reclaimable<dyn Send>>;

impl<T> Reclaimable<T> {
    /// A value made in an era that was read before anybody else can see it.
    pub fn new(value: T, born: u64) -> Reclaimable<T> {
        Reclaimable { born, retired: 0, next: None, value }
    }

    /// Writes one to where it is to be: `write` writes the value, all of it if it succeeds.
    ///
    /// # Safety
    /// `place` has room for it.
    pub unsafe fn write<E>(
        place: *mut Reclaimable<T>,
        born: u64,
        write: impl FnOnce(*mut T) -> Result<(), E>,
    ) -> Result<(), E> {
        // SAFETY: a field of what the place has room for.
        write(unsafe { &raw mut (*place).value })?;
        // SAFETY: as above.
        let at = unsafe { &raw mut (*place).born };
        // SAFETY: as above.
        unsafe { at.write(born) };
        // SAFETY: as above.
        let at = unsafe { &raw mut (*place).retired };
        // SAFETY: as above.
        unsafe { at.write(0) };
        // SAFETY: as above.
        let at = unsafe { &raw mut (*place).next };
        // SAFETY: as above.
        unsafe { at.write(None) };
        Ok(())
    }

    /// The address of the value, for an atomic; `from_value` is the reverse.
    pub fn into_value(this: Box<Reclaimable<T>>) -> *mut T {
        let this = Box::into_raw(this);
        // SAFETY: just made from a box.
        unsafe { &raw mut (*this).value }
    }

    /// The object of an address.
    ///
    /// # Safety
    /// The address is from `into_value`, and used here once.
    pub unsafe fn from_value(value: *mut T) -> Box<Reclaimable<T>> {
        // SAFETY: the value is a field of an allocation to all of which its address leads.
        let this = unsafe { value.byte_sub(std::mem::offset_of!(Reclaimable<T>, value)) };
        // SAFETY: from Box::into_raw, by the caller's promise.
        unsafe { Box::from_raw(this.cast()) }
    }
}

impl<T: ?Sized> Reclaimable<T> {
    /// Era in which it was made.
    pub fn born(&self) -> u64 {
        self.born
    }

    /// Era in which it was retired.
    pub fn retired(&self) -> u64 {
        self.retired
    }
}

impl<T: ?Sized> Deref for Reclaimable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for Reclaimable<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// A list of retired objects.
#[derive(Default)]
pub struct List {
    first: Option<Object>,
    len: usize,
}

impl List {
    /// An empty one.
    pub const fn new() -> List {
        List { first: None, len: 0 }
    }

    /// Adds an object.
    pub fn push(&mut self, mut object: Object) {
        object.next = self.first.take();
        self.first = Some(object);
        self.len += 1;
    }

    /// Takes one out.
    pub fn pop(&mut self) -> Option<Object> {
        let mut object = self.first.take()?;
        self.first = object.next.take();
        self.len -= 1;
        Some(object)
    }

    /// Takes all of another, in no order: the shorter one moves.
    pub fn append(&mut self, other: &mut List) {
        if other.len > self.len {
            std::mem::swap(self, other);
        }
        while let Some(object) = other.pop() {
            self.push(object);
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // One after the other: dropped with its successors, a long list would take as much of the
        // stack.
        while self.pop().is_some() {}
    }
}

/// Objects out of use that no collection has looked at; those that a call may still see are with
/// the call's thread in [`Members`].
pub struct Retired {
    /// The present era. It changes with `collecting` and `young` held.
    era: AtomicU64,
    collecting: Mutex<()>,
    young: Mutex<List>,
}

impl Retired {
    sync::constant! {
        /// None.
        pub fn new() -> Retired {
            Retired {
                era: AtomicU64::new(1),
                collecting: Mutex::new(Rank::RETIRED, ()),
                young: Mutex::new(Rank::LEAF, List::new()),
            }
        }
    }

    /// The present era. A call that has found an object reads an era no earlier than that in which it
    /// was made.
    #[inline]
    pub fn era(&self) -> u64 {
        self.era.load(Ordering::Relaxed)
    }

    /// Adds an object that can no longer be reached; gives how many wait for a collection.
    pub fn add(&self, mut object: Object) -> usize {
        let mut young = self.young.lock();
        object.retired = self.era();
        young.push(object);
        young.len()
    }

    /// Drops objects that no call can see, after a look at so many: a call that drops all that another
    /// has held up would itself hold up as much. `own` is the caller's, if what it looks at does not
    /// count. `barrier` makes what was done so far visible to threads that enter.
    pub fn collect(
        &self,
        members: &Members,
        own: Option<&Presence>,
        most: usize,
        barrier: impl FnOnce(),
    ) {
        let collecting = self.collecting.lock();
        let (mut objects, era) = {
            let mut young = self.young.lock();
            let objects = std::mem::replace(&mut *young, List::new());
            (objects, self.era.fetch_add(1, Ordering::Relaxed))
        };
        barrier();
        members.keep_what_is_seen(own, era, most, &mut objects);
        drop(collecting);
        // Outside the locks: what is dropped may retire more.
        drop(objects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::epoch::Fence;
    use std::sync::Arc;

    /// A list of members with one thread, and objects that count themselves.
    struct World {
        members: Members,
        retired: Retired,
        thread: Box<Presence>,
        count: Arc<()>,
    }

    impl World {
        fn new() -> World {
            let (members, retired) = (Members::new(), Retired::new());
            // Its address stays.
            let thread = Box::new(Presence::new());
            members.join(&thread, || Ok(())).unwrap();
            World { members, retired, thread, count: Arc::new(()) }
        }

        fn make(&self) -> Box<Reclaimable<Arc<()>>> {
            Box::new(Reclaimable::new(Arc::clone(&self.count), self.retired.era()))
        }

        fn make_and_retire(&self, count: usize) {
            for _ in 0..count {
                self.retired.add(self.make());
            }
        }

        fn collect(&self) {
            self.retired.collect(&self.members, None, usize::MAX, || ());
        }

        fn alive(&self) -> usize {
            Arc::strong_count(&self.count) - 1
        }

        fn wait(&self) -> crate::base::epoch::Wait {
            self.thread.wait(self.retired.era()).unwrap()
        }
    }

    #[test]
    fn what_a_call_may_see_is_kept_until_it_is_over() {
        let world = World::new();
        world.make_and_retire(3);
        world.thread.enter(Fence::Full);
        world.make_and_retire(3);
        world.collect();
        assert_eq!(world.alive(), 6, "it may have come before any of them was retired");
        world.collect();
        assert_eq!(world.alive(), 6);
        world.thread.leave();
        world.thread.enter(Fence::Full);
        world.collect();
        assert_eq!(world.alive(), 0, "the next call came later");
        world.thread.leave();
    }

    #[test]
    fn a_call_that_waits_keeps_what_is_older() {
        let world = World::new();
        world.thread.enter(Fence::Full);
        let old = world.make();
        let wait = world.wait();
        world.collect();
        for _ in 0..100 {
            world.make_and_retire(10);
            world.collect();
            assert_eq!(world.alive(), 1, "what is made meanwhile is not kept");
        }
        world.retired.add(old);
        world.collect();
        assert_eq!(world.alive(), 1);
        world.thread.go_on(wait, Fence::Full);
        world.collect();
        assert_eq!(world.alive(), 1, "it was found before the wait");
        world.make_and_retire(1);
        world.collect();
        assert_eq!(world.alive(), 2, "and this may have been found after it");
        let wait = world.wait();
        let young = world.make();
        world.collect();
        let younger = world.make();
        world.retired.add(young);
        world.retired.add(younger);
        world.collect();
        assert_eq!(world.alive(), 3);
        world.thread.go_on(wait, Fence::Full);
        world.thread.leave();
        world.collect();
        assert_eq!(world.alive(), 0);
    }

    #[test]
    fn a_callback_of_a_call_that_waits_may_see_whatever_there_is() {
        let world = World::new();
        world.thread.enter(Fence::Full);
        let wait = world.wait();
        world.collect();
        for _ in 0..100 {
            world.thread.enter(Fence::Full);
            world.make_and_retire(1);
            world.collect();
            assert_eq!(world.alive(), 1);
            let inner = world.wait();
            world.collect();
            assert_eq!(world.alive(), 1);
            world.thread.go_on(inner, Fence::Full);
            world.collect();
            world.thread.leave();
            world.collect();
            assert_eq!(world.alive(), 0, "the callback's call is over");
        }
        assert!(world.thread.wait(1).is_none(), "it waits already");
        world.thread.go_on(wait, Fence::Full);
        world.thread.leave();
        assert!(world.thread.wait(1).is_none(), "it is outside");
    }

    #[test]
    fn one_call_after_the_other_keeps_nothing_for_long() {
        let world = World::new();
        let other = Presence::new();
        world.members.join(&other, || Ok(())).unwrap();
        for _ in 0..1000 {
            world.thread.enter(Fence::Full);
            world.make_and_retire(1);
            world.collect();
            other.enter(Fence::Full);
            world.thread.leave();
            world.make_and_retire(1);
            world.collect();
            other.leave();
            assert!(world.alive() <= 2);
        }
        world.collect();
        assert_eq!(world.alive(), 0);
    }

    #[test]
    fn what_a_thread_kept_that_ended_is_dropped() {
        let world = World::new();
        world.thread.enter(Fence::Full);
        world.make_and_retire(100_000);
        world.collect();
        assert_eq!(world.alive(), 100_000);
        world.members.part(&world.thread);
        world.collect();
        assert_eq!(world.alive(), 0);
    }

    #[test]
    fn the_caller_may_leave_itself_out() {
        let world = World::new();
        world.thread.enter(Fence::Full);
        world.make_and_retire(1);
        world.collect();
        assert_eq!(world.alive(), 1, "kept for it by another thread");
        world.make_and_retire(1);
        world.retired.collect(&world.members, Some(&world.thread), usize::MAX, || ());
        assert_eq!(world.alive(), 0);
    }

    #[test]
    fn a_collection_looks_at_so_many() {
        let world = World::new();
        world.thread.enter(Fence::Full);
        world.make_and_retire(1000);
        world.collect();
        assert_eq!(world.alive(), 1000);
        world.thread.leave();
        for left in (0..1000).rev().step_by(100) {
            world.retired.collect(&world.members, None, 100, || ());
            assert_eq!(world.alive(), left / 100 * 100);
        }
    }

    #[test]
    fn retiring_needs_no_host_memory() {
        let _alone = crate::sim::test_lock();
        let world = World::new();
        let objects: Vec<_> = (0..1000).map(|_| world.make()).collect();
        let ours = crate::base::host_faults::ours();
        crate::base::host_faults::set(1, true);
        for object in objects {
            world.retired.add(object);
        }
        world.collect();
        crate::base::host_faults::set(0, false);
        drop(ours);
        assert_eq!(world.alive(), 0);
    }
}
