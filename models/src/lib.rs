//! The modelled modules, compiled from the library's own files; `sync` is replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub mod base;
pub mod ffi;
pub mod gpu;
pub mod memory;
pub mod sim;
pub mod twin;

/// Runs a model in every interleaving with at most `few` preemptions, or `many` with
/// TCUDA_MODELS_FULL set.
pub fn explore(few: usize, many: usize, model: impl Fn() + Sync + Send + 'static) {
    let runs = Arc::new(AtomicU64::new(0));
    if std::env::var_os("TCUDA_MODELS_KEEP").is_some() {
        twin::keep_memory();
    }
    let mut builder = loom::model::Builder::new();
    let full = std::env::var_os("TCUDA_MODELS_FULL").is_some();
    builder.preemption_bound = Some(if full { many } else { few });
    builder.max_branches = 10_000;
    let count = Arc::clone(&runs);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        base::sync::begin_run();
        model();
    });
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a model");
    println!("{name}: {} interleavings", runs.load(Ordering::Relaxed));
}
