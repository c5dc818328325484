//! The pieces under model, from the library's own files; `sync` is what differs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[path = "../../src/epoch.rs"]
pub mod epoch;
pub mod error;
#[path = "../../src/farewell.rs"]
pub mod farewell;
pub mod ffi;
#[path = "../../src/life.rs"]
pub mod life;
#[path = "../../src/lock.rs"]
pub mod lock;
#[path = "../../src/log.rs"]
pub mod log;
pub mod memory;
pub mod rank;
#[path = "../../src/retired.rs"]
pub mod retired;
pub mod sim;
pub mod stderr;
pub mod sync;
pub mod thread;
pub mod twin;
pub mod waiting;

/// Tries a model in every interleaving in which threads are interrupted where they could go on at most
/// so often: `few` times as a part of the tests, `many` times with TCUDA_MODELS_FULL set.
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
        sync::begin_run();
        model();
    });
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a model");
    println!("{name}: {} interleavings", runs.load(Ordering::Relaxed));
}
