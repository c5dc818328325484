//! A GPU in software: reads PTX, and runs its kernels on the host's processor.
//!
//! A module imports modules before its own:
//!
//! 1. `number`: what one instruction computes for one thread, as pure functions;
//! 2. `ptx`: PTX as text and as a tree;
//! 3. `registers`: rows of registers, one value for each lane of a warp;
//! 4. `memory`: the memory that a warp reaches;
//! 5. `program`: functions as closures over rows of registers, made from the tree;
//! 6. `exec`: runs a kernel's grid of blocks of warps;
//! 7. `host`: a machine of buffers of the host, to run kernels without a driver.

pub mod exec;
pub mod host;
pub mod memory;
pub mod number;
pub mod program;
pub mod ptx;
pub mod registers;
