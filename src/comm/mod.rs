//! Collectives of one process: what is on one device, or on many, to others.

pub mod kernels;
pub mod path;
pub mod team;
