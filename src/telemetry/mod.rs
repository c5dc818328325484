//! What NVML knows of a device: processes, utilisation, clocks, temperature, power. Imports
//! `gpu` and what is below it.

pub mod monitor;
