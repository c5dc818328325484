//! Attributes of threads that are created without the standard library.

use std::mem::MaybeUninit;

/// Thread attributes with a stack size; without host memory, the system's default.
pub struct Attributes(Option<libc::pthread_attr_t>);

impl Attributes {
    /// With this stack size.
    pub fn new(stack: usize) -> Attributes {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: writable.
        if unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) } != 0 {
            return Attributes(None);
        }
        // SAFETY: written, as that did not fail.
        let mut attributes = unsafe { attributes.assume_init() };
        // SAFETY: initialised.
        unsafe { libc::pthread_attr_setstacksize(&mut attributes, stack) };
        Attributes(Some(attributes))
    }

    /// NULL for the system's default.
    pub fn get(&self) -> *const libc::pthread_attr_t {
        self.0.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        if let Some(attributes) = &mut self.0 {
            // SAFETY: initialised, and destroyed once.
            unsafe { libc::pthread_attr_destroy(attributes) };
        }
    }
}
