//! Section "NVTX and telemetry" of the header: telemetry.

use super::boundary::{Call, boundary, out};
use super::status::tcuda_status;
use crate::base::error::Result;
use crate::gpu::device::Device;
use crate::telemetry::monitor;

/// Writes one value of a device.
fn give<T>(
    call: &Call,
    device: i32,
    ptr: *mut T,
    name: &'static str,
    ask: fn(&Device) -> Result<T>,
) -> Result<()> {
    let place = out(ptr, name)?;
    place.set(ask(call.gpus()?.device(device)?)?);
    Ok(())
}

/// Share of the last second or so in which kernels ran. The values of this and the next functions
/// come from the driver's management library (NVML). It is opened at the first call, and finds the
/// device whatever CUDA_VISIBLE_DEVICES is. TCUDA_STATUS_NO_LIBRARY without it;
/// TCUDA_STATUS_NOT_SUPPORTED where the GPU has no such value, as parts of a GPU (MIG) have no
/// utilization; TCUDA_STATUS_NVML_ERROR where it fails, or refuses access. The simulated machine
/// returns its own activity, and plausible values for what it does not have (heat, power, clocks).
/// (torch.cuda.utilization)
///
/// @param device        ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] percent  0 to 100
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_monitor_utilization(device: i32, percent: *mut u32) -> tcuda_status {
    boundary(|call| {
        give(call, device, percent, "percent", |device| Ok(monitor::rates(device)?.kernels))
    })
}

/// Share of the last second or so in which the device's memory was read or written.
/// (torch.cuda.memory_usage)
///
/// @param device        ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] percent  0 to 100
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_monitor_memory_usage(
    device: i32,
    percent: *mut u32,
) -> tcuda_status {
    boundary(|call| {
        give(call, device, percent, "percent", |device| Ok(monitor::rates(device)?.memory))
    })
}

/// Temperature of the die. (torch.cuda.temperature)
///
/// @param device        ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] celsius  degrees Celsius
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_monitor_temperature_c(
    device: i32,
    celsius: *mut i32,
) -> tcuda_status {
    boundary(|call| give(call, device, celsius, "celsius", monitor::celsius))
}

/// Power of the board, also for a part of a GPU. (torch.cuda.power_draw)
///
/// @param device           ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] milliwatts  milliwatts
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_monitor_power_draw_mw(
    device: i32,
    milliwatts: *mut u32,
) -> tcuda_status {
    boundary(|call| give(call, device, milliwatts, "milliwatts", monitor::milliwatts))
}

/// Clock of the multiprocessors. (torch.cuda.clock_rate)
///
/// @param device          ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] megahertz  megahertz
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_monitor_clock_rate_mhz(
    device: i32,
    megahertz: *mut u32,
) -> tcuda_status {
    boundary(|call| give(call, device, megahertz, "megahertz", monitor::megahertz))
}

/// Memory in use by all processes, and by the driver. (torch.cuda.device_memory_used)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] bytes  bytes
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_monitor_memory_used(device: i32, bytes: *mut u64) -> tcuda_status {
    boundary(|call| give(call, device, bytes, "bytes", monitor::used_bytes))
}
