//! The process's environment, read without an allocation: std's copying functions abort if one
//! fails.

use crate::base::error::{Error, Result};
use crate::base::text::Text;
use std::ffi::{CStr, c_char};

/// A variable's value; `None` when it is unset or empty, or when the program runs with raised
/// privileges: then its caller sets the environment, and must not choose the code that it runs.
pub fn value(variable: &CStr) -> Option<&'static CStr> {
    // SAFETY: getauxval has no preconditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    // SAFETY: the name is NUL-terminated. As with every getenv, the host must not change its
    // environment from another thread meanwhile.
    let value: *const c_char = unsafe { libc::getenv(variable.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns a NUL-terminated string that lives while the environment is unchanged.
    let value = unsafe { CStr::from_ptr(value) };
    (!value.is_empty()).then_some(value)
}

/// [`value`] as text; "" when it is unset.
pub fn text(variable: &'static CStr) -> Result<&'static str> {
    let Some(value) = value(variable) else { return Ok("") };
    value.to_str().map_err(|error| {
        let valid = value.to_bytes().get(..error.valid_up_to()).unwrap_or_default();
        Error::BadText {
            name: variable.to_str().unwrap_or("the environment"),
            value: Text::new(std::str::from_utf8(valid).unwrap_or("")),
            allowed: "what follows there is not UTF-8, which it must be",
        }
    })
}
