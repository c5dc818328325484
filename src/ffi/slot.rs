//! A slot of a handle table. It holds one object after another, each with its own generation. A
//! lookup takes no lock and makes no atomic read-modify-write.

use crate::base::sync::{self, AtomicPtr, AtomicU32, Ordering};

/// A slot: vacant, or with one object.
pub struct Slot<T> {
    generation: AtomicU32,
    object: AtomicPtr<T>,
}

impl<T> Slot<T> {
    sync::constant! {
        /// A vacant slot.
        pub fn new() -> Slot<T> {
            Slot { generation: AtomicU32::new(1), object: AtomicPtr::new(std::ptr::null_mut()) }
        }
    }

    /// The generation of the present object; of a vacant slot, that of the next object.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Puts an object into a vacant slot and returns its generation. Only for the caller that took
    /// the slot's index out of the vacant ones.
    pub fn fill(&self, object: *mut T) -> u32 {
        self.object.store(object, Ordering::Release);
        self.generation.load(Ordering::Relaxed)
    }

    /// The object of a generation, unless it was removed.
    #[inline]
    pub fn find(&self, generation: u32) -> Option<*const T> {
        if self.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        let object = self.object.load(Ordering::Acquire);
        // Equal before and after the load: the object is of this generation.
        let current = self.generation.load(Ordering::Acquire) == generation;
        (current && !object.is_null()).then_some(object.cast_const())
    }

    /// Removes the object of a generation, once. The slot is vacant then, unless its generations
    /// are used up.
    pub fn empty(&self, generation: u32) -> Option<*mut T> {
        let object = self.find(generation)?.cast_mut();
        // Of two calls at once, one removes the object. The generation changes only after that, so
        // that a lookup with the next generation cannot find this object.
        self.object
            .compare_exchange(object, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
        Some(object)
    }
}
