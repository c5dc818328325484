//! The arguments of a driver call: pointers of the host, and conditions with their status.

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
