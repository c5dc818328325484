//! Sources of device memory: mapped physical handles, whole segments, the driver's memory pools,
//! allocators of the host, and single uncached blocks.
//!
//! Begin with `segment.rs` (mapped memory) and `segmented/mod.rs` (segments of cuMemAlloc).

pub(crate) mod driver_pool;
pub(crate) mod holes;
pub(crate) mod limit;
pub mod pluggable;
pub mod segment;
pub mod segmented;
pub(crate) mod slots;
pub mod source;
pub mod uncached;
pub mod virtual_memory;
