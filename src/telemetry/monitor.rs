//! Values of the driver's management library (NVML): processes that compute on a device, its
//! utilisation, clocks, power and temperature.
//!
//! The simulated machine has its own values: this process is the only one on its devices, and
//! values without a simulated source are computed from its load.

use crate::base::error::{Error, Result, Users};
use crate::driver::nvml::{self, Place};
use crate::driver::sim;
use crate::driver::sys::CUdevice_attribute;
use crate::driver::telemetry::{self, Rates};
use crate::gpu::device::Device;
use std::fmt;

pub use crate::driver::nvml::Process;

/// The processes that compute on a device.
pub struct Processes {
    /// The device's index in NVML, which ignores CUDA_VISIBLE_DEVICES.
    pub index: u32,
    /// The processes in NVML's order.
    pub list: Vec<Process>,
}

/// Bytes of a MB in PyTorch's text.
const MIB: f64 = 1_048_576.0;

impl Processes {
    /// The present processes of a device.
    pub fn of(device: &Device) -> Result<Processes> {
        let mut list = Vec::new();
        let mut short = false;
        let mut take = |process| match list.try_reserve(1) {
            Ok(()) => list.push(process),
            Err(_) => short = true,
        };
        let index = match device.is_simulated() {
            true => {
                let (free, total) = device.memory_info()?;
                take(Process { pid: std::process::id(), used_bytes: Some(total - free) });
                device.ordinal() as u32
            }
            false => nvml::processes(place_of(device)?, &mut take)?,
        };
        if short {
            return Err(Error::OutOfHostMemory("a list of processes"));
        }
        Ok(Processes { index, list })
    }
}

/// The device as NVML finds it: CUDA's ordinals differ from NVML's.
fn place_of(device: &Device) -> Result<Place> {
    use CUdevice_attribute::*;
    let number = |attribute| device.attribute_or(attribute, 0);
    Ok(Place {
        uuid: device.properties()?.uuid,
        pci: [
            number(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            number(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            number(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ],
    })
}

/// Percentages of the last second or so in which kernels ran, and in which memory was accessed.
pub fn rates(device: &Device) -> Result<Rates> {
    if device.is_simulated() {
        return Ok(sim::rates(device.ordinal()));
    }
    Ok(telemetry::rates(place_of(device)?)?)
}

/// Memory in use by all processes.
pub fn used_bytes(device: &Device) -> Result<u64> {
    if device.is_simulated() {
        let (free, total) = device.memory_info()?;
        return Ok(total - free);
    }
    Ok(telemetry::used_bytes(place_of(device)?)?)
}

/// Values of an idle simulated device, and what is added at full load.
const IDLE_CELSIUS: u32 = 30;
const LOAD_CELSIUS: u32 = 40;
const IDLE_MILLIWATTS: u32 = 75_000;
const LOAD_MILLIWATTS: u32 = 625_000;
const IDLE_MEGAHERTZ: u32 = 345;

/// Temperature of the die.
pub fn celsius(device: &Device) -> Result<i32> {
    if device.is_simulated() {
        let load = sim::rates(device.ordinal()).kernels;
        return Ok((IDLE_CELSIUS + LOAD_CELSIUS * load / 100) as i32);
    }
    Ok(telemetry::celsius(place_of(device)?)?)
}

/// Power of the board.
pub fn milliwatts(device: &Device) -> Result<u32> {
    if device.is_simulated() {
        let load = sim::rates(device.ordinal()).kernels;
        return Ok(IDLE_MILLIWATTS + LOAD_MILLIWATTS / 100 * load);
    }
    Ok(telemetry::milliwatts(place_of(device)?)?)
}

/// Clock of the multiprocessors; a busy simulated device has its peak clock.
pub fn megahertz(device: &Device) -> Result<u32> {
    if device.is_simulated() {
        let peak = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)? / 1000;
        let is_busy = sim::rates(device.ordinal()).kernels > 0;
        return Ok(if is_busy { peak.max(0) as u32 } else { IDLE_MEGAHERTZ });
    }
    Ok(telemetry::megahertz(place_of(device)?)?)
}

/// The processes with memory of a device, as far as they are known.
pub fn users(device: &Device) -> Users {
    let mut users = Users::default();
    // An out-of-memory message is also written without them.
    let Ok(Processes { list, .. }) = Processes::of(device) else { return users };
    for Process { pid, used_bytes } in list {
        let Some(bytes) = used_bytes else { continue };
        if pid == std::process::id() {
            users.own_bytes = Some(bytes);
            continue;
        }
        let index = users.num_others as usize;
        if index < users.pids.len() {
            (users.pids[index], users.bytes[index]) = (pid, bytes);
        }
        users.num_others += 1;
    }
    users
}

/// PyTorch's text (torch.cuda.list_gpu_processes).
impl fmt::Display for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU:{}", self.index)?;
        if self.list.is_empty() {
            return f.write_str("\nno processes are running");
        }
        for Process { pid, used_bytes } in &self.list {
            match used_bytes {
                Some(bytes) => {
                    let used = *bytes as f64 / MIB;
                    write!(f, "\nprocess {pid:>10} uses {used:>12.3} MB GPU memory")?;
                }
                None => write!(f, "\nprocess {pid:>10} uses {:>12} MB GPU memory", "unknown")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_pytorchs() {
        let none = Processes { index: 3, list: Vec::new() };
        assert_eq!(none.to_string(), "GPU:3\nno processes are running");
        let list = vec![
            Process { pid: 4711, used_bytes: Some(1536 << 10) },
            Process { pid: 1_234_567_890, used_bytes: None },
        ];
        assert_eq!(
            Processes { index: 0, list }.to_string(),
            "GPU:0\n\
             process       4711 uses        1.500 MB GPU memory\n\
             process 1234567890 uses      unknown MB GPU memory"
        );
    }
}
