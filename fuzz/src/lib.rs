//! The bodies of the fuzz targets, as plain functions: `targets/` gives them to libFuzzer, and
//! `tests/corpus.rs` runs the checked-in inputs through them without it.
//!
//! A body panics when something is wrong. It must leave the process as it found it, since thousands
//! of inputs run in one.

pub mod abi;
mod alloc_config;
mod arguments;
pub mod expect;
mod fault_rules;
pub mod input;
pub mod left;
mod options;
pub mod outputs;
pub mod pinned;
pub mod shadow;
pub mod text;
mod threads;
mod trace;
mod virtual_memory;
pub mod world;

use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

/// Prints a line if TCUDA_FUZZ_TRACE is set: the calls of an input.
pub fn tell(line: std::fmt::Arguments<'_>) {
    static WANTED: OnceLock<bool> = OnceLock::new();
    if *WANTED.get_or_init(|| std::env::var_os("TCUDA_FUZZ_TRACE").is_some()) {
        eprintln!("{line}");
    }
}

/// One input at a time, and never a driver of this machine.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    static ENVIRONMENT: Once = Once::new();
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    ENVIRONMENT.call_once(|| {
        left::observe();
        for (name, value) in [("TCUDA_CUDA_DRIVER_PATH", "/nonexistent"), ("TCUDA_SIM", "")] {
            // SAFETY: before the first call of the library; no other thread of ours reads it.
            unsafe { std::env::set_var(name, value) };
        }
    });
    guard
}

/// Calls of the C ABI by one thread.
pub fn abi(data: &[u8]) {
    let _alone = alone();
    left::steady(|| abi::program(world::Mode::Strict, data));
}

/// The same while driver calls fail.
pub fn abi_faults(data: &[u8]) {
    let _alone = alone();
    left::steady(|| abi::program(world::Mode::Faults, data));
}

/// The same by several threads at once.
pub fn threads(data: &[u8]) {
    let _alone = alone();
    threads::run(data, threads::Beside::Nothing);
}

/// The same while one more thread shuts down again and again. Inputs are those of `threads`.
pub fn shutdowns(data: &[u8]) {
    let _alone = alone();
    threads::run(data, threads::Beside::Shutdowns);
}

/// The same while one more thread forks. Without AddressSanitizer: that is not held still over a
/// fork.
pub fn forks(data: &[u8]) {
    let _alone = alone();
    threads::run(data, threads::Beside::Forks);
}

/// Texts that configure the simulated machine.
pub fn sim_options(data: &[u8]) {
    let _alone = alone();
    left::steady(|| options::simulator(data));
}

/// Rules of injected failures.
pub fn faults(data: &[u8]) {
    let _alone = alone();
    left::steady(|| options::faults(data));
}

/// Texts with faults to inject.
pub fn fault_rules(data: &[u8]) {
    let _alone = alone();
    left::steady(|| fault_rules::run(data));
}

/// Texts with settings of the allocator.
pub fn alloc_config(data: &[u8]) {
    let _alone = alone();
    left::steady(|| alloc_config::run(data));
}

/// Raw driver calls on the simulated machine.
pub fn virtual_memory(data: &[u8]) {
    let _alone = alone();
    virtual_memory::run(data);
}

/// Trace files of examples/replay.
pub fn trace(data: &[u8]) {
    let _alone = alone();
    trace::run(data);
}

/// A target: its body, under its name.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("abi", abi),
    ("abi_faults", abi_faults),
    ("threads", threads),
    ("trace", trace),
    ("sim_options", sim_options),
    ("faults", faults),
    ("fault_rules", fault_rules),
    ("alloc_config", alloc_config),
    ("virtual_memory", virtual_memory),
];
