//! Values of NVML. Values that only a whole board has are also returned for a part of it.

use super::nvml::{Failure, Handle, Place, Read, ReadOf, check, functions};
use crate::base::waiting;
use std::ffi::c_uint;

/// nvmlUtilization_t
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Rates {
    /// Percentage of time in which kernels ran.
    pub kernels: c_uint,
    /// Percentage of time in which memory was accessed.
    pub memory: c_uint,
}

/// nvmlMemory_t
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// NVML_TEMPERATURE_GPU: the die.
const DIE: c_uint = 0;
/// NVML_CLOCK_SM
const MULTIPROCESSORS: c_uint = 1;

fn read<T: Default>(
    call: &'static str,
    function: Option<Read<T>>,
    handle: Handle,
) -> Result<T, Failure> {
    let function = function.ok_or(Failure::Missing(call))?;
    let mut value = T::default();
    let _waiting = waiting::begin();
    // SAFETY: the handle is NVML's; `value` is writable.
    check(call, unsafe { function(handle, &mut value) })?;
    Ok(value)
}

fn read_of(
    call: &'static str,
    function: Option<ReadOf>,
    handle: Handle,
    which: c_uint,
) -> Result<u32, Failure> {
    let function = function.ok_or(Failure::Missing(call))?;
    let mut value = 0;
    let _waiting = waiting::begin();
    // SAFETY: the handle is NVML's; `value` is writable.
    check(call, unsafe { function(handle, which, &mut value) })?;
    Ok(value)
}

/// Utilisation of a device.
pub fn rates(place: Place) -> Result<Rates, Failure> {
    let nvml = functions()?;
    let device = nvml.device(place)?.handle;
    read("nvmlDeviceGetUtilizationRates", nvml.utilization, device)
}

/// Memory in use by all processes.
pub fn used_bytes(place: Place) -> Result<u64, Failure> {
    let nvml = functions()?;
    let device = nvml.device(place)?.handle;
    read("nvmlDeviceGetMemoryInfo", nvml.memory, device).map(|memory| memory.used)
}

/// Temperature of the die, in degrees Celsius.
pub fn celsius(place: Place) -> Result<i32, Failure> {
    let nvml = functions()?;
    let board = nvml.board(nvml.device(place)?)?;
    let degrees = read_of("nvmlDeviceGetTemperature", nvml.temperature, board, DIE)?;
    // NVML declares it unsigned, but means a negative number below 0 degrees.
    Ok(degrees as i32)
}

/// Power of the board.
pub fn milliwatts(place: Place) -> Result<u32, Failure> {
    let nvml = functions()?;
    let board = nvml.board(nvml.device(place)?)?;
    read("nvmlDeviceGetPowerUsage", nvml.power, board)
}

/// Clock of the multiprocessors.
pub fn megahertz(place: Place) -> Result<u32, Failure> {
    let nvml = functions()?;
    let board = nvml.board(nvml.device(place)?)?;
    read_of("nvmlDeviceGetClockInfo", nvml.clock, board, MULTIPROCESSORS)
}
