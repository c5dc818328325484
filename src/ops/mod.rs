//! Copies, fills and host functions, ordered on streams. Imports `memory` and what is below it.
//!
//! Begin with `copy.rs`; `fill.rs` chooses between driver calls and the kernels of `kernels.rs`.

pub mod callback;
pub mod captured_callback;
pub mod copy;
pub mod fill;
pub mod kernels;
pub mod observed_ops;
pub mod stream_range;
