//! Signals that end a process which writes to a file.

use std::ffi::c_int;

/// Blocks the signals by which the system ends a process that writes a file beyond its limit
/// (ulimit -f), or a FIFO without a reader: the write fails instead.
pub(crate) struct BlockedSignals {
    /// Those of the signals that were not pending before.
    signals: libc::sigset_t,
    before: libc::sigset_t,
}

fn no_signals() -> libc::sigset_t {
    // SAFETY: integers, for which zeros are right.
    let mut signals = unsafe { std::mem::zeroed() };
    // SAFETY: ours to write.
    unsafe { libc::sigemptyset(&mut signals) };
    signals
}

impl BlockedSignals {
    const SIGNALS: [c_int; 2] = [libc::SIGXFSZ, libc::SIGPIPE];

    /// Blocks them until it is dropped.
    pub(crate) fn begin() -> BlockedSignals {
        let (mut all, mut signals) = (no_signals(), no_signals());
        let (mut before, mut waiting) = (no_signals(), no_signals());
        for signal in BlockedSignals::SIGNALS {
            // SAFETY: ours to write, and an existing signal.
            unsafe { libc::sigaddset(&mut all, signal) };
        }
        // SAFETY: both are whole sets.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) };
        // SAFETY: ours to write.
        unsafe { libc::sigpending(&mut waiting) };
        for signal in BlockedSignals::SIGNALS {
            // SAFETY: a whole set.
            if unsafe { libc::sigismember(&waiting, signal) } != 1 {
                // SAFETY: ours to write, and a signal that there is.
                unsafe { libc::sigaddset(&mut signals, signal) };
            }
        }
        BlockedSignals { signals, before }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let taken = || {
            // SAFETY: a whole set; the signal's sender is not requested.
            unsafe { libc::sigtimedwait(&self.signals, std::ptr::null_mut(), &now) }
        };
        while taken() > 0 {}
        // SAFETY: the previous mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
