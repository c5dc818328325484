//! What a device is doing, in the eyes of the driver's management library: who computes on it.
//!
//! The simulated machine answers for itself: this process is the only one on its devices.

use crate::device::Device;
use crate::driver::nvml;
use crate::error::{Error, Result, Users};
use std::fmt;

pub use crate::driver::nvml::Process;

/// The processes that compute on a device.
pub struct Processes {
    /// The device's number in NVML, which does not know CUDA_VISIBLE_DEVICES.
    pub index: u32,
    /// In NVML's order.
    pub list: Vec<Process>,
}

/// Bytes of a MB in PyTorch's text.
const MIB: f64 = 1_048_576.0;

impl Processes {
    /// Those of a device, now.
    pub fn of(device: &Device) -> Result<Processes> {
        let mut list = Vec::new();
        let mut short = false;
        let mut take = |process| match list.try_reserve(1) {
            Ok(()) => list.push(process),
            Err(_) => short = true,
        };
        let index = match device.is_simulated() {
            true => {
                let (free, total) = device.memory.info(device)?;
                take(Process { pid: std::process::id(), used_bytes: Some(total - free) });
                device.ordinal() as u32
            }
            false => nvml::processes(device.properties()?.uuid, &mut take)?,
        };
        if short {
            return Err(Error::OutOfHostMemory("a list of processes"));
        }
        Ok(Processes { index, list })
    }
}

/// Who has memory of a device, as far as anybody tells.
pub fn users(device: &Device) -> Users {
    let mut users = Users::default();
    // A sentence about want of memory is written with or without it.
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
