//! What a device has for collective calls.

use crate::driver::Driver;
use std::sync::atomic::AtomicU64;

/// What a device has for collective calls: kernels, each loaded at its first use.
pub struct Loaded {
    /// Other devices that it cannot reach, a bit each.
    pub(crate) refused_peers: AtomicU64,
}

impl Loaded {
    pub(crate) fn new(_driver: &'static Driver) -> Loaded {
        Loaded { refused_peers: AtomicU64::new(0) }
    }

    /// Unloads what was loaded; the device's context is current and nothing runs.
    pub(crate) fn close(&self) {}
}
