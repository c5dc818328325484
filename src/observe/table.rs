//! A table of functions that a layer above installs. A lower layer calls them without an import.

use std::sync::atomic::{AtomicPtr, Ordering};

/// The place of a table; it is empty at first.
pub struct Table<T: 'static>(AtomicPtr<T>);

impl<T> Table<T> {
    /// Without functions.
    pub const fn new() -> Table<T> {
        Table(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Installs functions, or (`None`) removes them. Were there any before?
    pub fn install(&self, functions: Option<&'static T>) -> bool {
        let functions = functions.map_or(std::ptr::null(), std::ptr::from_ref);
        !self.0.swap(functions.cast_mut(), Ordering::Release).is_null()
    }

    /// The functions, if any are installed.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // A relaxed load would be enough for constants, and costs the same here.
        let functions = self.0.load(Ordering::Acquire);
        // SAFETY: NULL, or from a reference that lives for ever.
        unsafe { functions.as_ref() }
    }
}
