//! What NVML knows of a device: processes, utilisation, clocks, temperature, power.

pub mod monitor;
