//! Devices, streams and events of GPUs as objects. Imports `driver`,
//! `sanitizer`, `base` and `observe`.
//!
//! Begin with `gpus.rs`, `device.rs` and `stream.rs`. `subsystem.rs` has the slots in which the
//! layers above keep their state of a device. Streams that a host created are in
//! `external_stream.rs`, `external_life.rs` and `external_registry.rs`; `green_context.rs` uses
//! them.

pub(crate) mod capture_mode;
pub(crate) mod current;
pub mod device;
pub mod event;
pub mod external_life;
pub mod external_registry;
pub(crate) mod external_stream;
pub mod gpus;
pub mod green_context;
pub(crate) mod image;
pub(crate) mod internal_streams;
pub mod sanitizer_reports;
pub mod sm_partition;
pub mod stray_contexts;
pub mod stream;
pub mod subsystem;
pub mod waits;
