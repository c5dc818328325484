//! Code that every layer uses: errors, locks and their order, epochs and reclamation, threads,
//! text, files, the environment, the log. Imports only `observe`.
//!
//! Begin with `error.rs`, then `epoch.rs` and `retired.rs`.

pub mod descriptor;
pub mod environment;
pub mod epoch;
pub mod error;
pub mod file;
pub mod frames;
pub(crate) mod host_calls;
#[cfg(any(test, feature = "host_faults"))]
pub mod host_faults;
pub mod inline_vec;
pub mod lifecycle;
pub mod lock;
pub mod log;
pub mod observers;
pub mod once;
pub mod ordinal;
pub mod pin_outermost;
pub(crate) mod place;
pub mod progress;
pub(crate) mod published;
pub mod rank;
pub(crate) mod region;
pub mod retired;
pub(crate) mod shared;
pub mod stack_table;
pub mod stderr;
pub mod sync;
pub mod text;
pub mod thread;
pub(crate) mod thread_attributes;
pub mod thread_lifetime;
pub mod waiting;
