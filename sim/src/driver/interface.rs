//! What the library offers beside CUDA's driver API, to hosts that know it: tcuda, its tests, and
//! stand-ins for libraries that call the driver. A host finds [`tcuda_sim_interface`] with dlsym.

use super::config::Config;
use super::error::ConfigError;
use super::hooks::Hooks;
use super::{LiveObjects, exports, power_off, power_on, rates};
use crate::base::reserve;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::{Display, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// The version of [`Interface`]. It grows when a field changes its meaning; new fields are added at
/// the end, and `bytes` tells whether they exist.
pub const VERSION: u32 = 1;

/// Success.
pub const OK: c_int = 0;
/// The options are wrong, or a machine with other options is on; the message says which.
pub const INVALID: c_int = 1;
/// The host lacks memory or descriptors.
pub const NO_RESOURCES: c_int = 2;

/// A text of the caller: no NUL is needed.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Text {
    /// UTF-8.
    pub bytes: *const u8,
    /// Number of bytes.
    pub length: usize,
}

/// Room of the caller for a message, which is cut and NUL-terminated.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Message {
    /// May be NULL if `room` is 0.
    pub text: *mut c_char,
    /// Bytes, with the NUL.
    pub room: usize,
}

/// What a host must know about a machine that is on.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Started {
    /// 1: nothing depends on time, so that the host can make its runs repeatable.
    pub is_repeatable: c_int,
    /// 1: the schedule decides which host thread continues. Threads call [`Interface::call`] where
    /// a call of the host begins, and [`Interface::yield_turn`] where they wait for each other.
    pub keeps_turns: c_int,
}

/// Utilisation of a device over the last second, in percent.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Rates {
    /// Time in which kernels ran.
    pub kernels: u32,
    /// Time in which memory was accessed.
    pub memory: u32,
}

/// The functions. All may be called from any thread, and none unwinds.
#[repr(C)]
pub struct Interface {
    /// Size of this structure.
    pub bytes: usize,
    /// Checks options ("devices=4,memory=16GiB").
    pub check: unsafe extern "C" fn(options: Text, message: Message) -> c_int,
    /// Powers a machine on. `hooks` may be NULL. If other programs of the process use a machine
    /// already, the same options, or none, join it.
    pub power_on: unsafe extern "C" fn(
        options: Text,
        hooks: *const Hooks,
        started: *mut Started,
        message: Message,
    ) -> c_int,
    /// Finishes all work and frees everything, unless other programs of the process use the machine
    /// through its exported functions.
    pub power_off: extern "C" fn(),
    /// Counts the live objects; all zero without a machine.
    pub live_objects: unsafe extern "C" fn(live: *mut LiveObjects),
    /// Utilisation of a device; 0 without a machine.
    pub rates: extern "C" fn(device: c_int) -> Rates,
    /// A call of the host begins: returns when it is this thread's turn.
    pub call: extern "C" fn(),
    /// This thread cannot continue before another has made progress: returns when that may have
    /// happened. 0: the thread is not scheduled, and has to wait by itself.
    pub yield_turn: extern "C" fn() -> c_int,
    /// The address of a driver function by its symbol ("cuMemAlloc_v2"), or the newest of a name
    /// ("cuMemAlloc"); NULL if there is none. Its cuInit initialises the machine that is on; the
    /// exported one also keeps it on until the process ends.
    pub function: unsafe extern "C" fn(name: *const c_char) -> *mut c_void,
}

static INTERFACE: Interface = Interface {
    bytes: size_of::<Interface>(),
    check,
    power_on: start,
    power_off: stop,
    live_objects: count,
    rates: measure,
    call: super::meet,
    yield_turn: super::give_way,
    function,
};

/// The interface of a version; NULL if the library does not have it.
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_sim_interface(version: u32) -> *const Interface {
    if version == VERSION { &INTERFACE } else { ptr::null() }
}

/// # Safety
/// `text` is the caller's, and lives as long as the result is used.
unsafe fn read<'a>(text: Text) -> Option<&'a str> {
    if text.length == 0 {
        return Some("");
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(text.bytes, text.length) };
    std::str::from_utf8(bytes).ok()
}

/// Writes into the room of a message.
struct Writer(Message, usize);

impl Write for Writer {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            if self.1 + 1 < self.0.room {
                // SAFETY: within the room that the caller gave.
                unsafe { self.0.text.wrapping_add(self.1).write(byte as c_char) };
                self.1 += 1;
            }
        }
        Ok(())
    }
}

fn refuse(code: c_int, reason: &dyn Display, message: Message) -> c_int {
    let mut writer = Writer(message, 0);
    let _ = write!(writer, "{reason}");
    if writer.1 < message.room {
        // SAFETY: within the room that the caller gave.
        unsafe { message.text.wrapping_add(writer.1).write(0) };
    }
    code
}

fn answer(body: impl FnOnce() -> Result<(), ConfigError>, message: Message) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OK,
        Ok(Err(error)) if error.is_the_hosts() => refuse(NO_RESOURCES, &error, message),
        Ok(Err(error)) => refuse(INVALID, &error, message),
        Err(_) => refuse(INVALID, &"internal error of the simulator; please report it", message),
    }
}

unsafe extern "C" fn check(options: Text, message: Message) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { read(options) } {
        Some(options) => answer(|| Config::parse(options).map(drop), message),
        None => refuse(INVALID, &"the options are not UTF-8", message),
    }
}

unsafe extern "C" fn start(
    options: Text,
    hooks: *const Hooks,
    started: *mut Started,
    message: Message,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { read(options) }) else {
        return refuse(INVALID, &"the options are not UTF-8", message);
    };
    // SAFETY: NULL, or hooks as the caller's version declares them.
    let hooks = unsafe { Hooks::read(hooks) };
    let body = || {
        let now = power_on(options, hooks)?;
        if !started.is_null() {
            // SAFETY: the caller's pointer to a result.
            unsafe { started.write(now) };
        }
        Ok(())
    };
    answer(body, message)
}

extern "C" fn stop() {
    let _ = catch_unwind(power_off);
}

unsafe extern "C" fn count(live: *mut LiveObjects) {
    let now = catch_unwind(super::live_objects).unwrap_or_default();
    if !live.is_null() {
        // SAFETY: the caller's pointer to a result.
        unsafe { live.write(now) };
    }
}

extern "C" fn measure(device: c_int) -> Rates {
    catch_unwind(|| rates(device)).unwrap_or_default()
}

unsafe extern "C" fn function(name: *const c_char) -> *mut c_void {
    let _reserve = reserve::hold();
    if name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: not NULL, and NUL-terminated by the caller's promise.
    match unsafe { CStr::from_ptr(name) }.to_str() {
        Ok("cuInit") => super::device_calls::initialize as *mut c_void,
        Ok(name) => exports::find(name),
        Err(_) => ptr::null_mut(),
    }
}
