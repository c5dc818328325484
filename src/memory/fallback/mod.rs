//! The fallbacks before an allocation fails, and the release of memory to the driver.
//!
//! Begin with `slow_path.rs`.

pub mod observers;
pub(crate) mod reclaim;
pub(crate) mod shortage;
pub(crate) mod slow_path;
