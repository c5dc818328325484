//! Sources of device memory: mapped physical handles, cuMemAlloc, managed memory, allocators of the
//! host; and the
//! limit of the memory that the cache may hold.
//!
//! Begin with `virtual_memory.rs` (mapped memory) and `source.rs` (whole segments).

pub(crate) mod limit;
pub mod managed;
pub mod pluggable;
pub mod source;
pub mod virtual_memory;
