//! What the allocator needs of the layers above it. `runtime` installs the functions when the
//! library is initialised.

use crate::gpu::gpus::Gpus;
use crate::observe::table::Table;

/// The functions.
pub struct Hooks {
    /// Releases what ended graphs and other processes no longer use, and freed memory that is
    /// registered for transfers of files.
    pub release_unused: fn(&Gpus),
    /// The same for exported and registered memory alone, on a slow path of an allocation; the
    /// caller holds no lock. False: no exported memory was to be released.
    pub release_exports: fn(&Gpus) -> bool,
    /// The host frees an exported block. The caller holds the arena's lock.
    pub exported_block_freed: fn(&Gpus, u64) -> Verdict,
    /// Removes an exported block that is about to be freed. False: it was removed already.
    pub remove_exported_block: fn(&Gpus, u64) -> bool,
}

/// What happens to an exported block that the host frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No other process has it: it is freed now.
    Free,
    /// Another process has it: it is freed when the last one has closed it.
    Defer,
    /// The host freed it before.
    AlreadyFreed,
}

static HOOKS: Table<Hooks> = Table::new();

/// Installs the functions.
pub(in crate::memory) fn install(hooks: &'static Hooks) {
    HOOKS.install(Some(hooks));
}

/// The functions, if they are installed.
pub(in crate::memory) fn installed() -> Option<&'static Hooks> {
    HOOKS.get()
}
