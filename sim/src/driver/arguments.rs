//! The arguments of a driver call: pointers of the host, and conditions with their status.

use crate::base::code;
use cudarc::driver::sys::{CUdevice_P2PAttribute, CUfunction_attribute, CUpointer_attribute};
use std::ffi::c_uint;
use std::mem::transmute_copy;

/// Writes a result through a pointer that the host gave; NULL is `INVALID_VALUE`.
macro_rules! put {
    ($pointer:expr, $value:expr) => {{
        let (pointer, value) = ($pointer, $value);
        if pointer.is_null() {
            Err($crate::base::code::INVALID_VALUE)
        } else {
            // SAFETY: the host promised a valid pointer for the result.
            unsafe { pointer.write_unaligned(value) };
            Ok(())
        }
    }};
}
pub(super) use put;

/// Reads the value at a pointer of the host; NULL is `INVALID_VALUE`.
macro_rules! peek {
    ($pointer:expr) => {{
        let pointer = $pointer;
        if pointer.is_null() {
            Err($crate::base::code::INVALID_VALUE)
        } else {
            // SAFETY: the host promised a valid pointer to an argument.
            Ok(unsafe { pointer.read_unaligned() })
        }
    }};
}
pub(super) use peek;

/// `Err(code)` unless the condition holds.
#[inline]
pub(super) fn require(condition: bool, code: i32) -> Result<(), i32> {
    if condition { Ok(()) } else { Err(code) }
}

/// The enumerator of a number, since a program may pass any; INVALID_VALUE if there is none.
pub(super) fn enumerator<E: Enumeration>(number: c_uint) -> Result<E, i32> {
    require((E::FIRST..=E::LAST).contains(&number), code::INVALID_VALUE)?;
    // SAFETY: an enumeration of 32 bits that has every number of the range.
    Ok(unsafe { transmute_copy::<c_uint, E>(&number) })
}

/// An enumeration of CUDA without gaps.
pub(super) trait Enumeration: Sized {
    /// The lowest number.
    const FIRST: c_uint;
    /// The highest number.
    const LAST: c_uint;
}

macro_rules! enumerations {
    ($($name:ident $first:ident to $last:ident;)*) => {$(
        impl Enumeration for $name {
            const FIRST: c_uint = $name::$first as c_uint;
            const LAST: c_uint = $name::$last as c_uint;
        }
    )*};
}

enumerations! {
    CUdevice_P2PAttribute
        CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK to CU_DEVICE_P2P_ATTRIBUTE_ACCESS_ACCESS_SUPPORTED;
    CUfunction_attribute
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK to CU_FUNC_ATTRIBUTE_MAX;
    CUpointer_attribute
        CU_POINTER_ATTRIBUTE_CONTEXT to CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
}
