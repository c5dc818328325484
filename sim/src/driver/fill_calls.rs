//! The calls that fill memory, on a stream or on the default one.

use super::address_space::Accessor;
use super::arguments::require;
use super::copy::Fill;
use super::entry::entry;
use super::machine::Machine;
use super::pointer_calls::is_synchronous;
use super::queue::Action;
use super::sync::read;
use super::transfer_calls::is_mapped;
use crate::base::code;
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use std::ffi::{c_int, c_uchar, c_uint, c_ushort};
use std::ptr;

/// Checks that the device can access the whole range.
pub(super) fn is_fillable(machine: &Machine, device: usize, fill: &Fill) -> Result<(), i32> {
    let bytes = fill.extent().ok_or(code::INVALID_VALUE)?;
    let is_device = read(&machine.memory.space).contains(fill.address);
    require(is_device || machine.memory.is_pinned(fill.address, bytes), code::INVALID_VALUE)?;
    let accessor = Accessor { device, write: true, staged: false };
    is_mapped(machine, accessor, fill.address, bytes)
}

/// Queues a fill. Without a stream it runs on the default stream, and memory of the host is filled
/// when the call returns.
fn fill(stream: Option<CUstream>, fill: Fill) -> c_int {
    entry(|machine| {
        let is_call_on_default = stream.is_none();
        let stream = machine.stream(stream.unwrap_or(ptr::null_mut()))?;
        if is_call_on_default {
            machine.captures.refuse_wait(&stream)?;
        }
        let records = machine.captures.records(&stream)?;
        require(fill.is_valid(), code::INVALID_VALUE)?;
        if fill.is_empty() && !records {
            return Ok(());
        }
        require(fill.is_aligned(), code::INVALID_VALUE)?;
        require(records || fill.address != 0, code::INVALID_VALUE)?;
        if fill.is_empty() {
            return Ok(());
        }
        // A captured fill is checked when the graph is instantiated.
        if !records {
            is_fillable(machine, stream.device, &fill)?;
        }
        let is_device = read(&machine.memory.space).contains(fill.address);
        let waits = is_call_on_default && (!is_device || is_synchronous(machine, fill.address));
        let point = machine.submit(&stream, Vec::new(), Action::Fill(fill))?;
        if waits { machine.wait(&point) } else { Ok(()) }
    })
}

/// The calls for elements of a type: contiguous and in rows, on the default stream and on another.
macro_rules! fills {
    ($($value:ty: $flat:ident $flat_async:ident $rows:ident $rows_async:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $flat(
            ptr: CUdeviceptr,
            value: $value,
            count: usize,
        ) -> c_int {
            fill(None, Fill::row(ptr as usize, value.into(), size_of::<$value>(), count))
        }

        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $flat_async(
            ptr: CUdeviceptr,
            value: $value,
            count: usize,
            stream: CUstream,
        ) -> c_int {
            fill(Some(stream), Fill::row(ptr as usize, value.into(), size_of::<$value>(), count))
        }

        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $rows(
            ptr: CUdeviceptr,
            pitch: usize,
            value: $value,
            count: usize,
            rows: usize,
        ) -> c_int {
            let row = Fill::row(ptr as usize, value.into(), size_of::<$value>(), count);
            fill(None, Fill { pitch, rows, ..row })
        }

        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $rows_async(
            ptr: CUdeviceptr,
            pitch: usize,
            value: $value,
            count: usize,
            rows: usize,
            stream: CUstream,
        ) -> c_int {
            let row = Fill::row(ptr as usize, value.into(), size_of::<$value>(), count);
            fill(Some(stream), Fill { pitch, rows, ..row })
        }
    )*};
}

fills! {
    c_uchar: cuMemsetD8_v2 cuMemsetD8Async cuMemsetD2D8_v2 cuMemsetD2D8Async;
    c_ushort: cuMemsetD16_v2 cuMemsetD16Async cuMemsetD2D16_v2 cuMemsetD2D16Async;
    c_uint: cuMemsetD32_v2 cuMemsetD32Async cuMemsetD2D32_v2 cuMemsetD2D32Async;
}
