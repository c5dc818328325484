//! Integration with other libraries: memory for native streams (`native_stream.rs`), PyTorch's
//! allocator entry points (`torch.rs`), cuBLAS and cuSOLVER handles (`math_handles.rs`).

pub mod math_handles;
pub mod native_stream;
pub mod torch;
