//! The allocator's pieces that threads share without its locks, or by them.

pub mod arena;
pub mod stats;
