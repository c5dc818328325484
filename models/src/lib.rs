//! The pieces under model, from the library's own files; `sync` is what differs.

#[path = "../../src/memory/arena_lock.rs"]
pub mod arena_lock;
#[path = "../../src/epoch.rs"]
pub mod epoch;
pub mod error;
#[path = "../../src/lock.rs"]
pub mod lock;
pub mod rank;
#[path = "../../src/memory/registry.rs"]
pub mod registry;
#[path = "../../src/ffi/slot.rs"]
pub mod slot;
#[path = "../../src/memory/stats.rs"]
pub mod stats;
pub mod sync;
pub mod twin;
