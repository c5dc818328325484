//! NVTX ranges, and the control of an attached profiler.
//!
//! Begin with `nvtx/mod.rs`.

pub mod nvtx;
pub mod profiler;
