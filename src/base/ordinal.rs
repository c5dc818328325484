//! Ordinals of devices: the special ones, and how many there may be.

/// The thread's current device.
pub const CURRENT: i32 = -1;
/// Host memory, where a destination may be on the host.
pub const CPU: i32 = -2;

/// Maximum number of devices that a process can use.
pub const MAX_DEVICES: usize = 64;
