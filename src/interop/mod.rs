//! Integration with other libraries: PyTorch's allocator entry points (`torch.rs`), cuBLAS and
//! cuSOLVER handles (`math_handles.rs`).

pub mod math_handles;
pub mod torch;
