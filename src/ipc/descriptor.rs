//! Descriptors of the library's own, which a forked child closes: it would keep alive what the others
//! think is gone, and answers nobody.

use crate::base::error::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors below this are known; no usual limit lets a process have more.
const MOST: usize = 1 << 16;

/// A bit for each that is ours. No lock, since a fork may come at any time.
static OURS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// A descriptor, closed when it is dropped.
#[derive(Debug)]
pub struct Descriptor(libc::c_int);

impl Descriptor {
    /// What a call of the system's gave: a descriptor, or a failure to make `what`.
    pub fn of(given: libc::c_long, what: &'static str) -> Result<Descriptor> {
        if given < 0 {
            return Err(failure(what));
        }
        Ok(Descriptor::take(given as libc::c_int))
    }

    /// A descriptor that is ours from now on.
    pub fn take(number: libc::c_int) -> Descriptor {
        if let Some(word) = OURS.get(number as usize / 64) {
            word.fetch_or(1 << (number % 64), Ordering::Relaxed);
        }
        Descriptor(number)
    }

    /// The same where nobody promises that it goes when the process runs another program: it does then.
    pub fn take_and_close_on_exec(number: libc::c_int) -> Descriptor {
        // SAFETY: changes one bit of a descriptor that is ours.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        Descriptor::take(number)
    }

    /// Its number.
    pub fn number(&self) -> libc::c_int {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(word) = OURS.get(self.0 as usize / 64) {
            word.fetch_and(!(1 << (self.0 % 64)), Ordering::Relaxed);
        }
        // SAFETY: ours, and named nowhere else.
        unsafe { libc::close(self.0) };
    }
}

/// Closes what a forked child has of ours.
pub fn close_in_child() {
    for (index, word) in OURS.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let number = (index * 64) as libc::c_int + bits.trailing_zeros() as libc::c_int;
            // SAFETY: the child's copy of a descriptor of ours, which it does not use.
            unsafe { libc::close(number) };
            bits &= bits - 1;
        }
    }
}

/// The system's last refusal.
pub fn failure(what: &'static str) -> Error {
    match errno() {
        libc::ENOMEM | libc::ENOBUFS | libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS => {
            Error::OutOfHostMemory("descriptors: close some, or raise the limit (ulimit -n)")
        }
        _ => Error::NotSupported { what, by: "system" },
    }
}

/// The calling thread's errno.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_known_as_long_as_it_is_open() {
        // SAFETY: makes a descriptor.
        let made = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        let own = Descriptor::of(made.into(), "an event").unwrap();
        let word = &OURS[own.number() as usize / 64];
        let bit = 1 << (own.number() % 64);
        assert!(word.load(Ordering::Relaxed) & bit != 0);
        drop(own);
        assert!(word.load(Ordering::Relaxed) & bit == 0);
        assert!(Descriptor::of(-1, "nothing").is_err());
    }
}
