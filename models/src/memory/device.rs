//! The statistics of a device.

#[path = "../../../src/memory/device/device_stats.rs"]
pub mod device_stats;
