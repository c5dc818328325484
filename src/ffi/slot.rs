//! A place for one object after another, each under a generation of its own. Finding one takes no
//! lock and no atomic read-modify-write.

use crate::base::sync::{self, AtomicPtr, AtomicU32, Ordering};

/// The place.
pub struct Slot<T> {
    generation: AtomicU32,
    object: AtomicPtr<T>,
}

impl<T> Slot<T> {
    sync::constant! {
        /// Vacant.
        pub fn new() -> Slot<T> {
            Slot { generation: AtomicU32::new(1), object: AtomicPtr::new(std::ptr::null_mut()) }
        }
    }

    /// The generation of its present object, or of its next one.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Puts an object into a vacant slot; only for whoever took the slot. Gives its generation.
    pub fn fill(&self, object: *mut T) -> u32 {
        self.object.store(object, Ordering::Release);
        self.generation.load(Ordering::Relaxed)
    }

    /// The object of a generation, if it is there.
    #[inline]
    pub fn find(&self, generation: u32) -> Option<*const T> {
        if self.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        let object = self.object.load(Ordering::Acquire);
        // Asked again: then the object is of this generation.
        let current = self.generation.load(Ordering::Acquire) == generation;
        (current && !object.is_null()).then_some(object.cast_const())
    }

    /// Takes the object of a generation out, once. The slot is vacant then, unless its generations
    /// are used up.
    pub fn empty(&self, generation: u32) -> Option<*mut T> {
        let object = self.find(generation)?.cast_mut();
        // Of two that destroy at once, one takes the object. The generation moves only after that:
        // whoever finds the next one must not find this object.
        self.object
            .compare_exchange(object, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
        Some(object)
    }
}
