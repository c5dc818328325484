//! A GPU in software: reads PTX, and runs its kernels on the host's processor.
//!
//! A module imports modules before its own:
//!
//! 1. `base`: the reserve of host memory, CUDA's codes, and what the system lacks in std;
//! 2. `number`: what one instruction computes for one thread, as pure functions;
//! 3. `ptx`: PTX as text and as a tree;
//! 4. `registers`: rows of registers, one value for each lane of a warp;
//! 5. `memory`: the memory that a warp reaches, and the search for races;
//! 6. `program`: functions as closures over rows of registers, made from the tree;
//! 7. `exec`: runs a kernel's grid of blocks of warps;
//! 8. `host`: a machine of buffers of the host, to run kernels without a driver;
//! 9. `driver`: the simulated machine, CUDA's driver API on it, and the exports.

pub mod base;
pub mod driver;
pub mod exec;
pub mod host;
pub mod memory;
pub mod number;
pub mod program;
pub mod ptx;
pub mod registers;
