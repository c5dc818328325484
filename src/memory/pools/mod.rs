//! Private pools: their handles, the routing of threads to them, and sleep and wake.
//!
//! Begin with `mem_pool.rs`; `arena/pool.rs` has the pools themselves.

pub mod active_captures;
pub(crate) mod cached_heaps;
pub mod mem_pool;
pub mod route;
pub(crate) mod sleep;
pub mod stream_routes;
