//! What every module uses: the reserve of host memory, signals, threads' attributes, CUDA's codes.

pub mod code;
pub mod reserve;
pub mod signals;
pub mod sync;
pub mod thread_attributes;
