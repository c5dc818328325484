//! The pieces under model, from the library's own files; `sync` is what differs.

#[path = "../../src/epoch.rs"]
pub mod epoch;
pub mod error;
pub mod ffi;
#[path = "../../src/lock.rs"]
pub mod lock;
#[path = "../../src/log.rs"]
pub mod log;
pub mod memory;
pub mod rank;
pub mod sync;
pub mod thread;
pub mod twin;

/// A search that interrupts threads where they could go on at most so often: `few` times as a part of
/// the tests, `many` times with TCUDA_MODELS_FULL set.
pub fn bounded(few: usize, many: usize) -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    let full = std::env::var_os("TCUDA_MODELS_FULL").is_some();
    builder.preemption_bound = Some(if full { many } else { few });
    builder.max_branches = 10_000;
    builder
}
