//! The fallbacks before an allocation fails.
//!
//! Begin with `slow_path.rs`.

pub mod observers;
pub(crate) mod shortage;
pub(crate) mod slow_path;
