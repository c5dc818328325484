//! What happens when a thread ends and when the process forks, in a fixed order.

use crate::base::error::Result;
use crate::base::thread::{self, Hooks, Inside};
use crate::gpu::{current, gpus};
use crate::interop::math_handles;
use crate::memory::device::figures;
use crate::memory::pools::route;
use crate::memory::trace::{history, metadata};
use crate::sanitizer;

static HOOKS: Hooks = Hooks {
    thread_ends: |block| {
        route::forget(block);
        math_handles::leave(std::ptr::from_ref(block) as usize);
        figures::leave();
        history::end_thread();
        metadata::end_thread();
        sanitizer::leave();
    },
    thread_left: current::forget,
    is_started: super::is_started,
    in_child: || {
        sanitizer::in_child();
        gpus::next_generation();
        // Also if another thread was starting the driver.
        super::is_started() || gpus::lifecycle().is_held()
    },
};

/// Installs the hooks of threads.
pub(super) fn install() {
    thread::install(&HOOKS);
}

/// Enters the library on a thread that is not registered yet, or that a watcher observes.
#[cold]
pub(super) fn enter_slow() -> Result<Inside> {
    install();
    thread::enter()
}
