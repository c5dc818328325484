//! Settings of the allocator: the grammar of TCUDA_ALLOC_CONF, and what the settings mean for a
//! request.
//!
//! Begin with `settings.rs`.

pub(crate) mod grammar;
pub mod host_settings;
pub(crate) mod policy;
pub mod settings;
