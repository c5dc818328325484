//! Integration with other libraries: PyTorch's allocator entry points (`torch.rs`), cuBLAS and
//! cuSOLVER handles (`blas.rs`).

pub mod blas;
pub mod torch;
