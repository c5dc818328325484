//! NVTX ranges of the library's own calls, if TCUDA_NVTX is set: each call of the C interface is a
//! range of the domain "tcuda", on the calling thread.

use super::table::Domain;
use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::text::Text;
use crate::base::text::function_of;
use crate::observe::flags::{self, Watcher};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_ON: AtomicBool = AtomicBool::new(false);
static DOMAIN: Domain = Domain::new();

/// Is TCUDA_NVTX set?
pub fn is_wanted() -> Result<bool> {
    match environment::text(c"TCUDA_NVTX")? {
        "" | "0" => Ok(false),
        "1" => Ok(true),
        other => Err(Error::BadText {
            name: "TCUDA_NVTX",
            value: Text::new(other),
            allowed: "use 1, or 0 as when it is not set",
        }),
    }
}

/// Turns the ranges of later calls on or off.
pub fn set(wanted: bool) {
    let on = wanted && super::is_attached() && DOMAIN.create(c"tcuda");
    flags::change(Watcher::Ranges, IS_ON.swap(on, Ordering::Release), on);
}

/// Are ranges of calls on?
#[inline(always)]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// The range of a call, until it is dropped; empty if ranges are off.
pub struct Range(bool);

impl Range {
    /// The range of the call with the body `F`.
    #[inline(always)]
    pub fn of<F>() -> Range {
        Range(is_on() && push(std::any::type_name::<F>()))
    }
}

impl Drop for Range {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0 {
            pop();
        }
    }
}

/// Size of a function's name, including its NUL.
const ROOM: usize = 96;

#[cold]
fn push(path: &str) -> bool {
    let name = function_of(path).as_bytes();
    let mut buffer = [0; ROOM];
    let len = name.len().min(ROOM - 1);
    buffer[..len].copy_from_slice(&name[..len]);
    CStr::from_bytes_until_nul(&buffer).is_ok_and(|name| DOMAIN.push(name))
}

#[cold]
fn pop() {
    DOMAIN.pop();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcuda_example() -> &'static str {
        fn path<F>(_: &F) -> &'static str {
            std::any::type_name::<F>()
        }
        let body = || 1;
        function_of(path(&body))
    }

    #[test]
    fn a_call_has_the_name_of_its_function() {
        assert_eq!(tcuda_example(), "tcuda_example");
        let generic = "tcuda::ffi::f<tcuda::ffi::tcuda_other::{{closure}}>::{{closure}}";
        assert_eq!(function_of(generic), "tcuda_other");
        assert_eq!(function_of("f"), "f");
    }
}
