//! The modules of the allocator that threads share without a lock, or that are locks.

pub mod arena;
pub mod config;
pub mod device;
pub mod stats;
