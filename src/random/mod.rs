//! Random numbers: PyTorch's, bit for bit.

pub mod kernels;
pub mod number;
pub mod philox;
pub mod plan;
mod recipe;
