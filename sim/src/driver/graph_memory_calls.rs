//! The calls for the memory that graphs allocate.

use super::arguments::{peek, put, require};
use super::entry::entry;
use crate::base::code;
use cudarc::driver::sys::{CUdevice, cuuint64_t};
use std::ffi::{c_int, c_uint, c_void};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attribute: c_uint,
    value: *mut c_void,
) -> c_int {
    entry(|machine| {
        let device = machine.device(device)?.context.device;
        let usage = machine.graph_memory.usage(device, |usage| *usage);
        let number = match attribute {
            0 | 2 => usage.current,
            1 => usage.high[0],
            3 => usage.high[1],
            _ => return Err(code::INVALID_VALUE),
        };
        put!(value.cast::<cuuint64_t>(), number)
    })
}

/// A high-water mark can only be set to 0, which resets it to the current value.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceSetGraphMemAttribute(
    device: CUdevice,
    attribute: c_uint,
    value: *mut c_void,
) -> c_int {
    entry(|machine| {
        let device = machine.device(device)?.context.device;
        let which = match attribute {
            1 => 0,
            3 => 1,
            _ => return Err(code::INVALID_VALUE),
        };
        require(peek!(value.cast::<cuuint64_t>())? == 0, code::INVALID_VALUE)?;
        machine.graph_memory.usage(device, |usage| usage.high[which] = usage.current);
        Ok(())
    })
}

/// Frees the memory that no graph uses any more.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGraphMemTrim(device: CUdevice) -> c_int {
    entry(|machine| {
        machine.device(device)?;
        machine.execs.drop_finished();
        Ok(())
    })
}
