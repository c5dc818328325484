//! The wrong arguments of each call: a sequence for each, under its name. What no row has crashes the
//! driver: handles that are none, NULL where it writes without a look.

#![allow(non_snake_case, reason = "CUDA's own names")]

pub mod devices;
pub mod memory;
pub mod modules;
pub mod streams;
pub mod virtual_memory;
