//! Section "Library" of the header: observers.

use super::boundary::{boundary, out};
use super::handle::Table;
use super::status::tcuda_status;
use crate::base::error::Result;
use crate::graph::hooks;
use crate::memory::fallback::observers;
use crate::memory::trace::listeners;

/// A registered callback.
pub struct tcuda_observer {
    _private: [u8; 0],
}

/// Where an observer is registered.
pub(super) enum Registration {
    OutOfMemory(u64),
    MemoryEvents(u64),
    Graphs(hooks::Registration),
}

impl Registration {
    /// A second owner of the same place.
    fn share(&self) -> Registration {
        match self {
            Registration::OutOfMemory(number) => Registration::OutOfMemory(*number),
            Registration::MemoryEvents(number) => Registration::MemoryEvents(*number),
            Registration::Graphs(registration) => Registration::Graphs(registration.share()),
        }
    }
}

pub(super) static OBSERVERS: Table<Registration> = Table::new(6, "observer");

/// Registers an observer by `attach`, and stores its handle in `observer` unless that is NULL.
pub(super) fn register(
    observer: *mut *mut tcuda_observer,
    registration: Registration,
    attach: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if observer.is_null() {
        return attach();
    }
    let place = out(observer, "observer")?;
    let handle = OBSERVERS.insert(registration)?;
    if let Err(error) = attach() {
        OBSERVERS.remove(handle, "observer")?;
        return Err(error);
    }
    place.set(handle as *mut tcuda_observer);
    Ok(())
}

/// Removes an observer. Its user_data is destroyed before this returns; if threads are in the
/// callback, perhaps this one, it is destroyed when the last of them has returned from it. (+)
///
/// @param observer  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_observer_destroy(observer: *mut tcuda_observer) -> tcuda_status {
    boundary(|call| {
        if observer.is_null() {
            return Ok(());
        }
        // The removal may free the handle's own.
        let found = OBSERVERS.get(observer as usize, "observer", call)?.share();
        OBSERVERS.remove(observer as usize, "observer")?;
        match found {
            Registration::OutOfMemory(number) => observers::detach(number),
            Registration::MemoryEvents(number) => listeners::detach(number),
            Registration::Graphs(registration) => registration.detach(),
        }
        Ok(())
    })
}
