//! File descriptors of the library. A forked child closes them: a copy in the child would keep
//! connections open that the other process should see as closed.

use crate::base::error::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bound of the descriptors that are tracked; usual limits of a process are lower.
const MAX: usize = 1 << 16;

/// One bit for each descriptor of the library. Lock-free, because a fork may happen at any time.
static OWNED: [AtomicU64; MAX / 64] = [const { AtomicU64::new(0) }; MAX / 64];

/// A file descriptor, closed when it is dropped.
#[derive(Debug)]
pub struct Descriptor(libc::c_int);

impl Descriptor {
    /// The descriptor that a system call returned, or the error that `what` could not be made.
    pub fn of(given: libc::c_long, what: &'static str) -> Result<Descriptor> {
        if given < 0 {
            return Err(failure(what));
        }
        Ok(Descriptor::take(given as libc::c_int))
    }

    /// Takes ownership of a descriptor.
    pub fn take(number: libc::c_int) -> Descriptor {
        if let Some(word) = OWNED.get(number as usize / 64) {
            word.fetch_or(1 << (number % 64), Ordering::Relaxed);
        }
        Descriptor(number)
    }

    /// Takes ownership of a descriptor, and sets its close-on-exec flag.
    pub fn take_and_close_on_exec(number: libc::c_int) -> Descriptor {
        // SAFETY: changes one flag of a descriptor that the caller owns.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        Descriptor::take(number)
    }

    /// The descriptor's number.
    pub fn number(&self) -> libc::c_int {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(word) = OWNED.get(self.0 as usize / 64) {
            word.fetch_and(!(1 << (self.0 % 64)), Ordering::Relaxed);
        }
        // SAFETY: owned, and not referenced elsewhere.
        unsafe { libc::close(self.0) };
    }
}

/// Closes the library's descriptors in a forked child.
pub fn close_in_child() {
    for (index, word) in OWNED.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let number = (index * 64) as libc::c_int + bits.trailing_zeros() as libc::c_int;
            // SAFETY: the child's copy of a descriptor of the library, which the child does not
            // use.
            unsafe { libc::close(number) };
            bits &= bits - 1;
        }
    }
}

/// The error for the current `errno`.
pub fn failure(what: &'static str) -> Error {
    match errno() {
        libc::ENOMEM | libc::ENOBUFS | libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS => {
            Error::OutOfHostMemory("descriptors: close some, or raise the limit (ulimit -n)")
        }
        _ => Error::NotSupported { what, by: "system" },
    }
}

/// The calling thread's `errno`.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_descriptors_are_tracked() {
        // SAFETY: makes a descriptor.
        let made = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        let own = Descriptor::of(made.into(), "an event").unwrap();
        let word = &OWNED[own.number() as usize / 64];
        let bit = 1 << (own.number() % 64);
        assert!(word.load(Ordering::Relaxed) & bit != 0);
        drop(own);
        assert!(word.load(Ordering::Relaxed) & bit == 0);
        assert!(Descriptor::of(-1, "nothing").is_err());
    }
}
