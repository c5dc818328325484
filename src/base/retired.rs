//! Retired objects, and when they may be dropped: interval-based reclamation.
//!
//! Time is counted in eras; each collection begins a new one. A call may hold an object only in an
//! era from the object's `born` to its `retired`. A call may have found any object that was not
//! retired before the call began. While it waits (for a device, a lock, a host function) it finds
//! none, so it cannot hold an object that was made after the wait began. An object is dropped when
//! no remaining call may have found it. So a thread that waits for hours keeps the objects that
//! existed when its wait began, and no later ones.
//!
//! Nothing here allocates host memory: the lists are linked through the objects.

use crate::base::epoch::{Participant, Participants};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::sync::{self, AtomicU64, Ordering};
use std::ops::{Deref, DerefMut};

/// A value that threads read without a lock, and that is retired at its end.
pub struct Reclaimable<T: ?Sized> {
    /// Era in which it was made.
    born: u64,
    /// Era in which it was retired.
    retired: u64,
    next: Option<Object>,
    value: T,
}

/// A reclaimable value of any type.
pub type Object = Box<Reclaimable<dyn Send>>;

impl<T> Reclaimable<T> {
    /// A value; `born` is an era that was read before another thread can see the value.
    pub fn new(value: T, born: u64) -> Reclaimable<T> {
        Reclaimable { born, retired: 0, next: None, value }
    }

    /// Initialises a reclaimable in place; `write` writes the value, completely if it succeeds.
    ///
    /// # Safety
    /// `place` is writable and has the size of the type.
    pub unsafe fn write<E>(
        place: *mut Reclaimable<T>,
        born: u64,
        write: impl FnOnce(*mut T) -> Result<(), E>,
    ) -> Result<(), E> {
        // SAFETY: a field of the caller's place.
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

    /// The object of a value's address.
    ///
    /// # Safety
    /// The address is from `into_value`, and is passed here once.
    pub unsafe fn from_value(value: *mut T) -> Box<Reclaimable<T>> {
        // SAFETY: the address has the provenance of the whole allocation, of which the value is a
        // field.
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

/// A linked list of retired objects.
#[derive(Default)]
pub struct List {
    first: Option<Object>,
    len: usize,
}

impl List {
    /// Creates an empty list.
    pub const fn new() -> List {
        List { first: None, len: 0 }
    }

    /// Adds an object at the front.
    pub fn push(&mut self, mut object: Object) {
        object.next = self.first.take();
        self.first = Some(object);
        self.len += 1;
    }

    /// Removes one object.
    pub fn pop(&mut self) -> Option<Object> {
        let mut object = self.first.take()?;
        self.first = object.next.take();
        self.len -= 1;
        Some(object)
    }

    /// Moves all objects of another list here, in no particular order: the shorter list is walked.
    pub fn append(&mut self, other: &mut List) {
        if other.len > self.len {
            std::mem::swap(self, other);
        }
        while let Some(object) = other.pop() {
            self.push(object);
        }
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is the list empty?
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // One after the other: recursive drops of a long list would overflow the stack.
        while self.pop().is_some() {}
    }
}

/// Retired objects that no collection has checked yet; those that a call may still hold are in
/// [`Participants`].
pub struct Retired {
    /// The present era. It changes only with `collecting` and `young` held.
    era: AtomicU64,
    collecting: Mutex<()>,
    young: Mutex<List>,
}

impl Retired {
    sync::constant! {
        /// Creates it without objects, in era 1.
        pub fn new() -> Retired {
            Retired {
                era: AtomicU64::new(1),
                collecting: Mutex::new(Rank::RETIRED, ()),
                young: Mutex::new(Rank::LEAF, List::new()),
            }
        }
    }

    /// The present era. If a call has found an object, the era that it reads is at least the
    /// object's `born`.
    #[inline]
    pub fn era(&self) -> u64 {
        self.era.load(Ordering::Relaxed)
    }

    /// Adds an unreachable object; returns the number of objects that no collection has checked
    /// yet.
    pub fn add(&self, mut object: Object) -> usize {
        let mut young = self.young.lock();
        object.retired = self.era();
        young.push(object);
        young.len()
    }

    /// Drops objects that no call may hold; checks at most `most`, because a call that dropped all
    /// objects of others would itself take as long. `own` is the calling thread, if its own call
    /// does not count. `barrier` makes earlier writes visible to threads that enter.
    pub fn collect(
        &self,
        participants: &Participants,
        own: Option<&Participant>,
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
        participants.take_unseen(own, era, most, &mut objects);
        drop(collecting);
        // Outside the locks: a drop may retire more objects.
        drop(objects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::epoch::Fence;
    use std::sync::Arc;

    /// A list of participants with one thread, and objects that count themselves.
    struct World {
        participants: Participants,
        retired: Retired,
        thread: Box<Participant>,
        count: Arc<()>,
    }

    impl World {
        fn new() -> World {
            let (participants, retired) = (Participants::new(), Retired::new());
            // Boxed, so that its address stays.
            let thread = Box::new(Participant::new());
            participants.add(&thread, || Ok(())).unwrap();
            World { participants, retired, thread, count: Arc::new(()) }
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
            self.retired.collect(&self.participants, None, usize::MAX, || ());
        }

        fn alive(&self) -> usize {
            Arc::strong_count(&self.count) - 1
        }

        fn wait(&self) -> crate::base::epoch::Wait {
            self.thread.begin_wait(self.retired.era()).unwrap()
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
        world.thread.end_wait(wait, Fence::Full);
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
        world.thread.end_wait(wait, Fence::Full);
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
            world.thread.end_wait(inner, Fence::Full);
            world.collect();
            world.thread.leave();
            world.collect();
            assert_eq!(world.alive(), 0, "the callback's call is over");
        }
        assert!(world.thread.begin_wait(1).is_none(), "it waits already");
        world.thread.end_wait(wait, Fence::Full);
        world.thread.leave();
        assert!(world.thread.begin_wait(1).is_none(), "it is outside");
    }

    #[test]
    fn one_call_after_the_other_keeps_nothing_for_long() {
        let world = World::new();
        let other = Participant::new();
        world.participants.add(&other, || Ok(())).unwrap();
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
        world.participants.remove(&world.thread);
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
        world.retired.collect(&world.participants, Some(&world.thread), usize::MAX, || ());
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
            world.retired.collect(&world.participants, None, 100, || ());
            assert_eq!(world.alive(), left / 100 * 100);
        }
    }

    #[test]
    fn retiring_needs_no_host_memory() {
        let _alone = crate::driver::sim::test_lock();
        let world = World::new();
        let objects: Vec<_> = (0..1000).map(|_| world.make()).collect();
        let in_library = crate::base::host_faults::in_library();
        crate::base::host_faults::set(1, true);
        for object in objects {
            world.retired.add(object);
        }
        world.collect();
        crate::base::host_faults::set(0, false);
        drop(in_library);
        assert_eq!(world.alive(), 0);
    }
}
