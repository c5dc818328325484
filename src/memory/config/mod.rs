//! Settings of the allocator: the grammar of TCUDA_ALLOC_CONF, and what the settings mean for a
//! request. Also what a request is: its size, its class, and its pool.
//!
//! Begin with `settings.rs` and `size.rs`.

pub(crate) mod fraction;
pub(crate) mod grammar;
pub mod host_settings;
pub(crate) mod policy;
pub(crate) mod pool_id;
pub mod segment_rules;
pub mod settings;
pub mod size;
