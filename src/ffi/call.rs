//! Section "Library" of the header: calls by name, with the error in an object of the caller.

use super::boundary::{Sized_, boundary_outside, struct_out, text};
use super::call_table::ENTRIES;
use super::status::{MESSAGE, last_message, last_native, tcuda_status};
use crate::base::error::{Error, Result};
use crate::base::text::Text;
use std::ffi::{CStr, c_char};

/// What tcuda_call says about a call, in memory of the caller, for any thread to read. (+)
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_error {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// TCUDA_STATUS_OK: the call succeeded.
    pub status: tcuda_status,
    /// What tcuda_last_error_native gives; 0 if there is none.
    pub native_code: i32,
    /// What tcuda_last_error gives; "" if the call succeeded.
    pub message: [c_char; 2048],
}

const _: () = assert!(MESSAGE == 2048, "what tcuda_error has room for");

// SAFETY: repr(C), the size first, integers only.
unsafe impl Sized_ for tcuda_error {}

/// A function that `tcuda_call` finds by its name.
pub struct Entry {
    /// Without a NUL.
    pub name: &'static str,
    /// The size of each parameter: 4 or 8 bytes.
    pub sizes: &'static [usize],
    /// Calls it with an argument for each parameter.
    pub invoke: unsafe fn(*const u64) -> tcuda_status,
}

/// One argument; `arguments` then points to the next one.
///
/// # Safety
/// `arguments` points to an argument for a parameter of this type.
unsafe fn take<T: Copy>(arguments: &mut *const u64) -> T {
    const { assert!(cfg!(target_endian = "little") && matches!(size_of::<T>(), 4 | 8)) };
    let argument = *arguments;
    *arguments = argument.wrapping_add(1);
    // SAFETY: the parameter's type is a number, a pointer or a nullable function, which has 4 or 8
    // bytes; the first of a little-endian number are the narrower one.
    unsafe { argument.cast::<T>().read_unaligned() }
}

macro_rules! arities {
    ($($call:ident $sizes:ident ($($type:ident)*))*) => {$(
        /// Calls a function with the arguments.
        ///
        /// # Safety
        /// What `function` requires; there is an argument for each parameter.
        #[allow(non_snake_case, unused_mut, unused_variables, reason = "for each arity")]
        pub unsafe fn $call<$($type: Copy),*>(
            function: unsafe extern "C" fn($($type),*) -> tcuda_status,
            arguments: *const u64,
        ) -> tcuda_status {
            let mut next = arguments;
            $(
                // SAFETY: there is one for each parameter, in their order.
                let $type = unsafe { take::<$type>(&mut next) };
            )*
            // SAFETY: the caller's promise.
            unsafe { function($($type),*) }
        }

        /// The size of each parameter.
        pub const fn $sizes<$($type),*>(
            _: unsafe extern "C" fn($($type),*) -> tcuda_status,
        ) -> &'static [usize] {
            const { &[$(size_of::<$type>()),*] }
        }
    )*};
}
arities! {
    call0 sizes0 ()
    call1 sizes1 (A)
    call2 sizes2 (A B)
    call3 sizes3 (A B C)
    call4 sizes4 (A B C D)
    call5 sizes5 (A B C D E)
    call6 sizes6 (A B C D E F)
    call7 sizes7 (A B C D E F G)
    call8 sizes8 (A B C D E F G H)
}

/// For messages.
const ARGUMENTS: [&str; 8] = [
    "arguments[0]",
    "arguments[1]",
    "arguments[2]",
    "arguments[3]",
    "arguments[4]",
    "arguments[5]",
    "arguments[6]",
    "arguments[7]",
];

/// The function of this name, after a check of its arguments.
fn checked(function: &str, arguments: *const u64, count: usize) -> Result<&'static Entry> {
    let index = ENTRIES.binary_search_by_key(&function, |entry| entry.name).map_err(|_| {
        let allowed = "pass the name of a function of tcuda.h that returns a status";
        Error::BadText { name: "function", value: Text::new(function), allowed }
    })?;
    let entry = &ENTRIES[index];
    if count != entry.sizes.len() {
        return Err(Error::Count { name: "count", found: count, expected: entry.sizes.len() });
    }
    if arguments.is_null() && count > 0 {
        return Err(Error::Null { name: "arguments" });
    }
    for (index, _) in entry.sizes.iter().enumerate().filter(|(_, size)| **size == 4) {
        let argument = arguments.wrapping_add(index);
        // SAFETY: the caller promises `count` readable arguments.
        let value = unsafe { argument.read_unaligned() }.cast_signed();
        if !(i64::from(i32::MIN)..=i64::from(u32::MAX)).contains(&value) {
            let allowed = "that parameter has 32 bits";
            return Err(Error::OutOfRange { name: ARGUMENTS[index], value, allowed });
        }
    }
    Ok(entry)
}

/// Writes the outcome, unless there is no object: that is recorded. Its frame is not on the stack
/// during the call itself.
#[inline(never)]
fn describe(error: *mut tcuda_error, status: tcuda_status) {
    let Ok(place) = struct_out(error, "error") else { return };
    let mut value = tcuda_error { struct_size: 0, status, native_code: 0, message: [0; MESSAGE] };
    if status != tcuda_status::Ok {
        value.native_code = last_native();
        // SAFETY: a NUL-terminated text of this thread, or a constant.
        let message = unsafe { CStr::from_ptr(last_message()) }.to_bytes();
        let room = &mut value.message[..MESSAGE - 1];
        for (to, from) in room.iter_mut().zip(message) {
            *to = *from as c_char;
        }
    }
    place.set(&value);
}

/// Calls a function of this header by its name and writes what went wrong to an object of the
/// caller: for hosts that move a task to another thread between two calls, where tcuda_last_error
/// may tell about the call of another task. This thread's last error changes as if the function had
/// been called directly. (+)
///
/// @param function       name of any other function that returns a status: "tcuda_malloc"
/// @param arguments      one for each parameter, in their order, 8 bytes each: integers with zero
///                       or sign extension, the bits of a double, the address of what is pointed to
/// @param count          number of arguments, which must be that of the parameters
/// @param[in,out] error  the outcome, written whether the call succeeds or fails
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_call(
    function: *const c_char,
    arguments: *const u64,
    count: usize,
    error: *mut tcuda_error,
) -> tcuda_status {
    let mut entry = None;
    let mut status = boundary_outside(|| {
        struct_out(error, "error")?;
        entry = Some(checked(text(function, "function")?, arguments, count)?);
        Ok(())
    });
    if let Some(entry) = entry {
        // SAFETY: the arguments are those of the function, by the caller's promise.
        status = unsafe { (entry.invoke)(arguments) };
    }
    describe(error, status);
    status
}
