//! All of `torch.cuda` as one small C library.
//!
//! The folders are layers: each imports only folders below it (`tests/layers.rs` has the order).
//! [`ffi`] translates between C and the rest and decides nothing; only [`driver`] knows how a GPU
//! is reached; [`runtime`] puts everything together.

pub mod base;
pub mod collectives;
pub mod driver;
pub mod ffi;
pub mod file;
pub mod gpu;
pub mod graph;
pub mod interop;
pub mod ipc;
pub mod jit;
pub mod memory;
pub mod nccl;
pub mod observe;
pub mod ops;
pub mod profiling;
pub mod random;
pub mod runtime;
pub mod sanitizer;
pub mod telemetry;
pub mod tensor;
