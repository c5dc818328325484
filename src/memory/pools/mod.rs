//! Private pools: their lifetime, the routing of threads to them, sleep and wake.
//!
//! Begin with `pool.rs`.

pub mod pool;
pub mod route;
pub(crate) mod sleep;
