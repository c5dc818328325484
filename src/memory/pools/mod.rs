//! Private pools: their lifetime, the routing of threads to them, and sleep and wake.
//!
//! Begin with `pool.rs`.

pub mod active_captures;
pub mod pool;
pub mod route;
pub(crate) mod sleep;
