//! A GPU in software: reads PTX, and runs its kernels on the host's processor.
//!
//! A file imports files of the modules before its own:
//!
//! 1. `number`: what one instruction computes for one thread, as pure functions.

pub mod number;
