//! The caching allocator: memory ordered on streams, without driver calls in steady state.
//!
//! A folder imports only folders to its left: [`config`], [`stats`], [`trace`], [`backing`] (memory
//! from the driver), [`arena`] (the blocks of one stream), [`device`] (all arenas of a device),
//! [`fallback`] (what happens when memory runs out), [`pools`], [`pinned`]. The files of this
//! folder use all of them: `fast.rs` has the path of nearly every call, `allocate.rs` and
//! `pointer.rs` have all others, and `checkpoint.rs` those of checkpoints of private pools.

mod allocate;
pub mod arena;
pub mod backing;
pub mod checkpoint;
pub mod config;
pub mod device;
pub mod fallback;
pub mod fast;
pub mod managed;
pub mod pinned;
mod pointer;
pub mod pools;
pub mod stats;
#[cfg(test)]
mod tests;
pub mod trace;

pub use crate::memory::device::graph_launches::end_of;
pub(crate) use crate::memory::device::stream_end::wait_for;
pub(crate) use crate::memory::pools::sleep::require_awake;
pub use crate::memory::stats::keys::{AllKeys, Json, Key, Keys, in_row, nearest, pool_in};
pub use crate::memory::stats::summary::Summary;
pub use device::DeviceMemory;
pub use device::lookup::{Found, unknown_pointer};
pub(crate) use device::uncached::is_used as has_uncached_blocks;
pub use pointer::{
    annotate, cached_extent, context_of, device_of, extent, find, free, free_on, record_around,
    record_stream, use_inside, write_frames,
};

use crate::base::error::Result;
use crate::base::waiting;
use crate::gpu::gpus::Gpus;
use crate::memory::config::settings::{self, Settings};
use crate::memory::device::hooks::Hooks;
use crate::memory::device::{backend, hooks, poison, suballocations};
use crate::memory::trace::history::{self, EachStack};

static EACH_STACK: EachStack = each_stack;

/// Passes the stack of each live block, and perhaps 0, to a function.
fn each_stack(gpus: &Gpus, add: &mut dyn FnMut(u32)) {
    gpus.devices.iter().for_each(|device| device.memory().each_stack(add));
    gpus.pinned().each_stack(add);
}

/// Installs what the allocator needs of the layers above it, before the first device exists.
pub(crate) fn install(hooks: &'static Hooks) {
    hooks::install(hooks);
    history::install(&EACH_STACK);
}

/// Puts settings in force, except those that each device has.
pub(crate) fn choose_settings(settings: Settings) {
    settings::choose(settings);
    poison::set(settings.poison_on_free);
    suballocations::set(settings.nvtx_suballocations);
}

/// Resets the settings: the environment is read again.
pub(crate) fn forget_settings() {
    settings::forget();
    poison::set(false);
    suballocations::set(false);
}

/// Gives all unused memory of all devices back to the driver, and waits for streams that may still
/// use it.
pub fn empty_cache(gpus: &Gpus) -> Result<()> {
    waiting::refuse_in_callback()?;
    if let Some(hooks) = hooks::installed() {
        (hooks.release_unused)(gpus);
    }
    if let Some(allocator) = backend::pluggable() {
        allocator.reset()?;
    }
    gpus.devices.iter().try_for_each(|device| device.memory().empty_cache(gpus))
}
