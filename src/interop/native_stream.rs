//! Memory for streams that a host has as native handles, as adapters of other libraries do.

use crate::base::error::Result;
use crate::driver::sys::CUstream;
use crate::gpu::device::{CURRENT, Device};
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{LEGACY, PER_THREAD, Stream};
use crate::memory;

/// Allocates for a stream. `device` may be [`CURRENT`].
pub fn allocate(gpus: &Gpus, device: i32, native: CUstream, bytes: u64) -> Result<u64> {
    let device = match device {
        CURRENT => device_of(gpus, native, CURRENT)?,
        _ => gpus.device(device)?,
    };
    let stream = device.streams.named(device, native)?;
    device.memory().allocate(gpus, device, stream, bytes)
}

/// Frees a block in the order of a stream of any device.
pub fn free(gpus: &Gpus, address: u64, native: CUstream) -> Result<()> {
    memory::free_on(gpus, address, stream_for(gpus, address, native)?)
}

/// Records that a block is also used on a stream of any device.
pub fn record(gpus: &Gpus, address: u64, native: CUstream) -> Result<()> {
    memory::record_stream(address, stream_for(gpus, address, native)?)
}

/// The stream that a handle denotes in a call with a block.
fn stream_for(gpus: &Gpus, address: u64, native: CUstream) -> Result<&Stream> {
    let own = memory::device_of(address).ok_or_else(|| memory::unknown_pointer(address))?;
    let device = device_of(gpus, native, own)?;
    device.streams.named(device, native)
}

/// The device of a stream; `own` for a handle that denotes a stream of any device.
fn device_of(gpus: &Gpus, native: CUstream, own: i32) -> Result<&Device> {
    let own = gpus.device(own)?;
    if [0, LEGACY, PER_THREAD].contains(&(native as usize)) || gpus.devices.len() == 1 {
        return Ok(own);
    }
    let context = own.streams.context_of(native)?;
    if own.is_context(context) {
        return Ok(own);
    }
    // For a stream in no primary context the own device returns an error with a reason.
    Ok(gpus.devices.iter().find(|device| device.is_context(context)).unwrap_or(own))
}
