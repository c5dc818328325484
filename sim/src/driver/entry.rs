//! The entry of every driver call: finds the machine, and turns panics into a status.

use super::arguments::require;
use super::hardware::in_callback;
use super::machine::Machine;
use super::sync::read;
use crate::base::code;
use crate::base::reserve;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

/// The machine that is on.
pub(super) static MACHINE: RwLock<Option<Arc<Machine>>> = RwLock::new(None);

/// True once a machine was on in this process.
static WAS_ON: AtomicBool = AtomicBool::new(false);

/// Notes that a machine is on.
pub(super) fn note_power_on() {
    WAS_ON.store(true, Ordering::Release);
}

/// True in the child of a process with a machine of its programs, whose threads are not there.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    IS_FORKED.store(true, Ordering::Release);
}

/// From now on, children that are forked have no machine, as with the driver (580.159).
pub(super) fn refuse_children() {
    // SAFETY: the handler is async-signal-safe, and the library is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Fails in a forked child.
pub(super) fn require_no_fork() -> Result<(), i32> {
    require(!IS_FORKED.load(Ordering::Acquire), code::NOT_INITIALIZED)
}

/// The status of calls without a machine.
fn status_without_machine() -> i32 {
    let was_on = WAS_ON.load(Ordering::Acquire) && require_no_fork().is_ok();
    if was_on { code::DEINITIALIZED } else { code::NOT_INITIALIZED }
}

/// The machine that is on. A forked child does not touch the lock, which another thread of its
/// parent may have held.
#[inline]
pub(super) fn machine() -> Option<Arc<Machine>> {
    require_no_fork().ok()?;
    read(&MACHINE).as_ref().map(Arc::clone)
}

/// The wrapper of every call that works before cuInit.
#[inline]
pub(super) fn entry_before_init(body: impl FnOnce(&Arc<Machine>) -> Result<(), i32>) -> c_int {
    guard(|| {
        if in_callback() {
            return Err(code::NOT_PERMITTED);
        }
        // From here on no small host allocation can fail.
        let _reserve = reserve::hold().ok_or(code::OUT_OF_MEMORY)?;
        let machine = machine().ok_or_else(status_without_machine)?;
        machine.schedule.call();
        body(&machine)
    })
}

/// Turns an error, and a panic, into a status.
pub(super) fn guard(body: impl FnOnce() -> Result<(), i32>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => code::UNKNOWN,
    }
}

/// The wrapper of every other call: catches panics, and keeps the machine alive during the call.
#[inline]
pub(super) fn entry(body: impl FnOnce(&Arc<Machine>) -> Result<(), i32>) -> c_int {
    entry_before_init(|machine| {
        require(machine.initialised.load(Ordering::Acquire), code::NOT_INITIALIZED)?;
        body(machine)
    })
}

/// The wrapper of a call that validates an argument before it checks that the driver is
/// initialised.
#[inline]
pub(super) fn entry_checked(
    check: Result<(), i32>,
    body: impl FnOnce(&Arc<Machine>) -> Result<(), i32>,
) -> c_int {
    if let Err(code) = check
        && !WAS_ON.load(Ordering::Acquire)
    {
        return code;
    }
    entry_before_init(|machine| {
        check?;
        require(machine.initialised.load(Ordering::Acquire), code::NOT_INITIALIZED)?;
        body(machine)
    })
}
