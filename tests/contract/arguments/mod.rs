//! The wrong arguments of each call: a sequence for each, under its name. What no row has crashes
//! the driver: handles that are none, NULL where it writes without a look.

#![allow(non_snake_case, reason = "CUDA's own names")]

pub mod devices;
pub mod green;
pub mod ipc;
pub mod managed;
pub mod memory;
pub mod modules;
pub mod streams;
pub mod virtual_memory;

use crate::TOPICS;
use tcuda::driver::NAMES;

/// Calls of the driver's table without a sequence of their name. Those of captures and graphs have
/// topics of their own.
pub fn missing() -> Vec<&'static str> {
    let of_captures = |name: &str| {
        name.starts_with("cuGraph")
            || name.ends_with("BeginCapture")
            || name.ends_with("EndCapture")
    };
    let rows = || TOPICS.iter().flat_map(|rows| rows.iter());
    let has_row = |name: &str| rows().any(|row| row.topic == "arguments" && row.name == name);
    NAMES.iter().copied().filter(|name| !of_captures(name) && !has_row(name)).collect()
}
