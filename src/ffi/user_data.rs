//! The host's data for its functions, and the function that destroys it.

use super::library::tcuda_destroy_fn;
use crate::base::waiting;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// The host's data. Dropping it destroys it, if the library has taken it: a call that fails does
/// not take ownership.
pub(super) struct UserData {
    ptr: *mut c_void,
    destroy: tcuda_destroy_fn,
    is_taken: AtomicBool,
}

// SAFETY: the host promises that its functions may run on any thread.
unsafe impl Send for UserData {}
// SAFETY: as above.
unsafe impl Sync for UserData {}

impl UserData {
    /// Data that is still the host's.
    pub(super) fn new(ptr: *mut c_void, destroy: tcuda_destroy_fn) -> UserData {
        UserData { ptr, destroy, is_taken: AtomicBool::new(false) }
    }

    /// The argument of the host's functions.
    pub(super) fn ptr(&self) -> *mut c_void {
        self.ptr
    }

    pub(super) fn has_destroy(&self) -> bool {
        self.destroy.is_some()
    }

    /// Takes ownership, after the last step that can fail.
    pub(super) fn take(&self) {
        self.is_taken.store(true, Ordering::Relaxed);
    }
}

impl Drop for UserData {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy
            && *self.is_taken.get_mut()
        {
            let _waiting = waiting::in_host_function();
            // SAFETY: the host's own function, called once.
            unsafe { destroy(self.ptr) };
        }
    }
}
