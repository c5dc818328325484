//! Sizes.

#[path = "../../../src/memory/config/size.rs"]
pub mod size;
