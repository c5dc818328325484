//! Section "Streams and events" of the header: copies and fills.

use super::boundary::{boundary, bytes};
use super::status::tcuda_status;
use super::stream::{optional, tcuda_stream};
use crate::base::error::{Error, Result};
use crate::ops::copy::{self, Rows};
use crate::ops::observed_ops;
use std::ffi::c_void;

/// The address of a pointer that must not be NULL.
fn address(ptr: *const c_void, name: &'static str) -> Result<u64> {
    if ptr.is_null() { Err(Error::Null { name }) } else { Ok(ptr as u64) }
}

/// Copies bytes between any two addresses, of the host or of any device. Only copies of pageable
/// host memory wait, which TCUDA_SYNC_DEBUG_ERROR refuses with TCUDA_STATUS_WOULD_SYNCHRONIZE. The
/// two ranges must not overlap. They are not checked: an invalid address may lose the device
/// (TCUDA_STATUS_DEVICE_LOST), as in CUDA. (+)
///
/// @param dst, src  device or host memory; may be NULL if bytes is 0
/// @param bytes     length of both ranges; 0: nothing is done
/// @param stream    NULL: the current stream of dst's device, else of src's
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_copy(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = optional(stream, call)?;
        if bytes == 0 {
            return Ok(());
        }
        let (dst, src) = (address(dst, "dst")?, address(src, "src")?);
        let gpus = call.gpus()?;
        let stream = copy::stream_for(gpus, stream, &[dst, src])?;
        observed_ops::copy_for_host(gpus, dst, src, bytes as u64, stream)
    })
}

/// Copies `rows` rows of `width_bytes` each; a pitch is the distance between two rows. (+)
///
/// @param dst, src         device or host memory; may be NULL if nothing is to be copied
/// @param dst_pitch_bytes  at least width_bytes
/// @param src_pitch_bytes  at least width_bytes
/// @param width_bytes      of a row; 0: nothing is done
/// @param rows             how many; 0: nothing is done
/// @param stream           NULL: the current stream of dst's device, else of src's
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_copy_2d(
    dst: *mut c_void,
    dst_pitch_bytes: usize,
    src: *const c_void,
    src_pitch_bytes: usize,
    width_bytes: usize,
    rows: usize,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = optional(stream, call)?;
        if width_bytes == 0 || rows == 0 {
            return Ok(());
        }
        let (dst, src) = (address(dst, "dst")?, address(src, "src")?);
        let gpus = call.gpus()?;
        let stream = copy::stream_for(gpus, stream, &[dst, src])?;
        let dst = Rows { address: dst, pitch: dst_pitch_bytes as u64 };
        let src = Rows { address: src, pitch: src_pitch_bytes as u64 };
        observed_ops::copy_2d_for_host(gpus, dst, src, width_bytes as u64, rows as u64, stream)
    })
}

/// Writes a value repeatedly. As for tcuda_copy, the range is not checked. (+)
///
/// @param ptr          device memory, of any alignment; may be NULL if count is 0
/// @param value        host memory, read before the call returns
/// @param value_bytes  1 to 16
/// @param count        how many times
/// @param stream       NULL: the current stream of ptr's device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_fill(
    ptr: *mut c_void,
    value: *const c_void,
    value_bytes: usize,
    count: usize,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let stream = optional(stream, call)?;
        if !(1..=16).contains(&value_bytes) {
            return Err(Error::OutOfRange {
                name: "value_bytes",
                value: value_bytes as i64,
                allowed: "use 1 to 16",
            });
        }
        let value = bytes(value.cast(), value_bytes, "value")?;
        if count == 0 {
            return Ok(());
        }
        let ptr = address(ptr, "ptr")?;
        let gpus = call.gpus()?;
        let stream = copy::stream_for(gpus, stream, &[ptr])?;
        observed_ops::fill_for_host(gpus, ptr, value, count as u64, stream)
    })
}
