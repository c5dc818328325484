//! Parameters of a launch: one pointer for each, or all in a buffer.

use super::arguments::require;
use crate::base::code;
use crate::program::Parameter;
use std::ffi::c_void;

/// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER` and `_BUFFER_SIZE`.
const END: usize = 0;
const BUFFER: usize = 1;
const SIZE: usize = 2;

/// Reads the parameters of a launch into one buffer, each at its offset.
pub(super) fn read(
    list: &[Parameter],
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Vec<u8>, i32> {
    let total = list.iter().map(|it| it.offset + it.bytes).max().unwrap_or(0);
    if !extra.is_null() {
        require(pointers.is_null(), code::INVALID_VALUE)?;
        return read_buffer(total, extra);
    }
    let mut values = vec![0; total];
    require(list.is_empty() || !pointers.is_null(), code::INVALID_VALUE)?;
    for (index, Parameter { offset, bytes }) in list.iter().enumerate() {
        // SAFETY: the caller passes one pointer for each parameter of the kernel.
        let pointer = unsafe { pointers.wrapping_add(index).read() };
        require(!pointer.is_null(), code::INVALID_VALUE)?;
        // SAFETY: the pointer is to a value of the parameter's size.
        let value = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), *bytes) };
        values[*offset..offset + bytes].copy_from_slice(value);
    }
    Ok(values)
}

/// Reads the buffer that a list of keys and values describes.
fn read_buffer(total: usize, mut extra: *mut *mut c_void) -> Result<Vec<u8>, i32> {
    let mut next = || {
        // SAFETY: the caller's list is readable up to its end marker, which was not read yet.
        let word = unsafe { extra.read() };
        extra = extra.wrapping_add(1);
        word
    };
    let (mut buffer, mut size) = (None, None);
    loop {
        match next().addr() {
            END => break,
            BUFFER => buffer = Some(next()),
            SIZE => size = Some(next()),
            _ => return Err(code::INVALID_VALUE),
        }
    }
    if buffer.is_none() && size.is_none() && total == 0 {
        return Ok(Vec::new());
    }
    let (buffer, size) = buffer.zip(size).ok_or(code::INVALID_VALUE)?;
    require(!buffer.is_null() && !size.is_null(), code::INVALID_VALUE)?;
    // SAFETY: the caller's pointer is to the size of its buffer.
    let size = unsafe { size.cast::<usize>().read() };
    require(size > 0 || total == 0, code::INVALID_VALUE)?;
    require(size <= total, code::LAUNCH_OUT_OF_RESOURCES)?;
    // SAFETY: the buffer is as long as its size says.
    let given = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), size) };
    // The driver accepts a buffer that is too short (580.159). The missing bytes are undefined;
    // here they are zero.
    let mut values = given.to_vec();
    values.resize(total, 0);
    Ok(values)
}
